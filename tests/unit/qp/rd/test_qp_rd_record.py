"""Write-Records on RD are delivered completely, exactly once and in order.

This file's tests use real sockets; others are in tests/sim/rd/test_verbs_rd_record.py.
"""

from __future__ import annotations

import pytest
from harness.rd_harness import RDEnd
from harness.verbs_harness import Rig

from siwarp.verbs import (
    WCOpcode,
    WROpcode,
)

RECORD = WROpcode.RDMA_WRITE_RECORD


def consecutive_message_ids(first: int, n: int) -> list[int]:
    return [(first + i) & 0xFFFFFFFF for i in range(n)]


@pytest.mark.clause("DGRAM-REC-17")
def test_write_records_are_ordered_with_other_messages_of_a_peer(rig: Rig) -> None:
    target, peers = (
        RDEnd(rig, 1 << 18, max_write_records=64),
        [RDEnd(rig, 1 << 18) for _ in range(3)],
    )
    for i in range(12):
        target.post_receive(i, 64, 200_000)
    for turn in range(4):
        for peer in peers:
            peer.post_rdma(target, RECORD, 100_000, 10 * turn)
            peer.send(target, bytes([turn]), 10 * turn + 1, offset=100_000 + turn)
    got = target.poll_receives(24)
    for peer in peers:
        mine = [w for w in got if w.source == peer.qp.addr]
        assert [w.opcode for w in mine] == [WCOpcode.RECV_WRITE_RECORD, WCOpcode.RECV] * 4
        ids = [target.qp.record(w).message_id for w in mine[::2]]
        assert ids == consecutive_message_ids(ids[0], 4)
        assert [w.wr_id for w in peer.poll_sends(8)] == [
            10 * t + i for t in range(4) for i in range(2)
        ]
