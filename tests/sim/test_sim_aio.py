"""siwarp.aio in a simulated network: endpoints, waits, several event loops, exact times."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest
from sim.conftest import End

from siwarp import PeerGone, aio
from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.sim import World
from siwarp.verbs import (
    AH,
    PD,
    SRQ,
    Context,
    Error,
    EventType,
    QPType,
    RecvWR,
    SendWR,
    SrqAttr,
)

MakeEnd = Callable[[Context, QPType], End]
A, B = "10.0.0.1", "10.0.0.2"


@pytest.fixture(name="hosts")
def two_simulated_hosts(world: World) -> tuple[Context, Context]:
    return world.device(A), world.device(B)


def test_a_network_partition_delays_reliable_datagrams(
    world: World, hosts: tuple[Context, Context]
) -> None:
    async def send_over_partition() -> tuple[bytes, float]:
        async with aio.open_rd((A, 0), qkey=7) as a, aio.open_rd((B, 0), qkey=7) as b:
            await a.send(b"before", b.address)
            await b.recv()
            world.partition(A, B)
            sending = asyncio.create_task(a.send(b"after", b.address))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(b.recv(), 2)
            assert world.now == pytest.approx(2, abs=1e-3)
            assert not sending.done()
            world.heal()
            data = bytes((await b.recv()).data)
            await sending
            return data, world.now

    data, now = world.run(send_over_partition())
    assert data == b"after"
    assert 2 < now < 5


def test_rd_sends_to_a_closed_peer_fail_and_sends_to_other_peers_succeed(
    world: World, hosts: tuple[Context, Context]
) -> None:
    async def send_to_closed_and_open_peers() -> None:
        async with (
            aio.open_rd((A, 0), qkey=7, peer_timeout=0.3) as end,
            aio.open_rd((B, 0), qkey=7) as other,
        ):
            with pytest.raises(PeerGone, match="port 9 is gone"):
                await end.send(b"nobody is there", (B, 9))
            async with aio.open_rd((B, 0), qkey=7, recv_depth=1) as leaves:
                await end.send(b"is there", leaves.address)
                sending = asyncio.create_task(end.send(b"no receive for it", leaves.address))
                await asyncio.sleep(0)
            with pytest.raises(PeerGone):
                await sending
            await end.send(b"on", other.address)
            assert (await other.recv()).data == b"on"

    world.run(send_to_closed_and_open_peers())


def test_a_cancelled_receive_consumes_no_datagram(
    world: World, hosts: tuple[Context, Context]
) -> None:
    async def receive_after_cancellations() -> list[bytes]:
        async with aio.open_ud((A, 0), qkey=7) as a, aio.open_ud((B, 0), qkey=7) as b:
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(b.recv(), 0.5)
            for i in range(3):
                await a.send(b"%d" % i, b.address)
            return [bytes((await b.recv()).data) for _ in range(3)]

    assert world.run(receive_after_cancellations()) == [b"0", b"1", b"2"]
    assert world.now == pytest.approx(1.5, abs=1e-3)


def test_a_crash_of_a_device_ends_pending_receives_with_estale(
    world: World, hosts: tuple[Context, Context]
) -> None:
    async def receive_on_crashing_device() -> None:
        async with aio.open_ud((A, 0), qkey=7) as a:
            waiting = asyncio.create_task(a.recv())
            await asyncio.sleep(1)
            world.crash(A)
            with pytest.raises(Error) as error:
                await waiting
            assert error.value.errno == errno.ESTALE
            assert world.now == pytest.approx(1, abs=1e-3)

    world.run(receive_on_crashing_device())


def test_completions_and_connection_events_can_be_awaited(
    world: World, create_rdma_endpoint: MakeEnd, hosts: tuple[Context, Context]
) -> None:
    world.faults("delay=250ms")
    a, b = (create_rdma_endpoint(device, QPType.UD) for device in hosts)
    for one in (a, b):
        one.qp.to_rts()
    b.qp.post_recv(RecvWR(7, sg=[b.mr.sge(0, 64)]))
    asking, answering = CMEventChannel(hosts[0]), CMEventChannel(hosts[1])
    door, asker = CMID(answering, ud=True), CMID(asking, ud=True)
    door.listen((B, 7000))

    async def await_completion_and_events() -> None:
        asker.connect((B, 7000))
        with AH(a.pd, b.qp.addr) as ah:
            a.qp.post_send(SendWR(1, sg=[a.mr.sge(0, 5)], ah=ah))
        request, wcs = await asyncio.gather(aio.cm_event(answering), aio.wait(b.cq))
        assert [wc.check().wr_id for wc in wcs] == [7]
        assert world.now == pytest.approx(0.25, abs=1e-6)
        request.id.bind_qp(b.qp)
        request.id.accept()
        told = await aio.cm_event(asking)
        assert (told.type, told.qpn) == (CMEventType.ESTABLISHED, b.qp.qp_num)
        assert world.now == pytest.approx(0.5, abs=1e-6)

    world.run(await_completion_and_events())


def test_the_limit_event_of_a_shared_receive_queue_can_be_awaited(
    world: World, hosts: tuple[Context, Context]
) -> None:
    srq = SRQ(PD(hosts[0]), SrqAttr(4))

    async def await_limit_event() -> None:
        waiting = asyncio.create_task(aio.async_event(hosts[0]))
        await asyncio.sleep(1)
        srq.modify(SrqAttr(srq_limit=1))
        with await waiting as event:
            assert (event.event_type, event.element) == (EventType.SRQ_LIMIT_REACHED, srq)
        assert world.now == pytest.approx(1, abs=1e-3)

    world.run(await_limit_event())


def test_each_task_of_a_world_may_run_an_event_loop_of_its_own(
    world: World, hosts: tuple[Context, Context]
) -> None:
    world.faults("delay=10ms")
    place: list[tuple[str, int]] = []

    async def answer_in_upper_case() -> None:
        async with aio.open_rd((B, 0), qkey=7) as end:
            place.append(end.address)
            for _ in range(3):
                got = await end.recv()
                await end.send(bytes(got.data).upper(), got.source)
            # Keep the endpoint open until its last answer has been acknowledged.
            await asyncio.sleep(1)

    async def ask_three_words() -> list[bytes]:
        async with aio.open_rd((A, 0), qkey=7) as end:
            answers = []
            for word in (b"one", b"two", b"three"):
                await end.send(word, place[0])
                answers.append(bytes((await end.recv()).data))
            return answers

    world.spawn(world.run, answer_in_upper_case(), on=B)
    world.run_for("1s")
    asker = world.spawn(world.run, ask_three_words(), on=A)
    world.run_tasks(within="1min")
    assert asker.result() == [b"ONE", b"TWO", b"THREE"]


def test_a_task_schedules_calls_in_an_event_loop_at_the_time_of_the_task(world: World) -> None:
    called: list[float] = []

    async def wait_for_scheduled_calls() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def schedule_calls() -> None:
            world.sleep("1.5s")
            loop.call_soon_threadsafe(called.append, world.now)
            loop.call_soon_threadsafe(done.set_result, None)

        world.spawn(schedule_calls)
        await done
        called.append(world.now)

    world.run(wait_for_scheduled_calls())
    assert called == [1.5, 1.5]


def test_an_exception_of_a_task_ends_world_run_while_its_coroutine_sleeps(world: World) -> None:
    def raise_key_error() -> None:
        world.sleep(1)
        raise KeyError("of the task")

    world.spawn(raise_key_error)
    with pytest.raises(KeyError, match="of the task"):
        world.run(asyncio.sleep(3600))
    assert world.now == 1


def test_an_event_loop_that_sleeps_during_a_sleeping_task_causes_few_switches(world: World) -> None:
    world.spawn(world.sleep, "2000h")
    world.run(asyncio.sleep(3600_000))
    assert world.now == 3600_000
    assert world.stats.switches < 20


async def open_ud_endpoint() -> None:
    await aio.open_ud((A, 0), qkey=7)


def test_an_event_loop_outside_the_world_is_refused(
    world: World, hosts: tuple[Context, Context]
) -> None:
    with pytest.raises(RuntimeError, match=r"run the coroutine with world\.run"):
        asyncio.run(open_ud_endpoint())


@pytest.mark.parametrize(
    "ask",
    [
        lambda loop: loop.create_connection(asyncio.Protocol, B, 80),
        lambda loop: loop.create_server(asyncio.Protocol, B, 80),
        lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol, (A, 0)),
    ],
)
def test_asyncio_sockets_of_the_system_are_refused_in_a_world(
    world: World, ask: Callable[[asyncio.AbstractEventLoop], Awaitable[object]]
) -> None:
    async def check_system_socket_is_refused() -> None:
        with pytest.raises(OSError, match=r"use siwarp\.aio") as error:
            await ask(asyncio.get_running_loop())
        assert error.value.errno == errno.EOPNOTSUPP

    world.run(check_system_socket_is_refused())


def test_a_host_name_is_refused_in_a_world(world: World, hosts: tuple[Context, Context]) -> None:
    async def check_host_name_is_refused() -> None:
        with pytest.raises(Error, match="a simulated world has no host names"):
            await aio.open_ud(("localhost", 0))

    world.run(check_host_name_is_refused())
    with pytest.raises(Error, match="a simulated world has no host names"):
        CMID(CMEventChannel(hosts[0]), ud=True).connect(("localhost", 7000))


def test_closing_a_world_ends_event_loops_that_wait_in_tasks() -> None:
    async def wait_for_message_forever() -> None:
        async with aio.open_ud((A, 0), qkey=7) as end:
            await end.recv()

    async def wait_forever() -> None:
        await asyncio.get_running_loop().create_future()

    with World() as world:
        world.device(A)
        tasks = [
            world.spawn(world.run, main()) for main in (wait_for_message_forever, wait_forever)
        ]
        world.run_for("1s")
    for task in tasks:
        with pytest.raises(BaseException, match=r"^$|closed by force"):
            task.result()
