# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Units by Sends and by Writes with Immediate, on the verbs alone.

The paper chooses Sends: a Write needs the address of a buffer that the receiver has granted, and a
notice of its arrival, which here is its Immediate. Both ways are measured with the same units and
the same number of them in flight. The receiver grants a unit after each unit that it has received;
for Writes, the grant has the address of the buffer.

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

from lab.papers.adts.lines import Line, LineShape, open_line
from lab.papers.adts.summary import Log, judge_ratio, measure_rounds, summarize_values
from siwarp.bench.runner import BenchError
from siwarp.cm import connect, listen
from siwarp.verbs import MR, AccessFlag, RemoteBuffer, SendFlag, SendWR, WROpcode

__all__ = ["measure_immediate"]

#: Units in flight.
WINDOW = 8
#: Octets of a grant: a packed RemoteBuffer.
GRANT = 20
#: Seconds for a unit or a grant.
LIMIT_S = 20
#: Delays of one direction, in ms.
DELAYS = (0.0, 1.0, 10.0)
UNITS = (64 << 10, 1 << 20)


def _serve(host: str, op: str, unit: int) -> None:
    with listen((host, 0), recv_size=unit if op == "send" else 1, recv_depth=WINDOW) as listener:
        print(listener.address[1], flush=True)
        conn = listener.accept(LIMIT_S)
    with conn, contextlib.suppress(TimeoutError):
        memory = conn.register(WINDOW * unit)
        places = [memory.remote(i * unit, unit).pack() for i in range(WINDOW)]
        grants = MR(conn.pd, b"".join(places), AccessFlag(0))
        for place in range(WINDOW):  # the first grants
            _grant(conn, grants, place)
        while True:
            for wc in conn.rcq.wait(LIMIT_S, WINDOW):
                if wc.status:
                    return  # the client has closed the connection
                conn.qp.post_recv(conn._recvs[wc.wr_id])
                # A Write says in its Immediate which buffer it has filled.
                _grant(conn, grants, wc.imm_data if op == "write" else wc.wr_id)
            while conn.scq.poll(64):
                pass


def _grant(conn: Any, grants: MR, place: int) -> None:
    sge = grants.sge(place * GRANT, GRANT)
    conn.qp.post_send(SendWR(sg=[sge], send_flags=SendFlag.SIGNALED))


def _send_units(host: str, port: int, op: str, unit: int, units: int) -> float:
    """Send units as granted; return the seconds until all of them were granted anew."""
    with connect((host, port), recv_size=GRANT, recv_depth=2 * WINDOW) as conn:
        memory = MR(conn.pd, WINDOW * unit)
        credits: deque[RemoteBuffer] = deque()
        sent = granted = 0
        base: int | None = None
        began = time.monotonic()
        while granted < units + WINDOW:
            while credits and sent < units:
                place = credits.popleft()
                assert base is not None
                part = memory.sge(sent % WINDOW * unit, unit)
                if op == "write":
                    number = (place.addr - base) // unit
                    write = WROpcode.RDMA_WRITE_WITH_IMM
                    wr = SendWR(0, write, sg=[part], remote=place, imm_data=number)
                else:
                    wr = SendWR(sg=[part])
                conn.qp.post_send(wr)
                sent += 1
            arrived = conn.rcq.wait(LIMIT_S, WINDOW)
            if not arrived:
                raise SystemExit(f"no grant within {LIMIT_S} s")
            for wc in arrived:
                place = RemoteBuffer.unpack(conn._inbox.read(GRANT, wc.check().wr_id * GRANT))
                if base is None:
                    base = place.addr
                conn.qp.post_recv(conn._recvs[wc.wr_id])
                credits.append(place)
                granted += 1
            if not sent:
                began = time.monotonic()  # the first grants belong to the connection
            while conn.scq.poll(64):
                pass
        return time.monotonic() - began


def _run_once(line: Line, op: str, unit: int, units: int) -> float:
    """Return the rate in Mbit/s."""
    module = [sys.executable, "-m", "lab.papers.adts.immediate"]
    server = subprocess.Popen(
        line.make_command_line("b", *module, "server", line.address, op, str(unit)),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = [*module, "client", line.address, port, op, str(unit), str(units)]
        done = subprocess.run(
            line.make_command_line("a", *client),
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


def measure_immediate(rounds: int, scale: float, log: Log) -> dict[str, Any]:
    """Measure the rate of units by Sends and by Writes with Immediate, by the line's delay.

    Raises:
        BenchError: the line cannot be created, or a run of the first round failed.

    """
    curves: dict[str, list[Any]] = {}
    judged = []
    for delay in DELAYS:
        shape = LineShape(10_000, delay) if delay else LineShape()
        with open_line("wan", shape) as line:
            for unit in UNITS:
                units = max(2 * WINDOW, int((64 << 20) // unit * scale))
                runs: dict[str, Callable[[], float]] = {
                    op: lambda op=op, unit=unit, units=units: _run_once(line, op, unit, units)  # type: ignore[misc]
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
        _serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        host, port, op, unit, units = sys.argv[2:7]
        print(_send_units(host, int(port), op, int(unit), int(units)))
