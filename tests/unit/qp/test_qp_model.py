"""Random requests on queue pairs, whose completions are compared with a model after each call."""

from __future__ import annotations

import os
import random

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import wait_until

from siwarp.verbs import (
    EventType,
    Persona,
    QPAttr,
    QPState,
    SendFlag,
    SendWR,
)

RESET, INIT, RTR, RTS, SQD, SQE, ERR = QPState


SEEDS = 20 if "SANITIZER" in os.environ else 60


def random_request(rng: random.Random, a: End, b: End, number: int) -> SendWR:
    """Return a Send, Write or Read of some octets, sometimes fenced, sometimes unsignaled."""
    flags = (SendFlag.SIGNALED if rng.random() < 0.5 else 0) | rng.choice([0, 0, SendFlag.FENCE])
    opcode = rng.choice([SEND, WRITE, READ])
    size = rng.choice([0, 1, 64, 5000, 70000])
    remote = None if opcode == SEND else b.mem.remote(0, size)
    at = 1 << 17 if opcode == READ else 0  # Reads use an area that no other request sends from
    sg = [a.mem.sge(at, size)] if size else []
    return SendWR(number, opcode, sg=sg, remote=remote, send_flags=flags)


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE], ids=lambda p: p.name)
@pytest.mark.parametrize("seed", range(SEEDS // 4))
def test_requests_posted_around_sqd_complete_in_order_and_none_while_drained(
    two_device_connector: ListenerAndConnector, persona: Persona, seed: int
) -> None:
    rng = random.Random(seed)
    a, b = two_device_connector.connect(
        size=1 << 18, persona=persona, max_send_wr=256, max_recv_wr=256
    )
    for i in range(200):
        b.post_receive(wr_id=i, length=70000)
    told: list[int] = []  # wr_ids of the expected completions, in order
    found: list[int] = []

    def poll_and_check_order() -> None:
        found.extend(w.wr_id for w in a.scq.poll(256) if w.ok)
        assert found == told[: len(found)]

    for number in range(120):
        if a.qp.qp_state == RTS and rng.random() < 0.15:
            a.qp.modify(QPAttr(qp_state=SQD, en_sqd_async_notify=True))
            event = a.rig.ctx.get_async_event(10)
            assert event is not None
            with event:
                assert (event.event_type, event.element) == (EventType.SQ_DRAINED, a.qp)
            poll_and_check_order()
        done = len(found)
        wr = random_request(rng, a, b, number)
        a.qp.post_send(wr)
        if wr.send_flags & SendFlag.SIGNALED:
            told.append(number)
        poll_and_check_order()
        if a.qp.qp_state == SQD:
            assert len(found) == done, "a request completed while the queue pair was drained"
            if rng.random() < 0.3:
                a.qp.modify(QPAttr(qp_state=RTS))
    a.qp.modify(QPAttr(qp_state=RTS))
    a.post(WRITE, 999, remote=b.mem.remote())
    told.append(999)
    wait_until(lambda: poll_and_check_order() or found == told)
