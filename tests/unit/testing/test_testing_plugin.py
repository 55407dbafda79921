"""The fixtures of siwarp.pytest_plugin, used in separate projects."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pace
import pytest
from cli.cli_harness import run_siwarp_command
from harness.siwarp_process import SiwarpProcess

pytestmark = pytest.mark.scales


@pytest.fixture
def run_pytest_on(tmp_path: Path):
    """Return a function that runs pytest on a file and returns its exit code and output."""

    def run_pytest_on_text(tests: str, *arguments: str) -> tuple[int, str]:
        (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
        (tmp_path / "test_it.py").write_text(tests)
        # The environment of an xdist worker contains PYTEST_ variables, which are removed.
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        done = pace.run_command(
            # The plugin of hypothesis takes longer to import than most of the tests.
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
             "-p", "no:hypothesispytest", *arguments],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            seconds=60,
            start=SiwarpProcess,
            imports=("pytest",),
        )  # fmt: skip
        return done.returncode, done.stdout

    return run_pytest_on_text


def test_plugin_fixtures_need_no_configuration(run_pytest_on) -> None:
    code, said = run_pytest_on(
        """
import pytest, siwarp

@pytest.mark.parametrize("name", ["rc_pair", "uc_pair", "ud_pair", "rd_pair"])
def test_pair(request, name, device):
    a, b = request.getfixturevalue(name)
    assert a.device is device
    a.send(b"hello", 60)
    assert b.recv(60) == b"hello"

def test_faults(ud_pair, faults):
    a, b = ud_pair
    assert faults("loss=100%") == "loss=100%"
    a.send(b"lost", 60)
    with pytest.raises(siwarp.Timeout):
        b.recv(0.01)
    faults("")
    a.send(b"heard", 60)
    assert b.recv(60) == b"heard"

def test_no_faults_are_left(ud_pair):
    a, b = ud_pair
    a.send(b"heard", 60)
    assert b.recv(60) == b"heard"
"""
    )
    assert code == 0, said
    assert "6 passed" in said


def test_a_capture_of_a_failed_test_is_kept_and_named_in_its_report(
    run_pytest_on, tmp_path: Path
) -> None:
    code, said = run_pytest_on(
        """
import pytest

def test_passes(rc_pair, capture):
    assert capture.exists()

@pytest.mark.parametrize("what", ["a/b"])
def test_fails(rc_pair, capture, what):
    a, b = rc_pair
    a.send(b"seen", 60)
    assert b.recv(60) == b"unseen"

@pytest.fixture
def broken(device, capture):
    raise RuntimeError("no")

def test_cannot_begin(broken):
    pass
"""
    )
    assert code == 1
    assert "1 failed, 1 passed" in said, said
    assert "1 error" in said, said
    kept = sorted((tmp_path / "siwarp-captures").iterdir())
    assert [file.name for file in kept] == [
        "test_it.py-test_cannot_begin.pcapng",
        "test_it.py-test_fails-a-b.pcapng",
    ]
    for file in kept:
        assert f"siwarp dissect '{file}'" in said
    done = run_siwarp_command("dissect", kept[1])
    # The capture includes the start-up of the connection, although the test's parameters name
    # rc_pair before capture.
    assert re.search(
        r"rc MPA_REQUEST .*rc MPA_REPLY .* 4  \S+  \S+  rc SEND\n", done.stdout, re.DOTALL
    )


def test_the_fixture_world_without_the_simulator_names_the_extra(run_pytest_on) -> None:
    code, said = run_pytest_on(
        """
import sys
sys.modules["siwarp.sim"] = None

def test_in_a_world(world):
    pass
"""
    )
    assert code == 1
    assert "pip install 'siwarp[sim]'" in said


def test_captures_are_stored_in_the_configured_folder(run_pytest_on, tmp_path: Path) -> None:
    code, _ = run_pytest_on(
        "def test_fails(capture, ud_pair):\n    assert False\n", "-o", "siwarp_captures=out/of/ci"
    )
    assert code == 1
    assert [file.name for file in (tmp_path / "out/of/ci").iterdir()] == [
        "test_it.py-test_fails.pcapng"
    ]


def test_a_project_may_define_its_own_device_fixture(run_pytest_on, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        """
import pytest
from siwarp.verbs import Context

@pytest.fixture
def device():
    with Context("::1") as context:
        yield context
"""
    )
    code, said = run_pytest_on(
        "def test_it(device, rd_pair):\n"
        "    assert rd_pair.a.device is device\n    rd_pair.a.send(b'x', 60)\n"
    )
    assert code == 0, said


def test_the_plugin_imports_siwarp_only_when_a_fixture_is_used(run_pytest_on) -> None:
    code, said = run_pytest_on(
        """
import sys

def test_it(request):
    assert request.config.pluginmanager.has_plugin("siwarp")
    ours = {m for m in sys.modules if m.split(".")[0] == "siwarp"}
    assert ours == {"siwarp", "siwarp.pytest_plugin"}, ours
    assert "_cffi_backend" not in sys.modules
"""
    )
    assert code == 0, said


def test_the_world_fixture_puts_all_fixtures_of_a_test_into_a_simulated_world(
    run_pytest_on, tmp_path: Path
) -> None:
    code, said = run_pytest_on(
        """
import pytest

def test_it(rd_pair, device, faults, world):
    a, b = rd_pair
    assert a.world is world and device.device.addresses == ("10.1.0.1",)
    faults("delay=1s")
    a.send(b"hello")
    assert b.recv() == b"hello" and world.now >= 1

@pytest.mark.parametrize("world", [3, 4], indirect=True)
def test_seed(world):
    assert world.seed in (3, 4)

def test_without_world(ud_pair):
    assert ud_pair.a.world is not None

def test_fails(rc_pair, capture, world):
    rc_pair.a.send(b"seen")
    assert rc_pair.b.recv() == b"unseen"
"""
    )
    assert "1 failed, 4 passed" in said, said
    assert code == 1
    kept = tmp_path / "siwarp-captures" / "test_it.py-test_fails.pcapng"
    done = run_siwarp_command("dissect", kept)
    assert re.search(r"rc MPA_REQUEST .*rc SEND", done.stdout, re.DOTALL)


def test_the_world_fixture_is_refused_in_a_real_process_with_advice(run_pytest_on) -> None:
    code, said = run_pytest_on(
        "def test_real(ud_pair):\n    pass\n\ndef test_simulated(world):\n    pass\n"
    )
    assert code == 1
    assert "1 passed" in said and "1 error" in said, said
    assert "a pytest run of their own" in said
