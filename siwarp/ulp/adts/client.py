# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A client's session: put, get, list and delete."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siwarp.base import system
from siwarp.base.numeric import resolve_to_numeric
from siwarp.ulp.adts import endpoints, wire
from siwarp.ulp.adts.auth import Key
from siwarp.ulp.adts.channel import Cause, ChannelEnded, Limits
from siwarp.ulp.adts.disk import Disk
from siwarp.ulp.adts.handshake import Agreement, initiate_session, parse_channels
from siwarp.ulp.adts.local import ObjectDestination, TreeDestination, origin_of_memory_or_file
from siwarp.ulp.adts.server import entry_and_entries_below
from siwarp.ulp.adts.session import ADTSError, Exchange
from siwarp.ulp.adts.transfer import Failure, FilePlan, Outcome
from siwarp.ulp.adts.tree import Entry, SystemCalls, Tree
from siwarp.ulp.adts.wire import DigestKind, ErrorCode, FileKind, Message, Option, Record
from siwarp.verbs import Address

__all__ = ["Progress", "Result", "Session", "connect"]

#: Maximum number of requests of a session that wait for their answers.
REQUESTS = 64


@dataclass
class Progress:
    """The progress of a transfer, which the callback gets after each unit."""

    #: The path of the current file.
    path: str = ""
    #: Number of files that are complete or up to date, and octets of files transferred so far.
    files: int = 0
    octets: int = 0
    #: Octets of all files; None if they were not counted.
    total: int | None = None


@dataclass
class Result:
    """What a transfer has done."""

    #: Numbers of files that were transferred, that the receiver already had, and that were deleted
    #: at the receiver.
    files: int = 0
    skipped: int = 0
    deleted: int = 0
    #: Octets of the files that were transferred completely, including those that an earlier
    #: transfer had left.
    octets: int = 0
    seconds: float = 0.0
    #: Kind of the session's channel: "rd", "rc", "ud" or "tcp".
    channel: str = ""
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Add what another transfer has done."""
        self.files += other.files
        self.skipped += other.skipped
        self.deleted += other.deleted
        self.octets += other.octets
        self.seconds += other.seconds
        self.channel = other.channel
        self.failures += other.failures


class _Request:
    """A request that waits for its answer."""

    def __init__(self) -> None:
        self.done: asyncio.Future[wire.RequestDone] = asyncio.get_running_loop().create_future()
        self.entries: list[Entry] = []

    def process_answer(self, record: Record) -> None:
        message = wire.parse_message(record)
        if self.done.done():
            return
        if isinstance(message, wire.RequestDone):
            self.done.set_result(message)
        elif isinstance(message, wire.Error):
            self.done.set_exception(ADTSError(message.code, message.text))
        elif isinstance(message, wire.Entry):
            self.entries.append(
                Entry(
                    os.fsdecode(message.path),
                    message.kind,
                    message.size,
                    message.mtime_ns,
                    message.mode,
                    os.fsdecode(message.target),
                )
            )


class Session:
    """A session with a server; made by ``connect``. Only the loop's thread may use it.

    Transfers are made one after the other, over one connection. A failure of one file is in the
    result and does not end the session. If the session itself ends, its calls raise ``ADTSError``;
    the same call in a new session continues files that were interrupted. Cancelling a call ends the
    session.
    """

    def __init__(self, agreed: Agreement, calls: SystemCalls | None) -> None:
        is_apart = agreed.channel is not agreed.rendezvous
        self.channel = agreed.channel.name
        #: For each kind of channel that could not be opened, a sentence with the reason.
        self.refused = agreed.refused
        self._calls = calls
        self._disk = Disk()
        self._exchange = Exchange(
            agreed.channel,
            agreed.rendezvous if is_apart else None,
            self._disk,
            first=1,
            files=agreed.files,
            on_outcome=self._count_outcome,
        )
        self._fault: Exception | None = None
        self._turn = asyncio.Lock()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._result = Result()
        self._progress = Progress()
        self._callback: Callable[[Progress], None] | None = None
        self._plan: FilePlan | None = None
        self._plan_done: asyncio.Future[None] | None = None
        self._running = asyncio.ensure_future(self._run_exchange())

    async def _run_exchange(self) -> None:
        try:
            await self._exchange.run()
        except Exception as e:
            self._fault = e
            raise
        finally:
            for future in self._waiting:
                if not future.done():
                    future.set_exception(self._ended_error())

    def _ended_error(self) -> ADTSError:
        error = self._exchange.error
        if error is not None:
            return ADTSError(error.code, str(error.strerror))
        if self._fault is not None:
            text = f"the session ended by a fault of this program: {self._fault!r}"
            return ADTSError(ErrorCode.SHUTDOWN, text)
        return ADTSError(ErrorCode.SHUTDOWN, "the session has ended: open a new one")

    def _check_open(self) -> None:
        if self._running.done():
            raise self._ended_error()

    async def _wait_for_future(self, future: asyncio.Future[Any]) -> Any:
        """Wait for a future; raise an error if the session ends before."""
        self._check_open()
        self._waiting.add(future)
        try:
            return await future
        finally:
            self._waiting.discard(future)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session; transfers that are not complete fail."""
        if not self._running.done():
            self._exchange.close()
            # Closing must not wait forever for a peer that does not read.
            await asyncio.wait([self._running], timeout=2)
            self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    # ---- transfers

    @contextlib.asynccontextmanager
    async def _record_transfer(
        self, callback: Callable[[Progress], None] | None, total: int | None
    ) -> AsyncIterator[Result]:
        async with self._turn:
            began = system.monotonic()
            self._result = result = Result(channel=self.channel)
            self._progress = Progress(total=total)
            self._callback = callback
            try:
                yield result
            finally:
                result.seconds = system.monotonic() - began
                self._callback = None

    def _count_outcome(self, outcome: Outcome, is_sent: bool) -> None:
        self._result.files += outcome.done
        self._result.skipped += outcome.skipped
        self._result.octets += outcome.complete
        self._result.failures += outcome.failures
        progress = self._progress
        progress.files += outcome.done + outcome.skipped
        progress.octets += outcome.octets
        progress.path = outcome.path or progress.path
        if self._callback is not None and (outcome.octets or outcome.done or outcome.skipped):
            self._callback(progress)
        plan, done = self._plan, self._plan_done
        if plan is not None and plan.is_finished and done is not None and not done.done():
            done.set_result(None)

    async def put(
        self,
        source: Any,
        path: str,
        *,
        recursive: bool = False,
        update: bool = False,
        delete: bool = False,
        symlinks: bool = False,
        sync: bool = False,
        digest: DigestKind = DigestKind.CRC32C,
        progress: Callable[[Progress], None] | None = None,
    ) -> Result:
        """Send a file, a directory, an open binary file or memory.

        Args:
            source: a local path, an object with ``read``, or a buffer, which must not change until
                the file is sent. RC and RD send a writable buffer whose object permits weak
                references (a NumPy array, a memoryview) from its own memory, and copy others. Until
                the session ends, such an array cannot be resized in place.
            path: the path at the server, relative to its directory.
            recursive: send a directory with all below it.
            update: skip files whose size and time are equal at the server.
            delete: delete what the source directory does not have; only if nothing has failed.
            symlinks: send symbolic links as such; otherwise they are failures.
            sync: a file counts as transferred only when the server has written it, and its name, to
                stable storage (fsync); otherwise a crash of the receiving machine may lose it.
            digest: the kind of digest that the server compares.
            progress: called after each unit.

        Raises:
            ADTSError: the session has ended, or the source is a directory without ``recursive``.
            OSError: the source cannot be read.

        """
        self._check_open()
        options = _request_options(update=update, sync=sync)
        async with AsyncExitStack() as stack:
            origin = origin_of_memory_or_file(source)
            total: int | None = None
            if origin is not None:
                options &= ~Option.UPDATE
                plan = FilePlan(
                    origin, iter([origin.entry]), prefix=path, options=options, digest=digest
                )
                total = origin.entry.size
            else:
                tree, name = await self._open_containing_tree(source)
                stack.callback(tree.close)
                first = await self._disk.queue_call(tree.entry, name)
                if first.kind == FileKind.DIRECTORY and not recursive:
                    raise ADTSError(ErrorCode.KIND, f"{source} is a directory: give -r to copy it")
                if progress is not None:
                    total = sum(
                        e.size for e in await self._disk.queue_call(_local_entries, tree, name)
                    )
                plan = FilePlan(
                    tree,
                    entry_and_entries_below(tree, name, True),
                    base=name,
                    prefix=path,
                    options=options,
                    digest=digest,
                    symlinks=symlinks,
                )
            result = await stack.enter_async_context(self._record_transfer(progress, total))
            before: list[Entry] = []
            if delete and recursive:
                before = await self._list_entries_if_exist(path)
            await self._send_plan(plan)
            if before and not result.failures:
                here = await self._disk.queue_call(_local_entries, tree, name)
                await self._delete_paths(_surplus_paths(before, path, here, name), result)
            return result

    async def _send_plan(self, plan: FilePlan) -> None:
        self._plan = plan
        self._plan_done = done = asyncio.get_running_loop().create_future()
        self._exchange.sender.add_plan(plan)
        self._exchange.wake_writer()
        try:
            await self._wait_for_future(done)
        except asyncio.CancelledError:
            self._running.cancel()
            raise
        finally:
            self._plan = self._plan_done = None

    async def _open_containing_tree(self, source: str | os.PathLike[str]) -> tuple[Tree, str]:
        """Open the directory that contains a local file; return the directory and the file's name.

        A path that ends in a slash, or names no entry of its parent (``.``), is the root itself.
        """
        text = os.fspath(source)
        path = Path(text)
        if path.is_dir() and (path.name in {"", ".."} or text.endswith("/") or path.is_symlink()):
            return Tree(path, False, self._calls), ""
        return Tree(path.parent, False, self._calls), path.name

    async def get(
        self,
        path: str,
        target: Any,
        *,
        recursive: bool = False,
        update: bool = False,
        delete: bool = False,
        symlinks: bool = False,
        sync: bool = False,
        digest: DigestKind = DigestKind.CRC32C,
        progress: Callable[[Progress], None] | None = None,
    ) -> Result:
        """Receive a file or a directory.

        Args:
            path: the path at the server, relative to its directory; ``""`` is this directory.
            target: the local path of the file or directory, an object with ``write``, or a
                writable buffer, into which octets are copied from the units that arrive. To an
                object with ``write``, holes are written as zeros, of at most 1 GiB.
            recursive, update, delete, symlinks, sync, digest, progress: as for ``put``, with the
                ends exchanged.

        Raises:
            ADTSError: the session has ended, or the server refuses the request.
            OSError: the directory of the target does not exist.

        """
        self._check_open()
        options = _request_options(recursive=recursive, update=update, sync=sync)
        async with AsyncExitStack() as stack:
            tree: Tree | None = None
            name = ""
            destination: ObjectDestination | TreeDestination
            if isinstance(target, str | os.PathLike):
                where = Path(target)
                if recursive and not path and not where.exists():
                    where.mkdir()  # the server sends no entry for the directory that it serves
                is_root = where.is_dir()
                tree = Tree(where if is_root else where.parent, True, self._calls)
                stack.callback(tree.close)
                name = "" if is_root else where.name
                destination = TreeDestination(tree, path, name, symlinks=symlinks)
            else:
                destination = ObjectDestination(target, path)
                options &= ~Option.RESUME
            total = None
            if progress is not None:
                total = sum(entry.size for entry in await self.entries(path, recursive=recursive))
            result = await stack.enter_async_context(self._record_transfer(progress, total))
            await self._receive_files(wire.Get(os.fsencode(path), options, digest), destination)
            if delete and recursive and tree is not None and not result.failures:
                # The server's files are listed after the transfer, so that no file that was just
                # received is missing in the list and deleted.
                remote, failed = await self._list_entries(path, recursive)
                if failed:
                    text = "nothing was deleted, because the server cannot read all directories"
                    result.failures.append(Failure(path, ErrorCode.PERMISSION, text))
                    return result
                here = await self._disk.queue_call(_local_entries, tree, name)
                for surplus in _surplus_paths(here, name, remote, path):
                    await self._disk.queue_call(tree.delete, surplus)
                    result.deleted += 1
            return result

    async def _receive_files(
        self, message: Message, destination: ObjectDestination | TreeDestination
    ) -> None:
        receiver = self._exchange.receiver
        async with self._send_request(message) as (number, request):
            receiver.destinations[number] = destination
            try:
                await self._wait_for_future(request.done)
            finally:
                receiver.destinations.pop(number, None)

    # ---- requests

    @contextlib.asynccontextmanager
    async def _send_request(self, message: Message) -> AsyncIterator[tuple[int, _Request]]:
        self._check_open()
        if message.record_length() > self._exchange.channel.unit_size - wire.UNIT_HEADER_SIZE:
            raise ADTSError(
                ErrorCode.NAME,
                f"the path is too long for a channel of kind {self.channel.upper()}: use another "
                "channel, or serve a directory nearer to the file",
            )
        request = _Request()
        number = self._exchange.sender.take_transfer_id()
        self._exchange.requests[number] = request.process_answer
        try:
            self._exchange.post(message, number)
            yield number, request
        except asyncio.CancelledError:
            # Without the end of the session, the server would go on to send an answer that nobody
            # expects.
            self._running.cancel()
            raise
        finally:
            self._exchange.requests.pop(number, None)

    async def entries(self, path: str = "", *, recursive: bool = False) -> list[Entry]:
        """Return the entry of a path at the server; with ``recursive``, also the entries below it.

        Raises:
            ADTSError: the session has ended, or the path does not exist there.

        """
        return (await self._list_entries(path, recursive))[0]

    async def _list_entries(self, path: str, recursive: bool) -> tuple[list[Entry], int]:
        """Return the entries, and the number of those that the server could not list."""
        options = Option.RECURSIVE if recursive else Option(0)
        async with self._send_request(wire.List(os.fsencode(path), options)) as (_, request):
            done: wire.RequestDone = await self._wait_for_future(request.done)
            return request.entries, done.failed

    async def stat(self, path: str) -> Entry:
        """Return the entry of a path at the server. Raises ADTSError as ``entries`` does."""
        found = await self.entries(path)
        if not found:  # the server omits an entry that does not fit into a unit
            raise ADTSError(
                ErrorCode.NAME,
                f"{path}: its attributes do not fit into a unit of this session: use another "
                f"channel than {self.channel.upper()}",
            )
        return found[0]

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, or a directory that is empty unless ``recursive``, at the server.

        Raises:
            ADTSError: the session has ended, or the server refuses it.

        """
        options = Option.RECURSIVE if recursive else Option(0)
        async with self._send_request(wire.Delete(os.fsencode(path), options)) as (_, request):
            await self._wait_for_future(request.done)

    async def _list_entries_if_exist(self, path: str) -> list[Entry]:
        try:
            return await self.entries(path, recursive=True)
        except ADTSError as e:
            if e.code == ErrorCode.NOT_FOUND:
                return []
            raise

    async def _delete_paths(self, paths: list[str], result: Result) -> None:
        """Delete files and empty directories at the server, in the order of the paths."""
        for i in range(0, len(paths), REQUESTS):
            some = paths[i : i + REQUESTS]
            deleted = await asyncio.gather(*map(self.delete, some), return_exceptions=True)
            for path, done in zip(some, deleted, strict=True):
                if isinstance(done, ADTSError):
                    result.failures.append(Failure(path, done.code, str(done.strerror)))
                elif isinstance(done, BaseException):
                    raise done
                else:
                    result.deleted += 1


def _request_options(*, update: bool, sync: bool, recursive: bool = False) -> Option:
    return (
        Option.RESUME
        | (Option.UPDATE if update else Option.NONE)
        | (Option.SYNC if sync else Option.NONE)
        | (Option.RECURSIVE if recursive else Option.NONE)
    )


def _surplus_paths(
    entries: list[Entry], base: str, others: list[Entry], others_base: str
) -> list[str]:
    """Return the paths of entries that ``others`` lacks; each directory follows its contents."""
    kept = {_relative_path(entry.path, others_base) for entry in others}
    return [
        entry.path for entry in reversed(entries) if _relative_path(entry.path, base) not in kept
    ]


def _relative_path(path: str, base: str) -> str:
    return path[len(base) :].lstrip("/")


def _local_entries(tree: Tree, path: str) -> list[Entry]:
    return [
        entry for entry in entry_and_entries_below(tree, path, True) if isinstance(entry, Entry)
    ]


async def connect(
    address: Address,
    *,
    key: Key,
    channels: Sequence[str] = ("rd", "rc", "tcp"),
    limits: Limits | None = None,
    timeout: float = 10.0,
    calls: SystemCalls | None = None,
) -> Session:
    """Open a session with the server at (host, port).

    Args:
        address: that of the server's rendezvous.
        key: the server's key.
        channels: names of channels, in the order in which they are tried.
        limits: memory, and sizes of units.
        timeout: seconds within which the server must accept the connection.
        calls: the system calls on file contents; for tests.

    Raises:
        ADTSError: no server answers, it refuses this end, or no channel opens.
        ValueError: a channel's name is unknown.
        OSError: the host is unknown.

    """
    kinds = parse_channels(channels)
    host, port = address
    numeric = resolve_to_numeric(host)
    transport: Any = "rc" if system.simulated else "tcp"
    try:
        rendezvous = await endpoints.connect_rendezvous(transport, (numeric, port), timeout)
    except ChannelEnded as e:
        code = ErrorCode.TIMEOUT if e.cause == Cause.TIMEOUT else ErrorCode.CHANNEL
        raise ADTSError(code, e.reason) from None
    try:
        agreed = await initiate_session(rendezvous, numeric, key, kinds, limits or Limits())
    except BaseException:
        rendezvous.abort("the session did not begin")
        raise
    return Session(agreed, calls)
