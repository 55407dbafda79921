"""What these tests of rdmap/ share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.rdmap.rdmap_harness import RdmapWorld, rdmap_world


@pytest.fixture
def w() -> Iterator[RdmapWorld]:
    """A port on loopback and whatever the test opens on it."""
    with rdmap_world() as made:
        yield made
