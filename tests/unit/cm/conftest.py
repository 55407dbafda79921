"""Fixtures of the tests of the connection manager: devices and connected endpoints."""

from harness.fixtures import (
    listener_and_connector,
    listener_and_connector_on_two_devices,
    loopback_device_rig,
)

__all__ = ["listener_and_connector", "listener_and_connector_on_two_devices", "loopback_device_rig"]
