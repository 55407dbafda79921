# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Fixtures for pytest: devices, pairs, faults and captures. pytest loads this plug-in by itself.

siwarp's library is not loaded until a test requests a fixture.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from siwarp.testing import Kind, Pair
    from siwarp.verbs import Context

__all__ = ["capture", "device", "faults", "rc_pair", "rd_pair", "uc_pair", "ud_pair"]


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
    written.
    """
    import siwarp

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
def device(request: pytest.FixtureRequest) -> Iterator[Context]:
    """Open the loopback device; ``conftest.py`` may define another fixture ``device`` instead.

    The fixtures of pairs use this device. The device closes with all objects created from it.
    """
    from siwarp.verbs import Context

    if "capture" in request.fixturenames:  # start the capture before any connection
        request.getfixturevalue("capture")
    with Context() as context:
        yield context


def _open_pair(kind: Kind, device: Context) -> Iterator[Pair]:
    from siwarp.testing import pair

    with pair(kind, device) as ends:
        yield ends


@pytest.fixture
def rc_pair(device: Context) -> Iterator[Pair]:
    """Two RC queue pairs that are connected: ``a, b = rc_pair``."""
    yield from _open_pair("rc", device)


@pytest.fixture
def uc_pair(device: Context) -> Iterator[Pair]:
    """Two UC queue pairs that are each other's peer."""
    yield from _open_pair("uc", device)


@pytest.fixture
def ud_pair(device: Context) -> Iterator[Pair]:
    """Two UD queue pairs, each with an address handle of the other."""
    yield from _open_pair("ud", device)


@pytest.fixture
def rd_pair(device: Context) -> Iterator[Pair]:
    """Two RD queue pairs, each with an address handle of the other."""
    yield from _open_pair("rd", device)


@pytest.fixture
def faults() -> Iterator[Callable[[str], str]]:
    """Apply fault plans: ``faults("loss=5%,seed=7")`` holds for the rest of the test.

    A later plan replaces an earlier plan; ``faults("")`` ends the plan. Each call returns the plan
    in siwarp's normalized form.
    """
    import siwarp

    with contextlib.ExitStack() as stack:
        yield lambda plan: stack.enter_context(siwarp.faults(plan))
