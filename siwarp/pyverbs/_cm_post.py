# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Creation, requests and completions of a connection id's queue pair (``pyverbs.cmid.CMID``)."""

from __future__ import annotations

import errno
from abc import abstractmethod

from siwarp.cm import id as cm
from siwarp.pyverbs import enums as e
from siwarp.pyverbs.addr import AH
from siwarp.pyverbs.base import Wrapper, convert_errors
from siwarp.pyverbs.cq import CQ, CQEX, WC, CompChannel
from siwarp.pyverbs.mr import MR
from siwarp.pyverbs.pd import PD
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError
from siwarp.pyverbs.qp import QP, QPInitAttr, check_qp_type, granted_capacities, to_native_init_attr
from siwarp.pyverbs.wr import SGE, RecvWR, SendWR
from siwarp.verbs import qp as verbs_qp


class Posting(Wrapper[cm.CMID]):
    """Queue pair operations of a connection id."""

    #: Q_Key of UD queue pairs that connection ids move to RTS.
    _QKEY = 0x01234567

    def _init_posting(self) -> None:
        self._qp: QP | None = None
        self._own_pd: PD | None = None
        self._own_queues: list[CompChannel | CQ] = []

    @property
    @abstractmethod
    def pd(self) -> PD:
        """The protection domain of the id."""

    @property
    @abstractmethod
    def _qp_type(self) -> int: ...

    # ---- the queue pair

    def create_qp(self, qp_init: QPInitAttr) -> None:
        """Create the id's queue pair, and the completion queues that ``qp_init`` does not contain.

        Raises:
            PyverbsRDMAError: the id has a queue pair already, or no device yet, or ``qp_init`` has
                the wrong type (EINVAL); as for QP.

        """
        what = "Failed to create QP"
        if self._qp is not None or qp_init.qp_type != self._qp_type:
            raise PyverbsRDMAError(
                f"{what}: the CMID already has one, or the type does not match its port space",
                errno.EINVAL,
            )
        check_qp_type(qp_init.qp_type)
        pd = self.pd
        attr = QPInitAttr(
            qp_init.qp_type,
            qp_init.qp_context,
            qp_init.send_cq or self._create_cq(qp_init.max_send_wr),
            qp_init.recv_cq or self._create_cq(qp_init.max_recv_wr),
            qp_init.srq,
            qp_init.cap,
            qp_init.sq_sig_all,
        )
        wanted = to_native_init_attr(attr, by_qpn=False)
        with convert_errors(what):
            native = verbs_qp.QP(pd._native(), wanted)
            try:
                self._native().bind_qp(native)
            except Exception:
                native.close()
                raise
        self._qp = QP.__new__(QP)
        self._qp._adopt_native(pd, native, attr)
        qp_init.cap = granted_capacities(native)

    def _create_cq(self, entries: int) -> CQ:
        channel = CompChannel(self.pd._context)
        cq = CQ(self.pd._context, max(entries, 1), None, channel)
        self._own_queues += [channel, cq]
        return cq

    def _require_qp(self) -> QP:
        if self._qp is None:
            raise PyverbsRDMAError("This CMID has no queue pair: create_qp", errno.EINVAL)
        return self._qp

    @property
    def qpn(self) -> int:
        """The number of the queue pair."""
        return self._require_qp().qp_num

    def _close_own_objects(self) -> None:
        if self._qp is not None:
            self._qp.close()
        if self._own_pd is not None:
            self._own_pd.close()
        for one in reversed(self._own_queues):
            one.close()

    # ---- memory

    def reg_msgs(self, size: int) -> MR:
        """Register new memory for messages."""
        return MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE)

    def reg_read(self, size: int = 0) -> MR:
        """Register new memory that the peer may read."""
        return MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ)

    def reg_write(self, size: int = 0) -> MR:
        """Register new memory that the peer may write."""
        return MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)

    # ---- requests

    @staticmethod
    def _sge_list_of_region(mr: MR, length: int | None) -> list[SGE]:
        return [SGE(mr.buf, mr.length if length is None else length, mr.lkey)]

    def post_recv(self, mr: MR, length: int | None = None) -> None:
        """Post a receive into a complete region, or into its first ``length`` octets."""
        self._require_qp().post_recv(RecvWR(num_sge=1, sg=self._sge_list_of_region(mr, length)))

    def post_send(
        self, mr: MR, flags: int = e.IBV_SEND_SIGNALED, length: int | None = None
    ) -> None:
        """Post a Send of a complete region, or of its first ``length`` octets."""
        sg = self._sge_list_of_region(mr, length)
        self._require_qp().post_send(SendWR(num_sge=1, sg=sg, send_flags=flags))

    def post_ud_send(
        self,
        mr: MR,
        ah: AH,
        rqpn: int = 0,
        flags: int = e.IBV_SEND_SIGNALED,
        length: int | None = None,
    ) -> None:
        """Post a datagram to another queue pair."""
        wr = SendWR(num_sge=1, sg=self._sge_list_of_region(mr, length), send_flags=flags)
        wr.set_wr_ud(ah, rqpn, self._QKEY)
        self._require_qp().post_send(wr)

    def post_read(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """Post a Read of the peer's memory into a region."""
        self._post_rdma(e.IBV_WR_RDMA_READ, mr, length, remote_addr, rkey, flags)

    def post_write(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """Post a Write of a region into the peer's memory."""
        self._post_rdma(e.IBV_WR_RDMA_WRITE, mr, length, remote_addr, rkey, flags)

    def _post_rdma(
        self, opcode: int, mr: MR, length: int, remote_addr: int, rkey: int, flags: int
    ) -> None:
        wr = SendWR(
            opcode=opcode, num_sge=1, sg=self._sge_list_of_region(mr, length), send_flags=flags
        )
        wr.set_wr_rdma(rkey, remote_addr)
        self._require_qp().post_send(wr)

    # ---- completions

    @staticmethod
    def _wait_for_completion(cq: CQ | CQEX | None) -> WC | None:
        """Wait for a completion of a completion queue and return it; Ctrl-C interrupts the wait."""
        if cq is None:
            return None
        with convert_errors("Failed to get a completion"):
            if cq.comp_channel is None:
                while not (found := cq._native().poll(1)):
                    pass
            else:
                found = cq._native().wait(num_entries=1)
        return WC._from_native(found[0]) if found else None

    def get_send_comp(self) -> WC | None:
        """Wait for the next completion of a send request, and return the completion."""
        return self._wait_for_completion(self._require_qp()._scq)

    def get_recv_comp(self) -> WC | None:
        """Wait for the next completion of a receive, and return the completion."""
        return self._wait_for_completion(self._require_qp()._rcq)
