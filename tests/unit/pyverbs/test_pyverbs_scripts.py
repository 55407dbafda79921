"""The scripts of tests/abi/pyverbs on siwarp.pyverbs; `make abi` runs them on pyverbs itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pace
import pytest
from abi.rows import SCRIPTS
from namespaces.ns_harness import Namespace

FOLDER = Path(__file__).resolve().parents[2] / "abi" / "pyverbs"


@pytest.fixture(scope="module")
def private_network_namespace() -> Iterator[Namespace]:
    """A network namespace in which no other process uses the ports of connection identifiers."""
    namespace = Namespace("lo", "127.0.0.1", "::1")
    namespace.run_ip("link", "set", "lo", "up")
    yield namespace
    namespace.close()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_pyverbs_script_succeeds_on_siwarp_pyverbs(
    private_network_namespace: Namespace, script: str
) -> None:
    program = str(FOLDER / f"{script}.py")
    done = pace.run_command(
        [sys.executable, "-m", "siwarp.pyverbs", program, "siw_lo"],
        capture_output=True,
        text=True,
        seconds=60,
        start=private_network_namespace.start_program,
        imports=["siwarp.pyverbs.cmid", "siwarp.pyverbs.qp"],
    )
    assert (done.returncode, done.stdout) == (0, f"{script}: correct\n"), done.stderr
