"""RFC 6581 section 9.2: which end opens a peer-to-peer connection, and with which RTR message."""

from __future__ import annotations

import errno
import itertools
from typing import Any

import pytest
from _siwarp_layers import lib
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MPA_TYPE,
    MpaPoller,
    build_fpdu,
    errno_of_first_failed_call,
    make_enhanced_mpa_params,
    make_mpa_params,
    recv_exactly,
    recv_startup_frame,
    split_fpdus,
)

from siwarp.inspect import MPAReply, MPARequest

FPDU, WRITE, READ = lib.SIW_MPA_RTR_FPDU, lib.SIW_MPA_RTR_WRITE, lib.SIW_MPA_RTR_READ
RTR_SETS = range(1, 8)
NO_MATCH = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_NO_RTR_MATCH)


def rtr_bit_fields(rtr: int) -> dict[str, int]:
    """Return the bits B, C and D of a set of RTRs as fields of a scapy packet."""
    return {"b": bool(rtr & FPDU), "c_rtr": bool(rtr & WRITE), "d_rtr": bool(rtr & READ)}


def p2p_flag_and_rtrs(frame: Any) -> tuple[int, int]:
    """Return A and the set of RTRs of a start-up frame."""
    return frame.a, frame.b * FPDU | frame.c_rtr * WRITE | frame.d_rtr * READ


@pytest.mark.clause("RFC6581-9.2-01", "RFC6581-9.2-02#a", "RFC6581-9.2-02#b", "RFC6581-9.2-02#c")
@pytest.mark.parametrize("rtr", RTR_SETS)
def test_a_peer_to_peer_request_has_the_a_bit_and_the_bit_of_each_supported_rtr(
    layer_poller: MpaPoller, rtr: int
) -> None:
    assert p2p_flag_and_rtrs(
        recv_startup_frame(
            layer_poller.create_initiator_awaiting_reply(
                make_enhanced_mpa_params(p2p=1, rtr=rtr)
            ).sock
        )
    ) == (1, rtr)


@pytest.mark.clause("RFC6581-9.2-12", "RFC6581-9.2-14")
def test_a_client_server_request_has_no_rtr_bits(layer_poller: MpaPoller) -> None:
    assert p2p_flag_and_rtrs(
        recv_startup_frame(
            layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params()).sock
        )
    ) == (0, 0)
    for rtr in RTR_SETS:
        assert (
            errno_of_first_failed_call(
                lambda r=rtr: layer_poller.create_initiator_awaiting_reply(
                    make_enhanced_mpa_params(rtr=r)
                )
            )
            == errno.EINVAL
        )


@pytest.mark.clause("RFC6581-9.2-04")
@pytest.mark.parametrize("rejected", [0, 1])
@pytest.mark.parametrize(
    ("offered", "chosen"), list(itertools.product(RTR_SETS, [FPDU, WRITE, READ]))
)
def test_a_reply_of_siwarp_copies_the_a_bit_of_the_request(
    layer_poller: MpaPoller, offered: int, chosen: int, rejected: int
) -> None:
    stream, peer = layer_poller.create_responder_with_request(
        MPARequest(rev=2, s=1, a=1, **rtr_bit_fields(offered))
    )
    assert (peer.p2p, peer.rtr) == (1, offered)
    # The caller does not set p2p, because the Reply copies the flag from the Request.
    stream.send_reply(make_mpa_params(rtr=chosen, rejected=rejected))
    assert p2p_flag_and_rtrs(recv_startup_frame(stream.sock)) == (1, chosen)


@pytest.mark.clause("RFC6581-9.2-06", "RFC6581-9.2-08")
@pytest.mark.parametrize("offered", range(8))
def test_a_reply_to_any_peer_to_peer_request_must_name_an_rtr(
    layer_poller: MpaPoller, offered: int
) -> None:
    stream, _ = layer_poller.create_responder_with_request(
        MPARequest(rev=2, s=1, a=1, **rtr_bit_fields(offered))
    )
    assert errno_of_first_failed_call(lambda: stream.send_reply(make_mpa_params())) == errno.EINVAL
    stream.send_reply(make_mpa_params(rtr=READ))
    assert p2p_flag_and_rtrs(recv_startup_frame(stream.sock)) == (1, READ)
    stream, _ = layer_poller.create_responder_with_request(
        MPARequest(rev=2, s=1, a=1, **rtr_bit_fields(offered))
    )
    stream.send_reply(make_mpa_params(rejected=1))
    a, rtr = p2p_flag_and_rtrs(recv_startup_frame(stream.sock))
    assert a == 1
    assert rtr


@pytest.mark.clause("RFC6581-9.2-13", "RFC6581-9.2-14", "RFC6581-9.2-15")
@pytest.mark.parametrize("stray", range(8))
def test_without_the_a_bit_the_rtr_bits_are_ignored_and_not_sent(
    layer_poller: MpaPoller, stray: int
) -> None:
    stream, peer = layer_poller.create_responder_with_request(
        MPARequest(rev=2, s=1, a=0, ird=1, ord=1, **rtr_bit_fields(stray))
    )
    assert (peer.p2p, peer.rtr) == (0, 0)
    stream.send_reply(make_mpa_params(p2p=1, rtr=WRITE))
    assert p2p_flag_and_rtrs(recv_startup_frame(stream.sock)) == (0, 0)
    _, peer = layer_poller.create_initiator_with_reply(
        make_enhanced_mpa_params(), MPAReply(rev=2, s=1, a=0, **rtr_bit_fields(stray))
    )
    assert (peer.p2p, peer.rtr) == (0, 0)


@pytest.mark.clause("RFC6581-9.2-09")
@pytest.mark.parametrize(("offered", "named"), list(itertools.product(RTR_SETS, RTR_SETS)))
def test_an_rtr_that_both_ends_support_is_chosen_if_there_is_one(
    layer_poller: MpaPoller, offered: int, named: int
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(
        make_enhanced_mpa_params(p2p=1, rtr=offered)
    )
    stream.sock.sendall(bytes(MPAReply(rev=2, s=1, a=1, **rtr_bit_fields(named))))
    if offered & named:
        code, peer = stream.complete_startup()
        assert code == lib.SIW_MPA_REPLY
        assert peer.rtr in (FPDU, WRITE, READ)
        assert peer.rtr & offered & named
    else:
        assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO
        assert stream.error == NO_MATCH


@pytest.mark.clause("RFC6581-9.2-10", "RFC6581-9.2-11")
@pytest.mark.parametrize(
    "reply",
    [
        MPAReply(rev=2, s=1, a=1, d_rtr=1),  # the Reply selects an RTR that siwarp did not offer
        MPAReply(rev=2, s=1, a=1),  # the Reply selects no RTR
        MPAReply(rev=2, s=1, a=0, c_rtr=1),  # the Reply does not echo A
    ],
    ids=["other", "none", "no A"],
)
def test_without_a_common_rtr_the_error_is_7_and_a_terminate_can_still_be_sent(
    layer_poller: MpaPoller, reply: MPAReply
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(
        make_enhanced_mpa_params(p2p=1, rtr=WRITE)
    )
    recv_startup_frame(stream.sock)
    stream.sock.sendall(bytes(reply) + build_fpdu(b"not looked at"))
    assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO
    assert stream.error == (2, 0, 7)
    assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO, (
        "the start-up must fail again with the same error"
    )
    assert errno_of_first_failed_call(stream.peek_fpdu) == errno.EPROTO
    assert stream.frame_fpdu(b"terminate") == 1
    assert stream.flush_once() == 1
    assert split_fpdus(recv_exactly(stream.sock, 16)) == [b"terminate"]


@pytest.mark.clause("RFC6581-9.2-13")
def test_a_peer_to_peer_reply_to_a_client_server_request_is_no_matching_rtr(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params())
    stream.sock.sendall(bytes(MPAReply(rev=2, s=1, a=1, c_rtr=1)))
    assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO
    assert stream.error == NO_MATCH
