"""Commands that work without typer and rich, and the error messages of the other commands."""

from __future__ import annotations

import json
import os
import re
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


#: Without the last of these modules, Python cannot load the C module of siwarp.
ALL_THIRD_PARTY = "typer,click,rich,cffi,_cffi_backend"


@pytest.mark.parametrize(
    "words",
    [
        ["config"],
        ["--crc", "0", "config", "--json"],
        ["config", "--help"],
        ["config", "--cflags", "--libs"],
        ["env", "--faults", "loss=1%"],
        ["run", "--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_config_env_and_run_need_only_the_standard_library(words: list[str]) -> None:
    done = run_siwarp_without_modules(ALL_THIRD_PARTY, *words, FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if "--json" in words:
        assert {row["name"]: row["value"] for row in json.loads(done.stdout)}["crc"] == 0
    if "--faults" in words:
        assert "export SIWARP_FAULTS=loss=1%\n" in done.stdout.replace("'", "")


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


#: The packages of siwarp that are in wheels of their own.
OTHER_WHEELS = "siwarp.sim,siwarp.ulp"


@pytest.mark.parametrize(
    "words",
    [
        ["config", "--json"],
        ["devices"],
        ["--help"],
        ["cp", "--help"],
        ["ftp", "serve", "--help"],
        ["serve", "--help"],
        ["sim", "--help"],
    ],
    ids=" ".join,
)
def test_commands_and_all_help_work_without_siwarp_sim_and_siwarp_ulp(words: list[str]) -> None:
    done = run_siwarp_without_modules(OTHER_WHEELS, *words)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_works_without_siwarp_sim_and_siwarp_ulp() -> None:
    done = run_siwarp_without_modules(
        OTHER_WHEELS, _SIWARP_COMPLETE="complete_bash", COMP_WORDS="siwarp cp --fs", COMP_CWORD="2"
    )
    assert (done.stdout.split(), done.stderr) == (["--fsync"], "")


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("siwarp.sim", "sim", ["sim"]),
        ("siwarp.ulp", "cli", ["cp", "siw://127.0.0.1/file", "."]),
        ("siwarp.ulp", "cli", ["cp-far-end", "."]),
        ("siwarp.ulp", "cli", ["serve", "."]),
        ("siwarp.ulp", "cli", ["ftp", "serve", "."]),
        ("siwarp.ulp", "cli", ["ftp", "get", "ftp://127.0.0.1/file"]),
        ("siwarp.ulp", "cli", ["ftp", "put", "/dev/null", "ftp://127.0.0.1/file"]),
        ("siwarp.ulp", "cli", ["ftp", "mirror", "ftp://127.0.0.1/directory", "."]),
    ],
)
def test_a_command_names_the_extra_that_installs_a_missing_package_of_siwarp(
    package: str, extra: str, words: list[str]
) -> None:
    done = run_siwarp_without_modules(OTHER_WHEELS, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"siwarp: this command needs {package}: run {shlex.quote(sys.executable)} -m pip install "
        f"'siwarp[{extra}]' (siwarp run, env and config work without it)\n"
    )


def test_a_simulated_command_without_the_simulator_names_the_extra() -> None:
    done = run_siwarp_without_modules(OTHER_WHEELS, "devices", SIWARP_SIM="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("siwarp: this command needs siwarp.sim: run ")


def count_imported_modules(*arguments: str) -> int:
    """Return how many modules a Python program with these arguments imports."""
    done = pace.run_command(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, seconds=60
    )
    assert done.returncode == 0, done.stderr
    return len(re.findall(r"^import time: +\d", done.stderr, re.MULTILINE))


def test_the_package_and_the_version_import_few_modules() -> None:
    """The number of modules determines how long siwarp takes to start."""
    python = count_imported_modules("-c", "pass")
    assert count_imported_modules("-c", "import siwarp") < python + 60
    assert count_imported_modules("-m", "siwarp.cli", "--version") < python + 80


def test_a_command_that_loads_the_c_module_names_cffi_if_it_is_missing() -> None:
    done = run_siwarp_without_modules("cffi,_cffi_backend", "devices")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("siwarp: this command needs cffi: run ")


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
