"""Tests of ADTS sessions over RD and RC, some also over UD, in a simulated network.

The tests cover transfers, lossy networks, and the ways in which a session ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim.adts.adts_sim_harness import (
    LIMITS,
    A,
    B,
    Hosts,
    SlowDisk,
    make_files,
    put_and_get_directory,
    read_files_below,
)

from siwarp.sim import World
from siwarp.ulp import adts
from siwarp.ulp.adts import ADTSError, ErrorCode
from siwarp.ulp.adts.channel_rdma import RDMAChannel
from siwarp.ulp.adts.local import MemoryOrigin
from siwarp.ulp.adts.registrations import ProgramMemory, Registrations
from siwarp.ulp.adts.transfer import ListPlan
from siwarp.ulp.adts.tree import SystemCalls
from siwarp.ulp.adts.wire import Record, Type
from siwarp.verbs import LimitError

#: A file of this size, more than SMALL_FILE, is accepted before it is sent, and can be resumed.
LARGE = 400_000
SIZES = {"empty": 0, "small": 100, "d/medium": 60_000, "d/e/large": LARGE}


@pytest.fixture(name="hosts", params=["rd", "rc"])
def two_simulated_hosts(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Hosts:
    return Hosts(world, tmp_path / "root", request.param)


@pytest.fixture(name="source")
def source_directory(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    make_files(root, SIZES)
    return root


@pytest.mark.clause("ADTS-REQ-1")
def test_a_directory_is_put_and_got(hosts: Hosts, source: Path, tmp_path: Path) -> None:
    hosts.run_coroutine(put_and_get_directory(hosts, source, tmp_path / "back"))
    assert (
        read_files_below(hosts.root / "copy")
        == read_files_below(tmp_path / "back")
        == read_files_below(source)
    )


@pytest.mark.clause("ADTS-UD-3")
@pytest.mark.parametrize("kind", ["rd", "rc", "ud"])
@pytest.mark.parametrize("seed", range(3))
def test_files_arrive_over_a_line_that_loses_reorders_and_duplicates(
    tmp_path: Path, source: Path, seed: int, kind: str
) -> None:
    faults = "loss=5%,delay=5ms,jitter=2ms" + ("" if kind == "rc" else ",dup=2%,reorder=3%")
    with World(seed=seed, faults=faults) as world:
        hosts = Hosts(world, tmp_path / "root", kind)
        hosts.run_coroutine(put_and_get_directory(hosts, source, tmp_path / "back"))
    assert read_files_below(tmp_path / "back") == read_files_below(source)


@pytest.mark.clause("ADTS-UD-5")
@pytest.mark.parametrize("hosts", ["rd", "rc", "ud"], indirect=True)
def test_a_blackout_of_10_s_delays_a_transfer_and_does_not_end_it(
    hosts: Hosts, source: Path, tmp_path: Path
) -> None:
    hosts.world.faults("rate=10Mbit,delay=5ms,blackout=10s@0.2s")
    hosts.run_coroutine(put_and_get_directory(hosts, source, tmp_path / "back"))
    assert hosts.world.now > 10
    assert read_files_below(tmp_path / "back") == read_files_below(source)


@pytest.mark.clause("ADTS-END-1", "ADTS-END-2")
def test_an_idle_session_ends_after_30_s_and_the_next_call_says_so(hosts: Hosts) -> None:
    async def wait_for_end_of_idle_session() -> None:
        async with await hosts.start_server() as server, await hosts.connect_client() as session:
            await session.put(b"x", "x")
            began = hosts.world.now
            while server.sessions:
                await asyncio.sleep(1)
            assert 30 <= hosts.world.now - began <= 34
            for call in (session.stat("x"), session.put(__file__, "y"), session.get("x", "y")):
                with pytest.raises(ADTSError, match="open a new one") as error:
                    await call
                assert error.value.code == ErrorCode.SHUTDOWN

    hosts.run_coroutine(wait_for_end_of_idle_session())


def test_many_sessions_at_a_time_each_get_their_files(hosts: Hosts, source: Path) -> None:
    limits = dataclasses.replace(LIMITS, memory=8 << 20)

    async def use_many_sessions() -> None:
        async with await hosts.start_server(limits=limits) as server:

            async def put_directory_in_own_session(name: str) -> None:
                async with await hosts.connect_client() as session:
                    assert (await session.put(source, name, recursive=True)).failures == []

            await asyncio.gather(*(put_directory_in_own_session(f"{i}") for i in range(20)))
            while server.sessions:
                await asyncio.sleep(0.1)

    hosts.run_coroutine(use_many_sessions())
    for i in range(20):
        assert read_files_below(hosts.root / f"{i}") == read_files_below(source)


def test_transfers_of_one_session_are_made_one_after_the_other(hosts: Hosts) -> None:
    async def start_ten_puts_together() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            results = await asyncio.gather(
                *(session.put(b"%d" % i, f"{i}") for i in range(10)), session.stat("")
            )
            assert [r.files for r in results[:10] if isinstance(r, adts.Result)] == [1] * 10

    hosts.run_coroutine(start_ten_puts_together())
    assert read_files_below(hosts.root) == {f"{i}": b"%d" % i for i in range(10)}


# ---- the rendezvous


@pytest.mark.clause("ADTS-CHAN-4")
@pytest.mark.parametrize("ended", ["client", "server"])
def test_a_session_uses_no_rendezvous_and_ends_with_it_at_once(hosts: Hosts, ended: str) -> None:
    async def end_rendezvous_connection() -> None:
        async with await hosts.start_server() as server, await hosts.connect_client() as session:
            await session.put(b"", "file")
            (exchange,) = server._exchanges
            ends = {"client": session._exchange._rendezvous, "server": exchange._rendezvous}
            counts = [(end.sent_octets, end.received_octets) for end in ends.values() if end]
            await session.put(bytes(LARGE), "file")
            assert ends["client"] is not None and ends["client"].ended is None
            assert counts == [
                (end.sent_octets, end.received_octets) for end in ends.values() if end
            ]
            rendezvous = ends[ended]
            assert rendezvous is not None
            began = hosts.world.now
            rendezvous.abort("the process has ended")
            await asyncio.wait([session._running], timeout=60)
            while server.sessions:
                await asyncio.sleep(0.1)
            assert session._running.done() and hosts.world.now - began < 1
            with pytest.raises(ADTSError):
                await session.stat("")

    hosts.run_coroutine(end_rendezvous_connection())


# ---- crashes


@pytest.mark.clause("ADTS-CHAN-4", "ADTS-RESUME-2", "ADTS-END-4")
@pytest.mark.parametrize("crashed", [A, B])
@pytest.mark.parametrize("step", range(12))
def test_after_a_crash_of_either_end_the_same_call_completes_the_file(
    tmp_path: Path, crashed: str, step: int
) -> None:
    """The crash happens during the handshake or later in the transfer, depending on ``step``."""
    make_files(tmp_path / "source", {"file": LARGE})
    kind = ("rd", "rc")[step % 2]
    with World(seed=step + 1, faults="rate=4Mbit,delay=10ms") as world:
        hosts = Hosts(world, tmp_path / "root", kind)

        async def crash_host_during_put() -> None:
            server = await hosts.start_server()
            putting = asyncio.ensure_future(
                put_directory_in_new_session(hosts, tmp_path / "source")
            )
            await asyncio.sleep(0.04 + 0.07 * step)
            world.crash(crashed)
            with pytest.raises(OSError):
                await asyncio.wait_for(putting, 60)
            await server.close()
            world.restart(crashed)
            async with await hosts.start_server():
                result = await put_directory_in_new_session(hosts, tmp_path / "source")
                assert result.files == 1

        hosts.run_coroutine(crash_host_during_put())
    assert read_files_below(hosts.root) == read_files_below(tmp_path / "source")


async def put_directory_in_new_session(hosts: Hosts, source: Path) -> adts.Result:
    async with await hosts.connect_client() as session:
        return await session.put(source, "", recursive=True)


def test_a_partition_ends_a_session_with_an_error_that_names_the_peer(
    hosts: Hosts, source: Path
) -> None:
    hosts.world.faults("rate=4Mbit,delay=10ms")

    async def put_until_partition_ends_session() -> None:
        async with await hosts.start_server() as server:
            session = await hosts.connect_client()
            putting = asyncio.ensure_future(session.put(source, "copy", recursive=True))
            await asyncio.sleep(0.2)
            hosts.world.partition(A, B)
            with pytest.raises(ADTSError, match=B):
                await putting
            await session.close()
            while server.sessions:
                await asyncio.sleep(1)

    hosts.run_coroutine(put_until_partition_ends_session())
    assert hosts.world.now < 180


# ---- refusals


@pytest.mark.clause("ADTS-AUTH-1")
def test_a_wrong_key_is_refused_with_a_remedy(hosts: Hosts) -> None:
    async def connect_with_another_key() -> None:
        async with await hosts.start_server() as server:
            with pytest.raises(ADTSError, match="the key is not the server's") as error:
                await hosts.connect_client(key=adts.Key(bytes(32)))
            assert error.value.code == ErrorCode.REFUSED
            assert server.sessions == 0

    hosts.run_coroutine(connect_with_another_key())
    assert "refused: the key is not the server's" in hosts.events[0]


@pytest.mark.clause("ADTS-REQ-4")
def test_a_read_only_server_sends_but_does_not_change_files(hosts: Hosts, source: Path) -> None:
    make_files(hosts.root, {"file": 10})

    async def write_to_read_only_server() -> None:
        async with (
            await hosts.start_server(writable=False),
            await hosts.connect_client() as session,
        ):
            result = await session.put(source / "small", "new")
            assert [f.code for f in result.failures] == [ErrorCode.READ_ONLY]
            with pytest.raises(ADTSError, match="read-only"):
                await session.delete("file")
            into = bytearray(10)
            assert (await session.get("file", into)).files == 1
            assert bytes(into) == (hosts.root / "file").read_bytes()

    hosts.run_coroutine(write_to_read_only_server())
    assert list(read_files_below(hosts.root)) == ["file"]


@pytest.mark.clause("ADTS-PATH-2")
@pytest.mark.parametrize("path", ["../source", "/etc/passwd", "a/../../x", "link/small"])
def test_paths_out_of_the_directory_are_refused(hosts: Hosts, source: Path, path: str) -> None:
    (hosts.root / "link").symlink_to("../source")

    async def use_path_outside_root() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            for call in (session.stat(path), session.delete(path), session.get(path, bytearray(9))):
                with pytest.raises(ADTSError) as error:
                    await call
                assert error.value.code in {ErrorCode.NAME, ErrorCode.KIND}
            result = await session.put(b"x", path)
            assert result.failures[0].code in {ErrorCode.NAME, ErrorCode.KIND}

    hosts.run_coroutine(use_path_outside_root())
    assert read_files_below(source).keys() == SIZES.keys()


@pytest.mark.clause("ADTS-CHAN-1")
def test_no_common_channel_is_an_error_that_lists_the_servers(hosts: Hosts) -> None:
    other = {"rd": "rc", "rc": "rd"}[hosts.kind]

    async def connect_with_other_kind_of_channel() -> None:
        async with await hosts.start_server():
            with pytest.raises(ADTSError, match=f"choose from {hosts.kind.upper()}") as error:
                await hosts.connect_client(channels=[other])
            assert error.value.code == ErrorCode.CHANNEL

    hosts.run_coroutine(connect_with_other_kind_of_channel())


# ---- disks


class FullDisk(SystemCalls):
    """A disk that is full after a number of octets has been written."""

    def __init__(self, room: int) -> None:
        self.room = room

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(data)
        return super().pwrite(fd, data, offset)


class SyncedDisk(SystemCalls):
    """A disk that logs what is renamed, and what is written to stable storage."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def fsync(self, fd: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
        self.log.append("directory" if is_directory else "file")
        super().fsync(fd)

    def rename(self, old: str, new: str, directory: int) -> None:
        self.log.append("rename")
        super().rename(old, new, directory)


def test_a_full_disk_fails_the_file_and_the_session_goes_on(hosts: Hosts, source: Path) -> None:
    async def fill_the_disk() -> None:
        async with (
            await hosts.start_server(FullDisk(200_000)),
            await hosts.connect_client() as session,
        ):
            result = await session.put(source, "copy", recursive=True)
            assert [f.code for f in result.failures] == [ErrorCode.NO_SPACE]
            assert "No space left" in result.failures[0].text
            assert result.files == 3
            assert result.octets == sum(SIZES.values()) - max(SIZES.values())
            result = await session.put(source / "small", "again")
            assert result.files == 1

    hosts.run_coroutine(fill_the_disk())
    assert "copy/d/e/large" not in read_files_below(hosts.root)


@pytest.mark.clause("ADTS-FILE-9")
def test_a_disk_that_stalls_pauses_its_sender_and_no_other_session(
    hosts: Hosts, source: Path
) -> None:
    pauses: list[float] = []

    async def use_a_slow_disk() -> None:
        async with await hosts.start_server() as server, await hosts.connect_client() as quick:
            # the answer shows that the server has created the disk of the session ``quick``
            await quick.stat("")
            server.make_disk = lambda: SlowDisk(12)
            async with await hosts.connect_client() as slow:
                pausing = slow._exchange._handle_record

                def note_pause_and_handle(record: Record) -> bool:
                    if record.type == Type.PAUSE:
                        pauses.append(hosts.world.now)
                    return pausing(record)

                slow._exchange._handle_record = note_pause_and_handle  # type: ignore[method-assign]
                putting = asyncio.ensure_future(slow.put(source, "slow", recursive=True))
                await asyncio.sleep(10)
                began = hosts.world.now
                await quick.put(source, "quick", recursive=True)
                assert hosts.world.now - began < 1
                assert (await putting).failures == []

    hosts.run_coroutine(use_a_slow_disk(), within=3600)
    assert 5 <= pauses[0] <= 7
    for name in ("slow", "quick"):
        assert read_files_below(hosts.root / name) == read_files_below(source)


@pytest.mark.parametrize(("seconds", "survives"), [(500, True), (700, False)])
def test_a_session_waits_up_to_600_s_for_a_call_of_the_disk(
    hosts: Hosts, seconds: float, survives: bool
) -> None:
    async def put_to_a_slow_disk() -> None:
        async with await hosts.start_server() as server:
            server.make_disk = lambda: SlowDisk(seconds)
            async with await hosts.connect_client() as session:
                if survives:
                    assert (await session.put(b"x", "file")).failures == []
                else:
                    with pytest.raises(ADTSError, match="not answered for 600 s: check the disk"):
                        await session.put(b"x", "file")

    hosts.run_coroutine(put_to_a_slow_disk(), within=3600)


# ---- mirror, memory


@pytest.mark.clause("ADTS-REQ-1", "ADTS-REQ-2", "ADTS-REQ-3")
def test_a_mirror_deletes_what_the_source_does_not_have(
    hosts: Hosts, source: Path, tmp_path: Path
) -> None:
    make_files(hosts.root, {"copy/old": 1, "copy/d/old": 1, "copy/gone/deep/old": 1, "kept": 1})

    async def mirror_both_ways() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            result = await session.put(source, "copy", recursive=True, update=True, delete=True)
            assert (result.files, result.deleted, result.failures) == (4, 5, [])
            result = await session.put(source, "copy", recursive=True, update=True, delete=True)
            assert (result.files, result.skipped, result.deleted) == (0, 4, 0)
            make_files(tmp_path / "back", {"old": 1, "gone/old": 1})
            result = await session.get("copy", tmp_path / "back", recursive=True, delete=True)
            assert result.deleted == 3

    hosts.run_coroutine(mirror_both_ways())
    assert (
        read_files_below(hosts.root / "copy")
        == read_files_below(tmp_path / "back")
        == read_files_below(source)
    )
    assert (hosts.root / "kept").exists()


def test_a_mirror_keeps_a_file_that_appears_at_the_server_meanwhile(
    hosts: Hosts, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = adts.Session.entries

    async def list_before_a_file_appears(session: adts.Session, *args: Any, **more: Any) -> Any:
        found = await entries(session, *args, **more)
        (hosts.root / "new").write_bytes(b"new")
        return found

    monkeypatch.setattr(adts.Session, "entries", list_before_a_file_appears)
    (tmp_path / "back").mkdir()

    async def get_directory_and_delete_others() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            result = await session.get(
                "", tmp_path / "back", recursive=True, delete=True, progress=lambda _: None
            )
            assert (result.files, result.deleted) == (1, 0)

    hosts.run_coroutine(get_directory_and_delete_others())
    assert read_files_below(tmp_path / "back") == {"new": b"new"}


def test_a_mirror_deletes_nothing_if_the_server_cannot_list_everything(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files(hosts.root, {"kept": 1})
    make_files(tmp_path / "back", {"old": 1})
    put = ListPlan.__init__

    def create_list_plan_with_a_failure(plan: ListPlan, *args: Any) -> None:
        put(plan, *args)
        plan.failed += 1

    monkeypatch.setattr(ListPlan, "__init__", create_list_plan_with_a_failure)

    async def get_incompletely_listed_directory() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            result = await session.get("", tmp_path / "back", recursive=True, delete=True)
            assert (result.files, result.deleted) == (1, 0)
            assert "nothing was deleted" in result.failures[0].text

    hosts.run_coroutine(get_incompletely_listed_directory())
    assert set(read_files_below(tmp_path / "back")) == {"kept", "old"}


def test_memory_and_open_files_are_transferred(hosts: Hosts, tmp_path: Path) -> None:
    import io

    octets = bytes(range(256)) * 2000

    async def put_and_get_file_objects() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            await session.put(octets, "bytes")
            await session.put(io.BytesIO(octets), "file")
            into = bytearray(len(octets))
            await session.get("bytes", into)
            assert into == octets
            array = np.arange(50_000, dtype=np.float64).reshape(250, 200)
            await session.put(array, "array")
            await session.put(memoryview(octets)[:1000], "view")
            copy = np.zeros_like(array)
            await session.get("array", copy)
            assert np.array_equal(copy, array)
            await session.get("view", memoryview(into)[5:1005])
            assert into[5:1005] == octets[:1000]
            written = io.BytesIO()
            await session.get("file", written)
            assert written.getvalue() == octets
            result = await session.get("file", bytearray(9))
            assert [f.code for f in result.failures] == [ErrorCode.NO_SPACE]

    hosts.run_coroutine(put_and_get_file_objects())


@pytest.mark.parametrize("hosts", ["rd", "rc"], indirect=True)
def test_an_array_is_sent_from_its_own_memory_which_is_registered_while_it_exists(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    read = MemoryOrigin.read

    def count_and_read(origin: MemoryOrigin, into: memoryview, offset: int) -> None:
        copied.append(len(into))
        read(origin, into, offset)

    monkeypatch.setattr(MemoryOrigin, "read", count_and_read)

    async def send_arrays_from_same_address() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            channel = session._exchange.channel
            assert isinstance(channel, RDMAChannel)
            pages = mmap.mmap(-1, 1 << 20)
            for value in (1, 2):
                array = np.frombuffer(pages, np.uint8)
                array[:] = np.arange(len(array)) % 251 * value % 256
                for name in ("first", "second"):
                    result = await session.put(array, name)
                    assert (result.files, result.failures) == (1, [])
                    assert (hosts.root / name).read_bytes() == array.tobytes()
                assert len(channel.device.registrations) == 1
                del array
                assert len(channel.device.registrations) == 0
            # only the last part of each file is copied, into the unit that has its END
            assert len(copied) == 4
            assert max(copied) < LIMITS.unit

    hosts.run_coroutine(send_arrays_from_same_address())


@pytest.mark.parametrize("hosts", ["rd", "rc"], indirect=True)
def test_memory_that_cannot_be_registered_is_copied(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_registration(cache: Registrations, memory: ProgramMemory) -> None:
        raise LimitError(errno.ENOMEM, "too many regions")

    monkeypatch.setattr(Registrations, "take", refuse_registration)
    array = np.arange(100_000)

    async def put_array_as_file() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            assert (await session.put(array, "array")).failures == []
            assert (hosts.root / "array").read_bytes() == array.tobytes()

    hosts.run_coroutine(put_array_as_file())


@pytest.mark.clause("ADTS-FILE-11")
def test_with_sync_a_file_is_done_when_it_and_its_name_are_in_stable_storage(
    hosts: Hosts, source: Path, tmp_path: Path
) -> None:
    calls = {"server": SyncedDisk(), "client": SyncedDisk()}

    async def put_and_get_with_sync() -> None:
        async with (
            await hosts.start_server(calls["server"]),
            await hosts.connect_client(calls["client"]) as session,
        ):
            await session.put(source, "unsynced", recursive=True)
            assert calls["server"].log.count("file") == 0
            await session.put(source, "copy", recursive=True, sync=True)
            await session.get("copy", tmp_path / "back", recursive=True, sync=True)

    hosts.run_coroutine(put_and_get_with_sync())
    for disk in calls.values():
        synced = [at for at, step in enumerate(disk.log) if step == "file"]
        assert len(synced) == len(SIZES)
        assert all(disk.log[at + 1 : at + 3] == ["rename", "directory"] for at in synced)


def test_progress_reports_octets_of_all_files(hosts: Hosts, source: Path) -> None:
    seen: list[tuple[int, int | None]] = []

    async def put_with_progress() -> None:
        async with await hosts.start_server(), await hosts.connect_client() as session:
            await session.put(
                source, "copy", recursive=True, progress=lambda p: seen.append((p.octets, p.total))
            )

    hosts.run_coroutine(put_with_progress())
    total = sum(SIZES.values())
    assert seen == sorted(seen) and seen[-1] == (total, total)
