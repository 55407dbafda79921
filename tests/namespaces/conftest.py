"""Two network namespaces with a cable between them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from namespaces.ns_harness import V4, V6, Namespace, ip
from namespaces.path_harness import Path3


@pytest.fixture(scope="session")
def cable() -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces, connected; they go when the tests are over."""
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root: run `sudo make test`", pytrace=False)
    if shutil.which("ip") is None:
        pytest.fail("no ip command: apt-get install iproute2", pytrace=False)
    names = [f"siw-{os.getpid()}-{which}" for which in "ab"]
    made: list[str] = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ends = [Namespace(name, f"cable{i}", V4[i], V6[i]) for i, name in enumerate(names)]
        # Made inside the namespaces, so that a failure leaves nothing in the machine's own.
        peer = ["peer", "name", ends[1].link, "netns", names[1]]
        ends[0].ip("link", "add", ends[0].link, "type", "veth", *peer)
        for end in ends:
            end.ip("link", "set", end.link, "addrgenmode", "eui64")
            end.set_up()
        for end in ends:
            end.wait_for_link_local()
        yield ends[0], ends[1]
    finally:
        for name in made:
            ip("netns", "del", name)


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
