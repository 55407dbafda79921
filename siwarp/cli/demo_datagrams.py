# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The datagram part of ``siwarp demo``: UD messages may be lost, RD messages must not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from siwarp.base import show

if TYPE_CHECKING:
    from siwarp.cli.peer import Peer
    from siwarp.verbs import AH, CQ, MR, QP

__all__ = ["DatagramLost", "demonstrate_rd", "demonstrate_ud"]

#: Seconds until a datagram counts as lost: without a fault plan, and with one.
_PATIENCE, _SHORT_PATIENCE = 10.0, 0.3
#: The part with RD messages: their number, octets of each, and the number of outstanding messages.
_MESSAGES, _OCTETS, _DEPTH = 500, 4096, 16


class DatagramLost(Exception):
    """The peer did not return a datagram although no loss is permitted; the message names it."""


@contextmanager
def _open_endpoint(kind: str, octets: int, port: int) -> Iterator[tuple[QP, CQ, MR, AH]]:
    """Open a queue pair of this type ("UD", "RD") with memory, and the peer's address handle."""
    from siwarp.verbs import AH, CQ, MR, PD, QP, CompChannel, Context, QPCap, QPInitAttr, QPType

    with ExitStack() as stack:
        context = stack.enter_context(Context())
        pd = stack.enter_context(PD(context))
        cq = stack.enter_context(CQ(context, 256, channel=CompChannel(context)))
        cap = QPCap(max_send_wr=4 * _DEPTH, max_recv_wr=4 * _DEPTH)
        mr = stack.enter_context(MR(pd, octets))
        qp = stack.enter_context(QP(pd, QPInitAttr(QPType[kind], scq=cq, cap=cap)))
        ah = stack.enter_context(AH(pd, ("127.0.0.1", port)))
        qp.to_rts()
        yield qp, cq, mr, ah


def demonstrate_ud(peer: Peer, lossy: bool) -> None:
    """Send a UD datagram of each size to the peer; if ``lossy``, some may be lost.

    Raises:
        DatagramLost: a datagram did not come back although ``lossy`` is false.

    """
    from siwarp.verbs import RecvWR, SendWR

    show.print_heading(
        "Datagrams over UD (iWARP on UDP), in both directions through address handles"
    )
    told = peer.receive_value()
    largest = told["size"]
    sizes = [1 << n for n in range(largest.bit_length()) if 1 << n < largest] + [largest]
    with _open_endpoint("UD", 2 * largest, told["port"]) as (qp, cq, mr, ah):
        show.print_finding(
            f"QP {qp.qp_num} here, QP {told['port']} there: their UDP ports; no connection"
        )
        into = RecvWR(1, sg=[mr.sge(largest, largest)])
        qp.post_recv(into)
        back = 0
        for size in sizes:
            out = os.urandom(size)
            mr.write(out)
            qp.post_send(SendWR(sg=[mr.sge(0, size)], ah=ah, send_flags=0))
            if _wait_for_echo(
                qp, cq, mr, into, out, ah.dest, _SHORT_PATIENCE if lossy else _PATIENCE
            ):
                back += 1
            elif not lossy:
                raise DatagramLost(f"a datagram of {size} octets was not returned")
        if lossy:
            show.print_finding(
                f"{back} of {len(sizes)} came back unchanged; UD does not retransmit the others"
            )
        else:
            show.print_finding(
                f"{len(sizes)} sizes from 1 to {largest} octets, all returned unchanged"
            )
        _let_peer_close_first(peer)


def _wait_for_echo(
    qp: QP, cq: CQ, mr: MR, into: Any, out: bytes, source: Any, patience: float
) -> bool:
    """Wait for ``out`` to come back, ignoring other messages; return False if it is late."""
    deadline = time.monotonic() + patience
    while (left := deadline - time.monotonic()) > 0:
        for wc in cq.wait(left, 1):
            same = wc.ok and wc.source == source and mr.read(wc.byte_len, mr.length // 2) == out
            qp.post_recv(into)
            if same:
                return True
    return False


def demonstrate_rd(peer: Peer) -> None:
    """Send RD messages to the peer, several at a time; all must come back once and in order.

    Raises:
        DatagramLost: a message did not come back, or a different message came back instead.

    """
    from siwarp.base import counters
    from siwarp.verbs import RecvWR, SendWR, WCOpcode

    show.print_heading("Reliable datagrams (RD): every message arrives once and in order")
    port = peer.receive_value()["port"]
    with _open_endpoint("RD", 2 * _DEPTH * _OCTETS, port) as (qp, cq, mr, ah):
        slots = range(0, _DEPTH * _OCTETS, _OCTETS)
        far = _DEPTH * _OCTETS
        recvs = [RecvWR(i, sg=[mr.sge(far + at, _OCTETS)]) for i, at in enumerate(slots)]
        sends = [
            SendWR(sg=[mr.sge(at, _OCTETS)], ah=ah, send_flags=2 if not at else 0) for at in slots
        ]
        qp.post_recv(recvs)
        sent: list[bytes] = []
        back = 0
        with show.show_progress_bar("messages", _MESSAGES) as step:
            while back < _MESSAGES:
                while len(sent) - back < _DEPTH and len(sent) < _MESSAGES:
                    sent.append(os.urandom(_OCTETS))
                    mr.write(sent[-1], offset=slots[(len(sent) - 1) % _DEPTH])
                    qp.post_send(sends[(len(sent) - 1) % _DEPTH])
                wcs = cq.wait(_PATIENCE, _DEPTH)
                if not wcs:
                    raise DatagramLost(f"message {back} was not returned")
                for wc in wcs:
                    if wc.check().opcode != WCOpcode.RECV:
                        continue
                    if mr.read(wc.byte_len, far + slots[wc.wr_id]) != sent[back]:
                        raise DatagramLost(
                            f"another message was returned instead of message {back}"
                        )
                    qp.post_recv(recvs[wc.wr_id])
                    back += 1
                    step(1)
        again = counters.read_own_counters()["rd_retransmits"]
        show.print_finding(
            f"{_MESSAGES} messages of {_OCTETS} octets came back in order; "
            f"{again} datagrams were retransmitted"
        )
        _let_peer_close_first(peer)


def _let_peer_close_first(peer: Peer) -> None:
    """Let the peer close its queue pair first; its unacknowledged messages would fail otherwise."""
    peer.send_value("enough")
    peer.receive_value()
