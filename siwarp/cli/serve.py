# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp serve``: serves a directory to ``siwarp cp``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import typer

from siwarp.base import show
from siwarp.cli.adts_key import VARIABLE, find_adts_key, parse_channel_list
from siwarp.cli.peer import call_at_stop_signal

__all__ = ["raise_descriptor_limit", "serve"]


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors: each file that is received needs two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve_until_stopped(
    root: Path, address: tuple[str, int], key: Any, made_key: bool, options: dict[str, Any],
    as_json: bool, until_eof: bool,
) -> None:  # fmt: skip
    from siwarp.ulp.adts import serve as serve_directory

    def print_event(text: str) -> None:
        print(f"siwarp serve: {text}", file=sys.stderr, flush=True)

    stop = asyncio.Event()
    call_at_stop_signal(stop.set, until_eof)
    async with await serve_directory(
        root, address, key=key, on_event=print_event, **options
    ) as server:
        host, port = server.address
        shown = f"[{host}]" if ":" in host else host
        url = f"siw://{shown}:{port}/"
        if as_json:
            print(json.dumps({"url": url, "host": host, "port": port, "key": key.text}), flush=True)
        else:
            how = "read and write" if options["writable"] else "read-only"
            channels = ", ".join(options["channels"])
            show.print_line(f"{root} at {url}, {how}, channels {channels}")
            given = f"{VARIABLE}={key.text} \\\n  " if made_key else ""
            print(f"copy with:\n  {given}siwarp cp -r {url} DIRECTORY", flush=True)
        await stop.wait()


def serve(
    directory: str = typer.Argument(metavar="DIR", help="The directory; nothing else is served."),
    write: bool = typer.Option(
        False, "--write", help="Let peers create, replace and delete files in DIR."
    ),
    addr: str = typer.Option(
        "127.0.0.1", "--addr", help="The address to listen on; 0.0.0.0: any IPv4 address."
    ),
    port: int = typer.Option(
        18517, "--port", "-p", min=0, max=65535, help="The TCP port; 0: a free port."
    ),
    key: str | None = typer.Option(
        None,
        "--key",
        metavar="FILE",
        help="The file with the key, which is created if it is missing; default: ADTS_KEY, "
        "or a random key, which is printed.",
    ),
    channel: str = typer.Option(
        "rd,rc,ud,tcp", "--channel", metavar="LIST", help="The channels that peers may use."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print address and key as JSON."),
    until_eof: bool = typer.Option(False, "--until-eof", hidden=True),
) -> None:
    """Serve a directory to `siwarp cp`, until Ctrl-C.

    Only peers that know the key are admitted; the key itself is not transmitted. Names and contents
    of files are neither encrypted nor protected against tampering: on a network that you do not
    trust, use a tunnel such as WireGuard. Symbolic links in DIR are not followed.

    Sessions begin on the TCP port; RD, RC and UD use free ports, which the peer is told. Sessions
    that begin, end or are refused are reported on standard error.
    """
    from siwarp.ulp.adts import Key, create_key_file

    names = parse_channel_list(channel)
    if key is not None and not Path(key).exists():
        create_key_file(Path(key))
    found = find_adts_key(key)
    options = {"writable": write, "channels": names}
    raise_descriptor_limit()
    asyncio.run(
        _serve_until_stopped(
            Path(directory), (addr, port), found or Key.random(), found is None, options, as_json,
            until_eof,
        )
    )  # fmt: skip
