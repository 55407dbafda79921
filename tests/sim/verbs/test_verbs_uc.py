"""UC queue pairs: states and attributes, messages of any length, Writes, errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.uc_harness import QKEY, Ends, Peer
from harness.verbs_harness import Rig, counted, nothing, pattern

from siwarp.verbs import (
    QPAttr,
    QPState,
)


@pytest.fixture
def peer(rig: Rig) -> Iterator[Peer]:
    made = Peer(rig)
    yield made
    made.close()


@pytest.mark.clause("DGRAM-UC-7")
def test_doubles_and_late_ones_are_dropped_and_counted(peer: Peer) -> None:
    peer.recv(1)
    peer.recv(2)
    one, two = peer.message(pattern(200), 100)
    other = peer.message(b"other")
    with counted("drop_late", 4):
        peer.put(one, one, two, two, one, *other, *other)
        assert [w.byte_len for w in peer.received(2)] == [200, 5]
        nothing(peer.cq)
    assert peer.memory.read(5) == b"other"


@pytest.mark.clause("DGRAM-UC-14")
def test_a_message_without_a_receive_is_dropped_and_counted(peer: Peer) -> None:
    with counted("drop_no_buffer", 1), counted("drop_partial", 2):
        peer.put(*peer.message(pattern(300), 100))
        nothing(peer.cq)
    peer.recv(1)
    peer.put(*peer.message(b"good"))
    assert peer.received()[0].byte_len == 4


def test_errors_flush_and_reset_forgets_the_receive_of_a_message_half_here(rig: Rig) -> None:
    peer = Peer(rig)
    peer.recv(1)
    peer.recv(2)
    peer.put(*peer.message(pattern(300), 100)[:2])
    nothing(peer.cq)
    peer.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert [(w.wr_id, w.status) for w in peer.received(2)] == [(1, 5), (2, 5)]
    peer.qp.modify(QPAttr(qp_state=QPState.RESET))
    assert peer.qp.query()[0].ah_attr is None
    peer.qp.to_rts(QPAttr(ah_attr=peer.sock.getsockname(), qkey=QKEY, rq_psn=70))
    peer.psn = 70
    peer.recv(3)
    peer.put(*peer.message(b"new life"))
    assert [(w.wr_id, w.byte_len) for w in peer.received()] == [(3, 8)]
    peer.close()


def test_in_sqd_what_was_begun_is_finished_and_the_rest_waits(rig: Rig) -> None:
    ends = Ends(rig)
    ends.a.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
    ends.recv(1)
    ends.send(b"later")
    nothing(ends.scq)
    ends.a.to_rts()
    assert ends.sent()[0].ok and ends.received()[0].byte_len == 5
