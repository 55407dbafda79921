"""Connected RC queue pairs: data by Send, Write and Read."""

from __future__ import annotations

import errno

import pytest
from harness.rc_harness import READ, SEND, WRITE, ListenerAndConnector
from harness.verbs_harness import assert_no_completion, poll

from siwarp.verbs import (
    RecvWR,
)


def test_unsignaled_rc_requests_complete_without_a_completion(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    b.qp.post_recv([RecvWR(1), RecvWR(2)])
    a.post(SEND, 1, flags=0)
    a.post(WRITE, 2, length=10, remote=b.mem.remote(0, 10), flags=0)
    a.post(READ, 3, length=10, remote=b.mem.remote(0, 10), flags=0)
    a.post(SEND, 4)
    assert [w.wr_id for w in poll(a.scq)] == [4]
    assert len(poll(b.rcq, 2)) == 2
    assert_no_completion(a.scq)


def test_a_full_rc_send_queue_refuses_a_request_and_accepts_it_after_completions(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(max_send_wr=4)
    room = b.qp.cap.max_send_wr
    a.qp.post_recv([RecvWR(i) for i in range(room + 1)])
    # The responder must not send before the initiator has sent, so its send queue fills up.
    for i in range(room):
        b.post(SEND, i)
    with pytest.raises(OSError) as e:
        b.post(SEND, 99)
    assert e.value.errno == errno.ENOMEM
    assert_no_completion(b.scq)
    b.qp.post_recv(RecvWR(1))
    a.post(SEND, 1)
    assert [w.wr_id for w in poll(b.scq, room)] == list(range(room))
    b.post(SEND, 99)
    assert len(poll(a.rcq, room + 1)) == room + 1
