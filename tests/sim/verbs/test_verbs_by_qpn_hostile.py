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
    build_valid_mpa_request,
    connect_pair_by_qpn,
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
def end_with_qp_in_init(rig: Rig) -> Iterator[End]:
    """A queue pair in INIT."""
    made = End(rig)
    made.to_init_with_receives()
    yield made
    made.close()


def is_closed_without_answer(s: Any) -> bool:
    """Return whether the other side closes the connection without sending an octet."""
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


def startup_frame_parameters(frame: MPARequest | MPAReply) -> tuple[int, ...]:
    """Return revision, S, A, the kinds of RTR (Write, Read), IRD and ORD of a start-up frame."""
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
def test_an_invalid_mpa_request_is_not_answered(end_with_qp_in_init: End, octets: bytes) -> None:
    names = ["startup_strangers", "pair_strangers"]
    before = [counter_value(name) for name in names]
    with tcp_connect_to(end_with_qp_in_init) as s:
        s.sendall(octets)
        assert is_closed_without_answer(s)
    found = [counter_value(name) - n for name, n in zip(names, before, strict=True)]
    assert found == ([1, 0] if octets.startswith(b"GET") else [0, 1])


def test_a_request_that_states_another_address_than_its_source_is_not_answered(
    end_with_qp_in_init: End,
) -> None:
    before = counter_value("pair_addresses")
    with tcp_connect_to(end_with_qp_in_init, net.HERE_TOO) as s:
        s.sendall(build_valid_mpa_request(end_with_qp_in_init))
        assert is_closed_without_answer(s)
    assert counter_value("pair_addresses") == before + 1


@pytest.mark.parametrize("lie", ["no such number", "another peer", "the wrong one connects"])
def test_a_request_of_another_peer_than_expected_is_rejected(
    end_with_qp_in_init: End, lie: str
) -> None:
    peer = 0xFE0000 | 1 if lie == "the wrong one connects" else LOW
    end_with_qp_in_init.to_rts((HOST, peer))
    before = counter_value("pair_refused")
    to = end_with_qp_in_init.qp.qp_num ^ (0x800000 if lie == "no such number" else 0)
    own = LOW + 1 if lie == "another peer" else peer
    with tcp_connect_to(end_with_qp_in_init) as s:
        s.sendall(build_mpa_request(build_private_data((US, own), (US, to))))
        reply = MPAReply(recv_startup_frame(s))
        assert reply.r == 1
        assert is_closed_without_answer(s)
    assert counter_value("pair_refused") == before + 1
    assert is_in_state(end_with_qp_in_init, QPState.RTS)


def test_the_expected_peer_is_accepted_once(end_with_qp_in_init: End) -> None:
    end_with_qp_in_init.to_rts((HOST, LOW), max_dest_rd_atomic=5)
    with (
        tcp_connect_to(end_with_qp_in_init) as first,
        tcp_connect_to(end_with_qp_in_init) as second,
    ):
        first.sendall(build_valid_mpa_request(end_with_qp_in_init, ird=9, ord=11))
        reply = MPAReply(recv_startup_frame(first))
        assert (reply.r, *startup_frame_parameters(reply)) == (0, 2, 1, 1, 1, 0, 6, 9)
        assert reply.private_data == build_private_data(
            (US, end_with_qp_in_init.qp.qp_num), (US, LOW)
        )
        second.sendall(build_valid_mpa_request(end_with_qp_in_init))
        assert MPAReply(recv_startup_frame(second)).r == 1


def test_a_peer_that_closes_within_a_message_consumes_no_receive(end_with_qp_in_init: End) -> None:
    end_with_qp_in_init.to_rts((HOST, LOW))
    with tcp_connect_to(end_with_qp_in_init) as s:
        s.sendall(build_valid_mpa_request(end_with_qp_in_init))
        assert MPAReply(recv_startup_frame(s)).r == 0
        assert has_connection(end_with_qp_in_init)
        half = build_send(l=0) / b"the first half"
        s.sendall(bytes(FPDU(ulpdu=build_write(0, 0))) + bytes(FPDU(ulpdu=half)))
    wait_until(lambda: not has_connection(end_with_qp_in_init))
    assert end_with_qp_in_init.mr.read(14) == b"the first half"
    assert_no_completion(end_with_qp_in_init.cq)
    assert is_in_state(end_with_qp_in_init, QPState.RTS)
    end_with_qp_in_init.qp.modify(QPAttr(qp_state=QPState.ERR))
    done = end_with_qp_in_init.wait_for_sends(8)
    assert {wc.status for wc in done} == {WCStatus.WR_FLUSH_ERR}
    assert sorted(wc.wr_id for wc in done) == list(range(100, 108))


def test_a_peer_that_sends_no_rtr_can_connect_again_after_the_timeout(
    end_with_qp_in_init: End,
) -> None:
    """Check that a peer whose Reply was lost, for example, may connect again."""
    with temporary_settings(mpa_timeout_ms=200):
        end_with_qp_in_init.to_rts((HOST, LOW))
        for _ in range(2):
            with tcp_connect_to(end_with_qp_in_init) as s:
                s.sendall(build_valid_mpa_request(end_with_qp_in_init))
                assert MPAReply(recv_startup_frame(s)).r == 0
                wait_until(lambda s=s: is_closed_without_answer(s))
    assert is_in_state(end_with_qp_in_init, QPState.RTS)


def test_mpa_requests_wait_for_rtr_and_only_the_request_of_the_peer_is_accepted(
    end_with_qp_in_init: End,
) -> None:
    with tcp_connect_to(end_with_qp_in_init) as liar, tcp_connect_to(end_with_qp_in_init) as true:
        liar.sendall(build_valid_mpa_request(end_with_qp_in_init, LOW + 1))
        true.sendall(build_valid_mpa_request(end_with_qp_in_init))
        true.settimeout(0.1)
        with pytest.raises(TimeoutError):
            true.recv(1)
        true.settimeout(LIMIT)
        end_with_qp_in_init.qp.to_rtr(QPAttr(ah_attr=AHAttr(HOST), dest_qp_num=LOW))
        assert MPAReply(recv_startup_frame(true)).r == 0
        assert MPAReply(recv_startup_frame(liar)).r == 1


def test_the_expected_peer_is_accepted_although_its_source_share_is_used_up(rig: Rig) -> None:
    # A source_share of 2% of 64 start-ups allows one start-up per source address.
    with temporary_settings(max_startups=64, max_requests=64, source_share=2):
        ends = sorted(
            (End(rig) for _ in range(2)),
            key=lambda end_with_qp_in_init: end_with_qp_in_init.qp.qp_num,
        )
        many = [End(rig) for _ in range(40)]
    for end_with_qp_in_init in (*ends, *many):
        end_with_qp_in_init.to_init_with_receives()
    refused = counter_value("startups_refused")
    strangers = []
    for _ in range(8):
        # The listener may reset a connection that is still being established.
        with contextlib.suppress(ConnectionResetError):
            strangers.append(tcp_connect_to(ends[1]))
    wait_until(lambda: counter_value("startups_refused") >= refused + 7)
    for a, b in zip(many[:20], many[:19:-1], strict=True):
        connect_pair_by_qpn(a, b)
    connect_pair_by_qpn(*ends)
    for a, b in (*zip(many[:20], many[:19:-1], strict=True), tuple(ends)):
        exchange_sends(a, b)
    for s in strangers:
        s.close()


def test_an_mpa_request_states_both_gids_and_qpns_and_the_read_limits(rig: Rig) -> None:
    with net.tcp_listen(HOST) as server:
        server.settimeout(LIMIT)
        peer = 0xFE0000 | server.getsockname()[1]
        end_with_qp_in_init = End(rig)
        end_with_qp_in_init.to_init_with_receives()
        end_with_qp_in_init.to_rts((HOST, peer), max_dest_rd_atomic=3, max_rd_atomic=2, rnr_retry=5)
        # The first Request may have been sent before RTS, the state in which rnr_retry is set.
        server.accept()[0].close()
        s, _ = server.accept()
        s.settimeout(LIMIT)
        with s:
            request = MPARequest(recv_startup_frame(s))
        assert startup_frame_parameters(request) == (2, 1, 1, 1, 1, 4, 128)
        assert request.private_data == build_private_data(
            (US, end_with_qp_in_init.qp.qp_num), (US, peer), rnr_retry=5
        )
        end_with_qp_in_init.close()


def test_a_reply_of_another_program_than_the_peer_does_not_connect(rig: Rig) -> None:
    """Check a program that listens on the port of a peer that has exited."""
    with net.tcp_listen(HOST) as server:
        server.settimeout(LIMIT)
        port = server.getsockname()[1]
        end_with_qp_in_init = End(rig)
        end_with_qp_in_init.to_init_with_receives()
        strangers = counter_value("pair_strangers")
        end_with_qp_in_init.to_rts((HOST, 0xFE0000 | port))
        for private in (
            b"",
            build_private_data((US, LOW), (US, end_with_qp_in_init.qp.qp_num)),
            b"x" * 48,
        ):
            s, _ = server.accept()
            s.settimeout(LIMIT)
            with s:
                recv_startup_frame(s)
                s.sendall(
                    bytes(MPAReply(s=1, a=1, rev=2, ird=16, ord=16, c_rtr=1, private_data=private))
                )
                assert is_closed_without_answer(s)
        assert counter_value("pair_strangers") == strangers + 3
        assert is_in_state(end_with_qp_in_init, QPState.RTS)
        assert_no_completion(end_with_qp_in_init.cq)
        end_with_qp_in_init.close()


def test_a_peer_that_never_replies_fails_only_posted_requests(rig: Rig) -> None:
    """Check a peer that accepts TCP connections but never replies, so that attempts time out."""
    with temporary_settings(mpa_timeout_ms=200), net.tcp_listen(HOST) as server:
        port = server.getsockname()[1]
        end_with_qp_in_init = End(rig)
        end_with_qp_in_init.to_init_with_receives()
        end_with_qp_in_init.to_rts((HOST, 0xFE0000 | port), timeout=1, retry_cnt=0)
        assert_no_completion(end_with_qp_in_init.cq, 0.5)
        assert is_in_state(end_with_qp_in_init, QPState.RTS)
        began = net.now()
        end_with_qp_in_init.send(b"anybody?")
        done = end_with_qp_in_init.wait_for_sends(1, 30.0)[0]
        assert done.status == 12  # the status RETRY_EXC_ERR
        assert net.now() - began >= 3.0
        end_with_qp_in_init.close()
