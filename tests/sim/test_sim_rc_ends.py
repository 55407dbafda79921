"""Ends of RC connections: which requests are flushed, which data still arrives, and when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.verbs_harness import octet_pattern, temporary_settings
from sim.rc_harness import (
    MS,
    NAP,
    READ,
    SECOND,
    SEND,
    WRITE,
    End,
    connect,
    nothing,
)

from siwarp.cm import CMEventType
from siwarp.sim import World
from siwarp.verbs import QPAttr, QPState, WCOpcode, WCStatus

FLUSHED = WCStatus.WR_FLUSH_ERR
DELAY = 10 * MS
LINGER = 300 * MS
MIB = 1 << 20


@pytest.fixture
def patient() -> Iterator[None]:
    """A linger time much longer than anything else in these tests."""
    with temporary_settings(linger_ms=600_000):
        yield


@pytest.fixture
def short() -> Iterator[None]:
    with temporary_settings(linger_ms=LINGER // MS):
        yield


def two(world: World, size: int = 1 << 16, rate: str = "") -> tuple[End, End]:
    world.faults(f"delay=10ms{rate}")
    a, b = (End(world, f"10.0.0.{i}", size) for i in (1, 2))
    connect(a, b)
    return a, b


# ---- an error


@pytest.mark.usefixtures("patient")
def test_on_error_everything_flushes_in_order_on_both_sides(world: World) -> None:
    a, b = two(world)
    for i in range(5):
        a.post_receive(10 + i)
        b.post_receive(20 + i)
    for i in range(4):  # the responder's Sends wait for the initiator's first message
        b.post(SEND, i)
    nothing(world, 60, b.cq)
    began = world.now_ns
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert a.event().type == CMEventType.DISCONNECTED
    assert DELAY <= world.now_ns - began < DELAY + NAP
    assert a.state == QPState.ERR
    assert b.event().type == CMEventType.DISCONNECTED
    assert [(w.wr_id, w.status) for w in b.wait_for_sends(4)] == [(i, FLUSHED) for i in range(4)]
    for end, first in ((a, 10), (b, 20)):
        done = end.wait_for_receives(5)
        assert [(w.wr_id, w.status) for w in done] == [(first + i, FLUSHED) for i in range(5)]
    # The initiator closes the stream, too, and after one delay neither end lingers.
    assert world.now_ns - began < 2 * DELAY + 2 * NAP
    for end in (a, b):
        end.post(SEND, 77)
        end.post_receive(78)
        assert [(w.wr_id, w.status) for w in end.wait_for_sends()] == [(77, FLUSHED)]
        assert [(w.wr_id, w.status, w.opcode) for w in end.wait_for_receives()] == [
            (78, FLUSHED, WCOpcode.RECV)
        ]
        nothing(world, 60, end.cq, end.rcq)


@pytest.mark.usefixtures("short")
def test_a_silent_peer_keeps_a_queue_pair_in_error_no_longer_than_linger_ms(world: World) -> None:
    a, b = two(world, 4 * MIB)
    world.partition(a.device, b.device)
    for i in range(3):
        a.post(WRITE, i, length=2 * MIB, remote=b.mr.remote(0, 2 * MIB))
    began = world.now_ns
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    nothing(world, (LINGER - MS) / SECOND, a.cq)
    assert [w.status for w in a.wait_for_sends(3)] == [FLUSHED] * 3
    assert LINGER <= world.now_ns - began < LINGER + NAP


# ---- a disconnect


@pytest.mark.usefixtures("patient")
def test_both_ends_disconnect_with_much_in_flight_each_way(world: World) -> None:
    a, b = two(world, 4 * MIB, ",rate=1Gbit")
    for end in (a, b):
        end.post_receive(1)
    a.post(SEND, 1)
    assert b.wait_for_receives()[0].ok
    for one, other in ((a, b), (b, a)):
        for i in range(4):
            one.post(WRITE, 10 + i, length=2 * MIB, remote=other.mr.remote(0, 2 * MIB))
    began = world.now_ns
    for end in (a, b):
        assert end.id is not None
        end.id.disconnect()
    for end in (a, b):
        assert end.event().type == CMEventType.DISCONNECTED
        assert end.state == QPState.ERR
    # 8 MiB in each direction at 1 Gbit/s take 67 ms.
    assert world.now_ns - began < SECOND


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("who", ["active", "passive"])
@pytest.mark.parametrize("how", ["disconnect", "close id", "destroy", "error"])
def test_an_end_by_either_side_is_told_to_both(world: World, who: str, how: str) -> None:
    a, b = two(world)
    one, other = (a, b) if who == "active" else (b, a)
    one.post_receive(1)
    other.post_receive(2)
    assert one.id is not None and other.id is not None
    began = world.now_ns
    if how == "disconnect":
        one.id.disconnect()
    elif how == "close id":
        one.id.close()
    elif how == "error":
        one.qp.modify(QPAttr(qp_state=QPState.ERR))
    else:
        one.close()
    event = other.event()
    assert (event.type, event.id, event.wire_error) == (CMEventType.DISCONNECTED, other.id, 0)
    assert DELAY <= world.now_ns - began < DELAY + NAP
    assert [(w.wr_id, w.status) for w in other.wait_for_receives()] == [(2, FLUSHED)]
    if how != "destroy":
        assert [(w.wr_id, w.status) for w in one.wait_for_receives()] == [(1, FLUSHED)]
        assert one.state == QPState.ERR


# ---- a queue pair that is destroyed


@pytest.mark.usefixtures("patient")
def test_a_queue_pair_with_work_outstanding_is_destroyed_without_harm(world: World) -> None:
    a, b = two(world, 3 * MIB, ",rate=1Gbit")
    for i in range(10):
        a.post(WRITE, i, length=MIB, remote=b.mr.remote(0, MIB))
        a.post(READ, i, offset=MIB, length=MIB, remote=b.mr.remote(MIB, MIB))
        a.post_receive(i)
    world.run_for(0.02)
    began = world.now_ns
    a.close()
    a.mr.close()
    assert world.now_ns - began < SECOND
    assert b.event().type == CMEventType.DISCONNECTED
    assert b.state == QPState.ERR
    assert world.now_ns - began < SECOND


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("size", [1, 100_000, 1 << 20])
@pytest.mark.parametrize("loss", ["", ",loss=3%"])
def test_what_completed_arrives_although_the_queue_pair_is_destroyed_at_once(
    world: World, size: int, loss: str
) -> None:
    a, b = two(world, 2 * MIB, loss)
    data = octet_pattern(size, 5)
    a.mr.write(data)
    b.post_receive(9)
    a.post(SEND, 1, length=size)
    # b's Write stays unread in a's socket; closing that socket would reset the connection.
    b.post(WRITE, 5, offset=MIB, length=1000, remote=a.mr.remote(MIB, 1000))
    assert a.wait_for_sends()[0].ok
    a.close()
    (wc,) = b.wait_for_receives()
    assert (wc.wr_id, wc.ok, wc.byte_len) == (9, True, size)
    assert b.mr.read(size) == data
    assert b.event().type == CMEventType.DISCONNECTED


@pytest.mark.usefixtures("short")
def test_closing_the_device_waits_for_a_silent_peer_within_the_limit(world: World) -> None:
    a, b = two(world)
    world.partition(a.device, b.device)
    a.close()
    began = world.now_ns
    a.device.__exit__(None, None, None)
    assert LINGER <= world.now_ns - began < LINGER + 5 * MS + NAP
    world.heal()
    assert b.event().type == CMEventType.DISCONNECTED


@pytest.mark.usefixtures("short")
def test_a_peer_that_says_it_has_ended_is_not_waited_for_longer(world: World) -> None:
    a, b = two(world)
    a.close()
    began = world.now_ns
    a.device.__exit__(None, None, None)
    assert world.now_ns - began < 2 * DELAY + 5 * MS + NAP
    assert b.event().type == CMEventType.DISCONNECTED
