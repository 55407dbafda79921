"""Hostile RD peers must not take memory, peer records or incarnations from other peers."""

from __future__ import annotations

import random

import net
import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import Counters, setting
from unit.rd.rd_kit import HELLO, OFFER, Endpoint, Stranger, pump, run

from siwarp.inspect.rd import RDDatagram, RDType, handshake_cookie

# ---- cookies


@pytest.mark.clause("DGRAM-RD-31")
def test_a_cookie_is_good_for_its_time_and_no_longer(end, strangers):
    with setting("rd_idle_ms", 300):
        e = end()
    (s,) = strangers(e, 1)
    old = s.challenge()
    s.other = old.source_epoch
    net.sleep(0.31)
    counters = Counters()
    s.say(RDType.ECHO, body=OFFER + handshake_cookie(old.body))
    assert s.silence() and counters["drop_rd_cookie"] == 1
    assert lib.siw_rd_n_peers(e.c) == 0
    s.meet()
    assert lib.siw_rd_n_peers(e.c) == 1


@pytest.mark.clause("DGRAM-RD-32")
def test_a_life_cannot_be_brought_back_by_its_echo_when_its_record_was_forgotten(end, strangers):
    with setting("rd_idle_ms", 600):
        e = end(max_peers=1)
    victim, other = strangers(e, 2)
    c = victim.challenge()
    victim.other = c.source_epoch
    overheard = [victim.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body))]
    assert victim.hear(RDType.ACK)
    overheard.append(victim.say(RDType.DATA, body=b"pay me once"))
    run(lambda: e.data() == [b"pay me once"], e)
    victim.say(RDType.BYE)
    run(lambda: e.told("gone") == 1, e)
    victim.drain()
    # The old incarnation has ended, but while its ECHO is valid there is no room for another one.
    counters = Counters()
    c = other.challenge()
    other.other = c.source_epoch
    other.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body))
    for octets in overheard:
        victim.sock.sendto(octets, victim.dest)
    victim.drain()
    assert counters["drop_rd_peers"] + counters["rd_evicted"] == 1
    net.sleep(0.61)
    other.meet()
    for octets in overheard:
        victim.sock.sendto(octets, victim.dest)
    victim.drain()
    assert e.data() == [b"pay me once"]


@pytest.mark.clause("DGRAM-RD-9", "DGRAM-RD-10")
def test_whatever_was_overheard_of_a_former_life_changes_nothing_when_it_is_said_again(
    end, strangers
):
    e = end()
    (s,) = strangers(e, 1)
    said = [bytes(s.build(RDType.HELLO, dest_epoch=0, body=HELLO))]
    c = s.challenge()
    s.other = c.source_epoch
    said.append(s.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body)))
    assert s.hear(RDType.ACK)
    said += [s.say(RDType.DATA, psn=s.epoch + i, body=b"old %d" % i) for i in range(5)]
    run(lambda: len(e.data()) == 5, e)
    said += [s.say(RDType.PROBE), s.say(RDType.ACK, credit=0)]
    s.drain()
    said.append(bytes(s.build(RDType.BYE)))
    net.sleep(0.002)
    s.epoch += 0x1000
    s.meet()
    e.got.clear()
    random.Random(1).shuffle(said)
    for octets in said * 20:
        s.sock.sendto(octets, s.dest)
    s.drain()
    assert e.told("restarted") == 1 and not e.told("gone") and not e.got
    s.say(RDType.DATA, body=b"new")
    run(lambda: e.data() == [b"new"], e)


@pytest.mark.clause("DGRAM-RD-28")
def test_guessed_epochs_do_nothing_to_a_pair_and_its_messages_go_on(end):
    a, b = end(), end()
    peer = a.peer(b.local)
    pump(a, peer, [b"begin"], a, b)
    # A spoofing attacker at the address of one end sends arbitrary datagrams to the other end.
    rng = random.Random(7)
    liar = Stranger(b)
    counters = Counters()
    for i in range(3000):
        kind = rng.choice([RDType.DATA, RDType.ACK, RDType.PROBE, RDType.BYE, RDType.CHALLENGE])
        liar.say(
            kind,
            source_epoch=rng.getrandbits(32) or 1,
            dest_epoch=rng.getrandbits(32) or 1,
            psn=rng.getrandbits(32),
            acknowledged=rng.getrandbits(32),
            body=bytes(20),
        )
        if i % 20 == 0:
            pump(a, peer, [b"%d" % i], a, b)
    b.turn()
    liar.close()
    assert counters["drop_rd_epoch"] > 400
    assert lib.siw_rd_n_peers(b.c) == 1
    assert not any(e.told(k) for e in (a, b) for k in ("gone", "restarted"))


# ---- records


@pytest.mark.clause("DGRAM-RD-25")
def test_peers_that_are_in_use_for_ever_do_not_hide_the_idle_ones(end, strangers):
    with setting("rd_idle_ms", 400):
        e = end(max_peers=40)
    used, idle, more = strangers(e, 35), strangers(e, 5), strangers(e, 5)
    for s in used:
        s.meet()
        lib.siw_rd_set_upper(e.peer(s.address), ffi.cast("void *", 1))
    for s in idle:
        s.meet()
    net.sleep(0.41)
    counters = Counters()
    for i, s in enumerate(more):

        def come(s: Stranger = s, goal: int = i + 1) -> bool:
            c = s.challenge()
            s.other = c.source_epoch
            s.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body))
            s.drain()
            return counters["rd_evicted"] == goal

        # Each attempt of a newcomer examines some records, and the next attempt examines others.
        assert any(come() for _ in range(4))
    for s in used:
        s.say(RDType.PROBE)
        assert s.hear().type == RDType.ACK
    assert lib.siw_rd_n_peers(e.c) == 40


# ---- memory


def early(s: Stranger, n: int, size: int, first: int = 1) -> None:
    """Send n datagrams with segments of ``size`` octets that leave a gap at the start."""
    for i in range(first, first + n):
        s.say(RDType.DATA, psn=s.epoch + i, body=bytes(size))
        if i % 16 == 0:
            s.end.turn()


def last_ack(s: Stranger) -> RDDatagram:
    """Probe the endpoint, and return its acknowledgement."""
    s.drain()
    s.say(RDType.PROBE, psn=99)
    return s.hear(RDType.ACK)


@pytest.mark.clause("DGRAM-RD-33")
def test_the_memory_of_all_that_peers_send_early_is_bounded_and_a_share_is_left(end, strangers):
    with setting("rd_total_window", 1 << 20):
        e = end()
    with setting("rd_max_datagram", 1500):
        honest = end()
    hogs = strangers(e, 6)
    kept = 0
    for s in hogs:
        s.meet()
        early(s, 400, 30)
        n = len(last_ack(s).received())
        # Each uses a unit of 1024 octets, from a quarter of the memory that the others left free.
        assert n <= ((1 << 20) - kept) // 4 // 1024
        # The smallest buffer has 512 octets, and each datagram also uses a ring entry of 16 octets.
        kept += n * (512 + 16)
    assert kept <= 1 << 20
    # The hostile peers took as much as they could, but a new peer still has room for more than one
    # datagram.
    peer = honest.peer(e.local)
    data = [b"%04d" % i + bytes(1000) for i in range(300)]
    pump(honest, peer, data, honest, e, seconds=30)
    assert [d for who, d in e.got.items() if who.endswith(f":{port(honest)}")] == [data]
    # A datagram far ahead uses a ring entry for each missing one: that memory is limited as well.
    far = strangers(e, 30)
    for s in far:
        s.meet()
        s.say(RDType.DATA, psn=s.epoch + 4000, body=b"x")
    assert sum(len(last_ack(s).received()) for s in far) * 4096 * 16 <= 1 << 20


def port(e: Endpoint) -> int:
    import socket

    return socket.ntohs(e.local.port_be)


@pytest.mark.clause("DGRAM-RD-13", "DGRAM-RD-33")
def test_what_is_held_for_want_of_a_receive_is_bounded_over_all_peers_and_not_lost(end, strangers):
    with setting("rd_total_window", 1 << 20):
        e = end()
    taking: list[bool] = []
    e.judge = lambda _who, _data: "take" if taking else "hold"
    held = strangers(e, 40)
    body = bytes(60_000)
    for s in held:
        s.meet()
        s.say(RDType.DATA, body=body)
        s.say(RDType.DATA, psn=s.epoch + 1, body=body)
        s.drain()
    kept = [len(last_ack(s).received()) for s in held]
    assert 1 <= sum(kept) * 65536 <= 1 << 20
    assert not e.got
    taking.append(True)
    for s in held:
        lib.siw_rd_resume(e.peer(s.address), lib.SIW_RD_REQUESTS)

    def again() -> None:
        """Retransmit like senders that got no acknowledgement."""
        for s in held:
            if len(e.got.get(name(s), ())) < 2:
                for i in range(2):
                    s.say(RDType.DATA, psn=s.epoch + i, body=body)
            e.turn()

    run(lambda: sum(len(got) for got in e.got.values()) == 80, e, also=again, seconds=30)
    assert {len(got) for got in e.got.values()} == {2}


def name(s: Stranger) -> str:
    host, number = s.sock.getsockname()
    return f"{host}:{number}"


def test_peers_that_acknowledge_nothing_leave_room_to_send_to_others(end, strangers):
    with setting("rd_total_window", 1 << 20):
        a = end()
    b = end()
    for s in strangers(a, 8):
        peer = a.peer(s.address)
        n = 0
        while a.send(peer, bytes(20_000)) == 1:
            n += 1
        assert n < 26  # the queued data is limited to half a megabyte
    to_b = a.peer(b.local)
    taken = 0
    while a.send(to_b, bytes(1000)) == 1:
        taken += 1
    assert taken > 1
    run(lambda: lib.siw_rd_accepted(to_b, lib.SIW_RD_REQUESTS) == taken, a, b)


@pytest.mark.clause("DGRAM-RD-18")
def test_a_credit_of_all_ones_buys_no_more_than_this_ends_own_window(end, strangers):
    with setting("rd_window", 65536):
        e = end()
    (s,) = strangers(e, 1)
    peer = e.peer(s.address)
    assert e.send(peer, b"first") == 1
    s.met_by(peer, credit=65535)
    first = s.hear(RDType.DATA)
    s.say(RDType.ACK, acknowledged=(first.psn + 1) & 0xFFFFFFFF, credit=65535)
    run(lambda: lib.siw_rd_accepted(peer, lib.SIW_RD_REQUESTS) == 1, e)
    taken = 0
    while e.send(peer, bytes(1000)) == 1:
        taken += 1
        assert taken < 1000
    assert taken * 1000 <= 65536
    # An acknowledgement of half of the data, repeated a hundred times, has no further effect.
    half, next_psn = (s.other + 1 + taken // 2) & 0xFFFFFFFF, (s.other + 1) & 0xFFFFFFFF
    while next_psn != half:
        if s.hear(RDType.DATA).psn == next_psn:
            next_psn = (next_psn + 1) & 0xFFFFFFFF
            s.say(RDType.ACK, acknowledged=next_psn, credit=65535)
    for _ in range(100):
        s.say(RDType.ACK, acknowledged=half, credit=65535)
    run(lambda: lib.siw_rd_accepted(peer, lib.SIW_RD_REQUESTS) == 1 + taken // 2, e)
    more = 0
    while e.send(peer, bytes(1000)) == 1:
        more += 1
        assert more < 1000
    assert (taken - taken // 2 + more) * 1000 <= 65536


# ---- gone


@pytest.mark.clause("DGRAM-RD-34")
def test_who_leaves_a_gap_and_falls_silent_is_gone_and_one_that_fills_it_may_be_silent(
    end, strangers
):
    limit = 0.5
    e = end(peer_timeout_ns=int(limit * 1e9))
    gap, filled = strangers(e, 2)
    for s in (gap, filled):
        s.meet()
        s.say(RDType.DATA, psn=s.epoch + 1, body=b"second")
    began = net.now()
    filled.say(RDType.DATA, psn=filled.epoch, body=b"first")
    run(lambda: ("gone", name(gap)) in e.news, e)
    took = net.now() - began
    assert 0.8 * limit <= took <= 1.2 * limit
    assert e.got == {name(filled): [b"first", b"second"]}
    stop = net.now() + 2 * limit
    run(lambda: net.now() > stop, e)
    assert ("gone", name(filled)) not in e.news
    assert last_ack(filled).acknowledged == filled.epoch + 2


@pytest.mark.clause("DGRAM-RD-24")
def test_a_peer_that_starts_anew_amid_messages_gets_none_of_the_old_ones(end, strangers):
    e = end()
    (s,) = strangers(e, 1)
    peer = e.peer(s.address)
    for i in range(8):
        assert e.send(peer, b"old %d" % i) == 1
    s.met_by(peer)
    for _ in range(8):
        s.hear(RDType.DATA)
    s.say(RDType.ACK, acknowledged=(s.other + 3) & 0xFFFFFFFF)
    run(lambda: lib.siw_rd_accepted(peer, lib.SIW_RD_REQUESTS) == 3, e)
    # The peer crashes and restarts before it has accepted the rest; e did not notice.
    net.sleep(0.002)  # the time in a cookie has a resolution of one millisecond
    s.epoch, s.other = 0x5555, 0
    s.meet()
    e.news.clear()
    assert lib.siw_rd_framed(peer, lib.SIW_RD_REQUESTS) == 0
    assert e.send(peer, b"new") == 1
    first = s.hear(RDType.DATA)
    assert (first.body, first.psn, first.dest_epoch) == (b"new", s.other, s.epoch)
    s.say(RDType.ACK, acknowledged=(s.other + 1) & 0xFFFFFFFF)
    run(lambda: lib.siw_rd_accepted(peer, lib.SIW_RD_REQUESTS) == 1, e)
    s.drain()
