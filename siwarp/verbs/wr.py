# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work requests: Python objects around C structures, so that posting has little overhead."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from siwarp.verbs._ffi import Handle, ffi, lib
from siwarp.verbs.enums import SendFlag, WROpcode
from siwarp.verbs.errors import Error
from siwarp.verbs.reason import refusal_error
from siwarp.verbs.wanted import require_instance, type_error

if TYPE_CHECKING:
    from siwarp.verbs.ah import AH
    from siwarp.verbs.mr import MR, RemoteBuffer
    from siwarp.verbs.mw import MW, MWBindInfo

__all__ = ["SGE", "RecvWR", "SendWR"]

#: A remote Q_Key with its top bit set means the Q_Key of the sending queue pair.
OWN_QKEY = 0x80000000

#: The opcodes of atomic operations, which access 64 bits of the peer's memory.
ATOMICS = frozenset(
    (
        WROpcode.ATOMIC_CMP_AND_SWP,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.MASKED_ATOMIC_CMP_AND_SWP,
        WROpcode.MASKED_ATOMIC_FETCH_AND_ADD,
    )
)

#: The opcodes of RDMA Writes, RDMA Reads and Write-Records.
RDMA = frozenset(
    (
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_WRITE_WITH_IMM,
        WROpcode.RDMA_READ,
        WROpcode.RDMA_WRITE_RECORD,
    )
)

_null = ffi.NULL
#: An operation of two integers takes a tenth of the time of one with an enumeration.
_INLINE = int(SendFlag.INLINE)


class SGE:
    """A piece of registered memory (``struct siw_sge``): address, length in octets, lkey.

    ``MR.sge()`` makes one with its bounds checked.
    """

    __slots__ = ("_c", "_keep")

    def __init__(self, addr: int, length: int, lkey: int, *, keep: object = None) -> None:
        c = ffi.new("struct siw_sge *")
        c.addr = addr
        c.length = length
        c.lkey = lkey
        self._c = c
        self._keep = keep

    @classmethod
    def _from_c(cls, c: Any, keep: object) -> SGE:
        self = cls.__new__(cls)
        self._c = c
        self._keep = keep
        return self

    @property
    def addr(self) -> int:
        """The address of the scatter/gather element's first octet."""
        return int(self._c.addr)

    @addr.setter
    def addr(self, value: int) -> None:
        self._c.addr = value

    @property
    def length(self) -> int:
        """The length of the scatter/gather element in octets."""
        return int(self._c.length)

    @length.setter
    def length(self, value: int) -> None:
        self._c.length = value

    @property
    def lkey(self) -> int:
        """The key of the memory region."""
        return int(self._c.lkey)

    @lkey.setter
    def lkey(self, value: int) -> None:
        self._c.lkey = value

    def __repr__(self) -> str:
        return f"SGE(addr={self.addr:#x}, length={self.length}, lkey={self.lkey:#x})"


class _WR:
    """The common part of work requests: a C structure, scatter/gather elements, the next request.

    ``_next`` is the request that the C structure points to. A list that is posted again keeps its
    links.
    """

    __slots__ = ("_c", "_keep", "_next", "sg")

    _c: Any
    _next: Any
    #: The request's own scatter/gather elements; the length of ``wr.sg[0]`` may be changed between
    #: two posts.
    sg: tuple[SGE, ...]

    def _set_sg(self, sg: Sequence[SGE], num_sge: int | None) -> None:
        if num_sge is not None:
            require_instance(num_sge, int, "num_sge is an int; pass the elements as sg=[mr.sge()]")
        try:
            chosen = list(sg)[:num_sge]
            array = ffi.new("struct siw_sge[]", len(chosen))
            for i, element in enumerate(chosen):
                array[i] = element._c[0]
        except (AttributeError, TypeError):
            raise type_error("sg is a list of elements, for example [mr.sge(0, 64)]", sg) from None
        if num_sge is not None and num_sge > len(chosen):
            raise ValueError(f"num_sge is {num_sge}, but there are {len(chosen)} elements")
        self._c.sg_list = array if chosen else _null
        self._c.num_sge = len(chosen)
        self._keep = array
        self.sg = tuple(
            SGE._from_c(array + i, (array, element._keep)) for i, element in enumerate(chosen)
        )

    def _clear_next(self) -> None:
        self._next = None
        self._c.next = _null

    @property
    def wr_id(self) -> int:
        """The request's 64-bit id, which its completion returns."""
        return int(self._c.wr_id)

    @wr_id.setter
    def wr_id(self, value: int) -> None:
        self._c.wr_id = value

    @property
    def num_sge(self) -> int:
        """The number of elements in ``sg``."""
        return int(self._c.num_sge)


class RecvWR(_WR):
    """A receive request (``struct siw_recv_wr``). It may be posted any number of times.

    The elements are copied; ``wr.sg`` contains the copies.
    """

    __slots__ = ()

    def __init__(self, wr_id: int = 0, num_sge: int | None = None, sg: Sequence[SGE] = ()) -> None:
        self._c = ffi.new("struct siw_recv_wr *")
        self._next = None
        self._c.wr_id = wr_id
        self._set_sg(sg, num_sge)

    def __repr__(self) -> str:
        return f"RecvWR(wr_id={self.wr_id}, sg={list(self.sg)})"


class SendWR(_WR):
    """A send request (``struct siw_send_wr``). It may be posted any number of times.

    The elements are copied; ``wr.sg`` contains the copies.

    Args:
        wr_id: the number that the completion returns.
        opcode: SEND, SEND_WITH_INV, SEND_WITH_IMM, RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ,
            ATOMIC_FETCH_AND_ADD, ATOMIC_CMP_AND_SWP, one of the two masked atomics, BIND_MW or
            LOCAL_INV.
        num_sge: the number of elements of ``sg`` to use; default: all.
        send_flags: SIGNALED by default; 0 for a request without a completion.
        sg: the memory to send from or, for a Read, to place into; for an atomic 8 octets in total,
            which receive the previous value.
        ah, remote_qpn, remote_qkey: UD; for RD without the Q_Key. A QPN of 0 means the port of the
            address handle, or the sender that the handle was created from; the default Q_Key is
            that of the queue pair itself. To answer: ``ah=AH(pd, wc=wc), remote_qpn=wc.src_qp``.
        remote: RDMA Write, Read and atomics: the peer's memory.
        compare_add, swap: atomics: the value to add, or the values to compare with and to swap in.
        compare_add_mask, swap_mask: masked atomics: for adding, the most significant bit of each
            field; for swapping, the bits to compare and the bits to swap.
        invalidate_rkey: SEND_WITH_INV: the peer's key to invalidate when the message arrives.
            LOCAL_INV: a key of this end.
        imm_data: the two opcodes with immediate data: 32 bits for the peer's completion, sent in
            the machine's byte order; if the peer's may differ, use ``socket.htonl``.

    """

    __slots__ = (
        "__weakref__",
        "_ah",
        "_bind",
        "_masks",
        "_mr",
        "_mw",
        "_operands",
        "_remote",
        "_to",
    )

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = WROpcode.SEND,
        num_sge: int | None = None,
        *,
        send_flags: int = SendFlag.SIGNALED,
        sg: Sequence[SGE] = (),
        ah: AH | None = None,
        remote_qpn: int = 0,
        remote_qkey: int = OWN_QKEY,
        remote: RemoteBuffer | None = None,
        invalidate_rkey: int = 0,
        imm_data: int = 0,
        compare_add: int = 0,
        swap: int = 0,
        compare_add_mask: int = 0,
        swap_mask: int = 0,
    ) -> None:
        self._c = ffi.new("struct siw_send_wr *")
        self._next = None
        self._ah: AH | None = None
        self._mw: MW | None = None
        self._mr: MR | None = None
        # Values that the C structure stores in unions are also kept in attributes: see
        # _store_union_fields().
        self._to: tuple[Any, int, int] = (_null, 0, 0)  # destination: C object of AH, QPN, Q_Key
        try:
            self._remote = (0, 0) if remote is None else (remote.rkey, remote.addr)
        except AttributeError:
            raise type_error(
                "remote is a RemoteBuffer, for example from RemoteBuffer.unpack()", remote
            ) from None
        self._operands = (compare_add, swap)
        self._masks = (compare_add_mask, swap_mask)
        self._bind: tuple[Any, int, Any, int, int, int] = (_null, 0, _null, 0, 0, 0)
        self._c.wr_id = wr_id
        self._c.opcode = opcode
        self._c.send_flags = send_flags
        # Immediate data and the rkey to invalidate share one field, a union in C.
        self._c.invalidate_rkey = invalidate_rkey or imm_data
        self._set_sg(sg, num_sge)
        if send_flags & _INLINE:  # inline data is read at its address, not at its iova
            for own, element in zip(self.sg, sg, strict=False):
                own.addr += getattr(element._keep, "addr", 0) - getattr(element._keep, "iova", 0)
        if ah is None:
            self._store_union_fields()
        else:
            self.set_wr_rd(ah, remote_qpn, remote_qkey)

    def _store_union_fields(self) -> None:
        """Store the values that the opcode uses in the C structure's unions, and no others.

        The library must never interpret an address in the peer's memory as one of our address
        handles, no matter which attributes were set, and in which order.
        """
        c, opcode = self._c, self._c.opcode
        if opcode == WROpcode.BIND_MW:
            bind, info = c.bind_mw, c.bind_mw.bind_info
            bind.mw, bind.rkey, info.mr, info.addr, info.length, info.mw_access_flags = self._bind
        else:
            c.masked.compare_add_mask, c.masked.swap_mask = self._masks
            c.rd.ah, c.rd.remote_qpn, c.rd.remote_qkey = self._to
        if opcode in RDMA:
            c.wr.rdma.rkey, c.wr.rdma.remote_addr = self._remote
        elif opcode in ATOMICS:
            c.wr.atomic.rkey, c.wr.atomic.remote_addr = self._remote
            c.wr.atomic.compare_add, c.wr.atomic.swap = self._operands
        else:
            c.wr.ud.ah, c.wr.ud.remote_qpn, c.wr.ud.remote_qkey = self._to

    def set_wr_ud(self, ah: AH, rqpn: int = 0, rqkey: int = OWN_QKEY) -> None:
        """Set the destination of a UD message; keeps the address handle alive."""
        self.set_wr_rd(ah, rqpn, rqkey)

    def set_wr_rd(self, ah: AH, rqpn: int = 0, rqkey: int = OWN_QKEY) -> None:
        """Set the peer of an RD request or RDMA_WRITE_RECORD; keeps the address handle alive."""
        try:
            to = ah._c_object(), rqpn or ah.qpn, rqkey
        except AttributeError:
            raise type_error(
                "ah is an address handle, for example AH(pd, (host, port))", ah
            ) from None
        if ah is not self._ah:
            ah._users.add(self)
            self._ah = ah
        elif to == self._to:
            return  # the destination is unchanged since the last post
        self._to = to
        self._store_union_fields()

    def _replace_c_address_handle(self, ah: AH, handle: Any) -> None:
        """Store the C object of the address handle; NULL after the handle was closed."""
        if ah is not self._ah:
            return
        self._to = handle, *self._to[1:]
        opcode = self._c.opcode
        if opcode != WROpcode.BIND_MW:
            self._c.rd.ah = handle
        if opcode not in RDMA and opcode not in ATOMICS:
            self._c.wr.ud.ah = handle

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Set the peer's memory for an RDMA Write or Read."""
        self._remote = rkey, addr
        self._store_union_fields()

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """Set the rkey, the remote address and the operands of an atomic operation."""
        self._remote, self._operands = (rkey, addr), (compare_add, swap)
        self._store_union_fields()

    def set_bind_wr(self, mw: MW, bind_info: MWBindInfo, rkey: int | None = None) -> None:
        """Set the type 2 memory window that a BIND_MW binds, and the memory to bind it to.

        The request keeps window and region alive. ``rkey`` is the window's new key, which differs
        only in the low octet; the default is the key after ``mw.rkey``.
        """
        mr = bind_info.mr
        self._bind = (
            mw._c_object(),
            lib.siw_inc_rkey(mw.rkey) if rkey is None else rkey,
            _null if mr is None else mr._c_object(),
            bind_info.addr,
            bind_info.length,
            int(bind_info.mw_access_flags),
        )
        mw._wrs.add(self)
        if mr is not None:
            mr._wrs.add(self)
        self._mw, self._mr = mw, mr
        self._store_union_fields()

    def _clear_bind_references_to(self, gone: BindObject) -> None:
        mw, rkey, mr, addr, length, flags = self._bind
        mw = _null if self._mw is gone else mw
        mr = _null if self._mr is gone else mr
        self._bind = mw, rkey, mr, addr, length, flags
        self._store_union_fields()

    @property
    def rkey(self) -> int:
        """The key that a BIND_MW assigns to its memory window."""
        return int(self._bind[1])

    @property
    def invalidate_rkey(self) -> int:
        """The key that a SEND_WITH_INV invalidates at the peer, or a LOCAL_INV at this end."""
        return int(self._c.invalidate_rkey)

    @invalidate_rkey.setter
    def invalidate_rkey(self, value: int) -> None:
        self._c.invalidate_rkey = value

    @property
    def imm_data(self) -> int:
        """The immediate data of RDMA_WRITE_WITH_IMM and SEND_WITH_IMM: 32 bits."""
        return int(self._c.imm_data)

    @imm_data.setter
    def imm_data(self, value: int) -> None:
        self._c.imm_data = value

    @property
    def opcode(self) -> WROpcode:
        """The operation of the send request (``WROpcode``)."""
        return WROpcode(self._c.opcode)

    @opcode.setter
    def opcode(self, value: int) -> None:
        self._c.opcode = value
        self._store_union_fields()

    @property
    def send_flags(self) -> SendFlag:
        """The flags of the request (``SendFlag``)."""
        return SendFlag(self._c.send_flags)

    @send_flags.setter
    def send_flags(self, value: int) -> None:
        self._c.send_flags = value

    def __repr__(self) -> str:
        try:
            opcode = self.opcode.name
        except ValueError:
            opcode = str(self._c.opcode)
        return f"SendWR(wr_id={self.wr_id}, opcode={opcode}, sg={list(self.sg)})"


def link_requests(wrs: Iterable[_WR]) -> Any:
    """Chain work requests in their order and return the first one's C structure.

    Links that exist from the previous post cost one comparison each. A list that contains a request
    twice cannot be chained; the complete list is then copied.
    """
    many = list(wrs)
    if not many:
        return None
    if len(set(many)) != len(many):
        return _copy_requests(many)
    here = many[0]
    for after in many[1:]:
        if here._next is not after:
            here._next = after
            here._c.next = after._c
        here = after
    if here._next is not None:
        here._clear_next()
    return many[0]._c


@cache
def arrays_module() -> ModuleType:
    """Return the module ``siwarp.verbs.arrays``, which needs NumPy and imports this module."""
    from siwarp.verbs import arrays

    return arrays


def posting_array_error(rc: int, index: int, queue: object) -> Error:
    """Return the exception for the request of an array that the library refused to post."""
    error = refusal_error(-rc, f"posting the request with index {index} to {queue!r}")
    error.bad_wr = int(index)
    return error


def _copy_requests(many: list[_WR]) -> Any:
    kind = "struct siw_send_wr" if isinstance(many[0], SendWR) else "struct siw_recv_wr"
    array = ffi.new(f"{kind}[]", len(many))
    for i, wr in enumerate(many):
        array[i] = wr._c[0]
        array[i].next = array + i + 1 if i + 1 < len(many) else _null
    return array


class BindObject(Handle):
    """A handle that bind requests point to: the window, and the region that it is bound to."""

    __slots__ = ("_wrs",)

    #: The bind requests that point to this object.
    _wrs: weakref.WeakSet[SendWR]

    def _on_forced_close(self) -> None:
        # A work request must never point to a closed object.
        for wr in list(self._wrs):
            wr._clear_bind_references_to(self)

    def _destroy_c_object(self) -> None:
        self._on_forced_close()
        super()._destroy_c_object()
