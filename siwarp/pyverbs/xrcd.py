# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""XRC domains, which siwarp does not have: ``pyverbs.xrcd``."""

from __future__ import annotations

from siwarp.pyverbs._field import UInt
from siwarp.pyverbs.base import PyverbsCM, PyverbsObject, PyverbsRDMAErrno, refuse
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

__all__ = ["XRCD", "PyverbsError", "PyverbsRDMAErrno", "PyverbsRDMAError", "XRCDInitAttr"]


class XRCDInitAttr(PyverbsObject):
    """What an XRC domain would be made with."""

    comp_mask = UInt(32)
    oflags = UInt(32)
    fd = -1

    def __init__(self, comp_mask: int, oflags: int, fd: int) -> None:
        self.comp_mask, self.oflags, self.fd = comp_mask, oflags, fd


class XRCD(PyverbsCM):
    """An XRC domain: receive queues that processes share.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    def __init__(self, context: Context, init_attr: XRCDInitAttr) -> None:
        refuse("XRC domain", "queues here are memory of one process")
