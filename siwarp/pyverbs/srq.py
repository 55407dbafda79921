# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Shared receive queues: ``pyverbs.srq``."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, NoReturn

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import DelegatedAttribute, UInt
from siwarp.pyverbs.base import (
    PyverbsCM,
    PyverbsObject,
    PyverbsRDMAErrno,
    Wrapper,
    convert_errors,
    raise_unsupported,
    to_pyverbs_error,
)
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.pd import PD
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from siwarp.pyverbs.wr import RecvWR, linked_requests
from siwarp.verbs import srq as verbs_srq
from siwarp.verbs.errors import Error

if TYPE_CHECKING:
    from siwarp.pyverbs.cq import CQ
    from siwarp.pyverbs.xrcd import XRCD

__all__ = [
    "SRQ",
    "OpsWr",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "SrqAttr",
    "SrqInitAttr",
    "SrqInitAttrEx",
]


class SrqAttr(PyverbsObject):
    """Capacities of a shared receive queue; fewer receives than its limit raise an event."""

    max_wr = UInt(32)
    max_sge = UInt(32)
    srq_limit = UInt(32)

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        self.max_wr, self.max_sge, self.srq_limit = max_wr, max_sge, srq_limit

    def _native_attr(self) -> verbs_srq.SrqAttr:
        return verbs_srq.SrqAttr(self.max_wr, self.max_sge, self.srq_limit)


class SrqInitAttr(PyverbsObject):
    """Creation parameters of a PD's shared receive queue; only ``SRQ.modify`` sets the limit."""

    max_wr = DelegatedAttribute("_attr")
    max_sge = DelegatedAttribute("_attr")
    srq_limit = DelegatedAttribute("_attr")

    def __init__(self, attr: SrqAttr | None = None) -> None:
        self._attr = SrqAttr(0, 0, 0)
        if attr is not None:
            self._attr = SrqAttr(attr.max_wr, attr.max_sge, attr.srq_limit)


class SrqInitAttrEx(SrqInitAttr):
    """Creation parameters of a shared receive queue of a Context."""

    comp_mask = UInt(32)
    srq_type = UInt(32)
    max_num_tags = UInt(32)
    max_ops = UInt(32)
    pd: PD | None = None
    xrcd: XRCD | None = None
    cq: CQ | None = None

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        super().__init__(SrqAttr(max_wr, max_sge, srq_limit))


class OpsWr(PyverbsCM):
    """A tag matching request, which siwarp does not support."""

    wr_id = UInt(64)
    opcode = UInt(32)
    flags = UInt(32)
    unexpected_cnt = UInt(32)
    recv_wr_id = UInt(64)
    tag = UInt(64)
    mask = UInt(64)
    handle = UInt(32)
    next_wr: OpsWr | None = None

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = e.IBV_WR_TAG_ADD,
        flags: int = e.IBV_OPS_SIGNALED,
        next_wr: OpsWr | None = None,
        unexpected_cnt: int = 0,
        recv_wr_id: int = 0,
        num_sge: int | None = None,
        tag: int = 0,
        mask: int = 0,
        sg_list: object = None,
    ) -> None:
        self.wr_id, self.opcode, self.flags = wr_id, opcode, flags
        self.next_wr, self.unexpected_cnt = next_wr, unexpected_cnt
        self.recv_wr_id, self.tag, self.mask = recv_wr_id, tag, mask


class SRQ(Wrapper[verbs_srq.SRQ]):
    """A shared receive queue of a PD or, created from a SrqInitAttrEx, of a Context.

    Raises:
        PyverbsRDMAError: sizes above the device's limits (EINVAL), no room for another queue
            (ENOMEM), types XRC and TM (EOPNOTSUPP).

    """

    _RANK = 2

    def __init__(self, creator: PD | Context, attr: SrqInitAttr) -> None:
        if isinstance(creator, Context):
            self._create_srq_ex(creator, attr)
        else:
            self._create_srq(creator, attr)

    def _create_srq(self, pd: PD, init_attr: SrqInitAttr) -> None:
        with convert_errors("Failed to create SRQ"):
            self._h = verbs_srq.SRQ(pd._native(), init_attr._attr._native_attr())
        granted = self._h.attr
        init_attr._attr.max_wr, init_attr._attr.max_sge = granted.max_wr, granted.max_sge
        self._pd = pd
        self._register_with_parents(pd)

    def _create_srq_ex(self, context: Context, attr: Any) -> None:
        if not isinstance(attr, SrqInitAttrEx):
            raise PyverbsRDMAError(
                "Failed to create SRQ: a Context takes an SrqInitAttrEx", errno.EINVAL
            )
        kind = attr.srq_type if attr.comp_mask & e.IBV_SRQ_INIT_ATTR_TYPE else e.IBV_SRQT_BASIC
        if kind == e.IBV_SRQT_XRC:
            raise_unsupported("SRQ of type XRC", "queues are in the memory of one process")
        if kind == e.IBV_SRQT_TM:
            raise_unsupported("SRQ of type TM", "tag matching is a feature of adapters")
        if kind != e.IBV_SRQT_BASIC or attr.pd is None or attr.pd._context is not context:
            raise PyverbsRDMAError(
                "Failed to create SRQ: a PD of this device and type IBV_SRQT_BASIC are required",
                errno.EINVAL,
            )
        self._create_srq(attr.pd, attr)

    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """Arm the queue's limit (IBV_SRQ_LIMIT), or change its size (IBV_SRQ_MAX_WR)."""
        with convert_errors("Failed to modify SRQ"):
            self._native().modify(attr._native_attr(), int(comp_mask))

    def query(self) -> SrqAttr:
        """Return the size of the queue, and its limit if armed."""
        with convert_errors("Failed to query SRQ"):
            found = self._native().query()
        return SrqAttr(found.max_wr, found.max_sge, found.srq_limit)

    def get_srq_num(self) -> int:
        """Return the number of the shared receive queue on its device."""
        return self._native().srq_num

    @property
    def srq(self) -> int:
        """A unique number of the shared receive queue in this process."""
        return id(self._native())

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post a receive and the receives linked to it by ``next_wr``.

        Raises:
            PyverbsRDMAError: the queue is full (ENOMEM), or a request is invalid (EINVAL);
                ``bad_wr`` becomes the first request that was not posted.

        """
        wrs = linked_requests(wr)
        try:
            self._native().post_recv([one._wr for one in wrs])
        except Error as error:
            if bad_wr is not None:
                bad_wr._copy_from(next(one for one in wrs if one._wr is error.bad_wr))
            raise to_pyverbs_error("Failed to post receive to SRQ", error) from error

    def post_srq_ops(self, wr: OpsWr, bad_wr: OpsWr | None = None) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no tag matching."""
        raise_unsupported("tag matching", "it is a feature of adapters")
