"""MPA Requests with and without RTRs, and unusual MPA Requests, which are accepted."""

from __future__ import annotations

import itertools

import pytest
from harness.rc_harness import (
    End,
    ListenerAndConnector,
    connect_plain_socket,
    create_plain_listener,
)
from harness.verbs_harness import temporary_settings
from harness.wire_peer import recv_startup_frame

from siwarp.cm import CMID, RTR, CMEventType, ConnParam
from siwarp.inspect import (
    FPDU,
    DDPTagged,
    DDPUntagged,
    MPAReply,
    MPARequest,
    Opcode,
    Queue,
    ReadRequest,
)
from siwarp.verbs import Persona

DEPTHS = [(0, 0), (1, 1000), (0x3FFF, 0), (0x3FFF, 0x3FFF)]


@pytest.mark.clause("RFC6581-9.2-08")
def test_the_reply_to_a_peer_to_peer_request_without_rtr_chooses_an_empty_write(
    connector: ListenerAndConnector,
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, a=1, ird=4, ord=4)))
        end = End(connector.passive, connector.next_connection_request().id, connector.p_channel)
        end.id.accept()
        reply = MPAReply(recv_startup_frame(s))
        assert (reply.r, reply.a, reply.b, reply.c_rtr, reply.d_rtr) == (0, 1, 0, 1, 0)
        s.sendall(bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE))))
        event = end.next_cm_event()
        assert (event.type, event.peer_to_peer) == (CMEventType.ESTABLISHED, RTR.WRITE)


REVISION_1_PARAMS = [
    ConnParam(rev=1),
    ConnParam(rev=1, initiator_depth=5, responder_resources=7),
    ConnParam(rev=1, private_data=b"plain"),
    ConnParam(rev=1, private_data=bytes(512)),
    ConnParam(rev=1, crc=False, markers=True),
]


@pytest.mark.parametrize("param", REVISION_1_PARAMS, ids=range(len(REVISION_1_PARAMS)))
@pytest.mark.parametrize("roce", [False, True])
@pytest.mark.clause("RFC6581-10-03")
def test_an_mpa_request_of_revision_1_has_the_format_of_rfc_5044(
    connector: ListenerAndConnector, param: ConnParam, roce: bool
) -> None:
    """siwarp sends a plain RFC 5044 Request with revision 1, whatever the program sets.

    The Request has no S bit and no words for IRD and ORD, and no RTR follows.
    """
    persona = {"persona": Persona.ROCE} if roce else {}
    with temporary_settings(mpa_announce=0), create_plain_listener() as listener:
        end = End(connector.active, CMID(connector.a_channel), connector.a_channel, **persona)
        end.id.connect(listener.getsockname()[:2], param)
        sock, _ = listener.accept()
        with sock:
            pdata = bytes(param.private_data)
            flags = (0x80 if param.markers else 0) | (0x40 if param.crc else 0)
            assert recv_startup_frame(sock) == (
                b"MPA ID Req Frame" + bytes([flags, 1]) + len(pdata).to_bytes(2, "big") + pdata
            )
            sock.sendall(bytes(MPAReply(rev=1, m=0, c=0)))
            assert end.next_cm_event().type == CMEventType.ESTABLISHED
            sock.settimeout(0.03)
            # siwarp sends no RTR after a Request and Reply of revision 1.
            with pytest.raises(TimeoutError):
                sock.recv(1)


@pytest.mark.clause("RFC6581-10-03")
def test_a_client_server_mpa_request_of_revision_2_offers_no_rtr(
    connector: ListenerAndConnector,
) -> None:
    with create_plain_listener() as listener:
        end = End(connector.active, CMID(connector.a_channel), connector.a_channel)
        end.id.connect(listener.getsockname()[:2], ConnParam())
        sock, _ = listener.accept()
        with sock:
            request = MPARequest(recv_startup_frame(sock))
    assert (request.s, request.a, request.b, request.c_rtr, request.d_rtr) == (1, 0, 0, 0, 0)


RTR_FPDUS = {
    1: FPDU(ulpdu=None),
    2: FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE)),
    4: FPDU(
        ulpdu=DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=Queue.READ_REQUEST)
        / ReadRequest(sink_stag=1, size=0)
    ),
}


@pytest.mark.parametrize("sent", RTR_FPDUS)
@pytest.mark.parametrize("offered", range(1, 8))
@pytest.mark.clause("RFC6581-9.2-05")
def test_an_mpa_reply_accepts_all_offered_rtrs_and_each_opens_the_connection(
    connector: ListenerAndConnector, offered: int, sent: int
) -> None:
    with connect_plain_socket(connector.address) as s:
        flags = {"b": offered & 1, "c_rtr": offered >> 1 & 1, "d_rtr": offered >> 2}
        s.sendall(bytes(MPARequest(rev=2, s=1, a=1, ird=4, ord=4, **flags)))
        end = End(connector.passive, connector.next_connection_request().id, connector.p_channel)
        end.id.accept()
        reply = MPAReply(recv_startup_frame(s))
        assert (reply.a, {name: getattr(reply, name) for name in flags}) == (1, flags)
        s.sendall(bytes(RTR_FPDUS[sent]))
        event = end.next_cm_event()
        if offered & sent:
            assert event.type == CMEventType.ESTABLISHED
        else:
            assert event.type in (CMEventType.CONNECT_ERROR, CMEventType.DISCONNECTED)
            assert event.wire_error == 0x020007  # RFC6581-9.2-11


def test_an_mpa_reply_accepts_a_read_as_rtr_only_if_the_responder_accepts_reads(
    connector: ListenerAndConnector,
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, a=1, c_rtr=1, d_rtr=1, ird=4, ord=0)))
        end = End(connector.passive, connector.next_connection_request().id, connector.p_channel)
        end.id.accept(ConnParam(responder_resources=0))
        reply = MPAReply(recv_startup_frame(s))
        assert (reply.a, reply.b, reply.c_rtr, reply.d_rtr) == (1, 0, 1, 0)


@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize(("ird", "ord_"), DEPTHS)
def test_mpa_requests_with_any_combination_of_flags_and_depths_are_accepted(
    connector: ListenerAndConnector, a: int, ird: int, ord_: int
) -> None:
    for m, c, b, write, read in itertools.product((0, 1), repeat=5):
        with connect_plain_socket(connector.address) as s:
            request = MPARequest(
                rev=2, m=m, c=c, s=1, a=a, b=b, c_rtr=write, d_rtr=read, ird=ird, ord=ord_
            )
            s.sendall(bytes(request))
            end = End(
                connector.passive, connector.next_connection_request().id, connector.p_channel
            )
            end.id.accept()
            reply = MPAReply(recv_startup_frame(s))
            assert (reply.r, reply.s, reply.a) == (0, 1, a)
            assert (reply.b + reply.c_rtr + reply.d_rtr > 0) == bool(a)
            end.close()
