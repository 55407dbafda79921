# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp config``: prints the settings, and the compiler and linker flags for a C program.

Build scripts call this command, which needs only the standard library; for the flags alone it does
not load the C library either.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict

from siwarp.base import show
from siwarp.cli.main import UsageError
from siwarp.cli.settings import Setting, former_setting_advice, settings

__all__ = ["GROUPS", "main"]

_USAGE = """\
Usage: siwarp config [OPTIONS] [NAME...]

  Print all settings, or the named ones, or the compiler and linker flags for
  a C program. Settings that differ from their default come first.

  siwarp config crc SIWARP_RD_PEERS --mulpdu

  cc prog.c $(siwarp config --cflags --libs)

Options:
  --cflags    Print the compiler's flags.
  --libs      Print the linker's flags.
  --json      Print JSON.
  -h, --help  Show this message.
"""
_OPTIONS = {"--cflags", "--libs", "--json", "-h", "--help"}

#: The settings by subject; each setting is in exactly one group.
GROUPS = {
    "progress": "progress_thread lanes nap_us spin_us budget hot_sockets batching",
    "sockets": "rcvbuf sndbuf mcast_port mcast_ttl",
    "streams": "crc markers mulpdu crc_first persona delivery_counts mpa_announce "
    "rnr_octets linger_ms",
    "connecting": "mpa_timeout_ms max_startups max_requests source_share rc_port_first "
    "rc_port_last sidr_timeout_ms",
    "datagrams": "qkey uc_breaker record_reorder_us record_timeout_ms error_policy err_queue "
    "err_window err_rate err_source_rate",
    "reliable datagrams": "peer_timeout_ms rd_handshake_timeout_ms rd_peers rd_window "
    "rd_total_window rd_idle_ms rd_max_datagram rd_follow_restart rd_cc",
    "diagnosis": "capture_mb log",
}

_FOOT = (
    "SIWARP_CRC=0 siwarp ping, or siwarp --crc 0 ping; siwarp config NAME has a setting's bounds.",
    "SIWARP_CAPTURE=FILE writes a capture, as siwarp capture does.",
    "SIWARP_FAULTS=PLAN injects faults; siwarp wan --help describes the plans.",
)


def main(_name: str, arguments: list[str]) -> int:
    """Run ``siwarp config`` with these arguments and return the exit status."""
    given = _OPTIONS.intersection(arguments)
    rows = _select_settings([word for word in arguments if word not in _OPTIONS])
    if given & {"-h", "--help"}:
        print(_USAGE, end="")
    elif given & {"--cflags", "--libs"}:
        _print_compiler_and_linker_flags("--cflags" in given, "--libs" in given)
    elif "--json" in given:
        show.print_json([asdict(row) for row in rows or settings()])
    elif rows:
        _print_each_setting(rows)
    else:
        _print_settings_tables()
    return 0


def _select_settings(words: list[str]) -> list[Setting]:
    """Return the named settings; a word is a name, a SIWARP_ variable or a command-line option."""
    if not words:
        return []
    known = {name: row for row in settings() for name in (row.name, row.variable, row.option)}
    for word in words:
        if word not in known:
            if gone := former_setting_advice(word):
                raise UsageError(f"config: {word} is no longer a setting: {gone}")
            near = difflib.get_close_matches(word, known, 1)
            advice = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"config: no such option or setting: {word}{advice}")
    return [known[word] for word in words]


def _print_compiler_and_linker_flags(cflags: bool, libs: bool) -> None:
    from siwarp import _paths

    wanted = ([_paths.compiler_flags()] if cflags else []) + (
        [_paths.linker_flags()] if libs else []
    )
    print(" ".join(wanted))


def _print_each_setting(rows: list[Setting]) -> None:
    for row in rows:
        show.print_line(f"{row.variable}, or {row.option} before a command", style="bold")
        show.print_line(f"  {row.help}")
        show.print_line(
            f"  value {row.value}; default {row.default}; from {row.minimum} to {row.maximum}"
        )


def _print_settings_tables() -> None:
    rows = {row.name: row for row in settings()}
    changed = [row for row in rows.values() if row.value != row.default]
    if changed:
        _print_settings_group("different from the default", changed)
    for title, names in GROUPS.items():
        _print_settings_group(title, [rows[name] for name in names.split()])
    for text in _FOOT:
        show.print_line(text)


def _print_settings_group(title: str, rows: list[Setting]) -> None:
    """Print one group's table, with the columns at the same position as in the other groups."""
    show.print_table(
        (title.ljust(24), "value".rjust(10), "default".rjust(10), "what"),
        [(row.variable, str(row.value), str(row.default), row.help) for row in rows],
        right=(1, 2),
    )
    show.print_line()
