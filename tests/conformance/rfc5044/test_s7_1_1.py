"""RFC 5044 section 7.1.1: the fields of the MPA Request and Reply Frames."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MPA_TYPE,
    MpaPoller,
    build_fpdu,
    check_result,
    errno_of_first_failed_call,
    make_mpa_params,
    octet_pattern,
    private_data_of,
    recv_exactly,
    recv_startup_frame,
    split_fpdus,
    wait_until,
)

from siwarp.inspect import MPAReply, MPARequest, unmark

BAD_FRAME = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_BAD_FRAME)
REQUEST, REPLY = bytes(MPARequest(rev=1)), bytes(MPAReply(rev=1))


def mpa_startup_errno(stream: Any) -> int:
    """Return the errno with which the MPA start-up of a stream fails."""
    return errno_of_first_failed_call(lambda: stream.continue_startup()[0])


@pytest.mark.clause("RFC5044-7.1.1-01", "RFC5044-7.1.1-14", "RFC5044-7.1.1-17")
@pytest.mark.parametrize("pdata", [b"", b"x", bytes(512)])
def test_an_mpa_request_of_siwarp_has_the_octets_that_the_rfc_requires(
    layer_poller: MpaPoller, pdata: bytes
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params(rev=1, pdata=pdata))
    want = bytes.fromhex("4D504120494420526571204672616D65") + b"\x40\x01"
    want += len(pdata).to_bytes(2, "big") + pdata
    assert recv_exactly(stream.sock, len(want)) == want


@pytest.mark.clause("RFC5044-7.1.1-03", "RFC5044-7.1.1-17")
@pytest.mark.parametrize("pdata", [b"", b"x", bytes(512)])
def test_an_mpa_reply_of_siwarp_has_the_octets_that_the_rfc_requires(
    layer_poller: MpaPoller, pdata: bytes
) -> None:
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=1))
    stream.send_reply(make_mpa_params(pdata=pdata))
    want = bytes.fromhex("4D504120494420526570204672616D65") + b"\x40\x01"
    want += len(pdata).to_bytes(2, "big") + pdata
    assert recv_exactly(stream.sock, len(want)) == want


@pytest.mark.clause("RFC5044-7.1.1-02", "RFC5044-8-01#d")
@pytest.mark.parametrize("at", range(16))
def test_an_mpa_request_with_any_wrong_octet_in_its_key_is_an_error(
    layer_poller: MpaPoller, at: int
) -> None:
    frame = bytearray(REQUEST)
    frame[at] ^= 0x20
    stream = layer_poller.create_responder()
    stream.sock.sendall(frame)
    assert mpa_startup_errno(stream) == errno.EPROTO
    assert stream.error == BAD_FRAME


@pytest.mark.clause("RFC5044-7.1.1-04", "RFC5044-8-01#d")
@pytest.mark.parametrize("at", range(16))
def test_an_mpa_reply_with_any_wrong_octet_in_its_key_is_an_error(
    layer_poller: MpaPoller, at: int
) -> None:
    frame = bytearray(REPLY)
    frame[at] ^= 0x20
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params(rev=1))
    stream.sock.sendall(frame)
    assert mpa_startup_errno(stream) == errno.EPROTO
    assert stream.error == BAD_FRAME


@pytest.mark.clause("RFC5044-7.1.1-02")
@pytest.mark.parametrize("octets", [b"G", b"GET / HTTP/1.1\r\n", b"MPA ID Rex", b"\0"])
def test_octets_of_another_protocol_fail_the_mpa_start_up_immediately(
    layer_poller: MpaPoller, octets: bytes
) -> None:
    stream = layer_poller.create_responder()
    stream.sock.sendall(octets)
    assert mpa_startup_errno(stream) == errno.EPROTO


@pytest.mark.clause("RFC5044-7.1.1-13")
@pytest.mark.parametrize("bits", range(16))
def test_reserved_bits_of_mpa_frames_are_ignored(layer_poller: MpaPoller, bits: int) -> None:
    request = bytearray(bytes(MPARequest(rev=1, private_data=b"\xff\xff\xff\xffmine")))
    request[16] |= bits  # S is a reserved bit in revision 1, and R has no meaning in a Request
    request[16] |= 0x30 if bits & 1 else 0
    stream, peer = layer_poller.create_responder_with_request(bytes(request))
    assert (peer.enhanced, peer.rejected) == (0, 0)
    assert private_data_of(peer) == b"\xff\xff\xff\xffmine"
    stream.send_reply(make_mpa_params())
    assert recv_exactly(stream.sock, 17)[16] == 0x40
    reply = bytearray(REPLY)
    reply[16] |= bits
    _, peer = layer_poller.create_initiator_with_reply(make_mpa_params(rev=1), bytes(reply))
    assert (peer.rev, peer.enhanced) == (1, 0)


@pytest.mark.clause("RFC5044-7.1.1-15", "RFC5044-7.1.1-16")
@pytest.mark.parametrize("rev", [3, 4, 127, 255])
def test_an_mpa_request_of_an_unknown_revision_is_an_error(
    layer_poller: MpaPoller, rev: int
) -> None:
    stream = layer_poller.create_responder()
    stream.sock.sendall(bytes(MPARequest(rev=rev)))
    assert mpa_startup_errno(stream) == errno.EPROTO
    assert stream.error == BAD_FRAME


@pytest.mark.clause("RFC5044-7.1.1-15", "RFC5044-7.1.1-16")
@pytest.mark.parametrize(("ours", "theirs"), [(1, 0), (1, 2), (1, 3), (2, 0), (2, 1), (2, 255)])
def test_an_mpa_reply_of_another_revision_than_the_request_is_an_error(
    layer_poller: MpaPoller, ours: int, theirs: int
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params(rev=ours))
    stream.sock.sendall(bytes(MPAReply(rev=theirs)))
    assert mpa_startup_errno(stream) == errno.EPROTO
    assert stream.error == BAD_FRAME


def test_an_mpa_request_of_revision_0_is_rejected_in_revision_1(layer_poller: MpaPoller) -> None:
    """RFC 5044 annex C.2.1: an RDMAC RNIC receives a Reply, not only an end of stream."""
    stream = layer_poller.create_responder()
    stream.sock.sendall(bytes(MPARequest(rev=0, m=1, c=1)))
    assert mpa_startup_errno(stream) == errno.EPROTO
    reply = recv_startup_frame(stream.sock)
    assert (reply.rev, reply.r, reply.m) == (1, 1, 0)
    stream.close()
    assert stream.sock.recv(1) == b""


@pytest.mark.parametrize("role", ["request", "reply"])
@pytest.mark.clause("RFC5044-7.1.1-18#a")
def test_an_end_of_stream_within_the_private_data_is_a_local_error(
    layer_poller: MpaPoller, role: str
) -> None:
    if role == "request":
        stream = layer_poller.create_responder()
        stream.sock.sendall(bytes(MPARequest(rev=1, pd_length=8, private_data=b"1234567")))
    else:
        stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params(rev=1))
        stream.sock.sendall(bytes(MPAReply(rev=1, pd_length=8, private_data=b"1234567")))
    stream.sock.shutdown(socket.SHUT_WR)
    assert mpa_startup_errno(stream) in (errno.EPROTO, errno.ECONNRESET, errno.ENOTCONN)
    assert stream.error in (BAD_FRAME, (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CLOSED))


@pytest.mark.clause("RFC5044-7.1.1-18#b", "RFC5044-7.1.2-17", "RFC5044-7.1.2-19")
@pytest.mark.parametrize("length", [513, 514, 1024, 0x7FFF, 0x8000, 0xFFFF])
def test_a_private_data_length_above_512_is_an_error(layer_poller: MpaPoller, length: int) -> None:
    stream = layer_poller.create_responder()
    stream.sock.sendall(bytes(MPARequest(rev=2, pd_length=length)))
    assert mpa_startup_errno(stream) == errno.EPROTO
    assert stream.error == BAD_FRAME
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params())
    stream.sock.sendall(bytes(MPAReply(rev=2, pd_length=length)))
    assert mpa_startup_errno(stream) == errno.EPROTO
    assert stream.error == BAD_FRAME


@pytest.mark.clause("RFC5044-7.1.1-08")
def test_no_markers_are_sent_to_a_peer_that_does_not_request_markers(
    layer_poller: MpaPoller,
) -> None:
    """A stream of 64 FPDUs must contain no Marker."""
    stream = layer_poller.create_sender()
    for _ in range(64):
        assert stream.frame_fpdu(bytes(18), [bytes(40)]) == 1
    stream.flush()
    assert split_fpdus(recv_exactly(stream.sock, 64 * 64)) == [bytes(58)] * 64


@pytest.mark.clause("RFC5044-7.1.1-05")
def test_mpa_frames_request_markers_only_if_the_parameters_say_so(layer_poller: MpaPoller) -> None:
    for markers in (0, 1):
        assert (
            recv_startup_frame(
                layer_poller.create_initiator_awaiting_reply(make_mpa_params(markers=markers)).sock
            ).m
            == markers
        )
        stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=2))
        stream.send_reply(make_mpa_params(markers=markers))
        assert recv_startup_frame(stream.sock).m == markers


@pytest.mark.clause("RFC5044-7.1.1-06", "RFC5044-7.1.1-09")
@pytest.mark.parametrize("rev", [1, 2])
def test_the_responder_sends_markers_if_the_request_has_the_m_bit(
    layer_poller: MpaPoller, rev: int
) -> None:
    stream, peer = layer_poller.create_responder_with_request(MPARequest(rev=rev, m=1))
    assert peer.markers == 1
    stream.send_reply(make_mpa_params(rev=rev))
    reply = recv_startup_frame(stream.sock)
    assert (reply.rev, reply.r, reply.m) == (rev, 0, 0)
    stream.sock.sendall(build_fpdu(b"unmarked, since we did not ask"))
    assert stream.receive_ulpdu() == b"unmarked, since we did not ask"
    assert stream.frame_fpdu(b"answer") == 1
    stream.flush()
    octets = recv_exactly(stream.sock, 16)
    assert octets[:4] == bytes(4)
    assert unmark(octets)[0][2:8] == b"answer"


@pytest.mark.clause("RFC5044-7.1.1-07", "RFC5044-7.1.1-09")
def test_the_initiator_sends_markers_if_the_reply_has_the_m_bit(layer_poller: MpaPoller) -> None:
    stream, peer = layer_poller.create_initiator_with_reply(make_mpa_params(), MPAReply(rev=2, m=1))
    assert peer.markers == 1
    assert stream.frame_fpdu(b"hello") == 1
    stream.flush()
    assert unmark(recv_exactly(stream.sock, 16))[0][2:7] == b"hello"
    stream.sock.sendall(build_fpdu(b"unmarked, since we did not ask"))
    assert stream.receive_ulpdu() == b"unmarked, since we did not ask"


@pytest.mark.clause("RFC5044-7.1.1-19")
@pytest.mark.parametrize("length", [0, 1, 511, 512])
def test_private_data_of_any_content_up_to_512_octets_is_passed_on(
    layer_poller: MpaPoller, length: int
) -> None:
    pdata = (REQUEST + REPLY + build_fpdu(b"x") * 60)[:length]
    assert (
        private_data_of(
            layer_poller.create_responder_with_request(MPARequest(rev=1, private_data=pdata))[1]
        )
        == pdata
    )
    assert (
        private_data_of(
            layer_poller.create_initiator_with_reply(
                make_mpa_params(), MPAReply(rev=2, private_data=pdata)
            )[1]
        )
        == pdata
    )


@pytest.mark.parametrize("role", ["request", "reply"])
@pytest.mark.parametrize("length", [0, 1, 511, 512])
@pytest.mark.clause("RFC5044-7.1.2-18#a", "RFC5044-7.1.2-18#b")
def test_exactly_the_octets_of_the_private_data_are_passed_on(
    layer_poller: MpaPoller, role: str, length: int
) -> None:
    """Octets of the next FPDU follow immediately, and the caller's memory ends after the buffer."""
    pdata, behind = octet_pattern(length, 3), build_fpdu(b"not private data")
    if role == "request":
        stream = layer_poller.create_responder()
        stream.sock.sendall(bytes(MPARequest(rev=1, private_data=pdata)) + behind)
    else:
        stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params(rev=1))
        stream.sock.sendall(bytes(MPAReply(rev=1, private_data=pdata)) + behind)
    two = ffi.new("struct siw_mpa_params[2]")
    ffi.memmove(two, b"\xa5" * ffi.sizeof(two), ffi.sizeof(two))
    wait_until(
        lambda: check_result(lib.siw_mpa_startup(stream.handle, two)) != lib.SIW_MPA_STARTING
    )
    peer = two[0]
    assert (peer.pdata_len, private_data_of(peer)) == (length, pdata)
    assert len(peer.pdata) == 512
    assert not any(set(bytes(ffi.buffer(peer.pdata))[length:]) - {0, 0xA5})
    assert bytes(ffi.buffer(two))[ffi.sizeof(two) // 2 :] == b"\xa5" * (ffi.sizeof(two) // 2)
    if role == "request":
        stream.send_reply(make_mpa_params(rev=1))
    assert stream.receive_ulpdu() == b"not private data"


def test_the_start_up_waits_for_the_rest_of_the_private_data(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_responder()
    stream.sock.sendall(bytes(MPARequest(rev=1, pd_length=8, private_data=b"1234")))
    for _ in range(20):
        assert stream.continue_startup()[0] == lib.SIW_MPA_STARTING
    stream.sock.sendall(b"5678")
    _, peer = wait_until(lambda: (s := stream.continue_startup())[0] and s)
    assert private_data_of(peer) == b"12345678"
