"""The credits of ADTS, in all states with small windows and in random programs with large ones.

A model has both ends and the units between them. It is searched completely for windows of a few
receives: each unit finds a receive, no end is ever stuck, and the ends become silent when nothing
happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from siwarp.ulp.adts.credit import (
    MAX_WINDOW,
    MIN_INITIATOR_WINDOW,
    CreditError,
    Credits,
    Role,
)

#: A unit: its kind, `granted` and `returned`. A kind that is an int stands for a RECLAIM that
#: leaves this number of credits.
Unit = tuple[str | int, int, int]
GRANT, RECORDS = "grant", "records"

I, A = Role.INITIATOR, Role.ACCEPTOR  # noqa: E741


def send_unit(end: Credits, kind: str | int) -> Unit:
    return (kind, *end.count_sent_unit())


def receive_unit(end: Credits, unit: Unit) -> None:
    kind, granted, returned = unit
    end.count_received_unit(granted, returned, grant_unit=kind == GRANT)
    if isinstance(kind, int):
        end.give_back_all_credits_but(kind)
        end.count_released_receive()


def copy_credits_of_end(end: Credits) -> Credits:
    """Return a copy, in a third of the time of copy.copy()."""
    made = object.__new__(type(end))
    made.__dict__.update(end.__dict__)
    return made


@dataclass
class ExchangeState:
    """The state of a model: both ends, and the units in flight to each end, oldest first."""

    ends: dict[Role, Credits]
    to: dict[Role, deque[Unit]] = field(default_factory=lambda: {I: deque(), A: deque()})

    @classmethod
    def from_windows(
        cls, initiator: int, acceptor: int, kind: type[Credits] = Credits
    ) -> ExchangeState:
        return cls({I: kind(I, initiator, acceptor), A: kind(A, acceptor, initiator)})

    @classmethod
    def create_joined(cls, initiator: int, acceptor: int) -> ExchangeState:
        """Return the exchange after JOIN, which the acceptor answers with a grant unit."""
        exchange = cls.from_windows(initiator, acceptor)
        receive_unit(exchange.ends[A], send_unit(exchange.ends[I], RECORDS))
        exchange.ends[A].count_released_receive()
        exchange.to[I].append(send_unit(exchange.ends[A], GRANT))
        return exchange

    def copy(self, changes: Role, receives: Role | None = None) -> ExchangeState:
        """Return a copy in which one end may change, and the units in flight to one end."""
        ends, to = self.ends.copy(), self.to.copy()
        ends[changes] = copy_credits_of_end(ends[changes])
        if receives is not None:
            to[receives] = to[receives].copy()
        return ExchangeState(ends, to)

    def relative_state(self) -> tuple[object, ...]:
        """Return a key of the state, made of differences of counts instead of the counts."""
        parts: list[object] = []
        for role, end in self.ends.items():
            limit, returned = end._limit, end._peer_returned
            units = []
            for kind, granted, back in self.to[role]:
                units.append((kind, granted - limit, back - returned))
                limit, returned = granted, back
            unannounced = end._granted - end._announced
            parts += [
                end._limit - end._used,
                end._announced - end._peer_used,
                unannounced,
                min(end._for_records, unannounced),
                end._held,
                end._window,
                end._keep,
                tuple(units),
            ]
        return tuple(parts)

    def check_receives_suffice(self) -> None:
        """Check that each unit in flight has a posted receive at its destination."""
        for role, end in self.ends.items():
            given_back = sum(
                back - before
                for (_, _, back), before in zip(
                    self.to[role],
                    [end._peer_returned, *(b for _, _, b in self.to[role])],
                    strict=False,
                )
            )
            peer = self.ends[A if role is I else I]
            left = end._announced - end._peer_used - len(self.to[role]) - given_back
            granted = [g for _, g, _ in self.to[peer._role]]
            known = (granted[-1] if granted else peer._limit) - peer._used
            assert left == known >= 0
            assert end.reserved >= len(self.to[role])


def states_after_steps_of_ends(exchange: ExchangeState) -> Iterator[ExchangeState]:
    """Yield each state that follows from this one by a step of the ends alone."""
    for role in Role:
        peer = A if role is I else I
        if exchange.ends[role].is_grant_due:
            after = exchange.copy(role, peer)
            after.to[peer].append(send_unit(after.ends[role], GRANT))
            yield after
        if exchange.to[role]:
            after = exchange.copy(role, role)
            receive_unit(after.ends[role], after.to[role].popleft())
            yield after


def next_states_by_program_step(exchange: ExchangeState, windows: range) -> Iterator[ExchangeState]:
    """Yield each state that follows from this one by a step that a program may make."""
    for role in Role:
        peer = A if role is I else I
        if exchange.ends[role].sendable_unit_count:
            after = exchange.copy(role, peer)
            after.to[peer].append(send_unit(after.ends[role], RECORDS))
            yield after
        if exchange.ends[role]._held:
            after = exchange.copy(role)
            after.ends[role].count_released_receive()
            yield after
    acceptor = exchange.ends[A]
    for window in windows:
        if window != acceptor.window:
            after = exchange.copy(A)
            after.ends[A].set_credit_window(window)
            yield after
    if acceptor.has_excess_credits and acceptor.sendable_unit_count and len(windows):
        after = exchange.copy(A, I)
        after.to[I].append(send_unit(after.ends[A], acceptor.window))
        yield after


@dataclass
class Search:
    """All reachable states of the model, and the transitions that the ends make alone."""

    states: list[ExchangeState]
    steps: list[list[int]]

    def count_states_with_endless_exchange(self) -> int:
        """Return the number of states from which the ends may exchange units forever."""
        before: list[list[int]] = [[] for _ in self.steps]
        left = [len(after) for after in self.steps]
        for number, after in enumerate(self.steps):
            for one in after:
                before[one].append(number)
        silent = [number for number, count in enumerate(left) if count == 0]
        for number in silent:
            for one in before[number]:
                left[one] -= 1
                if left[one] == 0:
                    silent.append(one)
        return len(self.steps) - len(silent)


def search_reachable_states(*starts: ExchangeState, windows: range = range(0)) -> Search:
    numbers = {start.relative_state(): number for number, start in enumerate(starts)}
    found = Search([*starts], [])

    def get_or_add_state_index(exchange: ExchangeState) -> int:
        state = exchange.relative_state()
        if state not in numbers:
            numbers[state] = len(found.states)
            found.states.append(exchange)
        return numbers[state]

    while len(found.steps) < len(found.states):
        exchange = found.states[len(found.steps)]
        exchange.check_receives_suffice()
        found.steps.append(
            [get_or_add_state_index(after) for after in states_after_steps_of_ends(exchange)]
        )
        for after in next_states_by_program_step(exchange, windows):
            get_or_add_state_index(after)
    return found


def end_that_is_stuck(exchange: ExchangeState) -> str | None:
    """Return the end that cannot send although nothing is in flight and its peer could receive."""
    initiator, acceptor = exchange.ends[I], exchange.ends[A]
    if acceptor._held >= acceptor.window:
        return None  # the acceptor's program holds all units, so the initiator must wait
    if not initiator.sendable_unit_count:
        return "initiator"
    if not acceptor.sendable_unit_count and initiator.window - initiator._held >= 3:
        return "acceptor"
    return None


CASES = [
    *((4, acceptor, range(0)) for acceptor in (1, 2, 3, 4)),
    *((6, acceptor, range(0)) for acceptor in (1, 2)),
    (5, 3, range(0)),
    (4, 1, range(1, 3)),  # the acceptor's window grows and shrinks, and the acceptor sends RECLAIM
    (4, 3, range(1, 3)),  # RECLAIM finds credits that the initiator gives back
]


@pytest.mark.parametrize(("initiator", "acceptor", "windows"), CASES)
@pytest.mark.clause("ADTS-CRED-3", "ADTS-CRED-5#b", "ADTS-CRED-6")
def test_no_reachable_state_is_stuck_and_the_ends_become_silent(
    initiator: int, acceptor: int, windows: range
) -> None:
    starts = (
        ExchangeState.from_windows(initiator, acceptor),
        ExchangeState.create_joined(initiator, acceptor),
    )
    found = search_reachable_states(*starts, windows=windows)
    assert len(found.states) > 100
    assert found.count_states_with_endless_exchange() == 0
    silent = [w for w, after in zip(found.states, found.steps, strict=True) if not after]
    assert silent
    assert [exchange.relative_state() for exchange in silent if end_that_is_stuck(exchange)] == []


class GrantsWhateverIsNew(Credits):
    """An initiator that answers each grant unit when the acceptor has at most one credit."""

    @property
    def is_grant_due(self) -> bool:
        if self._role is A:
            return super().is_grant_due
        left = self._announced - self._peer_used
        return self._limit > self._used and self._granted > self._announced and left <= 1


class UsesItsLastCredit(Credits):
    """An acceptor that keeps no credit for a grant unit, and an initiator that permits it."""

    @property
    def sendable_unit_count(self) -> int:
        return self._limit - self._used

    def count_received_unit(self, granted: int, returned: int, *, grant_unit: bool) -> None:
        role, self._role = self._role, A
        super().count_received_unit(granted, returned, grant_unit=grant_unit)
        self._role = role


def test_the_search_finds_the_faults_of_simpler_rules() -> None:
    """The simpler rules lead to an endless exchange of grants, and to a deadlock."""
    found = search_reachable_states(ExchangeState.from_windows(4, 1, GrantsWhateverIsNew))
    assert found.count_states_with_endless_exchange() > 0
    found = search_reachable_states(ExchangeState.from_windows(4, 1, UsesItsLastCredit))
    silent = [w for w, after in zip(found.states, found.steps, strict=True) if not after]
    assert any(
        not w.ends[I].sendable_unit_count
        and not w.ends[A].sendable_unit_count
        and not any(e._held for e in w.ends.values())
        for w in silent
    )


def test_a_window_of_three_would_suffice_and_two_would_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(Credits.__init__.__globals__["_MIN_WINDOW"], I, 2)
    for window, expected in ((3, False), (2, True)):
        found = search_reachable_states(ExchangeState.from_windows(window, 1))
        is_stuck = any(
            not exchange.ends[A].sendable_unit_count
            and exchange.ends[A]._held == exchange.ends[I]._held == 0
            for exchange, after in zip(found.states, found.steps, strict=True)
            if not after
        )
        assert is_stuck is expected
        assert found.count_states_with_endless_exchange() == 0


class RandomPrograms(RuleBasedStateMachine):
    """Two ends with windows of up to 40 receives, whose programs do anything that is permitted."""

    def __init__(self) -> None:
        super().__init__()
        self.exchange = ExchangeState.from_windows(4, 1)
        self.units = {RECORDS: 0, GRANT: 0}

    @initialize(initiator=st.integers(4, 40), acceptor=st.integers(1, 40))
    def begin_exchange(self, initiator: int, acceptor: int) -> None:
        self.exchange = ExchangeState.from_windows(initiator, acceptor)

    def send_unit(self, role: Role, kind: str | int) -> None:
        peer = A if role is I else I
        self.exchange.to[peer].append(send_unit(self.exchange.ends[role], kind))
        self.units[GRANT if kind == GRANT else RECORDS] += 1

    @rule(role=st.sampled_from(Role), count=st.integers(1, 20))
    def send_record_units(self, role: Role, count: int) -> None:
        for _ in range(min(count, self.exchange.ends[role].sendable_unit_count)):
            self.send_unit(role, RECORDS)

    @rule(role=st.sampled_from(Role), count=st.integers(1, 20))
    def deliver_units_in_flight(self, role: Role, count: int) -> None:
        for _ in range(min(count, len(self.exchange.to[role]))):
            receive_unit(self.exchange.ends[role], self.exchange.to[role].popleft())

    @rule(role=st.sampled_from(Role), count=st.integers(1, 20))
    def release_units(self, role: Role, count: int) -> None:
        for _ in range(min(count, self.exchange.ends[role]._held)):
            self.exchange.ends[role].count_released_receive()

    @rule(role=st.sampled_from(Role))
    def send_grant_unit_if_due(self, role: Role) -> None:
        if self.exchange.ends[role].is_grant_due:
            self.send_unit(role, GRANT)
            assert not self.exchange.ends[role].is_grant_due

    @rule(window=st.integers(1, 40))
    def resize_acceptor_window(self, window: int) -> None:
        acceptor = self.exchange.ends[A]
        acceptor.set_credit_window(window)
        if acceptor.has_excess_credits and acceptor.sendable_unit_count:
            self.send_unit(A, window)

    @rule()
    def check_credit_after_all_arrived(self) -> None:
        """Deliver and release all units; check that few grant units follow and both ends can
        send."""
        ends, before = self.exchange.ends, self.units[GRANT]
        for _ in range(100):
            for role in Role:
                self.deliver_units_in_flight(role, len(self.exchange.to[role]))
                self.release_units(role, ends[role]._held)
                self.send_grant_unit_if_due(role)
            if not any(self.exchange.to.values()) and not any(
                e.is_grant_due for e in ends.values()
            ):
                break
        assert self.units[GRANT] - before <= 6
        assert ends[I].sendable_unit_count
        assert ends[A].sendable_unit_count
        for end in ends.values():
            assert end.reserved == max(end.window, end._announced - end._peer_used)

    @invariant()
    def check_each_unit_has_receive(self) -> None:
        self.exchange.check_receives_suffice()


TestRandomPrograms = RandomPrograms.TestCase
TestRandomPrograms.settings = settings(max_examples=50, stateful_step_count=40)


def send_units_to_acceptor(ends: ExchangeState, count: int) -> None:
    """Let the initiator send units with records as fast as its credits permit."""
    sent = 0
    while sent < count:
        if ends.ends[I].sendable_unit_count:
            ends.to[A].append(send_unit(ends.ends[I], RECORDS))
            sent += 1
        while ends.to[A]:
            receive_unit(ends.ends[A], ends.to[A].popleft())
            ends.ends[A].count_released_receive()
        if ends.ends[A].is_grant_due:
            ends.to[I].append(send_unit(ends.ends[A], GRANT))
        while ends.to[I]:
            receive_unit(ends.ends[I], ends.to[I].popleft())


@pytest.mark.clause("ADTS-CRED-1", "ADTS-CRED-2")
def test_counts_are_cumulative_and_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = ExchangeState.from_windows(4, 8)
    # start with the counts that follow nearly 2**32 units in each direction
    for end in exchange.ends.values():
        past = (1 << 32) - 20
        for name in ("_limit", "_used", "_announced", "_peer_used"):
            setattr(end, name, getattr(end, name) + past)
    send_units_to_acceptor(exchange, 100)
    assert exchange.ends[A].sendable_unit_count >= 1
    granted, returned = exchange.ends[A].count_sent_unit()
    assert (granted, returned) == (100 + 8 - 20, 0)


@pytest.mark.clause("ADTS-CRED-5#a")
def test_a_grant_unit_follows_half_a_window_of_records_at_the_latest() -> None:
    acceptor = Credits(A, window=9, credit=4)
    for n in range(1, 5):
        acceptor.count_received_unit(4, 0, grant_unit=False)
        assert not acceptor.is_grant_due  # no grant is due, because the unit has not been released
        acceptor.count_released_receive()
        assert acceptor.is_grant_due is (n == 4)
    assert acceptor.count_sent_unit() == (13, 0)
    assert not acceptor.is_grant_due


@pytest.mark.clause("ADTS-CRED-5#b")
def test_the_acceptor_grants_to_an_initiator_without_credit() -> None:
    acceptor = Credits(A, window=9, credit=4)
    for _ in range(9):
        acceptor.count_received_unit(4, 0, grant_unit=False)
    assert not acceptor.is_grant_due
    acceptor.count_released_receive()
    assert acceptor.is_grant_due
    assert acceptor.count_sent_unit() == (10, 0)


@pytest.mark.clause("ADTS-CRED-5#c", "ADTS-CRED-6")
def test_the_initiator_grants_to_an_acceptor_with_one_credit_if_it_can_use_it() -> None:
    initiator = Credits(I, window=8, credit=3)
    for _ in range(7):
        initiator.count_received_unit(3, 0, grant_unit=False)
    assert not initiator.is_grant_due
    # This adds one credit for records, which is less than half of the window.
    initiator.count_released_receive()
    assert initiator.is_grant_due
    initiator.count_sent_unit()
    # While the initiator holds six of eight units, it does not answer grant units, because the
    # acceptor could not use the credits.
    for granted in (4, 5):
        initiator.count_received_unit(granted, 0, grant_unit=True)
        assert not initiator.is_grant_due
    initiator.count_released_receive()
    assert initiator.is_grant_due


@pytest.mark.clause("ADTS-CRED-3")
def test_the_acceptor_sends_no_records_with_its_last_credit() -> None:
    acceptor = Credits(A, window=1, credit=4)
    assert acceptor.sendable_unit_count == 3
    for left in (2, 1, 0):
        acceptor.count_sent_unit()
        assert acceptor.sendable_unit_count == left
    acceptor.count_received_unit(4, 0, grant_unit=False)
    acceptor.count_released_receive()
    assert acceptor.is_grant_due
    acceptor.count_sent_unit()
    assert not acceptor.is_grant_due
    initiator = Credits(I, window=4, credit=1)
    assert initiator.sendable_unit_count == 1


@pytest.mark.clause("ADTS-CRED-4")
@pytest.mark.parametrize(
    ("role", "window", "credit"),
    [(I, 3, 1), (I, 4, 0), (A, 0, 4), (A, 1, 3), (I, MAX_WINDOW + 1, 1), (A, 1, MAX_WINDOW + 1)],
)
def test_windows_have_limits(role: Role, window: int, credit: int) -> None:
    with pytest.raises(CreditError, match=r"a window of (0|3|4097) receives: that of the"):
        Credits(role, window, credit)


@pytest.mark.clause("ADTS-CRED-4")
def test_a_window_is_not_resized_below_its_limit() -> None:
    initiator = Credits(I, window=MIN_INITIATOR_WINDOW, credit=1)
    with pytest.raises(CreditError, match="of the initiator is 4 to 4096"):
        initiator.set_credit_window(3)
    assert initiator.window == 4


def create_acceptor_with_used_credits() -> Credits:
    """Return an acceptor whose peer has used three of four credits."""
    acceptor = Credits(A, window=4, credit=4)
    for _ in range(3):
        acceptor.count_received_unit(4, 0, grant_unit=False)
    return acceptor


def initiator_granting_peer_one_credit() -> Credits:
    initiator = Credits(I, window=4, credit=4)
    for _ in range(3):
        initiator.count_received_unit(4, 0, grant_unit=False)
    return initiator


def acceptor_whose_peer_has_no_credit() -> Credits:
    acceptor = create_acceptor_with_used_credits()
    acceptor.count_received_unit(4, 0, grant_unit=False)
    return acceptor


@pytest.mark.parametrize(
    ("make", "granted", "returned", "grant_unit", "text"),
    [
        pytest.param(
            acceptor_whose_peer_has_no_credit,
            4,
            0,
            True,
            "the peer sent a unit without credit",
            marks=pytest.mark.clause("ADTS-CRED-7#a"),
        ),
        pytest.param(
            initiator_granting_peer_one_credit,
            4,
            0,
            False,
            "the acceptor used its last credit for a unit with records",
            marks=pytest.mark.clause("ADTS-CRED-7#b"),
        ),
        pytest.param(
            create_acceptor_with_used_credits,
            3,
            0,
            False,
            "the peer's count of credits changed by 4294967295",
            marks=pytest.mark.clause("ADTS-CRED-7#c"),
        ),
        pytest.param(
            create_acceptor_with_used_credits,
            4097,
            0,
            False,
            "the peer's count of credits changed by 4093: it never decreases, and this end has",
            marks=pytest.mark.clause("ADTS-CRED-7#c"),
        ),
        pytest.param(
            create_acceptor_with_used_credits,
            4,
            1,
            False,
            "the peer gives 1 credits back and has 0",
            marks=pytest.mark.clause("ADTS-CRED-7#d"),
        ),
        pytest.param(
            initiator_granting_peer_one_credit,
            4,
            1,
            True,
            "the peer gives 1 credits back and has 0",
            marks=pytest.mark.clause("ADTS-CRED-7#d"),
        ),
    ],
)
def test_a_peer_that_breaks_the_rules_is_found_and_changes_nothing(
    make: Callable[[], Credits], granted: int, returned: int, grant_unit: bool, text: str
) -> None:
    end = make()
    before = vars(end).copy()
    with pytest.raises(CreditError) as refused:
        end.count_received_unit(granted, returned, grant_unit=grant_unit)
    assert str(refused.value).startswith(text)
    assert vars(end) == before


@pytest.mark.clause("ADTS-CRED-8")
def test_credits_that_are_not_used_can_be_asked_back() -> None:
    exchange = ExchangeState.from_windows(4, 16)
    initiator, acceptor = exchange.ends[I], exchange.ends[A]
    send_units_to_acceptor(exchange, 3)
    acceptor.set_credit_window(2)
    assert acceptor.has_excess_credits
    assert acceptor.reserved == 13  # the peer still has 13 credits
    receive_unit(initiator, send_unit(acceptor, 2))
    assert initiator.is_grant_due
    assert initiator.sendable_unit_count == 3
    unit = send_unit(initiator, GRANT)
    assert unit[2] == 10  # 13 credits minus the one for this unit and two that remain
    assert initiator.sendable_unit_count == 2
    assert not initiator.is_grant_due
    receive_unit(acceptor, unit)
    assert not acceptor.has_excess_credits
    assert acceptor.reserved == 2
    send_units_to_acceptor(exchange, 50)
    assert acceptor.reserved == 2
    acceptor.set_credit_window(16)
    assert acceptor.is_grant_due
    receive_unit(initiator, send_unit(acceptor, GRANT))
    assert initiator.sendable_unit_count == 16


@pytest.mark.clause("ADTS-CRED-8")
def test_a_request_for_credits_that_are_used_meanwhile_is_answered_by_their_use() -> None:
    exchange = ExchangeState.from_windows(4, 4)
    initiator, acceptor = exchange.ends[I], exchange.ends[A]
    for _ in range(3):
        exchange.to[A].append(send_unit(initiator, RECORDS))
    acceptor.set_credit_window(1)
    receive_unit(initiator, send_unit(acceptor, 1))
    assert not initiator._keep
    assert acceptor.has_excess_credits
    while exchange.to[A]:
        receive_unit(acceptor, exchange.to[A].popleft())
        acceptor.count_released_receive()
    assert not acceptor.has_excess_credits
    assert acceptor.reserved == 1


def test_only_an_initiator_is_asked_for_credits_and_it_keeps_one() -> None:
    with pytest.raises(CreditError, match="RECLAIM that leaves 1 credits to the acceptor"):
        Credits(A, 1, 4).give_back_all_credits_but(1)
    with pytest.raises(CreditError, match="RECLAIM that leaves 0 credits to the initiator"):
        Credits(I, 4, 4).give_back_all_credits_but(0)
