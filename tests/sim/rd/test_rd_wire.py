"""The datagrams that an RD endpoint sends, and its reactions to received datagrams."""

from __future__ import annotations

import net
import pytest
from _siwarp_layers import lib
from unit.llp.llp_harness import Counters, temporary_setting
from unit.rd.rd_kit import HELLO, OFFER, QKEY, SEGMENT, Endpoint, ScapyRdPeer, poll_until

from siwarp.inspect.crc import crc32c
from siwarp.inspect.rd import (
    COOKIE_LEN,
    HELLO_LEAST,
    RDDatagram,
    RDReason,
    RDType,
    cookie_in_handshake_body,
)

# ---- start of an incarnation


@pytest.mark.clause("DGRAM-RD-1", "DGRAM-RD-4", "DGRAM-RD-6")
def test_only_an_echo_creates_a_peer_record_and_a_challenge_is_no_longer_than_its_hello(
    unconnected_endpoint,
):
    e, s = unconnected_endpoint
    asked = s.send_datagram(RDType.HELLO, dest_epoch=0, body=HELLO)
    challenge = s.receive_datagram()
    assert challenge.type == RDType.CHALLENGE
    assert len(bytes(challenge)) <= len(asked)
    assert challenge.dest_epoch == s.epoch and challenge.source_epoch != 0
    assert lib.siw_rd_peer_count(e.c) == 0 and not e.news
    s.other = challenge.source_epoch
    s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(challenge.body))
    ack = s.receive_datagram()
    assert (ack.type, ack.source_epoch, ack.dest_epoch) == (RDType.ACK, s.other, s.epoch)
    assert ack.acknowledged == s.epoch and ack.credit >= 64 and ack.ird == 7
    assert lib.siw_rd_peer_count(e.c) == 1 and e.event_count("new") == 1


@pytest.mark.clause("DGRAM-RD-4")
def test_a_hello_shorter_than_its_answer_is_not_answered(unconnected_endpoint):
    _, s = unconnected_endpoint
    counters = Counters()
    s.send_datagram(RDType.HELLO, dest_epoch=0, body=HELLO[:-1])
    assert s.receives_nothing() and counters["drop_rd_hello"] == 1


@pytest.mark.clause("DGRAM-RD-6")
def test_an_echo_with_a_changed_octet_in_its_cookie_creates_no_peer_record(unconnected_endpoint):
    e, s = unconnected_endpoint
    c = s.request_challenge()
    s.other = c.source_epoch
    # Octets 4 to 11 of a cookie are not checked.
    cookie = cookie_in_handshake_body(c.body)
    for i in [*range(4), *range(12, 20)]:
        s.send_datagram(
            RDType.ECHO, body=OFFER + cookie[:i] + bytes([cookie[i] ^ 1]) + cookie[i + 1 :]
        )
    assert s.receives_nothing() and lib.siw_rd_peer_count(e.c) == 0


@pytest.mark.clause("DGRAM-RD-6")
def test_a_cookie_is_valid_only_for_its_address_and_epochs(unconnected_endpoint):
    e, s = unconnected_endpoint
    c = s.request_challenge()
    s.other = c.source_epoch
    other = ScapyRdPeer(e, epoch=s.epoch)
    other.other = s.other
    other.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body))
    assert other.receives_nothing()
    other.close()
    s.send_datagram(
        RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body), source_epoch=s.epoch + 1
    )
    s.send_datagram(
        RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body), dest_epoch=s.other + 1
    )
    assert s.receives_nothing() and lib.siw_rd_peer_count(e.c) == 0


@pytest.mark.clause("DGRAM-RD-8")
def test_a_repeated_echo_is_acknowledged_again_and_resets_nothing(connected_endpoint):
    e, s = connected_endpoint
    s.send_datagram(RDType.DATA, body=b"one")
    assert s.receive_datagram(RDType.ACK).acknowledged == s.epoch + 1
    fresh = s.request_challenge()
    assert fresh.source_epoch == s.other
    s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(fresh.body))
    assert s.receive_datagram(RDType.ACK).acknowledged == s.epoch + 1
    assert not e.event_count("restarted") and e.received_data() == [b"one"]


@pytest.mark.clause("DGRAM-RD-7")
def test_an_old_echo_does_not_revive_the_former_incarnation(unconnected_endpoint):
    e, s = unconnected_endpoint
    old = s.request_challenge()
    old_echo = s.build_datagram(
        RDType.ECHO, dest_epoch=old.source_epoch, body=OFFER + cookie_in_handshake_body(old.body)
    )
    s.sock.sendto(bytes(old_echo), s.dest)
    assert s.receive_datagram(RDType.ACK)
    net.sleep(0.002)  # the time in a cookie has a resolution of one millisecond
    s.epoch = 0x77770000
    s.connect()
    assert e.event_count("restarted") == 1
    counters = Counters()
    s.sock.sendto(bytes(old_echo), s.dest)
    s.discard_datagrams_until_silent()
    assert counters["drop_rd_cookie"] == 1
    s.send_datagram(RDType.DATA, body=b"still here")
    poll_until(lambda: e.received_data() == [b"still here"], e)
    assert e.event_count("restarted") == 1


@pytest.mark.clause("DGRAM-RD-5")
def test_spoofed_first_datagrams_create_no_state(unconnected_endpoint):
    e, s = unconnected_endpoint
    n = 20000
    hello = bytearray(bytes(s.build_datagram(RDType.HELLO, dest_epoch=0, body=HELLO)))
    data = bytearray(bytes(s.build_datagram(RDType.DATA, dest_epoch=5, body=b"x" * 20)))
    with temporary_setting("crc", 1):
        for i in range(n):
            for octets in (hello, data):
                octets[12:16] = (i + 1).to_bytes(4, "big")
                crc = crc32c(bytes(octets[:-4])).to_bytes(4, "little")
                octets[-4:] = crc
                s.sock.sendto(octets, s.dest)
            if i % 50 == 0:
                e.poll_once()
        e.poll_once()
    assert lib.siw_rd_peer_count(e.c) == 0 and not e.news
    s.discard_datagrams_until_silent()
    net.sleep(0.01)  # the rate of answers to HELLOs is limited
    s.connect()
    assert lib.siw_rd_peer_count(e.c) == 1


@pytest.mark.clause("DGRAM-RD-2")
def test_an_unanswered_hello_is_retransmitted(unconnected_endpoint):
    e, s = unconnected_endpoint
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    first, second = s.receive_datagram(RDType.HELLO), s.receive_datagram(RDType.HELLO)
    assert first.source_epoch == second.source_epoch != 0
    assert len(bytes(first)) == 40 + HELLO_LEAST


@pytest.mark.clause("DGRAM-RD-27")
@pytest.mark.parametrize("by", [-1, 1])
def test_of_two_simultaneous_connection_attempts_the_one_with_the_greater_epoch_succeeds(
    make_endpoint, by
):
    e = make_endpoint()
    s = ScapyRdPeer(e)
    peer = e.get_or_create_peer(s.address)
    assert e.send(peer, b"begun here") == 1
    own = s.receive_datagram(RDType.HELLO).source_epoch
    s.epoch = own + by
    c = s.request_challenge()
    # Both ends agree on one pair of epochs, regardless of which end started.
    assert (c.source_epoch, c.dest_epoch) == (own, s.epoch)
    s.other = own
    counters = Counters()
    s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body))
    if by < 0:
        poll_until(lambda: counters["drop_rd_epoch"] == 1, e)
        s.discard_datagrams_until_silent()
        s.send_datagram(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
        assert cookie_in_handshake_body(s.receive_datagram(RDType.ECHO).body) == b"c" * COOKIE_LEN
        s.send_datagram(RDType.ACK)
    data = s.receive_datagram(RDType.DATA)
    assert (data.body, data.psn) == (b"begun here", own)
    assert (data.source_epoch, data.dest_epoch) == (own, s.epoch)
    s.send_datagram(RDType.DATA, body=b"begun there", acknowledged=(own + 1) & 0xFFFFFFFF)
    poll_until(lambda: e.received_data() == [b"begun there"], e)
    assert lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 1 and not e.event_count(
        "restarted"
    )
    s.close()


@pytest.mark.clause("DGRAM-RD-27")
def test_any_datagram_of_the_pair_counts_as_an_acknowledgement_of_an_echo(make_endpoint):
    e = make_endpoint()
    s = ScapyRdPeer(e)
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    s.other = s.receive_datagram(RDType.HELLO).source_epoch
    s.send_datagram(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
    s.receive_datagram(RDType.ECHO)
    s.send_datagram(RDType.DATA, body=b"the ACK was lost")
    assert s.receive_datagram(RDType.DATA).body == b"x"
    assert e.received_data() == [b"the ACK was lost"]
    s.close()


def receive_hello_after_unanswered_echoes(s: ScapyRdPeer, e: Endpoint) -> RDDatagram:
    """Leave the ECHOs of an endpoint unanswered; return the HELLO that requests another cookie."""
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    s.other = s.receive_datagram(RDType.HELLO).source_epoch
    s.send_datagram(RDType.CHALLENGE, body=OFFER + b"1" * COOKIE_LEN)
    return s.receive_datagram(RDType.HELLO)


@pytest.mark.clause("DGRAM-RD-36")
def test_a_late_acknowledgement_of_an_echo_is_accepted_after_another_cookie_was_requested(
    unconnected_endpoint,
):
    e, s = unconnected_endpoint
    again = receive_hello_after_unanswered_echoes(s, e)
    assert (again.source_epoch, again.dest_epoch) == (s.other, 0)
    s.send_datagram(RDType.ACK)
    data = s.receive_datagram()
    while data.type == RDType.HELLO:
        data = s.receive_datagram()
    assert (data.type, data.body) == (RDType.DATA, b"x")
    assert (data.source_epoch, data.dest_epoch) == (s.other, s.epoch)


@pytest.mark.clause("DGRAM-RD-36")
def test_another_challenge_replaces_a_challenge_whose_echoes_were_not_answered(
    unconnected_endpoint,
):
    e, s = unconnected_endpoint
    receive_hello_after_unanswered_echoes(s, e)
    old, s.epoch = s.epoch, s.epoch + 1
    s.send_datagram(RDType.CHALLENGE, body=OFFER + b"2" * COOKIE_LEN)
    echo = s.receive_datagram(RDType.ECHO)
    while echo.dest_epoch == old:
        echo = s.receive_datagram(RDType.ECHO)
    assert (echo.dest_epoch, cookie_in_handshake_body(echo.body)) == (s.epoch, b"2" * COOKIE_LEN)
    s.send_datagram(RDType.ACK, source_epoch=old)
    assert s.receive_datagram(RDType.BYE).dest_epoch == old
    s.send_datagram(RDType.ACK)
    assert s.receive_datagram(RDType.DATA).dest_epoch == s.epoch


# ---- acceptance of datagrams


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
def test_an_rd_datagram_with_an_invalid_header_is_dropped_and_counted(
    connected_endpoint, name, change
):
    e, s = connected_endpoint
    counters = Counters()
    d = s.build_datagram(RDType.DATA, body=b"bad")
    for field, value in change.items():
        setattr(d, field, value)
    s.sock.sendto(bytes(d), s.dest)
    poll_until(lambda: counters[name] == 1, e)
    assert s.receives_nothing()
    s.send_datagram(RDType.DATA, body=b"good")
    poll_until(lambda: e.received_data() == [b"good"], e)


@pytest.mark.clause("DGRAM-LLP-8")
def test_unused_header_fields_are_sent_as_zero_and_ignored_on_receipt(connected_endpoint):
    e, s = connected_endpoint
    s.send_datagram(RDType.DATA, body=b"0", flags=0xFF, source_index=7, rd_flags=0xFC)
    poll_until(lambda: e.received_data() == [b"0"], e)
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    d = s.receive_datagram(RDType.DATA)
    assert (d.version, d.flags, d.dest_index, d.source_index, int(d.rd_flags)) == (1, 0, 0, 0, 0)


@pytest.mark.clause("DGRAM-LLP-4")
@pytest.mark.parametrize("bit", range(0, 8 * 36, 11))
def test_a_reliable_datagram_with_a_flipped_bit_is_dropped(connected_endpoint, bit):
    e, s = connected_endpoint
    counters = Counters()
    octets = bytearray(bytes(s.build_datagram(RDType.DATA, body=b"abcd")))
    octets[bit // 8] ^= 1 << bit % 8
    s.sock.sendto(octets, s.dest)
    poll_until(lambda: counters["drop_crc"] == 1, e)
    assert s.receives_nothing() and not e.got


@pytest.mark.clause("DGRAM-LLP-5")
@pytest.mark.parametrize("length", [0, 1, 12, 28, 31])
def test_an_rd_datagram_too_short_for_header_and_crc_is_dropped(connected_endpoint, length):
    e, s = connected_endpoint
    counters = Counters()
    s.sock.sendto(bytes(s.build_datagram(RDType.DATA))[:length], s.dest)
    poll_until(lambda: counters["drop_short"] == 1, e)
    assert s.receives_nothing() and not e.got


@pytest.mark.clause("DGRAM-LLP-3", "DGRAM-EXT-6")
def test_an_endpoint_without_crc_sends_a_crc_of_zero_and_does_not_check_the_field(make_endpoint):
    e = make_endpoint(no_crc=True)
    s = ScapyRdPeer(e)
    found: list[RDDatagram] = []

    def receive_datagram_of_type(kind: RDType) -> RDDatagram:
        def receive_and_check_kind() -> bool:
            try:
                found.append(RDDatagram(s.sock.recv(65536)))
            except BlockingIOError:
                return False
            return bool(found[-1].type == kind)

        poll_until(receive_and_check_kind, e)
        return found[-1]

    counters = Counters()
    # Handshake datagrams always have a CRC, which the endpoint checks.
    s.send_datagram(RDType.HELLO, dest_epoch=0, body=HELLO, crc=0xDEAD)
    s.send_datagram(RDType.HELLO, dest_epoch=0, body=HELLO)
    c = receive_datagram_of_type(RDType.CHALLENGE)
    assert c.crc == c.crc_expected() and counters["drop_crc"] == 1
    s.other = c.source_epoch
    s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body), crc=1)
    s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body))
    receive_datagram_of_type(RDType.ACK)
    assert counters["drop_crc"] == 2
    found.clear()
    s.send_datagram(RDType.DATA, body=b"abcd", crc=2)
    poll_until(lambda: e.received_data() == [b"abcd"], e)
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    assert receive_datagram_of_type(RDType.DATA).body == b"x"
    assert {d.crc for d in found} == {0}
    s.close()


# ---- end of an incarnation


@pytest.mark.clause("DGRAM-RD-35")
def test_byes_for_unknown_incarnations_are_limited_by_rate(unconnected_endpoint):
    e, s = unconnected_endpoint
    said = 1000
    octets = bytes(s.build_datagram(RDType.PROBE, dest_epoch=7))
    counters = Counters()
    began = net.now()
    for i in range(said):
        s.sock.sendto(octets, s.dest)
        if i % 50 == 0:
            e.poll_once()
    poll_until(lambda: counters["drop_rd_epoch"] == said, e)
    took = net.now() - began
    byes = 0
    while True:
        try:
            byes += RDDatagram(s.sock.recv(65536)).type == RDType.BYE
        except BlockingIOError:
            break
    assert 20 <= byes <= min(said, 20 + 200 * took + 1)
    net.sleep(0.02)  # after 20 ms the rate limit allows BYEs again
    s.send_datagram(RDType.PROBE, dest_epoch=7)
    assert s.receive_datagram().type == RDType.BYE


@pytest.mark.clause("DGRAM-RD-35")
def test_answers_to_hellos_are_limited_by_rate(
    unconnected_endpoint,
):
    e, s = unconnected_endpoint
    many, each = 20_000, 50
    octets = bytes(s.build_datagram(RDType.HELLO, dest_epoch=0, body=HELLO))
    counters = Counters()
    began = net.now()
    for _ in range(many // each):
        for _ in range(each):
            s.sock.sendto(octets, s.dest)
        e.poll_once()
    took = net.now() - began
    answered = many - counters["drop_rd_hello"]
    assert 1000 <= answered <= min(many, 1000 + 10_000 * took + 1)
    assert lib.siw_rd_peer_count(e.c) == 0


@pytest.mark.clause("DGRAM-RD-9")
def test_a_datagram_of_an_unknown_incarnation_is_answered_by_a_bye_that_is_no_longer(
    unconnected_endpoint,
):
    e, s = unconnected_endpoint
    for kind in (RDType.DATA, RDType.ACK, RDType.PROBE):
        asked = s.send_datagram(kind, dest_epoch=77)
        bye = s.receive_datagram()
        assert bye.type == RDType.BYE and (bye.ird, bye.rd_flags) == (RDReason.UNKNOWN, 0)
        assert (bye.source_epoch, bye.dest_epoch) == (77, s.epoch)
        assert len(bytes(bye)) <= len(asked)
    s.send_datagram(RDType.BYE, dest_epoch=77, rd_flags="ANSWER")
    assert s.receives_nothing() and lib.siw_rd_peer_count(e.c) == 0


@pytest.mark.clause("DGRAM-RD-2", "DGRAM-RD-10")
@pytest.mark.parametrize("reason", RDReason)
def test_a_bye_is_accepted_only_with_both_epochs_right(connected_endpoint, reason):
    e, s = connected_endpoint
    for wrong in ({"source_epoch": s.epoch + 1}, {"dest_epoch": s.other + 1}):
        s.send_datagram(RDType.BYE, ird=reason, **wrong)
    s.discard_datagrams_until_silent()
    assert not e.event_count("gone") and not e.event_count("restarted")
    s.send_datagram(RDType.BYE, ird=reason)
    poll_until(lambda: e.event_count("restarted" if reason == RDReason.UNKNOWN else "gone") == 1, e)
    assert e.send(e.get_or_create_peer(s.address), b"anew") == 1
    assert s.receive_datagram(RDType.HELLO).source_epoch not in (0, s.other)


@pytest.mark.clause("DGRAM-RD-11")
def test_a_datagram_with_a_wrong_q_key_is_not_answered(connected_endpoint):
    _, s = connected_endpoint
    for kind in RDType:
        s.send_datagram(kind, q_key=QKEY + 1, body=bytes(20))
    assert s.receives_nothing()


# ---- data


@pytest.mark.clause("DGRAM-RD-12", "DGRAM-RD-14")
def test_out_of_order_datagrams_are_acknowledged_by_a_range_and_delivered_in_order(
    connected_endpoint,
):
    e, s = connected_endpoint
    for i in (3, 1, 2):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"%d" % i)
    for _ in range(3):
        ack = s.receive_datagram(RDType.ACK)
    assert ack.acknowledged == s.epoch
    assert ack.received() == {s.epoch + 1, s.epoch + 2, s.epoch + 3}
    assert not e.got
    s.send_datagram(RDType.DATA, psn=s.epoch, body=b"0")
    poll_until(lambda: e.received_data() == [b"0", b"1", b"2", b"3"], e)
    poll_until(lambda: s.receive_datagram(RDType.ACK).acknowledged == s.epoch + 4, e)


@pytest.mark.clause("DGRAM-RD-14")
def test_a_burst_of_datagrams_after_a_gap_is_acknowledged_once_per_eight_datagrams(
    connected_endpoint,
):
    e, s = connected_endpoint
    counters = Counters()
    ahead = range(1, 81)
    for i in ahead:
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"%d" % i)
    told: set[int] = set()
    acks = 0
    while len(told) < len(ahead):
        ack = s.receive_datagram(RDType.ACK)
        assert ack.received() >= told and len(ack.received() - told) <= 8
        told, acks = ack.received(), acks + 1
    assert told == {s.epoch + i for i in ahead}
    # The first eight datagrams are acknowledged one by one, because no more datagrams might
    # follow; later datagrams are acknowledged in groups of eight.
    assert len(ahead) // 8 <= acks <= counters["rd_acks"] <= 8 + len(ahead) // 8 + 1
    s.send_datagram(RDType.DATA, body=b"0")
    poll_until(lambda: e.received_data() == [b"%d" % i for i in range(81)], e)


@pytest.mark.clause("DGRAM-RD-3")
def test_psns_wrap_around_to_zero(make_endpoint):
    e = make_endpoint()
    s = ScapyRdPeer(e, epoch=0xFFFFFFFE)
    s.connect()
    for i in range(5):
        s.send_datagram(RDType.DATA, psn=(s.epoch + i) & 0xFFFFFFFF, body=b"%d" % i)
    poll_until(lambda: e.received_data() == [b"%d" % i for i in range(5)], e)
    poll_until(lambda: s.receive_datagram(RDType.ACK).acknowledged == 3, e)
    s.close()


@pytest.mark.clause("DGRAM-RD-16", "RFC5041-3-13")
def test_a_duplicate_datagram_is_delivered_once_and_acknowledged_again(connected_endpoint):
    e, s = connected_endpoint
    counters = Counters()
    for n in range(3):
        s.send_datagram(RDType.DATA, body=b"once")
        assert s.receive_datagram(RDType.ACK).acknowledged == s.epoch + 1
        assert counters["rd_duplicates"] == n
    # A duplicate of a datagram that is stored after a gap is counted, too.
    for n in range(3):
        s.send_datagram(RDType.DATA, psn=s.epoch + 2, body=b"ahead")
        assert s.receive_datagram(RDType.ACK).received() == {s.epoch + 2}
        assert counters["rd_duplicates"] == 2 + n
    s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=b"then")
    poll_until(lambda: e.received_data() == [b"once", b"then", b"ahead"], e)


@pytest.mark.clause("DGRAM-RD-17")
def test_a_datagram_beyond_the_window_is_dropped(connected_endpoint):
    e, s = connected_endpoint
    counters = Counters()
    for psn in (s.epoch + 16384, s.epoch + 0x7FFFFFFF):
        s.send_datagram(RDType.DATA, psn=psn & 0xFFFFFFFF, body=b"x")
    poll_until(lambda: counters["drop_rd_window"] == 2, e)


@pytest.mark.clause("DGRAM-RD-17")
def test_memory_for_datagrams_after_a_gap_is_bounded_by_the_window(make_endpoint):
    with temporary_setting("rd_window", 65536):
        e = make_endpoint()
    s = ScapyRdPeer(e)
    assert s.connect().credit == 64
    counters = Counters()
    for i in range(1, 200):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=bytes(1024))
    poll_until(lambda: counters["drop_rd_window"] == 199 - 64, e)
    s.close()


@pytest.mark.clause("DGRAM-RD-15")
def test_an_immediate_reply_carries_the_acknowledgement_of_a_segment(connected_endpoint):
    e, s = connected_endpoint
    s.send_datagram(RDType.DATA, body=b"ping")
    poll_until(lambda: e.received_data() == [b"ping"], e)
    counters = Counters()
    assert e.send(e.get_or_create_peer(s.address), b"pong") == 1
    pong = s.receive_datagram(RDType.DATA)
    assert pong.body == b"pong" and pong.acknowledged == s.epoch + 1
    assert counters["rd_acks"] == 0


def test_a_segment_and_the_acknowledgement_in_its_datagram_are_one_event(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    assert e.send(peer, b"ping") == 1
    sent = s.receive_datagram(RDType.DATA)
    s.send_datagram(RDType.DATA, acknowledged=(sent.psn + 1) & 0xFFFFFFFF, body=b"pong")
    events: list[tuple[int, bool]] = []

    def poll_events() -> None:
        if lib.siw_llp_poller_poll(e.poller, e.handlers, 4):
            while e.handle_event():
                events.append((e.event.kind, e.event.acked))

    poll_until(lambda: events, also=poll_events)
    assert events == [(SEGMENT, True)]
    assert (
        e.received_data() == [b"pong"]
        and lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == 1
    )
