"""Fixtures of the tests of cm/: the devices and endpoints of the tests of verbs/."""

from harness.fixtures import rig, two_device_wire, wire

__all__ = ["rig", "two_device_wire", "wire"]
