# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Shared receive queues: one queue of receives for several queue pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from siwarp.verbs._ffi import (
    Handle,
    check_pointer,
    check_return_code,
    clamp_to_uint,
    destroy_objects_of_dropped_handles,
    ffi,
    lib,
)
from siwarp.verbs.enums import SrqAttrMask
from siwarp.verbs.events import wait_until_events_acked
from siwarp.verbs.pd import PD
from siwarp.verbs.reason import refusal_error
from siwarp.verbs.wr import RecvWR, arrays_module, link_requests, posting_array_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SRQ", "SrqAttr", "SrqInitAttr"]


@dataclass
class SrqAttr:
    """The attributes of a shared receive queue (``struct siw_srq_attr``).

    Attributes:
        max_wr: maximum number of posted receives.
        max_sge: maximum number of elements of one receive.
        srq_limit: SRQ_LIMIT_REACHED is raised, once, when fewer receives than this are left; 0: no
            limit.

    """

    max_wr: int = 128
    max_sge: int = 1
    srq_limit: int = 0


@dataclass
class SrqInitAttr:
    """The initial attributes of a shared receive queue. ``SRQ.modify`` arms its limit."""

    attr: SrqAttr = field(default_factory=SrqAttr)
    srq_context: Any = None


_post = lib.siw_post_srq_recv
_null = ffi.NULL


class SRQ(Handle):
    """A receive queue that queue pairs share: ``QPInitAttr(srq=...)`` (``siw_create_srq``).

    The next message of any of these queue pairs uses the oldest receive and completes on the
    receive CQ of its queue pair.

    Raises:
        Error: ``max_wr`` is 0, ``srq_limit`` is above ``max_wr``, or one of them exceeds the
            device's limits (EINVAL).
        LimitError: the device's limit of shared receive queues is reached (ENOMEM).

    """

    __slots__ = ("attr", "pd", "srq_context")
    _what = "SRQ"
    _destroy = lib.siw_destroy_srq

    pd: PD
    #: The granted attributes: at least those requested.
    attr: SrqAttr
    srq_context: Any

    def __init__(self, pd: PD, init_attr: SrqInitAttr | SrqAttr | None = None) -> None:
        destroy_objects_of_dropped_handles()
        if init_attr is None or isinstance(init_attr, SrqAttr):
            init_attr = SrqInitAttr(init_attr or SrqAttr())
        c_init = ffi.new("struct siw_srq_init_attr *")
        c_init.attr.max_wr = clamp_to_uint(init_attr.attr.max_wr)
        c_init.attr.max_sge = clamp_to_uint(init_attr.attr.max_sge)
        c_init.attr.srq_limit = clamp_to_uint(init_attr.attr.srq_limit)
        c = check_pointer(
            lib.siw_create_srq(pd._c_object(), c_init),
            f"creating an SRQ for {init_attr.attr.max_wr} receives",
        )
        self.pd = pd
        self.attr = SrqAttr(c_init.attr.max_wr, c_init.attr.max_sge)
        self.srq_context = init_attr.srq_context
        self._adopt_c_object(c, pd)
        pd.context._by_c[int(ffi.cast("uintptr_t", c))] = self

    def modify(self, attr: SrqAttr, mask: int = SrqAttrMask.LIMIT) -> None:
        """Arm the limit at ``attr.srq_limit``, or disarm it with 0 (``siw_modify_srq``).

        If fewer receives are posted already, the event is raised at once. With MAX_WR in ``mask``
        the queue is resized to at least ``attr.max_wr`` receives; posted receives stay.

        Raises:
            Error: the limit is above ``max_wr``, or ``max_wr`` is below the number of posted
                receives (EINVAL).

        """
        c_attr = ffi.new("struct siw_srq_attr *")
        c_attr.max_wr, c_attr.max_sge = clamp_to_uint(attr.max_wr), clamp_to_uint(attr.max_sge)
        c_attr.srq_limit = clamp_to_uint(attr.srq_limit)
        check_return_code(
            lib.siw_modify_srq(self._c_object(), c_attr, int(mask)), f"modifying {self!r}"
        )

    @property
    def srq_num(self) -> int:
        """The number of the SRQ, unique on the device (``siw_srq_num``)."""
        return int(lib.siw_srq_num(self._c_object()))

    def query(self) -> SrqAttr:
        """Return the queue's size, and the limit while it is armed (``siw_query_srq``)."""
        c_attr = ffi.new("struct siw_srq_attr *")
        check_return_code(lib.siw_query_srq(self._c_object(), c_attr), f"querying {self!r}")
        return SrqAttr(c_attr.max_wr, c_attr.max_sge, c_attr.srq_limit)

    def post_recv(self, wr: RecvWR | Iterable[RecvWR]) -> None:
        """Post one receive request, or several in one call of the library, in order.

        Raises:
            LimitError: the queue is full (ENOMEM).
            Error: a request has too many elements (EINVAL). Any error's ``bad_wr`` is the first
                request that was not posted; the requests before it are posted.

        """
        wrs = [wr] if isinstance(wr, RecvWR) else list(wr)
        for one in wrs:
            if not isinstance(one, RecvWR):
                raise TypeError(f"can post a RecvWR or a list of them, not {one!r}")
        c = self._c_object()
        if not wrs:
            return
        first = link_requests(wrs)
        bad = ffi.new("struct siw_recv_wr **")
        rc = _post(c, first, bad)
        if rc:
            taken, first = 0, ffi.cast("struct siw_recv_wr *", first)
            while first != bad[0] and taken < len(wrs) - 1:
                first = first.next
                taken += 1
            error = refusal_error(-rc, f"posting {wrs[taken]!r} to {self!r}")
            error.bad_wr = wrs[taken]
            raise error

    def post_recv_array(self, wrs: NDArray[np.void]) -> None:
        """Post the receives of an array that ``siwarp.verbs.arrays.recv_array`` has made, in order.

        Raises:
            LimitError: the queue is full (ENOMEM). Any error's ``bad_wr`` is the index of the first
                receive that was not posted; the receives before it are posted.
            TypeError, ValueError: the array has another dtype, or is not one-dimensional and
                contiguous; no receive was posted.

        """
        c_wrs = arrays_module().recv_array_to_c(wrs)
        posted = ffi.new("size_t *")
        rc = lib.siw_post_srq_recv_array(self._c_object(), c_wrs, len(c_wrs), posted)
        if rc:
            raise posting_array_error(rc, posted[0], self)

    def _destroy_c_object(self) -> None:
        wait_until_events_acked(self)
        super()._destroy_c_object()

    def _description_for_repr(self) -> str:
        return f"of {self.attr.max_wr}"
