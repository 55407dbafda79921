"""RFC 6581 sections 9 and 9.1: the bits, IRD and ORD of the enhanced data."""

from __future__ import annotations

import pytest
from _siwarp_layers import lib
from hypothesis import given
from hypothesis import strategies as st
from unit.mpa.mpa_harness import (
    MpaPoller,
    make_enhanced_mpa_params,
    make_mpa_params,
    open_mpa_poller,
    recv_exactly,
    recv_startup_frame,
)

from siwarp.inspect import MPAReply, MPARequest

NONE = 0x3FFF
depths = st.integers(0, NONE) | st.sampled_from([0, 1, 0xFF, 0x100, 0x1FFF, 0x2000, NONE])


@pytest.mark.clause("RFC6581-9-01")
@given(depths, depths, st.booleans(), st.integers(1, 7))
def test_a_request_of_siwarp_has_ird_ord_and_flags_at_the_positions_of_the_figure(
    ird: int, ord_: int, p2p: bool, rtr: int
) -> None:
    rtr = rtr if p2p else 0
    with open_mpa_poller() as layer_poller:
        stream = layer_poller.create_initiator_awaiting_reply(
            make_enhanced_mpa_params(ird=ird, ord=ord_, p2p=int(p2p), rtr=rtr)
        )
        words = recv_exactly(stream.sock, 24)[20:]
        first, second = int.from_bytes(words[:2], "big"), int.from_bytes(words[2:], "big")
        assert (first & NONE, second & NONE) == (ird, ord_)
        assert first >> 15 == p2p
        assert bool(first >> 14 & 1) == bool(rtr & lib.SIW_MPA_RTR_FPDU)
        assert bool(second >> 15) == bool(rtr & lib.SIW_MPA_RTR_WRITE)
        assert bool(second >> 14 & 1) == bool(rtr & lib.SIW_MPA_RTR_READ)


@pytest.mark.clause("RFC6581-9-01", "RFC6581-9.1-01")
@given(depths, depths, st.integers(1, 7))
def test_ird_ord_and_rtrs_of_a_request_are_passed_on(ird: int, ord_: int, rtr: int) -> None:
    with open_mpa_poller() as layer_poller:
        _, peer = layer_poller.create_responder_with_request(
            MPARequest(
                rev=2, s=1, a=1, ird=ird, ord=ord_, b=rtr & 1, c_rtr=rtr >> 1 & 1, d_rtr=rtr >> 2
            )
        )
        assert (peer.enhanced, peer.p2p, peer.rtr) == (1, 1, rtr)
        assert (peer.ird, peer.ord) == (ird, ord_)


@pytest.mark.clause("RFC6581-9.1-01", "RFC6581-9.1-10")
@pytest.mark.parametrize("rejected", [0, 1])
@pytest.mark.parametrize(("ird", "ord_"), [(0, 0), (1, 0x2000), (0x3FFE, 5), (NONE, NONE)])
def test_ird_and_ord_of_an_accepting_or_rejecting_reply_are_passed_on(
    layer_poller: MpaPoller, rejected: int, ird: int, ord_: int
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_enhanced_mpa_params())
    stream.sock.sendall(bytes(MPAReply(rev=2, s=1, r=rejected, ird=ird, ord=ord_)))
    code, peer = stream.complete_startup()
    assert code == (lib.SIW_MPA_REJECTED if rejected else lib.SIW_MPA_REPLY)
    assert (peer.enhanced, peer.ird, peer.ord) == (1, ird, ord_)


@pytest.mark.clause("RFC6581-9.1-11", "RFC6581-9.1-13")
@pytest.mark.parametrize(("ird", "ord_"), [(NONE, NONE), (NONE, 3), (3, NONE), (3, 3)])
def test_a_reply_leaves_to_the_ulp_the_depths_that_the_request_leaves_to_it(
    layer_poller: MpaPoller, ird: int, ord_: int
) -> None:
    stream, _ = layer_poller.create_responder_with_request(
        MPARequest(rev=2, s=1, ird=ird, ord=ord_)
    )
    stream.send_reply(make_mpa_params(ird=7, ord=2))
    reply = recv_startup_frame(stream.sock)
    assert reply.ird == (NONE if ord_ == NONE else 7)
    assert reply.ord == (NONE if ird == NONE else 2)
