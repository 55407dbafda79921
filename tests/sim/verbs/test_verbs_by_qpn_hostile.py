"""Hostile peers at the port of RC queue pairs that connect by GID and QPN."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import net
import pytest
from harness.pair_harness import (
    HOST,
    LOW,
    US,
    End,
    build_mpa_request,
    build_private_data,
    build_valid_request,
    connect_by_qpn,
    exchange_sends,
    has_connection,
    is_in_state,
    tcp_connect_to,
)
from harness.verbs_harness import (
    LIMIT,
    Rig,
    assert_no_completion,
    counter_value,
    temporary_settings,
    wait_until,
)
from harness.wire_peer import build_send, build_write, recv_startup_frame

from siwarp.inspect import FPDU, MPAReply, MPARequest
from siwarp.verbs import AHAttr, QPAttr, QPState, WCStatus


@pytest.fixture
def end(rig: Rig) -> Iterator[End]:
    """Yield a queue pair in INIT."""
    made = End(rig)
    made.init_with_receives()
    yield made
    made.close()


def is_closed(s: Any) -> bool:
    """Whether the other side closes the connection without sending an octet."""
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


def said(frame: MPARequest | MPAReply) -> tuple[int, ...]:
    """Return revision, S, A, the kinds of RTR (Write, Read), IRD and ORD of a frame."""
    return frame.rev, frame.s, frame.a, frame.c_rtr, frame.d_rtr, frame.ird, frame.ord


@pytest.mark.parametrize(
    "octets",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(20),
        build_mpa_request(b""),
        build_mpa_request(b"SIWP"),
        build_mpa_request(build_private_data((US, LOW), (US, 1), magic=b"SIWQ")),
        build_mpa_request(build_private_data((US, LOW), (US, 1), version=2)),
        build_mpa_request(build_private_data((US, LOW), (US, 1)) + b"\0"),
        build_mpa_request(build_private_data((US, LOW), (US, 1)), rev=1, s=0),
        build_mpa_request(build_private_data((US, LOW), (US, 1)), a=0),
        build_mpa_request(build_private_data((US, LOW), (US, 1)), ird=0),
    ],
    ids=["http", "nothing", "magic", "other magic", "version", "long", "rev 1", "A=0", "no Reads"],
)
def test_a_stranger_gets_nothing(end: End, octets: bytes) -> None:
    names = ["startup_strangers", "pair_strangers"]
    before = [counter_value(name) for name in names]
    with tcp_connect_to(end) as s:
        s.sendall(octets)
        assert is_closed(s)
    found = [counter_value(name) - n for name, n in zip(names, before, strict=True)]
    assert found == ([1, 0] if octets.startswith(b"GET") else [0, 1])


def test_who_says_another_address_than_it_has_gets_nothing(end: End) -> None:
    before = counter_value("pair_addresses")
    with tcp_connect_to(end, net.HERE_TOO) as s:
        s.sendall(build_valid_request(end))
        assert is_closed(s)
    assert counter_value("pair_addresses") == before + 1


@pytest.mark.parametrize("lie", ["no such number", "another peer", "the wrong one connects"])
def test_who_is_not_the_peer_is_rejected(end: End, lie: str) -> None:
    peer = 0xFE0000 | 1 if lie == "the wrong one connects" else LOW
    end.to_rts((HOST, peer))
    before = counter_value("pair_refused")
    to = end.qp.qp_num ^ (0x800000 if lie == "no such number" else 0)
    own = LOW + 1 if lie == "another peer" else peer
    with tcp_connect_to(end) as s:
        s.sendall(build_mpa_request(build_private_data((US, own), (US, to))))
        reply = MPAReply(recv_startup_frame(s))
        assert reply.r == 1
        assert is_closed(s)
    assert counter_value("pair_refused") == before + 1
    assert is_in_state(end, QPState.RTS)


def test_the_peer_that_is_meant_is_accepted_once(end: End) -> None:
    end.to_rts((HOST, LOW), max_dest_rd_atomic=5)
    with tcp_connect_to(end) as first, tcp_connect_to(end) as second:
        first.sendall(build_valid_request(end, ird=9, ord=11))
        reply = MPAReply(recv_startup_frame(first))
        assert (reply.r, *said(reply)) == (0, 2, 1, 1, 1, 0, 6, 9)
        assert reply.private_data == build_private_data((US, end.qp.qp_num), (US, LOW))
        second.sendall(build_valid_request(end))
        assert MPAReply(recv_startup_frame(second)).r == 1


def test_a_peer_that_goes_within_a_message_loses_no_receive(end: End) -> None:
    end.to_rts((HOST, LOW))
    with tcp_connect_to(end) as s:
        s.sendall(build_valid_request(end))
        assert MPAReply(recv_startup_frame(s)).r == 0
        assert has_connection(end)
        half = build_send(l=0) / b"the first half"
        s.sendall(bytes(FPDU(ulpdu=build_write(0, 0))) + bytes(FPDU(ulpdu=half)))
    wait_until(lambda: not has_connection(end))
    assert end.mr.read(14) == b"the first half"
    assert_no_completion(end.cq)
    assert is_in_state(end, QPState.RTS)
    end.qp.modify(QPAttr(qp_state=QPState.ERR))
    done = end.wait_for_sends(8)
    assert {wc.status for wc in done} == {WCStatus.WR_FLUSH_ERR}
    assert sorted(wc.wr_id for wc in done) == list(range(100, 108))


def test_one_that_never_says_that_it_is_ready_makes_room_for_the_next_try(end: End) -> None:
    """If the Reply is lost, for example, the peer connects again and must not be refused."""
    with temporary_settings(mpa_timeout_ms=200):
        end.to_rts((HOST, LOW))
        for _ in range(2):
            with tcp_connect_to(end) as s:
                s.sendall(build_valid_request(end))
                assert MPAReply(recv_startup_frame(s)).r == 0
                wait_until(lambda s=s: is_closed(s))
    assert is_in_state(end, QPState.RTS)


def test_requests_are_kept_for_a_queue_pair_and_only_the_peers_is_taken(end: End) -> None:
    with tcp_connect_to(end) as liar, tcp_connect_to(end) as true:
        liar.sendall(build_valid_request(end, LOW + 1))
        true.sendall(build_valid_request(end))
        true.settimeout(0.1)
        with pytest.raises(TimeoutError):
            true.recv(1)
        true.settimeout(LIMIT)
        end.qp.to_rtr(QPAttr(ah_attr=AHAttr(HOST), dest_qp_num=LOW))
        assert MPAReply(recv_startup_frame(true)).r == 0
        assert MPAReply(recv_startup_frame(liar)).r == 1


def test_what_a_queue_pair_waits_for_is_not_refused_for_its_sources_share(rig: Rig) -> None:
    # this share allows one start-up for each source
    with temporary_settings(max_startups=64, max_requests=64, source_share=2):
        ends = sorted((End(rig) for _ in range(2)), key=lambda end: end.qp.qp_num)
        many = [End(rig) for _ in range(40)]
    for end in (*ends, *many):
        end.init_with_receives()
    refused = counter_value("startups_refused")
    strangers = []
    for _ in range(8):
        # the listener may reset a connection that is still being established
        with contextlib.suppress(ConnectionResetError):
            strangers.append(tcp_connect_to(ends[1]))
    wait_until(lambda: counter_value("startups_refused") >= refused + 7)
    for a, b in zip(many[:20], many[:19:-1], strict=True):
        connect_by_qpn(a, b)
    connect_by_qpn(*ends)
    for a, b in (*zip(many[:20], many[:19:-1], strict=True), tuple(ends)):
        exchange_sends(a, b)
    for s in strangers:
        s.close()


def test_a_request_says_who_asks_whom_and_how_many_reads_it_takes(rig: Rig) -> None:
    with net.tcp_listen(HOST) as server:
        server.settimeout(LIMIT)
        peer = 0xFE0000 | server.getsockname()[1]
        end = End(rig)
        end.init_with_receives()
        end.to_rts((HOST, peer), max_dest_rd_atomic=3, max_rd_atomic=2, rnr_retry=5)
        # the first Request may be from before RTS, the state in which rnr_retry is set
        server.accept()[0].close()
        s, _ = server.accept()
        s.settimeout(LIMIT)
        with s:
            request = MPARequest(recv_startup_frame(s))
        assert said(request) == (2, 1, 1, 1, 1, 4, 128)
        assert request.private_data == build_private_data(
            (US, end.qp.qp_num), (US, peer), rnr_retry=5
        )
        end.close()


def test_a_reply_of_another_than_the_peer_is_no_connection(rig: Rig) -> None:
    """A different program listens on the port of a peer that has exited."""
    with net.tcp_listen(HOST) as server:
        server.settimeout(LIMIT)
        port = server.getsockname()[1]
        end = End(rig)
        end.init_with_receives()
        strangers = counter_value("pair_strangers")
        end.to_rts((HOST, 0xFE0000 | port))
        for private in (b"", build_private_data((US, LOW), (US, end.qp.qp_num)), b"x" * 48):
            s, _ = server.accept()
            s.settimeout(LIMIT)
            with s:
                recv_startup_frame(s)
                s.sendall(
                    bytes(MPAReply(s=1, a=1, rev=2, ird=16, ord=16, c_rtr=1, private_data=private))
                )
                assert is_closed(s)
        assert counter_value("pair_strangers") == strangers + 3
        assert is_in_state(end, QPState.RTS)
        assert_no_completion(end.cq)
        end.close()


def test_a_peer_that_is_alive_and_gives_nothing_costs_what_is_posted_and_no_more(rig: Rig) -> None:
    """The peer accepts connections but never replies: each attempt ends with a time-out."""
    with temporary_settings(mpa_timeout_ms=200), net.tcp_listen(HOST) as server:
        port = server.getsockname()[1]
        end = End(rig)
        end.init_with_receives()
        end.to_rts((HOST, 0xFE0000 | port), timeout=1, retry_cnt=0)
        assert_no_completion(end.cq, 0.5)
        assert is_in_state(end, QPState.RTS)
        began = net.now()
        end.send(b"anybody?")
        done = end.wait_for_sends(1, 30.0)[0]
        assert done.status == 12  # the status RETRY_EXC_ERR
        assert net.now() - began >= 3.0
        end.close()
