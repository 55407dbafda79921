# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp wan``: two network namespaces connected by an emulated lossy link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from siwarp.base import show

#: The addresses of the two namespaces, as in wan/wan.h.
A, B = "10.77.0.1", "10.77.0.2"
A6, B6 = "fd77::1", "fd77::2"
#: The environment variable with the relay's PID, set for programs that run in a and b.
VARIABLE = "WAN_RELAY"


class NamespaceName(str, Enum):
    """The namespaces that ``siwarp wan --enter`` accepts."""

    a = "a"
    b = "b"


def _find_wan_program() -> str:
    """Return the path of this installation's program siwarp-wan."""
    from siwarp import _siwarp

    assert _siwarp.__file__ is not None
    home = Path(_siwarp.__file__).resolve().parent
    for path in (home / "wan" / "bin" / "siwarp-wan", home / "siwarp" / "wan" / "siwarp-wan"):
        if path.is_file():
            return str(path)
    raise FileNotFoundError(f"siwarp-wan is missing from {home}: install siwarp again")


def _run_in_wan_namespace(end: NamespaceName, pid: str | None, command: list[str]) -> None:
    pid = pid or os.environ.get(VARIABLE)
    if not pid:
        raise typer.BadParameter(
            f"give --pid, the PID of siwarp-wan; programs in a or b have it in {VARIABLE}",
            param_hint="--enter",
        )
    os.execv(_find_wan_program(), ["siwarp-wan", "--enter", pid, end.value, *command])


def check_link_fault_plan(plan: str) -> None:
    """Reject a plan that the relay cannot carry out."""
    done = subprocess.run(
        [_find_wan_program(), "--check", plan], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise typer.BadParameter(
            f"invalid fault plan: {done.stdout.strip()}", param_hint="--faults"
        )


_WORDS = {
    "lost": "lost",
    "blackout": "lost in a blackout",
    "full": "dropped, queue full",
    "copies": "doubled",
    "reordered": "overtaken",
    "corrupted": "corrupted",
}


def _print_statistics(statistics: dict[str, dict[str, int]]) -> None:
    """Print the relay's statistics on standard error; standard output belongs to the command."""
    for way, name in (("a_to_b", "a to b"), ("b_to_a", "b to a")):
        of = statistics[way]
        parts = [f"{of['packets']} packets, {of['octets']} octets"]
        parts += [f"{of[key]} {words}" for key, words in _WORDS.items() if of[key]]
        print(f"siwarp wan: {name}: {', '.join(parts)}", file=sys.stderr)


def _run_in_namespaces(plan: str, mtu: int, in_b: str, command: list[str]) -> tuple[int, Any]:
    """Run the commands; return the exit status, and the relay's statistics or None."""
    # the programs in both namespaces share one Q_Key
    from siwarp.verbs.qkey import qkey_environment

    mine, its = os.pipe()
    process = subprocess.Popen(
        [_find_wan_program(), plan, str(mtu), str(its), in_b, *command],
        pass_fds=[its],
        env={**os.environ, **qkey_environment()},
    )
    os.close(its)
    with os.fdopen(mine) as pipe:
        while True:
            try:
                said = pipe.read()
                status = process.wait()
                break
            except KeyboardInterrupt:
                continue  # Ctrl-C is meant for the command, which may ignore it
    return status if status >= 0 else 128 - status, json.loads(said) if said else None


def wan(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Command to run in a; default: a shell."),
    ] = None,
    faults: str = typer.Option("", "--faults", metavar="PLAN", help="Fault plan of the link."),
    in_a: str | None = typer.Option(
        None, "--in-a", metavar="COMMAND", help="Like COMMAND, but run by a shell."
    ),
    in_b: str | None = typer.Option(
        None, "--in-b", metavar="COMMAND", help="Command to run in b; ended when a's command ends."
    ),
    mtu: int = typer.Option(1500, "--mtu", min=1280, max=65535, help="MTU in octets."),
    enter: Annotated[
        NamespaceName | None, typer.Option("--enter", help="Run COMMAND in an existing namespace.")
    ] = None,
    pid: str | None = typer.Option(
        None, "--pid", help="PID of the siwarp-wan that owns the namespace."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the statistics as JSON."),
) -> None:
    """Run commands in two network namespaces with an emulated lossy link between them, without
    root.

    \b
    siwarp wan --faults rate=50Mbit,delay=20ms,loss=1% \\
        --in-b 'siwarp ping --server' -- siwarp ping 10.77.0.2

    Namespace a has the addresses 10.77.0.1 and fd77::1, namespace b has 10.77.0.2 and fd77::2.
    Packets of any protocol pass through a relay, which applies the plan to each packet. In a or b,
    `siwarp wan --enter b -- COMMAND` runs a command in b. The exit status is that of a's command.

    A plan consists of clauses separated by semicolons; a clause is a list of faults separated by
    commas: loss=1% burst=5 (consecutive losses) dup=1% reorder=1% corrupt=1% mark=1% (CE)
    delay=20ms jitter=2ms rate=50Mbit limit=100 (packets queued because of the rate; or octets,
    256KB) blackout=2s@10s (length@start) seed=7 peer=ADDR/LEN:PORT (length and port are optional;
    an IPv6 address is in brackets). A clause with the prefix tx: applies from a to b, with rx: from
    b to a; peer is b's address. Every clause that matches a packet applies to it. The same plan
    always affects the same packets. For siwarp's own traffic without namespaces,
    `siwarp ping --faults`, SIWARP_FAULTS and siwarp.faults() take the same plans; tx: then applies
    to packets that this process sends. For streams, reset=1MB, reset=5s and short=10% exist as
    well.
    """
    if enter is not None:
        _run_in_wan_namespace(enter, pid, command or [os.environ.get("SHELL", "/bin/sh")])
    if in_a is not None and command:
        raise typer.BadParameter(
            "the command for a is given twice: omit --in-a or the command behind --",
            param_hint="COMMAND",
        )
    check_link_fault_plan(faults)
    words = ["/bin/sh", "-c", in_a] if in_a is not None else command
    status, statistics = _run_in_namespaces(
        faults, mtu, in_b or "", words or [os.environ.get("SHELL", "/bin/sh")]
    )
    if statistics is not None and as_json:
        show.print_json(statistics)
    elif statistics is not None:
        _print_statistics(statistics)
    raise typer.Exit(status)
