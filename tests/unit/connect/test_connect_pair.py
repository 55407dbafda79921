"""RC queue pairs that connect by GID and QPN (spec/rc-pairing.md).

Tests of time-outs are in tests/sim/test_sim_rc_pairing.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.descriptors import count_open_descriptors
from harness.pair_harness import HOST, End, Process, exchange_sends, has_connection, is_in_state
from harness.verbs_harness import Rig, wait_until

from siwarp.verbs import QP as QueuePair
from siwarp.verbs import (
    Persona,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    WCStatus,
)


@pytest.fixture
def other_process() -> Iterator[Process]:
    """Another process with one queue pair."""
    made = Process(HOST, "1")
    yield made
    made.close()


def test_queue_pairs_of_two_processes_connect_by_qpn_in_both_orders_of_qpns(
    rig: Rig, other_process: Process
) -> None:
    for _ in range(2):
        (theirs,) = other_process.run_command("ids")
        mine = End(rig)
        mine.to_init_with_receives()
        other_process.run_command("begin")
        other_process.run_command("to_rts", [mine.host_and_qpn])
        mine.to_rts(tuple(theirs))
        mine.send(b"hello")
        other_process.run_command("send", "to you, too")
        assert other_process.run_command("received", 2) == ["hello"]
        assert all(wc.ok for wc in mine.wait_for_sends(2))
        other_process.run_command("reset")


# ---- connected and disconnected peers


def test_sends_to_a_killed_peer_complete_with_retry_exceeded(
    rig: Rig, other_process: Process
) -> None:
    """The time until a killed peer is detected is tested in tests/sim/test_sim_rc_pairing.py."""
    mine = End(rig, persona=Persona.ROCE)
    (theirs,) = other_process.run_command("ids")
    mine.to_init_with_receives()
    other_process.run_command("begin")
    other_process.run_command("to_rts", [mine.host_and_qpn])
    mine.to_rts(tuple(theirs))
    mine.send(b"hello")
    assert mine.wait_for_sends(1)[0].ok
    assert other_process.run_command("received", 1) == ["hello"]
    other_process.close()
    mine.send(b"anybody?", 10)
    first = mine.wait_for_sends(1)[0]
    assert (first.wr_id, first.status) == (10, WCStatus.RETRY_EXC_ERR)
    wait_until(lambda: is_in_state(mine, QPState.ERR))


def test_a_qpn_holds_a_tcp_port_that_255_queue_pairs_share_and_an_index(rig: Rig) -> None:
    cq = rig.create_cq()
    init = QPInitAttr(QPType.RC, scq=cq, rcq=cq, by_qpn=True)
    before = count_open_descriptors()
    made = [QueuePair(rig.pd, init) for _ in range(256)]
    ports = {qp.qp_num & 0xFFFF for qp in made}
    assert len(ports) == 2 and len({qp.qp_num for qp in made}) == 256
    assert {qp.qp_num >> 16 for qp in made[:255]} == set(range(1, 256))
    per_port = (count_open_descriptors() - before) // 2
    assert 1 <= per_port <= len(rig.ctx.query_info().addresses)
    freed = made.pop(10)
    number = freed.qp_num
    freed.close()
    again = QueuePair(rig.pd, init)
    assert again.qp_num & 0xFFFF in ports and again.qp_num >> 16 != 0
    assert number not in [qp.qp_num for qp in made]
    for qp in [*made, again]:
        qp.close()
    assert count_open_descriptors() == before


def test_destroying_a_queue_pair_at_any_stage_of_connecting_by_qpn_leaks_nothing(rig: Rig) -> None:
    fds = count_open_descriptors()
    for stage in ("RESET", "INIT", "connecting", "kept", "paired", "posted", "lost", "ERR"):
        a, b = sorted((End(rig), End(rig)), key=lambda end: end.qp.qp_num)
        if stage != "RESET":
            a.to_init_with_receives()
        before = count_open_descriptors()
        if stage in ("kept", "connecting", "paired", "posted", "lost", "ERR"):
            a.to_rts(b.host_and_qpn)
        if stage == "kept":
            wait_until(lambda before=before: count_open_descriptors() >= before + 2)
            # Closing the queue pair also closes the MPA Request that it holds.
            b.close()
        if stage in ("paired", "lost", "ERR"):
            b.to_init_with_receives()
            b.to_rts(a.host_and_qpn)
            exchange_sends(a, b)
        if stage == "posted":
            a.send(b"waits")
        if stage == "lost":
            b.close()
            wait_until(lambda a=a: not has_connection(a))
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
    wait_until(lambda: count_open_descriptors() == fds)
