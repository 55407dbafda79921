# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reports of a datagram queue pair about its peers: errors, dropped messages, Write-Records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from siwarp.verbs._ffi import Address, addr_from_c
from siwarp.verbs.enums import ErrorOrigin
from siwarp.verbs.errors import terminate_clause, terminate_reason

__all__ = ["ErrorReport", "PeerRestart", "Record", "SourceDrops", "error_report_from_c"]


@dataclass(frozen=True)
class SourceDrops:
    """The datagrams of one source that a UD queue pair dropped for lack of a receive.

    Attributes:
        source: the IP address of the source.
        drops: number of dropped datagrams.
        over: how many of these may belong to other sources, if there were too many sources to
            store; an upper bound.

    """

    source: str
    drops: int
    over: int


@dataclass(frozen=True)
class ReceiveWait:
    """A peer of an RD queue pair to or from which a message is waiting for a receive.

    Attributes:
        peer: the IP address and port of the peer.
        here: ``True``: the peer's message waits for a receive at this end; ``False``: a message of
            this end waits at the peer.
        seconds: how long the message has been waiting.

    """

    peer: Address
    here: bool
    seconds: float


@dataclass(frozen=True)
class PeerRestart:
    """A peer of an RD queue pair that has restarted: its instance differs from the one before.

    Attributes:
        peer: the IP address and port of the peer.
        instance: the peer's present instance, as in ``WC.source_instance``; 0: not announced.

    """

    peer: Address
    instance: int


@dataclass(frozen=True)
class ErrorReport:
    """An error of a datagram queue pair (``struct siw_err_entry``).

    Attributes:
        origin: ``FOUND``: the error is in a message received from ``source``; ``REPORTED``:
            ``source`` found the error in a message that this queue pair sent.
        source: the peer's IP address and port.
        qpn: the peer's QPN.
        layer, type, code: the three numbers of a Terminate (RFC 5040 section 4.8).
        msn: the MSN of the faulty message; for a Write-Record its message_id.
        wr_id: ``REPORTED``: that of the send request; otherwise ``None``.
        header: the DDP header of the message, as on the wire.
        seg_len: length of the segment in octets, including the header.

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
        """The error's three numbers as text."""
        return terminate_reason(self.layer, self.type, self.code)

    @property
    def clause(self) -> str:
        """The id of the specification clause that defines the error's numbers."""
        return terminate_clause(self.layer, self.type, self.code)


def error_report_from_c(e: Any) -> ErrorReport:
    """Return a ``struct siw_err_entry`` as an ``ErrorReport``."""
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
        message_id: the number of the Write-Record, assigned by the writer.
        addr, rkey: the address of the first octet, and the key used for writing.
        length: length of the complete message in octets.
        valid: number of octets that arrived.
        ranges: the octets that arrived, as (start, end) pairs relative to the message's first
            octet, in order and not adjacent. Octets outside the ranges may have been written, too.

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
        """Whether every octet of the Write-Record arrived."""
        return self.valid == self.length
