"""Fixtures with the objects that most tests of the Python verbs need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.python.misuse_harness import VerbsObjects
from unit.python.python_harness import UDResources

import siwarp
from siwarp.cm import Connection, Listener


@pytest.fixture
def ud_resources() -> Iterator[UDResources]:
    it = UDResources()
    yield it
    it.close()


@pytest.fixture(params=["127.0.0.1", "::1"], ids=["IPv4", "IPv6"])
def ud_resources_each_family(request: pytest.FixtureRequest) -> Iterator[UDResources]:
    it = UDResources(request.param)
    yield it
    it.close()


@pytest.fixture
def verbs_objects() -> Iterator[VerbsObjects]:
    made = VerbsObjects()
    yield made
    made.close()


Pair = tuple[Connection, Connection]


@pytest.fixture
def connect_pair() -> Iterator[Callable[..., Pair]]:
    """A function that connects two endpoints in one process and returns (initiator, responder)."""
    with contextlib.ExitStack() as stack:

        def make_connected_pair(host: str = "127.0.0.1", **options: object) -> Pair:
            listener: Listener = stack.enter_context(siwarp.listen((host, 0), **options))
            with ThreadPoolExecutor(1) as pool:
                accepted = pool.submit(listener.accept, 10)
                ours = stack.enter_context(siwarp.connect(listener.address, **options))
                return ours, stack.enter_context(accepted.result(10))

        yield make_connected_pair
