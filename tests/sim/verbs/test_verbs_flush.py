"""When either end ends a connection, both queue pairs enter ERR and their requests are flushed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.flush_harness import FLUSHED, assert_all_flushed
from harness.rc_harness import SEND, End, ListenerAndConnector
from harness.verbs_harness import assert_no_completion, poll

from siwarp.cm import CMEventType
from siwarp.verbs import Persona, QPAttr, QPState

#: The ways in which an end can end the connection.
ENDING_ACTIONS: dict[str, Callable[[End], None]] = {
    "disconnect": lambda end: end.id.disconnect(),
    "modify to ERR": lambda end: end.qp.modify(QPAttr(qp_state=QPState.ERR)),
    "close the id": lambda end: end.id.close(),
}


def post_requests_that_cannot_complete(a: End, b: End) -> None:
    """Post requests that cannot complete: receives, and Sends that are delayed at both ends."""
    a.qp.modify(QPAttr(qp_state=QPState.SQD))  # in SQD the active end starts no request
    for i in range(4):
        for end in (a, b):
            end.post_receive(wr_id=10 + i)
            # The Sends of `b` wait for the first message of `a`, before which a responder must not
            # send.
            end.post(SEND, 20 + i, length=8, flags=i % 2 * 2)


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE], ids=lambda p: p.name)
@pytest.mark.parametrize("who", ["active", "passive"])
@pytest.mark.parametrize("how", ENDING_ACTIONS)
def test_both_queue_pairs_flush_their_requests_when_one_end_ends_the_connection(
    two_device_connector: ListenerAndConnector, how: str, who: str, persona: Persona
) -> None:
    a, b = two_device_connector.connect(persona=persona)
    post_requests_that_cannot_complete(a, b)
    ENDING_ACTIONS[how](a if who == "active" else b)
    assert_all_flushed(a)
    assert_all_flushed(b)
    for cq in (a.scq, a.rcq, b.scq, b.rcq):
        assert_no_completion(cq)
    for end in (a, b):
        if not end.id.closed:
            assert end.next_cm_event().type == CMEventType.DISCONNECTED
        # Requests posted later are flushed immediately.
        end.post_receive(wr_id=30)
        end.post(SEND, 31)
        assert [(w.wr_id, w.status) for w in poll(end.rcq)] == [(30, FLUSHED)]
        assert [(w.wr_id, w.status) for w in poll(end.scq)] == [(31, FLUSHED)]


def test_a_reset_queue_pair_completes_no_request_and_its_peer_flushes(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    post_requests_that_cannot_complete(a, b)
    a.qp.modify(QPAttr(qp_state=QPState.RESET))
    assert_all_flushed(b)
    assert_no_completion(a.scq)
    assert_no_completion(a.rcq)
