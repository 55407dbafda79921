# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The other process of ``siwarp demo``: holds memory, echoes datagrams and rejects wrong keys.

The two processes exchange their control messages over standard input and output, one JSON value per
line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import siwarp
from siwarp.cli.ping_server import handle_completions
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    WC,
    CompChannel,
    Context,
    Error,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    WCOpcode,
)

#: Number of receives of the echo server, and the capacity of its queue pair.
_SLOTS = 32
_CAP = QPCap(max_send_wr=64, max_recv_wr=64)
_RELIABLE_OCTETS = 4096


def _print_json(value: Any) -> None:
    print(json.dumps(value), flush=True)


def _read_json() -> Any:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)  # the demo has closed the pipe
    return json.loads(line)


@contextlib.contextmanager
def mapped_file(path: Path, write: bool) -> Iterator[mmap.mmap]:
    """Map a file and touch its pages, so that the measured times contain no page faults."""
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=access) as memory:
        touched = memory[:: mmap.PAGESIZE]
        if write:
            memory[:: mmap.PAGESIZE] = touched
        yield memory


def serve_file(path: Path) -> None:
    """Offer a file's memory over RC; report its SHA-256 on request."""
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        _print_json({"port": listener.address[1]})
        conn = listener.accept(timeout=30)
    with mapped_file(path, write=True) as memory, conn:
        conn.send(conn.register(memory).remote().pack())
        while _read_json() == "digest":
            _print_json({"sha256": hashlib.sha256(memory).hexdigest()})


class _StdinStop:
    """A stop flag that is set when the demo sends the message that ends a part."""

    def is_set(self) -> bool:
        """Return whether the demo's message has arrived on standard input."""
        return bool(select.select([sys.stdin], [], [], 0)[0]) and bool(_read_json())

    def fileno(self) -> int:
        """Return the descriptor on which the demo's message arrives: standard input."""
        return sys.stdin.fileno()


def echo_datagrams(kind: QPType) -> None:
    """Send every datagram back to its sender until the demo ends this part."""
    with (
        Context() as context,
        PD(context) as pd,
        CQ(context, 256, channel=CompChannel(context)) as cq,
    ):
        size = context.query_device().max_ud_msg if kind == QPType.UD else _RELIABLE_OCTETS
        init = QPInitAttr(kind, scq=cq, cap=_CAP, addr=("127.0.0.1", 0))
        ways: dict[Any, AH] = {}
        with MR(pd, _SLOTS * size) as mr, QP(pd, init) as qp:
            qp.to_rts()
            recvs = [RecvWR(i, sg=[mr.sge(i * size, size)]) for i in range(_SLOTS)]
            qp.post_recv(recvs)

            def return_messages_to_senders(wcs: list[WC]) -> None:
                for wc in wcs:
                    if wc.check().opcode == WCOpcode.SEND:
                        # The echo was sent (UD) or received by the peer (RD): its memory is free
                        # again.
                        qp.post_recv(recvs[wc.wr_id])
                        continue
                    # The completion names the sender of the message, which is the destination of
                    # the echo.
                    if wc.source not in ways:
                        ways[wc.source] = AH(pd, wc=wc)
                    ah = ways[wc.source]
                    back = [mr.sge(wc.wr_id * size, wc.byte_len)]
                    qp.post_send(SendWR(wc.wr_id, sg=back, ah=ah))

            _print_json({"port": qp.qp_num, "size": size})
            handle_completions(cq, return_messages_to_senders, _StdinStop())
        for ah in ways.values():
            ah.close()
    _print_json("closed")


def offer_page_and_refuse_invalid_keys() -> None:
    """Offer a page over RC, twice, and report whether the peer's invalid keys left it unchanged."""
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        _print_json({"port": listener.address[1]})
        for _ in range(2):
            with listener.accept(timeout=30) as conn:
                page = conn.register(4096)
                conn.send(page.remote().pack())
                try:
                    conn.recv(timeout=30)
                    raise AssertionError(
                        "a message arrived although an error should have ended the connection"
                    )
                except Error:
                    _print_json({"untouched": not any(page.view)})


def main() -> int:
    """Run the peer's parts of the demo one after another."""
    try:
        serve_file(Path(sys.argv[1]))
        echo_datagrams(QPType.UD)
        echo_datagrams(QPType.RD)
        offer_page_and_refuse_invalid_keys()
    except OSError as e:  # includes siwarp.Error, whose message names the remedy
        print(f"siwarp demo's peer: {e.strerror or e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
