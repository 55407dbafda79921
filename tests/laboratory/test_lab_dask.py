"""`python -m lab.dask`: its output and its options."""

from __future__ import annotations

import pytest
from laboratory.lab_harness import run_lab

from lab import dask


def test_a_figure_of_dask_is_printed_with_the_median_and_the_range_of_its_ratios(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = {"siw": [10.0, 30.0, 20.0], "tcp": [10.0, 10.0, 10.0]}
    dask.print_figures({"figures": {"tasks/s": rounds}, "unreliable": ["a doubt"]})
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2].split() == ["tasks/s", "20", "10", "2.00", "1.00", "to", "3.00"]
    assert shown[-1] == "unreliable: a doubt"


def test_an_invalid_size_of_the_shuffle_is_refused() -> None:
    done = run_lab("dask", "--shuffle", "x")
    assert done.returncode == 2
    assert "--shuffle" in done.stderr
