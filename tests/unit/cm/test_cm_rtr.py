"""Requests that nobody sane sends, accepted all the same: an accept says no only to its program."""

from __future__ import annotations

import itertools

import pytest
from unit.verbs.rc_harness import End, Wire, plain_client
from unit.verbs.wire_peer import recv_frame

from siwarp.cm import CMEventType
from siwarp.inspect import FPDU, DDPTagged, MPAReply, MPARequest, Opcode

DEPTHS = [(0, 0), (1, 1000), (0x3FFF, 0), (0x3FFF, 0x3FFF)]


@pytest.mark.clause("RFC6581-9.2-08")
def test_a_request_that_offers_no_rtr_is_answered_with_one_that_then_opens(wire: Wire) -> None:
    with plain_client(wire.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, a=1, ird=4, ord=4)))
        end = End(wire.passive, wire.request().id, wire.p_channel)
        end.id.accept()
        reply = MPAReply(recv_frame(s))
        assert (reply.r, reply.a, reply.b, reply.c_rtr, reply.d_rtr) == (0, 1, 0, 1, 0)
        s.sendall(bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE))))
        assert end.event().type == CMEventType.ESTABLISHED


@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize(("ird", "ord_"), DEPTHS)
def test_every_combination_of_flags_and_depths_is_accepted(
    wire: Wire, a: int, ird: int, ord_: int
) -> None:
    for m, c, b, write, read in itertools.product((0, 1), repeat=5):
        with plain_client(wire.address) as s:
            request = MPARequest(
                rev=2, m=m, c=c, s=1, a=a, b=b, c_rtr=write, d_rtr=read, ird=ird, ord=ord_
            )
            s.sendall(bytes(request))
            end = End(wire.passive, wire.request().id, wire.p_channel)
            end.id.accept()
            reply = MPAReply(recv_frame(s))
            assert (reply.r, reply.s, reply.a) == (0, 1, a)
            assert (reply.b + reply.c_rtr + reply.d_rtr > 0) == bool(a)
            end.close()
