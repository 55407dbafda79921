"""The comm of dask.distributed: messages, errors, lying peers, and a cluster of processes."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pace
import pytest
from distributed import Client, LocalCluster, Security, wait
from distributed.comm import CommClosedError, connect, get_local_address_for, listen
from distributed.protocol import dumps, to_serialize
from docs.docs_harness import read_doc_block

from siwarp import RemoteBuffer, aio
from siwarp.ulp.dask import comm as siw
from siwarp.verbs import AccessFlag

LOOPBACK = "siw://127.0.0.1"
#: Seconds after which a test has failed.
LIMIT = 60.0
#: Rows and columns of an array.
EDGE = 2000


def run_with_time_limit(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), LIMIT))


async def comm_pair(address: str = LOOPBACK) -> tuple[Any, Any]:
    """Return both ends of a comm, as dask.distributed calls a connection, connecting end first."""
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    async with listen(address, accepted.put) as listener:
        ours = await connect(listener.contact_address)
        return ours, await accepted.get()


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# ---- messages


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1, 0, 2],
        [siw.RECV_SIZE],
        [siw.LARGE - 1] * 20,
        [siw.LARGE] * 20,
        [siw.LARGE, 3, 5_000_000, 0, siw.LARGE - 1],
        [100] * 20_000,
        [siw.LARGE] * 300,
    ],
    ids=lambda sizes: f"{len(sizes)} frames of {sum(sizes)} octets",
)
def test_arrays_of_all_sizes_arrive_unchanged(sizes: list[int]) -> None:
    async def send_arrays() -> None:
        a, b = await comm_pair()
        arrays = [np.arange(size, dtype="u1") for size in sizes]
        for _ in range(2):
            await a.write({"arrays": [to_serialize(array) for array in arrays]})
            got = (await b.read())["arrays"]
            assert [bytes(array) for array in got] == [array.tobytes() for array in arrays]
        await a.close()
        await b.close()

    run_with_time_limit(send_arrays)


def test_received_arrays_are_writable_and_independent() -> None:
    async def change_received_arrays() -> None:
        a, b = await comm_pair()
        a.deserialize = b.deserialize = True
        for size in (1000, 1_000_000):
            await a.write([to_serialize(np.zeros(size)), to_serialize(np.zeros(size))])
            first, second = await b.read()
            first += 1
            assert second.sum() == 0
        a.abort()
        b.abort()

    run_with_time_limit(change_received_arrays)


def test_both_ends_send_large_messages_at_the_same_time() -> None:
    async def exchange_arrays_both_ways_at_once() -> None:
        a, b = await comm_pair()
        array = to_serialize(np.ones(3_000_000, dtype="u1"))

        async def send_many_arrays(comm: Any) -> None:
            for _ in range(20):
                await comm.write([array])

        async def read_many_arrays(comm: Any) -> None:
            for _ in range(20):
                assert bytes((await comm.read())[0]) == bytes(3_000_000 * b"\1")

        await asyncio.gather(
            send_many_arrays(a), send_many_arrays(b), read_many_arrays(a), read_many_arrays(b)
        )
        await asyncio.gather(a.close(), b.close())

    run_with_time_limit(exchange_arrays_both_ways_at_once)


def test_a_message_written_before_close_arrives() -> None:
    async def write_and_close() -> None:
        a, b = await comm_pair()
        await a.write([to_serialize(np.ones(5_000_000, dtype="u1"))])
        closing = asyncio.create_task(a.close())
        assert len(bytes((await b.read())[0])) == 5_000_000
        await closing
        with pytest.raises(CommClosedError):
            await b.read()
        assert b.closed()

    run_with_time_limit(write_and_close)


def test_closing_does_not_wait_for_ever_for_a_peer_that_reads_nothing() -> None:
    async def close_with_unresponsive_peer() -> None:
        a, b = await comm_pair()
        await a.write([to_serialize(np.ones(5_000_000, dtype="u1"))])
        with dask.config.set({"distributed.comm.timeouts.tcp": "50ms"}):
            await a.close()
        assert a.closed() and not b.closed()
        b.abort()

    run_with_time_limit(close_with_unresponsive_peer)


def test_closing_continues_to_wait_while_the_peer_reads_messages() -> None:
    async def close_with_slow_peer() -> None:
        a, b = await comm_pair()
        for _ in range(3):
            await a.write([to_serialize(np.ones(5_000_000, dtype="u1"))])
        with dask.config.set({"distributed.comm.timeouts.tcp": f"{LIMIT} s"}):
            closing = asyncio.create_task(a.close())
            for _ in range(3):
                assert not a.closed()
                assert len(bytes((await b.read())[0])) == 5_000_000
            await closing
        b.abort()

    run_with_time_limit(close_with_slow_peer)


def test_the_memory_of_a_message_is_released_when_the_peer_has_read_it() -> None:
    async def write_and_read() -> None:
        a, b = await comm_pair()
        await a.write([to_serialize(np.ones(5_000_000, dtype="u1"))])
        (regions,) = a._exposed
        await b.read()
        await wait_until(lambda: not a._exposed)
        assert all(region.closed for region in regions)
        a.abort()
        b.abort()

    run_with_time_limit(write_and_read)


# ---- the ends of a comm


def test_the_end_of_the_peer_is_noticed_without_reading() -> None:
    async def close_peer() -> None:
        a, b = await comm_pair()
        await a.close()
        await wait_until(b.closed)
        for call in (b.read(), b.write("x")):
            with pytest.raises(CommClosedError):
                await call

    run_with_time_limit(close_peer)


def test_a_cancelled_read_closes_the_comm() -> None:
    async def cancel_read() -> None:
        a, b = await comm_pair()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(a.read(), 0.01)
        assert a.closed()
        with pytest.raises(CommClosedError):
            await b.read()

    run_with_time_limit(cancel_read)


def test_connecting_without_a_listener_is_an_oserror() -> None:
    async def connect_without_listener() -> None:
        with pytest.raises(OSError, match="no listener at this address"):
            await siw.Backend().get_connector().connect("127.0.0.1:9")

    run_with_time_limit(connect_without_listener)


def test_a_listener_without_a_host_is_reached_over_ipv4_and_ipv6() -> None:
    async def connect_over_ipv4_and_ipv6() -> None:
        accepted: asyncio.Queue[Any] = asyncio.Queue()
        async with listen("siw://", accepted.put) as listener:
            port = listener.get_host_port()[1]
            for host in ("127.0.0.1", "[::1]"):
                ours = await connect(f"siw://{host}:{port}")
                theirs = await accepted.get()
                assert theirs.peer_address == ours.local_address
                ours.abort()
                theirs.abort()

    run_with_time_limit(connect_over_ipv4_and_ipv6)


def test_the_local_address_has_the_ip_version_of_the_peer() -> None:
    assert get_local_address_for("siw://127.0.0.1:9") == LOOPBACK
    assert get_local_address_for("siw://[::1]:9") == "siw://[::1]"


@pytest.mark.parametrize("end", ["listener", "connector"])
def test_a_security_object_that_requires_encryption_is_refused(end: str) -> None:
    options = Security(require_encryption=True).get_connection_args("worker")

    async def listen_or_connect_with_encryption() -> None:
        with pytest.raises(RuntimeError, match="requires encryption, which siw:// does not have"):
            if end == "listener":
                listen(LOOPBACK, lambda comm: None, **options)
            else:
                await connect("siw://127.0.0.1:9", **options)

    run_with_time_limit(listen_or_connect_with_encryption)


# ---- lying peers

HEADER = struct.Struct("!B3xIQ")
WHOLE, INDEX, REMOTE_INDEX, COMPLETE = 1, 2, 3, 4


def encode_size(octets: int) -> bytes:
    return struct.pack("!Q", octets)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"short", "a message of 5 octets, at least 16 expected"),
        (HEADER.pack(9, 0, 0), "a message of type 9"),
        (HEADER.pack(COMPLETE, 0, 0), "must only report messages that were sent"),
        (HEADER.pack(WHOLE, 5, 8) + encode_size(1), "8 octets expected for the index of 5 frames"),
        (HEADER.pack(WHOLE, 1, 80) + encode_size(1), "8 octets where 80 are expected"),
        (HEADER.pack(WHOLE, 1, 8) + encode_size(1), "whose parts must have this size"),
        (HEADER.pack(WHOLE, 1, 10) + encode_size(1) + b"xy", "whose parts must have this size"),
        (HEADER.pack(WHOLE, 1, 8) + encode_size(1 << 63), "half of the memory"),
        (HEADER.pack(INDEX, 1, 8) + encode_size(siw.LARGE), "whose parts must have this size"),
        (HEADER.pack(INDEX, 1, 28) + encode_size(siw.LARGE) + bytes(20), "a remote buffer of"),
        (HEADER.pack(REMOTE_INDEX, 1, 100), "a remote buffer of 100 octets expected"),
        (HEADER.pack(REMOTE_INDEX, 1, 1 << 62) + bytes(20), "for the index of 1 frames"),
        (
            HEADER.pack(REMOTE_INDEX, 1, 100) + RemoteBuffer(4096, 100, 77).pack(),
            "invalid STag",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lying_peer_ends_its_comm_only(message: bytes, error: str) -> None:
    async def send_invalid_message() -> None:
        failed: asyncio.Queue[BaseException] = asyncio.Queue()

        async def read_one_message(comm: Any) -> None:
            try:
                await comm.read()
            except CommClosedError as closed:
                await failed.put(closed)

        async with listen(LOOPBACK, read_one_message) as listener:
            honest = await connect(listener.contact_address)
            liar = await aio.connect(listener.get_host_port())
            await liar.recv()  # the handshake message that a listener sends first
            await liar.send(encode_whole_message({"compression": None, "pickle-protocol": 5}))
            await liar.send(message)
            assert error in str(await failed.get())
            with pytest.raises(OSError, match=r"ended|refused|broke"):
                while True:
                    await liar.recv()
            assert not honest.closed()
            honest.abort()
            await liar.close()

    run_with_time_limit(send_invalid_message)


def encode_whole_message(message: Any) -> bytes:
    """Return a message as one Send of the type WHOLE."""
    frames = [bytes(frame) for frame in dumps(message)]
    content = b"".join([struct.pack(f"!{len(frames)}Q", *map(len, frames)), *frames])
    return HEADER.pack(WHOLE, len(frames), len(content)) + content


def test_the_peer_cannot_read_memory_other_than_that_of_its_messages() -> None:
    async def read_memory_of_other_dask_comm() -> None:
        accepted: asyncio.Queue[Any] = asyncio.Queue()
        async with listen(LOOPBACK, accepted.put) as listener:
            honest = await connect(listener.contact_address)
            await (await accepted.get()).write([to_serialize(np.ones(5_000_000, dtype="u1"))])
            data = await honest._received.get()
            kind, count, _ = HEADER.unpack_from(data)
            assert kind == INDEX
            remote = RemoteBuffer.unpack(data[HEADER.size + 8 * count :])
            stranger = await aio.connect(listener.get_host_port())
            await stranger.recv()
            region = stranger.register(100, AccessFlag.LOCAL_WRITE)
            with pytest.raises(OSError, match="STag"):
                await stranger.read_into(remote.part(0, 100), region)
            honest.abort()
            await stranger.close()

    run_with_time_limit(read_memory_of_other_dask_comm)


# ---- clusters


def test_the_documented_cluster_prints_the_documented_output(tmp_path: Path) -> None:
    program = tmp_path / "cluster.py"
    program.write_text(read_doc_block("docs/guides/dask.md", "cluster"))
    done = pace.run_command(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, seconds=LIMIT, check=True
    )
    assert done.stdout == read_doc_block("docs/guides/dask.md", "cluster-output")


def test_a_cluster_computes_over_siwarp_also_after_one_of_two_workers_was_killed() -> None:
    with (
        dask.config.set({"distributed.admin.log-format": "%(message)s"}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            protocol="siw",
            host="127.0.0.1",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        workers = client.scheduler_info()["workers"]
        assert len(workers) == 2 and all(name.startswith("siw://") for name in workers)
        array = da.arange(EDGE**2, chunks=EDGE * 100).reshape(EDGE, -1)
        # The transposed blocks are exchanged between the workers.
        total = (array + array.T.rechunk(array.chunks)).sum().compute()
        assert total == EDGE**2 * (EDGE**2 - 1)
        assert client.gather(client.map(lambda x: x + 1, range(100))) == list(range(1, 101))
        pids = client.run(os.getpid)
        killed = min(pids)
        # The killed worker has some of the results, which the other workers compute again.
        results = client.map(lambda x: x + 1, range(200))
        wait(results)
        os.kill(pids[killed], signal.SIGKILL)
        assert client.submit(sum, results).result(LIMIT) == sum(range(1, 201))
        assert client.gather(results) == list(range(1, 201))
        assert killed not in client.scheduler_info()["workers"]
