# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The C library of this process: either the library for real sockets, or the simulation.

The choice is made once, when this module is imported: SIWARP_SIM=1 in the environment, or
``import siwarp.sim`` before ``siwarp.verbs``, selects the simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from siwarp.base import system

if TYPE_CHECKING or not system.simulated:
    from siwarp._siwarp import ffi, lib
else:
    from siwarp.base.simulator import require_simulator

    require_simulator()
    from siwarp._siwarp_sim import ffi, lib

__all__ = ["ffi", "lib"]
