"""`siwarp spec`: the requirements of datagram-iWARP as a table, as JSON and as text."""

from __future__ import annotations

import json
import subprocess
import sys


def run_siwarp_spec(*arguments: str) -> str:
    command = [sys.executable, "-m", "siwarp.cli", "spec", "dgram", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_siwarp_spec_prints_every_requirement_with_the_tests_that_show_it() -> None:
    found = json.loads(run_siwarp_spec("--json"))
    assert {"id", "level", "section", "text", "tests"} == set(found[0])
    assert all(requirement["tests"] for requirement in found)
    lines = run_siwarp_spec().splitlines()
    assert len(lines) == len(found) + 1
    for requirement, line in zip(found, lines, strict=False):
        assert line.startswith(f"{requirement['id']} {requirement['level']}: {requirement['text']}")
        assert all(test in line for test in requirement["tests"])
    assert lines[-1] == f"{len(found)} requirements, {len(found)} shown by a test"


def test_siwarp_spec_prints_the_text_of_the_specification() -> None:
    text = run_siwarp_spec("--text")
    assert text.startswith("# Datagram-iWARP")
    assert "**DGRAM-LLP-1** (MUST)" in text
