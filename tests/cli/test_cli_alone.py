"""Commands that work without typer and rich, and the error messages of the other commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pace
import pytest

pytestmark = pytest.mark.scales

#: Program: runs the siwarp command in a Python in which these modules cannot be imported.
COMMAND_WITHOUT_MODULES = """
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
        [sys.executable, "-c", COMMAND_WITHOUT_MODULES, modules, *words],
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
def test_config_env_and_run_need_neither_typer_nor_rich(words: list[str]) -> None:
    for env in ({}, {"FORCE_COLOR": "1"}):
        done = run_siwarp_without_modules("typer,rich,click", *words, **env)
        assert done.returncode == 0, done.stderr
        assert done.stdout


#: Without the last of these modules, Python cannot load the library of siwarp.
ALL_THIRD_PARTY = "typer,rich,cffi,_cffi_backend"


@pytest.mark.parametrize("words", [["config", "--cflags"], ["env"]], ids=" ".join)
def test_config_flags_and_env_need_only_the_standard_library(words: list[str]) -> None:
    done = run_siwarp_without_modules(ALL_THIRD_PARTY, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_siwarp_run_needs_only_the_standard_library() -> None:
    done = run_siwarp_without_modules(ALL_THIRD_PARTY, "run", "--no-view", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


@pytest.mark.parametrize(
    "words", [["ping"], ["--help"], [], ["nonsense"], ["--crc", "0", "demo"]], ids=str
)
def test_other_commands_name_the_missing_package_and_how_to_install_it(words: list[str]) -> None:
    done = run_siwarp_without_modules("typer,rich", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"siwarp: this command needs typer: run {shlex.quote(sys.executable)} -m pip install "
        "'siwarp[cli]' (siwarp run, env and config work without it)\n"
    )


def test_only_the_siwarp_command_freezes_its_imports_for_the_garbage_collector() -> None:
    """A program that calls ``main`` itself keeps control of its garbage collector."""
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
