# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One end of the measured transfers: a process that serves a directory, or copies files.

It reads requests from standard input, one JSON object in each line, and answers each of them with
one line on standard output. ``lab.papers.adts.ends`` starts it, perhaps in a network namespace.
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


def cpu_seconds() -> float:
    """Return the CPU time of this process, in user space and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def use_congestion_control(name: str) -> None:
    """Let TCP channels of this process use a congestion control, if it is not empty."""
    original: Callable[[Any], None] = channel_tcp.TCPChannel._set_options

    def set_options(channel: Any) -> None:
        original(channel)
        channel._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())

    if name:
        channel_tcp.TCPChannel._set_options = set_options  # type: ignore[assignment, method-assign]


def use_no_disk_thread() -> None:
    """Let sessions of this process call the file system in the thread of the event loop."""

    def run(self: Disk, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            result.set_result(call(*args))
        except Exception as e:
            result.set_exception(e)
        return result

    Disk.run = run  # type: ignore[method-assign]


class End:
    """The server, or the sessions, of this process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._key = adts.Key.from_text(options["key"])
        self._limits = adts.Limits(**options["limits"])
        self._stack = contextlib.AsyncExitStack()
        self._session: adts.Session | None = None
        self._copying: asyncio.Task[dict[str, Any]] | None = None
        self._octets = 0

    async def close(self) -> None:
        """End the server and the session."""
        await self.do_stop()
        await self._stack.aclose()

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request; return its answer."""
        call = getattr(self, f"do_{request.pop('do')}")
        answer: dict[str, Any] = await call(**request)
        return answer

    async def do_serve(self, root: str, host: str) -> dict[str, Any]:
        """Serve a directory at a free port of an address."""
        server = await adts.serve(
            root, (host, 0), key=self._key, writable=True, limits=self._limits
        )
        await self._stack.enter_async_context(server)
        return {"port": server.address[1]}

    async def do_cpu(self) -> dict[str, Any]:
        """Tell the CPU time of this process so far."""
        return {"cpu": cpu_seconds()}

    async def do_copy(
        self,
        address: tuple[str, int],
        channel: str,
        way: str,
        files: list[tuple[str, str]],
        sessions: str = "one",
        recursive: bool = False,
        watched: bool = False,
    ) -> dict[str, Any]:
        """Copy files; tell the seconds for connecting and for the transfers, and the octets.

        Args:
            address: that of the server.
            channel: the channel's kind.
            way: ``put`` or ``get``.
            files: for each transfer the local path and the path at the server.
            sessions: ``one``: a session for all transfers; ``each``: one for each of them.
            recursive: the paths are directories.
            watched: count the octets for ``do_progress``.

        """
        connecting = transferring = 0.0
        octets = count = 0
        cpu = cpu_seconds()
        await self._end_session()  # of the request before
        # A progress callback costs a request for the total, so it is used only by ``do_begin``.
        options: dict[str, Any] = {
            "recursive": recursive,
            "progress": self._on_progress if watched else None,
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
            "cpu": cpu_seconds() - cpu,
        }

    def _on_progress(self, progress: adts.Progress) -> None:
        self._octets = progress.octets

    async def do_begin(self, **request: Any) -> dict[str, Any]:
        """Begin to copy as ``do_copy`` does, and answer at once."""
        self._octets = 0
        self._copying = asyncio.ensure_future(self.do_copy(watched=True, **request))
        return {}

    async def do_stop(self) -> dict[str, Any]:
        """End the copy that was begun, and its session."""
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.gather(self._copying, return_exceptions=True)
            self._copying = None
        await self._end_session()
        return {}

    async def do_progress(self) -> dict[str, Any]:
        """Tell how many octets the copy has transferred, and the time."""
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


async def run(options: dict[str, Any]) -> None:
    """Answer requests until standard input ends."""
    use_congestion_control(options["congestion"])
    if not options["disk_thread"]:
        use_no_disk_thread()
    loop = asyncio.get_running_loop()
    end = End(options)
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                answer = await end.answer(json.loads(line))
            except Exception as e:
                answer = {"error": f"{type(e).__name__}: {e}"}
            print(json.dumps(answer), flush=True)
    finally:
        await end.close()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
