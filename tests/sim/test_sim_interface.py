"""The fault plan of an interface, which applies to all packets of a device, and the send buffer."""

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
EACH_NS = (SIZE + 18) * 800


@contextlib.contextmanager
def send_buffer(octets: int) -> Iterator[None]:
    names = [ffi.string(lib.siw_setting_name(i)) for i in range(lib.siw_settings_count())]
    before = lib.siw_setting_value(names.index(b"sndbuf"))
    assert lib.siw_setting_set(b"sndbuf", octets) == 0
    yield
    lib.siw_setting_set(b"sndbuf", before)


def post(end: End, to: End, n: int) -> None:
    """Post n datagrams of SIZE octets."""
    with AH(end.pd, to.qp.addr) as ah:
        for i in range(n):
            end.qp.post_send(
                SendWR(i, sg=[end.mr.sge(0, SIZE)], ah=ah, send_flags=SendFlag.SIGNALED)
            )
        done = 0
        while done < n:
            done += len([wc.check() for wc in end.cq.wait()])


def arrivals(world: World, end: End, n: int) -> list[int]:
    times: list[int] = []
    while len(times) < n:
        times.extend(world.now_ns for wc in end.cq.wait() if wc.check())
    return times


def ready(end: End, receives: int) -> End:
    end.qp.to_rts()
    for i in range(receives):
        end.qp.post_recv(RecvWR(1000 + i, sg=[end.mr.sge(32768, SIZE)]))
    return end


def test_senders_share_the_rate_of_the_interface_that_receives(world: World, end: MakeEnd) -> None:
    receiver = ready(end(world.device("10.0.0.1", faults="rx:rate=10Mbit"), QPType.UD), 30)
    senders = [ready(end(world.device(f"10.0.0.{i}"), QPType.UD), 0) for i in (2, 3, 4)]
    task = world.spawn(arrivals, world, receiver, 30)
    for sender in senders:
        world.spawn(post, sender, receiver, 10)
    world.run_tasks(within="1s")
    # 30 datagrams in sequence; a device that is not polled is serviced late.
    assert 30 * EACH_NS * 0.98 < task.result()[-1] < 30 * EACH_NS * 1.02 + 1_000_000


def test_the_rate_of_the_interface_that_sends_is_for_all_destinations(
    world: World, end: MakeEnd
) -> None:
    sender = ready(end(world.device("10.0.0.1", faults="tx:rate=10Mbit"), QPType.UD), 0)
    receivers = [ready(end(world.device(f"10.0.0.{i}"), QPType.UD), 10) for i in (2, 3, 4)]
    waits = [world.spawn(arrivals, world, receiver, 10) for receiver in receivers]
    for receiver in receivers:
        world.spawn(post, sender, receiver, 10)
    world.run_for("1s")
    last = max(task.result()[-1] for task in waits)
    assert 30 * EACH_NS * 0.98 < last < 30 * EACH_NS * 1.02 + 1_000_000


def test_a_full_queue_of_an_interface_loses_what_comes(world: World, end: MakeEnd) -> None:
    faults = "rx:rate=10Mbit,limit=5"
    receiver = ready(end(world.device("10.0.0.1", faults=faults), QPType.UD), 30)
    sender = ready(end(world.device("10.0.0.2"), QPType.UD), 0)
    world.spawn(post, sender, receiver, 30)
    world.run_for("1s")
    assert world.stats.lost == 30 - world.stats.delivered > 20


def test_an_interface_has_its_plan_until_it_is_taken_away(world: World, end: MakeEnd) -> None:
    receiver = ready(end(world.device("10.0.0.1"), QPType.UD), 30)
    sender = ready(end(world.device("10.0.0.2"), QPType.UD), 0)
    world.interface(receiver.device, "rx:loss=100%")
    world.spawn(post, sender, receiver, 10)
    world.run_for("1s")
    assert (world.stats.lost, world.stats.delivered) == (10, 0)
    world.interface(receiver.device)
    world.spawn(post, sender, receiver, 10)
    world.run_for("1s")
    assert (world.stats.lost, world.stats.delivered) == (10, 10)
    with pytest.raises(Error) as refused:
        world.interface(receiver.device, "speed=1")
    assert refused.value.errno == errno.EINVAL


@pytest.mark.parametrize("rule", ["dup=1%", "reorder=1%", "reset=1MB", "short=1%"])
def test_an_interface_refuses_rules_for_links_by_name(world: World, rule: str) -> None:
    name = rule.partition("=")[0]
    device = world.device("10.0.0.1")
    with pytest.raises(Error, match=f"{name}= applies only to a link") as refused:
        world.interface(device, f"delay=1ms,{rule}")
    assert refused.value.errno == errno.EINVAL
    world.faults(rule)


@pytest.mark.parametrize("where", ["interface", "link"])
@pytest.mark.parametrize("kind", [QPType.UD, QPType.RD])
def test_a_full_send_buffer_holds_back_what_a_rate_does_not_take(
    world: World, end: MakeEnd, kind: QPType, where: str
) -> None:
    """With a send buffer smaller than the link's queue the sender waits, and nothing is lost."""
    receiver = ready(end(world.device("10.0.0.1"), kind), 100)
    sender = ready(end(world.device("10.0.0.2"), kind), 0)
    plan = "tx:rate=10Mbit,limit=80"
    if where == "interface":
        world.interface(sender.device, plan)
    else:
        world.link(sender.device, receiver.device, plan)
    with send_buffer(4096):
        task = world.spawn(arrivals, world, receiver, 100)
        world.spawn(post, sender, receiver, 100)
        world.run_tasks(within="10s")
    assert world.stats.lost == 0
    assert task.result()[-1] > 100 * EACH_NS * 0.95


def test_without_a_small_send_buffer_the_queue_of_the_rate_overflows(
    world: World, end: MakeEnd
) -> None:
    receiver = ready(end(world.device("10.0.0.1"), QPType.UD), 100)
    sender = ready(end(world.device("10.0.0.2", faults="tx:rate=10Mbit,limit=80"), QPType.UD), 0)
    world.spawn(post, sender, receiver, 100)
    world.run_for("1s")
    assert world.stats.lost > 0
