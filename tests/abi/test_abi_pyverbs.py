"""The pyverbs scripts and the ibv pingpong programs, run with the current build and its sanitizer.

``make abi`` runs these programs, too, also as user nobody and across network namespaces.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pace
import pytest
from abi.rows import PINGPONG, SCRIPTS
from harness.siwarp_process import COMMAND
from namespaces.ns_harness import Namespace
from pace import scale_limit

FOLDER = Path(__file__).parent / "pyverbs"
#: The Python interpreter that Debian's pyverbs is built for.
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def private_network_namespace() -> Iterator[Namespace]:
    """Provide a network namespace, in which the ports of the pingpong programs are free."""
    namespace = Namespace("lo", "127.0.0.1", "::1")
    namespace.run_ip("link", "set", "lo", "up")
    yield namespace
    namespace.close()


def has_pyverbs() -> bool:
    done = subprocess.run([PYTHON, "-c", "import pyverbs"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def skip_without_pyverbs() -> None:
    if not has_pyverbs():
        pytest.skip("needs python3-pyverbs: make abi installs it")


@pytest.mark.programs
@pytest.mark.usefixtures("skip_without_pyverbs")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_pyverbs_script_succeeds(private_network_namespace: Namespace, script: str) -> None:
    done = pace.run_command(
        private_network_namespace.command_line_inside(
            *COMMAND, "run", "--no-view", PYTHON, str(FOLDER / f"{script}.py"), "siw_lo"
        ),
        capture_output=True,
        text=True,
        seconds=60,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stdout) == (0, f"{script}: correct\n"), done.stderr


@pytest.mark.programs
@pytest.mark.usefixtures("skip_without_pyverbs")  # the package contains the tests
def test_rdma_cores_tests_of_pyverbs_pass_on_siwarp_pyverbs(
    private_network_namespace: Namespace,
) -> None:
    # `siwarp run` provides only the files in /sys in which some tests look for an address.
    done = pace.run_command(
        private_network_namespace.command_line_inside(
            *COMMAND, "run", sys.executable, "-m", "siwarp.pyverbs",
            str(FOLDER / "rdma_core.py"), "siw_lo",
        ),
        capture_output=True,
        text=True,
        seconds=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["rdma_core: correct"]), (
        done.stderr[-3000:]
    )


def test_every_pyverbs_script_is_in_the_table_of_make_abi() -> None:
    helpers = {"common", "rdma_core", "across"}  # another row of the table runs across.py
    assert {file.stem for file in FOLDER.glob("*.py")} - helpers == set(SCRIPTS)


#: A program that prints the name of each class of pyverbs, except for classes of providers.
CLASSES = """
import importlib, pkgutil, pyverbs
for found in pkgutil.iter_modules(pyverbs.__path__):
    if not found.ispkg:
        name = f"pyverbs.{found.name}"
        for one in vars(importlib.import_module(name)).values():
            if isinstance(one, type) and one.__module__ == name:
                print(one.__name__)
"""
#: Classes of pyverbs that no script names, with the reason.
UNNAMED = {
    "PyverbsObject PyverbsCM PyverbsError Spec": "base classes of other classes",
    "Device DeviceAttr PortAttr GIDEntry": "results of queries by device.py",
    "DeviceAttrEx ODPCaps RSSCaps PacketPacingCaps TMCaps CQModerationCaps TSOCaps PCIAtomicCaps": (
        "a result of a device query by refused.py, and the classes of its members"
    ),
    "WC": "a completion, which most scripts poll",
    "AsyncEvent": "an event that events.py reads",
    "QueryDeviceExInput": "pyverbs itself cannot construct it: a member that it sets is missing",
    "WcTmInfo": "for tag matching, which no shared receive queue supports",
}


@pytest.mark.programs
@pytest.mark.usefixtures("skip_without_pyverbs")
def test_every_class_of_pyverbs_is_used_in_a_script() -> None:
    printed = pace.run_command(
        [PYTHON, "-c", CLASSES], capture_output=True, text=True, check=True, seconds=60
    ).stdout
    classes = set(printed.split())
    assert {"QP", "DmaBufMR", "Ipv6Spec"} <= classes
    source = "".join(file.read_text("utf-8") for file in FOLDER.glob("*.py"))
    named = set(re.findall(r"\w+", source))
    unnamed = {name for names in UNNAMED for name in names.split()}
    assert classes - named - unnamed == set()


def wait_until_listening(
    private_network_namespace: Namespace, server: subprocess.Popen[str]
) -> None:
    """Wait until a pingpong server listens on its TCP port."""
    end = time.monotonic() + scale_limit(30)
    while not private_network_namespace.has_listening_socket(PINGPONG):
        assert server.poll() is None, server.communicate()
        assert time.monotonic() < end, "it does not listen"
        time.sleep(0.02)


@pytest.mark.programs
@pytest.mark.parametrize("options", [[], ["-e"]], ids=["polled", "events"])
@pytest.mark.parametrize("kind", ["rc", "uc", "ud", "srq"])
def test_a_pingpong_of_two_processes_succeeds(
    private_network_namespace: Namespace, kind: str, options: list[str]
) -> None:
    program = f"ibv_{kind}_pingpong"
    if not shutil.which(program):
        pytest.skip("needs ibverbs-utils: make abi installs it")
    command = [*COMMAND, "run", "--no-view", program, "-d", "siw_lo", "-g", "0", "-c", "-n", "200"]
    command += options
    with subprocess.Popen(
        private_network_namespace.command_line_inside(*command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            wait_until_listening(private_network_namespace, server)
            client = pace.run_command(
                private_network_namespace.command_line_inside(*command, "127.0.0.1"),
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
