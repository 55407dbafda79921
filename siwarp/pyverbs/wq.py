# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Receive side scaling, which siwarp does not support: ``pyverbs.wq``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import ReadOnlyAttribute, UInt
from siwarp.pyverbs.base import PyverbsCM, PyverbsObject, PyverbsRDMAErrno, raise_unsupported
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError

if TYPE_CHECKING:
    from siwarp.pyverbs.cq import CQ
    from siwarp.pyverbs.pd import PD

__all__ = [
    "WQ",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "RwqIndTable",
    "RwqIndTableInitAttr",
    "RxHashConf",
    "WQAttr",
    "WQInitAttr",
]

_WHY = "receive side scaling applies to Ethernet frames"


class WQInitAttr(PyverbsObject):
    """Creation parameters of a work queue."""

    wq_type = UInt(32)
    max_wr = UInt(32)
    max_sge = UInt(32)
    comp_mask = UInt(32)
    create_flags = UInt(32)
    pd: PD | None = None
    cq: CQ | None = None

    def __init__(
        self,
        wq_context: object = None,
        wq_pd: PD | None = None,
        wq_cq: CQ | None = None,
        wq_type: int = e.IBV_WQT_RQ,
        max_wr: int = 100,
        max_sge: int = 1,
        comp_mask: int = 0,
        create_flags: int = 0,
    ) -> None:
        self.pd, self.cq, self.wq_type = wq_pd, wq_cq, wq_type
        self.max_wr, self.max_sge = max_wr, max_sge
        self.comp_mask, self.create_flags = comp_mask, create_flags


class WQAttr(PyverbsObject):
    """Attributes of a work queue."""

    attr_mask = UInt(32)
    wq_state = UInt(32)
    curr_wq_state = UInt(32)
    flags = UInt(32)
    flags_mask = UInt(32)

    def __init__(
        self,
        attr_mask: int = 0,
        wq_state: int = 0,
        curr_wq_state: int = 0,
        flags: int = 0,
        flags_mask: int = 0,
    ) -> None:
        self.attr_mask, self.wq_state, self.curr_wq_state = attr_mask, wq_state, curr_wq_state
        self.flags, self.flags_mask = flags, flags_mask


class WQ(PyverbsCM):
    """A work queue for Ethernet frames.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    wqn = ReadOnlyAttribute(0)

    def __init__(self, ctx: Context, attr: WQInitAttr) -> None:
        raise_unsupported("WQ", _WHY)

    def modify(self, wq_attr: WQAttr) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no work queues."""
        raise_unsupported("WQ", _WHY)

    def post_recv(self, wr: object, bad_wr: object = None) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no work queues."""
        raise_unsupported("WQ", _WHY)

    def add_ref(self, obj: object) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no work queues."""
        raise_unsupported("WQ", _WHY)


class RwqIndTableInitAttr(PyverbsObject):
    """Creation parameters of an indirection table."""

    def __init__(
        self, log_ind_tbl_size: int = 5, wqs_list: Sequence[WQ] | None = None, comp_mask: int = 0
    ) -> None:
        self.log_ind_tbl_size, self.wqs_list = log_ind_tbl_size, list(wqs_list or ())
        self.comp_mask = comp_mask


class RwqIndTable(PyverbsCM):
    """An indirection table of work queues.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    def __init__(self, ctx: Context, attr: RwqIndTableInitAttr) -> None:
        raise_unsupported("RwqIndTable", _WHY)

    @property
    def wqs(self) -> list[WQ]:
        """The work queues of the table: none, because siwarp has no such tables."""
        return []

    def add_ref(self, obj: object) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no indirection tables."""
        raise_unsupported("RwqIndTable", _WHY)


class RxHashConf(PyverbsObject):
    """Hash function that distributes frames over work queues."""

    rx_hash_function = UInt(8)
    rx_hash_key_len = UInt(8)
    rx_hash_fields_mask = UInt(64)
    rx_hash_key: object = 0

    def __init__(
        self,
        rx_hash_function: int = 0,
        rx_hash_key_len: int = 0,
        rx_hash_key: object = 0,
        rx_hash_fields_mask: int = 0,
    ) -> None:
        self.rx_hash_function, self.rx_hash_key_len = rx_hash_function, rx_hash_key_len
        self.rx_hash_key, self.rx_hash_fields_mask = rx_hash_key, rx_hash_fields_mask
