# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Fixtures for pytest: devices, pairs, worlds, faults and captures. pytest loads this plug-in.

siwarp's library is not loaded until a test requests a fixture. The first test that does so decides
whether the process is real or simulated; in a simulated process, or with the fixture ``world``, all
fixtures are those of the simulated world.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from siwarp.sim import World
    from siwarp.testing import Kind, Pair
    from siwarp.verbs import Context

__all__ = ["capture", "device", "faults", "rc_pair", "rd_pair", "uc_pair", "ud_pair", "world"]


@dataclass
class _Capture:
    """The capture of a test: the path where it is kept if the test fails, and whether it has
    failed.
    """

    kept: Path
    failed: bool = False


_CAPTURE = pytest.StashKey[_Capture]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the ini option that names the folder of captures."""
    parser.addini(
        "siwarp_captures",
        "the folder, from the root of the tests, for captures of tests that failed",
        default="siwarp-captures",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record that a test failed, and add the path of the capture to the test's report."""
    report = yield
    file = item.stash.get(_CAPTURE, None)
    if file is not None and report.failed:
        file.failed = True
        report.sections.append(
            ("siwarp capture", f"{file.kept}\nsiwarp dissect '{file.kept}' shows the messages")
        )
    return report


@pytest.fixture
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Capture the packets that this process sends and receives; keep the file if the test fails.

    A kept file is moved to the folder ``siwarp_captures`` (a setting of pytest) and named after the
    test, and the test's report names the file. The value of the fixture is the file that is being
    written. The time stamps in a simulated world are those of the world's clock.
    """
    import siwarp

    _world_of_test(request)  # requested so that the world is opened before its capture
    name = re.sub(r"[^\w.-]+", "-", request.node.nodeid).strip("-")[-200:]
    folder = request.config.rootpath / str(request.config.getini("siwarp_captures"))
    file = tmp_path / "capture.pcapng"
    with siwarp.capture(file):
        request.node.stash[_CAPTURE] = found = _Capture(folder / f"{name}.pcapng")
        yield file
    if found.failed:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(file, found.kept)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Open a simulated world with seed 1; the pairs of the test are in it.

    ``@pytest.mark.parametrize("world", [1, 2, 3], indirect=True)`` runs a test with several seeds.
    Needs the extra ``siwarp[sim]``.
    """
    from siwarp.base import system
    from siwarp.base.simulator import require_simulator

    require_simulator()
    import siwarp.sim

    if not system.simulated:
        raise RuntimeError(
            "this pytest process uses real sockets, because siwarp.verbs was imported, or a test "
            "on real sockets ran before: run the simulated tests as a pytest run of their own, "
            "with SIWARP_SIM=1 in the environment or a conftest.py that begins with "
            "`import siwarp.sim`"
        )
    with siwarp.sim.World(getattr(request, "param", 1)) as opened:
        yield opened


def _world_of_test(request: pytest.FixtureRequest) -> World | None:
    """Return the simulated world of the test, or None if the test uses real sockets."""
    from siwarp.base import system

    if "world" not in request.fixturenames and not system.simulated:
        return None
    found = request.getfixturevalue("world")
    # A project may have an unrelated fixture with the same name.
    simulation = sys.modules.get("siwarp.sim")
    return found if simulation is not None and isinstance(found, simulation.World) else None


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Context]:
    """Open the loopback device; ``conftest.py`` may define another fixture ``device`` instead.

    The fixtures of pairs use this device. The device closes with all objects created from it. In a
    simulated world the device is that of a new host, 10.1.0.1, and pairs have devices of their own.
    """
    # requested so that the capture starts before any connection
    if "capture" in request.fixturenames:
        request.getfixturevalue("capture")
    world = _world_of_test(request)
    if world is not None:
        yield world.device("10.1.0.1")
        return
    from siwarp.verbs import Context

    with Context() as context:
        yield context


def _open_pair(kind: Kind, request: pytest.FixtureRequest) -> Iterator[Pair]:
    if "capture" in request.fixturenames:
        request.getfixturevalue("capture")
    world = _world_of_test(request)
    device = request.getfixturevalue("device") if world is None else None
    from siwarp.testing import pair

    with pair(kind, device, sim=world or False) as ends:
        yield ends


@pytest.fixture
def rc_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two RC queue pairs that are connected: ``a, b = rc_pair``."""
    yield from _open_pair("rc", request)


@pytest.fixture
def uc_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two UC queue pairs that are each other's peer."""
    yield from _open_pair("uc", request)


@pytest.fixture
def ud_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two UD queue pairs, each with an address handle of the other."""
    yield from _open_pair("ud", request)


@pytest.fixture
def rd_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two RD queue pairs, each with an address handle of the other."""
    yield from _open_pair("rd", request)


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Apply fault plans: ``faults("loss=5%,seed=7")`` holds for the rest of the test.

    A later plan replaces an earlier plan; ``faults("")`` ends the plan. Each call returns the plan
    in siwarp's normalized form. In a simulated world the plan applies to all links of the world,
    whose seed also determines the faults, and the call returns its argument.
    """
    import siwarp

    world = _world_of_test(request)
    if world is not None:

        def set_fault_plan_of_world(plan: str) -> str:
            world.faults(plan)
            return plan

        yield set_fault_plan_of_world
        return
    with contextlib.ExitStack() as stack:
        yield lambda plan: stack.enter_context(siwarp.faults(plan))
