"""Fixtures of the tests of aio/."""

from __future__ import annotations

import pytest

from siwarp.verbs import Context


@pytest.fixture(scope="session", autouse=True)
def open_device_once() -> None:
    """Open and close a device: the first one creates the page of counters, which stays open."""
    Context().close()
