"""Fixtures: pairs of network namespaces connected by a veth pair or by a router."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from namespaces.ns_harness import Namespace, create_cabled_namespaces
from namespaces.path_harness import RoutedPath


@pytest.fixture(scope="session")
def cabled_namespaces() -> Iterator[tuple[Namespace, Namespace]]:
    """Yield two network namespaces connected by a veth pair, for the complete test session."""
    with create_cabled_namespaces() as ends:
        yield ends


@pytest.fixture(scope="session")
def session_routed_path() -> Iterator[RoutedPath]:
    """Yield network namespaces connected by a router, for the complete test session."""
    made = RoutedPath()
    yield made
    made.close()


@pytest.fixture
def routed_path(session_routed_path: RoutedPath) -> RoutedPath:
    """Return the namespaces of ``session_routed_path``, reset to their initial state."""
    session_routed_path.reset()
    return session_routed_path
