# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A server of one directory: admits sessions, and answers their requests."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from siwarp.base import system
from siwarp.base.numeric import resolve_to_numeric
from siwarp.ulp.adts import endpoints, wire
from siwarp.ulp.adts.auth import Key
from siwarp.ulp.adts.channel import Acceptor, Channel, ChannelEnded, Limits
from siwarp.ulp.adts.disk import Disk
from siwarp.ulp.adts.endpoints import SESSIONS
from siwarp.ulp.adts.handshake import Agreement, admit_initiator, parse_channels
from siwarp.ulp.adts.session import (
    ADTSError,
    Exchange,
    format_address,
    send_message,
)
from siwarp.ulp.adts.transfer import (
    Failure,
    FilePlan,
    ListPlan,
    Outcome,
    clip_error_text,
    error_code,
    failure_of_os_error,
)
from siwarp.ulp.adts.tree import Entry, SystemCalls, Tree
from siwarp.ulp.adts.wire import (
    DEFAULT_PORT,
    ChannelKind,
    ErrorCode,
    FileKind,
    Option,
    Record,
)
from siwarp.verbs import Address

__all__ = ["SESSIONS", "Server", "entry_and_entries_below", "serve"]

#: Maximum number of peers that have not yet proved that they know the key. One more displaces the
#: one that has been waiting longest, so that peers that send nothing never keep others out.
STRANGERS = 256
#: Maximum number of requests of one session that wait for an earlier request.
REQUESTS = 256


def entry_and_entries_below(tree: Tree, path: str, recursive: bool) -> Iterator[Entry | Failure]:
    """Yield an entry, with ``recursive`` also those below it; a Failure if one cannot be read."""
    try:
        walk = tree.walk(path)
        if not recursive:
            yield next(walk)
            return
    except OSError as e:
        yield failure_of_os_error(path, e)
        return
    while True:
        try:
            yield next(walk)
        except StopIteration:
            return
        except OSError as e:
            yield failure_of_os_error(path, e)


class Server:
    """A server of one directory; made by ``serve``.

    ``async with`` starts and closes it.
    """

    def __init__(
        self,
        tree: Tree,
        key: Key,
        kinds: tuple[ChannelKind, ...],
        limits: Limits,
        on_event: Callable[[str], None] | None,
    ) -> None:
        self.tree = tree
        self.key = key
        #: The address of the rendezvous.
        self.address: Address = ("", 0)
        #: Sessions that are open.
        self.sessions = 0
        self._kinds = kinds
        self._limits = limits
        self._on_event = on_event
        self._acceptors: dict[ChannelKind, Acceptor] = {}
        self._opened: endpoints.Acceptors | None = None
        self._listener: endpoints.Listener | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._exchanges: dict[Exchange, None] = {}
        self._throttled: list[Exchange] = []
        #: Tasks of peers that have not proved that they know the key, oldest first.
        self._strangers: dict[asyncio.Task[None], Channel] = {}
        self._told_at = float("-inf")
        self._untold = 0
        self._threads = None if system.simulated else Disk.make_threads()
        #: The function that creates the ``Disk`` of each session; tests replace it to simulate a
        #: slow disk.
        self.make_disk: Callable[[], Disk] = lambda: Disk(self._threads)

    async def _start(self, address: Address) -> None:
        host, port = address
        numeric = resolve_to_numeric(host)
        if set(self._kinds) != {ChannelKind.TCP}:
            self._opened = await endpoints.open_acceptors(
                numeric, self._limits, self._pause_or_resume_busiest_sessions
            )
            self._acceptors = {
                ChannelKind.RD: self._opened.rd,
                ChannelKind.RC: self._opened.rc,
                ChannelKind.UD: self._opened.ud,
            }
        transport: Any = "rc" if system.simulated else "tcp"
        try:
            self._listener = await endpoints.listen_for_rendezvous(
                transport, (numeric, port), self._accept_rendezvous
            )
        except BaseException:
            await self.close()
            raise
        self.address = self._listener.address

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all sessions, stop listening and close the directory."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._opened is not None:
            await self._opened.close()
            self._opened = None
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        self.tree.close()

    def _report_event(self, text: str) -> None:
        if self._on_event is not None:
            self._on_event(text)

    def _report_stranger(self, text: str) -> None:
        """Report an event about a peer without a proof; at most one such report a second."""
        now = system.monotonic()
        if now - self._told_at < 1:
            self._untold += 1
            return
        more = f" ({self._untold} similar events before)" if self._untold else ""
        self._told_at, self._untold = now, 0
        self._report_event(text + more)

    def _pause_or_resume_busiest_sessions(self, is_scarce: bool) -> None:
        """Pause the half of the sessions that have sent most; resume it if not ``is_scarce``."""
        if is_scarce:
            busy = [e for e in self._exchanges if e.receiver.open_transfer_count]
            busy.sort(key=lambda e: e.channel.received_octets, reverse=True)
            self._throttled = busy[: (len(busy) + 1) // 2]
        for exchange in self._throttled:
            exchange.set_peer_paused("receives", is_scarce)

    # ---- admission

    def _accept_rendezvous(self, rendezvous: Channel) -> None:
        if len(self._strangers) >= STRANGERS:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).abort("displaced by other peers: try again")
        task = asyncio.ensure_future(self._serve_peer(rendezvous))
        self._tasks[task] = None
        self._strangers[task] = rendezvous
        task.add_done_callback(self._forget_ended_task)

    def _forget_ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._strangers.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report_event(f"a session ended by a fault of this program: {error!r}")

    async def _serve_peer(self, rendezvous: Channel) -> None:
        peer = format_address(rendezvous.peer)
        task: Any = asyncio.current_task()
        is_counted = False

        def count_session() -> None:
            nonlocal is_counted
            self._strangers.pop(task, None)
            if self.sessions >= SESSIONS:
                raise ADTSError(
                    ErrorCode.BUSY,
                    f"the server has {SESSIONS} sessions, its limit: try again later",
                )
            self.sessions += 1
            is_counted = True

        try:
            agreed = await admit_initiator(
                rendezvous, self.key, self._kinds, self._acceptors, self._limits, count_session
            )
            await self._run_session(agreed, peer)
        except ADTSError as e:
            self._report_stranger(f"{peer}: refused: {e.strerror}")
            await _report_refusal_and_close(
                rendezvous, wire.Error(e.code, clip_error_text(str(e.strerror)))
            )
        except wire.WireError as e:
            self._report_stranger(f"{peer}: refused: it does not speak ADTS: {e}")
            await _report_refusal_and_close(
                rendezvous, wire.Error(ErrorCode.PROTOCOL, clip_error_text(str(e)))
            )
        except ChannelEnded as e:
            self._report_stranger(f"{peer}: no session: {e.reason}")
        finally:
            self.sessions -= is_counted
            rendezvous.abort("the session has ended")

    async def _run_session(self, agreed: Agreement, peer: str) -> None:
        served = _Served(self, agreed)
        self._report_event(f"{peer}: session over {agreed.channel.name}")
        self._exchanges[served.exchange] = None
        try:
            await served.exchange.run()
        finally:
            del self._exchanges[served.exchange]
        error = served.exchange.error
        counts = f"{served.sent} files sent, {served.received} received, {served.failed} failed"
        ending = f": {error.strerror}" if error is not None else ""
        self._report_event(f"{peer}: session ended, {counts}{ending}")


async def _report_refusal_and_close(rendezvous: Channel, message: wire.Message) -> None:
    """Send the peer the reason of its refusal, if that is possible within a second."""
    with contextlib.suppress(ChannelEnded, asyncio.TimeoutError, wire.WireError):
        await asyncio.wait_for(send_message(rendezvous, message), 1)
        await asyncio.wait_for(rendezvous.close("the peer was refused"), 1)


class _Served:
    """One session of the server."""

    def __init__(self, server: Server, agreed: Agreement) -> None:
        self._tree = server.tree
        self._disk = server.make_disk()
        is_apart = agreed.channel is not agreed.rendezvous
        self.exchange = Exchange(
            agreed.channel,
            agreed.rendezvous if is_apart else None,
            self._disk,
            first=2,
            files=agreed.files,
            idle=agreed.idle,
            on_request=self._answer_request,
            on_outcome=self._count_outcome,
        )
        self.exchange.receiver.destinations[0] = server.tree
        self.sent = self.received = self.failed = 0
        self._requests = 0

    def _count_outcome(self, outcome: Outcome, is_sent: bool) -> None:
        if is_sent:
            self.sent += outcome.done
        else:
            self.received += outcome.done
        self.failed += len(outcome.failures)

    def _answer_request(self, record: Record) -> None:
        if self._requests + self.exchange.sender.waiting_plan_count >= REQUESTS:
            self._refuse_request(
                record.transfer, ErrorCode.BUSY, f"more than {REQUESTS} requests wait"
            )
            return
        self._requests += 1
        message = wire.parse_message(record)
        match message:
            case wire.Delete():
                done = self._disk.queue_call(
                    self._delete_path, os.fsdecode(message.path), message.options
                )
                done.add_done_callback(lambda done: self._answer_delete(record.transfer, done))
            case wire.List() | wire.Get():
                self._disk.queue_call(
                    self._make_answer_plan, message, record.transfer
                ).add_done_callback(lambda done: self._begin_answer(record.transfer, done))

    def _make_answer_plan(self, message: wire.List | wire.Get, request: int) -> FilePlan | ListPlan:
        """Return the plan that answers a request. Raises OSError if the path cannot be read."""
        path = os.fsdecode(message.path)
        recursive = bool(message.options & Option.RECURSIVE)
        first = self._tree.entry(path)
        entries = entry_and_entries_below(self._tree, path, recursive)
        if isinstance(message, wire.List):
            return ListPlan(entries, request)
        if first.kind == FileKind.DIRECTORY and not recursive:
            raise OSError(errno.EISDIR, f"{path or '.'} is a directory: give -r to copy it")
        return FilePlan(
            self._tree,
            entries,
            base=path,
            prefix=path,
            options=message.options & (Option.UPDATE | Option.RESUME | Option.SYNC),
            digest=message.digest,
            request=request,
            symlinks=True,
        )

    def _begin_answer(self, request: int, done: asyncio.Future[FilePlan | ListPlan]) -> None:
        self._requests -= 1
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.exchange.sender.add_plan(done.result())
            self.exchange.wake_writer()
        elif isinstance(error, OSError):
            self._refuse_request(request, error_code(error), error.strerror or str(error))
        else:
            raise error

    def _delete_path(self, path: str, options: Option) -> int:
        deleted = 0
        if options & Option.RECURSIVE:
            for entry in reversed(list(entry_and_entries_below(self._tree, path, True))):
                if isinstance(entry, Entry):
                    self._tree.delete(entry.path)
                    deleted += 1
            return deleted
        self._tree.delete(path)
        return 1

    def _answer_delete(self, request: int, done: asyncio.Future[int]) -> None:
        self._requests -= 1
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.exchange.post(wire.RequestDone(done.result()), request)
        elif isinstance(error, OSError):
            self._refuse_request(request, error_code(error), error.strerror or str(error))
        else:
            raise error

    def _refuse_request(self, request: int, code: ErrorCode, text: str) -> None:
        self.exchange.post(wire.Error(code, clip_error_text(text)), request)


async def serve(
    root: str | os.PathLike[str],
    address: Address = ("127.0.0.1", DEFAULT_PORT),
    *,
    key: Key,
    writable: bool = False,
    channels: Sequence[str] = ("rd", "rc", "ud", "tcp"),
    limits: Limits | None = None,
    on_event: Callable[[str], None] | None = None,
    calls: SystemCalls | None = None,
) -> Server:
    """Serve a directory at (host, port) of this machine; port 0: a free port.

    Args:
        root: the directory; nothing outside of it is read or written.
        address: the rendezvous; RD, RC and UD use free ports of the same host.
        key: admits only peers that know it.
        writable: whether peers may create, replace and delete files.
        channels: names of channels, preferred ones first.
        limits: memory, and sizes of units.
        on_event: called with a sentence for each session that begins, ends or is refused.
        calls: the system calls on file contents; for tests.

    Raises:
        OSError: the root is not a directory, or the address is not free or not of this machine.
        ValueError: a channel's name is unknown.

    """
    kinds = parse_channels(channels)
    if system.simulated:
        kinds = tuple(kind for kind in kinds if kind != ChannelKind.TCP)
    server = Server(Tree(root, writable, calls), key, kinds, limits or Limits(), on_event)
    try:
        await server._start(address)
    except BaseException:
        server.tree.close()
        raise
    return server
