"""`siwarp spec`: the requirements of a specification as a table, as JSON and as text."""

from __future__ import annotations

import json

import pytest
from cli.cli_harness import run_siwarp_command


def run_siwarp_spec(*arguments: str) -> str:
    done = run_siwarp_command("spec", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["dgram", "adts"])
def test_siwarp_spec_prints_every_requirement_with_the_tests_that_show_it(name: str) -> None:
    found = json.loads(run_siwarp_spec(name, "--json"))
    assert {"id", "level", "section", "text", "tests"} == set(found[0])
    assert all(requirement["tests"] for requirement in found)
    lines = run_siwarp_spec(name).splitlines()
    assert len(lines) == len(found) + 1
    for requirement, line in zip(found, lines, strict=False):
        assert line.startswith(f"{requirement['id']} {requirement['level']}: {requirement['text']}")
        assert all(test in line for test in requirement["tests"])
    assert lines[-1] == f"{len(found)} requirements, {len(found)} shown by a test"


@pytest.mark.parametrize(
    ("name", "title", "requirement"),
    [("dgram", "# Datagram-iWARP", "DGRAM-LLP-1"), ("adts", "# ADTS", "ADTS-UNIT-1")],
)
def test_siwarp_spec_prints_the_text_of_the_specification(
    name: str, title: str, requirement: str
) -> None:
    text = run_siwarp_spec(name, "--text")
    assert text.startswith(title)
    assert f"**{requirement}** (MUST)" in text
