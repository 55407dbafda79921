"""What the tests of verbs/ share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.llp.conftest import namespace
from unit.verbs.rc_harness import Wire
from unit.verbs.verbs_harness import MCAST_PORT, Pair, Rig, settings

__all__ = ["namespace", "own_mcast_port", "pair", "rig", "two", "wire"]


@pytest.fixture(autouse=True, scope="module")
def own_mcast_port() -> Iterator[None]:
    """Let groups have a port of this process's."""
    with settings(mcast_port=MCAST_PORT):
        yield


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Loopback's device with a PD."""
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def pair(rig: Rig) -> Pair:
    """Two UD queue pairs on 127.0.0.1."""
    return Pair(rig)


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
