"""Fixtures of the tests of cm/: the devices and endpoints of the tests of verbs/."""

from unit.verbs.conftest import rig, two, wire

__all__ = ["rig", "two", "wire"]
