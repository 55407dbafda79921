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
    """A device with a CM channel, one RC queue pair and memory."""

    def __init__(self) -> None:
        self.ctx = Context()
        self.channel = CMEventChannel(self.ctx)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx)
        self.mr = MR(self.pd, 1024)
        # keeps the ids, because an id without a reference would be closed
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


def test_two_ends_connect_with_private_data_both_ways_and_disconnect(
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


def test_a_rejection_brings_its_private_data(initiator: CMEndpoint, responder: CMEndpoint) -> None:
    start_connect(initiator, start_listener(responder))
    responder.wait_for_event(CMEventType.CONNECT_REQUEST).id.reject(b"not today")
    event = initiator.wait_for_event(CMEventType.REJECTED)
    assert event.private_data == b"not today"
    with pytest.raises(siwarp.PeerGone, match="not today") as caught:
        event.check()
    assert caught.value.errno == errno.ECONNREFUSED


def test_connecting_where_nobody_listens_is_an_event_that_says_so(initiator: CMEndpoint) -> None:
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


def test_revision_1_and_the_peer_to_peer_choice_reach_the_other_end(
    initiator: CMEndpoint, responder: CMEndpoint
) -> None:
    listener = start_listener(responder)
    start_connect(initiator, listener, ConnParam(rev=1))
    assert responder.wait_for_event(CMEventType.CONNECT_REQUEST).rev == 1
    start_connect(initiator, listener, ConnParam(peer_to_peer=RTR.WRITE | RTR.READ))
    request = responder.wait_for_event(CMEventType.CONNECT_REQUEST)
    assert request.rev == 2
    assert request.peer_to_peer == RTR.WRITE | RTR.READ


def test_an_id_takes_one_rc_queue_pair_in_reset(initiator: CMEndpoint) -> None:
    cm_id = CMID(initiator.channel)
    ud = QP(initiator.pd, QPInitAttr(QPType.UD, scq=initiator.cq))
    with pytest.raises(siwarp.StateError, match="RC"):
        cm_id.bind_qp(ud)
    qp = initiator.make_rc_qp()
    cm_id.bind_qp(qp)
    assert qp.qp_state == QPState.INIT
    with pytest.raises(siwarp.StateError):
        cm_id.bind_qp(initiator.make_rc_qp())


def test_a_bound_queue_pair_closes_after_its_id(initiator: CMEndpoint) -> None:
    cm_id = CMID(initiator.channel)
    qp = initiator.make_rc_qp()
    cm_id.bind_qp(qp)
    with pytest.raises(siwarp.StateError, match="CM id") as caught:
        qp.close()
    assert caught.value.errno == errno.EBUSY
    cm_id.close()
    qp.close()


def test_connecting_without_a_queue_pair_says_what_to_do(initiator: CMEndpoint) -> None:
    with pytest.raises(siwarp.Error, match="bind_qp"):
        CMID(initiator.channel).connect(("127.0.0.1", 1))


def test_closing_a_listener_drops_its_requests_and_the_clients_are_refused(
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


def test_listening_twice_on_one_port_is_eaddrinuse(
    initiator: CMEndpoint, responder: CMEndpoint
) -> None:
    listener = start_listener(initiator)
    with pytest.raises(siwarp.Error) as caught:
        CMID(responder.channel).listen(listener.local_addr)
    assert caught.value.errno == errno.EADDRINUSE
