"""Timing of RC Sends without a receive: rnr_retry and min_rnr_timer in simulated networks."""

from __future__ import annotations

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
    expect_counter_increase,
)

from siwarp.cm import CMEventType
from siwarp.sim import World
from siwarp.verbs import SRQ, Persona, QPAttr, QPState, RecvWR, SrqAttr, WCStatus

FLUSHED = WCStatus.WR_FLUSH_ERR
NO_BUFFER = 1 << 16 | 2 << 8 | 2
DELAY = 10 * MS
HOUR_S = 3600


def connect_roce_ends(
    world: World, retry: int | None = None, timer: int = 14, **init: object
) -> tuple[End, End]:
    """Connect two ends; a Send waits ``retry`` times the RNR timer ``timer`` (14 is 1.28 ms)."""
    world.faults("delay=10ms")

    def set_rnr_attributes(_: End) -> None:
        for end in (a, b):
            if retry is not None:
                end.qp.modify(QPAttr(rnr_retry=retry, min_rnr_timer=timer))

    a, b = (
        End(world, f"10.0.0.{i}", persona=Persona.ROCE, **init)  # type: ignore[arg-type]
        for i in (1, 2)
    )
    connect_by_cm(a, b, set_rnr_attributes)
    return a, b


@pytest.mark.parametrize(
    ("retry", "timer", "us"),
    [
        (0, 0, 0),
        (0, 31, 0),
        (1, 0, 655_360),
        (1, 1, 10),
        (1, 26, 81_920),
        (2, 24, 2 * 40_960),
        (3, 25, 3 * 61_440),
        (6, 22, 6 * 20_480),
        (6, 31, 6 * 491_520),
        (6, 0, 6 * 655_360),
    ],
)
def test_a_send_fails_with_rnr_retry_exc_err_after_retry_count_times_timer(
    world: World, retry: int, timer: int, us: int
) -> None:
    a, b = connect_roce_ends(world, retry, timer)
    a.post_receive(5)
    with expect_counter_increase("rnr_expired", 1):
        began = world.now_ns
        for i in range(2):
            a.post(SEND, i, length=8)
        done = a.wait_for_sends(2)
        took = world.now_ns - began
    assert [(w.wr_id, w.status, w.vendor_err) for w in done] == [
        (0, WCStatus.RNR_RETRY_EXC_ERR, NO_BUFFER),
        (1, FLUSHED, NO_BUFFER),
    ]
    # The Send fails after the delay to the peer, the RNR wait, and the delay back.
    assert 2 * DELAY + us * 1000 <= took < 2 * DELAY + us * 1000 + NAP
    assert [w.status for w in a.wait_for_receives()] == [FLUSHED]
    for end in (a, b):
        assert end.state == QPState.ERR
        assert end.next_event().wire_error == NO_BUFFER


@pytest.mark.parametrize("in_time", [True, False])
def test_a_receive_posted_before_the_rnr_time_ends_completes_the_send(
    world: World, in_time: bool
) -> None:
    a, b = connect_roce_ends(world, 1, 26)
    a.post(SEND, 1, length=8)
    world.run_for((DELAY + 81_920_000 + (-1 * MS if in_time else NAP)) / SECOND)
    if not in_time:
        assert b.state == QPState.ERR
        assert a.wait_for_sends()[0].status == WCStatus.RNR_RETRY_EXC_ERR
        return
    b.post_receive(9)
    assert b.wait_for_receives()[0].wr_id == 9
    assert a.wait_for_sends()[0].ok


def test_each_waiting_send_has_its_own_rnr_time(world: World) -> None:
    a, b = connect_roce_ends(world, 2, 27)  # each Send may wait 2 * 122.88 ms = 246 ms
    for i in range(4):
        a.post(SEND, i, length=8)
    for i in range(3):
        assert_no_completions(world, 0.24, b.rcq)
        b.post_receive(i)
        assert b.wait_for_receives()[0].wr_id == i
    assert [w.status for w in a.wait_for_sends(3)] == [0, 0, 0]
    assert a.wait_for_sends()[0].status == WCStatus.RNR_RETRY_EXC_ERR


def test_by_default_a_send_of_persona_roce_waits_for_a_receive_without_limit(world: World) -> None:
    a, b = connect_roce_ends(world)
    a.post(SEND, 1, length=8)
    assert_no_completions(world, 24 * HOUR_S, a.cq, b.rcq)
    assert a.state == b.state == QPState.RTS
    began = world.now_ns
    b.post_receive(9)
    assert b.wait_for_receives()[0].wr_id == 9
    assert a.wait_for_sends()[0].ok
    assert DELAY <= world.now_ns - began < DELAY + NAP


def test_rnr_retry_may_be_changed_while_a_send_waits(world: World) -> None:
    with temporary_settings(
        mpa_announce=0
    ):  # without announcements only the receiver's setting counts
        a, b = connect_roce_ends(world, 7, 1)
    a.post(SEND, 1, length=8)
    assert_no_completions(world, HOUR_S, a.cq)
    began = world.now_ns
    b.qp.modify(QPAttr(rnr_retry=1))
    assert a.wait_for_sends()[0].status == WCStatus.RNR_RETRY_EXC_ERR
    assert DELAY <= world.now_ns - began < DELAY + NAP


def test_with_persona_iwarp_a_send_without_a_receive_is_terminated_immediately(
    world: World,
) -> None:
    world.faults("delay=10ms")
    a, b = (End(world, f"10.0.0.{i}", persona=Persona.IWARP) for i in (1, 2))
    connect_by_cm(a, b)
    with expect_counter_increase("rnr_unexpected", 0):
        began = world.now_ns
        a.post(SEND, 1, length=8)
        event = a.next_event()
    assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, NO_BUFFER)
    assert world.now_ns - began == 2 * DELAY
    assert a.state == b.state == QPState.ERR


def test_a_waiting_send_completes_at_both_ends_when_the_receive_is_posted(world: World) -> None:
    a, b = connect_roce_ends(world)
    a.mr.write(octet_pattern(1000))
    with expect_counter_increase("rnr_unexpected", 1):
        a.post(SEND, 1, length=1000)
        assert_no_completions(world, 60, a.cq, b.rcq)
    b.post_receive(9)
    (wc,) = b.wait_for_receives()
    assert (wc.wr_id, wc.ok, wc.byte_len) == (9, True, 1000)
    assert b.mr.read(1000) == octet_pattern(1000)
    assert [(w.wr_id, w.status) for w in a.wait_for_sends()] == [(1, WCStatus.SUCCESS)]


def test_a_posted_receive_accepts_a_waiting_send_although_the_receiver_does_not_poll(
    world: World,
) -> None:
    a, b = connect_roce_ends(world)
    a.post(SEND, 1, length=8)
    assert_no_completions(world, 60, a.cq)
    b.post_receive()
    world.run_for((DELAY + NAP) / SECOND)
    assert [wc.ok for wc in a.cq.poll()] == [True]


def test_a_receive_posted_to_a_shared_receive_queue_accepts_a_waiting_send(world: World) -> None:
    world.faults("delay=10ms")
    a, b = (End(world, f"10.0.0.{i}", persona=Persona.ROCE) for i in (1, 2))
    srq, mr = SRQ(b.pd, SrqAttr(16)), b.mr
    b = End(world, b.address, device=b.device, persona=Persona.ROCE, srq=srq)
    connect_by_cm(a, b)
    a.post(SEND, 1, length=8)
    assert_no_completions(world, 60, a.cq)
    srq.post_recv(RecvWR(7, sg=[mr.sge(0, 64)]))
    assert b.wait_for_receives()[0].wr_id == 7
    assert a.wait_for_sends()[0].ok


def test_a_write_and_a_read_complete_while_an_earlier_send_waits_for_a_receive(
    world: World,
) -> None:
    # The active end does not confirm its Sends by Reads, so its Reads do not wait.
    world.faults("delay=10ms")
    a = End(world, "10.0.0.1", persona=Persona.IWARP)
    b = End(world, "10.0.0.2", persona=Persona.ROCE)
    connect_by_cm(a, b)
    a.mr.write(octet_pattern(64))
    began = world.now_ns
    a.post(SEND, 1, length=64)
    a.post(WRITE, 2, length=64, remote=b.mr.remote(1024, 64))
    a.post(READ, 3, offset=512, length=64, remote=b.mr.remote(1024, 64))
    assert [w.wr_id for w in a.wait_for_sends(3)] == [1, 2, 3]
    assert world.now_ns - began == 2 * DELAY
    assert a.mr.read(64, 512) == b.mr.read(64, 1024) == octet_pattern(64)
    assert_no_completions(world, 60, b.rcq)
    b.post_receive()
    assert b.wait_for_receives()[0].ok


@pytest.mark.parametrize("receives", [0, 1])
def test_a_send_that_waits_while_a_later_write_is_refused_is_flushed(
    world: World, receives: int
) -> None:
    """Check that Sends before the refused Write succeed only if a delivery count covers them."""
    a, b = connect_roce_ends(world, private_messages=True)
    for i in range(receives):
        b.post_receive(i)
    away = b.mr.remote(0, 64)._replace(rkey=b.mr.rkey ^ 0x00FFFF00)
    for i in range(2):
        a.post(SEND, i, length=8)
    a.post(WRITE, 2, length=64, remote=b.mr.remote(1024, 64))
    a.post(WRITE, 3, length=64, remote=away)
    statuses = [WCStatus.SUCCESS] * receives + [FLUSHED] * (2 - receives)
    done = a.wait_for_sends(4)
    assert [w.status for w in done[:2]] == statuses
    assert done[3].status == WCStatus.REM_ACCESS_ERR
    assert [w.ok for w in b.wait_for_receives(receives)] == [True] * receives


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_waiting_sends_are_received_in_the_order_of_posting(world: World, size: int) -> None:
    a, b = connect_roce_ends(world, size=4 << 20)
    for i in range(40):
        a.mr.write(octet_pattern(size, i), offset=i * size)
        a.post(SEND, i, offset=i * size, length=size)
    assert_no_completions(world, 60, a.cq)
    for i in range(40):
        b.post_receive(i, 0, size + 1)
        (wc,) = b.wait_for_receives()
        assert (wc.wr_id, wc.byte_len) == (i, size)
        assert b.mr.read(size) == octet_pattern(size, i)
    assert [w.wr_id for w in a.wait_for_sends(40)] == list(range(40))


def test_a_full_staging_area_stops_the_sender_without_loss(world: World) -> None:
    size, n = 300_000, 12  # the Sends have together more octets than the receiver stores
    a, b = connect_roce_ends(world, size=1 << 20)
    a.mr.write(octet_pattern(size))
    for i in range(n):
        a.post(SEND, i, length=size)
    assert_no_completions(world, 60, a.cq)
    before = world.stats
    assert_no_completions(world, HOUR_S, a.cq)
    # TCP's window stops the sender, so there are only window probes, and the device is not polled.
    assert world.stats.segments - before.segments < 100
    assert world.stats.rounds - before.rounds < 200
    for i in range(n):
        b.mr.write(bytes(size))
        b.post_receive(i, 0, size)
        (wc,) = b.wait_for_receives()
        assert (wc.wr_id, wc.byte_len) == (i, size)
        assert b.mr.read(size) == octet_pattern(size)
    assert [w.wr_id for w in a.wait_for_sends(n)] == list(range(n))


def test_a_crash_of_a_peer_is_detected_while_received_octets_are_unread(world: World) -> None:
    size = 300_000
    a, b = connect_roce_ends(world, size=1 << 20)
    for end in (a, b):
        for i in range(12):
            end.post(SEND, i, length=size)
    assert_no_completions(world, 60, a.cq)
    world.crash(b.device)
    began = world.now_ns
    # The kernel of the peer resets the connection because the peer had unread data.
    assert [(wc.wr_id, wc.ok) for wc in a.wait_for_sends(12)] == [(i, False) for i in range(12)]
    assert DELAY <= world.now_ns - began < DELAY + NAP
    assert a.state == QPState.ERR


@pytest.mark.parametrize("who", ["sender", "receiver"])
@pytest.mark.parametrize("how", ["destroy", "disconnect", "crash"])
def test_closing_a_connection_flushes_sends_that_wait_for_receives(
    world: World, who: str, how: str
) -> None:
    a, b = connect_roce_ends(world)
    for i in range(5):
        a.post(SEND, i, length=1000)
    assert_no_completions(world, 60, b.rcq)
    one, other = (a, b) if who == "sender" else (b, a)
    began = world.now_ns
    if how == "destroy":
        one.close()
    elif how == "crash":
        world.crash(one.device)
    else:
        assert one.id is not None
        one.id.disconnect()
    assert other.next_event().type == CMEventType.DISCONNECTED
    assert world.now_ns - began < 2 * DELAY + NAP
    assert other.state == QPState.ERR
    if who == "receiver" or how == "disconnect":
        assert [w.status for w in a.wait_for_sends(5)] == [FLUSHED] * 5


# ---- Sends that are stored regardless of the persona


def test_stored_sends_of_a_crashed_peer_are_received_before_the_disconnect_event(
    world: World,
) -> None:
    world.faults("delay=10ms")
    a, b = (End(world, f"10.0.0.{i}", persona=Persona.IWARP, keep_unexpected=True) for i in (1, 2))
    connect_by_cm(a, b)
    assert b.qp.query()[1].keep_unexpected
    messages = [octet_pattern(n, n) for n in (100, 0, 30_000)]
    with expect_counter_increase("rnr_unexpected", 3):
        for n, message in enumerate(messages):
            a.mr.write(message)
            a.post(SEND, n, length=len(message))
            assert a.wait_for_sends()[0].ok
        world.crash(a.device)
        assert_no_completions(world, HOUR_S, b.rcq)
    assert b.channel.get_event(0) is None
    for n, message in enumerate(messages):
        b.post_receive(n)
        (wc,) = b.wait_for_receives()
        assert (wc.wr_id, wc.byte_len) == (n, len(message))
        assert b.mr.read(wc.byte_len) == message
    event = b.next_event()
    assert (event.type, event.status) == (CMEventType.DISCONNECTED, 0)


def test_stored_sends_of_a_crashed_peer_cause_no_work_while_they_wait(world: World) -> None:
    """Check with one event per progress round, so that two posted receives take two rounds."""
    world.faults("delay=10ms")
    with temporary_settings(budget=1):
        a, b = (
            End(world, f"10.0.0.{i}", persona=Persona.IWARP, keep_unexpected=True) for i in (1, 2)
        )
        connect_by_cm(a, b)
        for n in range(3):
            a.send(bytes([n]), n)
            assert a.wait_for_sends()[0].ok
        world.crash(a.device)
        assert_no_completions(world, 60, b.rcq)
        for n in range(2):
            b.post_receive(n)
        assert [wc.check().wr_id for wc in b.wait_for_receives(2)] == [0, 1]
        before = world.stats.rounds
        assert_no_completions(world, HOUR_S, b.rcq)
        assert world.stats.rounds - before < 200
        b.post_receive(2)
        assert [wc.check().wr_id for wc in b.wait_for_receives()] == [2]
        assert b.next_event().type == CMEventType.DISCONNECTED
