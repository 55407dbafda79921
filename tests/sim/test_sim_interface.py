"""Fault plans of an interface, which apply to all packets of a device, and the send buffer."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator

import pytest
from sim.conftest import End

from siwarp.base.library import ffi, lib
from siwarp.sim import World
from siwarp.verbs import AH, Context, Error, QPType, RecvWR, SendFlag, SendWR

MakeEnd = Callable[[Context, QPType], End]
SIZE = 1000
#: Nanoseconds that a datagram of SIZE octets with its headers takes at 10 Mbit/s.
DATAGRAM_NS = (SIZE + 18) * 800


@contextlib.contextmanager
def temporary_send_buffer_size(octets: int) -> Iterator[None]:
    names = [ffi.string(lib.siw_setting_name(i)) for i in range(lib.siw_settings_count())]
    before = lib.siw_setting_value(names.index(b"sndbuf"))
    assert lib.siw_setting_set(b"sndbuf", octets) == 0
    yield
    lib.siw_setting_set(b"sndbuf", before)


def send_datagrams_and_wait(end: End, to: End, n: int) -> None:
    """Post ``n`` datagrams of SIZE octets, and wait for their completions."""
    with AH(end.pd, to.qp.addr) as ah:
        for i in range(n):
            end.qp.post_send(
                SendWR(i, sg=[end.mr.sge(0, SIZE)], ah=ah, send_flags=SendFlag.SIGNALED)
            )
        done = 0
        while done < n:
            done += len([wc.check() for wc in end.cq.wait()])


def wait_for_arrival_times(world: World, end: End, n: int) -> list[int]:
    times: list[int] = []
    while len(times) < n:
        times.extend(world.now_ns for wc in end.cq.wait() if wc.check())
    return times


def move_to_rts_and_post_receives(end: End, receives: int) -> End:
    end.qp.to_rts()
    for i in range(receives):
        end.qp.post_recv(RecvWR(1000 + i, sg=[end.mr.sge(32768, SIZE)]))
    return end


def test_senders_share_the_receive_rate_of_an_interface(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    receiver = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.1", faults="rx:rate=10Mbit"), QPType.UD), 30
    )
    senders = [
        move_to_rts_and_post_receives(
            create_rdma_endpoint(world.device(f"10.0.0.{i}"), QPType.UD), 0
        )
        for i in (2, 3, 4)
    ]
    task = world.spawn(wait_for_arrival_times, world, receiver, 30)
    for sender in senders:
        world.spawn(send_datagrams_and_wait, sender, receiver, 10)
    world.run_tasks(within="1s")
    # The 30 datagrams arrive in sequence; a device that is not polled is serviced late.
    assert 30 * DATAGRAM_NS * 0.98 < task.result()[-1] < 30 * DATAGRAM_NS * 1.02 + 1_000_000


def test_the_transmit_rate_of_an_interface_applies_to_all_destinations(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    sender = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.1", faults="tx:rate=10Mbit"), QPType.UD), 0
    )
    receivers = [
        move_to_rts_and_post_receives(
            create_rdma_endpoint(world.device(f"10.0.0.{i}"), QPType.UD), 10
        )
        for i in (2, 3, 4)
    ]
    waits = [world.spawn(wait_for_arrival_times, world, receiver, 10) for receiver in receivers]
    for receiver in receivers:
        world.spawn(send_datagrams_and_wait, sender, receiver, 10)
    world.run_for("1s")
    last = max(task.result()[-1] for task in waits)
    assert 30 * DATAGRAM_NS * 0.98 < last < 30 * DATAGRAM_NS * 1.02 + 1_000_000


def test_a_full_receive_queue_of_an_interface_drops_datagrams(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    faults = "rx:rate=10Mbit,limit=5"
    receiver = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.1", faults=faults), QPType.UD), 30
    )
    sender = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.2"), QPType.UD), 0
    )
    world.spawn(send_datagrams_and_wait, sender, receiver, 30)
    world.run_for("1s")
    assert world.stats.lost == 30 - world.stats.delivered > 20


def test_a_fault_plan_of_an_interface_applies_until_it_is_removed(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    receiver = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.1"), QPType.UD), 30
    )
    sender = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.2"), QPType.UD), 0
    )
    world.interface(receiver.device, "rx:loss=100%")
    world.spawn(send_datagrams_and_wait, sender, receiver, 10)
    world.run_for("1s")
    assert (world.stats.lost, world.stats.delivered) == (10, 0)
    world.interface(receiver.device)
    world.spawn(send_datagrams_and_wait, sender, receiver, 10)
    world.run_for("1s")
    assert (world.stats.lost, world.stats.delivered) == (10, 10)
    with pytest.raises(Error) as refused:
        world.interface(receiver.device, "speed=1")
    assert refused.value.errno == errno.EINVAL


@pytest.mark.parametrize("rule", ["dup=1%", "reorder=1%", "reset=1MB", "short=1%"])
def test_an_interface_refuses_fault_rules_that_apply_only_to_links(world: World, rule: str) -> None:
    name = rule.partition("=")[0]
    device = world.device("10.0.0.1")
    with pytest.raises(Error, match=f"{name}= applies only to a link") as refused:
        world.interface(device, f"delay=1ms,{rule}")
    assert refused.value.errno == errno.EINVAL
    world.faults(rule)


@pytest.mark.parametrize("where", ["interface", "link"])
@pytest.mark.parametrize("kind", [QPType.UD, QPType.RD])
def test_a_full_send_buffer_delays_the_sender_instead_of_losing_datagrams(
    world: World, create_rdma_endpoint: MakeEnd, kind: QPType, where: str
) -> None:
    """Check that a sender whose send buffer is smaller than the link's queue loses nothing."""
    receiver = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.1"), kind), 100
    )
    sender = move_to_rts_and_post_receives(create_rdma_endpoint(world.device("10.0.0.2"), kind), 0)
    plan = "tx:rate=10Mbit,limit=80"
    if where == "interface":
        world.interface(sender.device, plan)
    else:
        world.link(sender.device, receiver.device, plan)
    with temporary_send_buffer_size(4096):
        task = world.spawn(wait_for_arrival_times, world, receiver, 100)
        world.spawn(send_datagrams_and_wait, sender, receiver, 100)
        world.run_tasks(within="10s")
    assert world.stats.lost == 0
    assert task.result()[-1] > 100 * DATAGRAM_NS * 0.95


def test_a_large_send_buffer_lets_the_queue_of_a_slow_interface_overflow(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    receiver = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.1"), QPType.UD), 100
    )
    sender = move_to_rts_and_post_receives(
        create_rdma_endpoint(world.device("10.0.0.2", faults="tx:rate=10Mbit,limit=80"), QPType.UD),
        0,
    )
    world.spawn(send_datagrams_and_wait, sender, receiver, 100)
    world.run_for("1s")
    assert world.stats.lost > 0


def test_datagrams_of_a_faster_plan_leave_the_send_buffer_before_those_of_a_slower_one(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    sender, receiver = (
        move_to_rts_and_post_receives(
            create_rdma_endpoint(world.device(f"10.0.0.{i}"), QPType.UD), 30
        )
        for i in (1, 2)
    )
    with temporary_send_buffer_size(4096):
        world.faults("rate=10kbit")
        start = world.now_ns
        send_datagrams_and_wait(sender, receiver, 2)  # the second datagram departs after 1.6 s
        world.faults("delay=10us;rate=10Mbit")
        # The send buffer has space for two datagrams beside the first two. While the task waits,
        # rounds that the simulator makes for the device send the next ones, and must wake the task.
        for _ in range(20):
            send_datagrams_and_wait(sender, receiver, 1)
    assert world.now_ns - start < 25 * DATAGRAM_NS
