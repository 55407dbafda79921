"""`make lab-walk`: the function calls of one message, and the number of acquired locks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from laboratory.lab_harness import run_lab_study

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def function_call_counts() -> dict[str, Any]:
    """Return the call counts of one run, by queue pair type and step."""
    done = run_lab_study("walk", "--json", timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name.removeprefix("this tree "): value for name, value in found.items()}


@pytest.mark.parametrize("kind", ["rc", "ud", "rd"])
def test_a_post_and_a_poll_call_functions_of_each_layer_below_the_queue_pair(
    function_call_counts: dict[str, Any], kind: str
) -> None:
    for step in ("post", "poll"):
        layers = function_call_counts[f"{kind} {step}"]["by layer"]
        assert {"base", "llp", "mem", "ddp", "rdmap", "qp"} <= set(layers)
        assert sum(layers.values()) == function_call_counts[f"{kind} {step}"]["calls"]


def test_sending_an_rd_message_acquires_the_lock_once_and_receiving_at_most_twice(
    function_call_counts: dict[str, Any],
) -> None:
    assert function_call_counts["rd post"]["locks"]["rd"] == 1
    assert function_call_counts["rd poll"]["locks"]["rd"] <= 2


def test_an_unknown_queue_pair_type_is_refused() -> None:
    done = run_lab_study("walk", "--types", "rdma")
    assert done.returncode == 2 and "rdma" in done.stderr


def test_the_calls_are_printed_as_a_tree(tmp_path: Path) -> None:
    done = run_lab_study(
        "walk", "--types", "ud", "--calls", "-o", tmp_path / "found.json", timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "siw_post_send  [qp]" in done.stdout
    assert "  siw_ddp_dgram_tx" in done.stdout and "[ddp]" in done.stdout
    assert "this tree ud post" in json.loads((tmp_path / "found.json").read_text())
