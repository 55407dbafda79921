"""The states SQD (send queue drained) and SQE (send queue stopped by an error).

This file's tests use real sockets; others are in tests/sim/verbs/test_verbs_sqd.py.
"""

from __future__ import annotations

import net
import pytest
from harness.rc_harness import ListenerAndConnector
from harness.sqd_harness import next_drained_qp
from harness.verbs_harness import Pair, poll

from siwarp.verbs import (
    QPAttr,
    QPState,
    SendWR,
    WCStatus,
)

RTS, SQD, SQE, ERR, RESET = (
    QPState.RTS,
    QPState.SQD,
    QPState.SQE,
    QPState.ERR,
    QPState.RESET,
)


def test_an_idle_rc_send_queue_is_drained_immediately(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, _b = two_device_connector.connect()
    a.qp.modify(QPAttr(qp_state=SQD, en_sqd_async_notify=True))
    assert next_drained_qp(a.rig, 0) is a.qp


@pytest.mark.parametrize(
    "peer", [("127.255.255.255", 9), ("192.0.2.1", 9)], ids=["broadcast", "unreachable"]
)
def test_a_send_refused_by_the_network_leaves_the_ud_queue_pair_in_rts(
    ud_pair: Pair, peer: tuple[str, int]
) -> None:
    """A send that fails for one peer must not affect sends to other peers of a UD queue pair."""
    # The test requires that the network of this machine refuses the send.
    with net.open_udp_socket() as plain, pytest.raises(OSError):
        plain.sendto(b"x", peer)
    ud_pair.post_receive()
    ud_pair.a.post_send(SendWR(1, sg=[ud_pair.out.sge(0, 1)], ah=ud_pair.rig.create_ah(peer)))
    assert poll(ud_pair.scq)[0].status == WCStatus.GENERAL_ERR
    assert ud_pair.a.qp_state == RTS
    ud_pair.send(b"others", wr_id=2)
    assert poll(ud_pair.scq)[0].ok and poll(ud_pair.rcq)[0].byte_len == 6
