"""Reliable datagrams in a simulated network, with the harnesses of tests/unit."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.fixtures import rig
from unit.rd.conftest import end, met, strange, strangers

import siwarp.sim

__all__ = ["end", "met", "rig", "strange", "strangers"]


@pytest.fixture(autouse=True)
def _in_world(world: siwarp.sim.World) -> Iterator[None]:
    with net.use_world(world):
        yield
