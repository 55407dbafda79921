"""Persona roce: completed requests have reached the peer, failed ones report the reason.

This file's tests use real sockets; others are in tests/sim/verbs/test_verbs_roce.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import (
    poll,
    temporary_settings,
)

from siwarp.verbs import (
    Persona,
)

#: How a peer acknowledges data: by answering Reads or, if the peer is siwarp, by delivery counts.
HOW = {"by Reads": {}, "by counts": {"private_messages": True}}


@pytest.fixture(params=HOW.values(), ids=list(HOW))
def roce_acknowledgement_options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = request.param
    # without the announcement, only the program declares whether the peer supports delivery counts
    with temporary_settings(mpa_announce=0):
        yield found


def connect_with_persona_roce(connector: ListenerAndConnector, **kw: object) -> tuple[End, End]:
    return connector.connect(persona=Persona.ROCE, **kw)  # type: ignore[arg-type]


def test_requests_posted_at_both_ends_complete_in_order_with_persona_roce(
    two_device_connector: ListenerAndConnector, roce_acknowledgement_options: dict[str, Any]
) -> None:
    a, b = connect_with_persona_roce(
        two_device_connector,
        size=2 << 20,
        max_send_wr=64,
        max_recv_wr=64,
        **roce_acknowledgement_options,
    )
    for end in (a, b):
        for i in range(40):
            end.post_receive(i, offset=1 << 20, length=1 << 16)
    # Sends, sinks of Reads, targets of the peer's Writes and sources of the peer's Reads use
    # separate memory areas.
    sink, target, source, size = 1 << 18, 2 << 18, 3 << 18, 1 << 14
    for i in range(40):
        for end, other in ((a, b), (b, a)):
            opcode = (SEND, WRITE, READ)[i % 3]
            remote = other.mem.remote(source if opcode == READ else target, size)
            offset = sink if opcode == READ else 0
            end.post(opcode, i, offset=offset, length=size, remote=remote)
    for end in (a, b):
        assert [(w.wr_id, w.status) for w in poll(end.scq, 40)] == [(i, 0) for i in range(40)]
