"""Fixtures of the RD tests: pollers, and endpoints that are closed at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import net
import pytest
from unit.llp.conftest import llp_helpers, llp_poller, run_in_namespace
from unit.rd.rd_kit import Endpoint, ScapyRdPeer

__all__ = ["llp_helpers", "llp_poller", "make_endpoint", "run_in_namespace"]


@pytest.fixture
def make_endpoint() -> Iterator[Callable[..., Any]]:
    """Provide a function that creates RD endpoints and has the parameters of class Endpoint."""
    made: list[Endpoint] = []

    def create_endpoint(*args: Any, **attrs: Any) -> Endpoint:
        made.append(Endpoint(*args, **attrs))
        return made[-1]

    yield create_endpoint
    for e in made:
        e.close()


@pytest.fixture
def connected_endpoint(
    make_endpoint: Callable[..., Endpoint],
) -> Iterator[tuple[Endpoint, ScapyRdPeer]]:
    """Provide an RD endpoint, and a ScapyRdPeer that has completed the handshake with it."""
    e = make_endpoint()
    s = ScapyRdPeer(e)
    s.connect()
    yield e, s
    s.close()


@pytest.fixture
def unconnected_endpoint(
    make_endpoint: Callable[..., Endpoint],
) -> Iterator[tuple[Endpoint, ScapyRdPeer]]:
    """Provide an RD endpoint, and a ScapyRdPeer that has not begun the handshake with it."""
    e = make_endpoint()
    s = ScapyRdPeer(e)
    yield e, s
    s.close()


@pytest.fixture
def make_scapy_rd_peers() -> Iterator[Callable[..., list[ScapyRdPeer]]]:
    made: list[ScapyRdPeer] = []

    def create_scapy_rd_peers(e: Endpoint, n: int, host: str = net.HERE) -> list[ScapyRdPeer]:
        made.extend(ScapyRdPeer(e, epoch=0xABCD0001 + i, host=host) for i in range(n))
        return made[-n:]

    yield create_scapy_rd_peers
    for s in made:
        s.close()
