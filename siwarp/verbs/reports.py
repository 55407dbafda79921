# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a datagram queue pair reports about peers: errors, dropped messages, Write-Records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from siwarp.verbs._ffi import Address, addr_from_c
from siwarp.verbs.enums import ErrorOrigin
from siwarp.verbs.errors import terminate_clause, terminate_reason

__all__ = ["ErrorReport", "PeerRestart", "Record", "SourceDrops", "report_of"]


@dataclass(frozen=True)
class SourceDrops:
    """What one source sent to a UD queue pair that had no receive for it.

    Attributes:
        source: its IP address.
        drops: datagrams dropped.
        over: the most of them that may belong to other sources, if there were too many sources.

    """

    source: str
    drops: int
    over: int


@dataclass(frozen=True)
class ReceiveWait:
    """A peer of an RD queue pair with whom a message waits for a receive.

    Attributes:
        peer: its IP address and port.
        here: the peer's message waits for a receive of this end; else this end's waits there.
        seconds: for so long.

    """

    peer: Address
    here: bool
    seconds: float


@dataclass(frozen=True)
class PeerRestart:
    """A peer of an RD queue pair that was met as another instance than before.

    Attributes:
        peer: its IP address and port.
        instance: its own of now, as ``WC.source_instance``; 0: it tells none.

    """

    peer: Address
    instance: int


@dataclass(frozen=True)
class ErrorReport:
    """An error of a datagram queue pair (``struct siw_err_entry``).

    Attributes:
        origin: ``FOUND``: in a message that ``source`` sent; ``REPORTED``: ``source`` found it in
            a message that this queue pair sent there.
        source: the peer's IP address and port.
        qpn: its queue pair's number.
        layer, type, code: the three numbers of a Terminate (RFC 5040 section 4.8).
        msn: the MSN of the faulty message; of a Write-Record its message_id.
        wr_id: ``REPORTED``: of the send request; else ``None``.
        header: the message's DDP header, as on the wire.
        seg_len: octets of its segment, the header included.

    """

    origin: ErrorOrigin
    source: Address
    qpn: int
    layer: int
    type: int
    code: int
    msn: int
    wr_id: int | None
    header: bytes
    seg_len: int

    @property
    def reason(self) -> str:
        """The three numbers in words."""
        return terminate_reason(self.layer, self.type, self.code)

    @property
    def clause(self) -> str:
        """The id of the clause that lists them."""
        return terminate_clause(self.layer, self.type, self.code)


def report_of(e: Any) -> ErrorReport:
    """Return what a ``struct siw_err_entry`` says."""
    origin = ErrorOrigin(e.origin)
    return ErrorReport(
        origin=origin,
        source=addr_from_c(e.source) or ("", 0),
        qpn=e.src_qpn,
        layer=e.layer,
        type=e.type,
        code=e.code,
        msn=e.msn,
        wr_id=e.wr_id if origin == ErrorOrigin.REPORTED else None,
        header=bytes(e.header)[: e.header_len],
        seg_len=e.seg_len,
    )


@dataclass(frozen=True)
class Record:
    """The result of a Write-Record, returned by ``QP.record``.

    Attributes:
        source, src_qp: the writer's address and port, and its QPN.
        message_id: the number that the writer gave it.
        addr, rkey: the address of its first octet, and the key it was written with.
        length: octets of the whole message.
        valid: how many octets arrived.
        ranges: which octets arrived: (start, end) pairs, counted from the message's first octet, in
            order; no two touch. Octets outside of them may have been written, too.

    """

    source: Address
    src_qp: int
    message_id: int
    addr: int
    rkey: int
    length: int
    valid: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def whole(self) -> bool:
        """Whether every octet arrived."""
        return self.valid == self.length
