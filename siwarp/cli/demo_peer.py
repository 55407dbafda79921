# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The other process of ``siwarp demo``: it holds memory, echoes datagrams, and refuses bad keys.

The two processes exchange their control messages over standard input and output, one JSON value a
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
from siwarp.cli.ping_loop import serve
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

#: Receives of an echo, and what each queue has room for.
_SLOTS = 32
_CAP = QPCap(max_send_wr=64, max_recv_wr=64)
_RELIABLE_OCTETS = 4096


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def _hear() -> Any:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)  # the demo ended
    return json.loads(line)


@contextlib.contextmanager
def mapped(path: Path, write: bool) -> Iterator[mmap.mmap]:
    """Map a file, its pages in place: the times are to be those of the transfer alone."""
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=access) as memory:
        touched = memory[:: mmap.PAGESIZE]
        if write:
            memory[:: mmap.PAGESIZE] = touched
        yield memory


def hold_file(path: Path) -> None:
    """Offer a file's memory over RC; say its SHA-256 when asked."""
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        _say({"port": listener.address[1]})
        conn = listener.accept(timeout=30)
    with mapped(path, write=True) as memory, conn:
        conn.send(conn.register(memory).remote().pack())
        while _hear() == "digest":
            _say({"sha256": hashlib.sha256(memory).hexdigest()})


class _Enough:
    """Set when the demo says that it has enough."""

    def is_set(self) -> bool:
        """Whether it said something meanwhile."""
        return bool(select.select([sys.stdin], [], [], 0)[0]) and bool(_hear())

    def fileno(self) -> int:
        """Return the descriptor on which it would."""
        return sys.stdin.fileno()


def echo_datagrams(kind: QPType) -> None:
    """Send every datagram back to where it came from, until the demo says that it has enough."""
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

            def echo(wcs: list[WC]) -> None:
                for wc in wcs:
                    if wc.check().opcode == WCOpcode.SEND:
                        # It has left, or is there: its memory may be filled again.
                        qp.post_recv(recvs[wc.wr_id])
                        continue
                    # Where it goes is where it came from: the completion says so.
                    if wc.source not in ways:
                        ways[wc.source] = AH(pd, wc=wc)
                    ah = ways[wc.source]
                    back = [mr.sge(wc.wr_id * size, wc.byte_len)]
                    qp.post_send(SendWR(wc.wr_id, sg=back, ah=ah))

            _say({"port": qp.qp_num, "size": size})
            serve(cq, echo, _Enough())
        for ah in ways.values():
            ah.close()
    _say("closed")


def refuse() -> None:
    """Offer a page over RC and say what this end makes of the peer's bad key, twice."""
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        _say({"port": listener.address[1]})
        for _ in range(2):
            with listener.accept(timeout=30) as conn:
                page = conn.register(4096)
                conn.send(page.remote().pack())
                try:
                    conn.recv(timeout=30)
                    raise AssertionError("a message came where an error should have ended it")
                except Error:
                    _say({"untouched": not any(page.view)})


def main() -> int:
    """Play the parts one after another."""
    try:
        hold_file(Path(sys.argv[1]))
        echo_datagrams(QPType.UD)
        echo_datagrams(QPType.RD)
        refuse()
    except OSError as e:  # siwarp.Error among them: its message says what to do
        print(f"siwarp demo's peer: {e.strerror or e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
