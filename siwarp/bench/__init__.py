# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measurements of siwarp and of raw sockets (the floor), alternately in the same run.

``run`` makes one measurement and returns all its results; ``siwarp bench`` prints them, and
``siwarp bench table`` compares all figures with their required values.
"""

from siwarp.bench.plan import Plan, UsageError, make_bench_plan
from siwarp.bench.runner import BenchError, run

__all__ = ["BenchError", "Plan", "UsageError", "make_bench_plan", "run"]
