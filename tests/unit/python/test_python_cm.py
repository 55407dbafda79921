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


class End:
    """A device with a CM channel, one RC queue pair and memory."""

    def __init__(self) -> None:
        self.ctx = Context()
        self.channel = CMEventChannel(self.ctx)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx)
        self.mr = MR(self.pd, 1024)
        # keeps the ids, because an id without a reference would be closed
        self.ids: list[CMID] = []

    def qp(self) -> QP:
        return QP(self.pd, QPInitAttr(QPType.RC, scq=self.cq))

    def event(self, kind: CMEventType) -> CMEvent:
        event = self.channel.get_event(10)
        assert event is not None and event.type == kind
        return event

    def completion(self) -> siwarp.verbs.WC:
        deadline = time.monotonic() + 10
        while not (wcs := self.cq.poll()):
            assert time.monotonic() < deadline
        return wcs[0]


@pytest.fixture
def a() -> Iterator[End]:
    end = End()
    with end.ctx:
        yield end


@pytest.fixture
def b() -> Iterator[End]:
    end = End()
    with end.ctx:
        yield end


def listening(end: End) -> CMID:
    listener = CMID(end.channel)
    end.ids.append(listener)
    listener.listen(("127.0.0.1", 0))
    return listener


def start(end: End, to: CMID, param: ConnParam | None = None) -> CMID:
    cm_id = CMID(end.channel)
    end.ids.append(cm_id)
    cm_id.bind_qp(end.qp())
    cm_id.connect(to.local_addr, param)
    return cm_id


def test_two_ends_connect_with_private_data_both_ways_and_disconnect(a: End, b: End) -> None:
    listener = listening(b)
    listener.context = "the listener"
    active = start(a, listener, ConnParam(private_data=b"question", initiator_depth=3))
    request = b.event(CMEventType.CONNECT_REQUEST)
    assert request.listen_id is listener
    assert request.listen_id.context == "the listener"
    assert request.private_data == b"question"
    assert request.rev == 2
    passive = request.id
    qp = b.qp()
    passive.bind_qp(qp)
    qp.post_recv(RecvWR(1, sg=[b.mr.sge()]))
    passive.accept(ConnParam(private_data=b"answer"))
    event = a.event(CMEventType.ESTABLISHED)
    assert event.id is active
    assert event.check().private_data == b"answer"
    assert event.crc
    assert event.initiator_depth == 3
    assert active.qp is not None and active.qp.qp_state == QPState.RTS
    assert active.peer_addr == listener.local_addr == active.qp.peer
    assert passive.peer_addr == active.local_addr == active.qp.addr

    a.mr.write(b"over the connection")
    active.qp.post_send(SendWR(2, sg=[a.mr.sge(0, 19)]))
    assert a.completion().check().wr_id == 2
    assert b.completion().check().byte_len == 19
    assert b.mr.read(19) == b"over the connection"

    active.disconnect()
    b.event(CMEventType.ESTABLISHED)
    assert b.event(CMEventType.DISCONNECTED).id is passive
    assert qp.qp_state == QPState.ERR


def test_a_rejection_brings_its_private_data(a: End, b: End) -> None:
    start(a, listening(b))
    b.event(CMEventType.CONNECT_REQUEST).id.reject(b"not today")
    event = a.event(CMEventType.REJECTED)
    assert event.private_data == b"not today"
    with pytest.raises(siwarp.PeerGone, match="not today") as caught:
        event.check()
    assert caught.value.errno == errno.ECONNREFUSED


def test_connecting_where_nobody_listens_is_an_event_that_says_so(a: End) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        cm_id = CMID(a.channel)
        cm_id.bind_qp(a.qp())
        cm_id.connect(("127.0.0.1", port))
        event = a.channel.get_event(10)
    assert event is not None and event.id is cm_id
    with pytest.raises(siwarp.PeerGone, match="start the peer"):
        event.check()


def test_revision_1_and_the_peer_to_peer_choice_reach_the_other_end(a: End, b: End) -> None:
    listener = listening(b)
    start(a, listener, ConnParam(rev=1))
    assert b.event(CMEventType.CONNECT_REQUEST).rev == 1
    start(a, listener, ConnParam(peer_to_peer=RTR.WRITE | RTR.READ))
    request = b.event(CMEventType.CONNECT_REQUEST)
    assert request.rev == 2
    assert request.peer_to_peer == RTR.WRITE | RTR.READ


def test_an_id_takes_one_rc_queue_pair_in_reset(a: End) -> None:
    cm_id = CMID(a.channel)
    ud = QP(a.pd, QPInitAttr(QPType.UD, scq=a.cq))
    with pytest.raises(siwarp.StateError, match="RC"):
        cm_id.bind_qp(ud)
    qp = a.qp()
    cm_id.bind_qp(qp)
    assert qp.qp_state == QPState.INIT
    with pytest.raises(siwarp.StateError):
        cm_id.bind_qp(a.qp())


def test_a_bound_queue_pair_closes_after_its_id(a: End) -> None:
    cm_id = CMID(a.channel)
    qp = a.qp()
    cm_id.bind_qp(qp)
    with pytest.raises(siwarp.StateError, match="CM id") as caught:
        qp.close()
    assert caught.value.errno == errno.EBUSY
    cm_id.close()
    qp.close()


def test_connecting_without_a_queue_pair_says_what_to_do(a: End) -> None:
    with pytest.raises(siwarp.Error, match="bind_qp"):
        CMID(a.channel).connect(("127.0.0.1", 1))


def test_closing_a_listener_drops_its_requests_and_the_clients_are_refused(a: End, b: End) -> None:
    listener = listening(b)
    start(a, listener)
    select.select([b.channel], [], [], 10)
    listener.close()
    event = a.channel.get_event(10)
    assert event is not None
    assert b.channel.get_event(0) is None
    with pytest.raises(siwarp.Error):
        event.check()


def test_listening_twice_on_one_port_is_eaddrinuse(a: End, b: End) -> None:
    listener = listening(a)
    with pytest.raises(siwarp.Error) as caught:
        CMID(b.channel).listen(listener.local_addr)
    assert caught.value.errno == errno.EADDRINUSE
