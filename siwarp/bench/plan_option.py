# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The option ``--faults`` of every command: checks a plan and reports errors as usage errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from siwarp.verbs import Error, faults, set_faults

__all__ = ["check_and_normalize_fault_plan", "set_process_fault_plan"]

_OPTION = "--faults"


@contextlib.contextmanager
def _convert_fault_plan_errors() -> Iterator[None]:
    try:
        yield
    except Error as e:
        raise typer.BadParameter(str(e.strerror or e), param_hint=_OPTION) from None


def set_process_fault_plan(plan: str) -> None:
    """Set a fault plan for packets that this process sends (tx:) and receives (rx:)."""
    with _convert_fault_plan_errors():
        set_faults(plan)


def check_and_normalize_fault_plan(plan: str) -> str:
    """Return the plan in siwarp's notation, for another process."""
    with _convert_fault_plan_errors(), faults(plan) as written:
        return written
