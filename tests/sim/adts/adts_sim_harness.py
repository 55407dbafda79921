"""A server and clients of ADTS on two hosts of a simulated network, with real directories."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from siwarp.base import system
from siwarp.sim import World
from siwarp.ulp import adts
from siwarp.ulp.adts.disk import Disk
from siwarp.ulp.adts.tree import SystemCalls

T = TypeVar("T")

#: The address of the client's host, and that of the server's host.
A, B = "10.0.0.1", "10.0.0.2"
KEY = adts.Key(bytes(range(32)))
#: Limits with small units, so that a file of a few hundred KiB is sent in many units.
LIMITS = adts.Limits(unit=16384, window=8, memory=1 << 20)


class Hosts:
    """Two simulated hosts: one runs the server, the other runs clients."""

    def __init__(self, world: World, root: Path, kind: str) -> None:
        self.world = world
        self.root = root
        self.kind = kind
        self.events: list[str] = []
        root.mkdir(exist_ok=True)
        for address in (A, B):
            world.device(address)

    async def start_server(self, calls: SystemCalls | None = None, **more: Any) -> adts.Server:
        options: dict[str, Any] = {
            "key": KEY,
            "writable": True,
            "channels": [self.kind],
            "limits": LIMITS,
            "on_event": self.events.append,
            "calls": calls,
        }
        return await adts.serve(self.root, (B, 18517), **options | more)

    async def connect_client(self, calls: SystemCalls | None = None, **more: Any) -> adts.Session:
        options: dict[str, Any] = {"key": KEY, "channels": [self.kind], "limits": LIMITS}
        return await adts.connect((B, 18517), calls=calls, **options | more)

    def run_coroutine(self, main: Coroutine[Any, Any, T], within: float = 600) -> T:
        """Run a coroutine, for a limited simulated time."""
        return self.world.run(asyncio.wait_for(main, within))


async def put_and_get_directory(hosts: Hosts, source: Path, back: Path) -> None:
    """Copy a directory with four files to the server, and back to another directory."""
    async with await hosts.start_server(), await hosts.connect_client() as session:
        assert session.channel == hosts.kind
        result = await session.put(source, "copy", recursive=True)
        assert (result.files, result.failures) == (4, [])
        result = await session.get("copy", back, recursive=True)
        assert (result.files, result.failures) == (4, [])


def make_files(root: Path, sizes: dict[str, int], seed: int = 1) -> None:
    draw = random.Random(seed)
    for name, size in sizes.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(size))


def read_files_below(root: Path) -> dict[str, bytes]:
    """Return the octets of every file below a directory, incomplete ones included."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


class SlowDisk(Disk):
    """A disk on which each call takes some simulated time, while the network keeps running."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def queue_call(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        result: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((lambda: call(*args), result))
        if self.busy_since is None:
            self._schedule_next_call()
        return result

    def _schedule_next_call(self) -> None:
        self.busy_since = system.monotonic()
        self._loop.call_later(self._seconds, self._make_next_call)

    def _make_next_call(self) -> None:
        if self._waiting:
            call, result = self._waiting.popleft()
            if not result.done():
                result.set_result(call())
        if self._waiting:
            self._schedule_next_call()
        else:
            self.busy_since = None
