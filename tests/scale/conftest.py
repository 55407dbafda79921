"""Fixture with the programs of tests/abi, of which the tests of tests/scale run many processes."""

from abi.conftest import compiled_programs

__all__ = ["compiled_programs"]
