"""Fixtures of the tests of devices and verbs: devices, queue pairs and connections on loopback."""

from __future__ import annotations

from harness.fixtures import (
    listener_and_connector,
    listener_and_connector_on_two_devices,
    loopback_device_rig,
    run_in_namespace,
    ud_pair,
    use_own_mcast_port,
)

__all__ = [
    "listener_and_connector",
    "listener_and_connector_on_two_devices",
    "loopback_device_rig",
    "run_in_namespace",
    "ud_pair",
    "use_own_mcast_port",
]
