"""Hostile RD peers must not take memory, peer records or incarnations from other peers."""

from __future__ import annotations

import random

import net
import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import Counters, temporary_setting
from unit.rd.rd_kit import HELLO, OFFER, Endpoint, ScapyRdPeer, poll_until, send_all_segments

from siwarp.inspect.rd import RDDatagram, RDType, cookie_in_handshake_body

# ---- cookies


@pytest.mark.clause("DGRAM-RD-31")
def test_a_handshake_cookie_is_valid_for_its_time_and_no_longer(make_endpoint, make_scapy_rd_peers):
    with temporary_setting("rd_idle_ms", 300):
        e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    old = s.request_challenge()
    s.other = old.source_epoch
    net.sleep(0.31)
    counters = Counters()
    s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(old.body))
    assert s.receives_nothing() and counters["drop_rd_cookie"] == 1
    assert lib.siw_rd_peer_count(e.c) == 0
    s.connect()
    assert lib.siw_rd_peer_count(e.c) == 1


@pytest.mark.clause("DGRAM-RD-32")
def test_replayed_datagrams_do_not_revive_an_ended_incarnation(make_endpoint, make_scapy_rd_peers):
    with temporary_setting("rd_idle_ms", 600):
        e = make_endpoint(max_peers=1)
    victim, other = make_scapy_rd_peers(e, 2)
    c = victim.request_challenge()
    victim.other = c.source_epoch
    overheard = [victim.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body))]
    assert victim.receive_datagram(RDType.ACK)
    overheard.append(victim.send_datagram(RDType.DATA, body=b"pay me once"))
    poll_until(lambda: e.received_data() == [b"pay me once"], e)
    victim.send_datagram(RDType.BYE)
    poll_until(lambda: e.event_count("gone") == 1, e)
    victim.discard_datagrams_until_silent()
    # While the ECHO of the ended incarnation is valid, no other peer can get that peer record.
    counters = Counters()
    c = other.request_challenge()
    other.other = c.source_epoch
    other.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body))
    for octets in overheard:
        victim.sock.sendto(octets, victim.dest)
    victim.discard_datagrams_until_silent()
    assert counters["drop_rd_peers"] + counters["rd_evicted"] == 1
    net.sleep(0.61)
    other.connect()
    for octets in overheard:
        victim.sock.sendto(octets, victim.dest)
    victim.discard_datagrams_until_silent()
    assert e.received_data() == [b"pay me once"]


@pytest.mark.clause("DGRAM-RD-9", "DGRAM-RD-10")
def test_replayed_datagrams_of_a_former_incarnation_have_no_effect(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    said = [bytes(s.build_datagram(RDType.HELLO, dest_epoch=0, body=HELLO))]
    c = s.request_challenge()
    s.other = c.source_epoch
    said.append(s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body)))
    assert s.receive_datagram(RDType.ACK)
    said += [s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"old %d" % i) for i in range(5)]
    poll_until(lambda: len(e.received_data()) == 5, e)
    said += [s.send_datagram(RDType.PROBE), s.send_datagram(RDType.ACK, credit=0)]
    s.discard_datagrams_until_silent()
    said.append(bytes(s.build_datagram(RDType.BYE)))
    net.sleep(0.002)
    s.epoch += 0x1000
    s.connect()
    e.got.clear()
    random.Random(1).shuffle(said)
    for octets in said * 20:
        s.sock.sendto(octets, s.dest)
    s.discard_datagrams_until_silent()
    assert e.event_count("restarted") == 1 and not e.event_count("gone") and not e.got
    s.send_datagram(RDType.DATA, body=b"new")
    poll_until(lambda: e.received_data() == [b"new"], e)


@pytest.mark.clause("DGRAM-RD-28")
def test_datagrams_with_guessed_epochs_do_not_affect_a_pair(make_endpoint):
    a, b = make_endpoint(), make_endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    send_all_segments(a, peer, [b"begin"], a, b)
    # A spoofing attacker at the address of one end sends arbitrary datagrams to the other end.
    rng = random.Random(7)
    liar = ScapyRdPeer(b)
    counters = Counters()
    for i in range(3000):
        kind = rng.choice([RDType.DATA, RDType.ACK, RDType.PROBE, RDType.BYE, RDType.CHALLENGE])
        liar.send_datagram(
            kind,
            source_epoch=rng.getrandbits(32) or 1,
            dest_epoch=rng.getrandbits(32) or 1,
            psn=rng.getrandbits(32),
            acknowledged=rng.getrandbits(32),
            body=bytes(20),
        )
        if i % 20 == 0:
            send_all_segments(a, peer, [b"%d" % i], a, b)
    b.poll_once()
    liar.close()
    assert counters["drop_rd_epoch"] > 400
    assert lib.siw_rd_peer_count(b.c) == 1
    assert not any(e.event_count(k) for e in (a, b) for k in ("gone", "restarted"))


# ---- records


@pytest.mark.clause("DGRAM-RD-25")
def test_idle_peer_records_are_evicted_although_most_records_are_in_use(
    make_endpoint, make_scapy_rd_peers
):
    with temporary_setting("rd_idle_ms", 400):
        e = make_endpoint(max_peers=40)
    used, idle, more = (
        make_scapy_rd_peers(e, 35),
        make_scapy_rd_peers(e, 5),
        make_scapy_rd_peers(e, 5),
    )
    for s in used:
        s.connect()
        lib.siw_rd_set_upper_layer_object(e.get_or_create_peer(s.address), ffi.cast("void *", 1))
    for s in idle:
        s.connect()
    net.sleep(0.41)
    counters = Counters()
    for i, s in enumerate(more):

        def connect_and_check_peer_eviction(s: ScapyRdPeer = s, goal: int = i + 1) -> bool:
            c = s.request_challenge()
            s.other = c.source_epoch
            s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body))
            s.discard_datagrams_until_silent()
            return counters["rd_evicted"] == goal

        # Each connection attempt examines some peer records, and the next attempt examines others.
        assert any(connect_and_check_peer_eviction() for _ in range(4))
    for s in used:
        s.send_datagram(RDType.PROBE)
        assert s.receive_datagram().type == RDType.ACK
    assert lib.siw_rd_peer_count(e.c) == 40


# ---- memory


def send_segments_after_psn_gap(s: ScapyRdPeer, n: int, size: int, first: int = 1) -> None:
    """Send ``n`` datagrams of ``size`` octets each, without the first datagram of the sequence."""
    for i in range(first, first + n):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=bytes(size))
        if i % 16 == 0:
            s.end.poll_once()


def probe_for_ack(s: ScapyRdPeer) -> RDDatagram:
    """Probe the endpoint, and return the acknowledgement that the endpoint sends."""
    s.discard_datagrams_until_silent()
    s.send_datagram(RDType.PROBE, psn=99)
    return s.receive_datagram(RDType.ACK)


@pytest.mark.clause("DGRAM-RD-33")
def test_memory_for_segments_after_gaps_is_bounded_and_leaves_a_share_for_a_new_peer(
    make_endpoint, make_scapy_rd_peers
):
    with temporary_setting("rd_total_window", 1 << 20):
        e = make_endpoint()
    with temporary_setting("rd_max_datagram", 1500):
        honest = make_endpoint()
    hogs = make_scapy_rd_peers(e, 6)
    kept = 0
    for s in hogs:
        s.connect()
        send_segments_after_psn_gap(s, 400, 30)
        n = len(probe_for_ack(s).received())
        # Each segment uses a unit of 1024 octets, and each peer gets at most a quarter of the free
        # memory.
        assert n <= ((1 << 20) - kept) // 4 // 1024
        # The smallest buffer has 512 octets, and each datagram also uses a ring entry of 16 octets.
        kept += n * (512 + 16)
    assert kept <= 1 << 20
    # The hostile peers used as much memory as they could, but a new peer still gets space for
    # more than one datagram.
    peer = honest.get_or_create_peer(e.local_addr)
    data = [b"%04d" % i + bytes(1000) for i in range(300)]
    send_all_segments(honest, peer, data, honest, e, seconds=30)
    assert [d for who, d in e.got.items() if who.endswith(f":{udp_port(honest)}")] == [data]
    # A datagram far ahead uses a ring entry for each missing datagram, and the memory of the
    # ring entries is limited as well.
    far = make_scapy_rd_peers(e, 30)
    for s in far:
        s.connect()
        s.send_datagram(RDType.DATA, psn=s.epoch + 4000, body=b"x")
    assert sum(len(probe_for_ack(s).received()) for s in far) * 4096 * 16 <= 1 << 20


def udp_port(e: Endpoint) -> int:
    import socket

    return socket.ntohs(e.local_addr.port_be)


@pytest.mark.clause("DGRAM-RD-13", "DGRAM-RD-33")
def test_segments_held_for_want_of_a_receive_are_bounded_over_all_peers_and_not_lost(
    make_endpoint, make_scapy_rd_peers
):
    with temporary_setting("rd_total_window", 1 << 20):
        e = make_endpoint()
    taking: list[bool] = []
    e.judge = lambda _who, _data: "take" if taking else "hold"
    held = make_scapy_rd_peers(e, 40)
    body = bytes(60_000)
    for s in held:
        s.connect()
        s.send_datagram(RDType.DATA, body=body)
        s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=body)
        s.discard_datagrams_until_silent()
    kept = [len(probe_for_ack(s).received()) for s in held]
    assert 1 <= sum(kept) * 65536 <= 1 << 20
    assert not e.got
    taking.append(True)
    for s in held:
        lib.siw_rd_resume_delivery(e.get_or_create_peer(s.address), lib.SIW_RD_REQUESTS)

    def retransmit_missing_segments() -> None:
        """Retransmit the segments of each sender whose segments have not all been received."""
        for s in held:
            if len(e.got.get(peer_address_text(s), ())) < 2:
                for i in range(2):
                    s.send_datagram(RDType.DATA, psn=s.epoch + i, body=body)
            e.poll_once()

    poll_until(
        lambda: sum(len(got) for got in e.got.values()) == 80,
        e,
        also=retransmit_missing_segments,
        seconds=30,
    )
    assert {len(got) for got in e.got.values()} == {2}


def peer_address_text(s: ScapyRdPeer) -> str:
    host, number = s.sock.getsockname()
    return f"{host}:{number}"


def test_peers_that_acknowledge_nothing_leave_memory_to_send_to_other_peers(
    make_endpoint, make_scapy_rd_peers
):
    with temporary_setting("rd_total_window", 1 << 20):
        a = make_endpoint()
    b = make_endpoint()
    for s in make_scapy_rd_peers(a, 8):
        peer = a.get_or_create_peer(s.address)
        n = 0
        while a.send(peer, bytes(20_000)) == 1:
            n += 1
        assert n < 26  # the queued data is limited to half a megabyte
    to_b = a.get_or_create_peer(b.local_addr)
    taken = 0
    while a.send(to_b, bytes(1000)) == 1:
        taken += 1
    assert taken > 1
    poll_until(lambda: lib.siw_rd_total_accepted_segments(to_b, lib.SIW_RD_REQUESTS) == taken, a, b)


@pytest.mark.clause("DGRAM-RD-18")
def test_the_largest_credit_does_not_exceed_the_window_of_the_sender(
    make_endpoint, make_scapy_rd_peers
):
    with temporary_setting("rd_window", 65536):
        e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    peer = e.get_or_create_peer(s.address)
    assert e.send(peer, b"first") == 1
    s.accept_connection(peer, credit=65535)
    first = s.receive_datagram(RDType.DATA)
    s.send_datagram(RDType.ACK, acknowledged=(first.psn + 1) & 0xFFFFFFFF, credit=65535)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 1, e)
    taken = 0
    while e.send(peer, bytes(1000)) == 1:
        taken += 1
        assert taken < 1000
    assert taken * 1000 <= 65536
    # An acknowledgement of half of the data, repeated a hundred times, has no further effect.
    half, next_psn = (s.other + 1 + taken // 2) & 0xFFFFFFFF, (s.other + 1) & 0xFFFFFFFF
    while next_psn != half:
        if s.receive_datagram(RDType.DATA).psn == next_psn:
            next_psn = (next_psn + 1) & 0xFFFFFFFF
            s.send_datagram(RDType.ACK, acknowledged=next_psn, credit=65535)
    for _ in range(100):
        s.send_datagram(RDType.ACK, acknowledged=half, credit=65535)
    poll_until(
        lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 1 + taken // 2, e
    )
    more = 0
    while e.send(peer, bytes(1000)) == 1:
        more += 1
        assert more < 1000
    assert (taken - taken // 2 + more) * 1000 <= 65536


# ---- gone


@pytest.mark.clause("DGRAM-RD-34")
def test_a_silent_peer_is_reported_gone_only_if_it_left_a_gap(make_endpoint, make_scapy_rd_peers):
    limit = 0.5
    e = make_endpoint(peer_timeout_ns=int(limit * 1e9))
    gap, filled = make_scapy_rd_peers(e, 2)
    for s in (gap, filled):
        s.connect()
        s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=b"second")
    began = net.now()
    filled.send_datagram(RDType.DATA, psn=filled.epoch, body=b"first")
    poll_until(lambda: ("gone", peer_address_text(gap)) in e.news, e)
    took = net.now() - began
    assert 0.8 * limit <= took <= 1.2 * limit
    assert e.got == {peer_address_text(filled): [b"first", b"second"]}
    stop = net.now() + 2 * limit
    poll_until(lambda: net.now() > stop, e)
    assert ("gone", peer_address_text(filled)) not in e.news
    assert probe_for_ack(filled).acknowledged == filled.epoch + 2


@pytest.mark.clause("DGRAM-RD-24")
def test_a_restarted_peer_receives_none_of_the_messages_for_its_former_incarnation(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    peer = e.get_or_create_peer(s.address)
    for i in range(8):
        assert e.send(peer, b"old %d" % i) == 1
    s.accept_connection(peer)
    for _ in range(8):
        s.receive_datagram(RDType.DATA)
    s.send_datagram(RDType.ACK, acknowledged=(s.other + 3) & 0xFFFFFFFF)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 3, e)
    # The peer restarts before it has accepted the rest, and the endpoint `e` does not notice.
    net.sleep(0.002)  # the time in a cookie has a resolution of one millisecond
    s.epoch, s.other = 0x5555, 0
    s.connect()
    e.news.clear()
    assert lib.siw_rd_segments_ever_queued(peer, lib.SIW_RD_REQUESTS) == 0
    assert e.send(peer, b"new") == 1
    first = s.receive_datagram(RDType.DATA)
    assert (first.body, first.psn, first.dest_epoch) == (b"new", s.other, s.epoch)
    s.send_datagram(RDType.ACK, acknowledged=(s.other + 1) & 0xFFFFFFFF)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 1, e)
    s.discard_datagrams_until_silent()
