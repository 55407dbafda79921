# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp bench --server``: serves one client after another (the protocol is in ``hosts.py``).

Other clients are told that the server is busy. The resources of a client are limited: memory and
time of a run (``MeasurementRequest.validate``), the time between runs, and the time of the complete
session. A client that is silent, disconnects or violates the protocol loses its session, and its
processes are ended. A new connection has a few seconds to send its greeting; at most
``Server.WAITING`` connections may be in this state, and a further one replaces the oldest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

from siwarp.bench.hosts import (
    ACCEPTED,
    CTL_MAGIC,
    GREETING,
    MOST_LINE,
    VERSION,
    Addresses,
    Greeting,
    MeasurementRequest,
    ProcessOutcome,
    bench_command_line,
    encode_host_byte_order,
    make_bench_process_env,
    make_greeting,
    set_keep_alive,
)
from siwarp.bench.runner import GRACE_S

__all__ = ["Server"]


class _ClientGone(Exception):
    """The client has disconnected or violates the protocol; the message gives the reason."""


class Server:
    """The bench server; ``serve`` serves clients until it is cancelled.

    Args:
        visit: time limit of a client's session in seconds.
        say: called with a line of text at the start and end of each session.

    """

    WAITING = 16
    #: Time limits in seconds: for a greeting, for opening the connections of a run, and between two
    #: runs of a client.
    GREET_S, CHANNELS_S, IDLE_S = 5.0, 10.0, 10.0

    def __init__(self, visit: float, say: Callable[[str], None]) -> None:
        self._visit_s, self._say = visit, say
        self._busy = False
        self._new: dict[asyncio.Task[None], None] = {}
        #: The channels that the client of the run has not opened yet, by token.
        self._channels: dict[bytes, asyncio.Future[int]] = {}

    async def serve(self, host: str, port: int, started: Callable[[tuple[str, int]], None]) -> None:
        """Serve clients; ``started`` is called with the address of the listening socket.

        Args:
            host: a numeric address to listen on.
            port: 0 selects a free one.
            started: see above.

        """
        server = await asyncio.start_server(self._accept_connection, host, port, limit=MOST_LINE)
        try:
            started(server.sockets[0].getsockname()[:2])
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()

    async def _accept_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            try:
                await self._handle_connection(reader, writer)
            finally:
                writer.close()

    async def _handle_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first, refusal = b"", ""
        try:
            first = await self._read_first_octets(reader)
        except (asyncio.TimeoutError, asyncio.CancelledError):
            refusal = "no greeting arrived in time"
        except asyncio.IncompleteReadError:
            return
        if first[: len(CTL_MAGIC)] == CTL_MAGIC:
            self._accept_channel(first[len(CTL_MAGIC) :], writer)
            return
        refusal = refusal or self._reason_to_refuse(first)
        writer.write(make_greeting(refusal))
        if not refusal:
            self._busy = True
            try:
                await self._serve_client(reader, writer)
            finally:
                self._busy = False

    async def _read_first_octets(self, reader: asyncio.StreamReader) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        if len(self._new) >= self.WAITING:
            next(iter(self._new)).cancel()
        self._new[task] = None
        try:
            return await asyncio.wait_for(reader.readexactly(GREETING.size), self.GREET_S)
        finally:
            del self._new[task]

    def _reason_to_refuse(self, first: bytes) -> str:
        try:
            theirs = Greeting.unpack(first)
        except ValueError:
            return "this is a siwarp bench server: use siwarp bench lat, bw or rate"
        if theirs.version != VERSION:
            return f"this is version {VERSION}, not {theirs.version}: use the same siwarp"
        if theirs.order != encode_host_byte_order():
            return "the server's byte order differs: use siwarp ping"
        return "the server is busy with another client: try again later" if self._busy else ""

    def _accept_channel(self, token: bytes, writer: asyncio.StreamWriter) -> None:
        expected = self._channels.pop(token, None)
        if expected is None or expected.done():
            return
        # The client sends nothing on this connection before it has received ACCEPTED, so this
        # server reads no octets that are meant for the process of the run. That process gets a
        # duplicate of the descriptor.
        writer.write(ACCEPTED)
        descriptor = os.dup(writer.get_extra_info("socket").fileno())
        os.set_blocking(descriptor, True)
        expected.set_result(descriptor)

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry out the runs of one client; no behaviour of the client ends the server."""
        connection: socket.socket = writer.get_extra_info("socket")
        set_keep_alive(connection)
        peer, own = writer.get_extra_info("peername")[0], writer.get_extra_info("sockname")[0]
        self._say(f"{peer}: a client")
        loop = asyncio.get_running_loop()
        over = loop.time() + self._visit_s
        try:
            while (left := min(self.IDLE_S, over - loop.time())) > 0:
                try:
                    line = await asyncio.wait_for(reader.readline(), left)
                except asyncio.TimeoutError:
                    break
                except ValueError:
                    raise _ClientGone("it sent a line that is too long") from None
                if not line.endswith(b"\n"):
                    raise _ClientGone("it closed the connection")
                await self._serve_requested_run(line, reader, writer, Addresses(own, peer))
            self._send_json_line(
                writer, {"refused": "your time is over: the server takes another client"}
            )
            self._say(f"{peer}: its time limit is reached")
        except (_ClientGone, OSError) as e:
            self._say(f"{peer}: done ({e})")

    def _send_json_line(self, writer: asyncio.StreamWriter, value: object) -> None:
        writer.write(json.dumps(value).encode() + b"\n")

    async def _serve_requested_run(
        self,
        line: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        where: Addresses,
    ) -> None:
        """Carry out one run, or report to the client why the run is refused."""
        try:
            request = MeasurementRequest.unpack(line)
        except ValueError as e:
            self._send_json_line(writer, {"refused": str(e)[:1000]})
            return
        run = asyncio.ensure_future(self._run_processes(request, writer, where))
        # A client sends nothing during a run: the read ends only if the client disconnects.
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({run, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                raise _ClientGone("it ended a run")
            self._send_json_line(writer, {"ends": [asdict(end) for end in run.result()]})
        except (OSError, asyncio.TimeoutError) as e:
            self._send_json_line(writer, {"refused": str(e) or "the run exceeded its time limit"})
        finally:
            for task in (run, gone):
                task.cancel()
            await asyncio.gather(run, gone, return_exceptions=True)

    async def _run_processes(
        self, request: MeasurementRequest, writer: asyncio.StreamWriter, where: Addresses
    ) -> list[ProcessOutcome]:
        processes: list[asyncio.subprocess.Process] = []
        try:
            async with self._open_channels(request.channel_count, writer) as channels:
                for i, channel in enumerate(channels):
                    processes.append(
                        await asyncio.create_subprocess_exec(
                            *bench_command_line(request, i, where, client=False),
                            "--ctl",
                            str(channel),
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE,
                            pass_fds=[channel],
                            env=make_bench_process_env(request),
                        )
                    )
            ends = asyncio.gather(*map(_wait_for_process_end, processes))
            return await asyncio.wait_for(ends, request.limit + GRACE_S)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    @contextlib.asynccontextmanager
    async def _open_channels(
        self, count: int, writer: asyncio.StreamWriter
    ) -> AsyncIterator[list[int]]:
        """Provide the descriptors of a run's channels, of which each process inherits one."""
        loop = asyncio.get_running_loop()
        channels: dict[bytes, asyncio.Future[int]] = {
            os.urandom(8): loop.create_future() for _ in range(count)
        }
        self._channels.update(channels)
        try:
            self._send_json_line(writer, {"tokens": [token.hex() for token in channels]})
            opened = asyncio.gather(*channels.values())
            yield await asyncio.wait_for(opened, self.CHANNELS_S)
        finally:
            for token, channel in channels.items():
                self._channels.pop(token, None)
                if channel.done() and not channel.cancelled():
                    os.close(channel.result())


async def _wait_for_process_end(process: asyncio.subprocess.Process) -> ProcessOutcome:
    said, complaint = await process.communicate()
    assert process.returncode is not None
    return ProcessOutcome.from_process(
        process.returncode, said.decode(), complaint.decode(errors="replace")
    )
