"""System calls that fail inside libibverbs.so.1 and libsiwarp.so.0: tests/c/failing.c."""

from __future__ import annotations

from pathlib import Path

from abi.abi_harness import run_program

from siwarp import _paths


def test_any_failed_system_call_is_reported_to_the_program_and_nothing_leaks(
    compiled_programs: dict[str, Path], build_dir: Path
) -> None:
    # The library is named without its path, because LD_PRELOAD would split a path with a space.
    printed = run_program(
        compiled_programs["scarce"],
        "calls",
        LD_PRELOAD="libsiw-test-failing.so",
        LD_LIBRARY_PATH=f"{_paths.rdma_core_abi_dir()}:{build_dir / 'tests/c'}",
    )
    assert printed.endswith(" calls failed\n")
