"""Destroying queue pairs that are bound to a connection identifier."""

from __future__ import annotations

import errno

from harness.rc_harness import SEND, End, ListenerAndConnector
from harness.verbs_harness import errno_raised_by, poll

from siwarp.base.library import lib
from siwarp.cm import CMEventType


def destroy_queue_pair(end: End) -> None:
    """Destroy the queue pair of ``end`` without its connection identifier, as a C program may."""
    assert lib.siw_destroy_qp(end.qp._c_object()) == 0
    end.qp._c = None


def test_destroying_a_bound_queue_pair_disconnects_both_ends_and_delivers_completed_sends(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(size=4096)
    b.post_receive(7)
    a.mem.write(b"last words")
    a.post(SEND, length=10)
    assert poll(a.scq)[0].ok
    destroy_queue_pair(a)
    assert a.next_cm_event().type == b.next_cm_event().type == CMEventType.DISCONNECTED
    wc = poll(b.rcq)[0]
    assert wc.ok and b.mem.read(10) == b"last words"
    assert a.channel.get_event(0.05) is None and b.channel.get_event(0) is None
    assert (
        errno_raised_by(a.id.bind_qp, b.qp) == errno.EINVAL
    )  # the queue pair of `b` has been connected before
    a.id.close()
