# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Generates pages of the site and man pages for the commands, from declarations in the code.

``python tools/pages/commands.py DIR`` writes the man pages, one file for each command.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer.main

from siwarp.cli.app import build_app

__all__ = ["Command", "command_doc_page", "list_commands", "man_page"]


@dataclass(frozen=True)
class Command:
    """A command of siwarp: the words of the command, its help, and options with descriptions."""

    path: tuple[str, ...]
    usage: str
    help: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    inner: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The words of the command joined by hyphens, as in names of man pages."""
        return "-".join(self.path)

    @property
    def summary(self) -> str:
        """The first sentence of the help text of the command."""
        return _first_sentence(self.help[0])


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text.strip())[0]


def list_commands() -> list[Command]:
    """Return every command that is not hidden; each command precedes its subcommands."""
    return list(_list_command_and_subcommands(typer.main.get_command(build_app()), ("siwarp",)))


def _list_command_and_subcommands(command: Any, path: tuple[str, ...]) -> Iterator[Command]:
    context = command.context_class(command, info_name=" ".join(path))
    inner = {n: c for n, c in getattr(command, "commands", {}).items() if not c.hidden}
    rows = [row for p in command.params if (row := _describe_parameter(p))]
    if path[1:] in (("run",), ("env",), ("config",)):
        yield _command_from_help(path)
    else:
        usage = " ".join([*path, *command.collect_usage_pieces(context)])
        paragraphs = tuple(re.split(r"\n\s*\n", (command.help or "").strip().replace("\b\n", "")))
        names = tuple((n, _first_sentence(c.help or "")) for n, c in inner.items())
        yield Command(path, usage, paragraphs, tuple(rows), names)
    for name, one in inner.items():
        yield from _list_command_and_subcommands(one, (*path, name))


def _command_from_help(path: tuple[str, ...]) -> Command:
    """Return the description of a command from the help text that the command prints."""
    from siwarp.cli import config, run

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        (config if path[1] == "config" else run).main(path[1], ["--help"])
    usage, _, rest = said.getvalue().partition("\n\n")
    text, _, options = rest.partition("Options:\n")
    whole = re.sub(r"\n {4,}", " ", options)  # join the continuation lines of a text
    rows = re.findall(r"^  (\S.*?)  +(\S.*)$", whole, re.MULTILINE)
    paragraphs = re.sub(r"^  ", "", text.strip("\n"), flags=re.MULTILINE).split("\n\n")
    return Command(path, usage.removeprefix("Usage: "), tuple(paragraphs), tuple(rows), ())


def _describe_parameter(parameter: Any) -> tuple[str, str] | None:
    """Return the option of a parameter and its help text, with bounds and default, or None."""
    help_ = getattr(parameter, "help", None) or ""
    if getattr(parameter, "hidden", False):
        return None
    if parameter.param_type_name == "argument":
        return (parameter.metavar or (parameter.name or "").upper(), help_)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return (names, help_)
    choices = getattr(parameter.type, "choices", None)
    number = re.match("int|float", parameter.type.name) is not None
    value = parameter.metavar or ("|".join(map(_format_default, choices)) if choices else "")
    notes = [*_number_bounds(parameter.type)]
    if parameter.required:
        notes.append("required")
    elif parameter.default not in (None, "", False):
        notes.append(f"default {_format_default(parameter.default)}")
    what = f"{names} {value or ('N' if number else 'TEXT')}"
    return (what, f"{help_} ({', '.join(notes)})" if notes else help_)


def _number_bounds(kind: Any) -> Iterator[str]:
    """Yield a text with the bounds of a number, if the number has bounds."""
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if least is not None and most is not None:
        yield f"{least} to {most}"
    elif least is not None:
        yield f"at least {least}"
    elif most is not None:
        yield f"at most {most}"


def _format_default(value: Any) -> str:
    return str(getattr(value, "value", value))


def _is_command_line(paragraph: str) -> bool:
    """Return whether a paragraph of a help text is a command line."""
    return re.fullmatch(r"(?s)(siwarp|cc|\$) .*( \.|[^.])", paragraph) is not None


def command_doc_page(group: list[Command]) -> str:
    """Return the Markdown page of a command and its subcommands."""
    lines: list[str] = []
    for command in group:
        depth = "#" * (len(command.path) - 1 or 1)
        lines += [f"(command-{command.name})=", f"{depth} `{' '.join(command.path)}`", ""]
        lines += ["```text", command.usage, "```", ""]
        for paragraph in command.help:
            code = _is_command_line(paragraph)
            lines += ["```text", paragraph, "```", ""] if code else [_help_markdown(paragraph), ""]
        lines += _options_table(command)
    return "\n".join(lines)


def _options_table(command: Command) -> list[str]:
    lines: list[str] = []
    rows = [(f"`{what}`", _help_markdown(text)) for what, text in command.options]
    rows += [
        (f"[`{n}`](#command-{command.name}-{n})", _help_markdown(text)) for n, text in command.inner
    ]
    if not rows:
        return lines
    lines = [":::{table}", ":class: options", "", "| | |", "|---|---|"]
    lines += [f"| {what.replace('|', chr(92) + '|')} | {text} |" for what, text in rows]
    return [*lines, ":::", ""]


def _help_markdown(text: str) -> str:
    """Return a help text as Markdown; text between backticks stays unchanged."""
    pieces = re.split(r"(`[^`]+`)", text)
    plain = [p if p[:1] == "`" else re.sub(r"([*<>\[\]|_])", r"\\\1", p) for p in pieces]
    return "".join(plain)


def man_page(command: Command) -> str:
    """Return the man page of a command, in roff."""
    name = command.name
    lines = [f'.TH {name.upper()} 1 "" "siwarp {version("siwarp")}" "siwarp"']
    lines += [".SH NAME", _escape_roff(f"{name} - {command.summary.rstrip('.')}")]
    lines += [".SH SYNOPSIS", _escape_roff(command.usage), ".SH DESCRIPTION"]
    for paragraph in command.help:
        code = _is_command_line(paragraph)
        lines += [
            ".PP",
            *([".nf"] if code else []),
            _escape_roff(paragraph),
            *([".fi"] if code else []),
        ]
    for title, rows in (("OPTIONS", command.options), ("COMMANDS", command.inner)):
        lines += [f".SH {title}"] if rows else []
        for what, text in rows:
            lines += [".TP", f"\\fB{_escape_roff(what)}\\fR", _escape_roff(text)]
    above = "-".join(command.path[:-1])
    see = [f"{name}-{inner}" for inner, _ in command.inner] + ([above] if above else [])
    lines += [".SH SEE ALSO", ", ".join(f"{_escape_roff(s)}(1)" for s in see)] if see else []
    return "\n".join(lines) + "\n"


def _escape_roff(text: str) -> str:
    """Return text that roff does not interpret as a request or an escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\`")
    return re.sub(r"^(['.])", r"\\&\1", text, flags=re.MULTILINE)


def main() -> int:
    """Write the man pages into the folder of the first argument."""
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} DIR", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for command in list_commands():
        (folder / f"{command.name}.1").write_text(man_page(command), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
