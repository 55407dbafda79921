# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Forks: ``pyverbs.fork``. Nothing is pinned, so there is nothing to protect."""

from __future__ import annotations

from siwarp.pyverbs.enums import ibv_fork_status
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError

__all__ = ["PyverbsRDMAError", "fork_init", "is_fork_initialized"]


def fork_init() -> None:
    """Do nothing: what is open stays the parent's, and the child opens its own."""


def is_fork_initialized() -> ibv_fork_status:
    """Return that it is not needed."""
    return ibv_fork_status.IBV_FORK_UNNEEDED
