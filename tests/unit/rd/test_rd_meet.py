"""RD's handshake: versions, options, and eviction of peer records."""

from __future__ import annotations

import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import Counters
from unit.rd.rd_kit import HELLO, OFFER, QKEY, Endpoint, ScapyRdPeer, poll_until

from siwarp.inspect.rd import (
    COOKIE_LEN,
    HELLO_LEAST,
    RDDatagram,
    RDOption,
    RDType,
    cookie_in_handshake_body,
    handshake_offer_len,
    make_handshake_offer,
    parse_handshake_options,
)

LEAST = 1160


def send_hello(s: ScapyRdPeer, offered: bytes) -> None:
    s.send_datagram(RDType.HELLO, dest_epoch=0, body=offered.ljust(HELLO_LEAST, b"\0"))


def connect_with_options(s: ScapyRdPeer, offered: bytes) -> RDDatagram:
    send_hello(s, offered)
    c = s.receive_datagram(RDType.CHALLENGE)
    s.other = c.source_epoch
    s.send_datagram(RDType.ECHO, body=offered + cookie_in_handshake_body(c.body))
    return s.receive_datagram(RDType.ACK)


# ---- versions and options


@pytest.mark.clause("DGRAM-EXT-1", "DGRAM-INST-1")
def test_hello_and_challenge_have_versions_and_options_and_an_echo_repeats_the_hellos(
    unconnected_endpoint,
):
    e, s = unconnected_endpoint
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    hello = s.receive_datagram(RDType.HELLO)
    assert hello.body[:2] == b"\x02\0" and len(hello.body) == HELLO_LEAST
    told = {
        kind: int.from_bytes(value, "big")
        for kind, value in parse_handshake_options(hello.body).items()
    }
    assert told[RDOption.LONGEST] > 60_000 and told[RDOption.WINDOW] >= 4096
    assert told[RDOption.FEATURES] == 0
    assert (
        told[RDOption.INSTANCE] and len(parse_handshake_options(hello.body)[RDOption.INSTANCE]) == 8
    )
    s.other = hello.source_epoch
    s.send_datagram(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
    echo = s.receive_datagram(RDType.ECHO)
    assert echo.body == hello.body[: handshake_offer_len(hello.body)] + b"c" * COOKIE_LEN
    other = s.request_challenge()
    assert parse_handshake_options(other.body) == parse_handshake_options(hello.body)
    assert (
        len(cookie_in_handshake_body(other.body)) == COOKIE_LEN and len(other.body) <= HELLO_LEAST
    )


@pytest.mark.clause("DGRAM-EXT-1")
@pytest.mark.parametrize("at", [0, 1, 5, 9, 10, 15])
def test_an_echo_that_differs_from_its_hello_creates_no_peer(unconnected_endpoint, at):
    e, s = unconnected_endpoint
    c = s.request_challenge()
    s.other = c.source_epoch
    other = bytearray(OFFER + cookie_in_handshake_body(c.body))
    other[at] ^= 4
    s.send_datagram(RDType.ECHO, body=bytes(other))
    assert s.receives_nothing() and lib.siw_rd_peer_count(e.c) == 0
    s.send_datagram(RDType.ECHO, body=OFFER + cookie_in_handshake_body(c.body))
    assert s.receive_datagram().type == RDType.ACK


@pytest.mark.clause("DGRAM-EXT-2")
def test_unknown_handshake_options_are_skipped(unconnected_endpoint):
    e, s = unconnected_endpoint
    peer = e.get_or_create_peer(s.address)
    unknown = b"\x09\x00" + b"\xff\x07" + b"unknown" + b"\x05\x01x"
    connect_with_options(
        s, make_handshake_offer({1: 9000, 2: 100}, extra=unknown + b"\x01\x04\0\0\x20\0")
    )
    # of two options of the same type, the last one counts
    assert lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) == 8192


MALFORMED = {
    "longer than the datagram": b"\x02\0\xff\xff",
    "an option past the options": make_handshake_offer(extra=b"\x09\x05" + b"four"),
    "half of an option's head": make_handshake_offer(extra=b"\x09"),
    "a number of three octets": make_handshake_offer(extra=b"\x01\x03\0\x10\0"),
    "a number of five octets": make_handshake_offer(extra=b"\x02\x05\0\0\0\x10\0"),
    "no segment that every end takes": make_handshake_offer({1: LEAST - 1}),
    "no window": make_handshake_offer({2: 0}),
    "an instance of zero": make_handshake_offer({4: 0}),
    "an instance of seven octets": make_handshake_offer(extra=b"\x04\x07" + b"instanc"),
    "an instance of nine octets": make_handshake_offer(extra=b"\x04\x09" + b"instances"),
    "not its own version": make_handshake_offer({1: 9000}, versions=0xFD),
}


@pytest.mark.clause("DGRAM-EXT-2", "DGRAM-INST-1")
@pytest.mark.parametrize("offered", MALFORMED.values(), ids=MALFORMED)
def test_a_hello_or_challenge_whose_options_are_malformed_is_dropped(unconnected_endpoint, offered):
    e, s = unconnected_endpoint
    counters = Counters()
    send_hello(s, offered)
    assert s.receives_nothing() and counters["drop_rd_hello"] == 1
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    s.other = s.receive_datagram(RDType.HELLO).source_epoch
    s.send_datagram(RDType.CHALLENGE, body=offered + b"c" * COOKIE_LEN)
    poll_until(lambda: counters["drop_rd_epoch"] == 1, e)
    s.send_datagram(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
    assert s.receive_datagram(RDType.ECHO)


@pytest.mark.clause("DGRAM-EXT-2")
def test_a_challenge_whose_cookie_has_another_length_is_dropped(unconnected_endpoint):
    e, s = unconnected_endpoint
    counters = Counters()
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    s.other = s.receive_datagram(RDType.HELLO).source_epoch
    for n in (0, COOKIE_LEN - 1, COOKIE_LEN + 1):
        s.send_datagram(RDType.CHALLENGE, body=OFFER + bytes(n))
    poll_until(lambda: counters["drop_rd_epoch"] == 3, e)


@pytest.mark.clause("DGRAM-EXT-3")
@pytest.mark.parametrize(("longest", "most"), [(None, LEAST), (LEAST, LEAST), (5001, 5001)])
def test_segments_are_no_longer_than_the_peers_advertised_maximum(
    unconnected_endpoint, longest, most
):
    e, s = unconnected_endpoint
    peer = e.get_or_create_peer(s.address)
    assert (
        lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) <= LEAST
    )  # LEAST is the maximum segment length before the handshake
    connect_with_options(s, make_handshake_offer({1: longest} if longest else {}))
    assert lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) == most
    # After the peer has closed, the maximum segment length of its successor is unknown.
    s.send_datagram(RDType.BYE)
    poll_until(lambda: e.event_count("gone") == 1, e)
    assert lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) <= LEAST


@pytest.mark.clause("DGRAM-EXT-4")
@pytest.mark.parametrize(("window", "most"), [(None, 64), (1, 1), (5, 5)])
def test_no_more_datagrams_are_outstanding_than_the_peers_advertised_window(
    unconnected_endpoint, window, most
):
    e, s = unconnected_endpoint
    peer = e.get_or_create_peer(s.address)
    connect_with_options(s, make_handshake_offer({2: window} if window else {}))
    for i in range(100):
        assert e.send(peer, b"%d" % i) == 1
    lib.siw_rd_flush(peer, ffi.new("uint64_t *"))
    came = {s.receive_datagram(RDType.DATA).psn - s.other for _ in range(most)}
    assert came == set(range(most))
    s.send_datagram(RDType.ACK, acknowledged=s.other + 1)
    while (d := s.receive_datagram(RDType.DATA)).psn - s.other in came:
        pass
    assert d.psn - s.other == most


@pytest.mark.clause("DGRAM-EXT-5", "DGRAM-EXT-7")
@pytest.mark.parametrize("version", [0, 2, 3])
def test_a_hello_of_another_version_is_answered_with_the_supported_versions(
    unconnected_endpoint, version
):
    e, s = unconnected_endpoint
    counters = Counters()
    fields = {
        "version": version,
        "dest_epoch": 0,
        "body": make_handshake_offer(versions=1 << version),
    }
    asked = s.send_datagram(RDType.HELLO, **fields)
    answer = s.receive_datagram()
    assert (answer.type, answer.version) == (RDType.VERSIONS, 1)
    assert (answer.source_epoch, answer.dest_epoch) == (0, s.epoch)
    assert answer.body == b"\x02\0\0\0" and len(bytes(answer)) <= len(asked)
    assert counters["drop_version"] == 1
    # VERSIONS answers only a HELLO with a valid Q_Key and epoch, not shorter than the answer.
    s.send_datagram(RDType.HELLO, **fields, q_key=QKEY + 1)
    s.send_datagram(RDType.HELLO, **fields | {"body": b"\x04\0\0"})
    s.send_datagram(RDType.HELLO, **fields, source_epoch=0)
    for kind in (RDType.CHALLENGE, RDType.ECHO, RDType.DATA, RDType.BYE):
        s.send_datagram(kind, version=version)
    assert s.receives_nothing() and lib.siw_rd_peer_count(e.c) == 0


@pytest.mark.clause("DGRAM-EXT-5")
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_versions_datagram_without_a_common_version_ends_the_handshake(
    unconnected_endpoint, version
):
    e, s = unconnected_endpoint
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    s.other = s.receive_datagram(RDType.HELLO).source_epoch
    counters = Counters()
    s.send_datagram(
        RDType.VERSIONS, version=version, source_epoch=0, body=make_handshake_offer(versions=0xFF)
    )
    s.send_datagram(
        RDType.VERSIONS,
        version=version,
        dest_epoch=s.other + 1,
        body=make_handshake_offer(versions=4),
    )
    s.send_datagram(RDType.VERSIONS, version=version, body=b"\x04\0\0")
    poll_until(lambda: counters["drop_rd_epoch"] == 3, e)
    assert not e.event_count("gone")
    s.send_datagram(
        RDType.VERSIONS, version=version, source_epoch=0, body=make_handshake_offer(versions=4)
    )
    poll_until(lambda: e.event_count("gone") == 1, e)
    assert counters["drop_version"] == 1


# ---- fields sent as zero

ACKNOWLEDGES = {
    "source_epoch", "dest_epoch", "acknowledged", "response_acknowledged", "credit",
    "response_credit", "delay",
}  # fmt: skip
#: The RD header fields that each datagram type uses; all other fields are zero.
MEANT = {
    RDType.DATA: ACKNOWLEDGES | {"psn", "ird"},
    RDType.ACK: ACKNOWLEDGES | {"psn", "ird", "rd_flags"},
    RDType.HELLO: {"source_epoch"},
    RDType.CHALLENGE: {"source_epoch", "dest_epoch"},
    RDType.ECHO: ACKNOWLEDGES - {"delay"},
    RDType.PROBE: ACKNOWLEDGES | {"psn", "ird"},
    RDType.BYE: ACKNOWLEDGES | {"ird"},
    RDType.VERSIONS: {"dest_epoch"},
}


@pytest.mark.clause("DGRAM-MEET-6", "DGRAM-LLP-8")
def test_every_rd_header_field_that_a_datagram_type_does_not_use_is_zero(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    s, other = make_scapy_rd_peers(e, 2)
    heard: dict[int, int] = {}

    def check_that_unused_fields_are_zero(d: RDDatagram) -> RDDatagram:
        always = {"type", "version", "mark", "q_key", "body", "crc"}
        for field in d.fields_desc:
            if field.name not in MEANT[RDType(d.type)] | always:
                assert int(getattr(d, field.name)) == 0, (d.type, field.name)
        if d.type in (RDType.HELLO, RDType.CHALLENGE, RDType.ECHO, RDType.VERSIONS):
            assert d.body[1] == 0
            rest = d.body[handshake_offer_len(d.body) :]
            # An ECHO carries the challenger's cookie.
            assert d.type == RDType.ECHO or not any(
                rest[4:12] if d.type == RDType.CHALLENGE else rest
            )
        elif d.type in (RDType.PROBE, RDType.BYE):
            assert not any(d.body)
        heard[d.type] = heard.get(d.type, 0) + 1
        return d

    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    s.other = check_that_unused_fields_are_zero(s.receive_datagram()).source_epoch
    s.send_datagram(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
    check_that_unused_fields_are_zero(s.receive_datagram())
    s.send_datagram(RDType.ACK)
    data = check_that_unused_fields_are_zero(s.receive_datagram(RDType.DATA))
    s.send_datagram(RDType.ACK, acknowledged=(data.psn + 1) & 0xFFFFFFFF)
    s.send_datagram(RDType.PROBE)
    check_that_unused_fields_are_zero(s.receive_datagram(RDType.ACK))
    s.send_datagram(RDType.DATA, psn=s.epoch + 1, body=b"early")
    check_that_unused_fields_are_zero(s.receive_datagram(RDType.ACK))
    s.send_datagram(RDType.ACK, acknowledged=(data.psn + 1) & 0xFFFFFFFF, credit=0)
    # credit is 0, so the endpoint sends a PROBE to ask for credit
    assert e.send(e.get_or_create_peer(s.address), b"y") == 1
    check_that_unused_fields_are_zero(s.receive_datagram(RDType.PROBE))
    check_that_unused_fields_are_zero(other.request_challenge())
    other.send_datagram(RDType.PROBE, dest_epoch=9)
    check_that_unused_fields_are_zero(other.receive_datagram())
    other.send_datagram(RDType.HELLO, version=2, dest_epoch=0, body=HELLO)
    check_that_unused_fields_are_zero(other.receive_datagram())
    lib.siw_rd_end_peer_incarnation(e.get_or_create_peer(s.address), 0)
    check_that_unused_fields_are_zero(s.receive_datagram(RDType.BYE))
    assert set(heard) == set(RDType)


# ---- the CHALLENGE to answer


@pytest.mark.clause("DGRAM-MEET-1")
def test_only_the_first_challenge_to_a_hello_is_answered_with_an_echo(unconnected_endpoint):
    e, s = unconnected_endpoint
    assert e.send(e.get_or_create_peer(s.address), b"x") == 1
    s.other = s.receive_datagram(RDType.HELLO).source_epoch
    first, counters = s.epoch, Counters()
    s.send_datagram(RDType.CHALLENGE, body=OFFER + b"1" * COOKIE_LEN)
    s.send_datagram(RDType.CHALLENGE, source_epoch=first + 1, body=OFFER + b"2" * COOKIE_LEN)
    for _ in range(3):
        echo = s.receive_datagram(RDType.ECHO)
        assert (echo.dest_epoch, cookie_in_handshake_body(echo.body)) == (first, b"1" * COOKIE_LEN)
    assert counters["drop_rd_epoch"] == 1


@pytest.mark.clause("DGRAM-MEET-2")
def test_repeated_hellos_are_challenged_with_the_same_epoch(unconnected_endpoint):
    _, s = unconnected_endpoint
    epochs = {s.request_challenge().source_epoch for _ in range(20)}
    assert len(epochs) == 1 and 0 not in epochs
    s.epoch += 1
    assert s.request_challenge().source_epoch not in epochs


# ---- eviction of peer records


def connect_and_send_segment(s: ScapyRdPeer) -> None:
    s.connect()
    s.send_datagram(RDType.DATA, body=b"given")
    s.receive_datagram(RDType.ACK)


def endpoint_knows_peer(s: ScapyRdPeer, psn: int = 0) -> bool:
    s.discard_datagrams_until_silent()
    s.send_datagram(RDType.DATA, psn=s.epoch + psn, body=b"still?")
    return bool(s.receive_datagram().type != RDType.BYE)


@pytest.mark.clause("DGRAM-MEET-7", "DGRAM-RD-25")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_new_peer_evicts_the_record_of_a_peer_that_sent_no_data(
    make_endpoint, make_scapy_rd_peers, host
):
    e = make_endpoint(max_peers=6)
    lone, giver, *many = [*make_scapy_rd_peers(e, 1, "127.0.0.3"), *make_scapy_rd_peers(e, 5)]
    lone.connect()
    connect_and_send_segment(giver)
    for s in many:
        s.connect()
    counters = Counters()
    newcomers = make_scapy_rd_peers(e, 3, host)
    for s in newcomers:
        s.connect()
    assert counters["rd_evicted"] == 3 and lib.siw_rd_peer_count(e.c) == 6
    assert (
        endpoint_knows_peer(newcomers[-1])
        and endpoint_knows_peer(lone)
        and endpoint_knows_peer(giver, 1)
    )
    assert [endpoint_knows_peer(s) for s in many[:2]] == [False, False]


@pytest.mark.clause("DGRAM-MEET-8", "DGRAM-RD-32")
def test_a_peer_record_of_the_source_with_most_records_is_evicted_first(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint(max_peers=4)
    many, others = make_scapy_rd_peers(e, 5), make_scapy_rd_peers(e, 2, "127.0.0.2")
    *first, late = many
    said = []
    for s in first:
        c = s.request_challenge()
        s.other = c.source_epoch
        said.append(s.send_datagram(RDType.ECHO, body=s.build_echo_body(c)))
        s.receive_datagram(RDType.ACK)
        s.send_datagram(RDType.DATA, body=b"given")
        s.receive_datagram(RDType.ACK)
    counters = Counters()
    late.send_datagram(RDType.ECHO, body=late.build_echo_body(late_c := late.request_challenge()),
             dest_epoch=late_c.source_epoch)  # fmt: skip
    poll_until(lambda: counters["drop_rd_peers"] == 1, e)
    connect_and_send_segment(others[0])
    assert counters["rd_evicted"] == 1
    gone = next(i for i, s in enumerate(first) if not endpoint_knows_peer(s, 1))
    # An ECHO that is sent again after the eviction does not repeat the handshake.
    first[gone].sock.sendto(said[gone], first[gone].dest)
    poll_until(lambda: counters["drop_rd_cookie"] == 1, e)
    others[1].connect()
    assert counters["rd_evicted"] == 2 and lib.siw_rd_peer_count(e.c) == 4


# ---- rate limits


@pytest.mark.clause("DGRAM-RD-35")
def test_a_flood_from_one_address_leaves_challenges_and_byes_for_other_addresses(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (flood,), (good,) = make_scapy_rd_peers(e, 1), make_scapy_rd_peers(e, 1, "127.0.0.2")
    hello = bytes(flood.build_datagram(RDType.HELLO, dest_epoch=0, body=HELLO))
    probe = bytes(flood.build_datagram(RDType.PROBE, dest_epoch=7))
    counters = Counters()
    while counters["drop_rd_hello"] < 500:
        for octets in [hello] * 20 + [probe]:
            flood.sock.sendto(octets, flood.dest)
        e.poll_once()
    for octets in [hello, probe] * 20:
        flood.sock.sendto(octets, flood.dest)
    good.send_datagram(RDType.PROBE, dest_epoch=7)
    good.send_datagram(RDType.HELLO, dest_epoch=0, body=HELLO)
    assert {good.receive_datagram().type, good.receive_datagram().type} == {
        RDType.BYE,
        RDType.CHALLENGE,
    }


# ---- closing


@pytest.mark.clause("DGRAM-BYE-1")
def test_a_bye_completes_acknowledged_segments_and_fails_the_rest(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    s.send_datagram(RDType.ACK)
    for i in range(3):
        assert e.send(peer, b"%d" % i) == 1
        s.receive_datagram(RDType.DATA)
    s.send_datagram(RDType.BYE, acknowledged=s.other + 2)
    poll_until(lambda: e.event_count("gone") == 1, e)
    assert e.had == 2


@pytest.mark.clause("DGRAM-BYE-1")
def test_a_closing_endpoint_acknowledges_all_segments_that_it_accepted(make_endpoint):
    a, b = make_endpoint(), Endpoint()
    peer = a.get_or_create_peer(b.local_addr)
    for i in range(5):
        assert a.send(peer, b"%d" % i) == 1
    poll_until(lambda: len(b.received_data()) == 5, a, b)
    b.close()  # b closes before it had to acknowledge the last segments
    poll_until(lambda: a.event_count("gone") == 1, a)
    assert a.had == 5


@pytest.mark.clause("DGRAM-BYE-2")
def test_each_bye_is_answered_and_an_answering_bye_is_not(connected_endpoint):
    e, s = connected_endpoint
    # the first BYE ends the pair; the repeated ones simulate a lost answer
    for _ in range(3):
        asked = s.send_datagram(RDType.BYE)
        answer = s.receive_datagram()
        assert (answer.type, str(answer.rd_flags)) == (RDType.BYE, "ANSWER")
        assert (answer.source_epoch, answer.dest_epoch) == (s.other, s.epoch)
        assert len(bytes(answer)) <= len(asked)
    assert e.event_count("gone") == 1
    s.send_datagram(RDType.BYE, rd_flags="ANSWER")
    s.send_datagram(RDType.BYE, ird=1)  # a BYE for an unknown pair
    assert s.receives_nothing()
