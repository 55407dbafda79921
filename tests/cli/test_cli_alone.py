"""Commands that work without typer and rich, and the error messages of the other commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pace
import pytest

pytestmark = pytest.mark.scales

#: Runs the command in a Python in which these modules cannot be imported.
LACKING = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from siwarp.cli.main import main
sys.exit(main())
"""


def run_siwarp_without_modules(
    modules: str, *words: str, **env: str
) -> subprocess.CompletedProcess[str]:
    return pace.run_command(
        [sys.executable, "-c", LACKING, modules, *words],
        capture_output=True,
        text=True,
        seconds=60,
        cwd="/",
        env={**os.environ, **env},
    )


@pytest.mark.parametrize(
    "words",
    [
        ["config"],
        ["config", "--json"],
        ["config", "--help"],
        ["config", "--cflags", "--libs"],
        ["env"],
        ["run", "--help"],
        ["--version"],
        ["--crc", "0", "config"],
    ],
    ids=" ".join,
)
def test_these_need_neither_typer_nor_rich_in_a_pipe_or_a_terminal(words: list[str]) -> None:
    for env in ({}, {"FORCE_COLOR": "1"}):
        done = run_siwarp_without_modules("typer,rich,click", *words, **env)
        assert done.returncode == 0, done.stderr
        assert done.stdout


#: Without the last module, Python cannot load the library.
ALL = "typer,rich,cffi,_cffi_backend"


@pytest.mark.parametrize("words", [["config", "--cflags"], ["env"]], ids=" ".join)
def test_the_flags_and_the_environment_need_the_standard_library_alone(words: list[str]) -> None:
    done = run_siwarp_without_modules(ALL, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_program_runs_with_the_standard_library_alone() -> None:
    done = run_siwarp_without_modules(ALL, "run", "--no-view", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


@pytest.mark.parametrize(
    "words", [["ping"], ["--help"], [], ["nonsense"], ["--crc", "0", "demo"]], ids=str
)
def test_another_command_says_what_it_lacks_and_how_this_python_gets_it(words: list[str]) -> None:
    done = run_siwarp_without_modules("typer,rich", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"siwarp: this command needs typer: run {shlex.quote(sys.executable)} -m pip install "
        "'siwarp[cli]' (siwarp run, env and config work without it)\n"
    )


def test_the_garbage_collector_leaves_out_the_imports_of_a_command_alone() -> None:
    """A process that calls ``main`` from other code decides itself what its collector covers."""
    script = """
import gc, sys
from siwarp.cli import config
from siwarp.cli.main import main
config.main = lambda *_: print(gc.isenabled(), gc.get_freeze_count() > 0)
main(["config"])
sys.argv[1:] = ["config"]
main()
"""
    done = pace.run_command(
        [sys.executable, "-c", script], capture_output=True, text=True, seconds=60
    )
    assert done.stdout.splitlines() == ["True False", "True True"], done.stderr
