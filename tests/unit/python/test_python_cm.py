from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterator

import pytest

import siwarp
from siwarp.cm import CMID, RTR, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.verbs import CQ, MR, PD, QP, Context, QPInitAttr, QPState, QPType, RecvWR, SendWR


class CMEndpoint:
    """A device with a CM channel, a CQ and memory, for RC queue pairs."""

    def __init__(self) -> None:
        self.ctx = Context()
        self.channel = CMEventChannel(self.ctx)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx)
        self.mr = MR(self.pd, 1024)
        # The list keeps references to ids, because Python closes an id without a reference.
        self.ids: list[CMID] = []

    def make_rc_qp(self) -> QP:
        return QP(self.pd, QPInitAttr(QPType.RC, scq=self.cq))

    def wait_for_event(self, kind: CMEventType) -> CMEvent:
        event = self.channel.get_event(10)
        assert event is not None and event.type == kind
        return event

    def wait_for_completion(self) -> siwarp.verbs.WC:
        deadline = time.monotonic() + 10
        while not (wcs := self.cq.poll()):
            assert time.monotonic() < deadline
        return wcs[0]


@pytest.fixture
def initiator() -> Iterator[CMEndpoint]:
    end = CMEndpoint()
    with end.ctx:
        yield end


@pytest.fixture
def responder() -> Iterator[CMEndpoint]:
    end = CMEndpoint()
    with end.ctx:
        yield end


def start_listener(end: CMEndpoint) -> CMID:
    listener = CMID(end.channel)
    end.ids.append(listener)
    listener.listen(("127.0.0.1", 0))
    return listener


def start_connect(end: CMEndpoint, to: CMID, param: ConnParam | None = None) -> CMID:
    cm_id = CMID(end.channel)
    end.ids.append(cm_id)
    cm_id.bind_qp(end.make_rc_qp())
    cm_id.connect(to.local_addr, param)
    return cm_id


def test_two_endpoints_connect_with_private_data_exchange_data_and_disconnect(
    initiator: CMEndpoint, responder: CMEndpoint
) -> None:
    listener = start_listener(responder)
    listener.context = "the listener"
    active = start_connect(
        initiator, listener, ConnParam(private_data=b"question", initiator_depth=3)
    )
    request = responder.wait_for_event(CMEventType.CONNECT_REQUEST)
    assert request.listen_id is listener
    assert request.listen_id.context == "the listener"
    assert request.private_data == b"question"
    assert request.rev == 2
    passive = request.id
    qp = responder.make_rc_qp()
    passive.bind_qp(qp)
    qp.post_recv(RecvWR(1, sg=[responder.mr.sge()]))
    passive.accept(ConnParam(private_data=b"answer"))
    event = initiator.wait_for_event(CMEventType.ESTABLISHED)
    assert event.id is active
    assert event.check().private_data == b"answer"
    assert event.crc
    assert event.initiator_depth == 3
    assert active.qp is not None and active.qp.qp_state == QPState.RTS
    assert active.peer_addr == listener.local_addr == active.qp.peer
    assert passive.peer_addr == active.local_addr == active.qp.addr

    initiator.mr.write(b"over the connection")
    active.qp.post_send(SendWR(2, sg=[initiator.mr.sge(0, 19)]))
    assert initiator.wait_for_completion().check().wr_id == 2
    assert responder.wait_for_completion().check().byte_len == 19
    assert responder.mr.read(19) == b"over the connection"

    active.disconnect()
    responder.wait_for_event(CMEventType.ESTABLISHED)
    assert responder.wait_for_event(CMEventType.DISCONNECTED).id is passive
    assert qp.qp_state == QPState.ERR


def test_the_rejected_event_has_the_private_data_of_the_rejection(
    initiator: CMEndpoint, responder: CMEndpoint
) -> None:
    start_connect(initiator, start_listener(responder))
    responder.wait_for_event(CMEventType.CONNECT_REQUEST).id.reject(b"not today")
    event = initiator.wait_for_event(CMEventType.REJECTED)
    assert event.private_data == b"not today"
    with pytest.raises(siwarp.PeerGone, match="not today") as caught:
        event.check()
    assert caught.value.errno == errno.ECONNREFUSED


def test_the_event_of_a_connect_without_a_listener_advises_to_start_the_peer(
    initiator: CMEndpoint,
) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        cm_id = CMID(initiator.channel)
        cm_id.bind_qp(initiator.make_rc_qp())
        cm_id.connect(("127.0.0.1", port))
        event = initiator.channel.get_event(10)
    assert event is not None and event.id is cm_id
    with pytest.raises(siwarp.PeerGone, match="start the peer"):
        event.check()


def test_the_connection_request_reports_the_mpa_revision_and_the_offered_rtrs(
    initiator: CMEndpoint, responder: CMEndpoint
) -> None:
    listener = start_listener(responder)
    start_connect(initiator, listener, ConnParam(rev=1))
    assert responder.wait_for_event(CMEventType.CONNECT_REQUEST).rev == 1
    start_connect(initiator, listener, ConnParam(peer_to_peer=RTR.WRITE | RTR.READ))
    request = responder.wait_for_event(CMEventType.CONNECT_REQUEST)
    assert request.rev == 2
    assert request.peer_to_peer == RTR.WRITE | RTR.READ


def test_a_cm_id_accepts_only_one_queue_pair_and_only_rc(initiator: CMEndpoint) -> None:
    cm_id = CMID(initiator.channel)
    ud = QP(initiator.pd, QPInitAttr(QPType.UD, scq=initiator.cq))
    with pytest.raises(siwarp.StateError, match="RC"):
        cm_id.bind_qp(ud)
    qp = initiator.make_rc_qp()
    cm_id.bind_qp(qp)
    assert qp.qp_state == QPState.INIT
    with pytest.raises(siwarp.StateError):
        cm_id.bind_qp(initiator.make_rc_qp())


def test_a_queue_pair_bound_to_a_cm_id_is_busy_until_the_id_is_closed(
    initiator: CMEndpoint,
) -> None:
    cm_id = CMID(initiator.channel)
    qp = initiator.make_rc_qp()
    cm_id.bind_qp(qp)
    with pytest.raises(siwarp.StateError, match="CM id") as caught:
        qp.close()
    assert caught.value.errno == errno.EBUSY
    cm_id.close()
    qp.close()


def test_the_error_of_a_connect_without_a_queue_pair_names_bind_qp(initiator: CMEndpoint) -> None:
    with pytest.raises(siwarp.Error, match="bind_qp"):
        CMID(initiator.channel).connect(("127.0.0.1", 1))


def test_closing_a_listener_discards_its_pending_requests_and_refuses_the_clients(
    initiator: CMEndpoint, responder: CMEndpoint
) -> None:
    listener = start_listener(responder)
    start_connect(initiator, listener)
    select.select([responder.channel], [], [], 10)
    listener.close()
    event = initiator.channel.get_event(10)
    assert event is not None
    assert responder.channel.get_event(0) is None
    with pytest.raises(siwarp.Error):
        event.check()


def test_listening_twice_on_one_port_fails_with_eaddrinuse(
    initiator: CMEndpoint, responder: CMEndpoint
) -> None:
    listener = start_listener(initiator)
    with pytest.raises(siwarp.Error) as caught:
        CMID(responder.channel).listen(listener.local_addr)
    assert caught.value.errno == errno.EADDRINUSE
