"""What the tests of cm/ share: the devices and ends of those of verbs/."""

from unit.verbs.conftest import rig, two, wire

__all__ = ["rig", "two", "wire"]
