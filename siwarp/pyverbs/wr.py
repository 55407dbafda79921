# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work requests: ``pyverbs.wr``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import UInt, attribute_lines
from siwarp.pyverbs.base import (
    PyverbsCM,
    PyverbsRDMAErrno,
    convert_errors,
    inc_rkey,
    raise_unsupported,
)
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsUserError
from siwarp.pyverbs.utils import flags_to_text
from siwarp.verbs import wr as verbs_wr
from siwarp.verbs._ffi import ffi

if TYPE_CHECKING:
    from siwarp.pyverbs.addr import AH
    from siwarp.pyverbs.mr import MW, MWBindInfo

__all__ = [
    "SGE",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsUserError",
    "RecvWR",
    "SendWR",
    "inc_rkey",
    "send_flags_to_str",
]

_FLAGS = {
    1: "IBV_SEND_FENCE",
    2: "IBV_SEND_SIGNALED",
    4: "IBV_SEND_SOLICITED",
    8: "IBV_SEND_INLINE",
    16: "IBV_SEND_IP_CSUM",
}


def send_flags_to_str(flags: int) -> str:
    """Return the flags of a send request as text."""
    return flags_to_text(flags, _FLAGS)


class SGE(PyverbsCM):
    """A scatter/gather element, with address, length, and lkey of its region."""

    addr = UInt(64)
    length = UInt(32)
    lkey = UInt(32)

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        self.addr, self.length, self.lkey = addr, length, lkey

    def read(self, length: int, offset: int) -> bytes:
        """Return ``length`` octets of the element's memory from ``offset`` on."""
        from siwarp.pyverbs import mem_alloc

        return mem_alloc.read(self.addr, length, offset)

    def _native_sge(self) -> verbs_wr.SGE:
        return verbs_wr.SGE(self.addr, self.length, self.lkey)

    def __str__(self) -> str:
        return attribute_lines(self, "addr", "length", "lkey")


def _native_sges(sg: Sequence[SGE] | None, num_sge: int) -> list[verbs_wr.SGE]:
    count = int(num_sge)
    if count and (sg is None or count > len(sg)):
        raise PyverbsUserError(f"num_sge is {count}, but there are {len(sg or ())} elements")
    return [one._native_sge() for one in list(sg or ())[:count]]


W = TypeVar("W", "RecvWR", "SendWR")


def linked_requests(first: W) -> list[W]:
    """Return a request and the requests linked to it by ``next_wr``.

    Raises:
        PyverbsUserError: the list is circular.

    """
    found, here = [first], first.next_wr
    seen = {id(first)}
    while here is not None:
        if id(here) in seen:
            raise PyverbsUserError("The list of work requests is circular")
        seen.add(id(here))
        found.append(here)
        here = here.next_wr
    return found


class _WR(PyverbsCM):
    """What a send request and a receive request have in common."""

    _wr: verbs_wr.RecvWR | verbs_wr.SendWR

    @property
    def wr_id(self) -> int:
        """Number that the completion returns."""
        return self._wr.wr_id

    @wr_id.setter
    def wr_id(self, val: int) -> None:
        self._wr.wr_id = val

    @property
    def num_sge(self) -> int:
        """Number of scatter/gather elements."""
        return self._wr.num_sge

    @num_sge.setter
    def num_sge(self, val: int) -> None:
        count, there = int(val), len(self._wr.sg)
        if not 0 <= count <= there:
            raise PyverbsUserError(f"num_sge is {count}, but there are {there} elements")
        self._wr._c.num_sge = count


class RecvWR(_WR):
    """A receive request."""

    _wr: verbs_wr.RecvWR
    next_wr: RecvWR | None = None

    def __init__(
        self,
        wr_id: int = 0,
        num_sge: int = 0,
        sg: Sequence[SGE] | None = None,
        next_wr: RecvWR | None = None,
    ) -> None:
        self._wr = verbs_wr.RecvWR(wr_id, sg=_native_sges(sg, num_sge))
        self.next_wr = next_wr

    @property
    def sg_list(self) -> int:
        """Address of the C scatter/gather list, or 0 without elements."""
        return int(ffi.cast("uintptr_t", self._wr._c.sg_list))

    def _copy_from(self, other: RecvWR) -> None:
        self._wr, self.next_wr = other._wr, other.next_wr

    def __str__(self) -> str:
        return attribute_lines(self, "wr_id", "num_sge")


class SendWR(_WR):
    """A send request."""

    _wr: verbs_wr.SendWR
    next_wr: SendWR | None = None

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = e.IBV_WR_SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = e.IBV_SEND_SIGNALED,
        next_wr: SendWR | None = None,
    ) -> None:
        bare = (e.IBV_WR_BIND_MW, e.IBV_WR_LOCAL_INV, e.IBV_WR_SEND_WITH_INV)
        if (num_sge < 1 or sg is None) and opcode not in bare:
            raise PyverbsUserError("A WR needs at least one SGE")
        self._wr = verbs_wr.SendWR(
            wr_id,
            int(opcode),
            send_flags=int(send_flags),
            imm_data=int(imm_data),
            sg=_native_sges(sg, num_sge),
        )
        self.next_wr = next_wr

    @property
    def opcode(self) -> int:
        """A value of ``ibv_wr_opcode``."""
        return int(self._wr._c.opcode)

    @opcode.setter
    def opcode(self, val: int) -> None:
        self._wr.opcode = int(val)

    @property
    def send_flags(self) -> int:
        """Flags of ``ibv_send_flags``."""
        return int(self._wr._c.send_flags)

    @send_flags.setter
    def send_flags(self, val: int) -> None:
        self._wr.send_flags = int(val)

    @property
    def imm_data(self) -> int:
        """Immediate data of 32 bits, or the key that the request invalidates."""
        return self._wr.imm_data

    @imm_data.setter
    def imm_data(self, val: int) -> None:
        self._wr.imm_data = val

    @property
    def sg_list(self) -> int:
        """Address of the C scatter/gather list, or 0 without elements; assign an SGE."""
        return int(ffi.cast("uintptr_t", self._wr._c.sg_list))

    @sg_list.setter
    def sg_list(self, val: SGE) -> None:
        self._wr._set_sg([val._native_sge()], None)

    @property
    def rkey(self) -> int:
        """Key that a BIND_MW request gives its window."""
        return self._wr.rkey

    @property
    def rdma_rkey(self) -> int:
        """Key of the peer's memory, set by ``set_wr_rdma``."""
        return self._wr._remote[0]

    @property
    def rdma_remote_addr(self) -> int:
        """Address of the peer's memory, set by ``set_wr_rdma``."""
        return self._wr._remote[1]

    def set_wr_ud(self, ah: AH, rqpn: int, rqkey: int) -> None:
        """Set the destination of a datagram request."""
        with convert_errors("Failed to set the AH of a WR"):
            self._wr.set_wr_ud(ah._native(), int(rqpn), int(rqkey))

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Set the peer's memory of a Write or Read request."""
        self._wr.set_wr_rdma(rkey, addr)

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """Set the peer's memory and the operands of an atomic request."""
        self._wr.set_wr_atomic(rkey, addr, compare_add, swap)

    def set_bind_wr(self, mw: MW, bind_info: MWBindInfo) -> None:
        """Set the type 2 window, the new key ``rkey`` and the region of a BIND_MW request."""
        with convert_errors("Failed to set the MW of a WR"):
            self._wr.set_bind_wr(mw._native(), bind_info._to_siwarp_info())

    def set_qp_type_xrc(self, remote_srqn: int) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no XRC."""
        raise_unsupported("XRC", "queues are in the memory of one process")

    def _copy_from(self, other: SendWR) -> None:
        self._wr, self.next_wr = other._wr, other.next_wr

    def __str__(self) -> str:
        return attribute_lines(self, "wr_id", "num_sge", "opcode", "send_flags")
