"""Fixtures for tests of devices, queue pairs and connections on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.rc_harness import ListenerAndConnector
from harness.verbs_harness import MCAST_PORT, Pair, Rig, temporary_settings
from unit.llp.conftest import run_in_namespace

__all__ = [
    "listener_and_connector",
    "listener_and_connector_on_two_devices",
    "loopback_device_rig",
    "run_in_namespace",
    "ud_pair",
    "use_own_mcast_port",
]


@pytest.fixture(autouse=True, scope="module")
def use_own_mcast_port() -> Iterator[None]:
    """Give multicast groups a port that only this process uses."""
    with temporary_settings(mcast_port=MCAST_PORT):
        yield


@pytest.fixture(name="rig")
def loopback_device_rig() -> Iterator[Rig]:
    """Provide an open loopback device with a protection domain."""
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def ud_pair(rig: Rig) -> Pair:
    """Provide two UD queue pairs on 127.0.0.1."""
    return Pair(rig)


@pytest.fixture(name="connector")
def listener_and_connector(rig: Rig) -> ListenerAndConnector:
    """Provide a listener on 127.0.0.1 and functions to connect to it."""
    return ListenerAndConnector(rig)


@pytest.fixture(name="two_device_connector")
def listener_and_connector_on_two_devices() -> Iterator[ListenerAndConnector]:
    """Provide a listener on one device, and functions that connect to it from another device."""
    a, b = Rig(), Rig()
    yield ListenerAndConnector(a, b)
    a.close()
    b.close()
