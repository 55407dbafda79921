# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The error if the simulator is not installed: its files are in a wheel of its own, siwarp-sim."""

from __future__ import annotations

import importlib.util

__all__ = ["require_simulator"]


def require_simulator() -> None:
    """Raise an error that names the missing package if ``siwarp.sim`` is not installed.

    Raises:
        ModuleNotFoundError: ``siwarp.sim`` is not installed.

    """
    found = importlib.util.find_spec("siwarp.sim")
    # pip may leave the folder behind, without __init__.py, when it removes siwarp-sim.
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            "siwarp.sim, for simulated processes, is not installed: pip install 'siwarp[sim]'",
            name="siwarp.sim",
        )
