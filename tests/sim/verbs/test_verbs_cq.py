"""Completion queues and completion channels."""

from __future__ import annotations

from harness.cq_harness import QPWithReceiveEvents
from harness.verbs_harness import Pair, Rig, assert_no_completion, poll

from siwarp.base.library import ffi, lib
from siwarp.verbs import SendFlag


def test_separate_completion_queues_for_sends_and_receives_get_the_right_completions(
    pair: Pair,
) -> None:
    pair.post_receive(wr_id=4)
    pair.send(b"x", wr_id=5)
    assert [w.wr_id for w in poll(pair.rcq)] == [4]
    assert [w.wr_id for w in poll(pair.scq)] == [5]
    assert_no_completion(pair.idle)


def test_a_completion_before_arming_raises_no_event_but_is_returned_by_the_next_poll(
    rig: Rig,
) -> None:
    told = QPWithReceiveEvents(rig)
    told.post_receives(2)
    told.post_sends(SendFlag.SIGNALED)
    wc = ffi.new("struct siw_wc[1]")
    # Polling another queue processes the traffic, so the completion is in `cq` before `cq` is
    # armed.
    other = told.rig.create_cq()
    poll(told.scq)
    for _ in range(16):
        assert other.poll() == []
    told.cq.req_notify()
    assert told.channel.get_cq_event(0.02) is None
    assert lib.siw_poll_cq(told.cq._c_object(), 1, wc) == 1
