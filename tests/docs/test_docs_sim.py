"""docs/guides/deterministic-tests.md."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.docs_harness import block, said_alone


def test_a_world_prints_what_was_received_and_when(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(block("docs/guides/deterministic-tests.md", "world"))
    said = said_alone(f'"{sys.executable}" program.py', tmp_path)
    assert said.startswith("b'hello' after 0.0")
    assert said == said_alone(f'"{sys.executable}" program.py', tmp_path)
