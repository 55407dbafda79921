# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""XRC domains, which siwarp does not support: ``pyverbs.xrcd``."""

from __future__ import annotations

from siwarp.pyverbs._field import UInt
from siwarp.pyverbs.base import PyverbsCM, PyverbsObject, PyverbsRDMAErrno, raise_unsupported
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

__all__ = ["XRCD", "PyverbsError", "PyverbsRDMAErrno", "PyverbsRDMAError", "XRCDInitAttr"]


class XRCDInitAttr(PyverbsObject):
    """Creation parameters of an XRC domain."""

    comp_mask = UInt(32)
    oflags = UInt(32)
    fd = -1

    def __init__(self, comp_mask: int, oflags: int, fd: int) -> None:
        self.comp_mask, self.oflags, self.fd = comp_mask, oflags, fd


class XRCD(PyverbsCM):
    """An XRC domain, for receive queues shared by processes.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    def __init__(self, context: Context, init_attr: XRCDInitAttr) -> None:
        raise_unsupported("XRC domain", "queues are in the memory of one process")
