# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""An open device that the RC, RD and UD channels of one event loop share.

A device has one completion queue, one CM channel and three tasks, which dispatch completions, CM
events and asynchronous events to the channels. There is no task and no future for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from siwarp import aio
from siwarp.cm import CMEventChannel
from siwarp.ulp.adts.channel import Cause
from siwarp.ulp.adts.memory import Pool, SplitPool, Units
from siwarp.ulp.adts.registrations import Registrations
from siwarp.verbs import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    WC,
    AccessFlag,
    CompChannel,
    Context,
    Error,
    EventType,
    RecvWR,
    SendFlag,
    SendWR,
    WCStatus,
)

__all__ = ["CONTROL_SIZE", "Device"]

#: Capacity of the completion queue: the sends and receives of all channels of a device.
CQ_SIZE = 65536
#: Seconds after which a channel whose peer takes no data is ended, if others need its memory.
STALL_S = 20.0
#: Maximum number of completions that one poll returns.
BATCH = 64
#: Largest unit that is sent inline: a grant unit, or a unit with RECLAIM or JOIN.
CONTROL_SIZE = 128


#: The completion that a handler gets for a request whose queue pair was closed.
_FLUSHED = WC(0, WCStatus.WR_FLUSH_ERR, 0, 0, 0, 0, 0, 0, 0, 0, 0, b"", b"")


class _ChannelOfDevice(Protocol):
    """A channel of the device."""

    stalled_since: float | None

    def abort(self, reason: str, cause: Cause = Cause.CLOSED) -> None: ...


class Device:
    """An open device with the memory of its channels. Only the loop's thread may use it.

    Raises:
        Error: ``host`` is not an address of this machine, or a resource is exhausted.

    """

    def __init__(self, host: str, memory: int, unit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.context = Context(host)
        try:
            self.pd = PD(self.context)
            self.cq = CQ(self.context, CQ_SIZE, channel=CompChannel(self.context))
            self.cm = CMEventChannel(self.context)
            self.pool = Pool(self.pd, memory, unit)
            self.registrations = Registrations(self.pd)
            #: Octets of the pool's memory that is used for receives (receives.py).
            self.receiving = 0
            #: The objects that divide the pool's units into smaller ones, by size.
            self.split: dict[int, SplitPool] = {}
            self.control = MR(self.pd, CONTROL_SIZE, AccessFlag(0))
        except BaseException:
            self.context.close(force=True)
            raise
        sge = self.control.sge(0, CONTROL_SIZE)
        self._control_wr = SendWR(sg=[sge], send_flags=SendFlag.SIGNALED | SendFlag.INLINE)
        #: Whether a shared receive queue needed memory when none was free.
        self.memory_short = False
        #: Open channels, in the order of their creation.
        self.members: dict[_ChannelOfDevice, None] = {}
        #: The function that handles the completion of each request, by wr_id: an entry for a
        #: receive stays, and one for a send is removed when the send completes.
        self._on_receive: dict[int, Callable[[WC], None]] = {}
        self._on_send: dict[int, Callable[[WC], None]] = {}
        self._numbers = itertools.count(1)
        #: The function that gets the type of each asynchronous event, by the object of the event.
        self.on_event: dict[QP | SRQ, Callable[[EventType], None]] = {}
        self._lost = False
        self._gone: asyncio.Future[None] | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._tasks = [
            self._loop.create_task(self._run_dispatcher(run, f"adts-{name}"))
            for name, run in (
                ("completions", self._dispatch_completions),
                ("cm", self._dispatch_cm_events),
                ("events", self._dispatch_events),
            )
        ]

    @property
    def closed(self) -> bool:
        """Whether the device is lost, closed, or being closed."""
        return self._lost or self._gone is not None

    def unit_pool_of_size(self, size: int) -> Units:
        """Return the object that provides units of one size: the pool, or a part of the pool."""
        if size == self.pool.unit:
            return self.pool
        if size not in self.split:
            self.split[size] = SplitPool(self.pool, size)
        return self.split[size]

    # ---- requests

    def make_receive_request(self, sg: list[Any], on_completion: Callable[[WC], None]) -> RecvWR:
        """Return a receive request, which may be posted any number of times."""
        number = next(self._numbers)
        self._on_receive[number] = on_completion
        return RecvWR(number, sg=sg)

    def forget_receive_request(self, wr: RecvWR) -> None:
        """Forget a receive request that is not posted and will not be."""
        del self._on_receive[wr.wr_id]

    def post_send(self, qp: QP, wr: SendWR, on_completion: Callable[[WC], None]) -> int:
        """Post a send request, and return its wr_id; ``on_completion`` gets its completion."""
        number = wr.wr_id = next(self._numbers)
        qp.post_send(wr)
        self._on_send[number] = on_completion
        return number

    def complete_unfinished_send(self, number: int) -> None:
        """Call the handler of a send whose queue pair was closed before the send completed."""
        call = self._on_send.pop(number, None)
        if call is not None:
            call(_FLUSHED)

    def control_send_wr(self, octets: bytes) -> SendWR:
        """Return a work request that sends a short unit inline; valid until the next call."""
        self.control.view[: len(octets)] = octets
        self._control_wr.sg[0].length = len(octets)
        return self._control_wr

    def watch_for_stalled_channels(self) -> None:
        """Check every second for channels whose peer takes no data, as long as others wait for
        memory.
        """
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(1, self._end_stalled_channels)

    def _end_stalled_channels(self) -> None:
        self._stall_timer = None
        oldest = self._loop.time() - STALL_S
        for member in list(self.members):
            if member.stalled_since is not None and member.stalled_since < oldest:
                member.abort(
                    f"the peer has taken no data for {STALL_S:g} seconds, and other sessions "
                    "need the memory: repeat the transfer",
                    Cause.TIMEOUT,
                )
        if self.pool.free_count > self.pool.set_aside + self.pool.size // 4:
            self.memory_short = False
        stalls = any(member.stalled_since is not None for member in self.members)
        if self.pool.waiting_count or (self.memory_short and stalls):
            self.watch_for_stalled_channels()

    # ---- dispatch

    async def _run_dispatcher(
        self, run: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> None:
        asyncio.current_task().set_name(name)  # type: ignore[union-attr]
        try:
            await run()
        except Error as error:
            self._lost = True
            self._end_all_channels(
                f"the device {self.context.name} was lost: {error.strerror}; open it again"
            )
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._end_all_channels(f"{name} failed: {error!r}; please report this error")
            raise

    def _end_all_channels(self, reason: str) -> None:
        for member in list(self.members):
            member.abort(reason, Cause.LOST)

    async def _dispatch_completions(self) -> None:
        async for wcs in aio.completions(self.cq, BATCH):
            self._call_completion_handlers(wcs)

    def _call_completion_handlers(self, wcs: list[WC]) -> None:
        on_receive, on_send = self._on_receive, self._on_send
        for wc in wcs:
            number = wc.wr_id
            call = on_receive.get(number) or on_send.pop(number, None)
            if call is not None:
                call(wc)

    def handle_completions(self) -> None:
        """Process the completions that are currently in the completion queue."""
        while self.cq.pending:
            self._call_completion_handlers(self.cq.poll(BATCH))

    async def _dispatch_cm_events(self) -> None:
        while True:
            event = await aio.cm_event(self.cm)
            to = event.id.context if event.listen_id is None else event.listen_id.context
            if to is not None:
                to(event)

    async def _dispatch_events(self) -> None:
        while True:
            with await aio.async_event(self.context) as event:
                to, kind = self.on_event.get(event.element), event.event_type
            # The event has been acknowledged here, so the function may close the event's object.
            if to is not None:
                to(kind)

    # ---- close

    def close_nowait(self) -> None:
        """End all channels and begin to close the device; ``wait_closed`` waits for the end."""
        if self._gone is not None:
            return
        self._gone = self._loop.create_future()
        self._end_all_channels("this end has closed the device")
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        for task in self._tasks:
            task.cancel()
        # Close in a thread, because the close may wait for the peers as long as linger_ms.
        closing = self._loop.run_in_executor(None, self._close_context)
        closing.add_done_callback(self._on_context_closed)

    def _close_context(self) -> None:
        self.context.close(force=True)

    def _on_context_closed(self, closing: asyncio.Future[None]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            closing.exception()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def wait_closed(self) -> None:
        """Wait until the device is closed; at most the setting linger_ms."""
        if self._gone is not None:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.shield(self._gone)

    async def close(self) -> None:
        """Close the device and wait until it is closed."""
        self.close_nowait()
        await self.wait_closed()
