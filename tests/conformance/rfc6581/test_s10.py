"""RFC 6581 section 10: enhanced and unenhanced peers."""

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
    recv_startup_frame,
)

from siwarp.inspect import MPAReply, MPARequest

BAD_FRAME = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_BAD_FRAME)


@pytest.mark.clause("RFC6581-10-01", "RFC6581-10-05")
@pytest.mark.parametrize("rejected", [0, 1])
def test_an_enhanced_request_gets_an_enhanced_reply(layer_poller: MpaPoller, rejected: int) -> None:
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=2, s=1, ird=2, ord=2))
    stream.send_reply(make_mpa_params(rejected=rejected, ird=2, ord=1, pdata=b"data"))
    reply = recv_startup_frame(stream.sock)
    assert (reply.rev, reply.s, reply.ird, reply.ord) == (2, 1, 2, 1)
    assert (reply.r, reply.private_data) == (rejected, b"data")


@pytest.mark.clause("RFC6581-10-02", "RFC6581-10-06")
@pytest.mark.parametrize("rev", [1, 2])
@pytest.mark.parametrize("rejected", [0, 1])
def test_an_unenhanced_request_gets_an_unenhanced_reply(
    layer_poller: MpaPoller, rev: int, rejected: int
) -> None:
    stream, peer = layer_poller.create_responder_with_request(
        MPARequest(rev=rev, private_data=b"plain")
    )
    assert peer.enhanced == 0
    stream.send_reply(make_enhanced_mpa_params(rejected=rejected, pdata=b"data"))
    reply = recv_startup_frame(stream.sock)
    assert (reply.rev, reply.s, reply.r) == (rev, 0, rejected)
    assert reply.private_data == b"data"


@pytest.mark.clause("RFC6581-6-03")
@pytest.mark.parametrize("rev", [1, 2])
def test_an_mpa_request_without_enhanced_parameters_has_the_unenhanced_format(
    layer_poller: MpaPoller, rev: int
) -> None:
    request = recv_startup_frame(
        layer_poller.create_initiator_awaiting_reply(make_mpa_params(rev=rev, pdata=b"plain")).sock
    )
    assert (request.s, request.pd_length, request.private_data) == (0, 5, b"plain")


@pytest.mark.clause("RFC6581-10-01", "RFC6581-10-05")
def test_an_unenhanced_acceptance_of_an_enhanced_request_is_a_bad_frame(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params())
    stream.sock.sendall(bytes(MPAReply(rev=2, s=0)))
    assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO
    assert stream.error == BAD_FRAME


@pytest.mark.clause("RFC6581-10-06")
def test_an_enhanced_acceptance_of_an_unenhanced_request_is_a_bad_frame(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params())
    stream.sock.sendall(bytes(MPAReply(rev=2, s=1, ird=1, ord=1)))
    assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO
    assert stream.error == BAD_FRAME


@pytest.mark.parametrize("rev", [1, 2])
def test_an_enhanced_initiator_accepts_an_unenhanced_rejection_of_either_revision(
    layer_poller: MpaPoller, rev: int
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params())
    stream.sock.sendall(bytes(MPAReply(rev=rev, r=1, private_data=b"why")))
    code, peer = stream.complete_startup()
    assert code == lib.SIW_MPA_REJECTED
    assert bytes(peer.pdata[0:3]) == b"why"
