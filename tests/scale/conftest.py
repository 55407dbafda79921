"""Fixture with the compiled programs of tests/abi, which tests/scale runs in many processes."""

from abi.conftest import compiled_programs

__all__ = ["compiled_programs"]
