"""The guide to FTP: its commands run, with the documented results."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.docs_harness import read_doc_block, run_in_namespace

PAGE = "docs/guides/ftp.md"
#: Waits until the server of the first block listens.
WAIT = "curl -sS --retry 9 --retry-connrefused -o wait ftp://ann:secret@127.0.0.1:2121/file"


def run_blocks(folder: Path, *names: str) -> str:
    """Start the documented server and run the blocks; the namespace's end ends the server."""
    blocks = [read_doc_block(PAGE, name) for name in names]
    return run_in_namespace(
        "\n".join([read_doc_block(PAGE, "serve"), WAIT, *blocks, "kill $(jobs -p)"]), folder
    )


@pytest.mark.programs
def test_curl_and_lftp_work_as_documented(tmp_path: Path) -> None:
    said = run_blocks(tmp_path, "curl", "lftp")
    assert "hello" in said
    for name in ("file", "copy/file", "data/new/users", "data/back/file"):
        assert (tmp_path / name).is_file()


@pytest.mark.programs
def test_curl_uses_tls_as_documented(tmp_path: Path) -> None:
    said = run_blocks(tmp_path, "tls", "siwarp")
    assert "hello" in said
    assert (tmp_path / "everything" / "users").read_text() == "ann:secret\n"
    assert (tmp_path / "file").read_text() == "hello\n"


@pytest.mark.programs
def test_the_documented_program_uses_rd(tmp_path: Path) -> None:
    program = read_doc_block(PAGE, "python")
    (tmp_path / "program.py").write_text(program)
    said = run_in_namespace(
        "\n".join([read_doc_block(PAGE, "serve"), WAIT, "python program.py", "kill $(jobs -p)"]),
        tmp_path,
    )
    assert "b'hello\\n'" in said
    assert said.rstrip().splitlines()[-1] == "rd"
