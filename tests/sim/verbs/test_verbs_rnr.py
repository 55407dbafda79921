"""A Send without a receive on real sockets; tests of times are in tests/sim/test_sim_rc_rnr.py."""

from __future__ import annotations

import errno
import socket

import net
import pytest
from harness.peer_harness import connected_plain_peer
from harness.rc_harness import SEND, ListenerAndConnector
from harness.verbs_harness import (
    ALL_ACCESS,
    assert_counter_grows,
    assert_no_completion,
    octet_pattern,
    poll,
)
from hostile.vanishing import PAGE, RemovableMemory

from siwarp.cm import CMEventType
from siwarp.verbs import Persona, QPAttr, RecvWR, WCStatus

FLUSHED = WCStatus.WR_FLUSH_ERR
NO_BUFFER = 1 << 16 | 2 << 8 | 2


def test_a_send_of_persona_roce_waits_for_a_receive_and_fails_after_its_rnr_retries(
    two_device_connector: ListenerAndConnector,
) -> None:
    """Check lower bounds of the times; tests/sim/test_sim_rc_rnr.py checks the upper bounds."""
    a, b = two_device_connector.connect(persona=Persona.ROCE)
    a.mem.view[:1000] = octet_pattern(1000)
    with assert_counter_grows("rnr_unexpected", 1):
        a.post(SEND, 1, length=1000)
    b.post_receive(wr_id=9)
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.ok, wc.byte_len) == (9, True, 1000)
    assert b.mem.read(1000) == octet_pattern(1000)
    assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(1, WCStatus.SUCCESS)]
    a.qp.modify(QPAttr(rnr_retry=1))
    b.qp.modify(QPAttr(min_rnr_timer=0))  # the RNR timer 0 is 655 ms
    with assert_counter_grows("rnr_expired", 1):
        start = net.now()
        a.post(SEND, 2, length=8)
        assert poll(a.scq)[0].status == WCStatus.RNR_RETRY_EXC_ERR
        assert net.now() - start >= 0.655
    for end in (a, b):
        end.wait_for_error_state()
        assert end.next_cm_event().wire_error == NO_BUFFER


def test_a_receive_into_unmapped_memory_moves_the_queue_pair_to_err(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(persona=Persona.ROCE)
    memory = RemovableMemory(2 * PAGE, "unmapped")
    mr = b.rig.reg_mr(memory.buffer, ALL_ACCESS)
    memory.remove_pages(PAGE)
    with assert_counter_grows("rnr_unexpected", 1):
        a.post(SEND, 1, length=PAGE + 1)
        assert_no_completion(a.scq)
    b.qp.post_recv(RecvWR(7, sg=[mr.sge()]))
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.status) == (7, WCStatus.LOC_PROT_ERR)
    b.wait_for_error_state()
    a.wait_for_error_state()
    mr.close()
    memory.close()


def test_reads_of_a_plain_peer_are_answered_while_its_send_waits(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        rkey, addr = a.mem.rkey, a.mem.addr
        peer.send_segments(
            peer.build_send(b"early"),
            peer.build_write(b"written!", rkey, addr),
            peer.build_read_request(8, rkey, addr),
            peer.build_read_request(0, 1, 0),
        )
        _, octets = peer.receive_segment()
        assert octets == b"written!"
        assert peer.is_silent()
        a.post_receive(1, 64, 64)
        assert poll(a.rcq)[0].byte_len == 5
        _, octets = peer.receive_segment()
        assert octets == b""
        assert a.mem.read(5, 64) == b"early"


# ---- Sends that are stored regardless of the persona


@pytest.mark.parametrize("where", ["placed", "kept", "written"])
def test_the_end_of_a_stream_within_a_message_is_reported_as_a_reset(
    connector: ListenerAndConnector, where: str
) -> None:
    with connected_plain_peer(connector, keep_unexpected=True) as (a, peer):
        if where == "written":
            peer.send_segments(peer.build_write(b"a part", a.mem.rkey, a.mem.addr, l=0))
        else:
            peer.send_segments(peer.build_send(b"whole"), peer.build_send(b"a part", l=0))
        if where == "placed":
            a.post_receive(1), a.post_receive(2)
        peer.sock.shutdown(socket.SHUT_WR)
        if where == "kept":
            assert_no_completion(a.rcq, 0.1)
            a.post_receive(1), a.post_receive(2)
        if where != "written":
            assert [(wc.wr_id, wc.status) for wc in poll(a.rcq, 2)] == [(1, 0), (2, FLUSHED)]
        event = a.next_cm_event()
        assert (event.type, event.status) == (CMEventType.DISCONNECTED, errno.ECONNRESET)
