"""The pyverbs scripts and the pingpongs with the current build, including its sanitizers if any.

``make abi`` runs them together with other programs, also as user nobody and across namespaces.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pace
import pytest
from abi.rows import PINGPONG, SCRIPTS
from cli.cli_harness import COMMAND
from namespaces.ns_harness import Namespace
from pace import scale_limit

FOLDER = Path(__file__).parent / "pyverbs"
#: The Python interpreter that Debian's pyverbs is built for.
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def private_namespace() -> Iterator[Namespace]:
    """A separate network namespace, so that the ports of the pingpongs are free."""
    namespace = Namespace("lo", "127.0.0.1", "::1")
    namespace.ip("link", "set", "lo", "up")
    yield namespace
    namespace.close()


def has_pyverbs() -> bool:
    done = subprocess.run([PYTHON, "-c", "import pyverbs"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def installed_pyverbs() -> None:
    if not has_pyverbs():
        pytest.skip("needs python3-pyverbs: make abi installs it")


@pytest.mark.programs
@pytest.mark.usefixtures("installed_pyverbs")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_pyverbs_does_what_it_says(private_namespace: Namespace, script: str) -> None:
    done = pace.run_command(
        private_namespace.inside(
            *COMMAND, "run", "--no-view", PYTHON, str(FOLDER / f"{script}.py"), "siw_lo"
        ),
        capture_output=True,
        text=True,
        seconds=60,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stdout) == (0, f"{script}: correct\n"), done.stderr


def test_every_script_is_in_the_table() -> None:
    helpers = {"common", "rdma_core", "across"}  # across.py has a row of its own
    assert {file.stem for file in FOLDER.glob("*.py")} - helpers == set(SCRIPTS)


#: Prints the name of each class of pyverbs, except for the provider folder, which is for other
#: devices.
CLASSES = """
import importlib, pkgutil, pyverbs
for found in pkgutil.iter_modules(pyverbs.__path__):
    if not found.ispkg:
        name = f"pyverbs.{found.name}"
        for one in vars(importlib.import_module(name)).values():
            if isinstance(one, type) and one.__module__ == name:
                print(one.__name__)
"""
#: Classes that no script names, with a description.
UNNAMED = {
    "PyverbsObject PyverbsCM PyverbsError Spec": "bases of the others",
    "Device DeviceAttr PortAttr GIDEntry": "what device.py is told",
    "DeviceAttrEx ODPCaps RSSCaps PacketPacingCaps TMCaps CQModerationCaps TSOCaps PCIAtomicCaps": (
        "what refused.py is told of the device, and members of it"
    ),
    "WC": "a completion, which most scripts get",
    "AsyncEvent": "what events.py gets",
    "QueryDeviceExInput": "its own pyverbs cannot make one: it lacks the member that it sets",
    "WcTmInfo": "of tags, which no shared receive queue takes",
}


@pytest.mark.programs
@pytest.mark.usefixtures("installed_pyverbs")
def test_every_class_of_pyverbs_is_in_a_script() -> None:
    printed = pace.run_command(
        [PYTHON, "-c", CLASSES], capture_output=True, text=True, check=True, seconds=60
    ).stdout
    classes = set(printed.split())
    assert {"QP", "DmaBufMR", "Ipv6Spec"} <= classes
    source = "".join(file.read_text("utf-8") for file in FOLDER.glob("*.py"))
    named = set(re.findall(r"\w+", source))
    unnamed = {name for names in UNNAMED for name in names.split()}
    assert classes - named - unnamed == set()


def wait_until_listening(private_namespace: Namespace, server: subprocess.Popen[str]) -> None:
    """Wait until a pingpong server listens."""
    end = time.monotonic() + scale_limit(30)
    while not private_namespace.listens(PINGPONG):
        assert server.poll() is None, server.communicate()
        assert time.monotonic() < end, "it does not listen"
        time.sleep(0.02)


@pytest.mark.programs
@pytest.mark.parametrize("options", [[], ["-e"]], ids=["polled", "events"])
@pytest.mark.parametrize("kind", ["rc", "uc", "ud", "srq"])
def test_a_pingpong_ends_well(private_namespace: Namespace, kind: str, options: list[str]) -> None:
    program = f"ibv_{kind}_pingpong"
    if not shutil.which(program):
        pytest.skip("needs ibverbs-utils: make abi installs it")
    command = [*COMMAND, "run", "--no-view", program, "-d", "siw_lo", "-g", "0", "-c", "-n", "200"]
    command += options
    with subprocess.Popen(
        private_namespace.inside(*command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            wait_until_listening(private_namespace, server)
            client = pace.run_command(
                private_namespace.inside(*command, "127.0.0.1"),
                capture_output=True,
                text=True,
                seconds=60,
            )
            assert client.returncode == 0, client.stdout + client.stderr
            said, _ = server.communicate(timeout=scale_limit(20))
        finally:
            server.kill()
    assert server.returncode == 0, said
    assert "200 iters in" in client.stdout
