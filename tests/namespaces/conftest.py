"""Two network namespaces with a cable between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from namespaces.ns_harness import Namespace, cabled
from namespaces.path_harness import Path3


@pytest.fixture(scope="session")
def cable() -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces, connected; they go when the tests are over."""
    with cabled() as ends:
        yield ends


@pytest.fixture(scope="session")
def line() -> Iterator[Path3]:
    """Two namespaces with a router between them."""
    made = Path3()
    yield made
    made.close()


@pytest.fixture
def path(line: Path3) -> Path3:
    """The same, as new."""
    line.reset()
    return line
