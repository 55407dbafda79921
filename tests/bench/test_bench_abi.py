"""siwarp bench abi: perftest beside the raw socket and siwarp's own bench."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli.cli_harness import siwarp

from siwarp.bench import abi


def test_without_perftest_it_names_the_package(tmp_path: Path) -> None:
    # What a tree that is not rebuilt runs in place of a build.
    (tmp_path / "true").symlink_to(shutil.which("true") or "/bin/true")
    done = siwarp("bench", "abi", env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr == "siwarp bench: perftest is missing: install the package perftest\n"


def test_each_round_has_all_three_and_the_ratios_are_theirs() -> None:
    if not shutil.which("ib_send_lat"):
        pytest.skip("no perftest on this machine: make abi installs it")
    done = siwarp("bench", "abi", "--only", "UD", "--rounds", 3, "--json", timeout=120)
    (row,) = json.loads(done.stdout)
    assert row["error"] is None and done.returncode == (0 if row["measured"]["kept"] else 1)
    rounds = row["measured"]["rounds"]
    assert len(rounds) == 3
    assert all(values[name] > 0 for values in rounds for name in ("floor", "ours", "program"))
    ratios = sorted(values["program"] / values["floor"] for values in rounds)
    assert row["measured"]["ratio"] == ratios[1]
    assert row["measured"]["kept"] == (ratios[1] <= row["target"])


def test_a_latency_is_to_be_low_and_a_bandwidth_high() -> None:
    latency, bandwidth = abi.ROWS[0], abi.ROWS[-1]
    assert latency.kept(1.25) and not latency.kept(1.26)
    assert bandwidth.kept(0.65) and not bandwidth.kept(0.64)


def test_a_program_that_fails_is_a_row_with_a_reason(tmp_path: Path) -> None:
    broken = tmp_path / "ib_send_lat"
    broken.write_text("#!/bin/sh\necho no device >&2\nexit 4\n")
    broken.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = siwarp(
        "bench", "abi", "--only", "UD", "--rounds", 1, "--json", env={"PATH": path}, timeout=120
    )
    (row,) = json.loads(done.stdout)
    assert done.returncode == 1
    assert row["measured"] is None
    assert row["error"] == "ib_send_lat failed: exit status 4: no device"
