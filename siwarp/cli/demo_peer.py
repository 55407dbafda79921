# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The other process of ``siwarp demo``: it holds memory, echoes datagrams, and refuses bad keys.

What the two tell each other beside the data goes over standard input and output, a JSON value a
line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import siwarp
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    Error,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    WCOpcode,
)


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


def echo_datagrams() -> None:
    """Send every datagram back to where it came from, until told to stop by an empty one."""
    with (
        Context() as context,
        PD(context) as pd,
        CQ(context, channel=CompChannel(context)) as cq,
        QP(pd, QPInitAttr(QPType.UD, scq=cq, addr=("127.0.0.1", 0))) as qp,
    ):
        size = context.query_device().max_ud_msg
        qp.to_rts()
        # Two receives: while one message is on its way back, the next finds a place.
        with MR(pd, 2 * size) as mr:
            recvs = [RecvWR(i, sg=[mr.sge(i * size, size)]) for i in range(2)]
            qp.post_recv(recvs)
            _say({"port": qp.qp_num, "size": size})
            while wcs := cq.wait(30, 1):
                wc = wcs[0].check()
                if wc.opcode == WCOpcode.SEND:
                    continue
                if wc.byte_len == 0:
                    return
                # Where it goes is where it came from: the completion says so.
                ah = AH(pd, wc=wc)
                back = SendWR(sg=[mr.sge(wc.wr_id * size, wc.byte_len)], ah=ah)
                qp.post_send(back)
                qp.post_recv(recvs[wc.wr_id])
                ah.close()


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
    hold_file(Path(sys.argv[1]))
    echo_datagrams()
    refuse()
    return 0


if __name__ == "__main__":
    sys.exit(main())
