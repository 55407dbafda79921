"""siwarp.sim in a process that is not simulated, and texts of durations."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from table import run_test_for_each_row

import siwarp.verbs  # noqa: F401  makes the process real, not simulated
from siwarp.sim import World, nanoseconds


def test_creating_a_world_in_a_real_process_raises_an_error_with_the_remedy() -> None:
    with pytest.raises(RuntimeError, match=r"import siwarp\.sim first, or set SIWARP_SIM=1"):
        World(seed=7)


@run_test_for_each_row(
    ("duration", "ns"),
    [
        (0, 0),
        (2, 2_000_000_000),
        (0.25, 250_000_000),
        ("1ns", 1),
        ("250us", 250_000),
        ("1.5ms", 1_500_000),
        ("10 s", 10_000_000_000),
        ("10min", 600_000_000_000),
        ("2h", 7_200_000_000_000),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_a_text_with_a_unit(
    duration: float | str, ns: int
) -> None:
    assert nanoseconds(duration) == ns


@run_test_for_each_row("duration", ["", "10", "5 minutes", "-1s", -1, float("inf"), float("nan")])
def test_an_invalid_duration_is_refused(duration: float | str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        nanoseconds(duration)


@pytest.mark.parametrize("setting", [None, "", "0"])
def test_a_process_is_not_simulated_unless_siwarp_sim_is_set(setting: str | None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "SIWARP_SIM"}
    if setting is not None:
        env["SIWARP_SIM"] = setting
    done = subprocess.run(
        [sys.executable, "-c", "import siwarp.verbs, siwarp.base.system as s; print(s.simulated)"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_a_simulated_process_without_the_simulator_names_the_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['siwarp.sim'] = None; import siwarp.verbs"],
        env={**os.environ, "SIWARP_SIM": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: siwarp.sim, for simulated processes, is not installed: "
        "pip install 'siwarp[sim]'"
    )
