"""Objects that most tests of the Python verbs need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.python.misuse_harness import World
from unit.python.python_harness import UD

import siwarp
from siwarp.cm import Connection, Listener


@pytest.fixture
def ud() -> Iterator[UD]:
    it = UD()
    yield it
    it.close()


@pytest.fixture(params=["127.0.0.1", "::1"], ids=["IPv4", "IPv6"])
def ud_each_family(request: pytest.FixtureRequest) -> Iterator[UD]:
    it = UD(request.param)
    yield it
    it.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


Pair = tuple[Connection, Connection]


@pytest.fixture
def connected() -> Iterator[Callable[..., Pair]]:
    """Provide a function that connects two endpoints in this process: (initiator, responder)."""
    with contextlib.ExitStack() as stack:

        def make(host: str = "127.0.0.1", **options: object) -> Pair:
            listener: Listener = stack.enter_context(siwarp.listen((host, 0), **options))
            with ThreadPoolExecutor(1) as pool:
                accepted = pool.submit(listener.accept, 10)
                ours = stack.enter_context(siwarp.connect(listener.address, **options))
                return ours, stack.enter_context(accepted.result(10))

        yield make
