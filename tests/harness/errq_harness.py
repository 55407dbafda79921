"""For the tests of datagram errors: error messages built and parsed with siwarp.inspect."""

from __future__ import annotations

import os
from typing import Any

import crcmod
import net
from harness.verbs_harness import LIMIT, Rig
from scapy.packet import Raw

from siwarp.inspect import DDPDatagram, Opcode, QuotedUntagged, Terminate, UDDatagram
from siwarp.verbs import QP, QPAttr, QPState

QKEY = 0x51C0FFEE
crc32c = crcmod.predefined.mkCrcFun("crc-32c")

#: Octets of the header and of the CRC of a UD segment.
HEAD, CRC = 18, 4
#: The places at which ``corrupt_one_bit`` corrupts a datagram.
WHERE = ["head", "first", "middle", "last", "crc"]

OPCODE, NOT_WHOLE, TOO_LONG = (0, 2, 6), (1, 2, 4), (1, 2, 5)
#: Protocol errors of a peer with the right Q_Key: the header fields, and the resulting error code.
WRONG: dict[str, tuple[dict[str, int], tuple[int, int, int]]] = {
    **{
        f"opcode {op:#x}": ({"opcode": op}, OPCODE)
        for op in range(16)
        if op not in (Opcode.SEND, Opcode.SEND_SE, Opcode.TERMINATE)
    },
    "L=0": ({"l": 0}, NOT_WHOLE),
    "MO=1": ({"mo": 1}, NOT_WHOLE),
}


def build_datagram(payload: bytes = b"", **fields: Any) -> bytes:
    """Return the octets of a UD datagram with the Q_Key of the tests and a valid CRC."""
    return bytes(UDDatagram(segment=DDPDatagram(**{"q_key": QKEY, **fields}) / Raw(payload)))


def corrupt_one_bit(octets: bytes, where: str) -> bytes:
    """Return a copy of a datagram in which one bit at the given place is inverted."""
    at = {"head": 5, "first": HEAD, "middle": len(octets) // 2, "last": -CRC - 1, "crc": -1}[where]
    changed = bytearray(octets)
    changed[at] ^= 0x10
    return bytes(changed)


def build_wire_error_message(
    msn: int,
    err: tuple[int, int, int] = OPCODE,
    *,
    quoted: dict[str, Any] | None = None,
    bits: tuple[int, int, int] = (1, 1, 0),
    **fields: Any,
) -> bytes:
    """Return an error message about the Send with the given MSN, as a valid peer builds it."""
    head = QuotedUntagged(**{"msn": msn, "inv_stag": QKEY, **(quoted or {})})
    body = Terminate(
        layer=err[0],
        etype=err[1],
        code=err[2],
        m=bits[0],
        d=bits[1],
        r=bits[2],
        ddp_seg_len=18,
        quoted_ddp=head,
    )
    return build_datagram(bytes(body), **{"opcode": Opcode.TERMINATE, "qn": 2, **fields})


def parse_error_message(octets: bytes) -> tuple[Any, Any]:
    """Parse an error message and check every field; return the header and the Terminate."""
    assert crc32c(octets[:-4]) == int.from_bytes(octets[-4:], "little")
    head = DDPDatagram(octets[:18])
    assert (head.t, head.l, head.ddp_rsvd, head.dv, head.mo) == (0, 1, 0, 1, 0)
    assert (head.rv, head.rdmap_rsvd, head.opcode, head.queue) == (1, 0, Opcode.TERMINATE, 2)
    told = Terminate(octets[18:-4])
    assert (told.m, told.d, told.r, told.reserved) == (1, 1, 0, 0)
    assert len(octets) == 18 + 4 + 2 + 18 + 4
    return head, told


class PlainUDPSocket:
    """A plain UDP socket on this host, with the methods of ``socket.socket``."""

    def __init__(self, host: str = net.HERE) -> None:
        self.sock = net.open_udp_socket(host)
        self.sock.settimeout(LIMIT)

    def has_empty_buffer(self) -> bool:
        """Return whether no datagram is in the socket's receive buffer."""
        return net.receive_within(self.sock, 0) is None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)

    def __enter__(self) -> PlainUDPSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def create_qp_with_duplicate_socket(rig: Rig, **kwargs: Any) -> tuple[QP, PlainUDPSocket]:
    """Return a UD queue pair in RTS, and a duplicate of its socket that can send any datagram."""
    theirs = PlainUDPSocket()
    qp = rig.create_qp(**kwargs)
    qp.modify(QPAttr(qp_state=QPState.INIT, fd=os.dup(theirs.fileno()), qkey=QKEY))
    qp.to_rts()
    return qp, theirs
