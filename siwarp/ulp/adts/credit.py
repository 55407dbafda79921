# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Credits of one session, in both directions: who may send a unit, and when to grant (no I/O)."""

from __future__ import annotations

from enum import Enum

__all__ = ["MAX_WINDOW", "MIN_INITIATOR_WINDOW", "CreditError", "Credits", "Role"]

MIN_INITIATOR_WINDOW = 4
MAX_WINDOW = 4096


class CreditError(Exception):
    """The peer broke the rules of credits: it sent without credit, or its counts are impossible."""


class Role(Enum):
    """The two ends of a session."""

    INITIATOR = 1
    ACCEPTOR = 2


class Credits:
    """The credits of one end of a channel. A credit permits one unit.

    `window`: receives that this end has posted for the session, all granted to the peer out of band
    (CHANNEL, or HELLO of the initiator). `credit`: what the peer granted in the same way.
    """

    def __init__(self, role: Role, window: int, credit: int) -> None:
        raise NotImplementedError

    # Sending.

    @property
    def can_send(self) -> bool:
        """Whether a unit with records may be sent now."""
        raise NotImplementedError

    @property
    def grant_due(self) -> bool:
        """Whether a grant unit must be sent now; ask after each event, until it is false.

        If a unit with records can be sent instead, it serves the same purpose.
        """
        raise NotImplementedError

    def send(self) -> tuple[int, int]:
        """Count one unit as sent; return `granted` and `returned` for its header."""
        raise NotImplementedError

    # Receiving.

    def receive(self, granted: int, returned: int, *, grant: bool) -> int:
        """Count a received unit; `grant`: it has no records, and its receive is posted again now.

        Returns the number of credits that the peer gave back with this unit: so many posted
        receives are no longer reserved for this session.

        Raises:
            CreditError: the peer had no credit for the unit, or the counts are impossible.

        """
        raise NotImplementedError

    def release(self) -> bool:
        """Count the receive of a unit with records as free again.

        Returns whether to post it for this session; false if the window has shrunk.
        """
        raise NotImplementedError

    @property
    def reserved(self) -> int:
        """Number of receives that must be posted for this session."""
        raise NotImplementedError

    # Changing the window.

    def resize(self, window: int) -> None:
        """Set the number of receives for this session; a smaller one applies as they come back."""
        raise NotImplementedError

    def reclaim(self, keep: int) -> bool:
        """Shrink the window to `keep`; return whether to send RECLAIM, i.e. the peer has more."""
        raise NotImplementedError

    @property
    def reclaimed(self) -> bool:
        """Whether the peer has no more credits than the window (a RECLAIM is answered)."""
        raise NotImplementedError

    def give_back(self, keep: int) -> None:
        """Answer a RECLAIM: the next unit returns all credits except `keep`."""
        raise NotImplementedError
