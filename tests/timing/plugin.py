"""A pytest plugin (``-p timing.plugin``) that writes the cost of each test to a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timing.run import Costs


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin, which writes to the file that ``TIMING_COSTS`` names."""
    config.pluginmanager.register(Costs(Path(os.environ["TIMING_COSTS"])), "siwarp-timing")
