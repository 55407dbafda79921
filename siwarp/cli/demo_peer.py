# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The other process of ``siwarp demo``: holds memory, echoes datagrams and rejects wrong keys.

The two processes exchange their control messages over standard input and output, one JSON value per
line.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import siwarp
from siwarp import aio
from siwarp.verbs import Context, Error, QPType

#: Number of receives of the echo server, and octets of a reliable message.
_RECEIVES, _RELIABLE_OCTETS = 32, 4096


def _print_json(value: Any) -> None:
    print(json.dumps(value), flush=True)


def _read_json_line_from_stdin() -> Any:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)  # the demo has closed the pipe
    return json.loads(line)


@contextlib.contextmanager
def mapped_file(path: Path, write: bool) -> Iterator[mmap.mmap]:
    """Map a file and touch its pages, so that the measured times contain no page faults."""
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=access) as memory:
        touched = memory[:: mmap.PAGESIZE]
        if write:
            memory[:: mmap.PAGESIZE] = touched
        yield memory


def serve_file(path: Path) -> None:
    """Offer a file's memory over RC; report its SHA-256 on request."""
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        _print_json({"port": listener.address[1]})
        conn = listener.accept(timeout=30)
    with mapped_file(path, write=True) as memory, conn:
        conn.send(conn.register(memory).remote().pack())
        while _read_json_line_from_stdin() == "digest":
            _print_json({"sha256": hashlib.sha256(memory).hexdigest()})


async def echo_datagrams(kind: QPType) -> None:
    """Send every datagram back to its sender until the demo ends this part."""
    with Context() as context:
        size = context.query_device().max_ud_msg if kind == QPType.UD else _RELIABLE_OCTETS
    open_endpoint = aio.open_ud if kind == QPType.UD else aio.open_rd
    async with open_endpoint(recv_size=size, recv_depth=_RECEIVES) as endpoint:
        _print_json({"port": endpoint.address[1], "size": size})
        echo = asyncio.ensure_future(_send_messages_back(endpoint))
        await asyncio.to_thread(_read_json_line_from_stdin)
        echo.cancel()
    _print_json("closed")


async def _send_messages_back(endpoint: aio.UDEndpoint | aio.RDEndpoint) -> None:
    async for message in endpoint:
        await endpoint.send(message.data, message.source)


def offer_memory_and_refuse_invalid_keys() -> None:
    """Offer a page over RC, twice, and report whether the peer's invalid keys left it unchanged."""
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        _print_json({"port": listener.address[1]})
        for _ in range(2):
            with listener.accept(timeout=30) as conn:
                page = conn.register(4096)
                conn.send(page.remote().pack())
                try:
                    conn.recv(timeout=30)
                    raise AssertionError(
                        "a message arrived although an error should have ended the connection"
                    )
                except Error:
                    _print_json({"untouched": not any(page.view)})


def main() -> int:
    """Run the peer's parts of the demo one after another."""
    try:
        serve_file(Path(sys.argv[1]))
        asyncio.run(echo_datagrams(QPType.UD))
        asyncio.run(echo_datagrams(QPType.RD))
        offer_memory_and_refuse_invalid_keys()
    except OSError as e:  # includes siwarp.Error, whose message names the remedy
        print(f"siwarp demo's peer: {e.strerror or e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
