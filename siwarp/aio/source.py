# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A device as used by one event loop: an open context, whose events wake tasks.

There is one open device per loop and device, with a completion channel and a CM channel: two
descriptors in the loop. Queue pairs share completion queues, and reserve room in them. The high
half of a completion's wr_id identifies its queue pair. The loop checks how many completions are
pending and polls only for those, since an empty poll would make the device's thread sleep. A
device is closed in a separate thread, since closing may take time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from siwarp.aio.wait import EVENTS_A_TURN, running_loop
from siwarp.base import system
from siwarp.cm import CMEventChannel
from siwarp.verbs import CQ, WC, CompChannel, Context, Error, StateError, source_toward

__all__ = ["Admission", "Inbox", "Queue", "Source", "User"]

#: Capacity of a shared completion queue, and number of completions polled at a time.
QUEUE_SIZE = 4096
BATCH = 256

#: Called for each completion with its slot (the low 32 bits of its wr_id) and the completion.
Handler = Callable[[int, WC], None]


class Queue:
    """A completion queue shared by many queue pairs; each reserves room for all its requests."""

    def __init__(self, source: Source, size: int) -> None:
        self.cq = CQ(source.context, size, cq_context=self, channel=source.channel)
        self.room = self.cq.capacity
        self.handlers: dict[int, Handler] = {}
        #: Number of tasks that wait for a completion here; the queue is armed while it is not 0.
        self.wanted = 0
        self._armed = False
        self._next = 0

    def join(self, room: int, handler: Handler) -> int:
        """Reserve room; return the queue pair's key, shifted to the high 32 bits of wr_id."""
        self.room -= room
        self._next += 1
        self.handlers[self._next] = handler
        return self._next << 32

    def leave(self, key: int, room: int) -> None:
        """Release the reserved room."""
        del self.handlers[key >> 32]
        self.room += room

    def drain(self) -> None:
        """Handle the pending completions; the device's thread continues to make progress."""
        while self.cq.pending:
            for wc in self.cq.poll(BATCH):
                handler = self.handlers.get(wc.wr_id >> 32)
                if handler is not None:
                    handler(wc.wr_id & 0xFFFFFFFF, wc)

    def want(self) -> None:
        """Arm the queue for a new waiter, and handle completions that preceded the arming."""
        if not self._armed:
            self._armed = True
            self.cq.req_notify()
            self.drain()

    def event(self) -> None:
        """Handle an event of the completion queue."""
        self._armed = False
        self.cq.ack_events(1)
        self.drain()
        if self.wanted:
            self.want()


class Source:
    """An open device, as used by one loop; it closes with its last user."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str) -> None:
        self.loop = loop
        self.users = 0
        #: Open objects on the device, in the order of their creation.
        self.members: dict[User, None] = {}
        #: Reason why the device was lost: a forced close or, in a simulated world, a crash of its
        #: host.
        self.lost: Error | None = None
        self.gone: asyncio.Future[None] | None = None
        self.context = Context(host)
        try:
            self.channel = CompChannel(self.context)
            self.cm = CMEventChannel(self.context)
        except BaseException:
            self.context.__exit__(None, None, None)
            raise
        self._queues: list[Queue] = []
        self._fds = self.channel.fileno(), self.cm.fileno()
        loop.add_reader(self._fds[0], self._on_completions)
        loop.add_reader(self._fds[1], self._on_connections)

    @classmethod
    def of(cls, host: str) -> Source:
        """Return the running loop's source for an address; the caller must ``leave`` the source."""
        loop = running_loop()
        here = _sources.setdefault(loop, {})
        source = here.get(host)
        if source is None:
            source = here[host] = cls(loop, host)
            # All addresses of a device share its source.
            for known in set(here.values()) - {source}:
                if known.context.name == source.context.name:
                    source._retire()
                    source = here[host] = known
                    break
        source.users += 1
        return source

    @classmethod
    async def toward(cls, host: str, port: int) -> tuple[Source, str]:
        """Return the loop's source for the device that reaches a peer, and the peer's address."""
        numeric = await _numeric(host, port)
        return cls.of(source_toward((numeric, port))), numeric

    @classmethod
    async def at(cls, host: str) -> tuple[Source, str]:
        """Return the loop's source for the device with an address, and the numeric address."""
        numeric = await _numeric(host, 9)
        return cls.of(numeric), numeric

    def queue(self, room: int) -> Queue:
        """Return a completion queue with at least this much room."""
        for queue in self._queues:
            if queue.room >= room:
                return queue
        queue = Queue(self, max(QUEUE_SIZE, room))
        self._queues.append(queue)
        return queue

    def leave(self) -> None:
        """Remove one user; after the last one the device closes, and ``closed`` waits for that."""
        self.users -= 1
        if self.users == 0:
            here = _sources.get(self.loop, {})
            for host in [host for host, source in here.items() if source is self]:
                del here[host]
            self._retire()

    def _retire(self) -> None:
        for fd in self._fds:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self.loop.remove_reader(fd)
        with contextlib.suppress(RuntimeError):
            self.gone = self.loop.create_future()
        # Closing may wait until the peers have ended their streams, and must not block the loop.
        system.start_thread(self._close, "siwarp-aio-close")

    def _close(self) -> None:
        try:
            self.context.__exit__(None, None, None)
        finally:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._closed)

    def _closed(self) -> None:
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)

    async def closed(self) -> None:
        """Wait until the device is closed, if it is being closed."""
        if self.gone is not None:
            await asyncio.shield(self.gone)

    def _on_completions(self) -> None:
        for _ in range(EVENTS_A_TURN):
            if not system.readable_now(self._fds[0]):
                return
            try:
                cq = self.channel.get_cq_event(0)
            except Error as e:
                self._lose(e)
                return
            if cq is None:
                return
            cq.cq_context.event()

    def _on_connections(self) -> None:
        for _ in range(EVENTS_A_TURN):
            if not system.readable_now(self._fds[1]):
                return
            try:
                event = self.cm.get_event(0)
            except Error as e:
                self._lose(e)
                return
            if event is None:
                return
            to = event.id.context if event.listen_id is None else event.listen_id.context
            if to is not None:
                to(event)

    def _lose(self, error: Error) -> None:
        if error.errno != errno.ESTALE:
            raise error
        self.lost = error
        for member in list(self.members):
            member.abandon()


_sources: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Source]] = (
    weakref.WeakKeyDictionary()
)


async def _numeric(host: str, port: int) -> str:
    """Return a host's numeric address; the loop's resolver looks up names."""
    if ":" in host or all(c in "0123456789." for c in host):
        return host
    try:
        infos = await running_loop().getaddrinfo(host, port)
    except OSError as e:
        raise Error(errno.EHOSTUNREACH, f"cannot resolve {host!r}: {e} (check the name)") from None
    return str(infos[0][4][0])


U = TypeVar("U", bound="User")


class User(ABC):
    """Base class of the users of a source: ``async with`` closes a user."""

    _source: Source

    def _closed_error(self, number: int, text: str) -> Error:
        """Return the exception that calls raise after the close."""
        return self._source.lost or StateError(number, text)

    @abstractmethod
    def abandon(self) -> None:
        """Close at once; do not wait for the device, which closes after its last user."""

    async def close(self) -> None:
        """Close as ``abandon`` does, and wait for the device if this was its last user."""
        self.abandon()
        await self._source.closed()

    async def __aenter__(self: U) -> U:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Admission:
    """Admits a number of tasks at a time; others wait in order. Cancellation loses no place."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait for a free place, and take it."""
        if self._room > 0 and not self._waiting:
            self._room -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # admitted and cancelled at the same time
            else:
                with contextlib.suppress(ValueError):  # its turn was already removed from the list
                    self._waiting.remove(turn)
            raise

    def leave(self) -> None:
        """Release the place, and admit the next task."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._room += 1


class _Failure:
    """A queue entry that makes ``get`` raise an exception."""

    def __init__(self, why: Callable[[], BaseException]) -> None:
        self.why = why


class Inbox:
    """A queue of items; cancelling a waiting task loses no item."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self._end: Callable[[], BaseException] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def put(self, item: Any) -> None:
        """Add an item and wake a waiting task."""
        self.items.append(item)
        self._wake_one()

    def end(self, why: Callable[[], BaseException]) -> None:
        """Record that no more items will follow, and the reason; only the first reason is kept."""
        if self._end is None:
            self._end = why
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _wake_one(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
                return

    def fail(self, why: Callable[[], BaseException]) -> None:
        """Make one ``get`` call raise this exception; later items are not affected."""
        self.put(_Failure(why))

    async def get(self) -> Any:
        """Wait for the oldest item and remove it; raise the reason if no more items will follow."""
        while not self.items:
            if self._end is not None:
                raise self._end()
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if self.items:
                    self._wake_one()  # pass the item that woke this task to another task
                raise
            finally:
                self._waiting.remove(waiter)
        item = self.items.popleft()
        if isinstance(item, _Failure):
            raise item.why()
        return item
