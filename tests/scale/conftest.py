"""The programs of tests/abi, which the tests of this folder run many of."""

from abi.conftest import compiled

__all__ = ["compiled"]
