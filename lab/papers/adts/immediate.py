# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measures units sent by Sends and by Writes with Immediate, without ADTS.

The paper chooses Sends: a Write needs the address of a buffer that the receiver has granted, and a
notice of its arrival, which here is its Immediate Data. Both ways are measured with the same units
and the same number of units in flight. The receiver grants a unit after each unit that it has
received; for Writes, the grant has the address of the buffer.

``server HOST OP UNIT`` prints its port and serves one client; ``client HOST PORT OP UNIT UNITS``
prints the seconds from the first unit to the last grant.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lab.papers.adts.links import Link, LinkShape, open_link
from lab.papers.adts.summary import Log, judge_ratio, measure_rounds, summarize_values
from siwarp.bench.runner import BenchError
from siwarp.cm import connect, listen
from siwarp.verbs import MR, AccessFlag, RemoteBuffer, SendFlag, SendWR, WROpcode

__all__ = ["measure_writes_with_immediate"]

#: Number of units in flight.
WINDOW = 8
#: Octets of a grant, which is a packed RemoteBuffer.
GRANT = 20
#: Time limit for the arrival of a unit or a grant, in seconds.
LIMIT_S = 20
#: Delays of one direction, in ms.
DELAYS = (0.0, 1.0, 10.0)
#: Sizes of a unit in octets.
UNITS = (64 << 10, 1 << 20)


def _receive_units(host: str, op: str, unit: int) -> None:
    with listen((host, 0), recv_size=unit if op == "send" else 1, recv_depth=WINDOW) as listener:
        print(listener.address[1], flush=True)
        conn = listener.accept(LIMIT_S)
    with conn, contextlib.suppress(TimeoutError):
        memory = conn.register(WINDOW * unit)
        buffers = [memory.remote(i * unit, unit).pack() for i in range(WINDOW)]
        grants = MR(conn.pd, b"".join(buffers), AccessFlag(0))
        for buffer in range(WINDOW):  # the first grants, before any unit has arrived
            _send_grant(conn, grants, buffer)
        while True:
            for wc in conn.rcq.wait(LIMIT_S, WINDOW):
                if wc.status:
                    return  # the client has closed the connection
                conn.qp.post_recv(conn._recvs[wc.wr_id])
                # The Immediate Data of a Write is the number of the buffer that it has filled.
                _send_grant(conn, grants, wc.imm_data if op == "write" else wc.wr_id)
            while conn.scq.poll(64):
                pass


def _send_grant(conn: Any, grants: MR, buffer: int) -> None:
    sge = grants.sge(buffer * GRANT, GRANT)
    conn.qp.post_send(SendWR(sg=[sge], send_flags=SendFlag.SIGNALED))


def _send_units(host: str, port: int, op: str, unit: int, units: int) -> float:
    """Send units as grants arrive; return the seconds until the receiver has granted all again."""
    with connect((host, port), recv_size=GRANT, recv_depth=2 * WINDOW) as conn:
        memory = MR(conn.pd, WINDOW * unit)
        credits: deque[RemoteBuffer] = deque()
        sent = granted = 0
        base: int | None = None
        began = time.monotonic()
        while granted < units + WINDOW:
            while credits and sent < units:
                buffer = credits.popleft()
                assert base is not None
                part = memory.sge(sent % WINDOW * unit, unit)
                if op == "write":
                    number = (buffer.addr - base) // unit
                    write = WROpcode.RDMA_WRITE_WITH_IMM
                    wr = SendWR(0, write, sg=[part], remote=buffer, imm_data=number)
                else:
                    wr = SendWR(sg=[part])
                conn.qp.post_send(wr)
                sent += 1
            arrived = conn.rcq.wait(LIMIT_S, WINDOW)
            if not arrived:
                raise SystemExit(f"no grant within {LIMIT_S} s")
            for wc in arrived:
                buffer = RemoteBuffer.unpack(conn._inbox.read(GRANT, wc.check().wr_id * GRANT))
                if base is None:
                    base = buffer.addr
                conn.qp.post_recv(conn._recvs[wc.wr_id])
                credits.append(buffer)
                granted += 1
            if not sent:
                began = (
                    time.monotonic()
                )  # waiting for the first credits is part of connecting and is not timed
            while conn.scq.poll(64):
                pass
        return time.monotonic() - began


def _measure_rate(link: Link, op: str, unit: int, units: int) -> float:
    """Start a receiver and a sender of units; return the rate in Mbit/s."""
    module = [sys.executable, "-m", "lab.papers.adts.immediate"]
    server = subprocess.Popen(
        link.make_command_line("server", *module, "server", link.address, op, str(unit)),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = [*module, "client", link.address, port, op, str(unit), str(units)]
        done = subprocess.run(
            link.make_command_line("client", *client),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        server.kill()
        server.communicate()
    if done.returncode:
        raise BenchError(f"units by {op}: the client failed; its message is above")
    return units * unit * 8e-6 / float(done.stdout)


def measure_writes_with_immediate(rounds: int, scale: float, log: Log) -> dict[str, Any]:
    """Measure the rate of units by Sends and by Writes with Immediate, by the delay of the link.

    Raises:
        BenchError: the link cannot be created, or a run of the first round failed.

    """
    curves: dict[str, list[Any]] = {}
    judged = []
    for delay in DELAYS:
        shape = LinkShape(10_000, delay) if delay else LinkShape()
        with open_link("wan", shape) as link:
            for unit in UNITS:
                units = max(2 * WINDOW, int((64 << 20) // unit * scale))
                runs: dict[str, Callable[[], float]] = {
                    op: lambda op=op, unit=unit, units=units: _measure_rate(link, op, unit, units)  # type: ignore[misc]
                    for op in ("send", "write")
                }
                found = measure_rounds(runs, rounds, log)
                words = f"units of {unit >> 10} KiB"
                for op, values in found.items():
                    name = {"send": "Sends", "write": "Writes with Immediate"}[op]
                    curve = curves.setdefault(f"{name}, {words}", [])
                    # The chart's axis is logarithmic: no delay is shown as 10 us.
                    curve.append([delay or 0.01, summarize_values(values)])
                name = f"Writes with Immediate to Sends, {words}, {delay:g} ms"
                judged.append(judge_ratio(name, found["write"], found["send"], None))
    return {
        "line": f"RC, {WINDOW} units in flight",
        "axis": "ms each way",
        "unit": "Mbit/s",
        "curves": curves,
        "ratios": judged,
    }


if __name__ == "__main__":
    if sys.argv[1] == "server":
        _receive_units(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        host, port, op, unit, units = sys.argv[2:7]
        print(_send_units(host, int(port), op, int(unit), int(units)))
