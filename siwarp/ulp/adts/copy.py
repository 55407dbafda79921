# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Copying between paths and siw:// addresses, as ``siwarp cp`` does, and a blocking client."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from siwarp.ulp.adts.auth import Key
from siwarp.ulp.adts.client import Progress, Result, Session, connect
from siwarp.ulp.adts.session import ADTSError
from siwarp.ulp.adts.tree import Entry
from siwarp.ulp.adts.wire import DEFAULT_PORT, DigestKind, ErrorCode, FileKind
from siwarp.verbs import Address

__all__ = ["SCHEME", "Client", "Remote", "copy", "copy_async", "parse_remote"]

#: The scheme of addresses of files at a server.
SCHEME = "siw"

T = TypeVar("T")


@dataclass(frozen=True)
class Remote:
    """A path at a server."""

    address: Address
    path: str


def parse_remote(text: str) -> Remote | None:
    """Return the path at a server that ``siw://HOST[:PORT]/PATH`` means; None for a local path.

    Raises:
        ValueError: the text begins with ``siw://``, but the rest is malformed.

    """
    if not text.startswith(f"{SCHEME}://"):
        return None
    parts = urlsplit(text)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise ValueError(f"{text}: {e}") from None
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{text}: give {SCHEME}://HOST[:PORT]/PATH")
    path = unquote(parts.path, errors="surrogateescape").strip("/")
    return Remote((host, port or DEFAULT_PORT), path)


async def copy_async(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    key: Key,
    channels: Sequence[str] = ("rd", "rc", "tcp"),
    recursive: bool = False,
    update: bool = False,
    delete: bool = False,
    symlinks: bool = False,
    sync: bool = False,
    digest: DigestKind = DigestKind.CRC32C,
    progress: Callable[[Progress], None] | None = None,
    on_session: Callable[[Session], None] | None = None,
) -> Result:
    """Copy files between this machine and a server, as ``cp`` does.

    Either the sources or the target are ``siw://HOST[:PORT]/PATH``. If the target is a directory,
    each source keeps its name in it; a directory whose path ends in a slash stands for what is in
    it, as with rsync.

    Args:
        sources, target: paths.
        key: the server's key.
        channels: names of channels, in the order in which they are tried.
        recursive, update, delete, symlinks, sync, digest, progress: as for ``Session.put``.
        on_session: called with the session, once it is open.

    Raises:
        ValueError: not exactly one side is at a server, or the sources are at several servers.
        ADTSError, OSError: as for ``connect`` and ``Session.put``.

    """
    to = parse_remote(os.fspath(target))
    remotes = [parse_remote(os.fspath(source)) for source in sources]
    first = remotes[0] if remotes else None
    if to is None and first is None:
        raise ValueError(f"no path is at a server: give {SCHEME}://HOST[:PORT]/PATH for one side")
    if to is not None and any(remotes):
        raise ValueError("both sides are at a server: one of them must be on this machine")
    if to is None and any(r is None or r.address != (first and first.address) for r in remotes):
        raise ValueError("all sources must be at the same server")
    address = (to or first).address  # type: ignore[union-attr]
    options: dict[str, Any] = {
        "recursive": recursive,
        "update": update,
        "delete": delete,
        "symlinks": symlinks,
        "sync": sync,
        "digest": digest,
        "progress": progress,
    }
    result = Result()
    async with await connect(address, key=key, channels=channels) as session:
        if on_session is not None:
            on_session(session)
        result.channel = session.channel
        if to is not None:
            is_directory = await _is_remote_directory(session, to.path)
            _check_target_of_many_sources(sources, is_directory, target)
            for source in sources:
                text = os.fspath(source)
                name = "" if text.endswith("/") else Path(text).resolve().name
                into = is_directory and bool(name)
                path = "/".join(filter(None, (to.path, name))) if into else to.path
                result.add(await session.put(source, path or name, **options))
        else:
            is_directory = Path(target).is_dir()
            _check_target_of_many_sources(sources, is_directory, target)
            for source, remote in zip(sources, remotes, strict=True):
                assert remote is not None
                name = remote.path.rpartition("/")[2]
                into = is_directory and bool(name) and not os.fspath(source).endswith("/")
                where = Path(target) / name if into else Path(target)
                result.add(await session.get(remote.path, where, **options))
    return result


async def _is_remote_directory(session: Session, path: str) -> bool:
    if not path:
        return True
    try:
        return (await session.stat(path)).kind == FileKind.DIRECTORY
    except ADTSError as e:
        if e.code == ErrorCode.NOT_FOUND:
            return False
        raise


def _check_target_of_many_sources(sources: Sequence[Any], is_directory: bool, target: Any) -> None:
    if len(sources) > 1 and not is_directory:
        raise ValueError(f"{target} is not a directory: several sources need one")


def copy(
    sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str], **options: Any
) -> Result:
    """Copy files as ``copy_async`` does, in a program without an event loop."""
    return asyncio.run(copy_async(sources, target, **options))


class Client:
    """A session for programs without an event loop, which it runs in a thread of its own.

    Any thread may call the methods; transfers are made one after the other. Arguments, results and
    errors are those of ``connect`` and of ``Session``. Callbacks are called in the thread of the
    loop.
    """

    def __init__(self, address: Address, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="siwarp-adts", daemon=True
        )
        self._thread.start()
        try:
            self._session = self._run_in_loop_thread(connect(address, **options))
        except BaseException:
            self._stop_loop_thread()
            raise

    def _run_in_loop_thread(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _stop_loop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def channel(self) -> str:
        """The kind of the session's channel: "rd", "rc", "ud" or "tcp"."""
        return self._session.channel

    def put(self, source: Any, path: str, **options: Any) -> Result:
        """Send a file, a directory or memory, as ``Session.put`` does."""
        return self._run_in_loop_thread(self._session.put(source, path, **options))

    def get(self, path: str, target: Any, **options: Any) -> Result:
        """Receive a file or a directory, as ``Session.get`` does."""
        return self._run_in_loop_thread(self._session.get(path, target, **options))

    def entries(self, path: str = "", *, recursive: bool = False) -> list[Entry]:
        """List the entries at a path of the server, as ``Session.entries`` does."""
        return self._run_in_loop_thread(self._session.entries(path, recursive=recursive))

    def stat(self, path: str) -> Entry:
        """Return the entry of a path at the server, as ``Session.stat`` does."""
        return self._run_in_loop_thread(self._session.stat(path))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or directory at the server, as ``Session.delete`` does."""
        self._run_in_loop_thread(self._session.delete(path, recursive=recursive))

    def close(self) -> None:
        """End the session and the thread of its event loop."""
        if not self._loop.is_closed():
            self._run_in_loop_thread(self._session.close())
            self._stop_loop_thread()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
