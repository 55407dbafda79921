# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Completions as values, and text for their numbers."""

from __future__ import annotations

from siwarp.pyverbs._enums_queues import ibv_create_cq_wc_flags
from siwarp.pyverbs._field import UInt, attribute_lines
from siwarp.pyverbs.base import PyverbsObject
from siwarp.pyverbs.utils import flags_to_text
from siwarp.verbs.cq import WC as NativeWC

_STATUS = (
    "success",
    "local length error",
    "local QP op error",
    "local EEC op error",
    "local protection error",
    "WR flush error",
    "memory window bind error",
    "bad response error",
    "local access error",
    "remote invalidate request error",
    "remote access error",
    "remote op error",
    "retry exceeded error",
    "RNR retry exceeded",
    "local RDD violation error",
    "remote invalidate RD request error",
    "remote abort error",
    "invalidate EECN error",
    "invalidate EEC state error",
    "WC fatal error",
    "response timeout error",
    "general error",
)
_OPCODE = {
    0: "Send",
    1: "RDMA write",
    2: "RDMA read",
    3: "Compare and swap",
    4: "Fetch and add",
    5: "Bind Memory window",
    6: "Local invalidate",
    7: "TSO",
    128: "Receive",
    129: "Receive RDMA with immediate",
    130: "Tag matching - add",
    131: "Tag matching - delete",
    132: "Tag matching - sync",
    133: "Tag matching - receive",
    134: "Tag matching - no tag",
}
_FLAGS = {
    1: "GRH",
    2: "With immediate",
    4: "IP csum OK",
    8: "With invalidate",
    16: "TM sync request",
    32: "TM match",
    64: "TM data valid",
}


def cqe_status_to_str(status: int) -> str:
    """Return a completion's status as text."""
    return _STATUS[status] if 0 <= status < len(_STATUS) else "Unknown CQE status"


def cqe_opcode_to_str(opcode: int) -> str:
    """Return a completion's operation as text."""
    return _OPCODE.get(opcode, f"Unknown CQE opcode {opcode}")


def cqe_flags_to_str(flags: int) -> str:
    """Return a completion's flags as text."""
    return flags_to_text(flags, _FLAGS)


def create_wc_flags_to_str(flags: int) -> str:
    """Return the ``wc_flags`` of an extended completion queue as text."""
    return flags_to_text(flags, {one.value: one.name for one in ibv_create_cq_wc_flags})


class WC(PyverbsObject):
    """A completion (``struct ibv_wc``)."""

    wr_id = UInt(64)
    status = UInt(32)
    opcode = UInt(32)
    vendor_err = UInt(32)
    byte_len = UInt(32)
    imm_data = UInt(32)
    qp_num = UInt(32)
    src_qp = UInt(32)
    wc_flags = UInt(32)
    pkey_index = UInt(16)
    slid = UInt(16)
    sl = UInt(8)
    dlid_path_bits = UInt(8)

    def __init__(
        self,
        wr_id: int = 0,
        status: int = 0,
        opcode: int = 0,
        vendor_err: int = 0,
        byte_len: int = 0,
        qp_num: int = 0,
        src_qp: int = 0,
        imm_data: int = 0,
        wc_flags: int = 0,
        pkey_index: int = 0,
        slid: int = 0,
        sl: int = 0,
        dlid_path_bits: int = 0,
    ) -> None:
        self.wr_id, self.status, self.opcode = wr_id, status, opcode
        self.vendor_err, self.byte_len, self.imm_data = vendor_err, byte_len, imm_data
        self.qp_num, self.src_qp, self.wc_flags = qp_num, src_qp, wc_flags
        self.pkey_index, self.slid, self.sl = pkey_index, slid, sl
        self.dlid_path_bits = dlid_path_bits

    @classmethod
    def _from_native(cls, native: NativeWC) -> WC:
        wc = cls.__new__(cls)
        wc.__dict__.update(native._asdict())
        return wc

    def __str__(self) -> str:
        return (
            attribute_lines(self, "wr_id")
            + f"{'status':<22}: {cqe_status_to_str(self.status):<20}\n"
            + f"{'opcode':<22}: {cqe_opcode_to_str(self.opcode):<20}\n"
            + attribute_lines(self, "vendor_err", "byte_len", "qp_num", "src_qp")
            + f"{'WC flags':<22}: {cqe_flags_to_str(self.wc_flags):<20}\n"
            + attribute_lines(self, "pkey_index", "slid", "sl", "imm_data", "dlid_path_bits")
        )
