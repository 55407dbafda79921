# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The options of ``siwarp bench``'s commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from siwarp.bench.trust import LEAST_FLOOR_ROUNDS

__all__ = ["HOSTS", "OPTIONS", "PORT", "SIZES", "STREAM", "TIMES", "with_named_options"]


#: The default port of the server; perftest and ping's server use the preceding port.
PORT = 18516


def _make_comma_list_completion(*words: str) -> Callable[[str], list[str]]:
    """Return a shell completion for an option whose value is a comma-separated list of
    ``words``.
    """

    def complete_word_for_shell(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [before + comma + word for word in words if word.startswith(begun)]

    return complete_word_for_shell


#: The options of measurements: type and typer declaration of each.
OPTIONS: dict[str, tuple[Any, Any]] = {
    "addr": (
        str | None,
        typer.Argument(
            None,
            metavar="ADDR",
            help="Host of `siwarp bench --server`; without it, siwarp is compared with raw "
            "sockets on loopback.",
        ),
    ),
    "qp": (
        list[str],
        typer.Option(
            ["ud"],
            "--qp",
            autocompletion=_make_comma_list_completion("ud", "uc", "rd", "rc"),
            help="ud, uc, rd or rc; several separated by commas or repeated.",
        ),
    ),
    "op": (
        str,
        typer.Option(
            "send",
            "--op",
            autocompletion=_make_comma_list_completion("send", "write", "read"),
            help="send; rc: also write and read; uc, and bw on rd: also write.",
        ),
    ),
    "size": (
        str | None,
        typer.Option(None, "-s", "--size", help="Octets of a message, for example 64, 4K, 1M."),
    ),
    "sizes": (
        str | None,
        typer.Option(
            None,
            "--sizes",
            metavar="SIZES",
            help="all (2 to 8M), or sizes separated by commas, or 1:64K:*2, 1K:9K:+2K.",
        ),
    ),
    "all_sizes": (
        bool,
        typer.Option(False, "-a", "--all", help="Measure --sizes all."),
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
            help="With ADDR: seconds per size; default 1, unless -n is given.",
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
            help="With ADDR: number of concurrent queue pairs, each in a separate process.",
        ),
    ),
    "both": (
        bool,
        typer.Option(
            False,
            "-b",
            "--bidirectional",
            help="With ADDR: the server sends too; the result is the sum.",
        ),
    ),
    "percentiles": (
        str | None,
        typer.Option(
            None,
            "--percentiles",
            metavar="P",
            help="With ADDR: print these percentiles, for example 50,99,99.9.",
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
            "",
            "--samples",
            metavar="FILE",
            help="With ADDR: write each sample to this file, in us.",
        ),
    ),
    "csv": (
        str,
        typer.Option("", "--csv", metavar="FILE", help="Also write a line for each size."),
    ),
    "plot": (
        str,
        typer.Option(
            "",
            "--plot",
            metavar="FILE",
            help="Also draw the figures by size; FILE ends in .svg or .png. Needs siwarp[plot].",
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
            help="Messages of one run; default: as many as take a sixth of a second.",
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
            help="Messages outstanding; for sends, the window.",
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
            autocompletion=_make_comma_list_completion("poll", "event"),
            help="poll, or event: sleep on a completion channel.",
        ),
    ),
    "api": (
        str,
        typer.Option(
            "c",
            "--api",
            autocompletion=_make_comma_list_completion("c", "python", "numpy"),
            help="c, python, or numpy (Sends in NumPy arrays); the floor of the latter two is C.",
        ),
    ),
    "rounds": (
        int,
        typer.Option(
            LEAST_FLOOR_ROUNDS,
            "--rounds",
            min=1,
            help="Number of rounds; each measures the raw socket and siwarp.",
        ),
    ),
    "markers": (
        bool,
        typer.Option(
            False, "--markers", help="RC: measure siwarp also with MPA Markers in both directions."
        ),
    ),
    "faults": (
        str | None,
        typer.Option(
            None,
            "--faults",
            metavar="PLAN",
            help="Fault plan for siwarp's packets; see siwarp wan --help.",
        ),
    ),
    "only": (str, typer.Option("", "--only", help="Only rows whose name contains this text.")),
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
STREAM = "qp op size sizes all_sizes csv plot iters depth post_list wait api rounds markers faults"
#: The options for several sizes and for files of results.
SIZES = "sizes all_sizes csv plot"
#: The options of all measurements between hosts, and the options of latency between hosts only.
HOSTS = "port duration"
TIMES = "percentiles histogram sorted_samples unsorted_samples samples"

Command = Callable[..., None]


def with_named_options(names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the named options, and --json, after a command's own options."""

    def add_options(command: Command) -> Command:
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

    return add_options
