# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Support of fork() (``pyverbs.fork``), which needs no action, as memory is not pinned."""

from __future__ import annotations

from siwarp.pyverbs.enums import ibv_fork_status
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError

__all__ = ["PyverbsRDMAError", "fork_init", "is_fork_initialized"]


def fork_init() -> None:
    """Do nothing, because open objects remain with the parent, and a child opens its own."""


def is_fork_initialized() -> ibv_fork_status:
    """Return IBV_FORK_UNNEEDED."""
    return ibv_fork_status.IBV_FORK_UNNEEDED
