"""The simulated network: IPv6, rates, interfaces that are down, captures, and asyncio."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from scapy.utils import PcapNgReader
from sim.conftest import End

from siwarp import aio
from siwarp.sim import World
from siwarp.verbs import AH, Context, QPType, RecvWR, SendWR

MakeEnd = Callable[[Context, QPType], End]
#: 2020-01-01 00:00:00 UTC, the start time of a simulated network.
START_TIME_S = 1_577_836_800


def move_to_rts_and_post_receives(end: End, receives: int, size: int) -> None:
    """Move a datagram queue pair to RTS, and post receives into the upper half of its memory."""
    end.qp.to_rts()
    for i in range(receives):
        end.qp.post_recv(RecvWR(i, sg=[end.mr.sge(32768 + i * size, size)]))


def post_message(end: End, to: End, number: int, size: int) -> None:
    """Post a message of ``size`` octets with the value ``number``, and wait for its completion."""
    end.mr.write(bytes([number]) * size)
    with AH(end.pd, to.qp.addr) as ah:
        end.qp.post_send(SendWR(number, sg=[end.mr.sge(0, size)], ah=ah))
        end.cq.wait()[0].check()


def test_reliable_datagrams_arrive_in_order_over_ipv6_and_a_lossy_link(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    world.faults("loss=10%,delay=5ms")
    a, b = (create_rdma_endpoint(world.device(f"fd00::{i}"), QPType.RD) for i in (1, 2))
    move_to_rts_and_post_receives(a, 0, 0)
    move_to_rts_and_post_receives(b, 20, 100)
    got: list[int] = []

    def receive_numbers() -> None:
        while len(got) < 20:
            got.extend(b.mr.read(1, 32768 + 100 * wc.check().wr_id)[0] for wc in b.cq.wait())

    world.spawn(receive_numbers)
    world.spawn(lambda: [post_message(a, b, i, 100) for i in range(20)])
    world.run_tasks(within="1min")
    assert got == list(range(20))
    assert world.stats.lost > 0


def test_a_link_rate_determines_the_time_between_datagrams(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    world.faults("rate=1Mbit")
    a, b = (create_rdma_endpoint(world.device(f"10.0.0.{i}"), QPType.UD) for i in (1, 2))
    move_to_rts_and_post_receives(a, 0, 0)
    move_to_rts_and_post_receives(b, 10, 1000)
    times: list[int] = []

    def record_arrival_times() -> None:
        while len(times) < 10:
            b.cq.wait()[0].check()
            times.append(world.now_ns)

    world.spawn(record_arrival_times)
    world.spawn(lambda: [post_message(a, b, i, 1000) for i in range(10)])
    world.run_tasks(within="1s")
    # A message of 1,000 octets with 14 octets of DDP and RDMAP headers takes 8.1 ms at 1 Mbit/s,
    # and a device that is not polled is serviced late.
    gaps = [later - before for before, later in itertools.pairwise(times)]
    assert all(8_000_000 <= gap < 8_300_000 for gap in gaps), gaps


def test_no_datagram_is_delivered_while_an_interface_is_down(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a, b = (create_rdma_endpoint(world.device(f"10.0.0.{i}"), QPType.UD) for i in (1, 2))
    move_to_rts_and_post_receives(a, 0, 0)
    move_to_rts_and_post_receives(b, 10, 100)
    world.link_up(b.device, False)
    world.spawn(post_message, a, b, 1, 100)
    world.run_for("1s")
    assert b.cq.poll() == []
    world.link_up(b.device, True)
    world.spawn(post_message, a, b, 2, 100)
    world.run_for("1s")
    (wc,) = b.cq.poll()
    assert b.mr.read(1, 32768 + 100 * wc.check().wr_id) == b"\x02"


def test_a_capture_of_a_world_has_simulated_timestamps(
    world: World, create_rdma_endpoint: MakeEnd, tmp_path: Path
) -> None:
    world.faults("delay=250ms")
    a, b = (create_rdma_endpoint(world.device(f"10.0.0.{i}"), QPType.UD) for i in (1, 2))
    move_to_rts_and_post_receives(a, 0, 0)
    move_to_rts_and_post_receives(b, 1, 100)
    world.run_for("10s")
    with world.capture(tmp_path / "run.pcapng"):
        world.spawn(post_message, a, b, 1, 100)
        world.run_for("1s")
    with PcapNgReader(str(tmp_path / "run.pcapng")) as packets:
        times = [float(packet.time) - START_TIME_S for packet in packets]
    assert times == pytest.approx([10, 10.25], abs=1e-6)


def test_asyncio_endpoints_exchange_messages_in_virtual_time(world: World) -> None:
    world.faults("delay=100ms,loss=5%")
    for i in (1, 2):
        world.device(f"10.0.0.{i}")

    async def exchange_messages() -> list[bytes]:
        async with (
            aio.open_rd(("10.0.0.1", 0), qkey=7) as a,
            aio.open_rd(("10.0.0.2", 0), qkey=7) as b,
        ):
            got = []
            for i in range(5):
                await a.send(b"message %d" % i, b.address)
                got.append(bytes((await b.recv()).data))
            await asyncio.sleep(60)
            return got

    assert world.run(exchange_messages()) == [b"message %d" % i for i in range(5)]
    assert world.now > 60.5


def test_a_world_may_have_hundreds_of_devices(world: World, create_rdma_endpoint: MakeEnd) -> None:
    devices = [world.device(f"10.0.{i // 250}.{i % 250 + 1}") for i in range(300)]
    first, last = (
        create_rdma_endpoint(devices[0], QPType.RD),
        create_rdma_endpoint(devices[-1], QPType.RD),
    )
    move_to_rts_and_post_receives(first, 0, 0)
    move_to_rts_and_post_receives(last, 1, 100)
    world.spawn(post_message, first, last, 7, 100)
    world.run_tasks(within="1s")
    assert [wc.check().byte_len for wc in last.cq.poll()] == [100]
