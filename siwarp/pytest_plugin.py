# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Fixtures for pytest: devices, pairs, faults and captures. pytest finds them by itself.

Until a test asks for a fixture nothing of siwarp's library is loaded.
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
    """The file of a test, and where it goes if the test fails."""

    kept: Path
    failed: bool = False


_CAPTURE = pytest.StashKey[_Capture]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tell pytest of the folder of captures."""
    parser.addini(
        "siwarp_captures",
        "the folder, from the root of the tests, for captures of tests that failed",
        default="siwarp-captures",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test failed, and have its report name the capture."""
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
    """Capture what this process sends and receives; the file is kept when the test fails.

    It goes to the folder ``siwarp_captures`` (a setting of pytest's) under the test's name, and
    the test's report names it. The value is the file that is being written.
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
    """Open loopback's device; ``conftest.py`` may have a fixture ``device`` of its own instead.

    The pairs are on it. It closes with all that was made from it.
    """
    from siwarp.verbs import Context

    if "capture" in request.fixturenames:  # first, so that it has the start of connections
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

    A later plan takes the place of an earlier one; ``faults("")`` ends it. Each call returns the
    plan as siwarp writes it.
    """
    import siwarp

    with contextlib.ExitStack() as stack:
        yield lambda plan: stack.enter_context(siwarp.faults(plan))
