"""Calls of the system that fail within libibverbs.so.1 and its engine: tests/c/failing.c."""

from __future__ import annotations

from pathlib import Path

from abi.abi_harness import run


def test_whatever_call_fails_the_program_is_told_and_nothing_is_left(
    compiled: dict[str, Path], build_dir: Path
) -> None:
    library = build_dir / "tests/c/libsiw-test-failing.so"
    printed = run(compiled["scarce"], "calls", LD_PRELOAD=str(library))
    assert printed.endswith(" calls failed\n")
