"""UC in a world: the harnesses of tests/unit, on its network and its clock."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from unit.verbs.conftest import rig

import siwarp.sim

__all__ = ["rig"]


@pytest.fixture(autouse=True)
def _in_world(world: siwarp.sim.World) -> Iterator[None]:
    with net.in_world(world):
        yield
