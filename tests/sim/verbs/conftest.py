"""Fixtures for tests of verbs in a simulated network."""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.rc_harness import ListenerAndConnector
from harness.verbs_harness import MCAST_PORT, Pair, Rig, temporary_settings

import siwarp.sim


@pytest.fixture(autouse=True)
def _use_simulated_network(world: siwarp.sim.World) -> Iterator[None]:
    with net.use_simulated_world(world), temporary_settings(mcast_port=MCAST_PORT):
        yield


@pytest.fixture(name="rig")
def simulated_device_rig(_use_simulated_network: None) -> Iterator[Rig]:
    """A device with a protection domain."""
    made = Rig()
    yield made
    made.close()


@pytest.fixture(name="pair")
def ud_queue_pair_pair(rig: Rig) -> Pair:
    """Two UD queue pairs on one host."""
    return Pair(rig)


@pytest.fixture(name="connector")
def listener_and_connector(rig: Rig) -> ListenerAndConnector:
    """A listener, and a helper to connect to the listener."""
    return ListenerAndConnector(rig)


@pytest.fixture(name="two_device_connector")
def listener_and_connector_on_two_devices(
    _use_simulated_network: None,
) -> Iterator[ListenerAndConnector]:
    """A listener on one device, and a helper to connect to the listener from another device."""
    a, b = Rig(), Rig()
    yield ListenerAndConnector(a, b)
    a.close()
    b.close()
