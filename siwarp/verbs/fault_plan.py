# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Fault plans for this process's traffic."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from siwarp.base import system
from siwarp.verbs._ffi import check_return_code, ffi, lib
from siwarp.verbs.errors import Error

__all__ = ["faults", "set_faults"]

_SIZE = 4096


def _current_fault_plan() -> str:
    text = ffi.new("char[]", _SIZE)
    lib.siw_faults_get(text, _SIZE)
    return bytes(ffi.string(text)).decode()


def set_faults(plan: str) -> None:
    """Set the fault plan of this process; an empty string ends the plan.

    Raises:
        Error: the plan is invalid (EINVAL); the message names the clause and the character. Or
            this is a simulated process (EOPNOTSUPP).

    """
    if system.simulated:
        raise Error(
            errno.EOPNOTSUPP,
            "a simulated process uses the network of its simulated world: use world.faults or "
            "world.link",
        )
    check_return_code(lib.siw_faults_set(plan.encode()), "setting a fault plan")


@contextlib.contextmanager
def faults(plan: str) -> Iterator[str]:
    """Apply a fault plan to this process's traffic while the block runs.

    Example: ``siwarp.faults("loss=1%,delay=0.1ms; rx:reorder=2%,seed=7")``. For datagrams: loss,
    burst, dup, reorder, corrupt, mark, delay, jitter, rate, limit, blackout. For streams: delay,
    jitter, rate, limit, blackout, reset, short, corrupt. ``tx:`` or ``rx:`` before a clause
    restricts it to a direction, ``peer=`` to a peer. The same plan has the same effect on the same
    sequence of packets. The counters ``fault_*`` count the effects. After the block, the previous
    plan applies again, if there was one.

    Yields:
        The plan in siwarp's normalized form.

    Raises:
        Error: the plan is invalid (EINVAL); the message names the clause and the character.

    """
    before = _current_fault_plan()
    set_faults(plan)
    try:
        yield _current_fault_plan()
    finally:
        set_faults(before)
