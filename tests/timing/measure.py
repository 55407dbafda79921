"""Measures the duration of a test, and how long the threads of the test waited for a CPU.

On Linux a thread's run-queue delay is the second number in ``/proc/PID/task/TID/schedstat`` (ns),
and the time stolen by the hypervisor is the ``steal`` column of ``/proc/stat`` (ticks).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """The duration of a test and its parts in seconds; ``steal`` is the mean over all CPUs."""

    wall: float
    run_delay: float
    steal: float

    @property
    def undisturbed_seconds(self) -> float:
        """The time that the test would have taken with a CPU to itself."""
        return max(self.wall - self.run_delay - self.steal, 0.0)

    def __str__(self) -> str:
        return (
            f"{self.wall:.2f} s, of which {self.run_delay:.2f} s waiting for a CPU"
            f" and {self.steal:.2f} s taken by the hypervisor"
        )


def _run_queue_delay_ns_by_thread() -> dict[str, int]:
    """Return the run-queue delay of each thread of this process, by thread id."""
    delays = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            delays[task.name] = int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread has ended, or this kernel has no such file
    return delays


def system_cpu_ticks() -> tuple[int, int, int]:
    """Return the ticks of all CPUs together since boot: total, idle, and stolen."""
    fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4], fields[7]


class Stopwatch:
    """Measures the cost of the code between its creation and the call of ``stop()``."""

    def __init__(self) -> None:
        self._delays = _run_queue_delay_ns_by_thread()
        self._stolen = system_cpu_ticks()[2]
        self._began = time.monotonic()

    def stop(self) -> Cost:
        """Return the cost of the code since the creation of the stopwatch."""
        wall = time.monotonic() - self._began
        waited = sum(
            ns - self._delays.get(thread, 0)
            for thread, ns in _run_queue_delay_ns_by_thread().items()
        )
        stolen = (system_cpu_ticks()[2] - self._stolen) / _TICKS / (os.cpu_count() or 1)
        return Cost(wall, waited / 1e9, stolen)


def machine_is_quiet(seconds: float = 1.0, share: float = 0.85) -> bool:
    """Return whether the CPUs are idle for at least a share of the next ``seconds``."""
    all_before, idle_before, _ = system_cpu_ticks()
    time.sleep(seconds)
    everything, idle, _ = system_cpu_ticks()
    return idle - idle_before >= share * max(everything - all_before, 1)


def wait_for_quiet_machine(limit: float) -> bool:
    """Wait until the machine is quiet for a second; return False after ``limit`` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if machine_is_quiet():
            return True
    return False
