"""Studies mark figures that a busy machine may have distorted."""

from __future__ import annotations

import os

import pytest

from lab import unreliable


def test_a_large_spread_of_rounds_makes_a_figure_unreliable() -> None:
    assert unreliable.spread_warning([1.0, 1.4, 1.2]) == ""
    assert "differ" in unreliable.spread_warning([1.0, 1.6])
    assert unreliable.spread_warning([3.0]) == ""


def test_a_load_above_the_number_of_cores_makes_a_figure_unreliable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(os.sched_getaffinity(0))
    most = max(cores, unreliable.OWN_LOAD)
    monkeypatch.setattr(os, "getloadavg", lambda: (most + 0.5, 0.0, 0.0))
    assert f"exceeded the number of cores ({cores})" in unreliable.cpu_load_warning()
    monkeypatch.setattr(os, "getloadavg", lambda: (most - 0.5, 0.0, 0.0))
    assert unreliable.cpu_load_warning() == ""
