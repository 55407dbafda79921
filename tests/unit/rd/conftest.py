"""Fixtures of the tests of rd/: ports of llp, and endpoints that are closed at the test's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import net
import pytest
from unit.llp.conftest import kit, namespace, port
from unit.rd.rd_kit import Endpoint, Stranger

__all__ = ["end", "kit", "namespace", "port"]


@pytest.fixture
def end() -> Iterator[Callable[..., Any]]:
    """Provide a function that creates RD endpoints; its parameters are those of Endpoint."""
    made: list[Endpoint] = []

    def make(*args: Any, **attrs: Any) -> Endpoint:
        made.append(Endpoint(*args, **attrs))
        return made[-1]

    yield make
    for e in made:
        e.close()


@pytest.fixture
def met(end: Callable[..., Endpoint]) -> Iterator[tuple[Endpoint, Stranger]]:
    """Provide an endpoint, and a peer that has completed the handshake with it."""
    e = end()
    s = Stranger(e)
    s.meet()
    yield e, s
    s.close()


@pytest.fixture
def strange(end: Callable[..., Endpoint]) -> Iterator[tuple[Endpoint, Stranger]]:
    """Provide an endpoint, and a peer that has not yet begun the handshake with it."""
    e = end()
    s = Stranger(e)
    yield e, s
    s.close()


@pytest.fixture
def strangers() -> Iterator[Callable[..., list[Stranger]]]:
    made: list[Stranger] = []

    def make(e: Endpoint, n: int, host: str = net.HERE) -> list[Stranger]:
        made.extend(Stranger(e, epoch=0xABCD0001 + i, host=host) for i in range(n))
        return made[-n:]

    yield make
    for s in made:
        s.close()
