"""Fixtures of the tests of devices and verbs: devices, queue pairs and connections on loopback."""

from __future__ import annotations

from harness.fixtures import (
    rig,
    run_in_namespace,
    two_device_wire,
    ud_pair,
    use_own_mcast_port,
    wire,
)

__all__ = ["rig", "run_in_namespace", "two_device_wire", "ud_pair", "use_own_mcast_port", "wire"]
