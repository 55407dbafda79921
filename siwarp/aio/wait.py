# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Waiting for events of verbs objects: completions, connection events and asynchronous events."""

from __future__ import annotations

import asyncio
import errno
import weakref
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from siwarp.base import system
from siwarp.cm import CMEvent, CMEventChannel
from siwarp.verbs import CQ, WC, AsyncEvent, CompChannel, Context, Error, StateError
from siwarp.verbs._ffi import Waitable

__all__ = ["EVENTS_A_TURN", "async_event", "cm_event", "completions", "running_loop", "wait"]

T = TypeVar("T")

#: Number of events handled before the loop continues with other work.
EVENTS_A_TURN = 64

# For each event loop: the channels that the loop watches, and the waits on each channel.
_watched: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Waitable, set[_Wait]]] = (
    weakref.WeakKeyDictionary()
)


class _Wait:
    """One task's wait on a channel, registered at creation; arm the queue only after that.

    The loop watches the channel's descriptor while any task waits on the channel. The loop itself
    gets the events of completion queues, and wakes the tasks that wait for the queue, so that no
    task consumes an event for which another task waits.
    """

    def __init__(self, channel: Waitable, about: CQ | None = None) -> None:
        self._channel = channel
        self._loop = running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()
        self._here = _watched.setdefault(self._loop, {})
        self._fd = channel.fileno()
        others = self._here.get(channel)
        if others is None:
            others = self._here[channel] = set()
            if isinstance(channel, CompChannel):
                self._loop.add_reader(self._fd, _dispatch_events, channel)
            else:
                self._loop.add_reader(self._fd, channel._wake_waiters)
        others.add(self)
        channel._add_wake_callback(self._wake_from_any_thread, about)

    def _wake_from_any_thread(self) -> None:
        """Wake the task; called by the thread that got the event, which may be any thread."""
        if self._loop.is_closed():
            self._channel._remove_wake_callback(self._wake_from_any_thread)
        elif asyncio._get_running_loop() is self._loop or not self._loop.is_running():
            self._end_wait()
        else:
            try:
                self._loop.call_soon_threadsafe(self._end_wait)
            except RuntimeError:  # the loop was closed in the meantime
                self._channel._remove_wake_callback(self._wake_from_any_thread)

    def _end_wait(self) -> None:
        self.deregister()
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait_for_event(self) -> None:
        """Wait until the channel may have an event."""
        await self._woken

    def deregister(self) -> None:
        """End the wait; the loop stops watching a channel after its last wait.

        A thread that closes the channel waits until the loop has stopped watching it.
        """
        others = self._here.get(self._channel, set())
        if self in others:
            others.discard(self)
            if not others:
                del self._here[self._channel]
                self._loop.remove_reader(self._fd)
        self._channel._remove_wake_callback(self._wake_from_any_thread)


def _dispatch_events(channel: CompChannel) -> None:
    """Get the pending events of a channel, which wakes the tasks that wait for them."""
    for _ in range(EVENTS_A_TURN):
        if channel.closed:
            return
        try:
            which = channel.get_cq_event(0) if system.readable_now(channel.fileno()) else None
        except Error:
            # The device was lost: the next call of each task raises the error.
            channel._wake_waiters()
            return
        if which is None:
            return
        which.ack_events(1)


async def wait(cq: CQ, num_entries: int = 16) -> list[WC]:
    """Wait for completions; return at least one, and at most ``num_entries``.

    The queue needs a channel, which any number of queues and tasks may share. Cancellation loses no
    completion.

    Raises:
        StateError: the queue has no channel, or is closed, possibly while waiting.

    """
    channel = cq.channel
    if channel is None:
        raise StateError(
            errno.EINVAL, f"{cq!r} has no channel: make it with channel=CompChannel(context)"
        )
    while True:
        if cq.pending and (wcs := cq.poll(num_entries)):
            return wcs
        mine = _Wait(channel, cq)
        try:
            cq.req_notify()
            if not cq.pending:
                await mine.wait_for_event()
        finally:
            mine.deregister()


async def completions(cq: CQ, num_entries: int = 16) -> AsyncIterator[list[WC]]:
    """Yield batches of completions, each of 1 to ``num_entries``, without end."""
    while True:
        yield await wait(cq, num_entries)


async def _next_event(channel: Waitable, get_event: Callable[[], T | None]) -> T:
    """Wait for the next event; ``get_event`` returns one without waiting, or None."""
    while True:
        if system.readable_now(channel.fileno()):
            event = get_event()
            if event is not None:
                return event
        mine = _Wait(channel)
        try:
            await mine.wait_for_event()
        finally:
            mine.deregister()


async def cm_event(channel: CMEventChannel) -> CMEvent:
    """Wait for the next connection manager event. Cancellation loses no event.

    Raises:
        StateError: the channel is closed, possibly while waiting.

    """
    return await _next_event(channel, lambda: channel.get_event(0))


async def async_event(context: Context) -> AsyncEvent:
    """Wait for the next asynchronous event of an open device, for example SRQ_LIMIT_REACHED.

    Acknowledge every event (``AsyncEvent.ack``, or a ``with`` block). If several tasks wait on a
    device, one of them gets the event. Cancellation loses no event.

    Raises:
        StateError: the device is closed, possibly while waiting.

    """
    return await _next_event(context, lambda: context.get_async_event(0))


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs in this thread.

    Raises:
        RuntimeError: no loop runs in this thread, or the process is simulated and the loop is not a
            world's.

    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "siwarp.aio requires a running event loop: asyncio.run(main()); siwarp.connect and "
            "siwarp.listen work without one"
        ) from None
    system.check_loop(loop)
    return loop
