# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Awaiting what happens to objects of the verbs: completions, connection events."""

from __future__ import annotations

import asyncio
import errno
import select
import weakref
from collections.abc import AsyncIterator

from siwarp.cm import CMEvent, CMEventChannel
from siwarp.verbs import CQ, WC, StateError

__all__ = ["cm_event", "completions", "readable_now", "running_loop", "wait"]

# Of each loop: who waits for which descriptor.
_waiting: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[int, set[asyncio.Future[None]]]
] = weakref.WeakKeyDictionary()


def readable_now(fd: int) -> bool:
    """Whether a descriptor is readable at this moment."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _wake(waiters: set[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def _readable(fd: int) -> None:
    """Wait until a descriptor is readable; the loop forgets it when the last who waits is gone."""
    loop = asyncio.get_running_loop()
    here = _waiting.setdefault(loop, {})
    waiters = here.get(fd)
    if waiters is None:
        waiters = here[fd] = set()
        loop.add_reader(fd, _wake, waiters)
    mine = loop.create_future()
    waiters.add(mine)
    try:
        await mine
    finally:
        waiters.discard(mine)
        if not waiters and here.get(fd) is waiters:
            del here[fd]
            loop.remove_reader(fd)


async def wait(cq: CQ, num_entries: int = 16) -> list[WC]:
    """Wait for completions and take up to ``num_entries``; at least one.

    The queue needs a channel. Cancelling takes nothing.

    Raises:
        StateError: the queue has no channel, or is closed.

    """
    channel = cq.channel
    if channel is None:
        raise StateError(
            errno.EINVAL, f"{cq!r} has no channel: make it with channel=CompChannel(context)"
        )
    while True:
        if cq.waiting and (wcs := cq.poll(num_entries)):
            return wcs
        cq.req_notify()
        if cq.waiting:
            continue
        await _readable(channel.fileno())
        # Another task that waits on the channel may have taken the event; all of them look again.
        while readable_now(channel.fileno()):
            which = channel.get_cq_event(0)
            if which is None:
                break
            which.ack_events(1)


async def completions(cq: CQ, num_entries: int = 16) -> AsyncIterator[list[WC]]:
    """Give batches of completions, each of 1 to ``num_entries``, for ever."""
    while True:
        yield await wait(cq, num_entries)


async def cm_event(channel: CMEventChannel) -> CMEvent:
    """Wait for the next event of connections. Cancelling takes nothing."""
    while True:
        if readable_now(channel.fileno()):
            event = channel.get_event(0)
            if event is not None:
                return event
            continue
        await _readable(channel.fileno())


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the loop that runs, or say what to do.

    Raises:
        RuntimeError: none runs here.

    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "siwarp.aio works inside an event loop: asyncio.run(main()); siwarp.connect and its "
            "like work without one"
        ) from None
