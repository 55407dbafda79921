"""Waits for completions inside the library (``siw_wait_cq``), without events."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest
from harness.rc_harness import SEND, ListenerAndConnector
from harness.rd_harness import RDEnd
from harness.verbs_harness import (
    LIMIT,
    Pair,
    Rig,
    open_device_without_progress_thread,
    poll,
    temporary_settings,
)
from net import HERE

from siwarp._siwarp import ffi, lib
from siwarp.verbs import CQ, WCStatus

MESSAGES = 200


def wait_for_completions(cq: CQ, ms: int = -1, most: int = 4) -> int:
    """Return the result of ``siw_wait_cq``; the completions succeeded."""
    wcs = ffi.new("struct siw_wc[]", most)
    null = ffi.NULL
    n = int(lib.siw_wait_cq(cq._c_object(), most, wcs, null, null, null, ms))
    assert all(wcs[i].status == WCStatus.SUCCESS for i in range(n))
    return n


class Party:
    """One end of an exchange: how it posts a receive and a message, and its queues."""

    def __init__(
        self, receive: Callable[[], None], send: Callable[[], None], rcq: CQ, scq: CQ
    ) -> None:
        self.receive, self.send, self.rcq, self.scq = receive, send, rcq, scq

    def exchange_messages(self, first: bool) -> None:
        """Send and receive messages in turn; all waits are without a time-out."""
        for i in range(MESSAGES):
            if first:
                self.send()
            assert wait_for_completions(self.rcq, most=1) == 1
            if i < MESSAGES - 1:
                self.receive()
            if not first:
                self.send()
            assert wait_for_completions(self.scq, most=1) == 1


def create_parties(kind: str, rig: Rig) -> list[Party]:
    if kind == "rc":
        ends = ListenerAndConnector(rig).connect(size=64)
        parties = [
            Party(
                lambda end=end: end.post_receive(length=8),  # type: ignore[misc]
                lambda end=end: end.post(SEND, length=8),  # type: ignore[misc]
                end.rcq,
                end.scq,
            )
            for end in ends
        ]
    else:
        a, b = RDEnd(rig, 64), RDEnd(rig, 64)
        parties = [
            Party(
                lambda end=end: end.post_receive(size=8),  # type: ignore[misc]
                lambda end=end, to=to: end.send(to, bytes(8)),  # type: ignore[misc]
                end.rcq,
                end.scq,
            )
            for end, to in ((a, b), (b, a))
        ]
    for party in parties:
        party.receive()
    return parties


@pytest.mark.parametrize("kind", ["rc", "rd"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_two_threads_that_wait_exchange_messages_without_a_progress_thread(
    kind: str, lanes: int
) -> None:
    # A thread may receive a message for the other thread, and then has to wake that thread, because
    # there is no progress thread.
    with temporary_settings(lanes=lanes):
        rig = open_device_without_progress_thread()
    one, other = create_parties(kind, rig)
    thread = threading.Thread(target=other.exchange_messages, args=(False,))
    thread.start()
    one.exchange_messages(True)
    thread.join()
    rig.ctx.close(force=True)


def test_a_completion_that_another_thread_queues_ends_a_wait() -> None:
    rig = Rig()
    pair = Pair(rig)
    found: list[int] = []

    def wait_for_all_send_completions() -> None:
        while sum(found) < MESSAGES:
            found.append(wait_for_completions(pair.scq))

    thread = threading.Thread(target=wait_for_all_send_completions)
    thread.start()
    for _ in range(MESSAGES):
        pair.post_receive()
        pair.send(b"x")
        poll(pair.rcq)
    thread.join()
    assert sum(found) == MESSAGES
    rig.close()


def test_a_wait_raises_no_event_and_leaves_the_queue_as_it_was_armed() -> None:
    rig = Rig()
    channel = rig.create_channel()
    cq = rig.create_cq(16, channel)
    end = RDEnd(rig, 64, cq=cq)
    for armed in (False, True):
        if armed:
            cq.req_notify()
        end.post_receive()
        end.send(end, b"x")
        got = 0
        while got < 2:
            got += wait_for_completions(cq)
        assert channel.get_cq_event(0) is (cq if armed else None)
    rig.ctx.close(force=True)


def test_a_wait_ends_when_another_thread_destroys_the_queue() -> None:
    rig = Rig()
    for _ in range(50):
        cq = rig.create_cq()
        c = cq._c_object()
        wc = ffi.new("struct siw_wc *")
        results: list[int] = []

        def wait_without_time_out(
            c: object = c, wc: object = wc, results: list[int] = results
        ) -> None:
            null = ffi.NULL
            results.append(lib.siw_wait_cq(c, 1, wc, null, null, null, -1))

        thread = threading.Thread(target=wait_without_time_out)
        thread.start()
        cq.close()
        thread.join(LIMIT)
        assert results == [-errno.EINVAL]
    rig.close()


def test_a_wait_without_time_only_polls() -> None:
    rig = Rig()
    pair = Pair(rig)
    assert wait_for_completions(pair.rcq, 0) == -errno.EAGAIN
    pair.post_receive()
    pair.send(b"x")
    while (n := wait_for_completions(pair.rcq, 0)) == -errno.EAGAIN:
        pass
    assert n == 1
    rig.close()


def test_invalid_arguments_of_a_wait_are_refused() -> None:
    rig = Rig()
    c, null = rig.create_cq()._c_object(), ffi.NULL
    wc = ffi.new("struct siw_wc *")
    assert lib.siw_wait_cq(null, 1, wc, null, null, null, -1) == -errno.EINVAL
    assert lib.siw_wait_cq(c, 1, null, null, null, null, -1) == -errno.EINVAL
    assert lib.siw_wait_cq(c, -1, wc, null, null, null, -1) == -errno.EINVAL
    assert lib.siw_wait_cq(c, 0, null, null, null, null, -1) == 0
    rig.close()


def test_a_wait_fails_after_a_forced_close() -> None:
    rig = Rig()
    cq = rig.create_cq()
    c, wc, null = cq._c_object(), ffi.new("struct siw_wc *"), ffi.NULL
    results: list[int] = []
    thread = threading.Thread(
        target=lambda: results.append(lib.siw_wait_cq(c, 1, wc, null, null, null, -1))
    )
    thread.start()
    rig.ctx.close(force=True)
    thread.join(LIMIT)
    assert results == [-errno.ESTALE]


def test_a_call_without_time_receives_a_message_while_waits_do_not_spin() -> None:
    with temporary_settings(lanes=1):
        rig = open_device_without_progress_thread()
    channel = rig.create_channel()
    c, which, null = channel._c_object(), ffi.new("struct siw_cq **"), ffi.NULL
    cq = rig.create_cq(16, channel)
    pair = Pair(rig)
    into = rig.create_ud_qp(scq=rig.create_cq(), rcq=cq, addr=(HERE, 0))
    pair.b, pair.to_b = into, rig.create_ah(into)
    for _ in range(40):  # after unsuccessful spins, the next waits do not spin
        assert lib.siw_get_cq_event(c, which, null, 1) == -errno.EAGAIN
    for i in range(10):
        cq.req_notify()
        pair.post_receive(i)
        pair.send(b"x")
        assert lib.siw_get_cq_event(c, which, null, 0) == 0
        lib.siw_ack_cq_events(which[0], 1)
        assert [wc.wr_id for wc in cq.poll(2)] == [i]
    rig.ctx.close(force=True)
