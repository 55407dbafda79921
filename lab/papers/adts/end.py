# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One end of the measured transfers: a process that serves a directory, or copies files.

The process reads requests from standard input, one JSON object per line, and answers each request
with one line on standard output. ``lab.papers.adts.ends`` starts the process, in a network
namespace if the link between both ends is emulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from siwarp.ulp import adts
from siwarp.ulp.adts import channel_tcp
from siwarp.ulp.adts.disk import Disk

T = TypeVar("T")


def process_cpu_seconds() -> float:
    """Return the CPU time of this process, in user space and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def use_congestion_control(name: str) -> None:
    """Make TCP channels of this process use the congestion control ``name``; "": no change."""
    original: Callable[[Any], None] = channel_tcp.TCPChannel._set_options

    def set_options_and_congestion_control(channel: Any) -> None:
        original(channel)
        channel._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())

    if name:
        channel_tcp.TCPChannel._set_options = set_options_and_congestion_control  # type: ignore[assignment, method-assign]


def disable_disk_thread() -> None:
    """Make sessions of this process call the file system in the thread of the event loop."""

    def run_in_loop_thread(self: Disk, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            result.set_result(call(*args))
        except Exception as e:
            result.set_exception(e)
        return result

    Disk.queue_call = run_in_loop_thread  # type: ignore[method-assign]


class RequestHandler:
    """Carries out requests: serves a directory, or copies files in sessions with a server."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._key = adts.Key.from_text(options["key"])
        self._limits = adts.Limits(**options["limits"])
        self._stack = contextlib.AsyncExitStack()
        self._session: adts.Session | None = None
        self._copying: asyncio.Task[dict[str, Any]] | None = None
        self._octets = 0

    async def close(self) -> None:
        """End the server and the session."""
        await self.handle_stop()
        await self._stack.aclose()

    async def carry_out_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request, and return the answer to it."""
        call = getattr(self, f"handle_{request.pop('do')}")
        answer: dict[str, Any] = await call(**request)
        return answer

    async def handle_serve(self, root: str, host: str) -> dict[str, Any]:
        """Serve the directory ``root`` at a free port of the address ``host``."""
        server = await adts.serve(
            root, (host, 0), key=self._key, writable=True, limits=self._limits
        )
        await self._stack.enter_async_context(server)
        return {"port": server.address[1]}

    async def handle_cpu(self) -> dict[str, Any]:
        """Return the CPU time that this process has used so far."""
        return {"cpu": process_cpu_seconds()}

    async def handle_copy(
        self,
        address: tuple[str, int],
        channel: str,
        way: str,
        files: list[tuple[str, str]],
        sessions: str = "one",
        recursive: bool = False,
        count_octets: bool = False,
    ) -> dict[str, Any]:
        """Copy files; return the seconds of connecting and transferring, octets and CPU time.

        Args:
            address: the address of the server.
            channel: the kind of channel, such as ``rd``.
            way: ``put`` or ``get``.
            files: for each transfer, the local path and the path at the server.
            sessions: ``one``: one session for all transfers; ``each``: a session for each transfer.
            recursive: whether the paths are directories.
            count_octets: whether to count the octets for ``handle_get_progress``.

        """
        connecting = transferring = 0.0
        octets = count = 0
        cpu = process_cpu_seconds()
        await self._end_session()  # end the session that the previous request has left open
        # With a progress callback, a session also requests the total size of the files, which takes
        # time, so only ``handle_begin`` passes a callback.
        options: dict[str, Any] = {
            "recursive": recursive,
            "progress": self._store_octet_count if count_octets else None,
        }
        for local, remote in files:
            began = time.monotonic()
            session = await self._open_session((address[0], address[1]), channel)
            connected = time.monotonic()
            if way == "put":
                result = await session.put(local, remote, **options)
            else:
                result = await session.get(remote, local, **options)
            transferred = time.monotonic()
            if result.failures or result.channel != channel:
                raise RuntimeError(f"over {result.channel}: {result.failures[:1]}")
            if sessions == "each":
                await self._end_session()
            transferring += transferred - connected
            connecting += connected - began + time.monotonic() - transferred
            octets += result.octets
            count += result.files
        return {
            "connecting": connecting,
            "transferring": transferring,
            "octets": octets,
            "files": count,
            "cpu": process_cpu_seconds() - cpu,
        }

    def _store_octet_count(self, progress: adts.Progress) -> None:
        self._octets = progress.octets

    async def handle_begin(self, **request: Any) -> dict[str, Any]:
        """Start copying as ``handle_copy`` does, and return without waiting for the end."""
        self._octets = 0
        self._copying = asyncio.ensure_future(self.handle_copy(count_octets=True, **request))
        return {}

    async def handle_stop(self) -> dict[str, Any]:
        """Cancel the copy that ``handle_begin`` has started, and end its session."""
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.gather(self._copying, return_exceptions=True)
            self._copying = None
        await self._end_session()
        return {}

    async def handle_get_progress(self) -> dict[str, Any]:
        """Return the octets that the copy has transferred so far, and the current time."""
        if self._copying is not None and self._copying.done():
            self._copying.result()
        return {"octets": self._octets, "time": time.monotonic()}

    async def _open_session(self, address: tuple[str, int], channel: str) -> adts.Session:
        if self._session is None:
            self._session = await adts.connect(
                address, key=self._key, channels=[channel], limits=self._limits
            )
        return self._session

    async def _end_session(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def answer_requests(options: dict[str, Any]) -> None:
    """Answer the requests on standard input until its end."""
    use_congestion_control(options["congestion"])
    if not options["disk_thread"]:
        disable_disk_thread()
    loop = asyncio.get_running_loop()
    handler = RequestHandler(options)
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                answer = await handler.carry_out_request(json.loads(line))
            except Exception as e:
                answer = {"error": f"{type(e).__name__}: {e}"}
            print(json.dumps(answer), flush=True)
    finally:
        await handler.close()


if __name__ == "__main__":
    asyncio.run(answer_requests(json.loads(sys.argv[1])))
