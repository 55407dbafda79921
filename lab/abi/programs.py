# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measures the performance of unmodified programs, perftest and UCX, on siwarp's libibverbs.

Each round measures, one after another, the raw socket, siwarp's own benchmark, the program, and, if
the promise of a row compares with another program, that program too.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.console import fixed_width_console
from siwarp.bench.programs import Pair, measure_program_pair
from siwarp.bench.runner import BenchError, run
from siwarp.bench.table import format_value_with_unit

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "PACKAGES",
    "ROWS",
    "BenchError",
    "Row",
    "measure_rows",
    "missing_programs",
    "print_table",
]

#: The Debian package of each program.
PACKAGES = {
    **dict.fromkeys(("ib_send_lat", "ib_write_bw", "ib_read_bw"), "perftest"),
    "ucx_perftest": "ucx-utils",
}
MIB = 1 << 20
#: Columns in perftest's line of results: t_typical (us), BW average (MiB/s).
_COLUMN = {"lat": 4, "bw": 3}


def _make_perftest_program_pair(
    program: str, qp: str, size: int, persona: str = "auto", iters: int = 2000
) -> Pair:
    kind = program.rpartition("_")[2]
    words = ("-F", "-d", "siw_lo", "-c", qp.upper(), "-s", str(size), "-n", str(iters))
    before = r"\S+\s+" * (_COLUMN[kind] - 2)
    return Pair(
        program,
        words,
        rf"(?m)^\s*{size}\s+{iters}\s+{before}(\S+)",
        1 if kind == "lat" else MIB / 1e9,
        {"SIWARP_PERSONA": persona},
        ("--no-view",),
    )


def _describe_ucx_perftest_pair(tls: str, device: str, siwarp: tuple[str, ...] | None) -> Pair:
    """Return a ping-pong of 64 octets by UCX over one transport; the figure is the median."""
    iters = 20000
    words = ("-t", "tag_lat", "-s", "64", "-n", str(iters), "-w", "1000", "-f", "-v")
    environment = {"UCX_TLS": tls, "UCX_NET_DEVICES": device}
    return Pair("ucx_perftest", words, rf"(?m)^{iters},([^,]+),", env=environment, siwarp=siwarp)


@dataclass(frozen=True)
class Row:
    """A program, the corresponding measurement of siwarp's own benchmark, and the promised ratio.

    The promise limits the ratio of the program's figure to that of the raw socket, or of ``beside``
    if it is set.
    """

    name: str
    pair: Pair
    own: dict[str, Any]
    target: float
    beside: Pair | None = None
    beside_name: str = "raw socket"

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller figure is better, which is so for a latency."""
        return bool(self.own["kind"] == "lat")

    @property
    def unit(self) -> str:
        """The unit of the program's figure: us, or GB/s."""
        return "us" if self.less_is_better else "GB/s"

    def keeps_performance_promise(self, ratio: float) -> bool:
        """Return whether the ratio of the program's figure to siwarp's keeps the promised limit."""
        return ratio <= self.target if self.less_is_better else ratio >= self.target

    def required_programs(self) -> list[str]:
        """Return the programs that must be installed for the measurement of the row."""
        return sorted({pair.program for pair in (self.pair, self.beside) if pair is not None})


def _make_run_arguments_for_persona(persona: str) -> dict[str, Any]:
    """Return the argument of ``siwarp.bench.run`` that selects a persona."""
    return {"env": {"SIWARP_PERSONA": persona}}


def _all_benchmark_rows() -> Iterable[Row]:
    latency = {"kind": "lat", "op": "send", "size": 64}
    rc = {**latency, "qp": "rc"}
    ud = {**latency, "qp": "ud"}
    iwarp, roce = (
        _make_perftest_program_pair("ib_send_lat", "rc", 64, persona)
        for persona in ("iwarp", "roce")
    )
    yield Row("ib_send_lat UD 64 B", _make_perftest_program_pair("ib_send_lat", "ud", 64), ud, 1.25)
    yield Row(
        "ib_send_lat RC 64 B, iwarp",
        iwarp,
        {**rc, **_make_run_arguments_for_persona("iwarp")},
        1.20,
    )
    yield Row(
        "ib_send_lat RC 64 B, roce", roce, {**rc, **_make_run_arguments_for_persona("roce")}, 1.20
    )
    yield Row(
        "ib_send_lat RC 64 B, roce to iwarp",
        roce,
        {**rc, **_make_run_arguments_for_persona("roce")},
        1.15,
        iwarp,
        "persona iwarp",
    )
    for op, target in (("write", 0.70), ("read", 0.65)):
        own = {"kind": "bw", "qp": "rc", "op": op, "size": MIB}
        pair = _make_perftest_program_pair(f"ib_{op}_bw", "rc", MIB, iters=1000)
        yield Row(f"ib_{op}_bw RC 1 MiB", pair, own, target)
    yield Row(
        "ucx_perftest tag_lat 64 B, ud_verbs",
        _describe_ucx_perftest_pair("ud_v", "siw_lo:1", ()),
        ud,
        1.0,
        _describe_ucx_perftest_pair("tcp", "lo", None),
        "UCX's tcp",
    )


ROWS: tuple[Row, ...] = tuple(_all_benchmark_rows())


# ---- rounds


def _measure_round(row: Row, turn: int) -> dict[str, float]:
    """Measure each figure of a row once; with ``beside``, the order alternates between rounds."""
    values: dict[str, float] = {}

    def measure_own_benchmark() -> None:
        result = run(**row.own, rounds=1, others=False)
        values.update(floor=result["floor"], ours=result["ours"])

    def measure_program() -> None:
        values["program"] = measure_program_pair(row.pair)

    def measure_compared_program() -> None:
        values["beside"] = (
            values["floor"] if row.beside is None else measure_program_pair(row.beside)
        )

    steps = (
        (measure_own_benchmark, measure_compared_program, measure_program)
        if turn % 2 == 0 or row.beside is None
        else (measure_program, measure_compared_program, measure_own_benchmark)
    )
    for step in steps:
        step()
    return values


def _median_and_range(values: Iterable[float]) -> dict[str, float]:
    listed = sorted(values)
    return {"median": statistics.median(listed), "min": listed[0], "max": listed[-1]}


def _summarize_rounds(row: Row, rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    def summarize_program_ratio(over: str) -> dict[str, float]:
        return _median_and_range(values["program"] / values[over] for values in rounds)

    ratio = summarize_program_ratio("beside")
    return {
        **{k: _median_and_range(values[k] for values in rounds) for k in rounds[0]},
        "ratio": ratio,
        "ratio_to_ours": summarize_program_ratio("ours"),
        "kept": row.keeps_performance_promise(ratio["median"]),
        "rounds": list(rounds),
    }


def missing_programs(rows: Sequence[Row]) -> list[str]:
    """Return the programs that the rows need and that are not installed."""
    programs = {program for row in rows for program in row.required_programs()}
    return sorted(program for program in programs if shutil.which(program) is None)


def measure_rows(
    rows: Sequence[Row], rounds: int, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Measure each row; for a row that fails, or whose program is missing, record the reason."""
    absent = missing_programs(rows)
    results = []
    for i, row in enumerate(rows):
        result: dict[str, Any] = {
            "name": row.name,
            "unit": row.unit,
            "target": row.target,
            "beside": row.beside_name,
            "error": None,
            "measured": None,
        }
        lacks = [program for program in row.required_programs() if program in absent]
        values = []
        try:
            if lacks:
                raise BenchError(
                    f"left out: {lacks[0]} is missing: install the package {PACKAGES[lacks[0]]}"
                )
            for turn in range(rounds):
                values.append(_measure_round(row, turn))
                if progress is not None:
                    progress(i * rounds + turn + 1, len(rows) * rounds)
            result["measured"] = _summarize_rounds(row, values)
        except BenchError as e:
            result["error"] = str(e)
        results.append(result)
    return results


# ---- output


def _format_cell(spread: dict[str, float], unit: str = "") -> str:
    def format_value(value: float) -> str:
        return format_value_with_unit(value, unit) if unit else f"{value:.2f}"

    return f"{format_value(spread['median'])}\n{spread['min']:.2f} to {spread['max']:.2f}"


def _format_table_row_cells(result: dict[str, Any]) -> list[str]:
    measured, unit = result["measured"], result["unit"]
    promised = f"{'<=' if unit == 'us' else '>='} {result['target']:.2f}"
    if measured is None:
        return [result["name"], "", "", "", "", result["beside"], "", promised, "NOT SHOWN"]
    return [
        result["name"],
        _format_cell(measured["floor"], unit),
        _format_cell(measured["ours"], unit),
        _format_cell(measured["program"], unit),
        f"{measured['ratio_to_ours']['median']:.2f}",
        result["beside"] + f"\n{format_value_with_unit(measured['beside']['median'], unit)}",
        _format_cell(measured["ratio"]),
        promised,
        "kept" if measured["kept"] else "MISSED",
    ]


def print_table(results: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print the table of the rows, and the reason for each row that failed."""
    from rich.table import Table

    console = fixed_width_console(console, 160)
    shown = Table(header_style="bold", border_style="dim")
    columns = ("program", "raw socket", "siwarp", "it", "it/siwarp", "beside", "it/beside")
    for column in (*columns, "promised", "verdict"):
        text = column in ("program", "beside", "promised", "verdict")
        shown.add_column(column, justify="left" if text else "right", no_wrap=True)
    for result in results:
        shown.add_row(*_format_table_row_cells(result))
    console.print(shown)
    console.print("medians, minimum and maximum; ratios are computed per round")
    for result in results:
        if result["error"]:
            console.print(f"{result['name']}: {result['error']}", style="red", soft_wrap=True)
