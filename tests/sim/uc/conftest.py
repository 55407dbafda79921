"""Fixtures for tests of UC in a simulated network."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.verbs_harness import Rig

import siwarp.sim


@pytest.fixture(autouse=True)
def _use_simulated_network(world: siwarp.sim.World) -> Iterator[None]:
    with net.use_simulated_world(world):
        yield


@pytest.fixture(name="rig")
def simulated_device_rig(_use_simulated_network: None) -> Iterator[Rig]:
    """A device with a protection domain."""
    made = Rig()
    yield made
    made.close()
