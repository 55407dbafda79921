"""Fixtures of the tests of cm/: the devices and endpoints of the tests of verbs/."""

from harness.fixtures import rig, two, wire

__all__ = ["rig", "two", "wire"]
