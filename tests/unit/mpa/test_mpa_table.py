"""The transition table of MPA start-up: every pair of state and event, legal or not."""

from __future__ import annotations

import itertools

from _siwarp_layers import ffi, lib
from table import run_test_for_each_row


def enum_values_by_short_name(enum: str, prefix: str) -> dict[str, int]:
    found = ffi.typeof(f"enum {enum}").relements
    return {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}


STATES = enum_values_by_short_name("siw_mpa_state", "SIW_MPA_ST_")
EVENTS = enum_values_by_short_name("siw_mpa_event", "SIW_MPA_EV_")
ACTIONS = enum_values_by_short_name("siw_mpa_action", "SIW_MPA_ACT_")
FINAL_STATES = {"FULL", "TERMINATING", "REJECTED", "FAILED"}

#: All transitions of start-up, stated independently: (state, event) -> (action, next state).
LEGAL = {
    ("CONNECTING", "CONNECTED"): ("SEND_REQUEST", "SENDING_REQUEST"),
    ("CONNECTING", "ITSELF"): ("GIVE_OWN", "FULL"),
    ("SENDING_REQUEST", "SENT"): ("WAIT", "AWAIT_REPLY"),
    ("AWAIT_REPLY", "REPLY"): ("GIVE_REPLY", "FULL"),
    ("AWAIT_REPLY", "REPLY_NO"): ("GIVE_REJECT", "REJECTED"),
    ("AWAIT_REPLY", "REPLY_OTHER"): ("GIVE_MISMATCH", "TERMINATING"),
    ("AWAIT_REPLY", "BAD_FRAME"): ("FAIL", "FAILED"),
    ("AWAIT_REQUEST", "REQUEST"): ("GIVE_REQUEST", "ANSWERING"),
    ("AWAIT_REQUEST", "UNABLE"): ("REFUSE", "FAILED"),
    ("AWAIT_REQUEST", "BAD_FRAME"): ("FAIL", "FAILED"),
    ("ANSWERING", "ACCEPT"): ("SEND_ACCEPT", "ACCEPTING"),
    ("ANSWERING", "REJECT"): ("SEND_REJECT", "REJECTING"),
    ("ACCEPTING", "SENT"): ("ENTER_FULL", "FULL"),
    ("REJECTING", "SENT"): ("WAIT", "REJECTED"),
} | {(state, "LOST"): ("FAIL", "FAILED") for state in STATES if state not in FINAL_STATES}


@run_test_for_each_row(("state", "event"), list(itertools.product(STATES, EVENTS)))
def test_each_start_up_state_and_event_has_the_expected_action_and_next_state(
    state: str, event: str
) -> None:
    cell = lib.siw_mpa_startup_table_cell_for_tests(STATES[state], EVENTS[event])
    action = next(name for name, value in ACTIONS.items() if value == cell >> 8)
    if (state, event) not in LEGAL:
        assert action == "ILLEGAL"
        return
    after = next(name for name, value in STATES.items() if value == cell & 0xFF)
    assert (action, after) == LEGAL[state, event]


def test_start_up_states_and_events_out_of_range_are_illegal() -> None:
    assert len(STATES) == lib.SIW_MPA_N_STATES
    assert len(EVENTS) == lib.SIW_MPA_N_EVENTS
    for state, event in [(-1, 0), (0, -1), (lib.SIW_MPA_N_STATES, 0), (0, lib.SIW_MPA_N_EVENTS)]:
        assert lib.siw_mpa_startup_table_cell_for_tests(state, event) == -1


def test_every_start_up_state_is_reachable_and_only_final_states_have_no_successor() -> None:
    edges: dict[str, set[str]] = {}
    for (state, _), (_, after) in LEGAL.items():
        edges.setdefault(state, set()).add(after)
    seen, todo = set(), ["CONNECTING", "AWAIT_REQUEST"]
    while todo:
        state = todo.pop()
        if state not in seen:
            seen.add(state)
            todo += edges.get(state, ())
    assert seen == set(STATES)
    assert set(STATES) - set(edges) == FINAL_STATES
