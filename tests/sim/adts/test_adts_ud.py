"""The UD channel in a simulated network: loss, blackouts, false reports, silent peers."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from sim.adts.adts_sim_harness import Hosts, make_files, put_and_get_directory
from sim.adts.channel_harness import (
    UNIT,
    A,
    B,
    receive_units,
    run_acceptors,
    send_units,
    wait_for_end_of_channel,
)

from siwarp.sim import World
from siwarp.ulp.adts import ADTSError
from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded, Limits, Received
from siwarp.ulp.adts.channel_ud import UD_UNIT_SIZE, UDChannel, UDPort
from siwarp.ulp.adts.endpoints import open_channel
from siwarp.ulp.adts.repeat import Report
from siwarp.ulp.adts.wire import RECORD_HEADER_SIZE, UNIT_HEADER_SIZE, put_unit_header
from siwarp.verbs import AH

PAYLOAD = UD_UNIT_SIZE - UNIT_HEADER_SIZE - RECORD_HEADER_SIZE
#: Octets of the headers of UD, UDP and IPv6, and of the largest packet that each IPv6 path carries.
HEADERS, PACKET = 22 + 8 + 40, 1280


@pytest.fixture(name="hosts")
def two_simulated_hosts(world: World, tmp_path: Path) -> Hosts:
    return Hosts(world, tmp_path / "root", "ud")


@pytest.fixture(name="source")
def make_source_directory(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    make_files(root, {"empty": 0, "small": 100, "d/medium": 60_000, "d/e/large": 300_000})
    return root


@pytest.mark.clause("ADTS-UD-1", "ADTS-UD-2")
def test_a_datagram_has_one_unit_or_report_and_the_token_and_fits_each_path(
    hosts: Hosts, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    tokens: set[bytes] = set()
    send = UDPort.send

    def note_datagram_and_send(
        port: UDPort, to: AH, octets: Any, token: bytes, number: int = 0
    ) -> None:
        lengths.append(len(octets))
        tokens.add(token)
        send(port, to, octets, token, number)

    monkeypatch.setattr(UDPort, "send", note_datagram_and_send)
    hosts.run_coroutine(put_and_get_directory(hosts, source, tmp_path / "back"))
    assert max(lengths) == UD_UNIT_SIZE
    assert UD_UNIT_SIZE + 24 + HEADERS <= PACKET
    assert len(tokens) == 1 and len(tokens.pop()) == 16


def test_a_path_that_no_unit_has_room_for_fails_and_the_session_goes_on(
    hosts: Hosts, source: Path, tmp_path: Path
) -> None:
    long = "/".join(["d" * 200] * 6)
    make_files(source, {f"{long}/file": 10})
    make_files(hosts.root, {f"{long}/file": 10, "file": 10})

    async def use_long_paths() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            result = await session.put(source, "copy", recursive=True)
            assert result.files == 4
            assert all("does not fit into a unit" in f.text for f in result.failures)
            with pytest.raises(ADTSError, match="too long for a channel of kind UD"):
                await session.stat(f"{long}/file")
            (hosts.root / "link").symlink_to("t" * 1200)
            with pytest.raises(ADTSError, match="link: its attributes do not fit into a unit"):
                await session.stat("link")
            (hosts.root / "link").unlink()
            paths = [entry.path for entry in await session.entries(recursive=True)]
            assert "file" in paths and f"{long}/file" not in paths
            result = await session.get("", tmp_path / "back", recursive=True)
            assert any("does not fit into a unit" in f.text for f in result.failures)

    hosts.run_coroutine(use_long_paths())


# ---- channels alone


@pytest.fixture
def world_with_two_hosts(world: World) -> World:
    world.device(A)
    world.device(B)
    world.faults("delay=10ms")
    return world


def run_in_world(world: World, main: Coroutine[Any, Any, None], within: float = 600) -> None:
    world.run(asyncio.wait_for(main, within))


async def open_channel_pair(server: Any) -> tuple[UDChannel, UDChannel]:
    accepted = asyncio.get_running_loop().create_future()
    invitation = server.acceptors.ud.expect_peer(b"t" * 16, UNIT, 8, accepted.set_result)
    a = await open_channel("ud", B, invitation, Limits())
    b = await accepted
    assert isinstance(a, UDChannel) and isinstance(b, UDChannel)
    return a, b


def test_units_arrive_in_order_in_both_directions_in_spite_of_loss(
    world_with_two_hosts: World,
) -> None:
    world_with_two_hosts.faults("delay=10ms,loss=3%,dup=1%,reorder=2%")

    async def exchange_units_both_ways() -> None:
        async with run_acceptors("rd") as server:
            a, b = await open_channel_pair(server)
            await asyncio.gather(*(send_units(one, 600, PAYLOAD) for one in (a, b)),
                                 *(receive_units(one, 600) for one in (a, b)))  # fmt: skip
            await asyncio.gather(a.flush(), b.flush())
            assert a.sent_octets == b.received_octets == b.sent_octets == a.received_octets
            await a.close()
            await b.close()

    run_in_world(world_with_two_hosts, exchange_units_both_ways())


@pytest.mark.clause("ADTS-UD-4")
def test_a_reader_that_holds_its_units_or_is_paused_stops_the_sender(
    world_with_two_hosts: World,
) -> None:
    async def receive_and_hold_units() -> None:
        async with run_acceptors("rd") as server:
            a, b = await open_channel_pair(server)
            sending = asyncio.create_task(send_units(a, 2000, PAYLOAD))
            held: list[Received] = []
            while len(held) < b._window:
                held.append(await b.receive())
            await asyncio.sleep(5)
            assert b.receive_nowait() is None and not sending.done()
            b.pause_granting_credits()
            for received in held:
                received.release()
            await asyncio.sleep(5)
            assert b.receive_nowait() is None and not sending.done()
            b.resume_granting_credits()
            await receive_units(b, 2000 - len(held), first=len(held))
            await sending
            await a.close()

    run_in_world(world_with_two_hosts, receive_and_hold_units())


@pytest.mark.clause("ADTS-UD-3")
def test_a_report_follows_every_20_ms_while_units_arrive_and_for_1_s_while_some_are_missing(
    world_with_two_hosts: World,
) -> None:
    reports: list[float] = []

    async def lose_a_unit() -> None:
        async with run_acceptors("rd") as server:
            a, b = await open_channel_pair(server)
            send_report, send_unit = b._port.send, a._port.send

            def note_time_and_send_report(
                to: AH, octets: Any, token: bytes, number: int = 0
            ) -> None:
                reports.append(world_with_two_hosts.now)
                send_report(to, octets, token, number)

            def send_all_units_but_one(to: AH, octets: Any, token: bytes, number: int = 0) -> None:
                if number and number != 203:
                    send_unit(to, octets, token, number)

            b._port.send = note_time_and_send_report  # type: ignore[method-assign]
            await asyncio.gather(send_units(a, 200, PAYLOAD), receive_units(b, 200))
            received = world_with_two_hosts.now
            await asyncio.sleep(5)
            assert len(reports) >= 5 and reports[-1] - received < 0.041
            check_intervals_of_reports()

            reports.clear()
            a._port.send = send_all_units_but_one  # type: ignore[method-assign]
            await send_units(a, 10, PAYLOAD, first=200)
            await receive_units(b, 3, first=200)
            received = world_with_two_hosts.now
            await asyncio.sleep(5)
            assert 0.97 < reports[-1] - received < 1.041
            check_intervals_of_reports()
            a.abort("the end of the test")

    def check_intervals_of_reports() -> None:
        for before, after in itertools.pairwise(reports):
            assert after - before == pytest.approx(0.02, abs=1e-3)

    run_in_world(world_with_two_hosts, lose_a_unit())


@pytest.mark.clause("ADTS-UD-2")
def test_datagrams_of_strangers_and_of_other_addresses_change_nothing(
    world_with_two_hosts: World,
) -> None:
    stranger_host = "10.0.0.3"
    world_with_two_hosts.device(stranger_host)

    async def receive_beside_strangers() -> None:
        async with run_acceptors("rd") as server:
            a, b = await open_channel_pair(server)
            accepted = asyncio.get_running_loop().create_future()
            invitation = server.acceptors.ud.expect_peer(b"s" * 16, UNIT, 8, accepted.set_result)
            limits = Limits(source=stranger_host)
            stranger = await open_channel("ud", B, invitation, limits)
            assert isinstance(stranger, UDChannel)
            for token in (b"t" * 16, b"x" * 16):
                for octets in (Report(9, 9).pack(), b"", b"x" * 100):
                    stranger._port.send(stranger._handle, octets, token)
            await asyncio.gather(send_units(a, 50, PAYLOAD), receive_units(b, 50))
            assert b.ended is None
            await asyncio.gather(a.close(), stranger.close())

    run_in_world(world_with_two_hosts, receive_beside_strangers())


@pytest.mark.clause("ADTS-UD-7#a", "ADTS-UD-7#b", "ADTS-UD-7#c")
@pytest.mark.parametrize("lie", ["report", "limit", "octets"])
def test_a_peer_that_lies_is_closed(world_with_two_hosts: World, lie: str) -> None:
    async def send_invalid_datagram() -> None:
        async with run_acceptors("rd") as server:
            a, b = await open_channel_pair(server)
            if lie == "report":
                a._port.send(a._handle, Report(7, 7).pack(), b"t" * 16)
            elif lie == "limit":
                unit = memoryview(bytearray(200))
                put_unit_header(unit, 200)
                a._port.send(a._handle, unit, b"t" * 16, b._window)
            else:
                a._port.send(a._handle, b"x" * 200, b"t" * 16, 0)
            ended = await wait_for_end_of_channel(b)
            assert ended.cause is Cause.PROTOCOL
            await a.close()

    run_in_world(world_with_two_hosts, send_invalid_datagram())


@pytest.mark.clause("ADTS-UD-2")
@pytest.mark.parametrize("trouble", ["a wrong token", "a used token", "a late token", "no network"])
def test_a_peer_that_is_not_admitted_or_not_answered_gives_up_after_3_s(
    world_with_two_hosts: World, trouble: str
) -> None:
    async def open_channel_without_success() -> None:
        async with run_acceptors("rd") as server:
            accepted = asyncio.get_running_loop().create_future()
            invitation = server.acceptors.ud.expect_peer(
                b"t" * 16, UNIT, 8, accepted.set_result, 3 if trouble == "a late token" else 30
            )
            opened: list[Channel] = []
            if trouble == "a wrong token":
                invitation = dataclasses.replace(invitation, token=b"w" * 16)
            elif trouble == "a used token":
                opened.append(await open_channel("ud", B, invitation, Limits()))
            elif trouble == "a late token":
                await asyncio.sleep(4)
            else:
                world_with_two_hosts.partition(A, B)
            began = world_with_two_hosts.now
            with pytest.raises(ChannelEnded, match="did not answer within 3 seconds") as error:
                await open_channel("ud", B, invitation, Limits())
            assert error.value.cause is Cause.TIMEOUT
            assert 3 <= world_with_two_hosts.now - began < 7
            await asyncio.gather(*(one.close() for one in opened))

    run_in_world(world_with_two_hosts, open_channel_without_success())


@pytest.mark.clause("ADTS-UD-5")
def test_a_peer_that_falls_silent_is_lost_after_30_s_if_it_owes_a_report(
    world_with_two_hosts: World,
) -> None:
    async def partition_from_peer() -> None:
        async with run_acceptors("rd") as server:
            a, b = await open_channel_pair(server)
            await asyncio.gather(send_units(a, 10, PAYLOAD), receive_units(b, 10))
            await a.flush()
            await asyncio.sleep(100)
            # the channels survive the silence, because neither end waits for a report
            assert a.ended is None and b.ended is None
            world_with_two_hosts.partition(A, B)
            began = world_with_two_hosts.now
            await send_units(a, 1, PAYLOAD, first=10)
            ended = await wait_for_end_of_channel(a)
            assert ended.cause is Cause.LOST
            assert 29 <= world_with_two_hosts.now - began <= 33
            world_with_two_hosts.heal()
            await a.close()

    run_in_world(world_with_two_hosts, partition_from_peer())


def test_many_sessions_share_the_memory(world_with_two_hosts: World) -> None:
    async def invite_100_peers() -> None:
        async with run_acceptors("rd", Limits(memory=4 << 20)) as server:
            windows = [
                server.acceptors.ud.expect_peer(bytes([i]) * 16, UNIT, 8, lambda _: None).window
                for i in range(100)
            ]
            assert windows == sorted(windows, reverse=True)
            assert windows[0] > 256 and windows[-1] == 16
            assert 2 * UD_UNIT_SIZE * sum(windows) < 8 << 20

    run_in_world(world_with_two_hosts, invite_100_peers())
