"""The guide to FTP: its commands run, with the documented results."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.docs_harness import read_doc_block, run_in_namespace

pytestmark = pytest.mark.programs

#: Waits until the server of the first block listens.
WAIT = "curl -sS --retry 9 --retry-connrefused -o wait ftp://ann:secret@127.0.0.1:2121/file"


def run_scripts_with_ftp_server(folder: Path, *scripts: str) -> str:
    """Start the server of the guide and run scripts of the guide; return their output."""
    serve = read_doc_block("docs/guides/ftp.md", "serve")
    return run_in_namespace("\n".join([serve, WAIT, *scripts, "kill $(jobs -p)"]), folder)


def test_curl_and_lftp_work_as_documented(tmp_path: Path) -> None:
    said = run_scripts_with_ftp_server(
        tmp_path,
        read_doc_block("docs/guides/ftp.md", "curl"),
        read_doc_block("docs/guides/ftp.md", "lftp"),
    )
    assert "hello" in said
    for name in ("file", "copy/file", "data/new/users", "data/back/file"):
        assert (tmp_path / name).is_file()


def test_curl_uses_tls_as_documented(tmp_path: Path) -> None:
    said = run_scripts_with_ftp_server(tmp_path, read_doc_block("docs/guides/ftp.md", "tls"))
    assert "hello" in said


def test_siwarp_ftp_works_as_documented(tmp_path: Path) -> None:
    run_scripts_with_ftp_server(tmp_path, read_doc_block("docs/guides/ftp.md", "siwarp"))
    assert (tmp_path / "everything" / "users").read_text() == "ann:secret\n"
    assert (tmp_path / "file").read_text() == (tmp_path / "again").read_text() == "hello\n"


def test_the_documented_program_uses_rd(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(read_doc_block("docs/guides/ftp.md", "python"))
    said = run_scripts_with_ftp_server(tmp_path, "python program.py")
    assert "b'hello\\n'" in said
    assert said.rstrip().splitlines()[-1] == "rd"


def test_the_documented_file_system_reads_a_range(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(read_doc_block("docs/guides/ftp.md", "fsspec"))
    assert "b'ello'" in run_scripts_with_ftp_server(tmp_path, "python program.py")
