# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The options of ``siwarp bench``'s commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from siwarp.bench.hosts_wire import PORT

__all__ = ["HOSTS", "OPTIONS", "STREAM", "TIMES", "takes"]


def _completes(*words: str) -> Callable[[str], list[str]]:
    """Return a shell completion for an option with a comma-separated list of these words."""

    def offer(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [before + comma + word for word in words if word.startswith(begun)]

    return offer


#: The options of measurements: type and typer declaration of each.
OPTIONS: dict[str, tuple[Any, Any]] = {
    "addr": (
        str | None,
        typer.Argument(
            None,
            metavar="ADDR",
            help="Where `siwarp bench --server` runs; without it, beside raw sockets, on loopback.",
        ),
    ),
    "qp": (
        list[str],
        typer.Option(
            ["ud"],
            "--qp",
            autocompletion=_completes("ud", "uc", "rd", "rc"),
            help="ud, uc, rd or rc; several, with commas or repeated.",
        ),
    ),
    "op": (
        str,
        typer.Option(
            "send",
            "--op",
            autocompletion=_completes("send", "write", "read"),
            help="send; rc: write, read, too; uc, bw on rd: write, too.",
        ),
    ),
    "size": (
        str | None,
        typer.Option(
            None, "-s", "--size", help="Octets of a message, as 64, 4K, 1M; reg: of the region."
        ),
    ),
    "sizes": (
        str | None,
        typer.Option(
            None,
            "--sizes",
            metavar="SIZES",
            help="With ADDR: all (2 to 8M), or sizes with commas, or 1:64K:*2, 1K:9K:+2K.",
        ),
    ),
    "all_sizes": (
        bool,
        typer.Option(False, "-a", "--all", help="With ADDR: --sizes all."),
    ),
    "duration": (
        float | None,
        typer.Option(
            None,
            "-D",
            "--duration",
            min=0.1,
            max=3600,
            metavar="S",
            help="With ADDR: seconds of each size, 1 without it and without -n.",
        ),
    ),
    "pairs": (
        int,
        typer.Option(
            1,
            "-q",
            "--pairs",
            min=1,
            max=32,
            help="With ADDR: queue pairs at the same time, each in a process of its own.",
        ),
    ),
    "both": (
        bool,
        typer.Option(
            False, "-b", "--bidirectional", help="With ADDR: the server sends, too; the sum."
        ),
    ),
    "percentiles": (
        str | None,
        typer.Option(
            None, "--percentiles", metavar="P", help="With ADDR: print these, as 50,99,99.9."
        ),
    ),
    "histogram": (bool, typer.Option(False, "--histogram", help="With ADDR: print a histogram.")),
    "sorted_samples": (
        bool,
        typer.Option(
            False, "-H", "--report-histogram", help="With ADDR: print each sample, sorted."
        ),
    ),
    "unsorted_samples": (
        bool,
        typer.Option(
            False, "-U", "--report-unsorted", help="With ADDR: print each sample, in order."
        ),
    ),
    "samples": (
        str,
        typer.Option(
            "", "--samples", metavar="FILE", help="With ADDR: write each sample there, in us."
        ),
    ),
    "csv": (
        str,
        typer.Option("", "--csv", metavar="FILE", help="With ADDR: write a line for each size."),
    ),
    "plot": (
        str,
        typer.Option(
            "",
            "--plot",
            metavar="FILE",
            help="With ADDR: draw the curves there, .svg or .png; needs siwarp[plot].",
        ),
    ),
    "port": (
        int,
        typer.Option(PORT, "-p", "--port", min=1, max=65535, help="With ADDR: the server's port."),
    ),
    "iters": (
        int | None,
        typer.Option(
            None,
            "-n",
            "--iters",
            min=1,
            help="Messages of one run; without it, a sixth of a second's.",
        ),
    ),
    "depth": (
        int | None,
        typer.Option(
            None,
            "-t",
            "--depth",
            "--tx-depth",
            min=1,
            help="Messages outstanding; of sends, the window.",
        ),
    ),
    "post_list": (
        int,
        typer.Option(1, "-l", "--post-list", min=1, max=32, help="Requests posted as one list."),
    ),
    "wait": (
        str,
        typer.Option(
            "poll",
            "--wait",
            autocompletion=_completes("poll", "event"),
            help="poll, or event: sleep on a completion channel.",
        ),
    ),
    "api": (
        str,
        typer.Option(
            "c",
            "--api",
            autocompletion=_completes("c", "python"),
            help="c, or python: then the floor is the same run in C.",
        ),
    ),
    "rounds": (
        int,
        typer.Option(7, "--rounds", min=1, help="How often the raw socket and siwarp take turns."),
    ),
    "markers": (
        bool,
        typer.Option(
            False, "--markers", help="RC: ours with MPA's Markers both ways, too, beside without."
        ),
    ),
    "persona": (
        str,
        typer.Option(
            "auto",
            "--persona",
            autocompletion=_completes("iwarp", "roce", "both"),
            help="RC: iwarp, roce, or both: ours as iwarp, and as roce beside it.",
        ),
    ),
    "faults": (
        str | None,
        typer.Option(
            None,
            "--faults",
            metavar="PLAN",
            help="What goes wrong on ours' way; see siwarp wan --help.",
        ),
    ),
    "only": (str, typer.Option("", "--only", help="Rows whose name has these words.")),
    "output": (
        str,
        typer.Option("", "-o", "--output", help="Also write everything to this file."),
    ),
    "as_json": (
        bool,
        typer.Option(False, "--json", help="Print everything, each round too, as JSON."),
    ),
}

#: Options of measurements with a stream of messages.
STREAM = "qp op size iters depth post_list wait api rounds markers persona faults"
#: Options of all measurements between hosts, and those of latency only.
HOSTS = "port sizes all_sizes duration csv plot"
TIMES = "percentiles histogram sorted_samples unsorted_samples samples"

Command = Callable[..., None]


def takes(names: str) -> Callable[[Command], Command]:
    """Add these options, and --json, to a command, after the command's own options."""

    def give(command: Command) -> Command:
        taken = (*names.split(), "as_json")
        own = inspect.signature(command, eval_str=True).parameters.values()
        given = [p for p in own if p.name not in taken and p.kind != p.VAR_KEYWORD]
        given += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=OPTIONS[name][0],
                default=OPTIONS[name][1],
            )
            for name in taken
        ]
        command.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in given}
        return command

    return give
