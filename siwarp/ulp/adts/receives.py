# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Receives shared by the channels of one transport: one SRQ, and how its receives are granted.

Each credit of a peer has a posted receive: ``reserved``, the sum of the credits of all channels,
never exceeds ``posted``. A channel begins with a small window, which grows while the peer uses it,
as long as a few receives are left for further channels. When they are not, the windows of busy
channels shrink to equal shares, and credits that were not used for ``IDLE_S`` are asked back; a
peer that does not give them back in that time is disconnected. A receive that is not granted gives
its memory back when a unit arrives in it, and all do when the SRQ is closed, after its last
session: verbs has no call that takes a posted receive out of an SRQ.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any, Protocol

from siwarp.ulp.adts.channel import Cause, Received
from siwarp.ulp.adts.credit import Credits
from siwarp.ulp.adts.device import Device
from siwarp.ulp.adts.memory import Unit, Units
from siwarp.ulp.adts.wire import HANDSHAKE_UNIT_SIZE
from siwarp.verbs import SRQ, WC, EventType, LimitError, SrqAttr, StateError

__all__ = ["FOR_SENDS", "IDLE_S", "Receive", "Receives"]

#: The window of a new channel, and the number of receives that stay free for further channels.
FIRST_WINDOW = 4
HEADROOM = 4
#: The part of a pool's units that receives do not use: 1 / FOR_SENDS.
FOR_SENDS = 8
#: Seconds after which another attempt to open a session may succeed, because sessions without
#: progress have ended: more than STALL_S (device.py) and twice IDLE_S.
RETRY_S = 30
#: Seconds after which unused credits are asked back, and within which they must be given back.
IDLE_S = 5.0


class _ReceivingChannel(Protocol):
    """The methods of a channel that the shared receives call."""

    credits: Credits
    window_limit: int
    last_unit: float
    asked_at: float | None

    def on_receive(self, receive: Receive, wc: WC) -> None: ...

    def on_release(self) -> None: ...

    def reclaim_credits(self) -> None: ...

    def abort(self, reason: str, cause: Cause = Cause.CLOSED) -> None: ...


class Receive(Received):
    """A receive of the SRQ: posted, or held by a channel with the unit that arrived in it."""

    __slots__ = ("_receives", "holder", "memory", "wr")

    #: The channel that uses the received unit; None while the receive is posted.
    holder: _ReceivingChannel | None

    def __init__(self, receives: Receives, memory: Unit) -> None:
        self._receives = receives
        self.memory = memory
        self.holder = None
        self.view = memory.view
        self.wr = receives.device.make_receive_request(
            [memory.sge(len(memory.view))], self._on_completion
        )

    def _on_completion(self, wc: WC) -> None:
        self._receives.posted -= 1
        self._receives.pass_completed_receive_to_channel(self, wc)

    def release(self) -> None:
        """See ``Received``."""
        holder, self.holder = self.holder, None
        if holder is None:
            raise ValueError("this unit was released before: release each unit once")
        self.view.release()
        self._receives.post_receive_again(self)
        holder.on_release()


class Receives:
    """The receives of one transport for units of one size.

    ``find`` returns the channel to which a completion belongs, or ``None``; ``unknown`` then gets
    a copy of the unit, whose receive has been posted again.
    """

    def __init__(
        self,
        device: Device,
        units: Units,
        limit: int,
        scarce: Callable[[bool], None] | None = None,
    ) -> None:
        self.device = device
        self._units = units
        self._limit = limit
        self.srq = SRQ(device.pd, SrqAttr(max_wr=limit))
        self.find: Callable[[WC], Any] = lambda wc: None
        self.unknown: Callable[[memoryview, WC], None] = lambda view, wc: None
        #: Number of receives in the SRQ, and number of receives reserved by the channels' credits.
        self.posted = self.reserved = 0
        self._holders: dict[_ReceivingChannel, None] = {}
        self._all: dict[Receive, None] = {}
        self._scarce = scarce
        self._is_scarce = False
        self._timer: asyncio.TimerHandle | None = None
        device.on_event[self.srq] = self._on_srq_event

    @property
    def unit_size(self) -> int:
        """Octets of a receive."""
        return self._units.unit

    @property
    def total(self) -> int:
        """The number of receives: those in the SRQ, and those held with a unit."""
        return len(self._all)

    @property
    def in_use(self) -> bool:
        """Whether a channel uses the receives, or a channel that will use them is expected."""
        return bool(self._holders) or self.reserved > 0

    @property
    def available(self) -> int:
        """The number of posted receives for which no peer has credit."""
        return self.posted - self.reserved

    # ---- receives

    def pass_completed_receive_to_channel(self, receive: Receive, wc: WC) -> None:
        """Pass a completed receive to its channel; post the receive again if it has no channel."""
        holder = self.find(wc)
        if holder is not None:
            receive.holder = holder
            holder.on_receive(receive, wc)
            return
        # Copy the unit, because the receive is posted again before the unit is processed. A JOIN
        # is never longer than HANDSHAKE_UNIT_SIZE.
        octets = bytes(receive.memory.view[: min(wc.byte_len, HANDSHAKE_UNIT_SIZE)])
        self.post_receive_again(receive)
        if wc.ok:
            self.unknown(memoryview(octets), wc)

    def post_receive_again(self, receive: Receive) -> None:
        """Post a receive again, or give its memory to the pool if it is not needed here."""
        if self.device.closed:
            return
        pool = self.device.pool
        wanted = pool.waiting_count or self.device.memory_short
        if self.available > (HEADROOM if wanted else 2 * HEADROOM):
            self._free_memory_of_receive(receive)
            if pool.free_count > pool.set_aside + 2 * pool.size // FOR_SENDS:
                self.device.memory_short = False
            return
        try:
            self.srq.post_recv(receive.wr)
        except StateError:
            return  # the device is lost, which the completion dispatcher detects and handles
        self.posted += 1
        if self._is_scarce and self.posted * 2 >= self.total:
            self._set_receives_scarce(False)

    def _free_memory_of_receive(self, receive: Receive) -> None:
        del self._all[receive]
        self.device.forget_receive_request(receive.wr)
        self.device.receiving -= self.unit_size
        receive.memory.release()

    def _take_unit_for_receive(self, set_aside: bool) -> Unit | None:
        """Return a unit for a receive, unless the free units are reserved for sends or sessions."""
        pool = self.device.pool
        kept = pool.size // FOR_SENDS + (0 if set_aside else pool.set_aside)
        if self.device.receiving + self.unit_size > (pool.size - kept) * pool.unit:
            return None
        return self._units.take_nowait(set_aside=set_aside)

    def post_until_available(self, wanted: int, *, set_aside: bool = False) -> bool:
        """Post receives until ``wanted`` of them are available; return whether they are.

        ``set_aside``: also with the memory that is set aside for sessions (``Pool``).
        """
        before = self.total
        while self.available < wanted and self.total < self._limit:
            unit = self._take_unit_for_receive(set_aside)
            if unit is None:
                self.device.memory_short = True
                self.device.watch_for_stalled_channels()
                break
            receive = Receive(self, unit)
            self.srq.post_recv(receive.wr)
            self.posted += 1
            self._all[receive] = None
            self.device.receiving += self.unit_size
        if self.total > before and self._scarce is not None and not self._is_scarce:
            self._arm_srq_limit()
        return self.available >= wanted

    # ---- the limit event

    def _arm_srq_limit(self) -> None:
        # The event is raised when an eighth of the receives is left.
        self.srq.modify(SrqAttr(srq_limit=max(1, self.total // 8)))

    def _on_srq_event(self, kind: EventType) -> None:
        if kind == EventType.SRQ_LIMIT_REACHED and not self._is_scarce:
            if self.posted * 2 >= self.total:
                self._arm_srq_limit()  # receives have been posted since the event was raised
            else:
                self._set_receives_scarce(True)

    def _set_receives_scarce(self, scarce: bool) -> None:
        self._is_scarce = scarce
        if not scarce:
            self._arm_srq_limit()
        if self._scarce is not None:
            self._scarce(scarce)

    # ---- windows

    def reserve_for_channel(self, window: int, *, set_aside: bool = False) -> int:
        """Reserve receives for a new channel; return their number, at least 1.

        ``set_aside``: the memory that is set aside for sessions may be used for one of them.

        Raises:
            LimitError: all receives are granted.

        """
        wanted = min(window, FIRST_WINDOW)
        if not self.post_until_available(wanted + HEADROOM):
            self._schedule_credit_check()
            if set_aside:
                self.post_until_available(1, set_aside=True)
        if self.available < 1:
            raise LimitError(
                errno.ENOMEM,
                f"other sessions use the memory of this server: try again in {RETRY_S} seconds, "
                "when it will have ended those that do not use it",
            )
        got = max(1, min(wanted, self.available - HEADROOM))
        self.reserved += got
        return got

    def add_channel(self, holder: _ReceivingChannel) -> None:
        """Add a channel, for which ``reserve_for_channel`` has reserved receives."""
        self._holders[holder] = None

    def remove_channel(self, holder: _ReceivingChannel) -> None:
        """Remove a channel, whose credits are void."""
        self._holders.pop(holder, None)

    def adapt_credit_window_of_channel(self, holder: _ReceivingChannel) -> None:
        """Adapt the window of a channel whose peer has sent a unit to the free receives."""
        window = holder.credits.window
        if window < holder.window_limit and self.post_until_available(HEADROOM + 1):
            holder.credits.set_credit_window(window + 1)
        elif self.available < HEADROOM:
            self._schedule_credit_check()
            if window > max(FIRST_WINDOW, self.total // (len(self._holders) + 1)):
                holder.credits.set_credit_window(window - 1)

    def _schedule_credit_check(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(IDLE_S / 5, self._reclaim_unused_credits, loop)

    def _reclaim_unused_credits(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reclaim credits that peers have not used for some time, if few receives are available."""
        self._timer = None
        short = not self.post_until_available(HEADROOM)
        now = loop.time()
        for holder in list(self._holders):
            if holder.asked_at is not None:
                if not holder.credits.has_excess_credits:
                    holder.asked_at = None
                elif now - holder.asked_at >= IDLE_S:
                    holder.abort(
                        f"the peer did not give unused credits back within {IDLE_S:g} seconds",
                        Cause.TIMEOUT,
                    )
                    continue
            elif short and holder.credits.window > 1 and now - holder.last_unit >= IDLE_S:
                holder.credits.set_credit_window(1)
                holder.asked_at = now
            if holder.asked_at is not None:
                holder.reclaim_credits()
        if short or any(holder.asked_at is not None for holder in self._holders):
            self._schedule_credit_check()

    def stop_timer_and_events(self) -> None:
        """Stop the timer, and handle no more events of the SRQ; the device closes the SRQ."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.device.on_event.pop(self.srq, None)

    def close_srq_and_free_memory(self) -> None:
        """Close the SRQ, which no queue pair uses, and give the memory of its receives back."""
        self.stop_timer_and_events()
        self.srq.close()
        for receive in list(self._all):
            self._free_memory_of_receive(receive)
        self.posted = 0
