"""UC queue pairs: states and attributes, messages of any length, Writes, errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.uc_harness import QKEY, PlainUCPeer, UCPair
from harness.verbs_harness import Rig, assert_counter_grows, assert_no_completion, octet_pattern

from siwarp.verbs import (
    QPAttr,
    QPState,
)


@pytest.fixture
def uc_peer(rig: Rig) -> Iterator[PlainUCPeer]:
    made = PlainUCPeer(rig)
    yield made
    made.close()


@pytest.mark.clause("DGRAM-UC-7")
def test_duplicate_and_late_uc_datagrams_are_dropped_and_counted(uc_peer: PlainUCPeer) -> None:
    uc_peer.post_receive(1)
    uc_peer.post_receive(2)
    one, two = uc_peer.build_send(octet_pattern(200), 100)
    other = uc_peer.build_send(b"other")
    with assert_counter_grows("drop_late", 4):
        uc_peer.send_datagrams(one, one, two, two, one, *other, *other)
        assert [w.byte_len for w in uc_peer.poll_completions(2)] == [200, 5]
        assert_no_completion(uc_peer.cq)
    assert uc_peer.memory.read(5) == b"other"


@pytest.mark.clause("DGRAM-UC-14")
def test_a_uc_message_without_a_receive_is_dropped_and_counted(uc_peer: PlainUCPeer) -> None:
    with assert_counter_grows("drop_no_buffer", 1), assert_counter_grows("drop_partial", 2):
        uc_peer.send_datagrams(*uc_peer.build_send(octet_pattern(300), 100))
        assert_no_completion(uc_peer.cq)
    uc_peer.post_receive(1)
    uc_peer.send_datagrams(*uc_peer.build_send(b"good"))
    assert uc_peer.poll_completions()[0].byte_len == 4


def test_err_flushes_and_reset_discards_the_receive_of_an_incomplete_uc_message(rig: Rig) -> None:
    uc_peer = PlainUCPeer(rig)
    uc_peer.post_receive(1)
    uc_peer.post_receive(2)
    uc_peer.send_datagrams(*uc_peer.build_send(octet_pattern(300), 100)[:2])
    assert_no_completion(uc_peer.cq)
    uc_peer.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert [(w.wr_id, w.status) for w in uc_peer.poll_completions(2)] == [(1, 5), (2, 5)]
    uc_peer.qp.modify(QPAttr(qp_state=QPState.RESET))
    assert uc_peer.qp.query()[0].ah_attr is None
    uc_peer.qp.to_rts(QPAttr(ah_attr=uc_peer.sock.getsockname(), qkey=QKEY, rq_psn=70))
    uc_peer.psn = 70
    uc_peer.post_receive(3)
    uc_peer.send_datagrams(*uc_peer.build_send(b"new life"))
    assert [(w.wr_id, w.byte_len) for w in uc_peer.poll_completions()] == [(3, 8)]
    uc_peer.close()


def test_a_uc_send_posted_in_sqd_is_transmitted_after_sqd(rig: Rig) -> None:
    ends = UCPair(rig)
    ends.a.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
    ends.post_receive(1)
    ends.send(b"later")
    assert_no_completion(ends.scq)
    ends.a.to_rts()
    assert ends.poll_sends()[0].ok and ends.poll_receives()[0].byte_len == 5
