"""Idle polls: sockets that have just been examined are not examined again.

Only sockets on which messages arrived are hot here, so every other progress round calls epoll_wait,
which is counted. The devices have no progress thread, which would make rounds, too; and the tests
run in a process without devices of other tests, which would count as busy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness.rc_harness import SEND, Wire
from harness.verbs_harness import (
    Rig,
    counter_value,
    device_without_progress_thread,
    poll,
    wait_until,
)

from siwarp.verbs import CQ

pytestmark = pytest.mark.alone

POLLS = 1000


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = device_without_progress_thread()
    yield rig
    rig.close()


@pytest.fixture
def cq(rig: Rig) -> CQ:
    return rig.create_cq()


def rounds(*cqs: CQ) -> int:
    """Poll each CQ in turn; return how many of the polls examined the sockets."""
    before = counter_value("epoll_waits")
    for _ in range(POLLS):
        for cq in cqs:
            assert cq.poll(1) == []
    return counter_value("epoll_waits") - before


def about(polls: int) -> range:
    """Return this number or up to 10 less: the first polls may find a new device's own events."""
    return range(polls - 10, polls + 1)


def be_idle(cq: CQ) -> None:
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        cq.poll(1)


def test_every_poll_of_a_single_cq_examines_the_sockets(cq: CQ) -> None:
    assert rounds(cq) in about(POLLS)
    be_idle(cq)
    assert rounds(cq) in about(POLLS)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_polls_of_several_cqs_in_turn_share_one_examination(rig: Rig, cq: CQ, n: int) -> None:
    assert rounds(cq, *(rig.create_cq() for _ in range(n - 1))) in about(POLLS)


def test_a_cq_polled_by_itself_soon_examines_the_sockets_again(rig: Rig, cq: CQ) -> None:
    other = rig.create_cq()
    for _ in range(10):  # the first polls may find a new device's own events
        other.poll(1)
    assert rounds(cq) in about(POLLS - 7)


def test_an_idle_device_is_examined_less_often_than_a_busy_one(cq: CQ) -> None:
    busy = device_without_progress_thread()
    a, b = Wire(busy).connect()
    be_idle(cq)
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
    assert rounds(cq) in about(POLLS), "nothing is busy any more"


def test_a_message_for_an_idle_device_is_found_beside_a_busy_one() -> None:
    idle, busy, peer = Rig(), device_without_progress_thread(), Rig()
    a, b = Wire(busy).connect()
    c, d = Wire(peer, idle).connect()
    be_idle(d.rcq)
    for _ in range(100):
        d.post_receive()
        c.post(SEND, length=8)

        def answered() -> object:
            b.post_receive()
            a.post(SEND, length=8)
            poll(b.rcq), poll(a.scq)
            return d.rcq.poll(1)

        assert wait_until(answered)[0].ok
        poll(c.scq)
    for rig in (idle, busy, peer):
        rig.close()
