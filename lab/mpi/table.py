# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The tables that ``python -m lab.mpi`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.console import fixed_width_console
from lab.mpi.hybrid import CHANNELS
from lab.mpi.launch import TRANSPORTS
from lab.mpi.wire import METRICS
from siwarp.bench.table import format_value_with_unit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["format_octets", "print_tables"]


def format_octets(n: int) -> str:
    """Return a size as text: 64 B, 4 KiB, 1 MiB."""
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if n >= 1 << shift and n % (1 << shift) == 0:
            return f"{n >> shift} {unit}"
    return f"{n} B"


def _create_terminal_table(*columns: str) -> Table:
    from rich.table import Table

    made = Table(header_style="bold", border_style="dim")
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", no_wrap=True)
    return made


def _print_curves(console: Console, found: dict[str, Any]) -> None:
    for metric, (words, unit, less) in METRICS.items():
        shown = _create_terminal_table(
            "size", *(TRANSPORTS[name].name for name in found["transports"])
        )
        for size in found["sizes"]:
            cells = []
            for figures in found["transports"].values():
                point = figures[str(size)]
                cell = format_value_with_unit(point[metric]["median"], unit)
                ratio = point.get(f"{metric}_ratio")
                cells.append(f"{cell}  x {ratio['median']:.2f}" if ratio else cell)
            shown.add_row(format_octets(size), *cells)
        console.print(f"{words} ({'less' if less else 'more'} is better)", style="bold")
        console.print(shown)
    console.print(
        "2 ranks, no shared memory, medians; x: ratio to the same library's tcp, median of the "
        "rounds",
        soft_wrap=True,
    )


def _print_transport_results(console: Console, found: dict[str, Any]) -> None:
    if found["transports"]:
        _print_curves(console, found)
    for must in found["musts"]:
        ratio = must["ratio"]
        told = "NOT SHOWN"
        if ratio is not None:
            verdict = "kept" if must["kept"] else "MISSED"
            told = f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})  {verdict}"
        console.print(f"must: {must['name']}: {told}", soft_wrap=True)


def _format_mib(n: int) -> str:
    return f"{n / (1 << 20):.2f}"


def _print_memory(console: Console, found: dict[str, Any]) -> None:
    shown = _create_terminal_table(
        "ranks", "", "process", "of it siwarp's", "kernel", "sockets", "UD saves"
    )
    for point in found["points"]:
        for name in found["transports"]:
            if name not in point:
                continue
            of = point[name]
            kernel = of["kernel_buffers"] + (of["kernel_objects"] or 0)
            sockets = of["sockets"]
            saving = point.get("saving", {}).get("whole")
            shown.add_row(
                str(point["ranks"]),
                TRANSPORTS[name].name,
                _format_mib(of["process"]),
                _format_mib(of["siwarp"]),
                _format_mib(kernel),
                f"{sockets['udp'] + sockets['tcp']:.0f}",
                f"{saving:.0%}" if name == "rc" and saving is not None else "",
            )
    console.print(
        "memory of each rank in MiB, after each rank has communicated with all others", style="bold"
    )
    console.print(shown)
    if any(
        point[name]["kernel_objects"] is None
        for point in found["points"]
        for name in found["transports"]
        if name in point
    ):
        console.print("without the kernel's objects for sockets: only root can read /proc/slabinfo")


def _print_mpi_kernels(console: Console, found: dict[str, Any]) -> None:
    names = [TRANSPORTS[name].name for name in found["transports"]]
    shown = _create_terminal_table("kernel", "ranks", *names, "UD to RC", "UD to TCP")
    for row in found["rows"]:
        cells = []
        for name in found["transports"]:
            if name not in row:
                cells.append("")
                continue
            whole, part = row[name]["seconds"], row[name]["communication"]
            cells.append(f"{part['median'] * 1e3:.0f} of {whole['median'] * 1e3:.0f} ms")
        ratios = [row.get(f"ud_to_{name}") for name in ("rc", "tcp")]
        told = [f"{ratio['median']:.2f}" if ratio else "" for ratio in ratios]
        shown.add_row(f"{row['kernel']} {row['size']}", str(row["ranks"]), *cells, *told)
    console.print("time in communication, of the total time (less is better)", style="bold")
    console.print(shown)


def _print_ud_rc_hybrid_channels(console: Console, found: dict[str, Any]) -> None:
    shown = _create_terminal_table(
        *("ranks, size", "", "latency", "messages/s", "process", "of it siwarp's", "kernel"),
        *("connections", "over RC", "retransmitted", "saves of RC"),
    )
    for row in found["rows"]:
        for name in found["channels"]:
            if name not in row:
                continue
            of = row[name]
            kernel = of["kernel_buffers"] + (of["kernel_objects"] or 0)
            saving = row.get("saving", {}).get(name)
            shown.add_row(
                f"{row['ranks']}, {format_octets(row['size'])}",
                CHANNELS[name],
                format_value_with_unit(of["lat"]["median"], "us"),
                f"{of['rate']['median']:,.0f}",
                _format_mib(of["process"]),
                _format_mib(of["siwarp"]),
                _format_mib(kernel),
                f"{of['connections']:.1f}",
                f"{of['rc_share']:.0%}",
                f"{of['again']:.1f}",
                "" if saving is None else f"{saving:.0%}",
            )
    console.print(
        f"a channel over UD, RC and both (a peer gets RC after {found['threshold']} frames, and a "
        f"rank has at most {found['limit']} connections)",
        style="bold",
        soft_wrap=True,
    )
    console.print(shown)
    console.print(
        "one-way latency between two ranks; messages of all ranks, nine of ten to four neighbours; "
        "memory of a rank in MiB (siwarp's: all allocated memory, used or not)",
        soft_wrap=True,
    )


_SHOW = {
    "wire": _print_transport_results,
    "memory": _print_memory,
    "kernels": _print_mpi_kernels,
    "hybrid": _print_ud_rc_hybrid_channels,
}


def print_tables(found: dict[str, Any], console: Console | None = None) -> None:
    """Print a table for each measured part, and the reason for each part that failed."""
    console = fixed_width_console(console, 160)
    for part, print_part in _SHOW.items():
        if found.get(part):
            print_part(console, found[part])
            for name, why in found[part]["errors"].items():
                console.print(f"{name}: NOT SHOWN: {why}", style="red", soft_wrap=True)
    for part, why in found["errors"].items():
        console.print(f"{part}: NOT SHOWN: {why}", style="red", soft_wrap=True)
