# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The credits of a session in both directions: which units may be sent, and when to grant credits.

On iWARP a Send that finds no receive may end the connection. Therefore each end grants credits, one
for each receive that it has posted for the session, and each unit that the peer sends uses one. The
header of each unit has `granted`, the number of credits granted since the channel opened. A unit
without records, a *grant unit*, has no other purpose than to announce `granted`, and uses a credit
like any other unit. This raises two questions, which the rules below answer.

*Deadlock*: an end without credit cannot announce that its peer may send. The acceptor keeps its
last credit for a grant unit. Hence if the acceptor has no credit, then its last unit was a grant
unit, which gave the initiator at least one credit; and the initiator can announce at least one new
credit with whatever it sends next, because the receive of a grant unit is free again at once. So
the two ends are never without credit at the same time, and the initiator may use its last credit
for any unit.

*Endless exchange*: the credit that a grant unit has used is itself a new credit to announce. An end
sends a grant unit

- if new credits for units with records reach half of its window (at least 1), or
- acceptor: if the initiator has no credit left;
- initiator: if the acceptor has at most one credit left, and will have at least three, or some of
  the new credits are for units with records.

The initiator answers grant units with a grant unit only if the acceptor then has three credits or
more. The acceptor answers that at most once, and keeps two, so the exchange ends there: the
initiator has a credit, and the acceptor one that it may use for records. While the initiator holds
so many units that fewer than three of its receives are free, it grants nothing for grant units; the
next unit that it releases, or sends, announces them. Three receives of the initiator suffice, the
acceptor's window may be 1. The tests of this module search all states of small windows for
deadlocks and endless exchanges.

An acceptor that needs receives for other sessions sends RECLAIM. The initiator counts credits that
it gives back as `returned`, also in the header of each unit; to the acceptor they are units that
arrived and released their receives.

Calls report events in the order in which they happened; the channel must deliver units in order.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["MAX_WINDOW", "MIN_INITIATOR_WINDOW", "CreditError", "Credits", "Role"]

#: The initiator's receives: one for the acceptor's last credit, one for the grant unit with which
#: the acceptor answers a grant, and two for units with records, so that one can be sent while the
#: other is processed.
MIN_INITIATOR_WINDOW = 4
#: Maximum number of credits of an end: a pool of 64 MiB has 1,024 units of 64 KiB. The limit is far
#: below 2**31, so that a count that has gone backwards is recognised.
MAX_WINDOW = 4096
_MODULUS = 1 << 32


class CreditError(Exception):
    """The peer has violated the rules of credits: a unit without credit, or impossible counts."""


class Role(Enum):
    """The two ends of a session."""

    INITIATOR = "initiator"
    ACCEPTOR = "acceptor"


#: Smallest window of each role.
_MIN_WINDOW = {Role.INITIATOR: MIN_INITIATOR_WINDOW, Role.ACCEPTOR: 1}
_PEER = {Role.INITIATOR: Role.ACCEPTOR, Role.ACCEPTOR: Role.INITIATOR}


class Credits:
    """The credits of one end of a channel.

    ``window``: number of receives that this end has posted for the session, as the peer knows from
    the handshake. ``credit``: the number that the peer has told in the same way. Both are checked.

    Raises:
        CreditError: a number is below the smallest window of its role, or above ``MAX_WINDOW``.

    """

    def __init__(self, role: Role, window: int, credit: int) -> None:
        _validate_window_size(role, window)
        _validate_window_size(_PEER[role], credit)
        self._role = role
        self._window = window
        # For sending: the number of credits that the peer has granted, of those that this end has
        # used or given back, and of those given back.
        self._limit = credit
        self._used = 0
        self._returned = 0
        self._keep: int | None = None  # the acceptor has reclaimed all credits but this number
        # For receiving: the number of credits announced to the peer, of those that the peer has
        # used or given back, and of those given back.
        self._announced = window
        self._peer_used = 0
        self._peer_returned = 0
        self._held = 0  # number of units with records whose receives are still in use
        # number of credits that are not announced yet, without those for grant units
        self._for_records = 0

    # Sending.

    @property
    def sendable_unit_count(self) -> int:
        """Number of units with records that may be sent now. A grant unit may reduce it."""
        credit = self._limit - self._used
        if self._role is Role.ACCEPTOR:
            return max(0, credit - 1)
        return credit if self._keep is None else min(credit, self._keep + 1)

    @property
    def is_grant_due(self) -> bool:
        """Whether credits must be announced now, by a grant unit if no unit with records is sent.

        Any event may change this.
        """
        credit = self._limit - self._used
        if credit == 0:
            return False
        if self._keep is not None and credit > self._keep:
            return True
        unannounced = self._granted - self._announced
        if unannounced == 0:
            return False
        for_records = min(self._for_records, unannounced)
        if for_records >= max(1, self._window // 2):
            return True
        left = self._announced - self._peer_used
        if self._role is Role.ACCEPTOR:
            return left == 0
        return left <= 1 and (for_records > 0 or left + unannounced >= 3)

    def count_sent_unit(self) -> tuple[int, int]:
        """Count a unit as sent; return `granted` and `returned` for its header.

        Permitted for a unit with records if ``sendable_unit_count`` is not 0, for a grant unit if
        ``is_grant_due``.
        """
        credit = self._limit - self._used
        assert credit > 0, "a unit was sent without credit"
        if self._keep is not None:
            self._returned += max(0, credit - 1 - self._keep)
            self._used += max(0, credit - 1 - self._keep)
            self._keep = None
        self._used += 1
        self._announced = self._granted
        self._for_records = 0
        return self._announced % _MODULUS, self._returned % _MODULUS

    def give_back_all_credits_but(self, keep: int) -> None:
        """Answer RECLAIM: the next unit gives back all remaining credits but `keep`.

        Raises:
            CreditError: this end is the acceptor, or `keep` is 0: the initiator needs a credit to
                send anything.

        """
        if self._role is Role.ACCEPTOR or keep < 1:
            raise CreditError(
                f"RECLAIM that leaves {keep} credits to the {self._role.value}: only an initiator "
                "is asked for credits, and keeps at least 1"
            )
        if self._limit - self._used > keep:
            self._keep = keep

    # Receiving.

    def count_received_unit(self, granted: int, returned: int, *, grant_unit: bool) -> None:
        """Count a received unit, with the counts of its header.

        The receive of a grant unit counts as free again at once; that of another unit counts as
        held until ``count_released_receive``.

        Raises:
            CreditError: the peer had no credit for the unit, it is the acceptor and used its last
                one for records, or the counts are impossible. Nothing was counted.

        """
        left = self._announced - self._peer_used
        given_back = (returned - self._peer_returned) % _MODULUS
        new = (granted - self._limit) % _MODULUS
        if left == 0:
            raise CreditError("the peer sent a unit without credit")
        if self._role is Role.INITIATOR and left == 1 and not grant_unit:
            raise CreditError("the acceptor used its last credit for a unit with records")
        if given_back > (left - 1 if self._role is Role.ACCEPTOR else 0):
            raise CreditError(f"the peer gives {given_back} credits back and has {left - 1}")
        if self._limit - self._used + new > MAX_WINDOW:
            raise CreditError(
                f"the peer's count of credits changed by {new}: it never decreases, and this end "
                f"has at most {MAX_WINDOW} credits"
            )
        self._limit += new
        self._peer_returned += given_back
        self._peer_used += given_back + 1
        self._held += not grant_unit

    def count_released_receive(self) -> None:
        """Count the receive of a unit with records as free again."""
        assert self._held > 0, "more units were released than received"
        before = self._granted
        self._held -= 1
        self._for_records += self._granted - before

    @property
    def reserved(self) -> int:
        """Number of receives that this session needs: one for each credit granted or about to be
        granted.

        They must be posted before the next unit is sent. With a shared receive queue, the sum over
        its sessions must be.
        """
        return self._granted - self._peer_used

    @property
    def _granted(self) -> int:
        """Credits granted since the channel opened, including those not announced to the peer."""
        return max(self._announced, self._peer_used + self._window - self._held)

    # Changing the window.

    @property
    def window(self) -> int:
        """Number of receives for the session, including those that hold received units."""
        return self._window

    def set_credit_window(self, window: int) -> None:
        """Change the window. A smaller one takes effect as the peer uses its credits.

        Raises:
            CreditError: `window` is outside the limits, as for the constructor.

        """
        _validate_window_size(self._role, window)
        before = self._granted
        self._window = window
        self._for_records += max(0, self._granted - before)

    @property
    def has_excess_credits(self) -> bool:
        """Whether the peer has more credits than the window, so that RECLAIM should be sent.

        The RECLAIM is answered when this is false, whether the credits were used or given back.
        """
        return self._announced - self._peer_used > self._window


def _validate_window_size(role: Role, window: int) -> None:
    least = _MIN_WINDOW[role]
    if not least <= window <= MAX_WINDOW:
        raise CreditError(
            f"a window of {window} receives: that of the {role.value} is {least} to {MAX_WINDOW}"
        )
