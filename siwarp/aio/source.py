# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A device as used by one event loop: an open context, whose events wake tasks.

There is one open device per loop and device, with a completion queue and a CM channel: two
descriptors in the loop. Queue pairs share completion queues, and reserve room in them. The high
half of a completion's wr_id identifies its queue pair. The loop sleeps on the sockets of the
queue, and makes the progress itself: a second thread would cost each message two wake-ups. A
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
from siwarp.verbs import CQ, WC, Context, Error, StateError, source_toward

__all__ = ["Admission", "CancelSafeQueue", "OpenDevice", "OpenDeviceUser", "Queue"]

#: Capacity of a shared completion queue, and number of completions handled in one turn of the loop.
QUEUE_SIZE = 4096
BATCH = 64

#: Called for each completion with its slot (the low 32 bits of its wr_id) and the completion.
Handler = Callable[[int, WC], None]


class Queue:
    """A completion queue shared by many queue pairs; each queue pair reserves entries for all its
    requests.

    The loop watches the descriptor of the queue, and its thread makes the progress.
    """

    def __init__(self, source: OpenDevice, size: int) -> None:
        self._source = source
        self.cq = CQ(source.context, size)
        self.room = self.cq.capacity
        self.handlers: dict[int, Handler] = {}
        self._next = 0
        self.fd = self.cq.wait_fileno()
        source.loop.add_reader(self.fd, self._make_progress_and_dispatch)
        self._make_progress_and_dispatch()  # also arms the completion queue

    def reserve(self, room: int, handler: Handler) -> int:
        """Reserve entries for a queue pair; return its key in the high 32 bits of wr_id."""
        self.room -= room
        self._next += 1
        self.handlers[self._next] = handler
        return self._next << 32

    def release(self, key: int, room: int) -> None:
        """Release the entries that the queue pair with this key has reserved."""
        del self.handlers[key >> 32]
        self.room += room

    def handle_pending_completions(self) -> None:
        """Handle the completions that are in the queue now, without making progress."""
        while self.cq.pending:
            self._dispatch_completions_to_handlers(self.cq.poll(BATCH))

    def _make_progress_and_dispatch(self) -> None:
        """Make progress and handle up to ``BATCH`` completions; other tasks run before the next
        ones.
        """
        if self.cq.closed:
            return
        try:
            wcs = self.cq.poll_and_arm(BATCH)
        except Error as e:
            self._source.handle_channel_error(e)
            return
        self._dispatch_completions_to_handlers(wcs)
        if len(wcs) == BATCH:
            self._source.loop.call_soon(self._make_progress_and_dispatch)

    def _dispatch_completions_to_handlers(self, wcs: list[WC]) -> None:
        handlers = self.handlers
        for wc in wcs:
            handler = handlers.get(wc[0] >> 32)
            if handler is not None:
                handler(wc[0] & 0xFFFFFFFF, wc)


class _Device(Context):
    """The context of a device; a forced close of the device is reported to the ``OpenDevice``."""

    __slots__ = ("source",)

    source: OpenDevice

    def _wake_all_waiters(self) -> None:
        # The thread that closes the device waits until this callback is removed.
        self._add_wake_callback(self.source.handle_forced_close)
        super()._wake_all_waiters()


class OpenDevice:
    """An open device, as used by one event loop; the device closes with its last user."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str) -> None:
        self.loop = loop
        self.users = 0
        #: Open objects on the device, in the order of their creation.
        self.members: dict[OpenDeviceUser, None] = {}
        #: Reason why the device was lost: a forced close or, in a simulated world, a crash of its
        #: host.
        self.lost: Error | None = None
        self.gone: asyncio.Future[None] | None = None
        self.context = _Device(host)
        self.context.source = self
        try:
            self.cm = CMEventChannel(self.context)
            self._queues = [Queue(self, QUEUE_SIZE)]
        except BaseException:
            self.context.__exit__(None, None, None)
            raise
        self._cm_fd = self.cm.fileno()
        loop.add_reader(self._cm_fd, self._on_cm_events)

    @classmethod
    def get_for_address(cls, host: str) -> OpenDevice:
        """Return the loop's ``OpenDevice`` for a device address; the caller must ``release`` it."""
        loop = running_loop()
        here = _sources.setdefault(loop, {})
        source = here.get(host)
        if source is None:
            source = here[host] = cls(loop, host)
            # All addresses of a device share one ``OpenDevice``.
            for known in set(here.values()) - {source}:
                if known.context.name == source.context.name:
                    source._start_closing_device()
                    source = here[host] = known
                    break
        source.users += 1
        return source

    @classmethod
    async def get_for_peer(cls, host: str, port: int) -> tuple[OpenDevice, str]:
        """Return the loop's ``OpenDevice`` for the device that reaches a peer, and the peer's
        numeric address.
        """
        numeric = await _resolve_host(host, port)
        return cls.get_for_address(source_toward((numeric, port))), numeric

    @classmethod
    async def get_for_host(cls, host: str) -> tuple[OpenDevice, str]:
        """Return the loop's ``OpenDevice`` for the device with a host's address, and that numeric
        address.
        """
        numeric = await _resolve_host(host, 9)
        return cls.get_for_address(numeric), numeric

    def find_or_create_cq(self, room: int) -> Queue:
        """Return a completion queue with ``room`` free entries; create one if necessary."""
        for queue in self._queues:
            if queue.room >= room:
                return queue
        queue = Queue(self, max(QUEUE_SIZE, room))
        self._queues.append(queue)
        return queue

    def release(self) -> None:
        """Remove one user; after the last user the device closes (``wait_closed`` waits for the
        close).
        """
        self.users -= 1
        if self.users == 0:
            here = _sources.get(self.loop, {})
            for host in [host for host, source in here.items() if source is self]:
                del here[host]
            self._start_closing_device()

    def _stop_watching_descriptors(self) -> None:
        for fd in (self._cm_fd, *(queue.fd for queue in self._queues)):
            with contextlib.suppress(RuntimeError):  # the event loop is already closed
                self.loop.remove_reader(fd)

    def _start_closing_device(self) -> None:
        self._stop_watching_descriptors()
        with contextlib.suppress(RuntimeError):
            self.gone = self.loop.create_future()
        # Closing the device may wait until the peers have ended their streams, and must not block
        # the loop.
        system.start_thread(self._close_device, "siwarp-aio-close")

    def _close_device(self) -> None:
        try:
            self.context.__exit__(None, None, None)
        finally:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._wake_tasks_waiting_for_close)

    def _wake_tasks_waiting_for_close(self) -> None:
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)

    async def wait_closed(self) -> None:
        """Wait until the device is closed, if its close has begun."""
        if self.gone is not None:
            await asyncio.shield(self.gone)

    def _on_cm_events(self) -> None:
        for _ in range(EVENTS_A_TURN):
            if not system.readable_now(self._cm_fd):
                return
            try:
                event = self.cm.get_event(0)
            except Error as e:
                self.handle_channel_error(e)
                return
            if event is None:
                return
            to = event.id.context if event.listen_id is None else event.listen_id.context
            if to is not None:
                to(event)

    def handle_channel_error(self, error: Error) -> None:
        """Close all members if the device was lost; raise any other error."""
        if error.errno != errno.ESTALE:
            raise error
        self.lost = error
        for member in list(self.members):
            member.close_nowait()

    def handle_forced_close(self) -> None:
        """Close all members before a forced close of the device closes the descriptors that the
        loop watches; called by the thread that closes the device.
        """
        if asyncio._get_running_loop() is self.loop or not self.loop.is_running():
            self._close_members_of_closed_device()
        else:
            with contextlib.suppress(RuntimeError):  # the event loop is already closed
                self.loop.call_soon_threadsafe(self._close_members_of_closed_device)

    def _close_members_of_closed_device(self) -> None:
        self._stop_watching_descriptors()
        self.handle_channel_error(
            StateError(errno.ESTALE, "the device was closed by force: open it again")
        )
        self.context._remove_wake_callback(self.handle_forced_close)


_sources: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, OpenDevice]] = (
    weakref.WeakKeyDictionary()
)


async def _resolve_host(host: str, port: int) -> str:
    """Return a host's numeric address; the loop's resolver looks up names."""
    if ":" in host or all(c in "0123456789." for c in host):
        return host
    try:
        infos = await running_loop().getaddrinfo(host, port)
    except OSError as e:
        raise Error(errno.EHOSTUNREACH, f"cannot resolve {host!r}: {e} (check the name)") from None
    return str(infos[0][4][0])


U = TypeVar("U", bound="OpenDeviceUser")


class OpenDeviceUser(ABC):
    """Base class of the objects that use an ``OpenDevice``; ``async with`` closes them."""

    _source: OpenDevice

    def _make_lost_or_closed_error(self, number: int, text: str) -> Error:
        """Return the exception that calls raise after the object was closed."""
        return self._source.lost or StateError(number, text)

    @abstractmethod
    def close_nowait(self) -> None:
        """Close the object; do not wait for the device, which closes after its last user."""

    async def close(self) -> None:
        """Close as ``close_nowait`` does; wait for the device if the object was its last user."""
        self.close_nowait()
        await self._source.wait_closed()

    async def __aenter__(self: U) -> U:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Admission:
    """Admits up to ``room`` tasks at a time; other tasks wait in order. Cancellation loses no
    place.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a free place, and acquire it."""
        if self.try_acquire():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the task was admitted and cancelled at the same time
            else:
                with contextlib.suppress(ValueError):  # release() has already removed this waiter
                    self._waiting.remove(turn)
            raise

    def try_acquire(self) -> bool:
        """Acquire a free place without waiting; return whether there was one."""
        if not self.has_room():
            return False
        self._room -= 1
        return True

    def has_room(self) -> bool:
        """Return whether ``try_acquire`` would acquire a place."""
        return self._room > 0 and not self._waiting

    def release(self) -> None:
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


class CancelSafeQueue:
    """A queue of items; cancelling a waiting task loses no item."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.items: deque[Any] = deque()
        self._end: Callable[[], BaseException] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def put(self, item: Any) -> None:
        """Add an item and wake a waiting task."""
        self.items.append(item)
        self._wake_one_waiter()

    def set_end_of_items(self, why: Callable[[], BaseException]) -> None:
        """Record that no more items will follow, and the reason; only the first reason is kept."""
        if self._end is None:
            self._end = why
        while self._waiting:
            self._wake_one_waiter()

    def _wake_one_waiter(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def put_error(self, why: Callable[[], BaseException]) -> None:
        """Make one ``get`` call raise this exception; later items are not affected."""
        self.put(_Failure(why))

    async def get(self) -> Any:
        """Remove the oldest item and return it; wait for one, or raise the reason if none will
        follow.
        """
        while not self.items:
            if self._end is not None:
                raise self._end()
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    with contextlib.suppress(ValueError):  # put() has removed the waiter already
                        self._waiting.remove(waiter)
                elif self.items:
                    self._wake_one_waiter()  # wake another task for the item
                raise
        item = self.items.popleft()
        if isinstance(item, _Failure):
            raise item.why()
        return item
