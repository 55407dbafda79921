"""Immediate data on RD is sent in the message of a Send, or in a second message after a Write.

This file's tests use real sockets; others are in tests/sim/rd/test_verbs_rd_imm.py.
"""

from __future__ import annotations

from harness.rd_harness import RDEnd
from harness.verbs_harness import Rig

from siwarp.verbs import (
    RecvWR,
    WROpcode,
)

SEND, READ = WROpcode.SEND, WROpcode.RDMA_READ
WRITE_IMM, SEND_IMM = WROpcode.RDMA_WRITE_WITH_IMM, WROpcode.SEND_WITH_IMM
IMM = 0x01C2_83FE


def write_with_immediate(a: RDEnd, b: RDEnd, length: int, wr_id: int = 3, **more: int) -> None:
    a.post_rdma(b, WRITE_IMM, length, wr_id, imm_data=more.pop("imm", IMM), **more)


def test_requests_of_all_opcodes_from_several_rd_peers_stay_in_order_per_peer(rig: Rig) -> None:
    target, peers = RDEnd(rig, 1 << 20, depth=256), [RDEnd(rig, 1 << 20) for _ in range(3)]
    target.qp.post_recv([RecvWR(i, sg=[target.into.sge(1 << 19, 4096)]) for i in range(60)])
    kinds = [(SEND, 10), (WRITE_IMM, 200_000), (READ, 30), (WRITE_IMM, 0), (SEND_IMM, 20)]
    for turn in range(4):
        for peer in peers:
            for i, (opcode, length) in enumerate(kinds):
                # Each kind of request uses its own memory area, so that no memory is written while
                # another request reads it.
                at = {SEND: 1 << 18, SEND_IMM: 1 << 18, READ: 1 << 19}.get(opcode, 0) + 64 * turn
                if opcode in (SEND, SEND_IMM):
                    more = {} if opcode == SEND else {"imm_data": turn}
                    peer.send(target, bytes(length), 5 * turn + i, opcode=opcode, offset=at, **more)
                elif opcode == READ:
                    peer.post_rdma(target, opcode, length, 5 * turn + i, offset=at)
                else:
                    write_with_immediate(peer, target, length, 5 * turn + i, imm=turn)
    got = target.poll_receives(48)
    for peer in peers:
        assert [w.wr_id for w in peer.poll_sends(20)] == list(range(20))
        mine = [w for w in got if w.source == peer.qp.addr]
        assert [w.byte_len for w in mine] == [10, 200_000, 0, 20] * 4
        assert [w.imm_data for w in mine if w.wc_flags] == [t for t in range(4) for _ in range(3)]
    assert sorted(w.wr_id for w in got) == list(range(48))
