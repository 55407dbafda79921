"""Tests of siwarp's RD against the independent peer: sections 9 and 10 of the specification."""

from __future__ import annotations

import random
import sys

import net
import pytest
from peer.link import BAD, CLEAN, Faults, open_udp_socket, receive_waiting_datagrams, run_until
from peer.ours import (
    LIMIT_S,
    SEED,
    TIMEOUT_S,
    open_siwarp_queue_pair,
    seeded_octets,
    stress_round_count,
)
from peer.rd import RdPeer
from peer.rd_ends import (
    BASE,
    MEMORY,
    QKEY,
    STAG,
    check_messages_both_ways,
    collect_siwarp_arrivals,
    siwarp_and_peer,
)
from peer.rd_wire import (
    CHALLENGE,
    GREETING_OCTETS,
    HELLO,
    VERSIONS,
    Datagram,
    encode_handshake_body,
    parse_datagram,
    parse_handshake_body,
    unused_fields_are_zero,
)
from peer.rdmap import CMP_SWAP, FETCH_ADD, Arrival
from peer.wire import append_crc, verify_and_strip_crc

from siwarp.verbs import QPAttr, QPType, RemoteBuffer, WCOpcode, WCStatus, WROpcode

pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.mark.parametrize("faults", [CLEAN, BAD], ids=["clean", "bad"])
@pytest.mark.parametrize("first", ["peer", "siwarp"])
@pytest.mark.clause("DGRAM-RD-12", "DGRAM-RDV-1", "DGRAM-RDV-3")
def test_rd_messages_arrive_whole_once_and_in_order(faults: Faults, first: str) -> None:
    check_messages_both_ways(faults, first)


@pytest.mark.clause("DGRAM-RD-3", "DGRAM-RDV-4")
def test_a_peer_writes_reads_and_executes_atomics_in_siwarps_memory() -> None:
    count = stress_round_count(12, 1000)
    rng = random.Random(SEED)
    with siwarp_and_peer(BAD) as both:
        talk = both.peer.conversation_with(both.link.near)
        rkey, base = both.region.rkey, both.region.iova
        wanted = bytearray(MEMORY)
        reads, adds, told = [], [], []
        for i in range(count):
            payload = seeded_octets(i, rng.randrange(1, 20_000))
            at = rng.randrange(64, MEMORY - len(payload))
            wanted[at : at + len(payload)] = payload
            value = i.to_bytes(4, "big")
            talk.write(rkey, base + at, payload, immediate=value)
            told.append(Arrival(b"", value, len(payload)))
            length = rng.randrange(10_000)
            from_ = rng.randrange(64, MEMORY - length)
            reads.append((talk.read(rkey, base + from_, length), bytes(wanted[from_:][:length])))
            adds.append(talk.atomic(FETCH_ADD, rkey, base + 8, i, mask=0))
            # The next Write must not overtake this Read, because requests take effect in order.
            both.run_until(lambda: reads[-1][0].is_done() and adds[-1].is_done())
        both.run_until(lambda: both.peer.is_idle() and len(both.ours.got) == count)
        assert collect_siwarp_arrivals(both.ours) == told
        assert all(read.result == there for read, there in reads)
        total = 0
        for i, add in enumerate(adds):
            assert int.from_bytes(add.result, sys.byteorder) == total
            total += i
        swap = talk.atomic(CMP_SWAP, rkey, base + 8, 77, compare=total)
        missed = talk.atomic(CMP_SWAP, rkey, base + 8, 99, compare=total)
        both.run_until(lambda: swap.is_done() and missed.is_done())
        assert int.from_bytes(missed.result, sys.byteorder) == 77
        assert int.from_bytes(both.region.read(8, 8), sys.byteorder) == 77
        assert both.region.read(MEMORY - 64, 64) == bytes(wanted[64:])


@pytest.mark.clause("DGRAM-RD-21", "DGRAM-RDV-9")
def test_siwarp_writes_reads_and_executes_atomics_in_the_peers_memory() -> None:
    count = stress_round_count(12, 1000)
    rng = random.Random(SEED)
    with siwarp_and_peer(BAD) as both:
        ours, theirs = both.ours, both.theirs.octets
        wanted = bytearray(MEMORY)
        sink = ours.register_memory(1 << 15)
        for i in range(count):
            payload = seeded_octets(i, rng.randrange(1, 30_000))
            at = rng.randrange(64, MEMORY - len(payload))
            wanted[at : at + len(payload)] = payload
            where = both.peer_buffer(at, len(payload))
            ours.post_payload(
                payload, WROpcode.RDMA_WRITE_WITH_IMM, ah=both.ah, remote=where, imm_data=i
            )
            length = rng.randrange(1, 1 << 15)
            from_ = rng.randrange(64, MEMORY - length)
            ours.post_request(
                WROpcode.RDMA_READ,
                sink.sge(0, length),
                ah=both.ah,
                remote=both.peer_buffer(from_, length),
            )
            both.run_until(lambda i=i: len(ours.sent) == 3 * i + 2)
            assert sink.read(length) == bytes(wanted[from_ : from_ + length])
            ours.post_request(
                WROpcode.ATOMIC_FETCH_AND_ADD,
                sink.sge(0, 8),
                ah=both.ah,
                remote=both.peer_buffer(8, 8),
                compare_add=i,
            )
            both.run_until(lambda i=i: len(ours.sent) == 3 * i + 3)
            before = int.from_bytes(sink.read(8), sys.byteorder)
            assert before == i * (i - 1) // 2
        assert all(wc.ok for wc in ours.sent)
        both.run_until(lambda: len(both.peer.arrivals) == count)
        assert [a.immediate for a in both.peer.arrivals] == [
            i.to_bytes(4, sys.byteorder) for i in range(count)
        ]
        assert theirs[64:] == wanted[64:]


@pytest.mark.clause("DGRAM-RDV-7", "DGRAM-RDV-8")
def test_invalid_accesses_of_a_peer_are_refused_and_its_valid_requests_complete() -> None:
    with siwarp_and_peer(BAD) as both:
        talk = both.peer.conversation_with(both.link.near)
        rkey, base = both.region.rkey, both.region.iova
        bad_write = talk.write(rkey ^ 1, base, bytes(5000))
        bad_read = talk.read(rkey, base + MEMORY - 10, 20)
        bad_atomic = talk.atomic(FETCH_ADD, rkey ^ 1, base, 1)
        good = talk.read(rkey, base, 100)
        talk.send(b"behind")
        both.run_until(lambda: both.peer.is_idle() and good.is_done() and bool(both.ours.got))
        both.run_until(lambda: all(r.error for r in (bad_write, bad_read, bad_atomic)))
        errors = [request.error for request in (bad_write, bad_read, bad_atomic)]
        assert [(e.layer, e.type, e.code) for e in errors if e] == [
            (1, 1, 0),
            (0, 1, 1),
            (0, 1, 0),
        ]
        assert len(errors[1].rdmap_header) == 28
        assert good.result == bytes(100)
        assert [data for _, data in both.ours.got] == [b"behind"]


@pytest.mark.clause("DGRAM-RDV-8")
def test_an_rd_read_that_the_peer_refuses_completes_with_an_access_error() -> None:
    with siwarp_and_peer(BAD) as both:
        nowhere = RemoteBuffer(BASE, 100, STAG + 1)
        both.ours.post_payload(bytes(100), WROpcode.RDMA_WRITE, ah=both.ah, remote=nowhere)
        sink = both.ours.register_memory(100)
        beyond = both.peer_buffer(MEMORY - 50, 100)
        both.ours.post_request(WROpcode.RDMA_READ, sink.sge(), ah=both.ah, remote=beyond)
        both.ours.post_payload(b"behind", ah=both.ah)
        both.run_until(lambda: len(both.ours.sent) == 3 and bool(both.peer.arrivals))
        assert [wc.status for wc in both.ours.sent][1:] == [
            WCStatus.REM_ACCESS_ERR,
            WCStatus.SUCCESS,
        ]
        assert both.peer.arrivals[0].payload == b"behind"
        assert len(both.peer.get_or_create_rd_pair(both.link.near).talk.refused) == 2


@pytest.mark.clause("DGRAM-RD-37", "DGRAM-RDV-17")
def test_a_send_waits_for_a_receive_without_delaying_read_responses() -> None:
    """Check that a peer without a receive reports NOT_READY, and that its own Read is answered."""
    with siwarp_and_peer(BAD, receives=0) as both:
        talk = both.peer.conversation_with(both.link.near)
        talk.send(b"hello")
        both.run_until(lambda: bool(both.ours.got))
        both.ours.post_payload(seeded_octets("held", 10_000), ah=both.ah)
        pair = both.peer.get_or_create_rd_pair(both.link.near)
        both.run_until(lambda: pair.not_ready)
        read = talk.read(both.region.rkey, both.region.iova, 5000)
        both.run_until(read.is_done)
        assert both.ours.sent == [] and both.peer.arrivals == []
        both.peer.receives = 1
        both.run_until(lambda: len(both.ours.sent) == 1)
        assert [a.payload for a in both.peer.arrivals] == [seeded_octets("held", 10_000)]


@pytest.mark.clause("DGRAM-RDV-5", "DGRAM-RDV-17", "DGRAM-RDV-19")
def test_siwarp_reports_a_missing_receive_and_accepts_the_send_later() -> None:
    with siwarp_and_peer(BAD) as both:
        talk = both.peer.conversation_with(both.link.near)
        slots, both.ours.held = 64, True
        for i in range(slots + 3):
            talk.send(b"%d" % i)
        pair = both.peer.get_or_create_rd_pair(both.link.near)
        both.run_until(lambda: len(both.ours.got) == slots and pair.peer_not_ready > 0)
        assert pair.peer_rnr_timer == 12  # 0.64 ms, the default of min_rnr_timer
        both.theirs.octets[:100] = seeded_octets("read", 100)
        sink = both.ours.register_memory(100)
        both.ours.post_request(
            WROpcode.RDMA_READ, sink.sge(), ah=both.ah, remote=both.peer_buffer(0, 100)
        )
        # the Read Response overtakes the waiting Sends
        both.run_until(lambda: len(both.ours.sent) == 1)
        assert sink.read() == seeded_octets("read", 100)
        assert not both.peer.is_idle() and len(both.ours.got) == slots
        both.ours.post_held_receives()
        both.run_until(both.peer.is_idle)
        both.run_until(lambda: len(both.ours.got) == slots + 3)
        assert [int(data) for _, data in both.ours.got] == list(range(slots + 3))


@pytest.mark.clause("DGRAM-RDV-20")
def test_exhausted_rnr_retries_of_siwarp_end_the_incarnation_with_reason_5() -> None:
    with siwarp_and_peer(CLEAN, QPAttr(qkey=QKEY, rnr_retry=2), receives=0, rnr_timer=14) as both:
        both.ours.post_payload(b"nobody takes this", ah=both.ah)
        both.ours.post_payload(b"nor this", ah=both.ah)
        both.run_until(lambda: len(both.ours.sent) == 2)
        statuses = [wc.status for wc in both.ours.sent]
        assert statuses == [WCStatus.RNR_RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR]
        both.run_until(lambda: both.peer.pairs[both.link.near].ended == 5)
        assert both.peer.arrivals == []
        both.peer.receives = 1
        both.ours.post_payload(b"this", ah=both.ah)  # this message starts another incarnation
        both.run_until(lambda: len(both.ours.sent) == 3 and bool(both.peer.arrivals))
        assert both.ours.sent[2].ok


@pytest.mark.clause("DGRAM-RD-20", "DGRAM-RD-40")
def test_siwarp_does_not_exceed_a_small_credit() -> None:
    """Check the credit: `run_until` fails if siwarp sends a segment beyond the granted credit."""
    with siwarp_and_peer(BAD, credit=3) as both:
        payload = seeded_octets("long", 100_000)
        both.ours.post_payload(payload, ah=both.ah)
        both.run_until(lambda: len(both.ours.sent) == 1)
        assert both.peer.arrivals == [Arrival(payload, None, len(payload))]


@pytest.mark.clause("DGRAM-RD-6", "DGRAM-RD-7", "DGRAM-INST-4")
def test_a_restarted_peer_is_a_new_incarnation() -> None:
    with siwarp_and_peer(BAD) as both:
        both.peer.conversation_with(both.link.near).send(b"before")
        both.run_until(lambda: both.peer.is_idle() and len(both.ours.got) == 1)
        with open_udp_socket() as sock:
            first, both.peer = both.peer, RdPeer(sock, QKEY, "again")
            both.peer.conversation_with(both.link.near).send(b"after")
            both.run_until(lambda: both.peer.is_idle() and len(both.ours.got) == 2)
            both.ours.post_payload(b"welcome back", ah=both.ah)
            both.run_until(lambda: bool(both.peer.arrivals))
            assert [data for _, data in both.ours.got] == [b"before", b"after"]
            assert first.arrivals == []
            told = [(r.peer, r.instance) for r in both.ours.qp.restarts()]
            assert told == [(both.link.far, both.peer.instance)]
            assert first.instance != both.peer.instance


@pytest.mark.clause("DGRAM-RD-9")
def test_a_restarted_siwarp_ends_the_incarnation_of_its_former_instance() -> None:
    """Check that siwarp's BYE ends the old incarnation and that the next message starts another."""
    with siwarp_and_peer(CLEAN) as both:
        both.peer.conversation_with(both.link.near).send(b"before")
        both.run_until(lambda: both.peer.is_idle() and len(both.ours.got) == 1)
        old = both.peer.get_or_create_rd_pair(both.link.near)
        with open_siwarp_queue_pair(QPType.RD, attr=QPAttr(qkey=QKEY)) as again:
            both.ours, before = again, both.ours
            both.link.siwarp = again.qp.addr
            lost = old.talk.send(b"to nobody")
            both.run_until(lambda: old.ended == 1)
            assert lost.failed
            both.peer.conversation_with(both.link.near).send(b"after")
            both.run_until(lambda: both.peer.is_idle() and bool(again.got))
            assert [data for _, data in again.got] == [b"after"]
            both.ours = before


#: A fault plan that loses 30% of the datagrams.
LOSSY = Faults(loss=0.3, double=0.05, reorder=0.1)


@pytest.mark.clause("DGRAM-BYE-1", "DGRAM-BYE-2", "DGRAM-BYE-3")
def test_siwarp_closes_immediately_and_acknowledges_all_messages_it_received() -> None:
    with siwarp_and_peer(LOSSY) as both:
        talk = both.peer.conversation_with(both.link.near)
        pair = both.peer.get_or_create_rd_pair(both.link.near)
        requests = [talk.send(b"%d" % i) for i in range(12)]
        both.run_until(lambda: len(both.ours.got) == 12)
        closing_end = net.current_simulated_world().spawn(both.ours.qp.close)
        steps = [both.peer.process_datagrams_and_run_timers, both.link.forward_datagrams]
        run_until(lambda: pair.ended is not None, steps, both.link.sockets(), LIMIT_S)
        run_until(lambda: closing_end.done(), steps, both.link.sockets(), LIMIT_S)
        assert pair.ended == 0 and both.peer.wrong == []
        assert [request.failed for request in requests] == [False] * 12


@pytest.mark.clause("DGRAM-BYE-1", "DGRAM-BYE-2")
def test_siwarp_completes_requests_that_a_closing_peer_received() -> None:
    with siwarp_and_peer(LOSSY) as both:
        for i in range(12):
            both.ours.post_payload(b"%d" % i, ah=both.ah)
        both.run_until(lambda: len(both.peer.arrivals) == 12)
        pair = both.peer.get_or_create_rd_pair(both.link.near)
        both.peer.close()
        both.run_until(lambda: len(both.ours.sent) == 12 and pair.state == "closed")
        assert all(wc.ok for wc in both.ours.sent)
        assert pair.answered


@pytest.mark.clause("DGRAM-REC-16", "DGRAM-REC-17")
def test_write_records_arrive_whole() -> None:
    with siwarp_and_peer(BAD) as both:
        payload = seeded_octets("record", 50_000)
        where = both.peer_buffer(100, len(payload))
        both.ours.post_payload(payload, WROpcode.RDMA_WRITE_RECORD, ah=both.ah, remote=where)
        both.run_until(lambda: len(both.ours.sent) == 1)
        assert both.ours.sent[0].ok and both.ours.sent[0].opcode == WCOpcode.RDMA_WRITE
        (arrival,) = both.peer.arrivals
        assert arrival.record and (arrival.record.to, arrival.octets) == (BASE + 100, 50_000)
        assert bytes(both.theirs.octets[100:50_100]) == payload


def build_hello(body: bytes, version: int = 1) -> bytes:
    """Build a HELLO datagram that states the given version in octet 0 only."""
    made = bytearray(verify_and_strip_crc(Datagram(HELLO, QKEY, 77, 0, body=body).octets()))
    made[0] = HELLO << 4 | version << 2 | 2
    return append_crc(bytes(made))


@pytest.mark.clause("DGRAM-RD-4", "DGRAM-EXT-2", "DGRAM-EXT-5")
def test_the_answer_to_a_hello_is_no_longer_than_the_hello() -> None:
    padded = encode_handshake_body({}).ljust(GREETING_OCTETS, b"\0")
    endless = b"\x02\0\xff\xff".ljust(GREETING_OCTETS, b"\0")
    with siwarp_and_peer(CLEAN) as both:
        answers: list[bytes] = []

        def collect_answers() -> None:
            answers.extend(datagram for datagram, _ in receive_waiting_datagrams(both.peer.sock))
            both.ours.poll_completions()

        def send_and_get_single_answer(*questions: bytes) -> Datagram:
            """Send several datagrams, and return the only datagram that answers them."""
            answers.clear()
            for question in questions:
                both.peer.sock.sendto(question, both.ours.qp.addr)
            run_until(lambda: bool(answers), [collect_answers], [both.peer.sock])
            run_until(lambda: True, [collect_answers], [])
            assert len(answers) == 1 and len(answers[0]) <= len(padded) + 40
            return parse_datagram(answers[0])

        challenge = send_and_get_single_answer(
            build_hello(padded[:-1]), build_hello(endless), build_hello(padded)
        )
        assert (challenge.type, challenge.dest) == (CHALLENGE, 77) and challenge.source
        again = send_and_get_single_answer(build_hello(padded))
        assert again.source == challenge.source  # repeated HELLOs get the same epoch (DGRAM-MEET-2)
        said, cookie = parse_handshake_body(challenge.body)
        assert said.longest_segment >= 1160 and len(cookie) == 20
        versions = send_and_get_single_answer(build_hello(padded, version=3))
        assert (versions.type, versions.dest, versions.source) == (VERSIONS, 77, 0)
        assert versions.body[0] == 1 << 1 and unused_fields_are_zero(versions)
