"""Fixtures for tests in which the independent protocol peer runs in a simulated network."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest

import siwarp.sim


@pytest.fixture(autouse=True)
def _use_simulated_network(world: siwarp.sim.World) -> Iterator[None]:
    with net.use_simulated_world(world):
        yield
