# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Generates the reference of settings, counters and exceptions from tables in the code."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from siwarp._siwarp import ffi, lib
from siwarp.cli.settings import settings
from siwarp.verbs import errors

__all__ = [
    "EXCEPTIONS",
    "counters_doc_page",
    "exceptions_doc_page",
    "parse_refusal_reasons",
    "settings_doc_page",
]

#: The exceptions of siwarp, which are described only on the page of exceptions.
EXCEPTIONS = ("Error", "StateError", "LimitError", "PeerGone", "Timeout", "ProtocolError")
_REASON = re.compile(r"X\((\w+), (E\w+),\s*((?:\"(?:[^\"\\]|\\.)*\"\s*)+)\)")


def format_table_cell(text: str) -> str:
    """Return a text as Markdown for a table cell, which renders as exactly the text."""
    pieces = re.split(r"(`[^`]+`)", text.replace("|", r"\|"))
    return "".join(p if p[:1] == "`" else re.sub(r"([*<>\[\]_{}])", r"\\\1", p) for p in pieces)


def settings_doc_page() -> str:
    """Return the page of all settings with variable, option, default and bounds."""
    lines = [
        "# Settings",
        "",
        "A call by the program overrides an option of the command, which overrides an environment",
        "variable, which overrides the default. Options precede the command:",
        "`siwarp --crc 0 ping`. `siwarp config` prints this table with the current values.",
        "",
    ]
    for row in settings():
        lines += [
            f"(setting-{row.name})=",
            f"## `{row.variable}`",
            "",
            f"{format_table_cell(row.help[:1].upper() + row.help[1:])}.",
            "",
            f"Option `{row.option}`; default {row.default}, from {row.minimum} to {row.maximum}.",
            "",
        ]
    return "\n".join(lines)


def counters_doc_page(troubleshooting: str) -> str:
    """Return the page of all counters, with the advice of TROUBLESHOOTING.md."""
    advice = _advice_by_name(troubleshooting)
    lines = [
        "# Counters",
        "",
        "What a process has sent, received and dropped since it began. `siwarp counters PID`",
        "prints those of another process of the same user, `siwarp counters` lists the processes",
        "that have counters.",
        "",
        "| counter | what it counts | what to do when it grows |",
        "|---|---|---|",
    ]
    for i in range(lib.siw_counters_count()):
        name = ffi.string(lib.siw_counter_name(i)).decode()
        what = ffi.string(lib.siw_counter_help(i)).decode()
        lines.append(f"| `{name}` | {format_table_cell(what)} | {advice.get(name, '')} |")
    return "\n".join(lines) + "\n"


def _advice_by_name(troubleshooting: str) -> dict[str, str]:
    """Return the advice for each name in the first column of the tables of TROUBLESHOOTING.md."""
    found: dict[str, str] = {}
    for line in troubleshooting.splitlines():
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if len(cells) == 3:
            links = re.sub(r"\]\((?!https?:|#)", "](../../", cells[2])
            found.update(dict.fromkeys(re.findall(r"`([a-z_]+)`", cells[0]), links))
    return found


def parse_refusal_reasons(header: Path) -> list[tuple[str, str, str]]:
    """Return name, errno and text of each reason why a call is refused (base/reason.h)."""
    table = header.read_text("utf-8").partition("#define SIW_REASONS(X)")[2].replace("\\\n", "\n")
    return [
        (name, number, "".join(re.findall(r"\"((?:[^\"\\]|\\.)*)\"", text)))
        for name, number, text in _REASON.findall(table)
    ]


def exceptions_doc_page(header: Path) -> str:
    """Return the page of classes, errno values, numbers of Terminates, and reasons of refusals."""
    lines = [
        "# Exceptions",
        "",
        "Every exception of siwarp is a `siwarp.Error`, which is an `OSError`: its text",
        "describes the call, the reason for its failure and the remedy, and `errno` is the value",
        "that a C program gets from the same call.",
        "",
        "## Classes",
        "",
    ]
    for name in EXCEPTIONS:
        lines += [f"(exception-{name.lower()})=", f"### {name}", "", "```{eval-rst}"]
        lines += [f".. autoexception:: siwarp.{name}", "   :show-inheritance:", "```", ""]
    lines += ["## By errno", "", "| errno | class | text | what to do |", "|---|---|---|---|"]
    for number, (kind, advice) in sorted(errors._BY_ERRNO.items()):
        name, text = errno.errorcode[number], os.strerror(number)
        link = f"[`{kind.__name__}`](#exception-{kind.__name__.lower()})"
        lines.append(f"| `{name}` | {link} | {text} | {format_table_cell(advice)} |")
    return (
        "\n".join(
            [*lines, "", *_terminate_numbers_section(), "", *_refusal_reasons_section(header)]
        )
        + "\n"
    )


def _terminate_numbers_section() -> list[str]:
    """Return the section on the numbers that a Terminate carries."""
    lines = [
        "(terminates)=",
        "## Terminates",
        "",
        "A `ProtocolError` and a completion's `vendor_err` have these three numbers; `clause` is",
        "the id of the sentence of the RFC that defines them.",
        "",
        "| layer | type | code | what it says | clause |",
        "|---|---|---|---|---|",
    ]
    for layer, kind, code in errors._CODES:
        text = errors.terminate_reason(layer, kind, code)
        clause = errors.terminate_clause(layer, kind, code)
        lines.append(f"| {layer} | {kind} | {code:#04x} | {format_table_cell(text)} | {clause} |")
    return lines


def _refusal_reasons_section(header: Path) -> list[str]:
    """Return the section on the reasons of refusals, with the names of siw_reason_name()."""
    lines = [
        "(reasons)=",
        "## Reasons",
        "",
        "Why a call was refused: in C `siw_reason()` is the text, `siw_reason_name()` the name. In",
        "Python the text is that of the exception and the name its `reason`; from Python 3.11 on a",
        "traceback ends with the name of the heading below. Numbers in braces are replaced by",
        "the values of the call.",
        "",
    ]
    for name, number, text in parse_refusal_reasons(header):
        anchor = name.lower().replace("_", "-")
        lines += [
            f"(reason-{anchor})=",
            f"### {name}",
            "",
            f"`{number}`: {format_table_cell(text)}.",
            "",
        ]
    return lines
