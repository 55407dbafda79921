"""Fixtures of the tests of the connection manager: devices and connected endpoints."""

from harness.fixtures import rig, two_device_wire, wire

__all__ = ["rig", "two_device_wire", "wire"]
