"""What the tests of ddp/ share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.ddp.ddp_harness import DdpWorld, ddp_world


@pytest.fixture
def w() -> Iterator[DdpWorld]:
    """A port on loopback and whatever the test opens on it."""
    with ddp_world() as made:
        yield made
