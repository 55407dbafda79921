# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Completion queues and channels: ``pyverbs.cq``."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from siwarp.base import system
from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import ReadOnlyAttribute, UInt, attribute_lines
from siwarp.pyverbs._wc import (
    WC,
    cqe_flags_to_str,
    cqe_opcode_to_str,
    cqe_status_to_str,
    create_wc_flags_to_str,
)
from siwarp.pyverbs.base import (
    PyverbsObject,
    PyverbsRDMAErrno,
    Wrapper,
    convert_errors,
    raise_unsupported,
    to_pyverbs_error,
)
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from siwarp.pyverbs.utils import flags_to_text
from siwarp.verbs import cq as verbs_cq
from siwarp.verbs.errors import Error

if TYPE_CHECKING:
    from siwarp.pyverbs.pd import ParentDomain

__all__ = [
    "CQ",
    "CQEX",
    "WC",
    "CompChannel",
    "CqInitAttrEx",
    "PollCqAttr",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "WcTmInfo",
    "cqe_flags_to_str",
    "cqe_opcode_to_str",
    "cqe_status_to_str",
    "create_wc_flags_to_str",
    "flags_to_str",
]

#: Minimum capacity of a completion queue, as with adapters.
_LEAST = 256


def flags_to_str(flags: int, dictionary: Mapping[int, str]) -> str:
    """Return the names of the flags that are set, each followed by a space."""
    return flags_to_text(flags, dictionary)


class CompChannel(Wrapper[verbs_cq.CompChannel]):
    """A channel for events of completion queues."""

    _RANK = 9

    def __init__(self, context: Context) -> None:
        with convert_errors("Failed to create a completion channel"):
            self._h = verbs_cq.CompChannel(context._native())
        self._context = context
        self._register_with_parents(context)

    def get_cq_event(self, expected_cq: CQ | CQEX) -> None:
        """Wait for the next event, which must be of ``expected_cq``; Ctrl-C interrupts the wait.

        Raises:
            PyverbsRDMAError: the event is of another queue.

        """
        with convert_errors("Failed to get a CQ event"):
            found = self._native().get_cq_event()
        if found is not expected_cq._h:
            if found is not None:
                found.ack_events(1)
            raise PyverbsRDMAError("Received an event on an unexpected CQ", errno.EINVAL)

    @property
    def fd(self) -> int:
        """A descriptor that is readable while an event is pending."""
        return self._native().fileno()


def _create_native_cq(
    context: Context, cqe: int, channel: CompChannel | None, comp_vector: int
) -> verbs_cq.CQ:
    # Accept float values such as max_cqe / 2, as Cython does.
    size = max(_LEAST, int(cqe)) if cqe > 0 else int(cqe)
    with convert_errors("Failed to create a CQ"):
        native = None if channel is None else channel._native()
        return verbs_cq.CQ(context._native(), size, None, native, comp_vector)


class _Queue(Wrapper[verbs_cq.CQ]):
    _RANK = 7
    _channel: CompChannel | None

    def _init_native(
        self, context: Context, native: verbs_cq.CQ, channel: CompChannel | None
    ) -> None:
        self._h, self._context, self._channel = native, context, channel
        self._register_with_parents(context, *(() if channel is None else (channel,)))

    @property
    def comp_channel(self) -> CompChannel | None:
        """The completion channel of the queue."""
        return self._channel

    def req_notify(self, solicited_only: bool = False) -> None:
        """Request an event for the next completion; has no effect without a channel."""
        if self._channel is not None:
            with convert_errors("Failed to request notification"):
                self._native().req_notify(bool(solicited_only))

    def ack_events(self, num_events: int) -> None:
        """Acknowledge completion events that the channel returned."""
        with convert_errors("Failed to acknowledge events"):
            self._native().ack_events(num_events)

    def resize(self, cqe: int) -> None:
        """Resize the queue to hold at least ``cqe`` completions."""
        with convert_errors("Failed to resize CQ"):
            self._native().resize(int(cqe))

    @property
    def cqe(self) -> int:
        """The capacity of the queue, in completions."""
        return self._native().capacity


class CQ(_Queue):
    """A completion queue.

    Raises:
        PyverbsRDMAError: ``cqe`` is below 1 or above the device's limit (EINVAL), or the device has
            no room for another queue (ENOMEM).

    """

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        self.cq_context = cq_context
        self._init_native(context, _create_native_cq(context, cqe, channel, comp_vector), channel)

    @property
    def cq(self) -> int:
        """A unique number of the completion queue in this process."""
        return id(self._native())

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Poll up to ``num_entries`` completions; return their number and the list of completions.

        Raises:
            PyverbsRDMAError: the queue has overflowed.

        """
        if num_entries < 1:
            return 0, []
        try:
            found = self._native().poll(num_entries)
        except Error as error:
            raise to_pyverbs_error("Failed to poll CQ", error) from error
        return len(found), [WC._from_native(one) for one in found]

    def __str__(self) -> str:
        channel = "None" if self._channel is None else "set"
        return attribute_lines(self, "cqe") + f"{'comp channel':<22}: {channel:<20}\n"


class PollCqAttr(PyverbsObject):
    """Input of ``start_poll``; no bit of its mask is defined."""

    comp_mask = UInt(32)


class WcTmInfo(PyverbsObject):
    """Tag matching information of a completion, which is always 0."""

    tag = ReadOnlyAttribute(0)
    priv = ReadOnlyAttribute(0)


class CqInitAttrEx(PyverbsObject):
    """Creation parameters of an extended completion queue."""

    cqe = UInt(32, 100)
    comp_vector = UInt(32)
    wc_flags = UInt(64)
    comp_mask = UInt(32)
    flags = UInt(32)
    comp_channel: CompChannel | None = None
    parent_domain: ParentDomain | None = None
    cq_context: object = None

    def __init__(
        self,
        cqe: int = 100,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
        wc_flags: int = 0,
        comp_mask: int = 0,
        flags: int = 0,
        parent_domain: ParentDomain | None = None,
    ) -> None:
        self.cqe, self.comp_vector, self.wc_flags = cqe, comp_vector, wc_flags
        self.comp_mask, self.flags = comp_mask, flags
        self.comp_channel, self.parent_domain = channel, parent_domain

    def __str__(self) -> str:
        return (
            f"{'Number of CQEs':<22}: {self.cqe:<20}\n"
            f"{'WC flags':<22}: {create_wc_flags_to_str(self.wc_flags):<20}\n"
            f"{'comp mask':<22}: {self.comp_mask:<20}\n"
            f"{'flags':<22}: {self.flags:<20}\n"
        )


_READERS = (
    e.IBV_WC_STANDARD_FLAGS
    | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
)
_MASKS = e.IBV_CQ_INIT_ATTR_MASK_FLAGS | e.IBV_CQ_INIT_ATTR_MASK_PD
_NONE = WC()


class CQEX(_Queue):
    """An extended completion queue: ``start_poll``, read functions, ``poll_next``, ``end_poll``.

    Raises:
        PyverbsRDMAError: as for CQ; read functions for Ethernet frames or tag matching, or
            IGNORE_OVERRUN (EOPNOTSUPP).

    """

    def __init__(self, context: Context, init_attr: CqInitAttrEx) -> None:
        attr = init_attr
        flags = attr.flags if attr.comp_mask & e.IBV_CQ_INIT_ATTR_MASK_FLAGS else 0
        if attr.comp_mask & ~_MASKS:
            raise PyverbsRDMAError(
                "Failed to create extended CQ: comp_mask has undefined bits", errno.EINVAL
            )
        if attr.wc_flags & ~_READERS:
            raise_unsupported("such wc_flags", "there are no Ethernet frames and no tag matching")
        if flags & ~e.IBV_CREATE_CQ_ATTR_SINGLE_THREADED:
            raise_unsupported(
                "IGNORE_OVERRUN", "an overflow puts the CQ and its queue pairs into the error state"
            )
        native = _create_native_cq(context, attr.cqe, attr.comp_channel, attr.comp_vector)
        self._init_native(context, native, attr.comp_channel)
        self._wc = _NONE
        self._monotonic_ns = self._wallclock_ns = 0
        self._polling = False

    def _poll_one(self) -> int:
        try:
            found = self._native().poll(1)
        except Error as error:
            return error.errno or errno.EIO
        if not found:
            return errno.ENOENT
        self._wc = WC._from_native(found[0])
        self._monotonic_ns = system.clock_ns(False)
        self._wallclock_ns = system.clock_ns(True)
        return 0

    def start_poll(self, attr: PollCqAttr) -> int:
        """Start a batch with the next completion; return 0, ENOENT (none), or another errno."""
        if (attr is not None and attr.comp_mask) or self._polling:
            return errno.EINVAL
        result = self._poll_one()
        self._polling = result == 0
        return result

    def poll_next(self) -> int:
        """Advance to the next completion; return the same values as ``start_poll``."""
        return self._poll_one() if self._polling else errno.EINVAL

    def end_poll(self) -> None:
        """End the batch of completions."""
        self._polling = False

    @property
    def wr_id(self) -> int:
        """The wr_id of the current completion."""
        return self._wc.wr_id

    @property
    def status(self) -> int:
        """Status of the current completion."""
        return self._wc.status

    def read_opcode(self) -> int:
        """Return the opcode of the current completion."""
        return self._wc.opcode

    def read_vendor_err(self) -> int:
        """Return the Terminate code of an error, as ``layer << 16 | type << 8 | code``."""
        return self._wc.vendor_err

    def read_byte_len(self) -> int:
        """Return the number of octets that the current completion received or read."""
        return self._wc.byte_len

    def read_imm_data(self) -> int:
        """Return the immediate data, in the byte order in which the peer passed it."""
        return self._wc.imm_data

    def read_qp_num(self) -> int:
        """Return the number of the local queue pair."""
        return self._wc.qp_num

    def read_src_qp(self) -> int:
        """Return the number of a datagram's sending queue pair."""
        return self._wc.src_qp

    def read_wc_flags(self) -> int:
        """Return the current completion's flags of ``ibv_wc_flags``."""
        return self._wc.wc_flags

    def read_slid(self) -> int:
        """Return 0: there are no LIDs."""
        return self._wc.slid

    def read_sl(self) -> int:
        """Return the service level: 10 for a datagram over IPv4, 9 for a datagram over IPv6."""
        return self._wc.sl

    def read_dlid_path_bits(self) -> int:
        """Return 0: there are no LIDs."""
        return self._wc.dlid_path_bits

    def read_timestamp(self) -> int:
        """Return the time of polling the completion, in nanoseconds of CLOCK_MONOTONIC."""
        return self._monotonic_ns

    def read_completion_wallclock_ns(self) -> int:
        """Return the time of polling the completion, in nanoseconds of the wall clock."""
        return self._wallclock_ns

    def read_cvlan(self) -> int:
        """Return 0: there are no Ethernet frames."""
        return 0

    def read_flow_tag(self) -> int:
        """Return 0: there are no Ethernet frames."""
        return 0

    def read_tm_info(self) -> WcTmInfo:
        """Return zeros, because tag matching is not supported."""
        return WcTmInfo()

    def __str__(self) -> str:
        return attribute_lines(self, "wr_id", "status")
