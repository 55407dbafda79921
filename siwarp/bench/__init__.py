# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measurements beside the raw sockets: ours and the floor, round by round in the same run.

``run`` measures one thing and returns everything it saw; ``siwarp bench`` prints it, and
``python -m siwarp.bench`` compares the whole list of figures with what they must be.
"""

from siwarp.bench.plan import Plan, UsageError, make_plan
from siwarp.bench.runner import BenchError, run

__all__ = ["BenchError", "Plan", "UsageError", "make_plan", "run"]
