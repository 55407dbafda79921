"""Third-party libraries preloaded with siwarp's: clocks that report a false time, and a malloc."""

from __future__ import annotations

import os
from pathlib import Path

import pace
import pytest
from harness.siwarp_process import COMMAND

FOLDER = Path("/usr/lib/x86_64-linux-gnu")
FAKETIME = FOLDER / "faketime/libfaketime.so.1"
JEMALLOC = FOLDER / "libjemalloc.so.2"
PRELOADS = {
    "days ahead": ([FAKETIME], "+30d"),
    "the past": ([FAKETIME], "@2020-01-01 00:00:00"),
    "twice as fast": ([FAKETIME], "+0 x2"),
    "jemalloc": ([JEMALLOC], ""),
}
PROGRAMS = [
    ("cm", "order"),
    ("cm_more", "ends"),
    ("cm_more", "depths"),
    ("lost", "idle"),
    ("inherit",),
    ("many", "8", "8", "2", "5", "event"),
    ("many", "8", "2", "1", "20", "poll"),
]

pytestmark = [pytest.mark.programs, pytest.mark.scales]


@pytest.mark.parametrize("name", PRELOADS)
@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_an_rdma_cm_program_runs_with_a_preloaded_third_party_library(
    compiled_programs: dict[str, Path], program: tuple[str, ...], name: str
) -> None:
    libraries, time = PRELOADS[name]
    assert all(library.exists() for library in libraries), (
        "tests/abi/run installs the preloaded libraries"
    )
    done = pace.run_command(
        [*COMMAND, "run", "--", compiled_programs[program[0]], *program[1:]],
        env=os.environ | {"LD_PRELOAD": " ".join(map(str, libraries)), "FAKETIME": time},
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
