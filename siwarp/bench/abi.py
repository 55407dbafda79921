# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What unmodified programs reach: perftest on our libibverbs, beside raw sockets and siwarp itself.

Each round measures the three in turn, the two of siwarp's own bench first.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siwarp.bench.runner import BenchError, run

__all__ = ["PACKAGE", "ROWS", "Row", "measure", "show"]

PACKAGE = "perftest"
MIB = 1 << 20
#: Seconds until a pair of programs is given up.
LIMIT_S = 60
#: Columns of perftest's line of results: t_typical (us), BW average (MiB/s).
_COLUMN = {"lat": 4, "bw": 3}


@dataclass(frozen=True)
class Row:
    """A program of perftest, what it is beside, and the ratio that is promised."""

    name: str
    program: str
    kind: str
    qp: str
    op: str
    size: int
    target: float
    persona: str = "auto"
    iters: int = 2000

    def kept(self, ratio: float) -> bool:
        """Whether a ratio to the raw socket keeps the promise."""
        return ratio <= self.target if self.kind == "lat" else ratio >= self.target


ROWS: tuple[Row, ...] = (
    Row("ib_send_lat UD 64 B", "ib_send_lat", "lat", "ud", "send", 64, 1.25),
    Row("ib_send_lat RC 64 B, iwarp", "ib_send_lat", "lat", "rc", "send", 64, 1.20, "iwarp"),
    Row("ib_send_lat RC 64 B, roce", "ib_send_lat", "lat", "rc", "send", 64, 1.20, "roce"),
    Row("ib_write_bw RC 1 MiB", "ib_write_bw", "bw", "rc", "write", MIB, 0.70, iters=1000),
    Row("ib_read_bw RC 1 MiB", "ib_read_bw", "bw", "rc", "read", MIB, 0.65, iters=1000),
)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _pinned(cpu: int | None) -> list[str]:
    return [] if cpu is None else ["taskset", "-c", str(cpu)]


def _listening(port: int) -> bool:
    table = Path("/proc/net/tcp").read_text(encoding="ascii")
    return re.search(rf":{port:04X} [0-9A-F:]+ 0A ", table) is not None


def _ended(process: subprocess.Popen[str], program: str) -> str:
    """Return what a program printed; it must end by itself and well."""
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{program} was not done within {LIMIT_S} s") from None
    if process.returncode != 0:
        last = said.strip().rpartition("\n")[2]
        raise BenchError(f"{program} failed: exit status {process.returncode}: {last}")
    return said


def _perftest(row: Row) -> float:
    """Run a program of perftest over loopback: us one way, or GB/s of 10^9 octets."""
    port = _free_port()
    allowed = sorted(os.sched_getaffinity(0))
    cpus = (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)
    words = [
        *("-F", "-c", row.qp.upper(), "-s", str(row.size), "-n", str(row.iters)),
        *("-p", str(port), "-d", "siw_lo"),
    ]
    siwarp = [sys.executable, "-m", "siwarp.cli", "run", "--no-view", "--"]
    environment = {**os.environ, "SIWARP_PERSONA": row.persona}

    def start(cpu: int | None, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*_pinned(cpu), *siwarp, row.program, *words, *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    server = start(cpus[1])
    ends = [server]
    try:
        deadline = time.monotonic() + LIMIT_S
        while not _listening(port) and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        client = start(cpus[0], "127.0.0.1")
        ends.append(client)
        said = _ended(client, row.program)
        _ended(server, row.program)
    finally:
        for end in ends:
            if end.poll() is None:
                end.kill()
                end.communicate()
    found = re.search(rf"(?m)^\s*{row.size}\s+{row.iters}\s.*$", said)
    if found is None:
        raise BenchError(f"{row.program} printed no results: run it by hand under siwarp run")
    value = float(found[0].split()[_COLUMN[row.kind]])
    return value if row.kind == "lat" else value * MIB / 1e9


def _round(row: Row) -> dict[str, float]:
    own = run(
        row.kind,
        row.qp,
        row.op,
        size=row.size,
        rounds=1,
        others=False,
        env={"SIWARP_PERSONA": row.persona},
    )
    return {"floor": own["floor"], "ours": own["ours"], "program": _perftest(row)}


def _summary(row: Row, rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    def median(over: str) -> float:
        return statistics.median(values["program"] / values[over] for values in rounds)

    return {
        **{k: statistics.median(values[k] for values in rounds) for k in rounds[0]},
        "ratio": median("floor"),
        "ratio_to_ours": median("ours"),
        "kept": row.kept(median("floor")),
        "rounds": list(rounds),
    }


def measure(
    rows: Sequence[Row], rounds: int, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Measure each row; one that fails has the reason instead.

    Raises:
        BenchError: perftest is not installed.

    """
    if not all(shutil.which(row.program) for row in rows):
        raise BenchError(f"perftest is missing: install the package {PACKAGE}")
    results = []
    for i, row in enumerate(rows):
        result: dict[str, Any] = {
            "name": row.name,
            "unit": "us" if row.kind == "lat" else "GB/s",
            "target": row.target,
            "error": None,
            "measured": None,
        }
        values = []
        try:
            for turn in range(rounds):
                values.append(_round(row))
                if progress is not None:
                    progress(i * rounds + turn + 1, len(rows) * rounds)
            result["measured"] = _summary(row, values)
        except BenchError as e:
            result["error"] = str(e)
        results.append(result)
    return results


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print a line for each row."""
    head = ("", "raw", "siwarp", "program", "to raw", "to siwarp", "promised", "")
    print("{:<28} {:>9} {:>9} {:>9} {:>8} {:>10} {:>9}  {}".format(*head).rstrip())
    for result in results:
        measured = result["measured"]
        if measured is None:
            print(f"{result['name']:<28} failed: {result['error']}")
            continue
        values = (measured["floor"], measured["ours"], measured["program"])
        sign = "<=" if result["unit"] == "us" else ">="
        print(
            f"{result['name']:<28} {''.join(f' {value:9.2f}' for value in values).strip():>29} "
            f"{measured['ratio']:8.2f} {measured['ratio_to_ours']:10.2f} "
            f"{sign} {result['target']:6.2f}  {'kept' if measured['kept'] else 'MISSED'}"
        )
