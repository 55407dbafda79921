"""The code blocks of docs/guides/deterministic-tests.md."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.docs_harness import read_doc_block, run_in_namespace


def test_the_documented_world_prints_the_received_message_and_the_time(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        read_doc_block("docs/guides/deterministic-tests.md", "world")
    )
    said = run_in_namespace(f'"{sys.executable}" program.py', tmp_path)
    assert said.startswith("b'hello' after 0.0")
    assert said == run_in_namespace(f'"{sys.executable}" program.py', tmp_path)


def test_documented_coroutines_of_a_world_print_events_and_virtual_times(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        read_doc_block("docs/guides/deterministic-tests.md", "asyncio")
    )
    said = run_in_namespace(f'"{sys.executable}" program.py', tmp_path)
    assert said == "b'HELLO' after 0.06 s\nthe server is gone after 3600.07 s\n"


def test_a_simulated_device_receives_a_datagram_built_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        read_doc_block("docs/guides/deterministic-tests.md", "plain")
    )
    said = run_in_namespace(f'"{sys.executable}" program.py', tmp_path)
    assert said.startswith("b'by hand' from ('10.0.0.9', ")


def test_the_documented_siwarp_sim_command_counts_seeds_and_operations(tmp_path: Path) -> None:
    said = run_in_namespace(
        read_doc_block("docs/guides/deterministic-tests.md", "random"), tmp_path
    )
    assert said.startswith("siwarp sim: 2 seeds from 1, 0 failed, 1206 operations")
