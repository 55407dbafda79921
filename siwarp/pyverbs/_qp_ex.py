# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Extended queue pairs, whose requests are built one after another and posted as a list."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from siwarp.base import system
from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import UInt
from siwarp.pyverbs._qp_attr import DataBuffer, QPAttr, QPInitAttrEx
from siwarp.pyverbs.base import convert_errors, raise_unsupported
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.mr import MW, MWBindInfo, memory_buffer_at
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError
from siwarp.pyverbs.qp import QP
from siwarp.verbs import wr as verbs_wr
from siwarp.verbs._ffi import ffi

if TYPE_CHECKING:
    from siwarp.pyverbs.addr import AH
    from siwarp.pyverbs.wr import SGE

_SENDS = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM
_TAGGED = (
    e.IBV_QP_EX_WITH_RDMA_WRITE
    | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | e.IBV_QP_EX_WITH_LOCAL_INV
    | e.IBV_QP_EX_WITH_BIND_MW
    | e.IBV_QP_EX_WITH_SEND_WITH_INV
)
_OPERATIONS = {
    e.IBV_QPT_RC: _SENDS
    | _TAGGED
    | e.IBV_QP_EX_WITH_RDMA_READ
    | e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    e.IBV_QPT_UC: _SENDS | _TAGGED,
    e.IBV_QPT_UD: _SENDS,
}


class _Request:
    """A send request under construction."""

    def __init__(self, opcode: int, wr_id: int, flags: int, **more: Any) -> None:
        self.opcode, self.wr_id, self.flags, self.more = opcode, wr_id, flags, more
        self.sg: list[verbs_wr.SGE] = []
        self.inline = False
        self.to: tuple[Any, int, int] | None = None
        self.keep: Any = None

    def to_native(self) -> verbs_wr.SendWR:
        """Return the request as a send request of ``siwarp.verbs``."""
        flags = self.flags & ~e.IBV_SEND_INLINE | (e.IBV_SEND_INLINE if self.inline else 0)
        plain = {name: self.more[name] for name in ("imm_data",) if name in self.more}
        wr = verbs_wr.SendWR(self.wr_id, self.opcode, send_flags=flags, sg=self.sg, **plain)
        if "remote" in self.more:
            wr.set_wr_rdma(*self.more["remote"])
        if "atomic" in self.more:
            wr.set_wr_atomic(*self.more["atomic"])
        if "bind" in self.more:
            wr.set_bind_wr(*self.more["bind"])
        if self.to is not None:
            wr.set_wr_ud(*self.to)
        return wr


def _to_network_byte_order(imm_data: int) -> int:
    """Convert the immediate data of ``wr_send_imm`` from host to network byte order."""
    return socket.htonl(imm_data)


class QPEx(QP):
    """An extended queue pair: ``wr_start``, requests and their setters, ``wr_complete``.

    An error in a request of a list drops all requests of the list.

    Raises:
        PyverbsRDMAError: as for QP; ``send_ops_flags`` has operations that the type does not
            support (EOPNOTSUPP).

    """

    comp_mask = UInt(64)
    wr_id = UInt(64)
    wr_flags = UInt(32)

    def __init__(
        self,
        creator: Context,
        init_attr: QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        operations = init_attr.send_ops_flags
        if init_attr.comp_mask & e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS:
            known = _OPERATIONS.get(e.ibv_qp_type(init_attr.qp_type), operations)
            if operations & ~known:
                raise_unsupported(
                    "such operations on this type of QP", f"flags {operations & ~known:#x}"
                )
        super().__init__(creator, init_attr, qp_attr)
        self._building = system.lock()
        self._started = False
        self._requests: list[_Request] = []
        self._why: PyverbsRDMAError | None = None

    @property
    def ind_table(self) -> None:
        """None, because receive side scaling is not supported."""
        return

    # ---- the list

    def wr_start(self) -> None:
        """Begin a list of requests; calls of other threads wait for the end of the list."""
        self._building.acquire()
        self._started = True
        self._requests, self._why = [], None

    def wr_complete(self) -> None:
        """Post all requests of the list or, after an error, none.

        Raises:
            PyverbsRDMAError: the error of the first invalid request.

        """
        if not self._started:
            raise PyverbsRDMAError("Failed to complete: wr_start was not called", errno.EINVAL)
        requests, why = self._requests, self._why
        try:
            if why is not None:
                raise why
            with convert_errors("Failed to post the list of requests"):
                self._native().post_send_all([one.to_native() for one in requests])
        finally:
            self._requests = []
            self._started = False
            self._building.release()

    def wr_abort(self) -> None:
        """Discard the list of requests."""
        if self._started:
            self._requests = []
            self._started = False
            self._building.release()

    def _begin_request(self, opcode: int, **more: Any) -> None:
        self._requests.append(_Request(opcode, self.wr_id, self.wr_flags, **more))

    def _record_error(self, why: str, code: int) -> None:
        self._why = self._why or PyverbsRDMAError(why, code)

    def _last_request(self) -> _Request:
        if not self._requests:
            self._record_error("There is no request to modify: begin one first", errno.EINVAL)
            return _Request(0, 0, 0)
        return self._requests[-1]

    # ---- operations

    def wr_send(self) -> None:
        """Begin a Send."""
        self._begin_request(e.IBV_WR_SEND)

    def wr_send_imm(self, data: int) -> None:
        """Begin a Send with immediate data in host byte order."""
        self._begin_request(e.IBV_WR_SEND_WITH_IMM, imm_data=_to_network_byte_order(data))

    def wr_send_inv(self, invalidate_rkey: int) -> None:
        """Begin a Send with Invalidate of an rkey of the peer."""
        self._begin_request(e.IBV_WR_SEND_WITH_INV, imm_data=invalidate_rkey)

    def wr_rdma_read(self, rkey: int, remote_addr: int) -> None:
        """Begin a Read."""
        self._begin_request(e.IBV_WR_RDMA_READ, remote=(rkey, remote_addr))

    def wr_rdma_write(self, rkey: int, remote_addr: int) -> None:
        """Begin a Write."""
        self._begin_request(e.IBV_WR_RDMA_WRITE, remote=(rkey, remote_addr))

    def wr_rdma_write_imm(self, rkey: int, remote_addr: int, data: int) -> None:
        """Begin a Write with immediate data in host byte order."""
        self._begin_request(
            e.IBV_WR_RDMA_WRITE_WITH_IMM,
            remote=(rkey, remote_addr),
            imm_data=_to_network_byte_order(data),
        )

    def wr_atomic_cmp_swp(self, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
        """Begin a compare and swap."""
        self._begin_request(e.IBV_WR_ATOMIC_CMP_AND_SWP, atomic=(rkey, remote_addr, compare, swap))

    def wr_atomic_fetch_add(self, rkey: int, remote_addr: int, add: int) -> None:
        """Begin a fetch and add."""
        self._begin_request(e.IBV_WR_ATOMIC_FETCH_AND_ADD, atomic=(rkey, remote_addr, add))

    def wr_bind_mw(self, mw: MW, rkey: int, bind_info: MWBindInfo) -> None:
        """Begin a bind of a type 2 window, which gives the window the key ``rkey``."""
        bind = mw._native(), bind_info._to_siwarp_info(), rkey
        self._begin_request(e.IBV_WR_BIND_MW, bind=bind)

    def wr_local_inv(self, invalidate_rkey: int) -> None:
        """Begin a local invalidation of a key."""
        self._begin_request(e.IBV_WR_LOCAL_INV, imm_data=invalidate_rkey)

    def wr_send_tso(self, hdr: int, hdr_sz: int, mss: int) -> None:
        """Record that TSO is not supported, so that ``wr_complete`` raises an error."""
        self._record_error("siwarp has no TSO: it applies to Ethernet frames", errno.EOPNOTSUPP)

    def wr_flush(self, rkey: int, remote_addr: int, length: int, ptype: int, level: int) -> None:
        """Record that flushes are unsupported, so that ``wr_complete`` raises an error."""
        self._record_error("siwarp has no flush: RFC 7306 does not define it", errno.EOPNOTSUPP)

    def wr_atomic_write(self, rkey: int, remote_addr: int, atomic_wr: object) -> None:
        """Record that atomic writes are unsupported, so that ``wr_complete`` raises an error."""
        self._record_error(
            "siwarp has no atomic write: RFC 7306 does not define it", errno.EOPNOTSUPP
        )

    # ---- setters for the last request

    def wr_set_ud_addr(self, ah: AH, remote_qpn: int, remote_rkey: int) -> None:
        """Set the destination of the last datagram request."""
        self._last_request().to = ah._native(), remote_qpn, remote_rkey

    def wr_set_xrc_srqn(self, remote_srqn: int) -> None:
        """Record that XRC is not supported, so that ``wr_complete`` raises an error."""
        self._record_error(
            "siwarp has no XRC: queues are in the memory of one process", errno.EOPNOTSUPP
        )

    def wr_set_sge(self, sge: SGE) -> None:
        """Set a single scatter/gather element of the last request."""
        self.wr_set_sge_list(1, [sge])

    def wr_set_sge_list(self, num_sge: int, sg_list: Sequence[SGE]) -> None:
        """Set the scatter/gather elements of the last request."""
        last = self._last_request()
        if not 0 <= num_sge <= len(sg_list):
            self._record_error(f"There are {len(sg_list)} elements, not {num_sge}", errno.EINVAL)
            return
        last.sg = [one._native_sge() for one in list(sg_list)[:num_sge]]
        last.inline = False

    def wr_set_inline_data(self, addr: int, length: int) -> None:
        """Set the inline data of the last request, which is copied during the call."""
        self.wr_set_inline_data_list(1, [DataBuffer(addr, length)])

    def wr_set_inline_data_list(self, num_buf: int, buf_list: Sequence[DataBuffer]) -> None:
        """Set the inline data of the last request from several buffers, copied during the call."""
        last, most = self._last_request(), self._native().cap.max_inline_data
        chosen = list(buf_list)[:num_buf]
        total = sum(one.length for one in chosen)
        if total > most:
            self._record_error(
                f"{total} octets of inline data exceed max_inline_data, {most}", errno.ENOMEM
            )
            return
        data = b"".join(bytes(memory_buffer_at(one.addr, one.length)[:]) for one in chosen)
        last.keep = ffi.new("uint8_t[]", data or b"\0")
        at = int(ffi.cast("uintptr_t", last.keep))
        last.sg = [verbs_wr.SGE(at, total, 0)] if total else []
        last.inline = True
