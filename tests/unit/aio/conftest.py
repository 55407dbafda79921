"""What the tests of aio/ find when they begin."""

from __future__ import annotations

import pytest

from siwarp.verbs import Context


@pytest.fixture(scope="session", autouse=True)
def once_opened() -> None:
    """The first device that a process opens makes its page of counters, and that stays."""
    Context().close()
