"""Fixtures of the tests of connecting by QPN: devices, queue pairs and connections on loopback."""

from __future__ import annotations

from harness.fixtures import (
    listener_and_connector,
    loopback_device_rig,
    run_in_namespace,
    two_device_wire,
    ud_pair,
    use_own_mcast_port,
)

__all__ = [
    "listener_and_connector",
    "loopback_device_rig",
    "run_in_namespace",
    "two_device_wire",
    "ud_pair",
    "use_own_mcast_port",
]
