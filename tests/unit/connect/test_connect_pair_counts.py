"""Delivery counts of queue pairs connected by QPN: which end offers counts, and stopped peers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.pair_harness import (
    HOST,
    End,
    Process,
    build_mpa_request,
    build_private_data,
    connect_pair_by_qpn,
    exchange_sends,
    gid_of_host,
)
from harness.peer_harness import PlainPeer
from harness.verbs_harness import (
    LIMIT,
    Rig,
    assert_counter_grows,
    counter_value,
    poll,
    temporary_settings,
    wait_until,
)
from harness.wire_peer import recv_startup_frame

from siwarp.inspect import DDPTagged, MPAReply, Opcode, Requester
from siwarp.verbs import (
    Persona,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
)

LOCAL_GID = gid_of_host(HOST)
#: A QPN below all other QPNs of these tests, so that the plain socket connects.
LOWEST_QPN = 1 << 16 | 1
ROCE = Persona.ROCE


@pytest.fixture(name="rig")
def loopback_device_rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


@contextlib.contextmanager
def connected_plain_initiator(end: End, features: int) -> Iterator[PlainPeer]:
    """Provide a plain socket that has connected as the lower QPN and announced ``features``."""
    end.to_rts((HOST, LOWEST_QPN))
    address = (HOST, end.qp.qp_num & 0xFFFF)
    with socket.create_connection(address, LIMIT, source_address=(HOST, 0)) as s:
        peer = PlainPeer(s)
        s.sendall(
            build_mpa_request(
                build_private_data(
                    (LOCAL_GID, LOWEST_QPN), (LOCAL_GID, end.qp.qp_num), features=features
                )
            )
        )
        reply = MPAReply(recv_startup_frame(s))
        assert reply.r == 0
        assert reply.private_data[6:8] == b"\0\1", "the reply does not offer delivery counts"
        # The first FPDU serves as RTR.
        peer.send_segments(bytes(DDPTagged(opcode=Opcode.RDMA_WRITE, stag=1)))
        yield peer


# ---- offers of delivery counts


@pytest.mark.parametrize("features", [0, 1, 2, 3, 0xFE, 0xFF])
def test_delivery_counts_are_used_if_both_ends_offer_them_else_confirming_reads(
    rig: Rig, features: int
) -> None:
    end = End(rig, persona=ROCE)
    end.to_init_with_receives()
    with (
        connected_plain_initiator(end, features) as peer,
        assert_counter_grows("confirm_reads", 1 - features % 2),
    ):
        end.send(b"12345678")
        if features & 1:
            assert Requester(peer.receive_segment_octets()).subcode == 5
            assert peer.receive_segment()[0].opcode == Opcode.SEND
            peer.send_segments(bytes([0xC1, 0x4F, 4, 0, 0, 0]) + struct.pack(">II", 1, 0))
        else:
            assert peer.receive_segment()[0].opcode == Opcode.SEND
            peer.send_segments(peer.build_read_response(peer.receive_read_request()))
        assert [(w.wr_id, w.status) for w in poll(end.cq)] == [(1, WCStatus.SUCCESS)]


def test_the_rtr_is_not_counted_as_a_write_in_the_delivery_counts(rig: Rig) -> None:
    end = End(rig, persona=ROCE)
    end.to_init_with_receives()
    with connected_plain_initiator(end, 1) as peer:
        peer.send_segments(bytes(Requester()), peer.build_write(b"data", end.mr.rkey, end.mr.addr))
        assert struct.unpack(">II", peer.receive_segment_octets()[6:14]) == (0, 1)
        assert end.cq.poll(1) == []


@pytest.mark.parametrize("personas", [("iwarp", "roce"), ("roce", "iwarp"), ("roce", "roce")])
def test_queue_pairs_of_any_personas_connect_by_qpn_and_exchange_messages(
    rig: Rig, personas: tuple[str, str]
) -> None:
    a, b = (End(rig, persona=Persona[name.upper()]) for name in personas)
    a.to_init_with_receives()
    b.to_init_with_receives()
    with assert_counter_grows("confirm_reads", 0), assert_counter_grows("confirm_none", 0):
        connect_pair_by_qpn(a, b)
        exchange_sends(a, b)


def connect_to_process(rig: Rig, other: Process) -> End:
    """Connect a new queue pair with persona roce to that of another process; return its end."""
    end = End(rig, persona=ROCE)
    [there] = other.run_command("ids")
    end.to_init_with_receives()
    other.run_command("begin")
    end.to_rts((there[0], there[1]))
    other.run_command("to_rts", [end.host_and_qpn])
    return end


@pytest.mark.parametrize("offers", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_delivery_counts_are_used_only_if_both_processes_enable_them(
    rig: Rig, offers: tuple[int, int]
) -> None:
    other = Process(HOST, "1", env={**os.environ, "SIWARP_DELIVERY_COUNTS": str(offers[1])})
    try:
        with temporary_settings(delivery_counts=offers[0]):
            end = connect_to_process(rig, other)
            reads, counts = counter_value("confirm_reads"), counter_value("delivery_counts_rx")
            for i in range(3):
                end.send(b"hello", i)
                assert poll(end.cq)[0].wr_id == i
            other.run_command("received", 3)
        both = all(offers)
        assert (
            counter_value("delivery_counts_rx") > counts,
            counter_value("confirm_reads") > reads,
        ) == (
            both,
            not both,
        )
    finally:
        other.close()


def test_a_queue_pair_connected_to_itself_uses_delivery_counts(rig: Rig) -> None:
    end = End(rig, persona=ROCE)
    end.to_init_with_receives()
    with assert_counter_grows("confirm_reads", 0):
        end.to_rts(end.host_and_qpn)
        for i in range(5):
            end.send(b"to itself", i)
            done = end.wait_for_sends(2)
            assert all(wc.ok for wc in done) and {wc.opcode for wc in done} == {
                WCOpcode.SEND,
                WCOpcode.RECV,
            }


# ---- order within one send queue


def test_a_send_completes_before_the_receive_of_its_answer_in_a_shared_cq(rig: Rig) -> None:
    other_rig = Rig()
    a, b = End(rig, persona=ROCE), End(other_rig, persona=ROCE)
    a.to_init_with_receives()
    b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    for i in range(8):
        a.send(b"ask", i)
        came = [wc for wc in b.wait_for_sends(1) if wc.opcode == WCOpcode.RECV]
        while not came:
            came = [wc for wc in b.wait_for_sends(1) if wc.opcode == WCOpcode.RECV]
        b.send(b"answer", i)
        done = a.wait_for_sends(2)
        assert [wc.opcode for wc in done] == [WCOpcode.SEND, WCOpcode.RECV]
        assert done[0].wr_id == i
    b.close()
    other_rig.close()


def test_reads_atomics_fenced_requests_and_writes_complete_in_order(rig: Rig) -> None:
    a, b = End(rig, persona=ROCE), End(rig, persona=ROCE)
    a.to_init_with_receives()
    b.to_init_with_receives(32)
    connect_pair_by_qpn(a, b, max_rd_atomic=4, max_dest_rd_atomic=4)
    there = RemoteBuffer(b.mr.addr + 32768, 64, b.mr.rkey)
    codes = [
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_READ,
        WROpcode.SEND,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.RDMA_WRITE_WITH_IMM,
    ]
    for i in range(20):
        fence = SendFlag.FENCE if i % 3 == 0 else 0
        a.qp.post_send(
            SendWR(
                i,
                codes[i % 5],
                sg=[a.mr.sge(40000 + 8 * i, 8)],
                remote=there,
                send_flags=SendFlag.SIGNALED | fence,
            )
        )
    done = [wc for wc in a.poll(20) if wc.opcode != WCOpcode.RECV]
    assert [(wc.wr_id, wc.status) for wc in done] == [(i, 0) for i in range(20)]


# ---- peers that are stopped or killed


def suspend_process(other: Process) -> None:
    """Stop all threads of a process and wait until all of them have stopped."""
    pid = other.process.pid
    os.kill(pid, signal.SIGSTOP)
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    for stat in stats:
        wait_until(lambda stat=stat: stat.read_text().rpartition(")")[2].split()[0] == "T")


def test_sends_to_a_stopped_peer_complete_after_the_peer_continues(rig: Rig) -> None:
    other = Process(HOST, "1")
    try:
        end = connect_to_process(rig, other)
        end.send(b"first", 1)
        assert poll(end.cq)[0].wr_id == 1
        suspend_process(other)
        for i in range(2, 5):
            end.send(b"while it is stopped", i)
        began = time.monotonic()
        while time.monotonic() - began < 0.3:
            assert end.cq.poll(1) == []
        os.kill(other.process.pid, signal.SIGCONT)
        assert [(w.wr_id, w.status) for w in poll(end.cq, 3)] == [(i, 0) for i in range(2, 5)]
        suspend_process(other)
        end.send(b"for nobody", 5)
        other.process.kill()
        assert poll(end.cq)[0].status == WCStatus.RETRY_EXC_ERR
    finally:
        other.close()


def test_the_rnr_retry_count_set_at_rts_takes_effect_at_the_peer(rig: Rig) -> None:
    """The MPA start-up usually ends before RTS, so a later message carries the new rnr_retry."""
    a, b = End(rig, persona=ROCE), End(rig, persona=ROCE)
    a.to_init_with_receives()
    b.to_init_with_receives(0)
    b.to_rts(a.host_and_qpn, min_rnr_timer=1)
    a.to_rts(b.host_and_qpn, rnr_retry=1)
    a.send(b"no receive")
    assert a.poll()[0].status == WCStatus.RNR_RETRY_EXC_ERR
