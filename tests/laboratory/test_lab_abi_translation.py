"""`python -m lab.abi --part translation`: CPU cycles that the library adds to a post or a poll."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from laboratory.lab_harness import run_lab_study

from lab.abi import translation
from siwarp.bench import runner

TOOL = "siwarp-lab-translation"


def skip_without_tool() -> None:
    if not (runner.bench_program_path().parents[2] / "lab" / TOOL).is_file():
        pytest.skip("built without librdmacm-dev")


def test_the_abi_adds_few_cycles_to_a_request() -> None:
    skip_without_tool()
    done = run_lab_study("abi", "--part", "translation", "--rounds", 5, "--json", timeout=120)
    found = json.loads(done.stdout)["translation"]
    assert set(found) == {"post_send", "post_recv", "poll_cq"}
    for call, way in found.items():
        assert 0 < way["siw"] < 10_000 and 0 < way["ibv"] < 10_000, call
        assert way["kept"] == (way["more"] <= translation.MOST), call
        # In an instrumented library, the instrumentation is measured, too.
        if not {"SANITIZER", "COVERAGE"} & os.environ.keys():
            assert way["kept"], (call, way)
    assert done.returncode == (0 if all(way["kept"] for way in found.values()) else 1)


def create_fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    path = tmp_path / "lab" / TOOL
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(
        translation, "bench_program_path", lambda: tmp_path / "siwarp/bench/siwarp-bench"
    )


def test_more_cycles_than_promised_are_a_missed_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create_fake_tool(tmp_path, monkeypatch, """echo '{"poll_cq": {"siw": 20.0, "ibv": 58.5}}'""")
    found = translation.measure_abi_translation(2)
    assert found == {"poll_cq": {"siw": 20.0, "ibv": 58.5, "more": 38.5, "kept": False}}
    translation.print_abi_translation_cycles(found)
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "poll_cq",
        "20.0",
        "58.5",
        "38.5",
        "MISSED",
    ]


def test_a_missing_or_failed_tool_is_reported_as_a_bench_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        translation, "bench_program_path", lambda: tmp_path / "siwarp/bench/siwarp-bench"
    )
    with pytest.raises(runner.BenchError, match="this build has no siwarp-lab-translation"):
        translation.measure_abi_translation(1)
    create_fake_tool(tmp_path, monkeypatch, "echo a device: no such device >&2; exit 1")
    with pytest.raises(runner.BenchError, match="failed: a device: no such device"):
        translation.measure_abi_translation(1)
