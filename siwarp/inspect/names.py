# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Names for the numbers in headers, one enumeration per list in the RFCs.

The names are defined again, and not imported from the stack, because this package checks the
stack's wire data.
"""

from __future__ import annotations

from enum import IntEnum


class Opcode(IntEnum):
    """RDMAP message types (RFC 5040 figure 4, RFC 7306 figure 2)."""

    RDMA_WRITE = 0x0
    RDMA_READ_REQUEST = 0x1
    RDMA_READ_RESPONSE = 0x2
    SEND = 0x3
    SEND_INVALIDATE = 0x4
    SEND_SE = 0x5
    SEND_SE_INVALIDATE = 0x6
    TERMINATE = 0x7
    IMMEDIATE = 0x8
    IMMEDIATE_SE = 0x9
    ATOMIC_REQUEST = 0xA
    ATOMIC_RESPONSE = 0xB
    #: The experimental opcode of RFC 6580, as siwarp uses it (spec/datagram-iwarp.md section 10).
    PRIVATE = 0xF


class AtomicCode(IntEnum):
    """The operation of an Atomic Request (RFC 7306 figure 5)."""

    FETCH_ADD = 0x0
    CMP_SWAP = 0x2


class PrivateCode(IntEnum):
    """The kind of a private message (spec/datagram-iwarp.md section 10)."""

    SEND_IMM = 1
    SEND_IMM_SE = 2


class TaggedPrivateCode(IntEnum):
    """The kind of a tagged private message on a connection (spec/delivery-counts.md)."""

    DELIVERY_COUNT = 4
    REQUESTER = 5


class Queue(IntEnum):
    """Untagged queue numbers that RDMAP uses (RFC 5040 figure 4, RFC 7306 figure 2)."""

    SEND = 0
    READ_REQUEST = 1
    TERMINATE = 2
    ATOMIC_RESPONSE = 3


class TermLayer(IntEnum):
    """The layer to which a Terminate attributes the error (RFC 5040 figure 9)."""

    RDMA = 0x0
    DDP = 0x1
    LLP = 0x2


OPCODES: dict[int, str] = {int(op): op.name for op in Opcode}
PRIVATE_CODES: dict[int, str] = {int(code): code.name for code in PrivateCode}
TAGGED_PRIVATE_CODES: dict[int, str] = {int(code): code.name for code in TaggedPrivateCode}
ATOMIC_CODES: dict[int, str] = {int(code): code.name for code in AtomicCode}
TERM_LAYERS: dict[int, str] = {int(layer): layer.name for layer in TermLayer}

#: (layer, error type) -> name: RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8.
TERM_ETYPES: dict[tuple[int, int], str] = {
    (TermLayer.RDMA, 0): "Local Catastrophic Error",
    (TermLayer.RDMA, 1): "Remote Protection Error",
    (TermLayer.RDMA, 2): "Remote Operation Error",
    (TermLayer.DDP, 0): "Local Catastrophic",
    (TermLayer.DDP, 1): "Tagged Buffer Error",
    (TermLayer.DDP, 2): "Untagged Buffer Error",
    (TermLayer.DDP, 3): "Reserved for the LLP",
    (TermLayer.LLP, 0): "MPA Error",
}

#: (layer, error type, error code) -> name; codes 5 to 7 of the LLP are from RFC 6581 section 8.
TERM_CODES: dict[tuple[int, int, int], str] = {
    (TermLayer.RDMA, 1, 0x00): "Invalid STag",
    (TermLayer.RDMA, 1, 0x01): "Base or bounds violation",
    (TermLayer.RDMA, 1, 0x02): "Access rights violation",
    (TermLayer.RDMA, 1, 0x03): "STag not associated with RDMAP Stream",
    (TermLayer.RDMA, 1, 0x04): "TO wrap",
    (TermLayer.RDMA, 1, 0x09): "STag cannot be Invalidated",
    (TermLayer.RDMA, 1, 0xFF): "Unspecified Error",
    (TermLayer.RDMA, 2, 0x05): "Invalid RDMAP version",
    (TermLayer.RDMA, 2, 0x06): "Unexpected OpCode",
    (TermLayer.RDMA, 2, 0x07): "Catastrophic error, localized to RDMAP Stream",
    (TermLayer.RDMA, 2, 0x08): "Catastrophic error, global",
    (TermLayer.RDMA, 2, 0x09): "STag cannot be Invalidated",
    (TermLayer.RDMA, 2, 0xFF): "Unspecified Error",
    (TermLayer.DDP, 0, 0x00): "Local Catastrophic",
    (TermLayer.DDP, 1, 0x00): "Invalid STag",
    (TermLayer.DDP, 1, 0x01): "Base or bounds violation",
    (TermLayer.DDP, 1, 0x02): "STag not associated with DDP Stream",
    (TermLayer.DDP, 1, 0x03): "TO wrap",
    (TermLayer.DDP, 1, 0x04): "Invalid DDP version",
    (TermLayer.DDP, 2, 0x01): "Invalid QN",
    (TermLayer.DDP, 2, 0x02): "Invalid MSN - no buffer available",
    (TermLayer.DDP, 2, 0x03): "Invalid MSN - MSN range is not valid",
    (TermLayer.DDP, 2, 0x04): "Invalid MO",
    (TermLayer.DDP, 2, 0x05): "DDP Message too long for available buffer",
    (TermLayer.DDP, 2, 0x06): "Invalid DDP version",
    (TermLayer.LLP, 0, 0x01): "TCP connection closed, terminated or lost",
    (TermLayer.LLP, 0, 0x02): "CRC mismatch",
    (TermLayer.LLP, 0, 0x03): "Marker and ULPDU Length disagree",
    (TermLayer.LLP, 0, 0x04): "Invalid MPA Request or Reply Frame",
    (TermLayer.LLP, 0, 0x05): "Local catastrophic",
    (TermLayer.LLP, 0, 0x06): "Insufficient IRD resources",
    (TermLayer.LLP, 0, 0x07): "No matching RTR option",
}


def term_reason(layer: int, etype: int, code: int) -> str:
    """Return a Terminate's layer, error type and code in words; unknown values as numbers.

    A local catastrophic error of RDMAP has no code (RFC 5040 figure 9), so the code is ignored.
    """
    layer_name = TERM_LAYERS.get(layer, f"layer {layer:#x}")
    etype_name = TERM_ETYPES.get((layer, etype), f"type {etype:#x}")
    if (layer, etype) == (TermLayer.RDMA, 0):
        return f"{layer_name}: {etype_name}"
    code_name = TERM_CODES.get((layer, etype, code), f"code {code:#04x}")
    return f"{layer_name}: {etype_name}: {code_name}"
