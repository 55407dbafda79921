"""The datagrams that an RD endpoint sends, and its reactions to those it receives."""

from __future__ import annotations

import net
import pytest
from _siwarp_layers import lib
from unit.llp.llp_harness import Counters, setting
from unit.rd.rd_kit import HELLO, OFFER, QKEY, SEGMENT, Endpoint, Stranger, run

from siwarp.inspect.crc import crc32c
from siwarp.inspect.rd import (
    COOKIE_LEN,
    HELLO_LEAST,
    RDDatagram,
    RDReason,
    RDType,
    handshake_cookie,
)

# ---- establishing contact


@pytest.mark.clause("DGRAM-RD-1", "DGRAM-RD-4", "DGRAM-RD-6")
def test_a_record_is_made_for_the_echo_alone_and_the_challenge_is_no_longer_than_the_hello(
    strange,
):
    e, s = strange
    asked = s.say(RDType.HELLO, dest_epoch=0, body=HELLO)
    challenge = s.hear()
    assert challenge.type == RDType.CHALLENGE
    assert len(bytes(challenge)) <= len(asked)
    assert challenge.dest_epoch == s.epoch and challenge.source_epoch != 0
    assert lib.siw_rd_n_peers(e.c) == 0 and not e.news
    s.other = challenge.source_epoch
    s.say(RDType.ECHO, body=OFFER + handshake_cookie(challenge.body))
    ack = s.hear()
    assert (ack.type, ack.source_epoch, ack.dest_epoch) == (RDType.ACK, s.other, s.epoch)
    assert ack.acknowledged == s.epoch and ack.credit >= 64 and ack.ird == 7
    assert lib.siw_rd_n_peers(e.c) == 1 and e.told("new") == 1


@pytest.mark.clause("DGRAM-RD-4")
def test_a_hello_shorter_than_its_answer_gets_none(strange):
    _, s = strange
    counters = Counters()
    s.say(RDType.HELLO, dest_epoch=0, body=HELLO[:-1])
    assert s.silence() and counters["drop_rd_hello"] == 1


@pytest.mark.clause("DGRAM-RD-6")
def test_an_echo_with_any_octet_of_its_cookie_changed_makes_nothing(strange):
    e, s = strange
    c = s.challenge()
    s.other = c.source_epoch
    # Octets 4 to 11 of a cookie are not checked.
    cookie = handshake_cookie(c.body)
    for i in [*range(4), *range(12, 20)]:
        s.say(RDType.ECHO, body=OFFER + cookie[:i] + bytes([cookie[i] ^ 1]) + cookie[i + 1 :])
    assert s.silence() and lib.siw_rd_n_peers(e.c) == 0


@pytest.mark.clause("DGRAM-RD-6")
def test_a_cookie_is_good_for_its_address_and_epochs_only(strange):
    e, s = strange
    c = s.challenge()
    s.other = c.source_epoch
    other = Stranger(e, epoch=s.epoch)
    other.other = s.other
    other.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body))
    assert other.silence()
    other.close()
    s.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body), source_epoch=s.epoch + 1)
    s.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body), dest_epoch=s.other + 1)
    assert s.silence() and lib.siw_rd_n_peers(e.c) == 0


@pytest.mark.clause("DGRAM-RD-8")
def test_an_echo_that_comes_twice_is_acknowledged_twice_and_resets_nothing(met):
    e, s = met
    s.say(RDType.DATA, body=b"one")
    assert s.hear(RDType.ACK).acknowledged == s.epoch + 1
    fresh = s.challenge()
    assert fresh.source_epoch == s.other
    s.say(RDType.ECHO, body=OFFER + handshake_cookie(fresh.body))
    assert s.hear(RDType.ACK).acknowledged == s.epoch + 1
    assert not e.told("restarted") and e.data() == [b"one"]


@pytest.mark.clause("DGRAM-RD-7")
def test_an_old_echo_does_not_bring_back_the_life_that_was(strange):
    e, s = strange
    old = s.challenge()
    old_echo = s.build(
        RDType.ECHO, dest_epoch=old.source_epoch, body=OFFER + handshake_cookie(old.body)
    )
    s.sock.sendto(bytes(old_echo), s.dest)
    assert s.hear(RDType.ACK)
    net.sleep(0.002)  # the time in a cookie has a resolution of one millisecond
    s.epoch = 0x77770000
    s.meet()
    assert e.told("restarted") == 1
    counters = Counters()
    s.sock.sendto(bytes(old_echo), s.dest)
    s.drain()
    assert counters["drop_rd_cookie"] == 1
    s.say(RDType.DATA, body=b"still here")
    run(lambda: e.data() == [b"still here"], e)
    assert e.told("restarted") == 1


@pytest.mark.clause("DGRAM-RD-5")
def test_spoofed_first_datagrams_make_no_state(strange):
    e, s = strange
    n = 20000
    hello = bytearray(bytes(s.build(RDType.HELLO, dest_epoch=0, body=HELLO)))
    data = bytearray(bytes(s.build(RDType.DATA, dest_epoch=5, body=b"x" * 20)))
    with setting("crc", 1):
        for i in range(n):
            for octets in (hello, data):
                octets[12:16] = (i + 1).to_bytes(4, "big")
                crc = crc32c(bytes(octets[:-4])).to_bytes(4, "little")
                octets[-4:] = crc
                s.sock.sendto(octets, s.dest)
            if i % 50 == 0:
                e.turn()
        e.turn()
    assert lib.siw_rd_n_peers(e.c) == 0 and not e.news
    s.drain()
    net.sleep(0.01)  # HELLOs that arrive at one instant are rate limited
    s.meet()
    assert lib.siw_rd_n_peers(e.c) == 1


@pytest.mark.clause("DGRAM-RD-2")
def test_a_hello_that_is_lost_is_said_again(strange):
    e, s = strange
    assert e.send(e.peer(s.address), b"x") == 1
    first, second = s.hear(RDType.HELLO), s.hear(RDType.HELLO)
    assert first.source_epoch == second.source_epoch != 0
    assert len(bytes(first)) == 40 + HELLO_LEAST


@pytest.mark.clause("DGRAM-RD-27")
@pytest.mark.parametrize("by", [-1, 1])
def test_of_two_beginnings_at_once_the_one_with_the_greater_epoch_counts(end, by):
    e = end()
    s = Stranger(e)
    peer = e.peer(s.address)
    assert e.send(peer, b"begun here") == 1
    own = s.hear(RDType.HELLO).source_epoch
    s.epoch = own + by
    c = s.challenge()
    # Whichever end started, both ends agree on one pair of epochs.
    assert (c.source_epoch, c.dest_epoch) == (own, s.epoch)
    s.other = own
    counters = Counters()
    s.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body))
    if by < 0:
        run(lambda: counters["drop_rd_epoch"] == 1, e)
        s.drain()
        s.say(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
        assert handshake_cookie(s.hear(RDType.ECHO).body) == b"c" * COOKIE_LEN
        s.say(RDType.ACK)
    data = s.hear(RDType.DATA)
    assert (data.body, data.psn) == (b"begun here", own)
    assert (data.source_epoch, data.dest_epoch) == (own, s.epoch)
    s.say(RDType.DATA, body=b"begun there", acknowledged=(own + 1) & 0xFFFFFFFF)
    run(lambda: e.data() == [b"begun there"], e)
    assert lib.siw_rd_accepted(peer, lib.SIW_RD_REQUESTS) == 1 and not e.told("restarted")
    s.close()


@pytest.mark.clause("DGRAM-RD-27")
def test_whatever_comes_of_the_pair_says_that_its_echo_came(end):
    e = end()
    s = Stranger(e)
    assert e.send(e.peer(s.address), b"x") == 1
    s.other = s.hear(RDType.HELLO).source_epoch
    s.say(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
    s.hear(RDType.ECHO)
    s.say(RDType.DATA, body=b"the ACK was lost")
    assert s.hear(RDType.DATA).body == b"x"
    assert e.data() == [b"the ACK was lost"]
    s.close()


def let_echoes_expire(s: Stranger, e: Endpoint) -> RDDatagram:
    """Leave the ECHOs of an endpoint unanswered; return the HELLO that requests another cookie."""
    assert e.send(e.peer(s.address), b"x") == 1
    s.other = s.hear(RDType.HELLO).source_epoch
    s.say(RDType.CHALLENGE, body=OFFER + b"1" * COOKIE_LEN)
    return s.hear(RDType.HELLO)


@pytest.mark.clause("DGRAM-RD-36")
def test_a_late_answer_to_an_echo_counts_although_another_cookie_was_asked_for(strange):
    e, s = strange
    again = let_echoes_expire(s, e)
    assert (again.source_epoch, again.dest_epoch) == (s.other, 0)
    s.say(RDType.ACK)
    data = s.hear()
    while data.type == RDType.HELLO:
        data = s.hear()
    assert (data.type, data.body) == (RDType.DATA, b"x")
    assert (data.source_epoch, data.dest_epoch) == (s.other, s.epoch)


@pytest.mark.clause("DGRAM-RD-36")
def test_another_challenge_takes_the_place_of_one_whose_echoes_were_not_answered(strange):
    e, s = strange
    let_echoes_expire(s, e)
    old, s.epoch = s.epoch, s.epoch + 1
    s.say(RDType.CHALLENGE, body=OFFER + b"2" * COOKIE_LEN)
    echo = s.hear(RDType.ECHO)
    while echo.dest_epoch == old:
        echo = s.hear(RDType.ECHO)
    assert (echo.dest_epoch, handshake_cookie(echo.body)) == (s.epoch, b"2" * COOKIE_LEN)
    s.say(RDType.ACK, source_epoch=old)
    assert s.hear(RDType.BYE).dest_epoch == old
    s.say(RDType.ACK)
    assert s.hear(RDType.DATA).dest_epoch == s.epoch


# ---- which datagrams are processed


@pytest.mark.clause("DGRAM-LLP-1", "DGRAM-LLP-7")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("drop_version", {"mark": mark}) for mark in (0, 1, 3)),
        *(("drop_version", {"version": version}) for version in (0, 2, 3)),
        *(("drop_opcode", {"type": kind}) for kind in (0, 1, 2, 3, 12, 13, 14, 15)),
        ("drop_header", {"dest_index": 1}),
    ],
)
def test_a_header_that_no_reliable_datagram_has_is_dropped_and_counted(met, name, change):
    e, s = met
    counters = Counters()
    d = s.build(RDType.DATA, body=b"bad")
    for field, value in change.items():
        setattr(d, field, value)
    s.sock.sendto(bytes(d), s.dest)
    run(lambda: counters[name] == 1, e)
    assert s.silence()
    s.say(RDType.DATA, body=b"good")
    run(lambda: e.data() == [b"good"], e)


@pytest.mark.clause("DGRAM-LLP-8")
def test_what_has_no_meaning_is_sent_as_zero_and_not_looked_at(met):
    e, s = met
    s.say(RDType.DATA, body=b"0", flags=0xFF, source_index=7, rd_flags=0xFC)
    run(lambda: e.data() == [b"0"], e)
    assert e.send(e.peer(s.address), b"x") == 1
    d = s.hear(RDType.DATA)
    assert (d.version, d.flags, d.dest_index, d.source_index, int(d.rd_flags)) == (1, 0, 0, 0, 0)


@pytest.mark.clause("DGRAM-LLP-4")
@pytest.mark.parametrize("bit", range(0, 8 * 36, 11))
def test_a_reliable_datagram_with_a_flipped_bit_is_dropped(met, bit):
    e, s = met
    counters = Counters()
    octets = bytearray(bytes(s.build(RDType.DATA, body=b"abcd")))
    octets[bit // 8] ^= 1 << bit % 8
    s.sock.sendto(octets, s.dest)
    run(lambda: counters["drop_crc"] == 1, e)
    assert s.silence() and not e.got


@pytest.mark.clause("DGRAM-LLP-5")
@pytest.mark.parametrize("length", [0, 1, 12, 28, 31])
def test_a_reliable_datagram_without_room_for_header_and_crc_is_dropped(met, length):
    e, s = met
    counters = Counters()
    s.sock.sendto(bytes(s.build(RDType.DATA))[:length], s.dest)
    run(lambda: counters["drop_short"] == 1, e)
    assert s.silence() and not e.got


@pytest.mark.clause("DGRAM-LLP-3", "DGRAM-EXT-6")
def test_an_endpoint_without_crc_sends_zero_and_does_not_look_at_the_field(end):
    e = end(no_crc=True)
    s = Stranger(e)
    found: list[RDDatagram] = []

    def hear(kind: RDType) -> RDDatagram:
        def look() -> bool:
            try:
                found.append(RDDatagram(s.sock.recv(65536)))
            except BlockingIOError:
                return False
            return bool(found[-1].type == kind)

        run(look, e)
        return found[-1]

    counters = Counters()
    # The handshake always has a CRC, and it is checked.
    s.say(RDType.HELLO, dest_epoch=0, body=HELLO, crc=0xDEAD)
    s.say(RDType.HELLO, dest_epoch=0, body=HELLO)
    c = hear(RDType.CHALLENGE)
    assert c.crc == c.crc_expected() and counters["drop_crc"] == 1
    s.other = c.source_epoch
    s.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body), crc=1)
    s.say(RDType.ECHO, body=OFFER + handshake_cookie(c.body))
    hear(RDType.ACK)
    assert counters["drop_crc"] == 2
    found.clear()
    s.say(RDType.DATA, body=b"abcd", crc=2)
    run(lambda: e.data() == [b"abcd"], e)
    assert e.send(e.peer(s.address), b"x") == 1
    assert hear(RDType.DATA).body == b"x"
    assert {d.crc for d in found} == {0}
    s.close()


# ---- closing


@pytest.mark.clause("DGRAM-RD-35")
def test_who_says_much_of_unknown_lives_is_told_so_twenty_times_and_no_more(strange):
    e, s = strange
    said = 1000
    octets = bytes(s.build(RDType.PROBE, dest_epoch=7))
    counters = Counters()
    began = net.now()
    for i in range(said):
        s.sock.sendto(octets, s.dest)
        if i % 50 == 0:
            e.turn()
    run(lambda: counters["drop_rd_epoch"] == said, e)
    took = net.now() - began
    byes = 0
    while True:
        try:
            byes += RDDatagram(s.sock.recv(65536)).type == RDType.BYE
        except BlockingIOError:
            break
    assert 20 <= byes <= min(said, 20 + 200 * took + 1)
    net.sleep(0.02)  # after 20 ms the rate limit allows BYEs again
    s.say(RDType.PROBE, dest_epoch=7)
    assert s.hear().type == RDType.BYE


@pytest.mark.clause("DGRAM-RD-35")
def test_who_says_more_hellos_than_are_answered_in_a_second_is_answered_that_often(strange):
    e, s = strange
    many, each = 20_000, 50
    octets = bytes(s.build(RDType.HELLO, dest_epoch=0, body=HELLO))
    counters = Counters()
    began = net.now()
    for _ in range(many // each):
        for _ in range(each):
            s.sock.sendto(octets, s.dest)
        e.turn()
    took = net.now() - began
    answered = many - counters["drop_rd_hello"]
    assert 1000 <= answered <= min(many, 1000 + 10_000 * took + 1)
    assert lib.siw_rd_n_peers(e.c) == 0


@pytest.mark.clause("DGRAM-RD-9")
def test_one_of_an_unknown_life_is_told_so_and_no_longer_than_it_asked(strange):
    e, s = strange
    for kind in (RDType.DATA, RDType.ACK, RDType.PROBE):
        asked = s.say(kind, dest_epoch=77)
        bye = s.hear()
        assert bye.type == RDType.BYE and (bye.ird, bye.rd_flags) == (RDReason.UNKNOWN, 0)
        assert (bye.source_epoch, bye.dest_epoch) == (77, s.epoch)
        assert len(bytes(bye)) <= len(asked)
    s.say(RDType.BYE, dest_epoch=77, rd_flags="ANSWER")
    assert s.silence() and lib.siw_rd_n_peers(e.c) == 0


@pytest.mark.clause("DGRAM-RD-2", "DGRAM-RD-10")
@pytest.mark.parametrize("reason", RDReason)
def test_a_bye_counts_with_both_epochs_right_only(met, reason):
    e, s = met
    for wrong in ({"source_epoch": s.epoch + 1}, {"dest_epoch": s.other + 1}):
        s.say(RDType.BYE, ird=reason, **wrong)
    s.drain()
    assert not e.told("gone") and not e.told("restarted")
    s.say(RDType.BYE, ird=reason)
    run(lambda: e.told("restarted" if reason == RDReason.UNKNOWN else "gone") == 1, e)
    assert e.send(e.peer(s.address), b"anew") == 1
    assert s.hear(RDType.HELLO).source_epoch not in (0, s.other)


@pytest.mark.clause("DGRAM-RD-11")
def test_a_wrong_q_key_gets_no_answer_at_all(met):
    _, s = met
    for kind in RDType:
        s.say(kind, q_key=QKEY + 1, body=bytes(20))
    assert s.silence()


# ---- data


@pytest.mark.clause("DGRAM-RD-12", "DGRAM-RD-14")
def test_data_out_of_order_is_told_by_a_range_and_comes_up_in_order(met):
    e, s = met
    for i in (3, 1, 2):
        s.say(RDType.DATA, psn=s.epoch + i, body=b"%d" % i)
    for _ in range(3):
        ack = s.hear(RDType.ACK)
    assert ack.acknowledged == s.epoch
    assert ack.received() == {s.epoch + 1, s.epoch + 2, s.epoch + 3}
    assert not e.got
    s.say(RDType.DATA, psn=s.epoch, body=b"0")
    run(lambda: e.data() == [b"0", b"1", b"2", b"3"], e)
    run(lambda: s.hear(RDType.ACK).acknowledged == s.epoch + 4, e)


@pytest.mark.clause("DGRAM-RD-14")
def test_many_that_come_without_a_pause_behind_a_gap_are_told_of_eight_at_a_time(met):
    e, s = met
    counters = Counters()
    ahead = range(1, 81)
    for i in ahead:
        s.say(RDType.DATA, psn=s.epoch + i, body=b"%d" % i)
    told: set[int] = set()
    acks = 0
    while len(told) < len(ahead):
        ack = s.hear(RDType.ACK)
        assert ack.received() >= told and len(ack.received() - told) <= 8
        told, acks = ack.received(), acks + 1
    assert told == {s.epoch + i for i in ahead}
    # The first eight datagrams are acknowledged one by one, as more might not follow; then there is
    # one ACK for eight.
    assert len(ahead) // 8 <= acks <= counters["rd_acks"] <= 8 + len(ahead) // 8 + 1
    s.say(RDType.DATA, body=b"0")
    run(lambda: e.data() == [b"%d" % i for i in range(81)], e)


@pytest.mark.clause("DGRAM-RD-3")
def test_psns_go_on_past_the_end_of_their_numbers(end):
    e = end()
    s = Stranger(e, epoch=0xFFFFFFFE)
    s.meet()
    for i in range(5):
        s.say(RDType.DATA, psn=(s.epoch + i) & 0xFFFFFFFF, body=b"%d" % i)
    run(lambda: e.data() == [b"%d" % i for i in range(5)], e)
    run(lambda: s.hear(RDType.ACK).acknowledged == 3, e)
    s.close()


@pytest.mark.clause("DGRAM-RD-16", "RFC5041-3-13")
def test_a_datagram_that_comes_twice_comes_up_once_and_is_acknowledged_again(met):
    e, s = met
    counters = Counters()
    for n in range(3):
        s.say(RDType.DATA, body=b"once")
        assert s.hear(RDType.ACK).acknowledged == s.epoch + 1
        assert counters["rd_duplicates"] == n
    # A duplicate of a datagram stored behind a gap is counted, too.
    for n in range(3):
        s.say(RDType.DATA, psn=s.epoch + 2, body=b"ahead")
        assert s.hear(RDType.ACK).received() == {s.epoch + 2}
        assert counters["rd_duplicates"] == 2 + n
    s.say(RDType.DATA, psn=s.epoch + 1, body=b"then")
    run(lambda: e.data() == [b"once", b"then", b"ahead"], e)


@pytest.mark.clause("DGRAM-RD-17")
def test_one_past_the_window_is_dropped(met):
    e, s = met
    counters = Counters()
    for psn in (s.epoch + 16384, s.epoch + 0x7FFFFFFF):
        s.say(RDType.DATA, psn=psn & 0xFFFFFFFF, body=b"x")
    run(lambda: counters["drop_rd_window"] == 2, e)


@pytest.mark.clause("DGRAM-RD-17")
def test_memory_for_what_came_early_is_bounded_by_the_window(end):
    with setting("rd_window", 65536):
        e = end()
    s = Stranger(e)
    assert s.meet().credit == 64
    counters = Counters()
    for i in range(1, 200):
        s.say(RDType.DATA, psn=s.epoch + i, body=bytes(1024))
    run(lambda: counters["drop_rd_window"] == 199 - 64, e)
    s.close()


@pytest.mark.clause("DGRAM-RD-15")
def test_an_acknowledgement_is_not_sent_by_itself_where_data_goes_back_at_once(met):
    e, s = met
    s.say(RDType.DATA, body=b"ping")
    run(lambda: e.data() == [b"ping"], e)
    counters = Counters()
    assert e.send(e.peer(s.address), b"pong") == 1
    pong = s.hear(RDType.DATA)
    assert pong.body == b"pong" and pong.acknowledged == s.epoch + 1
    assert counters["rd_acks"] == 0


def test_a_segment_and_what_its_datagram_acknowledges_are_one_event(met):
    e, s = met
    peer = e.peer(s.address)
    assert e.send(peer, b"ping") == 1
    sent = s.hear(RDType.DATA)
    s.say(RDType.DATA, acknowledged=(sent.psn + 1) & 0xFFFFFFFF, body=b"pong")
    events: list[tuple[int, bool]] = []

    def receive() -> None:
        if lib.siw_llp_port_poll(e.port, e.handlers, 4):
            while e.recv():
                events.append((e.event.kind, e.event.acked))

    run(lambda: events, also=receive)
    assert events == [(SEGMENT, True)]
    assert e.data() == [b"pong"] and lib.siw_rd_accepted(peer, lib.SIW_RD_REQUESTS) == 1
