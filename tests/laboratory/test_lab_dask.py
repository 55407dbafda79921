"""`python -m lab.dask`: its output and its options."""

from __future__ import annotations

import pytest
from laboratory.lab_harness import run_lab_study

from lab.dask import __main__ as dask
from lab.dask import debian


def test_a_figure_of_dask_is_printed_with_the_median_and_the_range_of_its_ratios(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = {"siw": [10.0, 30.0, 20.0], "tcp": [10.0, 10.0, 10.0]}
    dask.print_medians_and_ratios({"figures": {"tasks/s": rounds}, "unreliable": ["a doubt"]})
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2].split() == ["tasks/s", "20", "10", "2.00", "1.00", "to", "3.00"]
    assert shown[-1] == "unreliable: a doubt"


def test_a_small_measurement_gives_every_figure_for_both_comms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dask, "ROUND_TRIPS", 20)
    monkeypatch.setattr(dask, "TASKS", 20)
    monkeypatch.setattr(dask, "ARRAYS", {"256 KiB": (256 << 10, 4)})
    steps: list[int] = []
    found = dask.measure_rounds(1, 1 << 20, lambda: steps.append(1))
    assert len(steps) == len(dask.COMMS)
    names = ["round trips/s", "GB/s, 256 KiB", "tasks/s", "GB/s, shuffle"]
    assert list(found["figures"]) == names
    for by_comm in found["figures"].values():
        assert sorted(by_comm) == sorted(dask.COMMS)
        assert all(len(values) == 1 and values[0] > 0 for values in by_comm.values())
    dask.print_medians_and_ratios(found)
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


def test_an_invalid_size_of_the_shuffle_is_refused() -> None:
    done = run_lab_study("dask", "--shuffle", "x")
    assert done.returncode == 2
    assert "--shuffle" in done.stderr


def test_an_unknown_part_is_refused() -> None:
    done = run_lab_study("dask", "--part", "x")
    assert done.returncode == 2
    assert "rates, debian" in done.stderr


def test_addresses_and_the_registered_backend_are_replaced() -> None:
    replaced = debian.replace_scheme('setitem(backends, "tcp", x); f("tcp://127.0.0.1")')
    assert replaced == 'setitem(backends, "siw", x); f("siw://127.0.0.1")'
