"""Measures how slow the machine is at the moment, in order to scale time limits in tests.

A time limit of a wait only determines when a test fails; the limit is not a promise of siwarp. On a
machine that runs seven other jobs the limit must be longer; on an idle machine a hang must be
detected before minutes have passed.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import net

#: Seconds that one piece of work of _time_work_piece takes on an idle machine.
IDLE_S = 0.008
PIECES = 7
#: Upper bound of the slowdown factor, so that a test that hangs ends on any machine.
MOST = 12.0
CPUS = os.cpu_count() or 1
#: Seconds for which a measurement is reused.
FRESH_S = 5.0


def _time_work_piece() -> float:
    """Do a fixed amount of work, longer than a scheduler time slice, and sleep; return the seconds.

    The work measures the share of a CPU that is available; the sleep measures how late a sleeping
    thread is woken.
    """
    began = time.perf_counter()
    total = 0
    for i in range(100_000):
        total += i ^ 5
    time.sleep(0.001)
    return time.perf_counter() - began


@functools.lru_cache(maxsize=1)
def _measure_slowdown(_when: int) -> float:
    took = statistics.mean(_time_work_piece() for _ in range(PIECES))
    return min(max(took / IDLE_S, 1.0), MOST)


def slowdown_factor() -> float:
    """Return the factor by which the machine is slower now than when idle: 1 to ``MOST``."""
    return _measure_slowdown(int(time.monotonic() / FRESH_S))


def scale_limit(seconds: float) -> float:
    """Return a time limit for the machine as it is now, given the limit for an idle machine."""
    return seconds if net.SIMULATED else seconds * slowdown_factor()


def limit_exceeded(began: float, seconds: float) -> bool:
    """Return whether a wait that began at `began` has exceeded its scaled limit of `seconds`.

    The machine is measured only after `seconds` have passed, so that a wait that ends earlier needs
    no measurement.
    """
    took = net.now() - began
    return took > seconds and took > scale_limit(seconds)


def processes_per_cpu() -> float:
    """Return the number of runnable processes per CPU (load average), at least 1."""
    return min(max(os.getloadavg()[0] / CPUS, 1.0), MOST)


def run_command(
    command: Sequence[Any],
    *,
    seconds: float,
    capture_output: bool = False,
    check: bool = False,
    start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command like subprocess.run, with a limit in seconds that applies to an idle machine.

    The machine is measured only after the limit has passed: a measurement takes half as long as
    starting a command, and the suite starts a thousand commands.

    `start`: what starts the command, a subprocess.Popen by default.

    Raises:
        subprocess.TimeoutExpired: the command did not end within the scaled limit and was killed.
        subprocess.CalledProcessError: `check` is set and the exit status is not 0.

    """
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with start(command, **options) as process:
        try:
            try:
                out, err = process.communicate(given, timeout=seconds)
            except subprocess.TimeoutExpired:
                out, err = process.communicate(timeout=max(scale_limit(seconds) - seconds, 0.001))
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
