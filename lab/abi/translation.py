# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Cycles that a post or a poll through libibverbs.so.1 costs more than through siw.h."""

from __future__ import annotations

import json
import statistics
import subprocess
from typing import Any

from siwarp.bench.runner import BenchError, bench_program_path

__all__ = ["MOST", "measure_abi_translation", "print_abi_translation_cycles"]

#: The promised limit for each call, in cycles of the time stamp counter.
MOST = 38
_LIMIT_S = 60


def measure_abi_translation(rounds: int) -> dict[str, dict[str, Any]]:
    """Return, for each call, the cycles through each API and the difference, as medians.

    On machines other than x86-64 the unit is nanoseconds.

    Raises:
        BenchError: the build has no siwarp-lab-translation, or the program failed.

    """
    tool = bench_program_path().parents[2] / "lab" / "siwarp-lab-translation"
    if not tool.is_file():
        raise BenchError("this build has no siwarp-lab-translation: it needs librdmacm-dev")
    seen: list[dict[str, dict[str, float]]] = []
    for _ in range(rounds):
        try:
            done = subprocess.run([tool], capture_output=True, text=True, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise BenchError(
                f"{tool.name} did not finish within {_LIMIT_S} s: reduce the load of the machine"
            ) from None
        if done.returncode != 0:
            raise BenchError(f"{tool.name} failed: {done.stderr.strip()}")
        seen.append(json.loads(done.stdout))
    found = {}
    for call in seen[0]:
        ways = [each[call] for each in seen]
        more = statistics.median(way["ibv"] - way["siw"] for way in ways)
        found[call] = {
            **{by: statistics.median(way[by] for way in ways) for by in ("siw", "ibv")},
            "more": more,
            "kept": more <= MOST,
        }
    return found


def print_abi_translation_cycles(found: dict[str, dict[str, Any]]) -> None:
    """Print one line per verbs call: its cycles, and whether the limit is kept."""
    print(f"{'cycles a call':<14} {'siw.h':>8} {'ibv_':>8} {'more':>8}   promised: <= {MOST}")
    for call, way in found.items():
        verdict = "kept" if way["kept"] else "MISSED"
        print(f"{call:<14} {way['siw']:8.1f} {way['ibv']:8.1f} {way['more']:8.1f}   {verdict}")
