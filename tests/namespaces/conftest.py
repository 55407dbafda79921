"""Fixtures: pairs of network namespaces connected by a veth pair or by a router."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from namespaces.ns_harness import Namespace, cabled
from namespaces.path_harness import Path3


@pytest.fixture(scope="session")
def cable() -> Iterator[tuple[Namespace, Namespace]]:
    """Provide two network namespaces connected by a veth pair, for the complete test session."""
    with cabled() as ends:
        yield ends


@pytest.fixture(scope="session")
def line() -> Iterator[Path3]:
    """Provide two network namespaces connected by a router, for the complete test session."""
    made = Path3()
    yield made
    made.close()


@pytest.fixture
def path(line: Path3) -> Path3:
    """Provide the namespaces of ``line``, reset to their initial state."""
    line.reset()
    return line
