"""How slow this machine is right now, for limits that hang on it and not on what a test shows.

A limit on a wait says when to give up; it is no promise of the product's. On a machine that does
seven other things it must be longer, on an idle one a hang must not take minutes to be noticed.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import net

#: Seconds that one piece of the work takes on an idle machine: that of the first measurements.
IDLE_S = 0.008
PIECES = 7
#: However slow it is: a test that hangs must end.
MOST = 12.0
#: For so many seconds a measurement is good.
FRESH_S = 2.0


def _piece() -> float:
    """Do a fixed piece of work, longer than a slice of the scheduler's, and sleep; return its time.

    Both count: how much of a CPU there is, and how late a sleeper is woken.
    """
    began = time.perf_counter()
    total = 0
    for i in range(100_000):
        total += i ^ 5
    time.sleep(0.001)
    return time.perf_counter() - began


@functools.lru_cache(maxsize=1)
def _measured(_when: int) -> float:
    took = statistics.mean(_piece() for _ in range(PIECES))
    return min(max(took / IDLE_S, 1.0), MOST)


def slowness() -> float:
    """Return how many times longer things take now than on an idle machine: 1 to ``MOST``."""
    return _measured(int(time.monotonic() / FRESH_S))


def scaled(seconds: float) -> float:
    """Return a limit of so many seconds on an idle machine, as it is to be now."""
    return seconds if net.SIMULATED else seconds * slowness()


def over(began: float, seconds: float) -> bool:
    """Whether a wait is to be given up that began then and takes so many seconds at most.

    How slow the machine is, is measured only when these are over: a wait that ends costs nothing.
    """
    took = net.now() - began
    return took > seconds and took > scaled(seconds)


def crowd() -> float:
    """Return how many processes want a CPU for each there is, at least 1: coarse, and for free."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), MOST)


def run(
    command: Sequence[Any],
    *,
    seconds: float,
    capture_output: bool = False,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command as subprocess.run does, with a limit of so many seconds on an idle machine.

    How slow the machine is, is measured only when these are over, as by `over`. A measurement takes
    half as long as the start of a command, and the suite starts a thousand.

    Raises:
        subprocess.TimeoutExpired: it had not ended by then, and was killed.
        subprocess.CalledProcessError: `check` is set, and its status is not 0.

    """
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, **options) as process:
        try:
            try:
                out, err = process.communicate(given, timeout=seconds)
            except subprocess.TimeoutExpired:
                out, err = process.communicate(timeout=max(scaled(seconds) - seconds, 0.001))
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
