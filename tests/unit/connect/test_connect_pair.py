"""RC queue pairs that connect by GID and QPN: spec/rc-pairing.md.

Tests in which time passes are in tests/sim/test_sim_rc_pairing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.pair_harness import HOST, End, Process, exchange, has_stream, in_state
from harness.verbs_harness import Rig, until

from siwarp.verbs import QP as QueuePair
from siwarp.verbs import (
    Persona,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    WCStatus,
)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def other() -> Iterator[Process]:
    """Another process with one queue pair."""
    made = Process(HOST, "1")
    yield made
    made.close()


def test_two_processes_in_both_orders_of_numbers(rig: Rig, other: Process) -> None:
    for _ in range(2):
        (theirs,) = other.ask("ids")
        mine = End(rig)
        mine.begin()
        other.ask("begin")
        other.ask("to_rts", [mine.name])
        mine.to_rts(tuple(theirs))
        mine.send(b"hello")
        other.ask("send", "to you, too")
        assert other.ask("received", 2) == ["hello"]
        assert all(wc.ok for wc in mine.sent(2))
        other.ask("reset")


# ---- connected and disconnected peers


def test_a_peer_that_is_killed(rig: Rig, other: Process) -> None:
    """The time until a killed peer is noticed is tested in test_sim_rc_pairing.py."""
    mine = End(rig, persona=Persona.ROCE)
    (theirs,) = other.ask("ids")
    mine.begin()
    other.ask("begin")
    other.ask("to_rts", [mine.name])
    mine.to_rts(tuple(theirs))
    mine.send(b"hello")
    assert mine.sent(1)[0].ok
    assert other.ask("received", 1) == ["hello"]
    other.close()
    mine.send(b"anybody?", 10)
    first = mine.sent(1)[0]
    assert (first.wr_id, first.status) == (10, WCStatus.RETRY_EXC_ERR)
    until(lambda: in_state(mine, QPState.ERR))


def test_a_number_is_an_index_and_a_port_that_255_share(rig: Rig) -> None:
    cq = rig.cq()
    init = QPInitAttr(QPType.RC, scq=cq, rcq=cq, by_qpn=True)
    before = descriptors()
    made = [QueuePair(rig.pd, init) for _ in range(256)]
    ports = {qp.qp_num & 0xFFFF for qp in made}
    assert len(ports) == 2 and len({qp.qp_num for qp in made}) == 256
    assert {qp.qp_num >> 16 for qp in made[:255]} == set(range(1, 256))
    per_port = (descriptors() - before) // 2
    assert 1 <= per_port <= len(rig.ctx.query_info().addresses)
    freed = made.pop(10)
    number = freed.qp_num
    freed.close()
    again = QueuePair(rig.pd, init)
    assert again.qp_num & 0xFFFF in ports and again.qp_num >> 16 != 0
    assert number not in [qp.qp_num for qp in made]
    for qp in [*made, again]:
        qp.close()
    assert descriptors() == before


def test_a_queue_pair_is_destroyed_at_every_stage_of_connecting(rig: Rig) -> None:
    fds = descriptors()
    for stage in ("RESET", "INIT", "connecting", "kept", "paired", "posted", "lost", "ERR"):
        a, b = sorted((End(rig), End(rig)), key=lambda end: end.qp.qp_num)
        if stage != "RESET":
            a.begin()
        before = descriptors()
        if stage in ("kept", "connecting", "paired", "posted", "lost", "ERR"):
            a.to_rts(b.name)
        if stage == "kept":
            until(lambda before=before: descriptors() >= before + 2)
            b.close()  # closes the queue pair together with the MPA Request that it holds
        if stage in ("paired", "lost", "ERR"):
            b.begin()
            b.to_rts(a.name)
            exchange(a, b)
        if stage == "posted":
            a.send(b"waits")
        if stage == "lost":
            b.close()
            until(lambda a=a: not has_stream(a))
        if stage == "ERR":
            a.qp.modify(QPAttr(qp_state=QPState.ERR))
        for end in (a, b):
            if stage not in ("kept", "lost") or end is a:
                end.close()
            end.mr.close()
            channel = end.cq.channel
            end.cq.close()
            assert channel is not None
            channel.close()
    until(lambda: descriptors() == fds)
