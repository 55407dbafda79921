# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp sim``: random verbs programs in simulated worlds, several seeds per worker process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from siwarp.base.simulator import require_simulator

__all__ = ["NAMES", "sim"]

#: Limit in seconds of real time for the run of one seed, which takes about one second.
PATIENCE_S = 120
#: Number of failures that are reported with their shortest failing prefix.
MAX_REPORTED = 5
#: A run fails if one of these counters is zero at its end.
REQUIRED_COUNTERS = ("operations", "packets", "drops", "crashes", "refusals")


class WorkloadName(str, Enum):
    """The workloads of ``siwarp.sim.workloads``."""

    mixed = "mixed"
    messages = "messages"
    one_sided = "one-sided"
    churn = "churn"
    rc = "rc"
    rd_many = "rd-many"
    liars = "liars"


NAMES = tuple(name.value for name in WorkloadName)


class Worker:
    """A worker process that runs simulated programs; a process that has ended is replaced."""

    def __init__(self, once: bool = False) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._once = once

    def run(
        self, workload: str, seed: int, operations: int | None = None, capture: str | None = None
    ) -> dict[str, Any]:
        """Run a program and return its outcome, or a failure if the process ended."""
        process = self._process or self._start_process()
        assert process.stdin is not None and process.stdout is not None
        ask = {
            "workload": workload,
            "seed": seed,
            "operations": operations,
            "capture": capture,
            "once": self._once,
        }
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(ask) + "\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if ready else ""
        if line:
            outcome: dict[str, Any] = json.loads(line)
            return outcome
        if not ready:
            process.kill()
            why = f"it did not end within {PATIENCE_S} s of real time"
        else:
            why = f"its process ended with status {process.wait()}"
        self.close()
        return dict.fromkeys(REQUIRED_COUNTERS, 0) | {"hash": 0, "failure": why, "failed_at": 0}

    def _start_process(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "siwarp.sim.workloads"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._process

    def close(self) -> None:
        """End the worker process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()
        process.stdout.close()


@dataclass
class Totals:
    """The sums of the outcomes of all seeds of a run."""

    seeds: int = 0
    failures: int = 0
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REQUIRED_COUNTERS, 0))
    hash: int = 0

    def add_outcome(self, outcome: dict[str, Any]) -> None:
        """Add the outcome of a seed to the sums."""
        self.seeds += 1
        self.failures += bool(outcome["failure"])
        self.hash ^= outcome["hash"]
        for name in REQUIRED_COUNTERS:
            self.sums[name] += outcome[name]


def _shortest_failing_prefix(
    workload: str, seed: int, failed_at: int
) -> tuple[int, dict[str, Any]]:
    """Return the length of a short failing prefix, found by bisection, and its outcome.

    Each prefix runs in a new process, like the command that replays it.
    """

    def run_workload_prefix(n: int) -> dict[str, Any]:
        worker = Worker()
        try:
            return worker.run(workload, seed, n)
        finally:
            worker.close()

    least, most = 0, failed_at
    outcome = run_workload_prefix(most)
    if not outcome["failure"]:
        return most, outcome
    while most - least > 1:
        middle = (least + most) // 2
        tried = run_workload_prefix(middle)
        if tried["failure"]:
            most, outcome = middle, tried
        else:
            least = middle
    return most, outcome


def _report_failure(workload: str, seed: int, outcome: dict[str, Any], out: Path) -> None:
    """Print a failure with everything that is needed to reproduce it."""
    print(f"FAILED seed {seed} of workload {workload}: {outcome['failure']}", flush=True)
    length, short = _shortest_failing_prefix(workload, seed, outcome["failed_at"] or 1 << 20)
    if not short["failure"]:
        print("  it did not fail again in a new process", flush=True)
    elif short["failed_at"]:
        print(f"  the shortest prefix that fails has {length} operations: {short['failure']}")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{workload}-{seed}.pcapng"
    worker = Worker()
    worker.run(workload, seed, length, str(path))
    worker.close()
    more = f" --operations {length}" if short["failed_at"] else ""
    print(
        f"  reproduce: {_format_environment()}siwarp sim --workload {workload} --seed {seed}{more}"
    )
    print(f"  capture: {path}", flush=True)


def _format_environment() -> str:
    """Return the SIWARP_ variables of the environment, which change programs, as a shell prefix."""
    return "".join(
        f"{name}={shlex.quote(value)} "
        for name, value in sorted(os.environ.items())
        if name.startswith("SIWARP_")
    )


def _yield_workloads_with_seeds(
    first: int, seeds: int | None, until: float | None, names: list[str]
) -> Iterator[tuple[str, int]]:
    for i in itertools.count():
        if (seeds is not None and i >= seeds) or (until is not None and time.monotonic() >= until):
            return
        # Each seed runs one workload; the workloads alternate.
        yield names[(first + i) % len(names)], first + i


def sim(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 1,
    workload: Annotated[
        WorkloadName | None, typer.Option(help="Workload; default: all, alternating by seed.")
    ] = None,
    operations: Annotated[
        int | None, typer.Option(min=0, help="Limit of operations per program.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Continue with further seeds for this time.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each CPU.")] = 0,
    once: Annotated[
        bool,
        typer.Option("--once", help="Run each program once, without the checks of two runs."),
    ] = False,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for captures of failures.")
    ] = Path("siwarp-sim"),
) -> None:
    """Run random verbs programs in simulated worlds, and check the guarantees of the verbs.

    A program has 600 operations on 2 to 8 devices, under faults, partitions, crashes and full
    queues; all of it is derived from the seed, except settings that the environment sets. Each
    program runs twice; both runs must have the same trace, and the second must leave no memory
    allocated. A failure is printed with the command that reproduces it, and a capture is written.
    The exit status is 1 after a failure, or if the run had no drops, no crashes or no refusals.
    """
    require_simulator()
    names = [workload.value] if workload else list(NAMES)
    until = None if minutes is None else time.monotonic() + 60 * minutes
    run, alone = Totals(), seeds == 1 and minutes is None
    todo = _yield_workloads_with_seeds(seed, None if minutes is not None else seeds, until, names)
    count = jobs or len(os.sched_getaffinity(0))
    workers = [Worker(once) for _ in range(count)]
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        idle = list(workers)
        busy: dict[concurrent.futures.Future[dict[str, Any]], tuple[Worker, tuple[str, int]]] = {}
        while True:
            while idle and (job := next(todo, None)) is not None:
                worker = idle.pop()
                name, number = job
                busy[pool.submit(worker.run, name, number, operations)] = worker, job
            if not busy:
                break
            done, _ = concurrent.futures.wait(busy, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                worker, (name, number) = busy.pop(future)
                idle.append(worker)
                outcome = future.result()
                run.add_outcome(outcome)
                if outcome["failure"] and run.failures <= MAX_REPORTED:
                    _report_failure(name, number, outcome, out)
                elif outcome["failure"]:
                    print(f"FAILED seed {number} of workload {name}: {outcome['failure']}")
                if alone:
                    print(f"seed {number} of workload {name}: trace {outcome['hash']:016x}")
    for worker in workers:
        worker.close()
    print(
        f"siwarp sim: {run.seeds} seeds from {seed}, {run.failures} failed, {_format_totals(run)}"
    )
    missing = [] if operations is not None else [n for n in REQUIRED_COUNTERS if not run.sums[n]]
    if missing:
        print(
            "siwarp sim: the run does not test everything, because it had no "
            + ", no ".join(missing)
        )
    raise typer.Exit(1 if run.failures or missing else 0)


def _format_totals(run: Totals) -> str:
    sums = ", ".join(f"{run.sums[name]} {name}" for name in REQUIRED_COUNTERS)
    return f"{sums}, trace {run.hash:016x}"
