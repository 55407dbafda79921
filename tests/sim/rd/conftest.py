"""Fixtures for tests of reliable datagrams in a simulated network."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.fixtures import loopback_device_rig
from unit.rd.conftest import (
    connected_endpoint,
    make_endpoint,
    make_scapy_rd_peers,
    unconnected_endpoint,
)

import siwarp.sim

__all__ = [
    "connected_endpoint",
    "loopback_device_rig",
    "make_endpoint",
    "make_scapy_rd_peers",
    "unconnected_endpoint",
]


@pytest.fixture(autouse=True)
def _use_simulated_network(world: siwarp.sim.World) -> Iterator[None]:
    with net.use_simulated_world(world):
        yield
