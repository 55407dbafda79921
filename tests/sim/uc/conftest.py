"""UC in a simulated network, with the harnesses of tests/unit."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.verbs_harness import Rig

import siwarp.sim


@pytest.fixture(autouse=True)
def _in_world(world: siwarp.sim.World) -> Iterator[None]:
    with net.use_world(world):
        yield


@pytest.fixture
def rig(_in_world: None) -> Iterator[Rig]:
    """Create a device with a PD."""
    made = Rig()
    yield made
    made.close()
