"""Tests that idle polls do not examine sockets again that have just been examined.

Only sockets on which messages arrived are hot in these tests, so every other progress round calls
epoll_wait, and the calls are counted. The devices have no progress thread, because a progress
thread would make rounds, too. The tests run in a process without devices of other tests, because
those devices would count as busy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness.rc_harness import SEND, ListenerAndConnector
from harness.verbs_harness import (
    Rig,
    counter_value,
    open_device_without_progress_thread,
    poll,
    temporary_settings,
    wait_until,
)

from siwarp.verbs import CQ

pytestmark = pytest.mark.alone

POLLS = 1000


@pytest.fixture(name="rig")
def device_rig_without_progress_thread() -> Iterator[Rig]:
    # Without a progress thread, each poll makes a round on every lane.
    with temporary_settings(lanes=1):
        rig = open_device_without_progress_thread()
    yield rig
    rig.close()


@pytest.fixture(name="cq")
def cq_without_progress_thread(rig: Rig) -> CQ:
    return rig.create_cq()


def count_epoll_waits_of_polls(*cqs: CQ) -> int:
    """Poll the CQs in turn and return how many of the polls examined the sockets."""
    before = counter_value("epoll_waits")
    for _ in range(POLLS):
        for cq in cqs:
            assert cq.poll(1) == []
    return counter_value("epoll_waits") - before


def range_from_10_below(polls: int) -> range:
    """Return the numbers from ``polls - 10`` to ``polls``.

    The first polls of a new device may find events of the device.
    """
    return range(polls - 10, polls + 1)


def poll_idle_cq(cq: CQ) -> None:
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        cq.poll(1)


def test_every_poll_of_a_single_cq_examines_the_sockets(cq: CQ) -> None:
    assert count_epoll_waits_of_polls(cq) in range_from_10_below(POLLS)
    poll_idle_cq(cq)
    assert count_epoll_waits_of_polls(cq) in range_from_10_below(POLLS)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_polls_of_several_cqs_in_turn_examine_the_sockets_once_per_turn(
    rig: Rig, cq: CQ, n: int
) -> None:
    assert count_epoll_waits_of_polls(
        cq, *(rig.create_cq() for _ in range(n - 1))
    ) in range_from_10_below(POLLS)


def test_a_cq_that_is_polled_alone_soon_examines_the_sockets_at_each_poll(rig: Rig, cq: CQ) -> None:
    other = rig.create_cq()
    # The first polls of a new device may find events of the device.
    for _ in range(10):
        other.poll(1)
    assert count_epoll_waits_of_polls(cq) in range_from_10_below(POLLS - 7)


def test_sockets_of_an_idle_device_are_examined_less_often_than_those_of_a_busy_one(cq: CQ) -> None:
    busy = open_device_without_progress_thread()
    a, b = ListenerAndConnector(busy).connect()
    poll_idle_cq(cq)
    looked = polls = 0
    for _ in range(100):
        b.post_receive()
        a.post(SEND, length=8)
        poll(b.rcq), poll(a.scq)
        before = counter_value("epoll_waits")
        for _ in range(32):
            cq.poll(1)
        looked += counter_value("epoll_waits") - before
        polls += 32
    assert looked < polls / 2
    busy.close()
    for _ in range(64):
        cq.poll(1)
    assert count_epoll_waits_of_polls(cq) in range_from_10_below(POLLS), (
        "polls of the last device did not examine the sockets"
    )


def test_a_message_to_an_idle_device_is_received_beside_a_busy_device() -> None:
    idle, busy, peer = Rig(), open_device_without_progress_thread(), Rig()
    a, b = ListenerAndConnector(busy).connect()
    c, d = ListenerAndConnector(peer, idle).connect()
    poll_idle_cq(d.rcq)
    for _ in range(100):
        d.post_receive()
        c.post(SEND, length=8)

        def exchange_message_and_poll_idle_cq() -> object:
            b.post_receive()
            a.post(SEND, length=8)
            poll(b.rcq), poll(a.scq)
            return d.rcq.poll(1)

        assert wait_until(exchange_message_and_poll_idle_cq)[0].ok
        poll(c.scq)
    for rig in (idle, busy, peer):
        rig.close()
