"""Depths (IRD, ORD) and RTRs in MPA Requests and Replies, and how each end uses the values."""

from __future__ import annotations

import pytest
from harness.rc_harness import (
    End,
    ListenerAndConnector,
    connect_plain_socket,
    create_plain_listener,
)
from harness.verbs_harness import temporary_settings
from harness.wire_peer import build_terminate, recv_startup_frame

from siwarp.cm import CMID, RTR, CMEventType, ConnParam
from siwarp.inspect import FPDU, DDPTagged, MPAReply, MPARequest, Opcode
from siwarp.verbs import Persona

ZERO_DEPTHS = ConnParam(initiator_depth=0, responder_resources=0)
RTR_FLAGS = {RTR.FPDU: "b", RTR.WRITE: "c_rtr", RTR.READ: "d_rtr"}


def build_request_offering_rtrs(*kinds: RTR) -> bytes:
    flags = {RTR_FLAGS[kind]: 1 for kind in kinds}
    return bytes(MPARequest(rev=2, s=1, a=1, ird=4, ord=4, **flags))


def receive_request_of_siwarp(
    connector: ListenerAndConnector, param: ConnParam, persona: Persona = Persona.IWARP
) -> MPARequest:
    """Connect with siwarp to a plain socket and return the MPA Request that siwarp sends."""
    with create_plain_listener() as s:
        a = End(connector.active, CMID(connector.a_channel), connector.a_channel, persona=persona)
        a.id.connect(s.getsockname(), param)
        peer, _ = s.accept()
        with peer:
            peer.settimeout(5)
            return MPARequest(recv_startup_frame(peer))


@pytest.mark.clause("RFC6581-9.1-03")
@pytest.mark.parametrize(("persona", "depth"), [(Persona.ROCE, 1), (Persona.IWARP, 0)])
def test_an_mpa_request_of_persona_roce_allows_one_read_as_confirming_read(
    connector: ListenerAndConnector, persona: Persona, depth: int
) -> None:
    request = receive_request_of_siwarp(connector, ZERO_DEPTHS, persona)
    assert (request.ird, request.ord) == (depth, depth)


@pytest.mark.clause("RFC6581-9.1-03")
@pytest.mark.parametrize(("persona", "depth"), [(Persona.ROCE, 1), (Persona.IWARP, 0)])
def test_an_mpa_reply_of_persona_roce_allows_one_read_as_confirming_read(
    connector: ListenerAndConnector, persona: Persona, depth: int
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=4, ord=4)))
        end = End(
            connector.passive,
            connector.next_connection_request().id,
            connector.p_channel,
            persona=persona,
        )
        end.id.accept(ZERO_DEPTHS)
        reply = MPAReply(recv_startup_frame(s))
        assert (reply.ird, reply.ord) == (depth, depth)


@pytest.mark.clause("RFC5044-4.4-01#a")
@pytest.mark.parametrize(("setting", "no_crc"), [(1, False), (1, True), (0, False), (0, True)])
def test_an_mpa_request_requests_crc_unless_the_setting_or_the_call_disables_crc(
    connector: ListenerAndConnector, setting: int, no_crc: bool
) -> None:
    with temporary_settings(crc=setting):
        request = receive_request_of_siwarp(connector, ConnParam(crc=not no_crc))
    assert request.c == int(setting and not no_crc)


@pytest.mark.clause("RFC5040-5.4-07")
def test_the_event_after_a_terminate_reports_its_layer_type_and_code(
    connector: ListenerAndConnector,
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=4, ord=4)))
        end = End(connector.passive, connector.next_connection_request().id, connector.p_channel)
        end.id.accept()
        recv_startup_frame(s)
        assert end.next_cm_event().type == CMEventType.ESTABLISHED
        s.sendall(bytes(FPDU(ulpdu=build_terminate(1, 2, 5))))
        event = end.next_cm_event()
        assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, 1 << 16 | 2 << 8 | 5)


@pytest.mark.clause("RFC6581-9.1-07")
def test_an_initiator_accepts_an_ord_in_the_mpa_reply_up_to_the_device_limit(
    connector: ListenerAndConnector,
) -> None:
    most = connector.active.ctx.query_device().max_qp_rd_atom
    with create_plain_listener() as s:
        a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
        a.id.connect(s.getsockname(), ConnParam(responder_resources=2))
        peer, _ = s.accept()
        with peer:
            recv_startup_frame(peer)
            peer.sendall(bytes(MPAReply(rev=2, s=1, ird=1, ord=most)))
            event = a.next_cm_event()
            assert (event.type, event.responder_resources) == (CMEventType.ESTABLISHED, most)


@pytest.mark.clause("RFC6581-9.2-05", "RFC6581-9.2-06")
@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        ((RTR.FPDU, RTR.READ), RTR.READ),
        ((RTR.FPDU, RTR.WRITE), RTR.WRITE),
        ((RTR.READ, RTR.WRITE), RTR.WRITE),
        ((RTR.FPDU, RTR.READ, RTR.WRITE), RTR.WRITE),
    ],
)
@pytest.mark.parametrize("accepts", [True, False])
def test_the_reply_accepts_all_offered_rtrs_and_the_event_reports_the_chosen_one(
    connector: ListenerAndConnector, kinds: tuple[RTR, ...], chosen: RTR, accepts: bool
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(build_request_offering_rtrs(*kinds))
        request = connector.next_connection_request()
        assert request.peer_to_peer == sum(kinds)
        end = End(connector.passive, request.id, connector.p_channel)
        if accepts:
            end.id.accept()
        else:
            end.id.reject()
        reply = MPAReply(recv_startup_frame(s))
        assert (reply.r, reply.a) == (int(not accepts), 1)
        assert {k for k, flag in RTR_FLAGS.items() if getattr(reply, flag)} == {*kinds}
        if accepts and chosen == RTR.WRITE:
            s.sendall(bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE))))
            event = end.next_cm_event()
            assert (event.type, event.peer_to_peer) == (CMEventType.ESTABLISHED, chosen)


@pytest.mark.clause("RFC6581-9.2-09")
@pytest.mark.parametrize(
    ("agreed", "opcode"),
    [((RTR.FPDU, RTR.READ), Opcode.RDMA_READ_REQUEST), ((RTR.READ, RTR.WRITE), Opcode.RDMA_WRITE)],
)
def test_the_initiator_sends_one_of_several_agreed_rtrs(
    connector: ListenerAndConnector, agreed: tuple[RTR, ...], opcode: Opcode
) -> None:
    with create_plain_listener() as s:
        a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
        a.id.connect(s.getsockname(), ConnParam(peer_to_peer=RTR(7)))
        peer, _ = s.accept()
        with peer:
            peer.settimeout(5)
            recv_startup_frame(peer)
            flags = {RTR_FLAGS[kind]: 1 for kind in agreed}
            peer.sendall(bytes(MPAReply(rev=2, s=1, a=1, ird=4, ord=4, **flags)))
            assert a.next_cm_event().type == CMEventType.ESTABLISHED
            assert peer.recv(1000)[3] & 0xF == opcode


@pytest.mark.parametrize("rtr", [RTR.FPDU, RTR.WRITE, RTR.READ])
def test_the_events_of_both_ends_report_the_rtr_of_the_connection(
    two_device_connector: ListenerAndConnector, rtr: RTR
) -> None:
    a = two_device_connector.begin_connect(ConnParam(peer_to_peer=rtr))
    b = End(
        two_device_connector.passive,
        two_device_connector.next_connection_request().id,
        two_device_connector.p_channel,
    )
    b.id.accept()
    assert (a.next_cm_event().peer_to_peer, b.next_cm_event().peer_to_peer) == (rtr, rtr)
