# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Creation parameters and attributes of queue pairs, for ``pyverbs.qp``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import DelegatedAttribute, UInt, attribute_lines
from siwarp.pyverbs.addr import AHAttr
from siwarp.pyverbs.base import PyverbsCM, PyverbsObject
from siwarp.pyverbs.utils import (
    access_flags_to_str,
    flags_to_text,
    mig_state_to_str,
    mtu_to_str,
    qp_state_to_str,
    qp_type_to_str,
)

if TYPE_CHECKING:
    from siwarp.pyverbs.cq import CQ, CQEX
    from siwarp.pyverbs.pd import PD
    from siwarp.pyverbs.srq import SRQ
    from siwarp.pyverbs.wq import RwqIndTable, RxHashConf
    from siwarp.pyverbs.xrcd import XRCD

CAPS = ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")


class QPCap(PyverbsObject):
    """Capacities of a queue pair."""

    max_send_wr = UInt(32)
    max_recv_wr = UInt(32)
    max_send_sge = UInt(32)
    max_recv_sge = UInt(32)
    max_inline_data = UInt(32)

    def __init__(
        self,
        max_send_wr: int = 1,
        max_recv_wr: int = 10,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
        max_inline_data: int = 0,
    ) -> None:
        self.max_send_wr, self.max_recv_wr = max_send_wr, max_recv_wr
        self.max_send_sge, self.max_recv_sge = max_send_sge, max_recv_sge
        self.max_inline_data = max_inline_data

    def _copy(self) -> QPCap:
        return QPCap(*(getattr(self, name) for name in CAPS))

    def __str__(self) -> str:
        return attribute_lines(self, *CAPS)


class _Init(PyverbsObject):
    qp_type = UInt(32, e.IBV_QPT_UD)
    sq_sig_all = UInt(32)
    max_send_wr = DelegatedAttribute("_cap")
    max_recv_wr = DelegatedAttribute("_cap")
    max_send_sge = DelegatedAttribute("_cap")
    max_recv_sge = DelegatedAttribute("_cap")
    max_inline_data = DelegatedAttribute("_cap")
    send_cq: CQ | CQEX | None = None
    recv_cq: CQ | CQEX | None = None
    srq: SRQ | None = None
    _cap: QPCap

    @property
    def cap(self) -> QPCap:
        """The requested capacities or, after creation of the queue pair, the granted capacities."""
        return self._cap

    @cap.setter
    def cap(self, val: QPCap) -> None:
        self._cap = val._copy()

    def _set_parameters(
        self,
        qp_type: int,
        qp_context: object,
        scq: CQ | CQEX | None,
        rcq: CQ | CQEX | None,
        srq: SRQ | None,
        cap: QPCap | None,
        sq_sig_all: int,
    ) -> None:
        self.qp_type, self.qp_context, self.sq_sig_all = qp_type, qp_context, sq_sig_all
        self.send_cq, self.recv_cq, self.srq = scq, rcq, srq
        self._cap = QPCap(0, 0, 0, 0, 0) if cap is None else cap._copy()

    def __str__(self) -> str:
        return (
            f"{'QP type':<20}: {qp_type_to_str(self.qp_type):<20}\n"
            f"{'SQ sig. all':<20}: {self.sq_sig_all:<20}\nQP caps:\n{self._cap}"
        )


class QPInitAttr(_Init):
    """Creation parameters of a queue pair of a PD."""

    def __init__(
        self,
        qp_type: int = e.IBV_QPT_UD,
        qp_context: object = None,
        scq: CQ | CQEX | None = None,
        rcq: CQ | CQEX | None = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 1,
    ) -> None:
        self._set_parameters(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)


class QPInitAttrEx(_Init):
    """Creation parameters of a queue pair of a Context."""

    comp_mask = UInt(32)
    create_flags = UInt(32)
    max_tso_header = UInt(16)
    source_qpn = UInt(32)
    send_ops_flags = UInt(64)
    pd: PD | None = None
    xrcd: XRCD | None = None
    ind_table: RwqIndTable | None = None

    def __init__(
        self,
        qp_type: int = e.IBV_QPT_UD,
        qp_context: object = None,
        scq: CQ | CQEX | None = None,
        rcq: CQ | CQEX | None = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 0,
        comp_mask: int = 0,
        pd: PD | None = None,
        xrcd: XRCD | None = None,
        create_flags: int = 0,
        max_tso_header: int = 0,
        source_qpn: int = 0,
        hash_conf: RxHashConf | None = None,
        ind_table: RwqIndTable | None = None,
        send_ops_flags: int = 0,
    ) -> None:
        self._set_parameters(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)
        self.comp_mask, self.pd, self.xrcd = comp_mask, pd, xrcd
        self.create_flags, self.max_tso_header = create_flags, max_tso_header
        self.source_qpn, self.ind_table = source_qpn, ind_table
        self.send_ops_flags = send_ops_flags

    def mask_to_str(self, mask: int) -> str:
        """Return a mask of attributes as text."""
        return flags_to_text(mask, {one.value: one.name for one in e.ibv_qp_init_attr_mask})

    def flags_to_str(self, flags: int) -> str:
        """Return creation flags as text."""
        return flags_to_text(flags, {one.value: one.name for one in e.ibv_qp_create_flags})

    def __str__(self) -> str:
        return (
            super().__str__()
            + f"{'comp mask':<20}: {self.mask_to_str(self.comp_mask):<20}\n"
            + f"{'create flags':<20}: {self.flags_to_str(self.create_flags):<20}\n"
            + f"{'max TSO header':<20}: {self.max_tso_header:<20}\n"
            + f"{'Source QPN':<20}: {self.source_qpn:<20}\n"
        )


class QPAttr(PyverbsObject):
    """Attributes of a queue pair; a separate mask states which of them are valid."""

    qp_state = UInt(32)
    cur_qp_state = UInt(32)
    path_mtu = UInt(32)
    path_mig_state = UInt(32)
    qkey = UInt(32)
    rq_psn = UInt(32)
    sq_psn = UInt(32)
    dest_qp_num = UInt(32)
    qp_access_flags = UInt(32)
    pkey_index = UInt(16)
    alt_pkey_index = UInt(16)
    en_sqd_async_notify = UInt(8)
    sq_draining = UInt(8)
    max_rd_atomic = UInt(8)
    max_dest_rd_atomic = UInt(8)
    min_rnr_timer = UInt(8)
    port_num = UInt(8)
    timeout = UInt(8)
    retry_cnt = UInt(8)
    rnr_retry = UInt(8)
    alt_port_num = UInt(8)
    alt_timeout = UInt(8)
    rate_limit = UInt(32)

    def __init__(
        self,
        qp_state: int = e.IBV_QPS_INIT,
        cur_qp_state: int = e.IBV_QPS_RESET,
        port_num: int = 1,
        path_mtu: int = e.IBV_MTU_1024,
    ) -> None:
        self.qp_state, self.cur_qp_state = qp_state, cur_qp_state
        self.port_num, self.path_mtu = port_num, path_mtu
        self._cap = QPCap(0, 0, 0, 0, 0)
        self._ah, self._alt_ah = AHAttr(port_num=0), AHAttr(port_num=0)

    @property
    def cap(self) -> QPCap:
        """Capacities of the queue pair."""
        return self._cap._copy()

    @cap.setter
    def cap(self, val: QPCap) -> None:
        self._cap = val._copy()

    @property
    def ah_attr(self) -> AHAttr:
        """A copy of the address vector of the peer; assign an ``AHAttr`` to change the vector."""
        return self._ah._copy()

    @ah_attr.setter
    def ah_attr(self, val: AHAttr) -> None:
        self._ah = val._copy()

    @property
    def alt_ah_attr(self) -> AHAttr:
        """Address vector of the alternate path, which siwarp does not support."""
        return self._alt_ah._copy()

    @alt_ah_attr.setter
    def alt_ah_attr(self, val: AHAttr) -> None:
        self._alt_ah = val._copy()

    def __str__(self) -> str:
        shown = {
            "QP state": qp_state_to_str(self.qp_state),
            "QP current state": qp_state_to_str(self.cur_qp_state),
            "Path MTU": mtu_to_str(self.path_mtu),
            "Path mig. state": mig_state_to_str(self.path_mig_state),
            "QP access flags": access_flags_to_str(self.qp_access_flags),
        }
        named = {name for name, of in vars(QPAttr).items() if isinstance(of, UInt)}
        plain = sorted(named - {"qp_state", "cur_qp_state", "path_mtu", "path_mig_state"})
        return (
            "".join(f"{name:<22}: {value!s:<20}\n" for name, value in shown.items())
            + attribute_lines(self, *(name for name in plain if name != "qp_access_flags"))
            + f"QP caps:\n{self._cap}AH Attr:\n{self._ah}Alt. AH Attr:\n{self._alt_ah}"
        )


class ECE(PyverbsCM):
    """Vendor options for connection establishment (enhanced connection establishment)."""

    vendor_id = UInt(32)
    options = UInt(32)
    comp_mask = UInt(32)

    def __init__(self, vendor_id: int = 0, options: int = 0, comp_mask: int = 0) -> None:
        self.vendor_id, self.options, self.comp_mask = vendor_id, options, comp_mask

    def __str__(self) -> str:
        return (
            f"ECE:\n{'Vendor ID':<22}: {self.vendor_id:<#20x}\n"
            f"{'Options':<22}: {self.options:<#20x}\n{'Comp Mask':<22}: {self.comp_mask:<#20x}\n"
        )


class DataBuffer(PyverbsCM):
    """A buffer whose octets are copied into a request."""

    def __init__(self, addr: int, length: int) -> None:
        self.addr, self.length = addr, length


class QPRateLimitAttr(PyverbsObject):
    """The rate limit of a queue pair (``struct ibv_qp_rate_limit_attr``).

    ``rate_limit`` is in kbit/s, ``max_burst_sz`` and ``typical_pkt_sz`` are in octets.
    """

    rate_limit = UInt(32)
    max_burst_sz = UInt(32)
    typical_pkt_sz = UInt(16)
    comp_mask = UInt(32)

    def __init__(
        self,
        rate_limit: int = 0,
        max_burst_sz: int = 0,
        typical_pkt_sz: int = 0,
        comp_mask: int = 0,
    ) -> None:
        self.rate_limit, self.max_burst_sz = rate_limit, max_burst_sz
        self.typical_pkt_sz, self.comp_mask = typical_pkt_sz, comp_mask

    def __str__(self) -> str:
        return attribute_lines(self, "rate_limit", "max_burst_sz", "typical_pkt_sz", "comp_mask")


class QPAttachCompCntrAttr(PyverbsObject):
    """The operations that a completion counter is to count, which siwarp does not support."""

    op_mask = UInt(32)

    def __init__(self, op_mask: int = 0) -> None:
        self.op_mask = op_mask
