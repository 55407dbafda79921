"""How RC connections end: which requests are flushed, which data still arrives, and when."""

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
    assert_no_completions,
    connect_by_cm,
)

from siwarp.cm import CMEventType
from siwarp.sim import World
from siwarp.verbs import QPAttr, QPState, WCOpcode, WCStatus

FLUSHED = WCStatus.WR_FLUSH_ERR
DELAY = 10 * MS
LINGER = 300 * MS
MIB = 1 << 20


@pytest.fixture
def long_linger_setting() -> Iterator[None]:
    """A linger time much longer than all other times in these tests."""
    with temporary_settings(linger_ms=600_000):
        yield


@pytest.fixture
def set_short_linger_time() -> Iterator[None]:
    with temporary_settings(linger_ms=LINGER // MS):
        yield


def connect_two_hosts(world: World, size: int = 1 << 16, rate: str = "") -> tuple[End, End]:
    world.faults(f"delay=10ms{rate}")
    a, b = (End(world, f"10.0.0.{i}", size) for i in (1, 2))
    connect_by_cm(a, b)
    return a, b


# ---- the state ERR


@pytest.mark.usefixtures("long_linger_setting")
def test_moving_to_err_flushes_all_requests_of_both_ends_in_order(world: World) -> None:
    a, b = connect_two_hosts(world)
    for i in range(5):
        a.post_receive(10 + i)
        b.post_receive(20 + i)
    for i in range(4):  # the responder's Sends wait for the initiator's first message
        b.post(SEND, i)
    assert_no_completions(world, 60, b.cq)
    began = world.now_ns
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert a.next_event().type == CMEventType.DISCONNECTED
    assert DELAY <= world.now_ns - began < DELAY + NAP
    assert a.state == QPState.ERR
    assert b.next_event().type == CMEventType.DISCONNECTED
    assert [(w.wr_id, w.status) for w in b.wait_for_sends(4)] == [(i, FLUSHED) for i in range(4)]
    for end, first in ((a, 10), (b, 20)):
        done = end.wait_for_receives(5)
        assert [(w.wr_id, w.status) for w in done] == [(first + i, FLUSHED) for i in range(5)]
    # The initiator closes the stream, too, and one packet delay later neither end lingers.
    assert world.now_ns - began < 2 * DELAY + 2 * NAP
    for end in (a, b):
        end.post(SEND, 77)
        end.post_receive(78)
        assert [(w.wr_id, w.status) for w in end.wait_for_sends()] == [(77, FLUSHED)]
        assert [(w.wr_id, w.status, w.opcode) for w in end.wait_for_receives()] == [
            (78, FLUSHED, WCOpcode.RECV)
        ]
        assert_no_completions(world, 60, end.cq, end.rcq)


@pytest.mark.usefixtures("set_short_linger_time")
def test_a_silent_peer_delays_the_flush_of_an_rc_queue_pair_no_longer_than_linger_ms(
    world: World,
) -> None:
    a, b = connect_two_hosts(world, 4 * MIB)
    world.partition(a.device, b.device)
    for i in range(3):
        a.post(WRITE, i, length=2 * MIB, remote=b.mr.remote(0, 2 * MIB))
    began = world.now_ns
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert_no_completions(world, (LINGER - MS) / SECOND, a.cq)
    assert [w.status for w in a.wait_for_sends(3)] == [FLUSHED] * 3
    assert LINGER <= world.now_ns - began < LINGER + NAP


# ---- disconnecting


@pytest.mark.usefixtures("long_linger_setting")
def test_both_ends_disconnect_with_much_data_in_flight_in_both_directions(world: World) -> None:
    a, b = connect_two_hosts(world, 4 * MIB, ",rate=1Gbit")
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
        assert end.next_event().type == CMEventType.DISCONNECTED
        assert end.state == QPState.ERR
    # 8 MiB in each direction at 1 Gbit/s take 67 ms.
    assert world.now_ns - began < SECOND


@pytest.mark.usefixtures("long_linger_setting")
@pytest.mark.parametrize("who", ["active", "passive"])
@pytest.mark.parametrize("how", ["disconnect", "close id", "destroy", "error"])
def test_the_end_of_a_connection_by_either_side_is_reported_to_both_sides(
    world: World, who: str, how: str
) -> None:
    a, b = connect_two_hosts(world)
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
    event = other.next_event()
    assert (event.type, event.id, event.wire_error) == (CMEventType.DISCONNECTED, other.id, 0)
    assert DELAY <= world.now_ns - began < DELAY + NAP
    assert [(w.wr_id, w.status) for w in other.wait_for_receives()] == [(2, FLUSHED)]
    if how != "destroy":
        assert [(w.wr_id, w.status) for w in one.wait_for_receives()] == [(1, FLUSHED)]
        assert one.state == QPState.ERR


# ---- closing a queue pair


@pytest.mark.usefixtures("long_linger_setting")
def test_a_queue_pair_with_pending_requests_is_destroyed_quickly(world: World) -> None:
    a, b = connect_two_hosts(world, 3 * MIB, ",rate=1Gbit")
    for i in range(10):
        a.post(WRITE, i, length=MIB, remote=b.mr.remote(0, MIB))
        a.post(READ, i, offset=MIB, length=MIB, remote=b.mr.remote(MIB, MIB))
        a.post_receive(i)
    world.run_for(0.02)
    began = world.now_ns
    a.close()
    a.mr.close()
    assert world.now_ns - began < SECOND
    assert b.next_event().type == CMEventType.DISCONNECTED
    assert b.state == QPState.ERR
    assert world.now_ns - began < SECOND


@pytest.mark.usefixtures("long_linger_setting")
@pytest.mark.parametrize("size", [1, 100_000, 1 << 20])
@pytest.mark.parametrize("loss", ["", ",loss=3%"])
def test_a_completed_send_arrives_although_its_queue_pair_is_destroyed_immediately(
    world: World, size: int, loss: str
) -> None:
    a, b = connect_two_hosts(world, 2 * MIB, loss)
    data = octet_pattern(size, 5)
    a.mr.write(data)
    b.post_receive(9)
    a.post(SEND, 1, length=size)
    # The Write of `b` stays unread in the socket of `a`; closing the socket would reset the
    # connection.
    b.post(WRITE, 5, offset=MIB, length=1000, remote=a.mr.remote(MIB, 1000))
    assert a.wait_for_sends()[0].ok
    a.close()
    (wc,) = b.wait_for_receives()
    assert (wc.wr_id, wc.ok, wc.byte_len) == (9, True, size)
    assert b.mr.read(size) == data
    assert b.next_event().type == CMEventType.DISCONNECTED


@pytest.mark.usefixtures("set_short_linger_time")
def test_closing_a_device_waits_for_a_silent_peer_no_longer_than_linger_ms(world: World) -> None:
    a, b = connect_two_hosts(world)
    world.partition(a.device, b.device)
    a.close()
    began = world.now_ns
    a.device.__exit__(None, None, None)
    assert LINGER <= world.now_ns - began < LINGER + 5 * MS + NAP
    world.heal()
    assert b.next_event().type == CMEventType.DISCONNECTED


@pytest.mark.usefixtures("set_short_linger_time")
def test_closing_a_device_does_not_wait_for_a_peer_that_has_closed(world: World) -> None:
    a, b = connect_two_hosts(world)
    a.close()
    began = world.now_ns
    a.device.__exit__(None, None, None)
    assert world.now_ns - began < 2 * DELAY + 5 * MS + NAP
    assert b.next_event().type == CMEventType.DISCONNECTED
