"""Fixtures for the tests of the clause checker."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.spec.spec_harness import SpecTree


@pytest.fixture
def spec_tree(tmp_path: Path) -> SpecTree:
    """A source tree with five clauses."""
    return SpecTree(tmp_path)
