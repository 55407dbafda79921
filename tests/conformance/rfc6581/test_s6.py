"""RFC 6581 section 6: the enhanced start-up frames."""

from __future__ import annotations

import errno

import pytest
from _siwarp_layers import lib
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MPA_TYPE,
    MpaPoller,
    errno_of_first_failed_call,
    make_enhanced_mpa_params,
    make_mpa_params,
    private_data_of,
    recv_exactly,
    recv_startup_frame,
)

from siwarp.inspect import MPAReply, MPARequest

BAD_FRAME = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_BAD_FRAME)


@pytest.mark.clause("RFC6581-6-01")
@pytest.mark.parametrize("bits", range(16))
def test_the_four_reserved_bits_of_enhanced_frames_are_sent_as_zero_and_ignored(
    layer_poller: MpaPoller, bits: int
) -> None:
    request = bytearray(bytes(MPARequest(rev=2, s=1, ird=3, ord=4)))
    request[16] |= bits
    stream, peer = layer_poller.create_responder_with_request(bytes(request))
    assert (peer.enhanced, peer.ird, peer.ord) == (1, 3, 4)
    stream.send_reply(make_mpa_params(ird=4, ord=3))
    assert recv_exactly(stream.sock, 17)[16] == 0x50
    assert (
        recv_exactly(
            layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params()).sock, 17
        )[16]
        == 0x50
    )


@pytest.mark.clause("RFC6581-6-02")
def test_enhanced_frames_of_siwarp_have_revision_2(layer_poller: MpaPoller) -> None:
    request = recv_startup_frame(
        layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params()).sock
    )
    assert (request.rev, request.s) == (2, 1)
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=2, s=1))
    stream.send_reply(make_mpa_params(rev=1))
    reply = recv_startup_frame(stream.sock)
    assert (reply.rev, reply.s) == (2, 1)
    assert (
        errno_of_first_failed_call(
            lambda: layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params(rev=1))
        )
        == errno.EINVAL
    )


@pytest.mark.clause("RFC6581-6-04", "RFC6581-10-04")
def test_mpa_requests_of_revision_1_are_accepted(layer_poller: MpaPoller) -> None:
    stream, peer = layer_poller.create_responder_with_request(
        MPARequest(rev=1, private_data=b"old")
    )
    assert (peer.rev, peer.enhanced, private_data_of(peer)) == (1, 0, b"old")
    stream.send_reply(make_mpa_params())
    assert recv_startup_frame(stream.sock).rev == 1
    assert stream.state == lib.SIW_MPA_ST_FULL


@pytest.mark.clause("RFC6581-6-05")
@pytest.mark.parametrize("pdata", [b"", b"x", bytes(508)])
def test_enhanced_data_precede_the_private_data_if_the_s_bit_is_set(
    layer_poller: MpaPoller, pdata: bytes
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(
        make_enhanced_mpa_params(ird=0x1234, ord=0x0567, pdata=pdata)
    )
    octets = recv_exactly(stream.sock, 24 + len(pdata))
    assert octets[18:] == (4 + len(pdata)).to_bytes(2, "big") + b"\x12\x34\x05\x67" + pdata
    _, peer = layer_poller.create_responder_with_request(
        MPARequest(rev=2, s=1, ird=1, ord=2, private_data=pdata)
    )
    assert (peer.ird, peer.ord, private_data_of(peer)) == (1, 2, pdata)


@pytest.mark.clause("RFC6581-6-05")
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_the_s_bit_without_space_for_the_enhanced_data_is_a_bad_frame(
    layer_poller: MpaPoller, length: int
) -> None:
    stream = layer_poller.create_responder()
    stream.sock.sendall(bytes(MPARequest(rev=2, s=1, pd_length=length))[:20] + bytes(length))
    assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO
    assert stream.error == BAD_FRAME
    for r in (0, 1):
        stream = layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params())
        stream.sock.sendall(bytes(MPAReply(rev=2, s=1, r=r, pd_length=length))[:20] + bytes(length))
        assert errno_of_first_failed_call(lambda s=stream: s.continue_startup()[0]) == errno.EPROTO
        assert stream.error == BAD_FRAME
