# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory windows: parts of a region that peers may access, changed by posted requests."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from siwarp.verbs._ffi import check_pointer, destroy_objects_of_dropped_handles, lib
from siwarp.verbs.enums import AccessFlag, MWType, SendFlag, WROpcode
from siwarp.verbs.mr import MR, RemoteBuffer
from siwarp.verbs.pd import PD
from siwarp.verbs.wr import BindObject, SendWR

if TYPE_CHECKING:
    from siwarp.verbs.qp import QP

__all__ = ["MW", "MWBind", "MWBindInfo", "inc_rkey"]


def inc_rkey(rkey: int) -> int:
    """Return ``rkey`` with its low octet incremented (``siw_inc_rkey``); for windows of type 2."""
    return int(lib.siw_inc_rkey(rkey))


@dataclass(frozen=True)
class MWBindInfo:
    """The memory that a window is bound to (``struct siw_mw_bind_info``).

    Attributes:
        mr: a region created with ``AccessFlag.MW_BIND``; ``None`` with length 0.
        addr, length: address of the first octet and number of octets.
        mw_access_flags: REMOTE_WRITE, REMOTE_READ; with ZERO_BASED the peer's offsets start at 0.

    """

    mr: MR | None
    addr: int
    length: int
    mw_access_flags: int


@dataclass(frozen=True)
class MWBind:
    """A bind of a window of type 1 (``struct siw_mw_bind``), for ``QP.bind_mw``."""

    info: MWBindInfo
    wr_id: int = 0
    send_flags: int = SendFlag.SIGNALED


class MW(BindObject):
    """A memory window (``siw_alloc_mw``); closing the window ends its binding.

    ``bind()`` and ``invalidate()`` work for both types. The pyverbs interfaces are ``QP.bind_mw``
    for type 1, and for type 2 a ``SendWR`` with ``set_bind_wr`` or LOCAL_INV.

    Raises:
        Error: the type does not exist (EINVAL).
        LimitError: the device's limit of windows is reached (ENOMEM).

    """

    __slots__ = ("pd", "type")
    _what = "MW"
    _destroy = lib.siw_dealloc_mw

    pd: PD
    type: MWType

    def __init__(self, pd: PD, mw_type: int = MWType.TYPE_2) -> None:
        destroy_objects_of_dropped_handles()
        c = check_pointer(lib.siw_alloc_mw(pd._c_object(), int(mw_type)), "making a memory window")
        self.pd = pd
        self.type = MWType(mw_type)
        self._wrs: weakref.WeakSet[SendWR] = weakref.WeakSet()
        self._adopt_c_object(c, pd)

    @property
    def rkey(self) -> int:
        """The window's key: that of the bind posted last, or the value assigned to ``rkey``."""
        return int(self._c_object().rkey)

    @rkey.setter
    def rkey(self, value: int) -> None:
        self._c_object().rkey = value

    def bind(
        self,
        qp: QP,
        mr: MR,
        offset: int = 0,
        length: int | None = None,
        *,
        access: int = AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ,
        wr_id: int = 0,
        send_flags: int = SendFlag.SIGNALED,
    ) -> RemoteBuffer:
        """Post a bind to ``length`` octets (default: all) of ``mr`` from ``offset``.

        Return the remote buffer that the peer needs after the bind. A window of type 2 gets the
        next key at each bind, and must be unbound when the bind is executed.

        Raises:
            ValueError: the octets are not inside the region.
            LimitError, StateError, Error: as in ``QP.post_send``.

        """
        mr._c_object()
        offset, length = mr._checked_range(offset, length)
        info = MWBindInfo(mr, mr.iova + offset, length, access)
        if self.type == MWType.TYPE_1:
            qp.bind_mw(self, MWBind(info, wr_id, send_flags))
        else:
            wr = SendWR(wr_id, WROpcode.BIND_MW, send_flags=send_flags)
            wr.set_bind_wr(self, info)
            qp.post_send(wr)
            self.rkey = wr.rkey
        start = 0 if access & AccessFlag.ZERO_BASED else info.addr
        return RemoteBuffer(start, length, self.rkey)

    def invalidate(
        self, qp: QP, *, wr_id: int = 0, send_flags: int = SendFlag.SIGNALED | SendFlag.FENCE
    ) -> None:
        """Post a request that ends the binding: type 1, a bind of length 0; type 2, a LOCAL_INV.

        After the request has completed, no peer can access memory with the key.
        """
        if self.type == MWType.TYPE_1:
            qp.bind_mw(self, MWBind(MWBindInfo(None, 0, 0, 0), wr_id, send_flags))
            return
        qp.post_send(
            SendWR(wr_id, WROpcode.LOCAL_INV, send_flags=send_flags, invalidate_rkey=self.rkey)
        )

    def _advice_after_ebusy(self) -> str:
        return (
            f"a bind of this window is outstanding on one of {self.pd._queue_pair_names()}: poll "
            "for its completion, or close that QP, first"
        )

    def _description_for_repr(self) -> str:
        return f"{self.type.name} rkey={self.rkey:#x}"
