"""Devices with several lanes in simulated networks: each lane is served, runs are reproducible."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.verbs_harness import temporary_settings

from siwarp.sim import Stats, World
from siwarp.verbs import (
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    Error,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    StateError,
    WROpcode,
)

from .conftest import ACCESS

MS = 1_000_000
LANES = 4
DELAY = 5 * MS
#: The longest delay before a lane is serviced: the setting nap_us (1 ms) after a poll of it, and
#: another 1 ms, which an unsuccessful poll may take.
NAP = 2 * MS
CAP = QPCap(max_send_wr=64, max_recv_wr=64)
#: A wait polls its four lanes one after the other. The pause after a poll without a result is 1 us
#: at first and doubles, so four such polls take 15 us.
POLLS = 16_000
EACH_LANE = pytest.mark.parametrize("lane", range(LANES))


class LaneEnds:
    """A device with a UC queue pair, and a CQ, in each lane; the CQs share a channel."""

    def __init__(self, world: World, address: str) -> None:
        self.device: Context = world.device(address)
        self.pd = PD(self.device)
        self.channel = CompChannel(self.device)
        self.mr = MR(self.pd, LANES << 10, ACCESS)
        self.cqs: list[CQ] = []
        self.qps: list[QP] = []
        for lane in range(LANES):
            # The first queue pair of a device is in lane 0.
            cq = CQ(self.device, 64, channel=self.channel, comp_vector=lane)
            init = QPInitAttr(QPType.UC, scq=cq, rcq=cq, cap=CAP, addr=(address, 0))
            self.cqs.append(cq)
            self.qps.append(QP(self.pd, init))

    def write(self, lane: int, to: LaneEnds) -> None:
        """Write a text that names the lane into the lane's part of the peer's memory."""
        self.mr.write(lane_text(lane), offset=lane << 10)
        self.qps[lane].post_send(
            SendWR(
                1,
                WROpcode.RDMA_WRITE,
                sg=[self.mr.sge(lane << 10, 1024)],
                remote=to.mr.remote(lane << 10, 1024),
            )
        )

    def has_been_written(self, lane: int) -> bool:
        return self.mr.read(1024, lane << 10) == lane_text(lane)

    def send(self, lane: int, to: LaneEnds) -> None:
        to.qps[lane].post_recv(RecvWR(lane, sg=[to.mr.sge(lane << 10, 1024)]))
        self.qps[lane].post_send(SendWR(lane, sg=[self.mr.sge(lane << 10, 1024)]))


def lane_text(lane: int) -> bytes:
    return f"lane {lane}".encode().ljust(1024)


@pytest.fixture
def use_four_lanes() -> Iterator[None]:
    with temporary_settings(lanes=LANES):
        yield


def connected_lane_ends(world: World) -> tuple[LaneEnds, LaneEnds]:
    a, b = (LaneEnds(world, f"10.0.0.{i}") for i in (1, 2))
    for ours, theirs in zip(a.qps, b.qps, strict=True):
        ours.to_rts(QPAttr(ah_attr=theirs.addr))
        theirs.to_rts(QPAttr(ah_attr=ours.addr))
    return a, b


@pytest.fixture
def lane_ends(use_four_lanes: None, world: World) -> tuple[LaneEnds, LaneEnds]:
    world.faults("delay=5ms")
    return connected_lane_ends(world)


def test_the_scheduler_makes_the_progress_rounds_of_every_lane(
    world: World, lane_ends: tuple[LaneEnds, LaneEnds]
) -> None:
    a, b = lane_ends
    began = world.now_ns
    for lane in range(LANES):
        a.write(lane, b)
    world.run_until(lambda: all(b.has_been_written(lane) for lane in range(LANES)), within="1s")
    assert world.now_ns - began == DELAY


@EACH_LANE
def test_a_message_in_any_lane_ends_a_wait_on_the_channel_when_it_arrives(
    world: World, lane_ends: tuple[LaneEnds, LaneEnds], lane: int
) -> None:
    a, b = lane_ends
    for cq in b.cqs:
        cq.req_notify()
    began = world.now_ns
    a.send(lane, b)
    assert b.channel.get_cq_event(10) is b.cqs[lane]
    assert DELAY <= world.now_ns - began < DELAY + POLLS
    (wc,) = b.cqs[lane].poll(4)
    assert (wc.wr_id, wc.ok) == (lane, True)


@EACH_LANE
@pytest.mark.parametrize("polled", range(LANES))
def test_one_sided_traffic_goes_on_while_another_lane_is_polled(
    world: World, lane_ends: tuple[LaneEnds, LaneEnds], polled: int, lane: int
) -> None:
    a, b = lane_ends
    began = world.now_ns
    a.write(lane, b)
    while not b.has_been_written(lane):
        assert b.cqs[polled].poll() == []
        assert world.now_ns - began < DELAY + NAP


@EACH_LANE
def test_without_progress_thread_a_poll_of_one_lane_serves_all_lanes(
    use_four_lanes: None, world: World, lane: int
) -> None:
    with temporary_settings(progress_thread=0):
        a, b = connected_lane_ends(world)
    a.write(lane, b)
    world.run_for("1s")
    assert not b.has_been_written(lane)
    assert b.cqs[0].poll() == []
    assert b.has_been_written(lane)


def test_after_a_crash_the_calls_on_every_lane_report_a_stale_device(
    world: World, lane_ends: tuple[LaneEnds, LaneEnds]
) -> None:
    _, b = lane_ends
    waiter = world.spawn(b.channel.get_cq_event, on=b.device)
    world.run_for("1ms")
    world.crash(b.device)
    world.run_for("1ms")
    assert waiter.done()
    for cq in b.cqs:
        with pytest.raises(StateError):
            cq.poll()


def exchange_messages_on_all_lanes(seed: int) -> tuple[int, Stats]:
    """Exchange messages on an unreliable network; return the hash of the trace and statistics."""
    with World(seed, "delay=1ms,jitter=1ms,loss=10%,reorder=10%") as world:
        a, b = connected_lane_ends(world)

        def exchange_messages(ours: LaneEnds, theirs: LaneEnds, lane: int) -> None:
            for turn in range(20):
                ours.send(lane, theirs)
                if turn % 2:
                    ours.cqs[lane].wait(0.002)
                else:
                    ours.cqs[lane].poll(4)

        for lane in range(LANES):
            world.spawn(exchange_messages, a, b, lane)
            world.spawn(exchange_messages, b, a, lane)
        world.run_tasks()
        return world.trace_hash, world.stats


def test_the_seed_determines_the_run_of_devices_with_several_lanes(use_four_lanes: None) -> None:
    first, again, other = (
        exchange_messages_on_all_lanes(1),
        exchange_messages_on_all_lanes(1),
        exchange_messages_on_all_lanes(2),
    )
    assert first == again
    assert first[0] != other[0]
    assert first[1].lost > 0


def test_a_device_opens_lanes_alike_whether_or_not_an_earlier_device_had_them(
    use_four_lanes: None,
) -> None:
    """Check allocations that fail: the structs of lanes are kept for the next world."""

    def list_cq_creation_outcomes() -> list[bool]:
        with World(3) as world, world.device("10.0.0.1") as device:
            world.fail_memory(200_000)
            done = []
            for i in range(40):
                try:
                    with CQ(device, 4, comp_vector=i % LANES):
                        done.append(True)
                except Error:
                    done.append(False)
            world.fail_memory(0)
            return done

    first = list_cq_creation_outcomes()
    assert {True, False} == set(first)
    assert all(list_cq_creation_outcomes() == first for _ in range(3))
