"""What the tests of mpa/ share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.mpa.mpa_harness import World, world


@pytest.fixture
def w() -> Iterator[World]:
    """A port on loopback and whatever the test opens on it."""
    with world() as made:
        yield made
