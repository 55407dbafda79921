# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Completion counters, which siwarp does not support: ``pyverbs.comp_cntr``."""

from __future__ import annotations

from typing import NoReturn

from siwarp.pyverbs._field import UInt
from siwarp.pyverbs.base import PyverbsCM, PyverbsObject, PyverbsRDMAErrno, raise_unsupported
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError

__all__ = ["CompCntr", "CompCntrInitAttr", "PyverbsRDMAErrno", "PyverbsRDMAError"]

#: Reason in errors of all operations on completion counters.
WHY = "its completions are counted in completion queues"


class CompCntrInitAttr(PyverbsObject):
    """Creation parameters of a completion counter."""

    comp_mask = UInt(32)
    cntr_type = UInt(32)
    flags = UInt(32)

    def __init__(self, comp_mask: int = 0, cntr_type: int = 0, flags: int = 0) -> None:
        self.comp_mask, self.cntr_type, self.flags = comp_mask, cntr_type, flags


class CompCntr(PyverbsCM):
    """A counter of completions.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    def __init__(self, ctx: Context, attr: CompCntrInitAttr) -> None:
        raise_unsupported("CompCntr", WHY)

    def set(self, value: int) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no completion counters."""
        raise_unsupported("CompCntr", WHY)

    def set_err(self, value: int) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no completion counters."""
        raise_unsupported("CompCntr", WHY)

    def inc(self, amount: int) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no completion counters."""
        raise_unsupported("CompCntr", WHY)

    def inc_err(self, amount: int) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no completion counters."""
        raise_unsupported("CompCntr", WHY)

    def read(self) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no completion counters."""
        raise_unsupported("CompCntr", WHY)

    def read_err(self) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no completion counters."""
        raise_unsupported("CompCntr", WHY)
