"""RC and RD channels deliver units in order on lossy networks and beside hostile peers.

The tests run in a simulated network.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sim.adts.channel_harness import (
    LIMITS,
    UNIT,
    A,
    B,
    Server,
    check_unit_and_return_number,
    receive_units,
    run_acceptors,
    send_units,
    wait_for_end_of_channel,
)

from siwarp.sim import World
from siwarp.ulp.adts import channel_rd, channel_rdma
from siwarp.ulp.adts.channel import Acceptor, Cause, Channel, ChannelEnded, Limits
from siwarp.ulp.adts.channel_rd import RDChannel
from siwarp.ulp.adts.channel_rdma import RDMAChannel
from siwarp.ulp.adts.credit import Credits
from siwarp.ulp.adts.endpoints import connect_rendezvous, listen_for_rendezvous, open_channel
from siwarp.ulp.adts.memory import Unit
from siwarp.ulp.adts.wire import RECORD_HEADER_SIZE, UNIT_HEADER_SIZE, Bye, parse_unit_header
from siwarp.verbs import AH, LimitError, SendWR

KINDS = pytest.mark.parametrize("kind", ["rc", "rd"])


@pytest.fixture(name="hosts", autouse=True)
def two_simulated_hosts(world: World) -> None:
    world.device(A)
    world.device(B)
    world.faults("delay=10ms")


def run_in_world(world: World, main: Coroutine[Any, Any, None], within: float = 600) -> None:
    world.run(asyncio.wait_for(main, within))


@KINDS
def test_units_arrive_in_order_in_both_directions_in_spite_of_loss(world: World, kind: str) -> None:
    world.faults("delay=10ms,loss=2%")

    async def exchange_units_both_ways() -> None:
        async with run_acceptors(kind) as server:
            a, b = await server.open_channel_pair()
            assert (a.name, b.name) == (kind, kind)
            assert (a.peer[0], b.peer[0]) == (B, A)
            await asyncio.gather(
                send_units(a, 300), receive_units(b, 300), send_units(b, 300), receive_units(a, 300)
            )
            await asyncio.gather(a.flush(), b.flush())
            assert a.sent_octets == b.received_octets == b.sent_octets == a.received_octets
            server.check_that_no_unit_or_credit_is_held(sessions=1)
            await a.close()
            await b.close()
            server.check_that_no_unit_or_credit_is_held()

    run_in_world(world, exchange_units_both_ways())


@KINDS
@pytest.mark.parametrize("reachable", [True, False])
def test_closing_does_not_wait_long(world: World, kind: str, reachable: bool) -> None:
    async def close_both_ends() -> None:
        async with run_acceptors(kind) as server:
            a, b = await server.open_channel_pair()
            await asyncio.gather(send_units(a, 20), receive_units(b, 20))
            if not reachable:
                world.partition(A, B)
                unit = a.take_empty_unit_nowait()
                assert unit is not None
                await a.send(unit, UNIT)
            start = world.now
            await a.close()
            # If the peer is unreachable, closing waits CLOSE_S for the units in flight and
            # linger_ms for the device.
            assert world.now - start < (0.1 if reachable else 4.5)
            await b.close()
            await asyncio.sleep(5)
            server.check_that_no_unit_or_credit_is_held()
            world.heal()

    run_in_world(world, close_both_ends())


def test_rd_fills_a_path_of_50_mbit_s_with_81_ms_each_way(world: World) -> None:
    # RC is not tested, because the windows of TCP in a world are too small for this path.
    world.faults("delay=81ms,rate=50Mbit")
    limits = Limits(unit=1 << 20)

    async def transfer_over_long_path() -> None:
        async with run_acceptors("rd", limits) as server:
            accepted = asyncio.get_running_loop().create_future()
            invitation = server.acceptor.expect_peer(b"t" * 16, 1 << 20, 8, accepted.set_result)
            a = await open_channel("rd", B, invitation, limits)
            b = await accepted
            payload = (1 << 20) - UNIT_HEADER_SIZE - RECORD_HEADER_SIZE
            await asyncio.gather(send_units(a, 20, payload), receive_units(b, 20))
            start = world.now
            await asyncio.gather(
                send_units(a, 40, payload, first=20), receive_units(b, 40, first=20)
            )
            rate = 40 * (8 << 20) / (world.now - start)
            assert rate > 0.9 * 50e6
            await a.close()

    run_in_world(world, transfer_over_long_path())


@KINDS
def test_a_blackout_of_10_seconds_ends_no_channel(world: World, kind: str) -> None:
    async def transfer_over_blackout() -> None:
        async with run_acceptors(kind) as server:
            a, b = await server.open_channel_pair()
            await asyncio.gather(send_units(a, 20), receive_units(b, 20))
            transfer = asyncio.gather(send_units(a, 200, first=20), receive_units(b, 200, first=20))
            await asyncio.sleep(0.05)
            world.partition(A, B)
            await asyncio.sleep(10)
            assert not transfer.done()
            world.heal()
            await transfer
            await a.close()

    run_in_world(world, transfer_over_blackout())


@KINDS
def test_a_crash_of_the_peer_ends_the_channel_with_the_reason(world: World, kind: str) -> None:
    async def send_to_crashing_peer() -> None:
        async with run_acceptors(kind) as server:
            a, b = await server.open_channel_pair()
            sending = asyncio.create_task(send_units(a, 1000))
            await receive_units(b, 20)
            at = world.now
            world.crash(B)
            with pytest.raises(ChannelEnded, match=r"repeat the transfer") as error:
                await sending
            assert error.value.cause is Cause.LOST
            assert world.now - at < 45
            with pytest.raises(ChannelEnded, match="device"):
                await b.receive()
            with pytest.raises(ChannelEnded, match=r"10\.0\.0\.2"):
                a.take_empty_unit_nowait()
            await a.close()

    run_in_world(world, send_to_crashing_peer())


class NoCredits(Credits):
    """Credits of an end that sends although its peer has granted no credit."""

    @property
    def sendable_unit_count(self) -> int:
        return 1000

    @property
    def is_grant_due(self) -> bool:
        return False

    def count_sent_unit(self) -> tuple[int, int]:
        return self._announced, 0

    def count_received_unit(self, granted: int, returned: int, *, grant_unit: bool) -> None:
        pass


def make_channel_send_without_credit(channel: Channel) -> None:
    assert isinstance(channel, RDMAChannel)
    channel.credits.__class__ = NoCredits
    channel._wake_writers()


@pytest.mark.clause("ADTS-CRED-7#a")
@KINDS
def test_a_peer_that_sends_without_credit_is_closed_at_no_cost_to_others(
    world: World, kind: str
) -> None:
    async def flood_beside_good_session() -> None:
        async with run_acceptors(kind) as server:
            honest, b = await server.open_channel_pair()
            flooding, f = await server.open_channel_pair(window=64)
            make_channel_send_without_credit(flooding)
            flood = asyncio.create_task(send_units(flooding, 1000))
            start = world.now
            await asyncio.gather(send_units(honest, 200), receive_units(b, 200))
            assert world.now - start < 10
            with pytest.raises(ChannelEnded, match="without credit") as error:
                while True:
                    (await f.receive()).release()
            assert error.value.cause is Cause.PROTOCOL
            flood.cancel()
            await asyncio.gather(flood, return_exceptions=True)
            await flooding.close()
            await f.close()
            await asyncio.sleep(5)
            server.check_that_no_unit_or_credit_is_held(sessions=1)
            await asyncio.gather(send_units(honest, 50, first=200), receive_units(b, 50, first=200))
            await honest.close()

    run_in_world(world, flood_beside_good_session())


@pytest.mark.clause("ADTS-CRED-2")
@KINDS
def test_credits_granted_never_exceed_units_received_given_back_and_receives_posted(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    #: Units received; `returned` and `granted` are the counts in the header of the last unit.
    used: dict[RDMAChannel, int] = {}
    returned: dict[RDMAChannel, int] = {}
    granted: dict[RDMAChannel, int] = {}
    last = checks = 0
    put_header, post_send = channel_rdma.put_unit_header, RDMAChannel._post_send
    on_receive, process_join = RDMAChannel.on_receive, RDChannel.process_join

    def save_granted_count_and_put_header(
        into: memoryview, length: int, given: int, back: int
    ) -> None:
        nonlocal last
        last = given
        put_header(into, length, given, back)

    def check_open_credits_and_post_send(channel: RDMAChannel, *args: Any) -> None:
        nonlocal checks
        assert last - granted.get(channel, 0) >= 0
        granted[channel] = last
        receives = channel._receives
        open_credits = 0
        for one in receives._holders:
            assert isinstance(one, RDMAChannel)
            announced = granted.get(one, one.credits._announced)
            open_credits += announced - used.get(one, 0) - returned.get(one, 0)
        assert open_credits <= receives.posted
        checks += 1
        post_send(channel, *args)

    def count_received_unit_and_process_it(channel: RDMAChannel, receive: Any, wc: Any) -> None:
        if wc.ok:
            header = parse_unit_header(receive.memory.view[: wc.byte_len])
            used[channel] = used.get(channel, 0) + 1
            returned[channel] = header.returned
        on_receive(channel, receive, wc)

    def process_join_and_count_unit(channel: RDChannel, *counts: int) -> None:
        used[channel] = 1
        process_join(channel, *counts)

    for module in (channel_rdma, channel_rd):
        monkeypatch.setattr(module, "put_unit_header", save_granted_count_and_put_header)
    monkeypatch.setattr(RDMAChannel, "_post_send", check_open_credits_and_post_send)
    monkeypatch.setattr(RDMAChannel, "on_receive", count_received_unit_and_process_it)
    monkeypatch.setattr(RDChannel, "process_join", process_join_and_count_unit)
    limits = Limits(unit=UNIT, memory=24 * UNIT, window=8)

    async def open_channels_until_limit() -> None:
        async with run_acceptors(kind, limits) as server:
            pairs = [await server.open_channel_pair()]
            with contextlib.suppress(LimitError):
                while True:
                    (a, b), number = pairs[0], 20 * (len(pairs) - 1)
                    await asyncio.gather(
                        send_units(a, 20, first=number), receive_units(b, 20, first=number),
                        send_units(b, 20, first=number), receive_units(a, 20, first=number),
                    )  # fmt: skip
                    pairs.append(await server.open_channel_pair())
            await asyncio.sleep(12)  # the peer asks for unused credits back (RECLAIM)
            assert any(returned.values())
            await asyncio.gather(*(a.close() for a, _ in pairs))

    run_in_world(world, open_channels_until_limit())
    assert checks > 100


@KINDS
def test_octets_that_are_no_unit_end_only_their_session(world: World, kind: str) -> None:
    async def send_octets_that_are_no_unit() -> None:
        async with run_acceptors(kind) as server:
            a, b = await server.open_channel_pair()
            other, o = await server.open_channel_pair()
            assert isinstance(a, RDMAChannel)
            a._post_control_unit(b"GET / HTTP/1.1\r\n\r\n" + bytes(30))
            ended = await wait_for_end_of_channel(b)
            assert ended.cause is Cause.PROTOCOL
            assert "no" in ended.reason or "not with" in ended.reason
            await asyncio.gather(send_units(other, 20), receive_units(o, 20))
            await asyncio.gather(a.close(), other.close())

    run_in_world(world, send_octets_that_are_no_unit())


@pytest.mark.clause("ADTS-CHAN-2")
@KINDS
@pytest.mark.parametrize("trouble", ["wrong", "used", "expired", "forgotten"])
def test_a_token_that_is_not_valid_opens_no_channel(world: World, kind: str, trouble: str) -> None:
    async def open_channel_with_bad_token() -> None:
        async with run_acceptors(kind) as server:
            invitation, accepted = server.invite()
            if trouble == "wrong":
                token = bytes(15) + b"\xff"
                invitation = type(invitation)(
                    token, invitation.port, invitation.unit, invitation.window, invitation.qkey
                )
            elif trouble == "used":
                first = await open_channel(server.kind, B, invitation, LIMITS)
                await first.close()
                await (await accepted).close()
            elif trouble == "expired":
                await asyncio.sleep(30.1)
            else:
                server.acceptor.forget_token(invitation.token)
            start = world.now
            with pytest.raises(ChannelEnded, match="refused the token") as error:
                await open_channel(server.kind, B, invitation, LIMITS)
            assert error.value.cause is (Cause.REFUSED if kind == "rc" else Cause.TIMEOUT)
            assert world.now - start <= 6
            await asyncio.sleep(31)
            server.check_that_no_unit_or_credit_is_held()

    run_in_world(world, open_channel_with_bad_token())


@pytest.mark.clause("ADTS-CHAN-2")
@KINDS
def test_a_token_is_valid_for_30_seconds(world: World, kind: str) -> None:
    async def open_channel_29_s_after_invitation() -> None:
        async with run_acceptors(kind) as server:
            invitation, accepted = server.invite()
            await asyncio.sleep(29)
            a = await open_channel(server.kind, B, invitation, LIMITS)
            await (await accepted).close()
            await a.close()

    run_in_world(world, open_channel_29_s_after_invitation())


@KINDS
def test_a_server_that_does_not_answer_is_given_up_after_3_seconds(world: World, kind: str) -> None:
    async def expect_open_channel_to_time_out() -> None:
        async with run_acceptors(kind) as server:
            invitation, _ = server.invite()
            world.partition(A, B)
            start = world.now
            with pytest.raises(ChannelEnded, match="did not answer within 3 seconds") as error:
                await open_channel(server.kind, B, invitation, LIMITS)
            assert error.value.cause is Cause.TIMEOUT
            assert world.now - start < 6
            world.heal()

    run_in_world(world, expect_open_channel_to_time_out())


def test_rd_datagrams_of_strangers_cost_honest_sessions_nothing(world: World) -> None:
    async def exchange_beside_flood_of_strangers() -> None:
        async with run_acceptors("rd") as server:
            a, b = await server.open_channel_pair()
            invitation, _ = server.invite()
            stranger, _ = await server.open_channel_pair()
            assert isinstance(stranger, RDMAChannel)
            # A second queue pair of the stranger's device: the server has no session with it.
            from siwarp.ulp.adts.channel_rd import RDPort
            from siwarp.ulp.adts.receives import Receives

            device = stranger.device
            port = RDPort(device, Receives(device, device.pool, 1), (A, 0), qkey=invitation.qkey)
            handle = AH(device.pd, (B, invitation.port))
            refused = 0

            def count_refused_send(wc: Any) -> None:
                nonlocal refused
                refused += 1

            async def post_sends_from_stranger() -> None:
                while True:
                    for _ in range(20):
                        wr = SendWR(sg=[device.control.sge(0, 64)], ah=handle)
                        device.post_send(port.qp, wr, count_refused_send)
                    await asyncio.sleep(0.05)

            flooding = asyncio.create_task(post_sends_from_stranger())
            start = world.now
            await asyncio.gather(send_units(a, 200), receive_units(b, 200))
            assert world.now - start < 10
            assert refused > 20
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            handle.close()
            await asyncio.gather(a.close(), stranger.close())

    run_in_world(world, exchange_beside_flood_of_strangers())


@KINDS
def test_300_sessions_that_grant_nothing_do_not_delay_an_honest_session(
    world: World, kind: str
) -> None:
    async def serve_beside_silent_sessions() -> None:
        # The pool has only 64 large units, so most of the 300 sessions get small units immediately.
        async with run_acceptors(kind, Limits(unit=1 << 20)) as server:
            silent = []
            writers = []
            for _ in range(300):
                client, theirs = await server.open_channel_pair(window=4, unit=1 << 20)
                client.pause_granting_credits()
                silent.append(client)
                writers.append(asyncio.create_task(send_units(theirs, 100, 1000)))
            await asyncio.sleep(1)
            assert not any(writer.done() for writer in writers)
            start = world.now
            honest, b = await server.open_channel_pair(unit=1 << 20)
            await asyncio.gather(
                send_units(b, 20), receive_units(honest, 20),
                send_units(honest, 20), receive_units(b, 20),
            )  # fmt: skip
            assert world.now - start < 1
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)
            for client in [*silent, honest]:
                client.abort("the test has ended")
            await asyncio.gather(*(client.close() for client in [*silent, honest]))

    run_in_world(world, serve_beside_silent_sessions(), 3600)


@asynccontextmanager
async def serve_beside_unreachable_peers(
    world: World,
) -> AsyncIterator[tuple[Server, list[asyncio.Task[None]]]]:
    """Yield a server, and tasks that send over RD to three peers whose network has failed.

    Each of the tasks has sent what the credits of its peer permit, and needs no more memory.
    """
    host = "10.0.0.3"
    world.device(host)
    async with run_acceptors("rd") as server:
        silent = []
        for _ in range(3):
            invitation, accepted = server.invite()
            client = await open_channel("rd", B, invitation, Limits(unit=UNIT, source=host))
            silent.append((client, await accepted))
        world.partition(host, (A, B))
        writers = [asyncio.create_task(send_units(one, 100)) for _, one in silent]
        await asyncio.sleep(0.1)
        yield server, writers
        world.heal()
        await asyncio.gather(*(client.close() for client, _ in silent))


async def check_that_stalled_channels_end(
    world: World, since: float, writers: list[asyncio.Task[None]]
) -> None:
    for end in await asyncio.gather(*writers, return_exceptions=True):
        assert isinstance(end, ChannelEnded) and end.cause is Cause.TIMEOUT
        assert "taken no data for 20 seconds" in end.reason
    assert 19 <= world.now - since <= 22


def take_all_free_units(server: Server) -> list[Unit]:
    """Take all free units of a server, as other users would, none of whom waits for more."""
    assert server.pool.waiting_count == 0
    held: list[Unit] = []
    while (unit := server.pool.take_nowait(set_aside=True)) is not None:
        held.append(unit)
    return held


def test_peers_that_take_no_data_lose_their_memory_to_a_session_that_sends(world: World) -> None:
    async def exchange_units_beside_unreachable_peers() -> None:
        async with serve_beside_unreachable_peers(world) as (server, writers):
            since = world.now
            a, b = await server.open_channel_pair()
            held = take_all_free_units(server)
            await asyncio.gather(send_units(b, 20), receive_units(a, 20))
            await check_that_stalled_channels_end(world, since, writers)
            for unit in held:
                unit.release()
            await a.close()

    run_in_world(world, exchange_units_beside_unreachable_peers())


def test_peers_that_take_no_data_lose_their_memory_to_sessions_of_another_transport(
    world: World,
) -> None:
    async def open_session_of_other_transport() -> None:
        async with serve_beside_unreachable_peers(world) as (server, writers):
            since = world.now
            held = take_all_free_units(server)
            rc = server.acceptors.rc
            with pytest.raises(LimitError, match="try again in 30 seconds"):
                rc.expect_peer(b"t" * 16, UNIT, 8, lambda _: None)
            await check_that_stalled_channels_end(world, since, writers)
            await asyncio.sleep(1)  # the transport RD gives its unused memory back to the pool
            accepted = asyncio.get_running_loop().create_future()
            invitation = rc.expect_peer(b"u" * 16, UNIT, 8, accepted.set_result)
            a = await open_channel("rc", B, invitation, LIMITS)
            b = await accepted
            await asyncio.gather(send_units(a, 20), receive_units(b, 20))
            for unit in held:
                unit.release()
            await a.close()

    run_in_world(world, open_session_of_other_transport())


@KINDS
def test_1000_sessions_over_two_transports_fit_into_64_mib(world: World, kind: str) -> None:
    async def check_units_of_1000_expected_peers() -> None:
        async with run_acceptors(kind, Limits(unit=1 << 20, memory=64 << 20)) as server:
            tokens = (number.to_bytes(16, "big") for number in range(10_000))

            def invite_peer_and_get_unit_size(acceptor: Acceptor) -> int:
                return acceptor.expect_peer(next(tokens), 1 << 20, 8, lambda _: None).unit

            acceptors = server.acceptors
            other = acceptors.rd if kind == "rc" else acceptors.rc
            units = [invite_peer_and_get_unit_size(server.acceptor) for _ in range(750)]
            units += [invite_peer_and_get_unit_size(other) for _ in range(250)]
            assert units[:8] == [1 << 20] * 8
            assert units[8:400] == [64 << 10] * 392
            assert units.count(16 << 10) + units.count(64 << 10) == 992
            assert server.pool.registered_count <= 64
            with pytest.raises(LimitError, match="try again in 30 seconds"):
                for _ in range(1000):
                    invite_peer_and_get_unit_size(other)

    run_in_world(world, check_units_of_1000_expected_peers())


def test_1000_sessions_at_a_time_exchange_units(world: World) -> None:
    world.faults("delay=1ms")

    async def exchange_units_over_1000_channels() -> None:
        async with run_acceptors("rc", Limits()) as rc:
            rd = Server(rc.acceptors, "rd")
            pairs = [
                await server.open_channel_pair(window=4, unit=1 << 20)
                for _ in range(500)
                for server in (rc, rd)
            ]
            for a, b in pairs:
                await asyncio.gather(
                    send_units(a, 3, 1000), receive_units(b, 3),
                    send_units(b, 3, 1000), receive_units(a, 3),
                )  # fmt: skip
            assert rc.pool.registered_count <= 64
            await asyncio.gather(*(end.close() for pair in pairs for end in pair))
            await asyncio.sleep(15)
            assert (rc.pool.registered_count, rc.pool.free_count) == (4, 64)

    run_in_world(world, exchange_units_over_1000_channels())


@KINDS
def test_memory_is_registered_on_demand_and_freed_after_the_last_session(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siwarp.ulp.adts.memory.REGION_SIZE", 4 * UNIT)

    async def exchange_and_end_sessions() -> None:
        async with run_acceptors(kind) as server:
            pool = server.pool
            assert (pool.registered_count, pool.free_count) == (4, 64)
            honest, b = await server.open_channel_pair()
            stingy, s = await server.open_channel_pair(window=4)
            flooding, f = await server.open_channel_pair(window=64)
            stingy.pause_granting_credits()
            make_channel_send_without_credit(flooding)
            tasks = [
                asyncio.create_task(send_units(s, 100)),
                asyncio.create_task(send_units(flooding, 1000)),
            ]
            await asyncio.gather(
                send_units(honest, 100), receive_units(b, 100),
                send_units(b, 100), receive_units(honest, 100),
            )  # fmt: skip
            assert (await wait_for_end_of_channel(f)).cause is Cause.PROTOCOL
            assert 4 < pool.registered_count <= 64
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(end.close() for end in (honest, b, stingy, s, flooding, f)))
            await asyncio.sleep(15)
            assert (pool.registered_count, pool.free_count, server.acceptors._device.receiving) == (
                4,
                64,
                0,
            )
            # The next session gets new receives.
            again, b = await server.open_channel_pair()
            await asyncio.gather(send_units(again, 20), receive_units(b, 20))
            await again.close()

    run_in_world(world, exchange_and_end_sessions())


@KINDS
def test_receives_that_are_not_granted_give_their_memory_back(world: World, kind: str) -> None:
    async def end_all_sessions_but_one() -> None:
        async with run_acceptors(kind) as server:
            pairs = [await server.open_channel_pair() for _ in range(5)]
            for a, b in pairs:
                await asyncio.gather(send_units(a, 40), receive_units(b, 40))
            before = server.unit_receives.total
            (a, b), *others = pairs
            await asyncio.gather(*(end.close() for pair in others for end in pair))
            await asyncio.sleep(5)
            await asyncio.gather(send_units(a, 60, first=40), receive_units(b, 60, first=40))
            assert server.unit_receives.total < before
            assert server.unit_receives.available <= 10
            await a.close()

    run_in_world(world, end_all_sessions_but_one())


@KINDS
def test_sessions_that_outnumber_the_units_get_small_ones(world: World, kind: str) -> None:
    async def open_more_sessions_than_units() -> None:
        async with run_acceptors(kind, Limits(unit=1 << 20, memory=16 << 20)) as server:
            units = []
            for number in range(12):
                token = number.to_bytes(16, "big")
                units.append(server.acceptor.expect_peer(token, 1 << 20, 8, lambda _: None).unit)
            assert units == [1 << 20] * 2 + [64 << 10] * 10
            for number in range(12):
                server.acceptor.forget_token(number.to_bytes(16, "big"))
            assert (
                server.acceptor.expect_peer(bytes(16), 1 << 20, 8, lambda _: None).unit == 1 << 20
            )

    run_in_world(world, open_more_sessions_than_units())


@pytest.mark.clause("ADTS-CRED-8")
@KINDS
def test_unused_credits_are_asked_back_for_new_sessions(world: World, kind: str) -> None:
    limits = Limits(unit=UNIT, memory=24 * UNIT, window=8)

    async def open_until_memory_is_short() -> None:
        async with run_acceptors(kind, limits) as server:
            a, b = await server.open_channel_pair()
            await asyncio.gather(send_units(a, 100), receive_units(b, 100))
            assert isinstance(b, RDMAChannel)
            assert b.credits.window > 4
            others = []
            refused = 0
            for _ in range(40):
                try:
                    others.append((await server.open_channel_pair())[0])
                except LimitError:
                    refused += 1
                    break
            assert refused
            await asyncio.sleep(12)
            assert b.credits.window == 1
            assert b.ended is None
            # The credits that were given back are enough for one more session.
            others.append((await server.open_channel_pair())[0])
            await asyncio.gather(send_units(a, 10, first=100), receive_units(b, 10, first=100))
            await asyncio.gather(a.close(), *(other.close() for other in others))

    run_in_world(world, open_until_memory_is_short())


@pytest.mark.clause("ADTS-CRED-9")
@KINDS
def test_a_peer_that_does_not_give_credits_back_is_closed(world: World, kind: str) -> None:
    limits = Limits(unit=UNIT, memory=24 * UNIT, window=8)

    async def leave_reclaim_unanswered() -> None:
        async with run_acceptors(kind, limits) as server:
            a, b = await server.open_channel_pair()
            assert isinstance(a, RDMAChannel)
            a._process_credit_reclaim = lambda record: None  # type: ignore[method-assign]
            with pytest.raises(LimitError):
                for _ in range(40):
                    server.invite()
            ended = await asyncio.wait_for(wait_for_end_of_channel(b), 15)
            assert ended.cause is Cause.TIMEOUT
            assert "give unused credits back" in ended.reason
            await a.close()

    run_in_world(world, leave_reclaim_unanswered())


@KINDS
def test_a_server_that_holds_its_receives_is_told_that_they_are_scarce(
    world: World, kind: str
) -> None:
    told: list[bool] = []

    async def receive_without_releasing_units() -> None:
        async with run_acceptors(kind, LIMITS, told.append) as server:
            held = []
            channels = []
            sending = []

            async def receive_and_hold_units(channel: Channel) -> None:
                with contextlib.suppress(asyncio.TimeoutError):
                    while True:
                        held.append(await asyncio.wait_for(channel.receive(), 0.5))

            with pytest.raises(LimitError, match="try again in 30 seconds"):
                while True:
                    a, b = await server.open_channel_pair()
                    channels.append(a)
                    sending.append(asyncio.create_task(send_units(a, 40)))
                    await receive_and_hold_units(b)
            assert len(channels) > 4
            assert told == [True]
            for received in held:
                received.release()
            await asyncio.sleep(1)
            assert told == [True, False]
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
            await asyncio.gather(*(channel.close() for channel in channels))

    run_in_world(world, receive_without_releasing_units())


@KINDS
def test_a_paused_channel_grants_nothing_and_holds_no_receives(world: World, kind: str) -> None:
    async def pause_and_resume_granting() -> None:
        async with run_acceptors(kind) as server:
            a, b = await server.open_channel_pair()
            b.pause_granting_credits()
            sending = asyncio.create_task(send_units(a, 50))
            got = 0
            with pytest.raises(asyncio.TimeoutError):
                while True:
                    received = await asyncio.wait_for(b.receive(), 5)
                    assert check_unit_and_return_number(received) == got
                    received.release()
                    got += 1
            assert got < 50
            assert server.unit_receives.posted == server.unit_receives.total
            b.resume_granting_credits()
            await receive_units(b, 50 - got, first=got)
            await sending
            await a.close()

    run_in_world(world, pause_and_resume_granting())


@KINDS
def test_cancelled_calls_lose_neither_units_nor_memory(world: World, kind: str) -> None:
    async def cancel_each_kind_of_call() -> None:
        async with run_acceptors(kind) as server:
            a, b = await server.open_channel_pair()
            # cancel receive()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(b.receive(), 0.1)
            await send_units(a, 1)
            await receive_units(b, 1)
            # cancel buffer() while there is no credit; release the units that it returned before
            units = []
            with pytest.raises(asyncio.TimeoutError):
                while True:
                    units.append(await asyncio.wait_for(b.take_empty_unit(), 0.1))
            assert units
            for unit in units:
                unit.release()
            # cancel buffer() while there is no memory
            pool = server.pool
            taken = []
            while (unit := pool.take_nowait()) is not None:
                taken.append(unit)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(b.take_empty_unit(), 0.1)
            for unit in taken:
                unit.release()
            await asyncio.gather(send_units(b, 50), receive_units(a, 50))
            # cancel the opening of a channel
            invitation, _ = server.invite()
            world.partition(A, B)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(open_channel(server.kind, B, invitation, LIMITS), 1)
            world.heal()
            server.acceptor.forget_token(invitation.token)
            await asyncio.gather(a.close(), b.close())
            await asyncio.sleep(5)
            server.check_that_no_unit_or_credit_is_held()

    run_in_world(world, cancel_each_kind_of_call())


@KINDS
def test_a_channel_that_ends_wakes_its_tasks_and_frees_their_units(world: World, kind: str) -> None:
    async def abort_channel_with_waiting_tasks() -> None:
        async with run_acceptors(kind) as server:
            a, b = await server.open_channel_pair()
            await send_units(a, 3)
            await asyncio.sleep(0.1)
            unit = await b.take_empty_unit()
            taken = []
            while (other := server.pool.take_nowait()) is not None:
                taken.append(other)
            writer = asyncio.create_task(b.take_empty_unit())
            await asyncio.sleep(0.1)
            reading = b.receive_nowait()
            assert reading is not None
            b.abort("enough")
            with pytest.raises(ChannelEnded, match="enough"):
                await writer
            with pytest.raises(ChannelEnded, match="enough"):
                await b.send(unit, 100)
            with pytest.raises(ChannelEnded, match="enough"):
                b.receive_nowait()
            reading.release()
            with pytest.raises(ValueError, match="once"):
                reading.release()
            for other in taken:
                other.release()
            await a.close()
            await b.close()
            await asyncio.sleep(5)
            server.check_that_no_unit_or_credit_is_held()

    run_in_world(world, abort_channel_with_waiting_tasks())


def test_a_rendezvous_on_rc_has_small_units(world: World) -> None:
    async def exchange_units_over_rendezvous() -> None:
        accepted: asyncio.Queue[Channel] = asyncio.Queue()
        listener = await listen_for_rendezvous("rc", (B, 18517), accepted.put_nowait)
        a = await connect_rendezvous("rc", (B, 18517))
        b = await accepted.get()
        for channel in (a, b):
            unit = await channel.take_empty_unit()
            length = Bye().put(unit.view, UNIT_HEADER_SIZE)
            await channel.send(unit, length)
        for channel in (a, b):
            received = await channel.receive()
            assert len(received.view) == UNIT_HEADER_SIZE + RECORD_HEADER_SIZE
            received.release()
        await listener.close()
        with pytest.raises(ChannelEnded) as error:
            await connect_rendezvous("rc", (B, 18517))
        assert error.value.cause is Cause.REFUSED
        await a.close()
        assert (await wait_for_end_of_channel(b)).cause is Cause.PEER_CLOSED
        await b.close()
        await asyncio.sleep(5)

    run_in_world(world, exchange_units_over_rendezvous())
