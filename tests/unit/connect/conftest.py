"""Fixtures of the tests of connecting by QPN: devices, queue pairs and connections on loopback."""

from __future__ import annotations

from harness.fixtures import own_mcast_port, rig, run_in_namespace, two_device_wire, ud_pair, wire

__all__ = ["own_mcast_port", "rig", "run_in_namespace", "two_device_wire", "ud_pair", "wire"]
