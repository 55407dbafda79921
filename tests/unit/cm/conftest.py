"""Fixtures of the tests of the connection manager: devices and connected endpoints."""

from harness.fixtures import listener_and_connector, loopback_device_rig, two_device_wire

__all__ = ["listener_and_connector", "loopback_device_rig", "two_device_wire"]
