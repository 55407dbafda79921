# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Asynchronous events: changes of an object that no completion reports."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

from siwarp.base import system
from siwarp.base.closing import Closing
from siwarp.verbs._ffi import Handle, ffi, lib, register_exit_callback
from siwarp.verbs.enums import EventType

__all__ = ["AsyncEvent"]

_ELEMENT = {
    EventType.CQ_ERR: "cq",
    EventType.SRQ_ERR: "srq",
    EventType.SRQ_LIMIT_REACHED: "srq",
    EventType.QP_FATAL: "qp",
    EventType.QP_REQ_ERR: "qp",
    EventType.QP_ACCESS_ERR: "qp",
    EventType.QP_LAST_WQE_REACHED: "qp",
    EventType.COMM_EST: "qp",
    EventType.SQ_DRAINED: "qp",
    EventType.QP_ERR_QUEUED: "qp",
    EventType.PEER_RESTARTED: "qp",
    EventType.CONGESTED: "qp",
}

_unacked: weakref.WeakSet[AsyncEvent] = weakref.WeakSet()


class AsyncEvent(Closing):
    """One event of an open device (``struct siw_async_event``).

    The event's object cannot be closed until ``ack()`` was called: ``close()`` waits for another
    thread to call it. The end of a ``with`` block acknowledges the event, and so does deleting it.
    """

    __slots__ = ("__weakref__", "_acked", "_c", "_pid", "element", "event_type", "port_num")

    event_type: EventType
    #: The CQ, QP or SRQ that the event concerns; ``None`` for an event of the device.
    element: Any
    #: The port number: 1 for an event of the device, otherwise 0.
    port_num: int

    def __init__(self, c: Any, find: Callable[[int], Handle | None]) -> None:
        self._c = c
        self._pid = os.getpid()
        self.event_type = EventType(c.event_type)
        member = _ELEMENT.get(self.event_type)
        self._acked = False
        self.element = None
        self.port_num = 0
        if member is None:
            self.port_num = c.element.port_num
        else:
            self.element = find(int(ffi.cast("uintptr_t", getattr(c.element, member))))
            _unacked.add(self)

    def ack(self) -> None:
        """Acknowledge the event (``siw_ack_async_event``); a second call does nothing."""
        if not self._acked:
            self._acked = True
            if self._pid == os.getpid():
                lib.siw_ack_async_event(self._c)

    def close(self) -> None:
        """Acknowledge the event, as the end of a ``with`` block does."""
        self.ack()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # AttributeError occurs if __init__ has failed
            self.ack()

    def __repr__(self) -> str:
        about = f"port {self.port_num}" if self.element is None else repr(self.element)
        return f"<AsyncEvent {self.event_type.name} of {about}>"


def wait_until_events_acked(handle: Handle) -> None:
    """Wait until other threads have acknowledged the events of ``handle``; Ctrl-C interrupts."""
    while any(event.element is handle and not event._acked for event in list(_unacked)):
        system.sleep(0.001)


@register_exit_callback
def _ack_all_events() -> None:
    """Acknowledge all events when the program ends, so that their objects can close."""
    for event in list(_unacked):
        event.ack()
