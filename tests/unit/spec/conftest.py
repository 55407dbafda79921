"""Fixtures of the tests of the clause checker."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.spec.spec_harness import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Return a tree with five clauses."""
    return Tree(tmp_path)
