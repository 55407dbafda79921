"""Two network namespaces with a cable between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from namespaces.ns_harness import V4, V6, Namespace
from namespaces.path_harness import Path3


@pytest.fixture(scope="session")
def cable() -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces, connected; they go when the tests are over."""
    with contextlib.ExitStack() as made:
        ends: list[Namespace] = []
        for i in range(2):
            ends.append(Namespace(f"cable{i}", V4[i], V6[i], ends[0] if ends else None))
            made.callback(ends[i].close)
        # Made inside the namespaces, so that a failure leaves nothing in the machine's own.
        peer = ["peer", "name", ends[1].link, "netns", ends[1].pid]
        ends[0].ip("link", "add", ends[0].link, "type", "veth", *peer)
        for end in ends:
            end.ip("link", "set", end.link, "addrgenmode", "eui64")
            end.set_up()
        for end in ends:
            end.wait_for_link_local()
        yield ends[0], ends[1]


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
