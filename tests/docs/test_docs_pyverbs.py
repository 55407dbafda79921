"""The command and the code of docs/pyverbs.md, in a network namespace that has only loopback."""

from __future__ import annotations

from pathlib import Path

from docs.docs_harness import ROOT, read_doc_block, run_in_namespace


def test_the_documented_command_runs_an_unchanged_pyverbs_program(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    said = run_in_namespace(read_doc_block("docs/pyverbs.md", "unchanged"), tmp_path)
    assert said == "written by the other end\n"


def test_the_documented_pyverbs_code_lists_the_devices(tmp_path: Path) -> None:
    (tmp_path / "listing.py").write_text(
        read_doc_block("docs/pyverbs.md", "import"), encoding="utf-8"
    )
    said = run_in_namespace("python listing.py", tmp_path)
    assert said == "siw_lo True 0000:0000:0000:0000:0000:ffff:7f00:0001\n"
