# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs programs for ``siwarp sim``: reads JSON requests, one per line, and prints one line each.

Settings that the environment sets have the environment's values in each program, instead of values
drawn from the seed. Each program runs twice, unless the request asks for one run. The second run
must produce the same trace as the first, and must not leave more memory allocated than the first;
if it does, a third run shows whether that is repeated.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys

from siwarp.base.library import lib
from siwarp.sim.workloads import Outcome, Program, generate_program, run
from siwarp.sim.workloads.program import settings_of_environment

#: Number of blocks by which freelists may grow in a run.
SPARE = 16


def run_program_twice(
    workload: str, seed: int, operations: int | None, capture: str | None, once: bool
) -> Outcome:
    """Run a program twice, or once if ``once`` is set, and return the outcome of the runs."""
    program = generate_program(workload, seed)
    forced = {n: v for n, v in settings_of_environment().items() if n in program.settings}
    program = dataclasses.replace(program, settings=program.settings | forced)
    first = run(program, operations, capture)
    if first.failure or once:
        return first
    second, grown = _run_and_count_leaked_blocks(program, operations)
    failure = second.failure
    if not failure and second != first:
        failure = f"the second run had a different trace: {second.hash:016x}, not {first.hash:016x}"
    # The structs of objects that were open on crashed hosts remain allocated, two structs for some
    # objects. Freelists may also grow by a few blocks.
    permitted = second.stale * 5 // 4 + SPARE
    if not failure and grown > permitted:
        # After some programs a pool grows in this run only once. A leak also occurs in another run.
        _, grown = _run_and_count_leaked_blocks(program, operations)
        if grown > permitted:
            failure = (
                f"the third run leaked {grown} blocks of memory, {second.stale} of them explained "
                "by crashes"
            )
    return dataclasses.replace(second, failure=failure, failed_at=second.operations * bool(failure))


def _run_and_count_leaked_blocks(program: Program, operations: int | None) -> tuple[Outcome, int]:
    """Run a program; return the outcome and the number of blocks that remain allocated."""
    before = lib.siw_sim_allocated_blocks()
    outcome = run(program, operations)
    return outcome, lib.siw_sim_allocated_blocks() - before


def main() -> None:
    """Run the requested programs and print their outcomes until the end of standard input."""
    # The objects of the imported modules live as long as the process, so the garbage collector,
    # which runs when a world is closed, need not visit them.
    gc.freeze()
    for line in sys.stdin:
        ask = json.loads(line)
        outcome = run_program_twice(
            ask["workload"], ask["seed"], ask["operations"], ask["capture"], ask["once"]
        )
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
