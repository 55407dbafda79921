"""What the tests of cm/ share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.verbs.rc_harness import Wire
from unit.verbs.verbs_harness import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Loopback's device with a PD."""
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def wire(rig: Rig) -> Wire:
    """A listener on 127.0.0.1 and a way to connect to it."""
    return Wire(rig)


@pytest.fixture
def two() -> Iterator[Wire]:
    """The same between two open devices."""
    a, b = Rig(), Rig()
    yield Wire(a, b)
    a.close()
    b.close()
