# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m lab.wan --matrix``: congestion control at bottlenecks of many rates and queues.

Each cell is a link with a rate, a queue and a round trip time. Each cell is measured with reliable
datagrams alone, the kernel's CUBIC and BBR alone, two CUBIC flows, an RD flow together with CUBIC,
and two RD flows. :func:`judge_performance_promises` checks the promised limits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lab.wan.line import ADDRESS, Bottleneck, Line
from siwarp.bench.runner import BenchError

__all__ = [
    "CELLS",
    "RUNS",
    "add_promise_verdicts_to_results",
    "all_performance_promises_kept",
    "format_result_table_lines",
    "judge_performance_promises",
    "measure_bottleneck_cases",
    "measure_flows_over_bottleneck",
    "parse_case_selection",
]

RATES = (20, 100, 400)
ROUND_TRIPS = (0.2, 4, 40)
_LEAST_QUEUE = 3000

#: The runs in each cell of the matrix, that is, at each bottleneck: the flows of the run, and TCP's
#: congestion control.
RUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "rd": (("rd",), ""),
    "cubic": (("tcp",), "cubic"),
    "bbr": (("tcp",), "bbr"),
    "cubic+cubic": (("tcp", "tcp.2"), "cubic"),
    "rd+cubic": (("rd", "tcp"), "cubic"),
    "rd+rd": (("rd", "rd.2"), ""),
}

#: The promised limits: see judge_performance_promises().
MOST_DROPPED, AIM_DROPPED = 0.10, 0.02
LEAST_SHARE, BETTER = 0.9, 1.2
LEAST_KEPT = 1 / 3
LEAST_RATIO, MOST_RATIO = 0.7, 1.4

#: Octets of payload in a full packet of 1500 octets. TCP: without the headers of IPv4 and TCP and
#: without time stamps. RD: without the headers of IPv4, UDP, RD and DDP, and without the CRC. A
#: share is the fraction of the link's capacity that a flow's packets use, each packet counted once.
_PACKET = 1500
_PAYLOAD = {"tcp": 1448, "rd": 1414}
#: Seconds for starting and ending the flows, in addition to the duration of the flows.
_MARGIN_S = 30


def _make_all_bottleneck_cases() -> dict[str, Bottleneck]:
    """Return the cells (bottlenecks) by name: each rate with each queue and round trip time."""
    found = {}
    for rate in RATES:
        for rtt in ROUND_TRIPS:
            bdp = rate * 1e6 / 8 * rtt / 1e3
            for queue in (15_000, 60_000, int(0.2 * bdp), int(bdp)):
                octets = max(queue, _LEAST_QUEUE)
                found[f"{rate}M/{octets}/{rtt}ms"] = Bottleneck(rate, octets, rtt)
    return found


CELLS = _make_all_bottleneck_cases()

#: The cells that CI measures: one of each kind, except those with a queue of one packet, where more
#: than a tenth of the packets is dropped (BENCHMARKS.md).
SHORT = (
    "20M/10000/4ms",
    "20M/15000/0.2ms",
    "20M/15000/4ms",
    "20M/60000/40ms",
    "100M/15000/4ms",
    "100M/60000/4ms",
)


def parse_case_selection(text: str) -> list[str] | None:
    """Return the names of the cells that a text selects; None if a name is unknown."""
    names = list(CELLS) if not text else list(SHORT) if text == "short" else text.split(",")
    return names if all(name in CELLS for name in names) else None


def _make_flow_command_line(role: str, kind: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "lab.wan.flow", role, kind, ADDRESS, *more]


def measure_flows_over_bottleneck(
    line: Line, shape: Bottleneck, flows: tuple[str, ...], congestion: str, seconds: float
) -> dict[str, Any]:
    """Run flows at the same time over the bottleneck; return the results of each flow.

    Raises:
        BenchError: a flow failed, or did not end in time.

    """
    line.configure_bottleneck(shape)
    sinks = [
        subprocess.Popen(
            line.wrap_command_for_namespace("b", *_make_flow_command_line("sink", kind))
        )
        for kind in flows
    ]
    try:
        sources = [sys.executable, "-m", "lab.wan.flows", ADDRESS, str(seconds), congestion]
        done = subprocess.run(
            line.wrap_command_for_namespace("a", *sources, *flows),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds + _MARGIN_S,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"the flows did not finish within {seconds + _MARGIN_S:.0f} s") from None
    finally:
        for sink in sinks:
            sink.kill()
            sink.wait()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise BenchError(f"{flows} failed: {last}")
    passed, dropped = line.passed_and_dropped_packet_counts()
    told = json.loads(done.stdout)
    for kind, flow in told.items():
        payload = _PAYLOAD[kind.partition(".")[0]]
        flow["mbit_s"] = flow["octets"] * 8 / flow["seconds"] / 1e6
        flow["share"] = flow["mbit_s"] / shape.mbit_s * _PACKET / payload
        flow["again"] = flow["again"] * payload / max(flow["octets"], 1)
    return {
        "flows": told,
        "dropped": dropped / max(passed + dropped, 1),
        "again": max(flow["again"] for flow in told.values()),
    }


def _load_results(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _save_results(path: Path | None, found: dict[str, Any]) -> None:
    if path is None:
        return
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(found, indent=1), encoding="utf-8")
    beside.replace(path)


def measure_bottleneck_cases(
    names: Iterable[str],
    seconds: float,
    path: Path | None,
    runs: Iterable[str] = RUNS,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Measure cells, except for results that the file at ``path`` already contains.

    Raises:
        BenchError: this user has no permission to create namespaces, or a flow failed.

    """
    found = _load_results(path)
    todo = [(name, run) for name in names for run in runs if run not in found.get(name, {})]
    done = 0
    for rtt in sorted({CELLS[name].rtt_ms for name, _ in todo}):
        with Line(rtt) as line:
            for name, run in todo:
                if CELLS[name].rtt_ms != rtt:
                    continue
                if progress:
                    progress(done, len(todo), f"{name} {run}")
                flows, congestion = RUNS[run]
                result = measure_flows_over_bottleneck(
                    line, CELLS[name], flows, congestion, seconds
                )
                found.setdefault(name, {})[run] = result
                _save_results(path, found)
                done += 1
    return {name: found[name] for name in names if name in found}


def _link_shares_of_run(cell: dict[str, Any], run: str) -> list[float]:
    return [flow["share"] for flow in cell[run]["flows"].values()]


def judge_performance_promises(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each promised limit the figure of a cell, and whether the limit is kept."""
    alone = _link_shares_of_run(cell, "rd")[0]
    rivals = max(_link_shares_of_run(cell, "cubic")[0], _link_shares_of_run(cell, "bbr")[0])
    lost = max(cell["rd"]["dropped"], cell["rd"]["again"])
    beside = _link_shares_of_run(cell, "rd+cubic")[1]
    usual = sum(_link_shares_of_run(cell, "cubic+cubic")) / 2
    first, second = _link_shares_of_run(cell, "rd+rd")
    ratio = first / second if second else float("inf")
    kept_by_tcp = beside / usual if usual else 1.0
    return {
        "lost": {"is": lost, "kept": lost <= MOST_DROPPED},
        "alone": {
            "is": alone,
            "kept": alone >= LEAST_SHARE or alone >= BETTER * rivals,
        },
        "tcp_keeps": {"is": kept_by_tcp, "kept": kept_by_tcp >= LEAST_KEPT},
        "two": {"is": ratio, "kept": LEAST_RATIO <= ratio <= MOST_RATIO},
    }


def all_performance_promises_kept(found: dict[str, Any]) -> bool:
    """Return whether all promised limits are kept in all cells."""
    return all(
        part["kept"]
        for cell in found.values()
        for part in judge_performance_promises(cell).values()
    )


def add_promise_verdicts_to_results(found: dict[str, Any]) -> dict[str, Any]:
    """Return the results of each cell, with the verdict for each promised limit."""
    return {
        name: {**cell, "promises": judge_performance_promises(cell)} for name, cell in found.items()
    }


def format_result_table_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table: shares of the link in percent; ``!`` marks a missed limit."""
    yield (
        f"{'cell':24} {'RD':>5} {'lost':>6} {'again':>6} {'CUBIC':>6} {'BBR':>5}   "
        f"{'TCP keeps':>9} {'two RD':>7} {'lost':>6}"
    )
    for name, cell in found.items():
        by = judge_performance_promises(cell)
        mark = {part: " " if it["kept"] else "!" for part, it in by.items()}
        yield (
            f"{name:24} {by['alone']['is']:5.0%}{mark['alone']}"
            f"{cell['rd']['dropped']:6.1%}{mark['lost']}{cell['rd']['again']:6.1%} "
            f"{_link_shares_of_run(cell, 'cubic')[0]:6.0%} "
            f"{_link_shares_of_run(cell, 'bbr')[0]:5.0%}   "
            f"{by['tcp_keeps']['is']:9.2f}{mark['tcp_keeps']}{by['two']['is']:7.2f}{mark['two']}"
            f"{cell['rd+rd']['dropped']:6.1%}"
        )
