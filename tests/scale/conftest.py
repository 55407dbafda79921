"""Provides the programs of tests/abi, of which the tests of this folder run many processes."""

from abi.conftest import compiled

__all__ = ["compiled"]
