# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Deterministic simulation: the engine runs on a simulated network and a virtual clock.

::

    import siwarp.sim  # before siwarp.verbs

    with siwarp.sim.World(seed=7, faults="loss=1%,delay=2ms") as world:
        a, b = world.device("10.0.0.1"), world.device("10.0.0.2")
        world.spawn(serve, b)
        world.spawn(use, a)
        world.run_for("10min")

A process is either real or simulated. ``SIWARP_SIM=1`` in the environment, or importing this
package before ``siwarp.verbs``, makes the process simulated: the verbs and asyncio code then work
on a ``World`` and open no socket. The extra ``siwarp[sim]`` installs this package.
"""

from __future__ import annotations

import sys

from siwarp.base import system

# The first import of siwarp.base.library, by siwarp.verbs for example, decides whether the process
# loads the real or the simulated library.
if "siwarp.base.library" not in sys.modules:
    system.simulated = True

from siwarp.sim import doors
from siwarp.sim.sockets import TCPListener, TCPSocket, UDPSocket
from siwarp.sim.tasks import Task
from siwarp.sim.units import Duration, nanoseconds
from siwarp.sim.world import Deadlock, Stats, World

if system.simulated:
    doors.install_simulated_functions()

__all__ = [
    "Deadlock",
    "Duration",
    "Stats",
    "TCPListener",
    "TCPSocket",
    "Task",
    "UDPSocket",
    "World",
    "nanoseconds",
]


def __dir__() -> list[str]:
    return __all__
