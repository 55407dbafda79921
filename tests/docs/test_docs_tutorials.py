"""The tutorials: the programs of each page, saved and run, print the documented output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.docs_harness import ROOT, read_doc_block, run_in_namespace


def read_example(name: str) -> str:
    return (ROOT / "examples" / name).read_text("utf-8")


def message_tutorial_files() -> dict[str, str]:
    return {
        "server.py": read_doc_block("docs/tutorials/messages.md", "server"),
        "client.py": read_doc_block("docs/tutorials/messages.md", "client"),
    }


def key_value_store_tutorial_files() -> dict[str, str]:
    return {
        "server.py": read_doc_block("docs/tutorials/key-value-store.md", "server"),
        "store.py": read_doc_block("docs/tutorials/key-value-store.md", "store"),
        "client.py": read_doc_block("docs/tutorials/key-value-store.md", "client"),
    }


#: For each tutorial: the files in the reader's folder, the commands to type, and their output.
TUTORIALS = {
    "messages": (
        message_tutorial_files(),
        read_doc_block("docs/tutorials/messages.md", "both"),
        read_doc_block("docs/tutorials/messages.md", "output"),
    ),
    "key-value store": (
        key_value_store_tutorial_files(),
        read_doc_block("docs/tutorials/key-value-store.md", "both"),
        read_doc_block("docs/tutorials/key-value-store.md", "output"),
    ),
    "NumPy": (
        {"numpy_memory.py": read_example("python/numpy_memory.py")},
        read_doc_block("docs/tutorials/numpy.md", "both"),
        read_doc_block("docs/tutorials/numpy.md", "output"),
    ),
    "NumPy, many messages per call": (
        {"message_arrays.py": read_example("python/message_arrays.py")},
        read_doc_block("docs/tutorials/numpy.md", "arrays"),
        read_doc_block("docs/tutorials/numpy.md", "arrays-output"),
    ),
    "asyncio": (
        {"aio_echo.py": read_example("python/aio_echo.py")},
        read_doc_block("docs/tutorials/asyncio.md", "both"),
        read_doc_block("docs/tutorials/asyncio.md", "output"),
    ),
    "RD to many": (
        {"rd_many.py": read_example("python/rd_many.py")},
        read_doc_block("docs/tutorials/rd-to-many.md", "both"),
        read_doc_block("docs/tutorials/rd-to-many.md", "output"),
    ),
}


def save_files(files: dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_commands_of_a_tutorial_print_the_documented_output(name: str, tmp_path: Path) -> None:
    files, script, output = TUTORIALS[name]
    save_files(files, tmp_path)
    assert run_in_namespace(script, tmp_path) == output


def test_a_client_without_a_server_prints_the_documented_error(tmp_path: Path) -> None:
    save_files(message_tutorial_files(), tmp_path)
    refused = run_in_namespace(
        "! " + read_doc_block("docs/tutorials/messages.md", "refused"), tmp_path
    )
    last = refused.splitlines()[-1]
    assert f"{last}\n" == read_doc_block("docs/tutorials/messages.md", "refused-output")


def without_numbers(text: str) -> str:
    return re.sub(r"KEY=\w+(\.\.\.)?|\d+(\.\d+)?", "N", text)


def test_a_directory_is_copied_over_a_lossy_link_and_after_an_interruption(tmp_path: Path) -> None:
    run_in_namespace(read_doc_block("docs/tutorials/copy-over-a-bad-line.md", "files"), tmp_path)
    serve = read_doc_block("docs/tutorials/copy-over-a-bad-line.md", "serve")
    said = run_in_namespace(
        serve.replace(" &", " >said &") + "until grep copy said; do sleep 0.1; done\nkill $!",
        tmp_path,
    )
    shown = read_doc_block("docs/tutorials/copy-over-a-bad-line.md", "serve-output")
    assert without_numbers((tmp_path / "said").read_text()) == without_numbers(shown)

    said = run_in_namespace(
        read_doc_block("docs/tutorials/copy-over-a-bad-line.md", "wan"), tmp_path
    )
    shown = read_doc_block("docs/tutorials/copy-over-a-bad-line.md", "wan-output")
    assert set(without_numbers(shown).splitlines()) <= set(without_numbers(said).splitlines())
    assert "101 files" in said

    said = run_in_namespace(
        read_doc_block("docs/tutorials/copy-over-a-bad-line.md", "continue"), tmp_path
    )
    assert said.splitlines()[-1] == "the same"

    (tmp_path / "memory.py").write_text(
        read_doc_block("docs/tutorials/copy-over-a-bad-line.md", "python")
    )
    assert run_in_namespace("python memory.py", tmp_path) == read_doc_block(
        "docs/tutorials/copy-over-a-bad-line.md", "python-output"
    )


def test_the_ping_pong_of_the_tutorial_in_c_compiles_and_prints_a_latency(tmp_path: Path) -> None:
    save_files({"ud_pingpong.c": read_example("c/ud_pingpong.c")}, tmp_path)
    compile_it = read_doc_block("docs/tutorials/c-ping-pong.md", "compile").strip()
    run_in_namespace(f'eval "{compile_it}"', tmp_path)  # the path of this tree may contain a blank
    said = run_in_namespace(read_doc_block("docs/tutorials/c-ping-pong.md", "both"), tmp_path)
    assert re.fullmatch(r"1000 round trips, \d+\.\d\d us each\n", said)
