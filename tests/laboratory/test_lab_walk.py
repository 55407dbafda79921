"""`make lab-walk`: the calls that a message causes, and the locks that it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from laboratory.lab_harness import lab

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    """Return what one run counts, by type of queue pair and step."""
    done = lab("walk", "--json", timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name.removeprefix("this tree "): value for name, value in found.items()}


@pytest.mark.parametrize("kind", ["rc", "ud", "rd"])
def test_each_layer_below_a_queue_pair_takes_part(counts: dict[str, Any], kind: str) -> None:
    for step in ("post", "poll"):
        layers = counts[f"{kind} {step}"]["by layer"]
        assert {"base", "llp", "mem", "ddp", "rdmap", "qp"} <= set(layers)
        assert sum(layers.values()) == counts[f"{kind} {step}"]["calls"]


def test_a_message_takes_the_lock_of_rd_once_to_be_sent_and_twice_to_be_received(
    counts: dict[str, Any],
) -> None:
    assert counts["rd post"]["locks"]["rd"] == 1
    assert counts["rd poll"]["locks"]["rd"] <= 2


def test_a_type_that_there_is_not_is_refused() -> None:
    done = lab("walk", "--types", "rdma")
    assert done.returncode == 2 and "rdma" in done.stderr


def test_the_calls_are_printed_as_a_tree(tmp_path: Path) -> None:
    done = lab("walk", "--types", "ud", "--calls", "-o", tmp_path / "found.json", timeout=500)
    assert done.returncode == 0, done.stderr
    assert "siw_post_send  [qp]" in done.stdout
    assert "  siw_ddp_dgram_tx" in done.stdout and "[ddp]" in done.stdout
    assert "this tree ud post" in json.loads((tmp_path / "found.json").read_text())
