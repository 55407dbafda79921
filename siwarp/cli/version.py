# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp --version``: prints the version of the library."""

from __future__ import annotations

from siwarp.cli.libsiwarp import load_library

__all__ = ["main"]


def main(_name: str, _arguments: list[str]) -> int:
    """Print the library's version and return the exit status."""
    print(f"siwarp {load_library().siw_version().decode()}")
    return 0
