# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Random programs of verbs in simulated worlds, and the invariants checked while they run.

``siwarp sim`` runs each seed in a child process, which may crash. ``program`` generates a list of
operations from a seed, ``model`` defines the guarantees of the verbs, and ``execution`` runs a
prefix of the list in a world and checks each result against the model.
"""

from __future__ import annotations

from siwarp.sim.workloads.execution import Outcome, run
from siwarp.sim.workloads.model import Violation
from siwarp.sim.workloads.program import WORKLOADS, Program, generate_program

__all__ = ["WORKLOADS", "Outcome", "Program", "Violation", "generate_program", "run"]
