"""Fixtures of the tests of this folder: devices, queue pairs and connections on loopback."""

from __future__ import annotations

from harness.fixtures import namespace, own_mcast_port, pair, rig, two, wire

__all__ = ["namespace", "own_mcast_port", "pair", "rig", "two", "wire"]
