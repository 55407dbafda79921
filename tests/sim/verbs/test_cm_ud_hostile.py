"""Spoofing and malicious peers at both ends of UD resolution: spec/cm-udp.md, rule by rule."""

from __future__ import annotations

import contextlib

import net
import pytest
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    counter_value,
    temporary_settings,
    wait_until,
)
from unit.cm.ud_harness import (
    FRAME,
    HOST,
    SidrEndpoints,
    assert_no_datagram_arrives,
    build_sidr_query,
    parse_sidr_frame,
    plain_udp_socket,
)

from siwarp.cm import CMEventType
from siwarp.inspect import SIDR, SIDRType


@pytest.fixture
def sidr_endpoints(rig: Rig) -> SidrEndpoints:
    return SidrEndpoints(rig)


def build_sidr_frame(**fields: object) -> bytes:
    return bytes(SIDR(id=1, **fields))


INVALID_FRAMES = {
    "nothing": (b"", "drop_sidr_length"),
    "text": (b"GET / HTTP/1.1\r\n\r\n", "drop_sidr_length"),
    "cut": (build_sidr_query()[:-1], "drop_sidr_length"),
    "long": (build_sidr_query() + b"\0", "drop_sidr_length"),
    "longest": (bytes(65507), "drop_sidr_length"),
    "zeros": (bytes(FRAME), "drop_crc"),
    "ones": (b"\xff" * FRAME, "drop_crc"),
    "CRC": (build_sidr_frame(crc=1), "drop_crc"),
    "magic": (build_sidr_frame(magic=b"SIWP"), "drop_sidr_version"),
    "version": (build_sidr_frame(version=2), "drop_sidr_version"),
    "id": (bytes(SIDR(id=0)), "drop_sidr_field"),
    "type 0": (build_sidr_frame(type=0), "drop_sidr_field"),
    "type 5": (build_sidr_frame(type=5), "drop_sidr_field"),
    "data": (build_sidr_frame(data_len=181), "drop_sidr_field"),
    "answer's data": (build_sidr_frame(type=2, qpn=1, data_len=137), "drop_sidr_field"),
    "answer without QPN": (build_sidr_frame(type=2), "drop_sidr_field"),
    "answer's QPN": (build_sidr_frame(type=2, qpn=0xFFFFFF), "drop_sidr_field"),
    "answer's group": (build_sidr_frame(type=2, qpn=1, gid="::ffff:239.1.1.1"), "drop_sidr_field"),
    "refusal without status": (build_sidr_frame(type=3), "drop_sidr_field"),
    "refusal's data": (build_sidr_frame(type=3, status=1, data_len=137), "drop_sidr_field"),
    "cookie without one": (build_sidr_frame(type=4), "drop_sidr_field"),
    "cookie with data": (build_sidr_frame(type=4, cookie=1, data_len=1), "drop_sidr_field"),
    "answer to a listener": (build_sidr_frame(type=2, qpn=1), "drop_sidr_id"),
    "refusal to a listener": (build_sidr_frame(type=3, status=1), "drop_sidr_id"),
    "cookie to a listener": (build_sidr_frame(type=4, cookie=1), "drop_sidr_id"),
}


@pytest.mark.parametrize("what", INVALID_FRAMES)
def test_an_invalid_sidr_frame_is_dropped_counted_and_not_answered(
    sidr_endpoints: SidrEndpoints, what: str
) -> None:
    octets, name = INVALID_FRAMES[what]
    before = counter_value(name)
    with plain_udp_socket() as s:
        s.sendto(octets, sidr_endpoints.door.local_addr)
        wait_until(lambda: counter_value(name) == before + 1)
        # After a dropped query, the next valid query is answered.
        s.sendto(build_sidr_query(5), sidr_endpoints.door.local_addr)
        sidr_endpoints.next_connection_request().id.reject()
        assert parse_sidr_frame(s.recv(2048)).id == 5
        assert_no_datagram_arrives(s, 0.02)


def build_sidr_answer(asked: bytes, **fields: object) -> bytes:
    given = {"type": SIDRType.ANSWER, "qpn": 0x10001, "q_key": 7, "gid": f"::ffff:{HOST}"} | fields
    return bytes(SIDR(**({"id": parse_sidr_frame(asked).id} | given)))


def test_a_sidr_answer_is_accepted_only_from_the_queried_address_with_the_id_of_the_query(
    sidr_endpoints: SidrEndpoints,
) -> None:
    with (
        plain_udp_socket() as peer,
        plain_udp_socket() as stranger,
        plain_udp_socket(net.HERE_TOO) as elsewhere,
    ):
        sidr_endpoints.send_sidr_query(to=peer.getsockname())
        octets, source = peer.recvfrom(2048)
        lies = [
            (stranger, build_sidr_answer(octets)),
            (elsewhere, build_sidr_answer(octets)),
            (peer, build_sidr_answer(octets, id=parse_sidr_frame(octets).id ^ 1)),
            (peer, octets),
        ]
        for s, lie in lies:
            with assert_counter_grows("drop_sidr_id", 1):
                s.sendto(lie, source)
                assert sidr_endpoints.asking.get_event(0.05) is None
        peer.sendto(build_sidr_answer(octets, data=b"me"), source)
        told = sidr_endpoints.next_query_result()
    assert (told.type, told.qpn, told.qkey) == (CMEventType.ESTABLISHED, 0x10001, 7)
    assert told.private_data == b"me"


def test_a_sidr_answer_that_names_another_host_is_dropped(sidr_endpoints: SidrEndpoints) -> None:
    with plain_udp_socket() as peer:
        sidr_endpoints.send_sidr_query(to=peer.getsockname())
        octets, source = peer.recvfrom(2048)
        with assert_counter_grows("drop_sidr_field", 1):
            peer.sendto(build_sidr_answer(octets, gid="::ffff:10.99.0.1"), source)
            assert sidr_endpoints.asking.get_event(0.05) is None
        peer.sendto(build_sidr_answer(octets), source)
        assert sidr_endpoints.next_query_result().type == CMEventType.ESTABLISHED


def test_a_repeated_cookie_causes_no_further_query(sidr_endpoints: SidrEndpoints) -> None:
    with plain_udp_socket() as peer:
        sidr_endpoints.send_sidr_query(to=peer.getsockname())
        octets, source = peer.recvfrom(2048)
        cookie = build_sidr_answer(octets, type=4, qpn=0, q_key=0, gid="::", cookie=9)
        peer.sendto(cookie, source)
        octets, source = peer.recvfrom(2048)
        assert parse_sidr_frame(octets).cookie == 9
        peer.sendto(cookie, source)
        assert_no_datagram_arrives(peer, 0.02)


def test_a_peer_that_answers_only_with_cookies_receives_few_queries(
    sidr_endpoints: SidrEndpoints,
) -> None:
    with plain_udp_socket() as liar:
        sidr_endpoints.send_sidr_query(to=liar.getsockname(), timeout=0.6)
        came = 0
        liar.settimeout(0.02)
        while (told := sidr_endpoints.asking.get_event(0)) is None:
            with contextlib.suppress(TimeoutError):
                octets, source = liar.recvfrom(2048)
                came += 1
                liar.sendto(
                    build_sidr_answer(octets, type=4, qpn=0, q_key=0, gid="::", cookie=came), source
                )
        assert told.type == CMEventType.UNREACHABLE
    # The queries to a silent peer at 0, 0.1 and 0.3 s, and one query for each of three cookies.
    assert came <= 6


def test_one_source_can_use_only_its_share_of_the_pending_queries(rig: Rig) -> None:
    with temporary_settings(max_requests=8, source_share=25):
        sidr_endpoints = SidrEndpoints(rig)
    with plain_udp_socket() as greedy, plain_udp_socket(net.HERE_TOO) as other:
        with assert_counter_grows("drop_sidr_share", 3):
            for i in range(1, 6):
                greedy.sendto(build_sidr_query(i), sidr_endpoints.door.local_addr)
            other.sendto(build_sidr_query(1), sidr_endpoints.door.local_addr)
            net.sleep(0.1)
        sources = {sidr_endpoints.next_connection_request().id.peer_addr for _ in range(3)}
        assert sources == {greedy.getsockname(), other.getsockname()}
        assert sidr_endpoints.answering.get_event(0.05) is None
        # A client's query no longer counts as pending when the listener has read its event.
        greedy.sendto(build_sidr_query(9), sidr_endpoints.door.local_addr)
        sidr_endpoints.next_connection_request()


def test_a_half_full_queue_requires_a_cookie_that_is_valid_for_one_source_and_query(
    rig: Rig,
) -> None:
    with temporary_settings(max_requests=8, source_share=100):
        sidr_endpoints = SidrEndpoints(rig)
    where = sidr_endpoints.door.local_addr
    with plain_udp_socket() as s, plain_udp_socket() as thief:
        for i in range(1, 5):
            s.sendto(build_sidr_query(i), where)
        s.sendto(build_sidr_query(10), where)
        cookie = parse_sidr_frame(s.recv(2048))
        assert (cookie.type, cookie.id) == (SIDRType.COOKIE, 10) and cookie.cookie
        with assert_counter_grows("drop_sidr_cookie", 3), assert_counter_grows("sidr_cookies", 3):
            thief.sendto(build_sidr_query(10, cookie=cookie.cookie), where)
            assert parse_sidr_frame(thief.recv(2048)).cookie != cookie.cookie
            s.sendto(build_sidr_query(11, cookie=cookie.cookie), where)
            assert parse_sidr_frame(s.recv(2048)).id == 11
            s.sendto(build_sidr_query(10, cookie=cookie.cookie ^ 2), where)
            assert parse_sidr_frame(s.recv(2048)).cookie == cookie.cookie
        s.sendto(build_sidr_query(10, cookie=cookie.cookie), where)
        ids = [sidr_endpoints.next_connection_request() for _ in range(5)]
        assert len(ids) == 5
    # siwarp's own client returns the cookie automatically.
    with plain_udp_socket() as s:
        for i in range(1, 5):
            s.sendto(build_sidr_query(i), where)
        before = counter_value("sidr_cookies")
        net.sleep(0.1)
        sidr_endpoints.send_sidr_query(b"ours")
        wait_until(lambda: counter_value("sidr_cookies") > before)
        assert b"ours" in {sidr_endpoints.next_connection_request().private_data for _ in range(5)}


def test_the_number_of_pending_queries_is_bounded(rig: Rig) -> None:
    with temporary_settings(max_requests=4, source_share=75):
        sidr_endpoints = SidrEndpoints(rig)
    where = sidr_endpoints.door.local_addr
    with plain_udp_socket() as s, plain_udp_socket(net.HERE_TOO) as other:
        for i in (1, 2):
            s.sendto(build_sidr_query(i), where)
        for who, i in ((s, 3), (other, 4), (other, 5)):
            who.sendto(build_sidr_query(i), where)
            cookie = parse_sidr_frame(who.recv(2048)).cookie
            before = counter_value("drop_sidr_full")
            who.sendto(build_sidr_query(i, cookie=cookie), where)
        wait_until(lambda: counter_value("drop_sidr_full") == before + 1)
        assert_no_datagram_arrives(other, 0.02)


def test_a_query_that_is_pending_too_long_is_dropped(rig: Rig) -> None:
    with temporary_settings(max_requests=1, sidr_timeout_ms=100):
        sidr_endpoints = SidrEndpoints(rig)
        with plain_udp_socket() as s:
            s.sendto(build_sidr_query(1), sidr_endpoints.door.local_addr)
            net.sleep(0.15)
            s.sendto(build_sidr_query(2, b"new"), sidr_endpoints.door.local_addr)
            net.sleep(0.1)
            assert sidr_endpoints.next_connection_request().private_data == b"new"
            assert sidr_endpoints.answering.get_event(0) is None


def test_a_sidr_answer_is_no_longer_than_its_query_and_short_queries_get_no_answer(
    sidr_endpoints: SidrEndpoints,
) -> None:
    with plain_udp_socket() as s:
        for octets in (build_sidr_query(1)[:231], build_sidr_query(1)[:48], b"SIWU"):
            s.sendto(octets, sidr_endpoints.door.local_addr)
        assert_no_datagram_arrives(s, 0.05)
        s.sendto(build_sidr_query(1, bytes(180)), sidr_endpoints.door.local_addr)
        sidr_endpoints.next_connection_request().id.reject(bytes(136))
        assert len(s.recv(2048)) == len(build_sidr_query(1))
