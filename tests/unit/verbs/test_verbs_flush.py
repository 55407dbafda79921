"""The end of a connection, by whomever: both queue pairs are in ERR, what was posted flushes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from unit.verbs.rc_harness import SEND, End, Wire
from unit.verbs.verbs_harness import nothing, poll

from siwarp.cm import CMEventType
from siwarp.verbs import Persona, QPAttr, QPState, WCOpcode, WCStatus

FLUSHED = WCStatus.WR_FLUSH_ERR

#: How an end can end it.
HOWS: dict[str, Callable[[End], None]] = {
    "disconnect": lambda end: end.id.disconnect(),
    "modify to ERR": lambda end: end.qp.modify(QPAttr(qp_state=QPState.ERR)),
    "close the id": lambda end: end.id.close(),
}


def fill(a: End, b: End) -> None:
    """Post what cannot complete: receives, and sends that are held at both ends."""
    a.qp.modify(QPAttr(qp_state=QPState.SQD))  # so the active end begins nothing
    for i in range(4):
        for end in (a, b):
            end.recv(wr_id=10 + i)
            # b's wait for a's first message, without which a responder must not speak.
            end.post(SEND, 20 + i, length=8, flags=i % 2 * 2)


def flushed(end: End) -> None:
    """Everything completed in its order, once, in error; unsignalled sends too."""
    end.is_over()
    for cq, ids, opcode in [
        (end.rcq, range(10, 14), WCOpcode.RECV),
        (end.scq, range(20, 24), WCOpcode.SEND),
    ]:
        done = poll(cq, 4)
        assert [(w.wr_id, w.status, w.opcode) for w in done] == [(i, FLUSHED, opcode) for i in ids]
        assert all(w.qp_num == end.qp.qp_num for w in done)
        nothing(cq, 0.005)


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE], ids=lambda p: p.name)
@pytest.mark.parametrize("who", ["active", "passive"])
@pytest.mark.parametrize("how", HOWS)
def test_when_one_end_ends_it_both_flush_their_sends_and_receives(
    two: Wire, how: str, who: str, persona: Persona
) -> None:
    a, b = two.connect(persona=persona)
    fill(a, b)
    HOWS[how](a if who == "active" else b)
    flushed(a)
    flushed(b)
    for end in (a, b):
        if not end.id.closed:
            assert end.event().type == CMEventType.DISCONNECTED
        # What comes later flushes at once.
        end.recv(wr_id=30)
        end.post(SEND, 31)
        assert [(w.wr_id, w.status) for w in poll(end.rcq)] == [(30, FLUSHED)]
        assert [(w.wr_id, w.status) for w in poll(end.scq)] == [(31, FLUSHED)]


PEER = """
import signal, sys
from siwarp import cm
conn = cm.connect((sys.argv[1], int(sys.argv[2])))
print("up", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_when_the_peers_process_dies_this_end_flushes_its_sends_and_receives(
    two: Wire, how: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PEER, two.address[0], str(two.address[1])],
        stdout=subprocess.PIPE,
        text=True,
    ) as peer:
        try:
            request = two.request(60 if "SANITIZER" in os.environ else 20)
            b = End(two.passive, request.id, two.p_channel, size=1 << 12)
            b.id.accept()
            assert b.event().type == CMEventType.ESTABLISHED
            assert peer.stdout is not None and peer.stdout.readline() == "up\n"
            b.qp.modify(QPAttr(qp_state=QPState.SQD))
            for i in range(4):
                b.recv(wr_id=10 + i)
                b.post(SEND, 20 + i, length=8, flags=i % 2 * 2)
            peer.send_signal(how)
            flushed(b)
            assert b.event().type == CMEventType.DISCONNECTED
        finally:
            with contextlib.suppress(ProcessLookupError):
                peer.kill()


def test_of_an_end_that_is_reset_nothing_completes_and_the_other_flushes(two: Wire) -> None:
    a, b = two.connect()
    fill(a, b)
    a.qp.modify(QPAttr(qp_state=QPState.RESET))
    flushed(b)
    nothing(a.scq)
    nothing(a.rcq)
