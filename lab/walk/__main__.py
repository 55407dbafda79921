# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m lab.walk``: the calls of functions of all layers during one message of 64 octets.

Compiles all layers without inlining and with instrumentation at the beginning and the end of each
function, and prints for RC, UD and RD:

- calls: the number of calls of the layers' functions during the post and during the polls;
- locks: the number of times a lock is acquired, by layer;
- descents: the number of calls from DDP and higher layers into the layer that handles a received
  segment first (mpa, llp or rd).

With ``--tree`` the calls of another checkout are counted, too, for comparison. ``--calls`` prints
the tree of calls.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import typer

from lab.command import (
    AS_JSON,
    OUTPUT,
    create_study_application,
    output_results,
    parse_names,
    run_study,
)

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    *("base", "llp", "mem", "mpa", "rd", "ddp", "rdmap"),
    *("device", "qp", "connect", "verbs", "cm"),
)
TYPES = ("rc", "ud", "rd")
#: The lowest layer that handles a received segment.
LOWEST = {"rc": "mpa", "ud": "llp", "rd": "rd"}
FLAGS = (
    *("-std=gnu11", "-O1", "-g", "-fno-inline", "-fno-strict-aliasing", "-no-pie", "-w"),
    *("-D_GNU_SOURCE", '-DSIW_VERSION="0"', "-finstrument-functions", "-pthread"),
)
app = create_study_application()


class Call(NamedTuple):
    """A recorded call of a function, with the layers of the function and of its caller."""

    depth: int
    function: str
    layer: str
    #: The layer of the calling function; "" for the program.
    caller: str


def compile_program(tree: Path, program: Path) -> None:
    """Compile all layers of a checkout together with walk.c, which sends the messages."""
    sources = [path for layer in LAYERS for path in sorted((tree / "siwarp" / layer).rglob("*.c"))]
    include = (f"-I{tree}/siwarp", f"-I{tree}/siwarp/include")
    words = ["cc", *FLAGS, *include, *map(str, sources), str(Path(__file__).parent / "walk.c")]
    subprocess.run([*words, "-o", str(program)], check=True)


def functions_by_address(program: Path) -> dict[int, tuple[str, str]]:
    """Return the name and the layer of each function of the program, by address."""
    names: dict[int, str] = {}
    listing = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in "tT":
            names[int(words[0], 16)] = words[2]
    places = subprocess.run(
        ["addr2line", "-e", program],
        input="\n".join(map(hex, names)),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    found = {}
    for (address, name), place in zip(names.items(), places, strict=True):
        parts = Path(place.split(":")[0]).parts
        layer = next((part for part in reversed(parts) if part in LAYERS), "")
        if "qp" in parts and "siwarp" in parts:  # the folder qp/rd belongs to layer qp
            layer = "qp"
        found[address] = (name, layer)
    return found


def trace_function_calls(program: Path, kind: str) -> dict[str, list[Call]]:
    """Run the program; return the calls during the post, and during the polls until the receive."""
    functions = functions_by_address(program)
    with tempfile.NamedTemporaryFile("r") as file:
        subprocess.run(
            [program, kind, file.name],
            check=True,
            env={**os.environ, "SIWARP_PROGRESS_THREAD": "0"},
        )
        lines = file.read().splitlines()
    calls: dict[str, list[Call]] = {"post": [], "poll": []}
    phase, layers = "post", [""]
    for line in lines:
        if line in calls:
            phase = line
        elif line.startswith("<"):
            layers.pop()
        else:
            name, layer = functions[int(line[1:], 16)]
            if layer:  # functions of system headers have no layer
                calls[phase].append(Call(len(layers) - 1, name, layer, layers[-1]))
            layers.append(layer or layers[-1])
    return calls


def count_calls_and_locks(kind: str, calls: list[Call]) -> dict[str, object]:
    """Return the numbers of calls, of acquired locks, and of calls that enter the lowest layer."""
    lowest = LOWEST[kind]
    above = LAYERS[LAYERS.index("ddp") :]
    locks = Counter(call.caller for call in calls if call.function == "siw_lock")
    return {
        "calls": len(calls),
        "by layer": {layer: n for layer in LAYERS if (n := sum(c.layer == layer for c in calls))},
        "locks": dict(sorted(locks.items())),
        "descents": sum(call.layer == lowest and call.caller in above for call in calls),
    }


@app.command()
def count_calls_per_message(
    types: str = typer.Option(",".join(TYPES), "--types", help="Types of queue pairs."),
    tree: str = typer.Option("", "--tree", help="Also count in this checkout."),
    tree_of_calls: bool = typer.Option(False, "--calls", help="Print the tree of calls."),
    as_json: bool = AS_JSON,
    output: str = OUTPUT,
) -> None:
    """Count the calls that a message causes, by layer."""
    found: dict[str, object] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, root in (("this tree", ROOT), *([(tree, Path(tree))] if tree else [])):
            program = Path(folder, "walk")
            compile_program(root, program)
            for kind in parse_names(types, TYPES, "--types"):
                for phase, calls in trace_function_calls(program, kind).items():
                    counts = count_calls_and_locks(kind, calls)
                    found[f"{name} {kind} {phase}"] = counts
                    lines.append(f"{name}, {kind}, {phase}: {counts}")
                    if tree_of_calls:
                        lines += [f"{'  ' * c.depth}{c.function}  [{c.layer}]" for c in calls]
    output_results(found, lambda _: print("\n".join(lines)), as_json=as_json, output=output)


run_study(app, "walk")
