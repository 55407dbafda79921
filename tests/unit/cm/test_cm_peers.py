"""Connections with scripted peers that send various start-up frames."""

from __future__ import annotations

import errno
import socket

import pytest
from harness.rc_harness import (
    End,
    ListenerAndConnector,
    connect_plain_socket,
    create_plain_listener,
    read_to_end,
)
from harness.verbs_harness import poll

from siwarp.cm import CMID, RTR, CMEventType, ConnParam
from siwarp.inspect import FPDU, MPAReply, MPARequest, split_stream
from siwarp.verbs import (
    QPState,
    WCStatus,
)


def read_fpdus(s: socket.socket) -> list[FPDU]:
    return split_stream(read_to_end(s)).fpdus


def terminate_codes(fpdus: list[FPDU]) -> list[tuple[int, int, int]]:
    """Return the tuple (layer, type, code) of each Terminate among the FPDUs."""
    found = []
    for fpdu in fpdus:
        ulpdu = bytes(fpdu.ulpdu)
        if ulpdu[1] & 0xF == 7:
            found.append((ulpdu[18] >> 4, ulpdu[18] & 0xF, ulpdu[19]))
    return found


def connect_to_plain_socket_and_reply(
    connector: ListenerAndConnector, s: socket.socket, reply: MPAReply, param: ConnParam
) -> tuple[End, socket.socket]:
    a = End(connector.active, CMID(connector.a_channel), connector.a_channel, size=1 << 12)
    a.id.connect(s.getsockname(), param)
    peer, _ = s.accept()
    peer.settimeout(5)
    peer.recv(1000)
    peer.sendall(bytes(reply))
    return a, peer


@pytest.mark.clause("RFC6581-9.1-08", "RFC6581-9.1-09")
def test_an_mpa_reply_with_an_ord_above_the_device_limit_is_terminated(
    connector: ListenerAndConnector,
) -> None:
    with create_plain_listener() as s:
        a, peer = connect_to_plain_socket_and_reply(
            connector, s, MPAReply(rev=2, s=1, ird=1, ord=129), ConnParam(responder_resources=2)
        )
        event = a.next_cm_event()
        assert (event.type, event.status) == (CMEventType.CONNECT_ERROR, errno.EPROTO)
        assert event.wire_error == 2 << 16 | 6
        with peer:
            assert terminate_codes(read_fpdus(peer)) == [(2, 0, 6)]
    assert a.qp.qp_state == QPState.INIT


@pytest.mark.clause("RFC6581-9.1-07", "RFC6581-9.1-10")
def test_the_initiator_raises_its_ird_and_lowers_its_ord_to_those_of_the_reply(
    connector: ListenerAndConnector,
) -> None:
    with create_plain_listener() as s:
        a, peer = connect_to_plain_socket_and_reply(
            connector,
            s,
            MPAReply(rev=2, s=1, ird=3, ord=40),
            ConnParam(initiator_depth=9, responder_resources=2),
        )
        event = a.next_cm_event()
        assert event.type == CMEventType.ESTABLISHED
        assert (event.responder_resources, event.initiator_depth) == (40, 3)
        assert (event.peer_ird, event.peer_ord) == (3, 40)
        peer.close()


@pytest.mark.clause("RFC6581-9.1-12", "RFC6581-9.1-14")
def test_an_mpa_reply_without_negotiated_depths_does_not_change_the_depths(
    connector: ListenerAndConnector,
) -> None:
    with create_plain_listener() as s:
        a, peer = connect_to_plain_socket_and_reply(
            connector,
            s,
            MPAReply(rev=2, s=1, ird=0x3FFF, ord=0x3FFF),
            ConnParam(initiator_depth=9, responder_resources=2),
        )
        event = a.next_cm_event()
        assert (event.responder_resources, event.initiator_depth) == (2, 9)
        peer.close()


@pytest.mark.clause("RFC6581-9.1-10")
def test_the_depths_of_a_rejecting_mpa_reply_are_reported(connector: ListenerAndConnector) -> None:
    with create_plain_listener() as s:
        a, peer = connect_to_plain_socket_and_reply(
            connector,
            s,
            MPAReply(rev=2, s=1, r=1, ird=7, ord=200, private_data=b"why"),
            ConnParam(),
        )
        event = a.next_cm_event()
        assert event.type == CMEventType.REJECTED
        assert (event.peer_ird, event.peer_ord, event.private_data) == (7, 200, b"why")
        peer.close()


@pytest.mark.clause("RFC6581-9.2-10", "RFC6581-9.2-11")
def test_an_mpa_reply_that_accepts_none_of_the_offered_rtrs_is_terminated(
    connector: ListenerAndConnector,
) -> None:
    with create_plain_listener() as s:
        a, peer = connect_to_plain_socket_and_reply(
            connector,
            s,
            MPAReply(rev=2, s=1, a=1, ird=1, ord=1, d_rtr=1),
            ConnParam(peer_to_peer=RTR.WRITE),
        )
        event = a.next_cm_event()
        assert (event.type, event.status) == (CMEventType.CONNECT_ERROR, errno.EPROTO)
        assert event.wire_error == 2 << 16 | 7
        with peer:
            assert terminate_codes(read_fpdus(peer)) == [(2, 0, 7)]


@pytest.mark.clause("RFC6581-9.1-11", "RFC6581-9.1-13")
def test_the_reply_to_a_request_without_negotiated_depths_negotiates_none(
    connector: ListenerAndConnector,
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=0x3FFF, ord=0x3FFF)))
        request = connector.next_connection_request()
        b = End(connector.passive, request.id, connector.p_channel)
        b.id.accept(ConnParam(initiator_depth=6, responder_resources=8))
        reply = MPAReply(s.recv(100))
        assert (reply.ird, reply.ord) == (0x3FFF, 0x3FFF)
        event = b.next_cm_event()
        assert (event.initiator_depth, event.responder_resources) == (6, 8)


def test_an_invalid_fpdu_ends_the_connection_with_a_terminate(
    connector: ListenerAndConnector,
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=1, ord=1)))
        b = End(
            connector.passive, connector.next_connection_request().id, connector.p_channel, size=64
        )
        b.post_receive(wr_id=3)
        b.id.accept()
        assert b.next_cm_event().type == CMEventType.ESTABLISHED
        s.recv(24)
        s.sendall(b"\x00\x20" + bytes(range(60)))
        b.wait_for_error_state()
        event = b.next_cm_event()
        assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, 2 << 16 | 2)
        assert [(w.wr_id, w.status) for w in poll(b.rcq)] == [(3, WCStatus.WR_FLUSH_ERR)]
        s.shutdown(socket.SHUT_WR)
        assert b.mem.read() == bytes(64)
