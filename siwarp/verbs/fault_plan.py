# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Plans of faults for this process's traffic."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from siwarp.base import system
from siwarp.verbs._ffi import check, ffi, lib
from siwarp.verbs.errors import Error

__all__ = ["faults", "set_faults"]

_SIZE = 4096


def _current() -> str:
    text = ffi.new("char[]", _SIZE)
    lib.siw_faults_get(text, _SIZE)
    return bytes(ffi.string(text)).decode()


def set_faults(plan: str) -> None:
    """Set the plan of faults of this process; the empty text ends it.

    Raises:
        Error: it is no plan (EINVAL); the message names clause and character. This process is a
            simulated one (EOPNOTSUPP).

    """
    if system.simulated:
        raise Error(
            errno.EOPNOTSUPP,
            "the network of a simulated process is its world's: use world.faults or world.link",
        )
    check(lib.siw_faults_set(plan.encode()), "setting a plan of faults")


@contextlib.contextmanager
def faults(plan: str) -> Iterator[str]:
    """Apply a plan of faults to this process's traffic while the block runs.

    As ``siwarp.faults("loss=1%,delay=0.1ms; rx:reorder=2%,seed=7")``. Datagrams: loss, burst, dup,
    reorder, corrupt, delay, jitter, rate, limit, blackout. Streams: delay, jitter, rate, limit,
    blackout, reset, short, corrupt. ``tx:`` or ``rx:`` before a clause limits it to a direction,
    ``peer=`` to a peer. The same plan does the same to the same sequence of packets. Counters named
    ``fault_*`` say what it did. After the block, the previous plan applies again, if there was one.

    Yields:
        The plan as siwarp writes it.

    Raises:
        Error: it is no plan (EINVAL); the message names clause and character.

    """
    before = _current()
    set_faults(plan)
    try:
        yield _current()
    finally:
        set_faults(before)
