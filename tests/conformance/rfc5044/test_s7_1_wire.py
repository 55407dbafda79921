"""MPA start-up and end of connection in the TCP stream: RFC 5044 sections 1.2 to 7.1, RFC 6581, RFC
5041.
"""

from __future__ import annotations

import errno
import itertools
import socket
import struct
from collections.abc import Iterator

import pytest
from harness.rc_harness import (
    READ,
    SEND,
    WRITE,
    End,
    ListenerAndConnector,
    connect_plain_socket,
    create_plain_listener,
    read_to_end,
)
from harness.verbs_harness import Rig, octet_pattern, poll
from harness.wire_peer import ScriptedRCPeer, build_send, recv_startup_frame
from scapy.packet import Raw

from siwarp._siwarp import lib
from siwarp.cm import CMID, CMEventType, ConnParam
from siwarp.inspect import MPAReply, MPARequest
from siwarp.verbs import RemoteBuffer, WCStatus


@pytest.fixture(name="connector")
def listener_and_connector() -> Iterator[ListenerAndConnector]:
    """Yield a listener on 127.0.0.1 and a way to connect to the listener."""
    rig = Rig()
    yield ListenerAndConnector(rig)
    rig.close()


# ---- CRC


@pytest.mark.clause("RFC5044-4.4-03", "RFC5044-4.4-01#a")
def test_by_default_siwarp_requests_and_checks_crcs(connector: ListenerAndConnector) -> None:
    """By default siwarp requests and checks CRCs, even if the peer requests none."""
    with ScriptedRCPeer.accept_from_siwarp(
        connector, MPAReply(rev=2, c=0, s=1, ird=4, ord=4)
    ) as peer:
        assert peer.ours.c == 1
        peer.send_segments(build_send(1), crc=0x01020304)
        assert peer.receive_terminate().code == 2
    with ScriptedRCPeer.connect_to_siwarp(
        connector, MPARequest(rev=2, c=0, s=1, ird=1, ord=1)
    ) as peer:
        assert peer.ours.c == 1
        peer.send_segments(None)  # a responder may send only after it has received an FPDU
        peer.send_segments(build_send(1), crc=0x01020304)
        assert peer.receive_terminate().code == 2


@pytest.mark.clause("RFC5044-4.4-05")
def test_the_negotiation_of_crcs_is_not_visible_to_a_program(
    connector: ListenerAndConnector,
) -> None:
    """Whichever end requests CRCs, the events, completions, data and segments are the same."""
    seen = []
    for ours, theirs in itertools.product([False, True], repeat=2):
        reply = MPAReply(rev=2, c=int(theirs), s=1, ird=4, ord=4)
        with ScriptedRCPeer.accept_from_siwarp(
            connector, reply, ConnParam(crc=ours), established=False
        ) as peer:
            event = peer.end.next_cm_event()
            peer.end.post_receive(1)
            peer.send_segments(build_send(1) / Raw(b"abc"))
            (received,) = poll(peer.end.rcq)
            peer.end.post(SEND, 2, length=3)
            (sent,) = poll(peer.end.scq)
            fpdu = peer.receive_fpdu()
            peer.sock.shutdown(socket.SHUT_WR)
            last = peer.end.next_cm_event()
            seen.append(
                (
                    (event.type, event.status, event.private_data, event.rev),
                    (event.initiator_depth, event.responder_resources),
                    [(w.status, w.opcode, w.wr_id, w.byte_len) for w in (received, sent)],
                    (peer.end.mem.read(3), fpdu.ulpdu_length, bytes(fpdu.ulpdu.payload)),
                    (last.type, last.status, last.wire_error),
                )
            )
    assert seen == seen[:1] * 4
    assert seen[0][0][0] == CMEventType.ESTABLISHED


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.clause("RFC5044-4.4-01#b", "RFC5044-1.2-02", "RFC5041-3-07")
def test_crcs_are_disabled_only_if_neither_end_requests_crcs(
    connector: ListenerAndConnector, ours: bool, theirs: bool
) -> None:
    reply = MPAReply(rev=2, c=int(theirs), s=1, ird=4, ord=4)
    with ScriptedRCPeer.accept_from_siwarp(connector, reply, ConnParam(crc=ours)) as peer:
        peer.end.post_receive(1)
        peer.send_segments(build_send(1) / Raw(b"abc"), crc=0x01020304)
        if ours or theirs:
            t = peer.receive_terminate()
            assert (t.layer, t.etype, t.code) == (2, 0, 2)
        else:
            assert poll(peer.end.rcq)[0].byte_len == 3


# ---- the size of segments


@pytest.fixture
def temporary_mulpdu_setting(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the setting mulpdu for the duration of the test."""
    lib.siw_setting_set(b"mulpdu", request.param)
    yield request.param
    lib.siw_setting_set(b"mulpdu", 64768)


@pytest.mark.parametrize("temporary_mulpdu_setting", [128, 1000, 3000, 64768], indirect=True)
@pytest.mark.clause("RFC5044-3-03", "RFC5044-3-05", "RFC5044-4.5-05")
def test_segments_have_the_size_of_mulpdu_except_the_last(
    connector: ListenerAndConnector, temporary_mulpdu_setting: int
) -> None:
    size = min(temporary_mulpdu_setting * 40, 1 << 20)
    with ScriptedRCPeer.accept_from_siwarp(connector, size=1 << 20) as peer:
        end = peer.end
        end.post(WRITE, 1, length=size, remote=RemoteBuffer(0, size, 0x77))
        end.post(SEND, 2, length=size)
        lengths: list[int] = []
        ends = 0
        while ends < 2:
            fpdu = peer.receive_fpdu()
            lengths.append(fpdu.ulpdu_length)
            ends += fpdu.ulpdu.l
            assert fpdu.ulpdu_length <= temporary_mulpdu_setting
        # A mulpdu of at most 3000 is smaller than every TCP segment of loopback.
        if temporary_mulpdu_setting <= 3000:
            assert sum(n != temporary_mulpdu_setting for n in lengths) <= 2


# ---- start-up


@pytest.mark.clause("RFC5044-7.1.2-14")
@pytest.mark.parametrize("rev", [1, 2])
def test_a_request_that_the_program_rejects_is_answered_with_the_r_bit(
    connector: ListenerAndConnector, rev: int
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=rev, private_data=b"let me in")))
        request = connector.next_connection_request()
        assert request.private_data == b"let me in"
        request.id.reject(b"no")
        reply = MPAReply(recv_startup_frame(s))
        assert (reply.rev, reply.r, reply.private_data) == (rev, 1, b"no")
        assert read_to_end(s) == b""


@pytest.mark.parametrize("frame", ["short", "long"])
@pytest.mark.parametrize("role", ["asking", "answering"])
@pytest.mark.parametrize(
    "length",
    [
        pytest.param(None, marks=pytest.mark.clause("RFC5044-7.1.1-18#a")),
        pytest.param(513, marks=pytest.mark.clause("RFC5044-7.1.1-18#b")),
        pytest.param(0xFFFF, marks=pytest.mark.clause("RFC5044-7.1.1-18#b")),
    ],
    ids=["other", "513", "65535"],
)
def test_invalid_private_data_length_closes_the_connection_with_a_local_error(
    connector: ListenerAndConnector, role: str, length: int | None, frame: str
) -> None:
    """The length exceeds the octets before the end of the stream, or the maximum of 512."""
    pdata = b"four" if frame == "short" else bytes(600)
    if length is None:
        length, pdata = 8, b"four" if frame == "short" else b""
    kind = MPARequest if role == "asking" else MPAReply
    octets = bytes(kind(rev=1, pd_length=length, private_data=pdata))
    if role == "asking":
        s = connect_plain_socket(connector.address)
        s.sendall(octets)
        s.shutdown(socket.SHUT_WR) if length == 8 else None
        assert read_to_end(s) == b""
        assert (
            connector.p_channel.get_event(0) is None
        )  # no event for this client reaches the program
    else:
        with create_plain_listener(connector.host) as listener:
            a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
            a.id.connect(listener.getsockname()[:2], ConnParam(rev=1))
            s, _ = listener.accept()
            recv_startup_frame(s)
            s.sendall(octets)
            s.shutdown(socket.SHUT_WR) if length == 8 else None
            event = a.next_cm_event()
            assert event.type == CMEventType.CONNECT_ERROR
            assert event.status == errno.EPROTO if length > 512 else event.status > 0
            assert read_to_end(s) == b""
    s.close()


@pytest.mark.parametrize("ird", [0, 1, 7, 127, 128, 200])
@pytest.mark.clause("RFC6581-9.1-02", "RFC6581-9.1-04")
def test_the_ord_of_a_responder_does_not_exceed_the_ird_of_the_initiator(
    connector: ListenerAndConnector, ird: int
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(
        connector, MPARequest(rev=2, s=1, ird=ird, ord=3)
    ) as peer:
        assert peer.ours.s == 1
        assert peer.ours.ord <= ird


# ---- the end of the connection


@pytest.mark.clause("RFC5041-6.2.1-01")
def test_a_disconnect_transmits_the_accepted_requests_and_flushes_later_requests(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector, size=1 << 20) as peer:
        end = peer.end
        end.mem.write(octet_pattern(300_000))
        end.post(SEND, 1, length=300_000)
        end.id.disconnect()
        end.post(SEND, 2, length=1)
        fpdus = peer.receive_to_end().fpdus
        assert b"".join(bytes(f.ulpdu.payload) for f in fpdus) == octet_pattern(300_000)
        wcs = poll(end.scq, 2)
        assert [(w.wr_id, w.status) for w in wcs][1] == (2, WCStatus.WR_FLUSH_ERR)


@pytest.mark.clause("RFC5041-3-10", "RFC5041-3-11", "RFC5041-6.2.1-04")
def test_a_graceful_end_of_the_peer_is_reported_and_answered(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        peer.end.post_receive(1)
        peer.end.post_receive(2)
        peer.send_segments(build_send(1))
        peer.sock.shutdown(socket.SHUT_WR)
        wcs = poll(peer.end.rcq, 2)
        assert [w.status for w in wcs] == [WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR]
        event = peer.end.next_cm_event()
        assert (event.type, event.status, event.wire_error) == (CMEventType.DISCONNECTED, 0, 0)
        assert peer.sock.recv(1) == b""  # TCP ends with a FIN, not with a reset


@pytest.mark.clause("RFC5041-6.2.2-02", "RFC5041-3-04")
def test_a_lost_connection_is_reported_and_outstanding_requests_are_flushed(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector) as peer:
        end = peer.end
        end.post_receive(1)
        end.post(READ, 2, length=8, remote=RemoteBuffer(0, 8, 0x77))
        peer.receive_fpdu()
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sock.close()
        assert poll(end.scq)[0].status == poll(end.rcq)[0].status == WCStatus.WR_FLUSH_ERR
        event = end.next_cm_event()
        assert (event.type, event.status) == (CMEventType.DISCONNECTED, errno.ECONNRESET)
