# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Random programs of verbs in simulated worlds, and what must hold while they run.

``siwarp sim`` runs them, each seed in a process that it may lose. ``program`` draws a list of
operations from a seed, ``model`` says what the verbs promise, and ``execution`` runs a prefix of
the list in a world and holds each result against the model.
"""

from __future__ import annotations

from siwarp.sim.workloads.execution import Outcome, run
from siwarp.sim.workloads.model import Violation
from siwarp.sim.workloads.program import WORKLOADS, Program, generate

__all__ = ["WORKLOADS", "Outcome", "Program", "Violation", "generate", "run"]
