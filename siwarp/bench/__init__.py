# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measurements beside raw sockets: siwarp and the floor in turn, round by round in the same run.

``run`` makes one measurement and returns all its results; ``siwarp bench`` prints them, and
``python -m siwarp.bench`` compares all figures with what they must be.
"""

from siwarp.bench.plan import Plan, UsageError, make_plan
from siwarp.bench.runner import BenchError, run

__all__ = ["BenchError", "Plan", "UsageError", "make_plan", "run"]
