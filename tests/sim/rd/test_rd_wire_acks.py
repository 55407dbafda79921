"""RD on the wire: false acknowledgements, every header field, and limits of datagrams and peers."""

from __future__ import annotations

import errno
import random
from typing import Any

import net
import pytest
from _siwarp_layers import ffi, lib
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.llp.llp_harness import Counters, temporary_setting
from unit.rd.rd_kit import OFFER, Endpoint, ScapyRdPeer, poll_until, send_all_segments

from siwarp.inspect.crc import crc32c
from siwarp.inspect.rd import (
    COOKIE_LEN,
    CRC_LEN,
    RDDatagram,
    RDType,
    cookie_in_handshake_body,
    make_ack_body,
)

#: A generator of random octets for the bodies of datagrams.
RNG = random.Random(4)


def accept_with_queued_segments(
    e: Endpoint, s: ScapyRdPeer, n: int, **fields: Any
) -> tuple[Any, list[RDDatagram]]:
    peer = e.get_or_create_peer(s.address)
    for i in range(n):
        assert e.send(peer, b"%04d" % i) == 1
    s.accept_connection(peer, **fields)
    return peer, [
        s.receive_datagram(RDType.DATA) for _ in range(n if fields.get("credit", 1) else 0)
    ]


@pytest.mark.clause("DGRAM-RD-3", "DGRAM-RD-18")
def test_an_acknowledgement_of_datagrams_that_were_never_sent_is_dropped(unconnected_endpoint):
    e, s = unconnected_endpoint
    peer, sent = accept_with_queued_segments(e, s, 4)
    assert [d.psn for d in sent] == [(s.other + i) & 0xFFFFFFFF for i in range(4)]
    counters = Counters()
    for lie in (5, 4096, 0x7FFFFFFF):
        s.send_datagram(RDType.ACK, acknowledged=(s.other + lie) & 0xFFFFFFFF)
    poll_until(lambda: counters["drop_rd_ack"] == 3, e)
    assert lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 0
    s.send_datagram(RDType.ACK, acknowledged=(s.other + 4) & 0xFFFFFFFF)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 4, e)


@pytest.mark.clause("DGRAM-RD-18")
def test_ack_ranges_of_datagrams_that_were_never_sent_have_no_effect(unconnected_endpoint):
    e, s = unconnected_endpoint
    peer, _ = accept_with_queued_segments(e, s, 4)
    s.send_datagram(RDType.ACK, body=b"\xff" * 512, credit=65535)
    s.send_datagram(RDType.ACK, body=b"\xff" * 9000, credit=65535)
    assert e.send(peer, b"more") == 1
    new = s.receive_datagram(RDType.DATA)
    # On a slow machine, earlier datagrams are retransmitted by their timers.
    while new.body.startswith(b"000"):
        new = s.receive_datagram(RDType.DATA)
    assert new.body == b"more"
    s.send_datagram(RDType.ACK, acknowledged=(s.other + 5) & 0xFFFFFFFF)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 5, e)


@pytest.mark.clause("DGRAM-RD-19")
def test_a_datagram_that_three_later_datagrams_overtook_is_retransmitted_immediately(
    unconnected_endpoint,
):
    e, s = unconnected_endpoint
    peer = e.get_or_create_peer(s.address)
    for i in range(8):
        assert e.send(peer, b"%04d" % i) == 1
    s.other = first = s.receive_datagram(RDType.HELLO).source_epoch
    s.send_datagram(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
    # Only the second ECHO is answered, so that no round trip is measured and timers are long.
    s.receive_datagram(RDType.ECHO), s.receive_datagram(RDType.ECHO)
    counters = Counters()
    s.send_datagram(RDType.ACK)
    for _ in range(8):
        s.receive_datagram(RDType.DATA)
    # The machine may be so slow that a timer expired first.
    stood_still = counters["rd_retransmits"] > 0
    s.send_datagram(
        RDType.ACK, body=make_ack_body(first, [(first + i) & 0xFFFFFFFF for i in (1, 2, 3)])
    )
    for _ in range(100):
        e.poll_once()
    if not stood_still:
        s.sock.setblocking(False)
        again = RDDatagram(s.sock.recv(65536))
    else:
        again = s.receive_datagram(RDType.DATA)
        while again.psn != first:
            again = s.receive_datagram(RDType.DATA)
    assert (again.type, again.psn, again.body) == (RDType.DATA, first, b"0000")


@pytest.mark.clause("DGRAM-RD-20")
def test_an_endpoint_without_credit_sends_no_data_but_probes_the_peer(unconnected_endpoint):
    e, s = unconnected_endpoint
    peer, _ = accept_with_queued_segments(e, s, 3, credit=0)
    probe = s.receive_datagram(RDType.PROBE)
    assert lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 0
    s.send_datagram(RDType.ACK, psn=probe.psn, rd_flags="PROBED", credit=2)
    assert [s.receive_datagram(RDType.DATA).body for _ in range(2)] == [b"0000", b"0001"]
    s.send_datagram(RDType.ACK, acknowledged=(s.other + 2) & 0xFFFFFFFF, credit=2)
    assert s.receive_datagram(RDType.DATA).body == b"0002"


@pytest.mark.clause("DGRAM-RD-21")
def test_a_probe_is_answered_with_its_psn(connected_endpoint):
    _, s = connected_endpoint
    s.send_datagram(RDType.PROBE, psn=4711, body=bytes(1000))
    ack = s.receive_datagram(RDType.ACK)
    assert (ack.psn, ack.rd_flags) == (4711, "PROBED")


@pytest.mark.clause("DGRAM-RD-13")
def test_repeated_attempts_to_deliver_a_held_segment_cause_no_acknowledgements(
    connected_endpoint,
):
    e, s = connected_endpoint
    e.judge = lambda _who, _data: "hold"
    looked = []
    s.send_datagram(RDType.DATA, body=b"held")
    s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=b"behind it")
    poll_until(lambda: looked.append(1) or len(looked) > 20, e)
    s.discard_datagrams_until_silent()
    peer, counters = e.get_or_create_peer(s.address), Counters()
    for _ in range(1000):
        lib.siw_rd_resume_delivery(peer, lib.SIW_RD_REQUESTS)
        e.poll_once()
    assert counters["rd_acks"] == 0
    e.judge = lambda _who, _data: "take"
    lib.siw_rd_resume_delivery(peer, lib.SIW_RD_REQUESTS)
    poll_until(lambda: e.received_data() == [b"held", b"behind it"], e)
    assert s.receive_datagram(RDType.ACK).acknowledged == s.epoch + 2


# ---- every header field


@pytest.mark.clause("DGRAM-RD-28")
@settings(
    max_examples=250,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    kind=st.sampled_from(list(RDType)),
    field=st.sampled_from([f.name for f in RDDatagram.fields_desc if f.name != "crc"]),
    value=st.integers(0, 2**32 - 1),
    near=st.integers(-3, 3),
    cut=st.integers(0, 60),
)
def test_no_header_field_prevents_a_peer_from_starting_a_new_incarnation(
    connected_endpoint, kind, field, value, near, cut
):
    e, s = connected_endpoint
    d = s.build_datagram(kind, body=RNG.randbytes(20))
    if field == "body":
        d.body = RNG.randbytes(value % 600)
    else:
        size = {"type": 4, "version": 2, "mark": 2}.get(
            field, 8 * d.get_field(field).sz if hasattr(d.get_field(field), "sz") else 8
        )
        base = d.getfieldval(field) + near if value % 2 else value
        setattr(d, field, int(base) % 2 ** int(size))
    octets = bytes(d)
    if value % 5 == 0:  # The datagram is also truncated, with a valid CRC.
        del d.crc
        octets = octets[: max(0, len(octets) - CRC_LEN - cut)]
        octets += crc32c(octets).to_bytes(4, "little")
    s.sock.sendto(octets, s.dest)
    s.discard_datagrams_until_silent()
    # Whatever the datagram did to the former incarnation, the real peer can start a new one.
    s.epoch = (s.epoch + 0x01000193) & 0xFFFFFFFF or 1
    net.sleep(0.0012)
    s.connect()
    e.got.clear()
    s.send_datagram(RDType.DATA, psn=s.epoch, body=b"fine")
    poll_until(lambda: e.received_data() == [b"fine"], e)
    assert lib.siw_rd_peer_count(e.c) == 1


# ---- limits of datagrams and peers


def test_an_idle_peer_record_is_smaller_than_1024_octets():
    assert lib.siw_rd_peer_record_size() + ffi.sizeof("void *") < 1024


@pytest.mark.clause("DGRAM-RD-25")
def test_the_longest_idle_peer_is_evicted_and_a_peer_in_use_is_not(make_endpoint):
    idle = 0.5
    with temporary_setting("rd_idle_ms", int(idle * 1000)):
        e = make_endpoint(max_peers=2)
    strangers = [ScapyRdPeer(e) for _ in range(3)]
    for s in strangers[:2]:
        s.connect()
        s.send_datagram(RDType.DATA, body=b"given")
        s.receive_datagram(RDType.ACK)
    # Neither peer has been idle for long enough, and both peers have sent data.
    c = strangers[2].request_challenge()
    strangers[2].other = c.source_epoch
    counters = Counters()
    strangers[2].send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body))
    poll_until(lambda: counters["drop_rd_peers"] == 1, e)
    with pytest.raises(OSError) as full:
        e.get_or_create_peer(strangers[2].address)
    assert full.value.errno == errno.ENOBUFS
    # A peer in use by the upper layer (siw_rd_set_upper_layer_object) is not evicted.
    lib.siw_rd_set_upper_layer_object(
        e.get_or_create_peer(strangers[0].address), ffi.cast("void *", 1)
    )
    net.sleep(1.2 * idle)
    strangers[2].connect()
    assert counters["rd_evicted"] == 1
    strangers[1].send_datagram(RDType.DATA, psn=strangers[1].epoch + 1, body=b"x")
    assert strangers[1].receive_datagram().type == RDType.BYE
    strangers[0].send_datagram(RDType.DATA, psn=strangers[0].epoch + 1, body=b"x")
    assert strangers[0].receive_datagram().type == RDType.ACK
    for s in strangers:
        s.close()


@pytest.mark.clause("DGRAM-RD-26")
def test_an_endpoint_probes_a_peer_that_was_silent_for_a_third_of_the_idle_time(make_endpoint):
    with temporary_setting("rd_idle_ms", 60_000):
        e = make_endpoint()
    s = ScapyRdPeer(e)
    s.connect()
    peer = e.get_or_create_peer(s.address)
    assert e.send(peer, b"at once") == 1
    sent = s.receive_datagram()
    assert sent.type == RDType.DATA
    s.send_datagram(RDType.ACK, acknowledged=(sent.psn + 1) & 0xFFFFFFFF)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 1, e)
    s.close()
    with temporary_setting("rd_idle_ms", 300):
        e = make_endpoint()
    s = ScapyRdPeer(e)
    s.connect()
    peer = e.get_or_create_peer(s.address)
    net.sleep(0.11)
    assert e.send(peer, b"when it is known") == 0 and lib.siw_rd_is_send_queue_full(
        peer, lib.SIW_RD_REQUESTS
    )
    first = s.receive_datagram()
    while first.type == RDType.ACK:
        first = s.receive_datagram()
    assert first.type == RDType.PROBE
    s.send_datagram(RDType.ACK, psn=first.psn, rd_flags="PROBED")
    poll_until(lambda: e.event_count("acked"), e)
    assert e.send(peer, b"when it is known") == 1
    assert s.receive_datagram(RDType.DATA).body == b"when it is known"
    s.close()


@pytest.mark.clause("DGRAM-RD-26")
def test_an_endpoint_probes_a_long_silent_peer_before_it_sends_data(make_endpoint):
    with temporary_setting("rd_idle_ms", 90):
        a, b = make_endpoint(), make_endpoint(max_peers=1)
    peer = a.get_or_create_peer(b.local_addr)
    send_all_segments(a, peer, [b"before"], a, b)
    net.sleep(0.1)
    other = make_endpoint()
    # The only peer record of `b` is reused for the other endpoint, so `b` forgets `a`.
    send_all_segments(other, other.get_or_create_peer(b.local_addr), [b"x"], b, other)
    b.got.clear()
    assert a.send(peer, b"lost?") == 0
    assert lib.siw_rd_is_send_queue_full(peer, lib.SIW_RD_REQUESTS)
    poll_until(lambda: a.event_count("restarted"), a, b)
    net.sleep(0.1)  # the endpoint `b` must also forget the other endpoint
    send_all_segments(a, peer, [b"after"], a, b)
    assert b.received_data() == [b"after"]


@pytest.mark.clause("DGRAM-CC-10")
def test_after_a_timeout_at_most_two_datagrams_are_sent_at_a_time(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1, host="10.0.0.9")
    peer = e.get_or_create_peer(s.address)
    for i in range(60):
        e.send(peer, b"%04d" % i)
    s.accept_connection(peer)
    began = net.now()
    came: dict[float, int] = {}

    def count_data_and_check_deadline() -> bool:
        while octets := s._read_next_datagram():
            if RDDatagram(octets).type == RDType.DATA:
                at = round(net.now() - began, 3)
                came[at] = came.get(at, 0) + 1
        return net.now() > began + 5

    poll_until(count_data_and_check_deadline, e)
    first, *later = came.values()
    assert first > 2
    assert len(later) >= 3 and max(later) <= 2, came
    # An acknowledgement opens the congestion window again.
    s.send_datagram(RDType.ACK, acknowledged=(s.other + 2) & 0xFFFFFFFF)
    came.clear()
    stop = net.now() + 0.01
    poll_until(lambda: count_data_and_check_deadline() and net.now() > stop, e)
    assert sum(came.values()) > 2


# ---- a segment that the upper layer has accepted is acknowledged by the endpoint's next call


def deliver_next_segment(e: Endpoint) -> None:
    """Let the upper layer accept the next segment; no other call follows."""
    lib.siw_sim_step_world(lib.siw_sim_now())
    accepted = len(e.received_data())
    while len(e.received_data()) == accepted:
        assert e.handle_event()


@pytest.mark.clause("DGRAM-RD-18")
def test_a_peer_that_ends_after_its_segment_was_accepted_is_told_so(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    s.connect()
    s.send_datagram(RDType.DATA, body=b"accepted")
    s.send_datagram(RDType.BYE)
    deliver_next_segment(e)
    answer = s.receive_datagram(RDType.BYE)
    assert answer.acknowledged == s.epoch + 1
    assert e.event_count("gone") == 1 and e.received_data() == [b"accepted"]


def test_replays_of_an_accepted_segment_are_dropped_before_it_is_acknowledged(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    s.connect()
    s.discard_datagrams_until_silent()
    counters = Counters()
    for _ in range(20):
        s.send_datagram(RDType.DATA, body=b"once")
    deliver_next_segment(e)
    assert s.receive_datagram(RDType.ACK).acknowledged == s.epoch + 1
    assert counters["rd_duplicates"] == 19
    assert e.received_data() == [b"once"]


def test_a_segment_accepted_before_the_peer_restarted_does_not_acknowledge_the_new_incarnation(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    s.connect()
    s.send_datagram(RDType.DATA, body=b"old")
    deliver_next_segment(e)
    net.sleep(0.002)  # the time in a cookie is in milliseconds
    s.epoch += 0x1000
    ack = s.connect()
    while ack.dest_epoch != s.epoch:
        ack = s.receive_datagram(RDType.ACK)
    assert ack.acknowledged == s.epoch
    s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=b"second")
    s.discard_datagrams_until_silent()
    assert e.received_data() == [b"old"]
    s.send_datagram(RDType.DATA, body=b"first")
    poll_until(lambda: e.received_data() == [b"old", b"first", b"second"], e)
    assert e.event_count("restarted") == 1


def test_closing_an_endpoint_acknowledges_the_segment_that_was_accepted_last(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    s.connect()
    s.send_datagram(RDType.DATA, body=b"last")
    deliver_next_segment(e)
    lib.siw_rd_shutdown(e.c)
    lib.siw_rd_continue_shutdown(e.c)
    assert s.receive_datagram(RDType.BYE).acknowledged == s.epoch + 1
