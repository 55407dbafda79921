"""A fixture for the tests of siwarp.aio."""

from __future__ import annotations

import pytest

from siwarp.verbs import Context


@pytest.fixture(scope="session", autouse=True)
def open_and_close_device() -> None:
    """Open and close a device, because the first device creates the counter page, which stays."""
    Context().close()
