# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Completion queues, completion channels, and completions as immutable values."""

from __future__ import annotations

import errno
import os
import struct
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from siwarp.base import system
from siwarp.verbs._ffi import (
    Address,
    Handle,
    Waitable,
    addr_bytes_to_python,
    check_pointer,
    check_return_code,
    clamp_to_int,
    destroy_objects_of_dropped_handles,
    ffi,
    lib,
    next_wait_ms,
)
from siwarp.verbs.device import Context
from siwarp.verbs.enums import WCFlag, WCOpcode, WCStatus
from siwarp.verbs.errors import Error, LimitError, PeerGone, ProtocolError, StateError
from siwarp.verbs.events import wait_until_events_acked
from siwarp.verbs.wanted import require_instance
from siwarp.verbs.wr import arrays_module

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CQ", "WC", "CompChannel"]


# The meaning of an error status without a Terminate: exception class, errno, advice.
_ADVICE: dict[int, tuple[type[Error], int, str]] = {
    WCStatus.WR_FLUSH_ERR: (
        StateError,
        errno.ECANCELED,
        "the QP is in the error state: reset or reconnect it; a UD QP in SQE continues after "
        "to_rts(); an RD QP continues by itself, but the peer is lost",
    ),
    WCStatus.LOC_LEN_ERR: (
        LimitError,
        errno.EMSGSIZE,
        "a receive must be at least as long as its message, and a UD message has at most "
        "max_ud_msg octets: see Context.query_device()",
    ),
    WCStatus.LOC_PROT_ERR: (
        Error,
        errno.EIO,
        "an element is not inside its memory region, lacks an access right, or its region is "
        "closed or in another PD: create elements with MR.sge() and keep the MR open; a UD QP "
        "continues after to_rts()",
    ),
    WCStatus.MW_BIND_ERR: (
        Error,
        errno.EIO,
        "window, MR and QP must be in one PD, the MR needs AccessFlag.MW_BIND (and LOCAL_WRITE "
        "for remote writing), the octets must be inside the MR, and a window of type 2 must be "
        "unbound",
    ),
    WCStatus.RETRY_EXC_ERR: (
        PeerGone,
        errno.ETIMEDOUT,
        "the peer has closed or did not answer in time: the peer must run and answer from this "
        "address, and its RD queue pair must not be in RESET",
    ),
    WCStatus.GENERAL_ERR: (
        Error,
        errno.EIO,
        "the network refused the message: check `ip route` and the counter send_errors",
    ),
}

#: An operation of two integers takes a tenth of the time of one with an enumeration.
_WITH_INV = int(WCFlag.WITH_INV)


class WC(NamedTuple):
    """A completion (``struct siw_wc``), as an immutable value.

    With an error status only ``wr_id``, ``status``, ``qp_num`` and ``vendor_err`` are valid.
    """

    wr_id: int
    #: The result of the request: one of WCStatus.
    status: int
    #: The operation that completed: one of WCOpcode.
    opcode: int
    #: ``layer << 16 | type << 8 | code`` of the Terminate that caused the error, or 0.
    vendor_err: int
    #: Number of octets received or read; with RECV_RDMA_WITH_IMM the length of the peer's Write.
    byte_len: int
    #: With WCFlag.WITH_IMM: the peer's ``imm_data``.
    imm_data: int
    qp_num: int
    #: For a UD or RD receive: the number of the sender's queue pair.
    src_qp: int
    wc_flags: int
    #: With WCFlag.GRH: 10 if the GRH contains an IPv4 header, 9 if it contains an IPv6 header.
    sl: int
    #: For an RD receive: the instance of the source, different for each process at that address; 0
    #: if the peer announces none. 0 for all other completions.
    source_instance: int
    source_octets: bytes
    dest_octets: bytes

    @property
    def source(self) -> Address | None:
        """The source of a UD or RD message as ``(ip, port)``; RD: also a failed request's peer.

        ``None`` for other completions.
        """
        return addr_bytes_to_python(self.source_octets)

    @property
    def destination(self) -> Address | None:
        """The local address or the group at which a UD message arrived, as ``(ip, port)``."""
        return addr_bytes_to_python(self.dest_octets)

    @property
    def invalidated_rkey(self) -> int | None:
        """The key that the peer's Send with Invalidate invalidated; ``None`` for other messages."""
        return self.imm_data if self.wc_flags & _WITH_INV else None

    @property
    def ok(self) -> bool:
        """Whether the request succeeded (status SUCCESS)."""
        return self.status == 0

    @property
    def status_name(self) -> str:
        """The name of the status, for example ``"REM_ACCESS_ERR"``."""
        try:
            return WCStatus(self.status).name
        except ValueError:
            return f"status {self.status}"

    def check(self) -> WC:
        """Return this completion if it succeeded.

        Raises:
            ProtocolError: a Terminate caused the failure.
            StateError: the request was flushed because its queue pair is in the error state
                (ECANCELED).
            LimitError: the message is too long for UD, or for its receive (EMSGSIZE).
            PeerGone: the peer did not answer (ETIMEDOUT).
            Error: any other failure (EIO).

        """
        if self.status == 0:
            return self
        what = f"work request {self.wr_id} of QP {self.qp_num} ended with {self.status_name}"
        if self.vendor_err:
            raise ProtocolError.from_vendor_err(self.vendor_err, what)
        words = ffi.string(lib.siw_wc_status_str(self.status)).decode()
        kind, number, advice = _ADVICE.get(self.status, (Error, errno.EIO, ""))
        raise kind(number, f"{what}: {words}{advice and f' ({advice})'}")

    def __repr__(self) -> str:
        fields = [f"wr_id={self.wr_id}", self.status_name]
        if self.status == 0:
            try:
                fields.append(WCOpcode(self.opcode).name)
            except ValueError:
                fields.append(f"opcode {self.opcode}")
            fields.append(f"{self.byte_len} octets")
            if self.wc_flags & WCFlag.WITH_IMM:
                fields.append(f"imm_data={self.imm_data:#x}")
            if self.source is not None:
                fields.append(f"source={self.source}")
        elif self.vendor_err:
            fields.append(f"vendor_err={self.vendor_err:#08x}")
        return f"<WC {' '.join(fields)} QP {self.qp_num}>"


# Layout of a struct siw_wc followed by the source's instance, the source and the destination, in
# the machine's byte order, without the members that siwarp always sets to zero.
_WC_SIZE = ffi.sizeof("struct siw_wc")
_ADDR_SIZE = ffi.sizeof("struct siw_addr")
_WC_FIELDS = "=QiiIIIIII4xB"
_ONE = struct.Struct(
    f"{_WC_FIELDS}{_WC_SIZE - struct.calcsize(_WC_FIELDS)}xQ{_ADDR_SIZE}s{_ADDR_SIZE}s"
)
_MANY = struct.Struct(f"{_WC_FIELDS}{_WC_SIZE - struct.calcsize(_WC_FIELDS)}x")

#: Above this number of requested completions, memory is allocated only for the CQ's capacity.
_MANY_ENTRIES = 4096

#: Results of a wait that ended without a completion.
_NOTHING_YET = frozenset((-errno.EAGAIN, -errno.EINTR))

_unpack_one = _ONE.unpack
_unpack_wc = _MANY.unpack
_new = tuple.__new__
_poll = lib.siw_poll_cq_instances
_poll_wcs = lib.siw_poll_cq
_poll_and_arm = lib.siw_poll_cq_and_arm
_wait = lib.siw_wait_cq
_null = ffi.NULL


class _PollBuffer:
    """Memory for ``n`` completions, followed by their instances, sources and destinations."""

    __slots__ = ("dests", "instances", "memory", "n", "octets", "sources", "wcs")

    def __init__(self, n: int) -> None:
        # Allocate uint64_t elements, so that the completions are aligned.
        size = n * (_WC_SIZE + 8 + 2 * _ADDR_SIZE)
        self.memory = ffi.new("uint64_t[]", (size + 7) // 8)
        self.n = n
        self.wcs = ffi.cast("struct siw_wc *", self.memory)
        self.instances = ffi.cast("uint64_t *", self.wcs + n)
        self.sources = ffi.cast("struct siw_addr *", self.instances + n)
        self.dests = self.sources + n
        self.octets = ffi.buffer(self.memory, size)

    def unpack_completions(self, got: int) -> list[WC]:
        """Return the first ``got`` completions as immutable values."""
        octets, at = self.octets, self.n * (_WC_SIZE + 8)
        sources = octets[at : at + got * _ADDR_SIZE]
        at += self.n * _ADDR_SIZE
        dests = octets[at : at + got * _ADDR_SIZE]
        if got == 1:
            fields = _unpack_wc(octets[:_WC_SIZE])
            return [_new(WC, (*fields, self.instances[0], sources, dests))]
        ends = range(0, got * _ADDR_SIZE, _ADDR_SIZE)
        instances = ffi.unpack(self.instances, got)
        return [
            _new(WC, (*fields, instance, sources[i : i + _ADDR_SIZE], dests[i : i + _ADDR_SIZE]))
            for fields, instance, i in zip(
                _MANY.iter_unpack(octets[: got * _WC_SIZE]), instances, ends, strict=True
            )
        ]


class CompChannel(Waitable):
    """A channel for the events of completion queues.

    ``fileno()`` is for ``select``, ``poll`` and ``asyncio``: readable while an event is unread.
    """

    __slots__ = ("_cqs", "_event", "context")
    _what = "completion channel"
    _destroy = lib.siw_destroy_comp_channel

    context: Context

    def __init__(self, context: Context) -> None:
        destroy_objects_of_dropped_handles()
        c = check_pointer(
            lib.siw_create_comp_channel(context._c_object()), f"making a channel on {context!r}"
        )
        self.context = context
        self._cqs: weakref.WeakValueDictionary[int, CQ] = weakref.WeakValueDictionary()
        self._adopt_c_object(c, context)

    def fileno(self) -> int:
        """Return the channel's descriptor; read events only with ``get_cq_event``."""
        return check_return_code(
            lib.siw_comp_channel_fd(self._c_object()), "getting the channel's descriptor"
        )

    def _has_progress_thread(self) -> bool:
        return self.context._threaded

    def get_cq_event(self, timeout: float | None = None) -> CQ | None:
        """Wait for an event and return its completion queue; return ``None`` after the timeout.

        ``timeout`` is in seconds; ``None`` waits without limit, 0 does not wait. Other threads run
        during the wait, and Ctrl-C interrupts it within 100 ms. Events are acknowledged by
        ``CQ.ack_events``, or all at once when the queue closes. Threads and tasks that wait for
        that queue (``CQ.wait``, ``siwarp.aio.wait``) wake up, no matter which thread reads the
        queue's event.
        """
        return self._get_cq_event(timeout, None, None)

    def _get_cq_event(
        self, timeout: float | None, over: Callable[[], bool] | None, about: CQ | None
    ) -> CQ | None:
        """Wait like ``get_cq_event``; return ``None`` also when ``over``, called after each
        ``_wake_waiters``, returns true.
        """
        c = self._c_object()
        which = ffi.new("struct siw_cq **")
        user = ffi.new("void **")

        def process_received_event() -> CQ | None:
            cq = self._cqs.get(int(ffi.cast("uintptr_t", which[0])))
            if cq is None:  # the CQ was deleted, so its events are not needed
                lib.siw_ack_cq_events(which[0], 1)
                which[0] = _null
                return None
            cq._unacked += 1
            # in one statement, so that no signal handler runs between the two assignments
            of, which[0] = which[0], _null
            cq._events += 1
            self._wake_waiters(cq)
            # Closing the CQ acknowledges the events counted so far, and waits for the others.
            if cq.closed:
                cq._before_destroy(of)
                return None
            return cq

        def process_event_that_wait_did_not_return() -> None:
            if which[0] != _null:
                process_received_event()

        return self._wait_for_event(
            lambda ms: int(lib.siw_get_cq_event(c, which, user, ms)),
            process_received_event,
            timeout,
            over,
            about,
            process_event_that_wait_did_not_return,
        )


class CQ(Handle):
    """A queue for at least ``cqe`` completions, with an optional channel to wait on.

    ``comp_vector`` selects the lane of the queue pairs whose receives complete on the CQ, from 1 to
    ``Context.num_comp_vectors`` - 1; 0: the lane with the fewest such CQs. Threads that poll CQs of
    different lanes do not wait for each other.

    Raises:
        Error: ``cqe`` is below 1 or above the device's ``max_cqe``, or there is no such lane
            (EINVAL).
        LimitError: the device's limit of completion queues is reached (ENOMEM).

    """

    __slots__ = ("_events", "_one", "_pool", "_unacked", "channel", "context", "cq_context")
    _what = "CQ"
    _destroy = lib.siw_destroy_cq

    context: Context
    channel: CompChannel | None
    #: Any value chosen by the program.
    cq_context: Any

    def __init__(
        self,
        context: Context,
        cqe: int = 256,
        cq_context: Any = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        destroy_objects_of_dropped_handles()
        require_instance(
            context, Context, "a CQ is created on an open device, for example CQ(Context())"
        )
        c_channel = ffi.NULL if channel is None else channel._c_object()
        c = check_pointer(
            lib.siw_create_cq(
                context._c_object(), clamp_to_int(cqe), ffi.NULL, c_channel, comp_vector
            ),
            f"creating a CQ for {cqe} completions",
        )
        self.context = context
        self.channel = channel
        self.cq_context = cq_context
        self._unacked = 0
        self._events = 0  # number of the queue's events that were read from the channel so far
        # Buffers that no thread is using at present; popping and appending are atomic.
        self._one = [_PollBuffer(1)]
        self._pool: list[_PollBuffer] = []
        self._adopt_c_object(c, context, *(() if channel is None else (channel,)))
        context._by_c[int(ffi.cast("uintptr_t", c))] = self
        if channel is not None:
            channel._cqs[int(ffi.cast("uintptr_t", c))] = self

    def poll(self, num_entries: int = 1) -> list[WC]:
        """Return up to ``num_entries`` completions; an empty list if there are none.

        The call also makes progress on the device. A completion with an error status is returned
        like any other and raises no exception: see ``WC.ok`` and ``WC.check()``.

        Raises:
            StateError: the queue overflowed, and all its completions were polled (EOVERFLOW).

        """
        if num_entries != 1:
            return self._poll_completions_as_list(num_entries)
        free = self._one
        try:
            buffer = free.pop()
        except IndexError:
            buffer = _PollBuffer(1)
        try:
            got = _poll(self._c, 1, buffer.wcs, buffer.sources, buffer.dests, buffer.instances)
        except TypeError:
            self._c_object()
            raise
        if got == 0:
            free.append(buffer)
            return []
        if got == 1:
            wc: WC = _new(WC, _unpack_one(buffer.octets))
            free.append(buffer)
            return [wc]
        free.append(buffer)
        check_return_code(got, f"polling {self!r}")
        raise AssertionError(f"asked for 1 completion, got {got}")

    def wait_fileno(self) -> int:
        """Return a descriptor with which an event loop waits for completions
        (``siw_cq_wait_fd``).

        The loop's thread polls with ``poll_and_arm``, at first immediately, and then whenever the
        descriptor is readable. Do not read from the descriptor or close it.
        """
        return check_return_code(
            lib.siw_cq_wait_fd(self._c_object()), f"getting the descriptor of {self!r}"
        )

    def poll_and_arm(self, num_entries: int = 16) -> list[WC]:
        """Make progress, and return up to ``num_entries`` completions
        (``siw_poll_cq_and_arm``).

        If there are fewer, the descriptor of ``wait_fileno`` becomes readable when there may be
        more.

        Raises:
            StateError: as in ``poll``.
            Error: ``wait_fileno`` was not called before (EINVAL).

        """
        return self._poll_completions_as_list(num_entries, _poll_and_arm)

    def _poll_completions_as_list(
        self, num_entries: int, poll: Callable[..., int] = _poll, *more: int
    ) -> list[WC]:
        if num_entries < 1:
            raise ValueError(f"cannot poll for {num_entries} completions")
        if num_entries > _MANY_ENTRIES:  # allocate no more memory than there can be completions
            num_entries = min(num_entries, self.capacity)
        free = self._pool
        try:
            buffer = free.pop()
        except IndexError:
            buffer = _PollBuffer(max(16, num_entries))
        if buffer.n < num_entries:
            buffer = _PollBuffer(num_entries)
        try:
            got = poll(
                self._c,
                num_entries,
                buffer.wcs,
                buffer.sources,
                buffer.dests,
                buffer.instances,
                *more,
            )
        except TypeError:
            self._c_object()
            raise
        if got == 0 or got in _NOTHING_YET:
            free.append(buffer)
            return []
        if got < 0:
            free.append(buffer)
            self._c_object()  # raises StateError if another thread closed the CQ during a wait
            check_return_code(got, f"polling {self!r}")
        wcs = buffer.unpack_completions(got)
        free.append(buffer)
        return wcs

    def poll_array(self, wcs: NDArray[np.void]) -> int:
        """Store completions at the start of an array (``siwarp.verbs.arrays.wc_array``).

        Return the number of completions, at most the length of the array. The call also makes
        progress on the device. Completions with an error status are stored like any other.

        Raises:
            StateError: the queue overflowed, and all its completions were polled (EOVERFLOW).
            TypeError, ValueError: the array has another dtype, or is not one-dimensional,
                contiguous, writable and aligned, or is empty.

        """
        c_wcs = arrays_module().wc_array_memory(wcs)
        got: int = _poll_wcs(self._c_object(), min(len(c_wcs), 0x7FFFFFFF), c_wcs)
        if got < 0:
            check_return_code(got, f"polling {self!r}")
        return got

    def req_notify(self, solicited_only: bool = False) -> None:
        """Arm the queue: the next completion raises one event on the channel.

        Poll once more afterwards, because completions before this call raise no event.
        """
        rc = lib.siw_req_notify_cq(self._c_object(), int(solicited_only))
        if rc < 0:
            check_return_code(rc, f"arming {self!r}")

    def ack_events(self, num_events: int) -> None:
        """Acknowledge up to ``num_events`` events read from the channel; a larger number has no
        effect.
        """
        count = min(num_events, self._unacked)
        if count > 0:
            c = self._c_object()
            self._unacked -= count
            lib.siw_ack_cq_events(c, count)

    def wait(self, timeout: float | None = None, num_entries: int = 16) -> list[WC]:
        """Poll the queue, and if nothing has completed, wait on the queue's channel.

        Return an empty list after ``timeout`` seconds.

        Raises:
            StateError: the queue has no channel.

        """
        return self._wait_for_completions(None, timeout, num_entries)

    def _wait_for_completions(
        self, over: Callable[[], bool] | None, timeout: float | None, num_entries: int
    ) -> list[WC]:
        """Wait like ``wait``; return an empty list also when ``over``, called after each
        ``_wake_waiters``, returns true.
        """
        if self.channel is None:
            raise StateError(
                errno.EINVAL,
                f"{self!r} has no channel: create the CQ with channel=CompChannel(context)",
            )
        deadline = system.monotonic() + timeout if timeout else timeout
        if wcs := self._wait_in_library(deadline, num_entries):
            return wcs
        while True:
            events = self._events
            self.req_notify()
            if wcs := self.poll(num_entries):
                return wcs
            left = None if deadline is None else deadline and deadline - system.monotonic()
            if (left is not None and left <= 0) or (over is not None and over()):
                return []

            # During the wait another thread may read the queue's event from the channel, or close
            # the queue.
            def is_wait_over(events: int = events) -> bool:
                return self._events != events or self.closed or (over is not None and over())

            cq = self.channel._get_cq_event(left, is_wait_over, self)
            if cq is not None:
                cq.ack_events(1)
            if wcs := self.poll(num_entries):
                return wcs

    def _wait_in_library(self, deadline: float | None, num_entries: int) -> list[WC]:
        """Poll the queue, and if nothing has completed, wait for at most ``SLICE_MS``.

        The waiting thread sleeps on the sockets and handles the message itself (``siw_wait_cq``),
        so that no event and no second thread are needed.
        """
        return self._poll_completions_as_list(num_entries, _wait, next_wait_ms(deadline))

    def resize(self, cqe: int) -> None:
        """Change the capacity to at least ``cqe`` completions, keeping the queued completions.

        Raises:
            Error: ``cqe`` is less than the number of queued completions, below 1, or above
                ``max_cqe`` (EINVAL).
            StateError: the queue overflowed (EOVERFLOW).

        """
        check_return_code(
            lib.siw_resize_cq(self._c_object(), clamp_to_int(cqe)), f"resizing {self!r} to {cqe}"
        )

    @property
    def capacity(self) -> int:
        """The number of completions that the queue can hold: at least the requested number."""
        return check_return_code(
            lib.siw_cq_capacity(self._c_object()), "querying the capacity of a CQ"
        )

    #: pyverbs' name of ``capacity``.
    cqe = capacity

    @property
    def pending(self) -> int:
        """The number of queued completions; reading it makes no progress.

        ``poll()`` on an empty queue makes progress, and makes the device's progress thread pause
        for about a millisecond, so an event loop reads ``pending`` first.
        """
        count: int = lib.siw_cq_pending(self._c_object())
        if count < 0:
            check_return_code(count, f"querying {self!r}")
        return count

    def _destroy_c_object(self) -> None:
        self.ack_events(self._unacked)
        wait_until_events_acked(self)
        c = self._c
        super()._destroy_c_object()
        if self.channel is not None and c is not None:
            self.channel._cqs.pop(int(ffi.cast("uintptr_t", c)), None)
            self.channel._wake_waiters(self)

    def _on_forced_close(self) -> None:
        self._unacked = 0

    def _before_destroy(self, c: Any) -> None:
        unacked, self._unacked = self._unacked, 0
        if unacked and self._pid == os.getpid():
            lib.siw_ack_cq_events(c, unacked)

    def _destroy_function(self) -> Callable[[Any], int]:
        unacked = self._unacked

        def ack_events_and_destroy_cq(c: Any) -> int:
            if unacked:
                lib.siw_ack_cq_events(c, unacked)
            return int(lib.siw_destroy_cq(c))

        return ack_events_and_destroy_cq

    def _description_for_repr(self) -> str:
        return f"of {lib.siw_cq_capacity(self._c)}"
