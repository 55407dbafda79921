from __future__ import annotations

import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector, connect_plain_socket
from harness.verbs_harness import LIMIT, Rig, poll, wait_until

from siwarp._siwarp import ffi, lib
from siwarp.inspect import FPDU, DDPTagged, DDPUntagged, MPARequest, Opcode
from siwarp.verbs import (
    AH,
    EventType,
    Persona,
    QPAttr,
    QPState,
    RecvWR,
    RemoteBuffer,
    SendWR,
    SrqAttr,
    WCStatus,
)
from siwarp.verbs._ffi import Handle


@pytest.fixture
def connected_endpoints(two_device_connector: ListenerAndConnector) -> tuple[End, End]:
    """Two connected endpoints on different devices, so that each gets only its own events."""
    return two_device_connector.connect()


def has_async_event(rig: Rig) -> bool:
    return bool(select.select([rig.ctx.async_fd()], [], [], 0)[0])


def test_an_rdma_write_with_an_invalid_stag_raises_an_event_at_both_ends(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    with b.rig.next_async_event() as told:
        assert (told.event_type, told.element) == (EventType.QP_ACCESS_ERR, b.qp)
    assert b.qp.qp_state == QPState.ERR
    with a.rig.next_async_event() as told:
        assert (told.event_type, told.element) == (EventType.QP_FATAL, a.qp)
    assert b.rig.ctx.get_async_event(0) is None


@pytest.mark.parametrize("what", ["write", "read", "long"])
def test_with_persona_roce_a_refused_request_is_reported_only_by_its_completion(
    two_device_connector: ListenerAndConnector, what: str
) -> None:
    a, b = two_device_connector.connect(persona=Persona.ROCE)
    b.post_receive(length=4)
    away = RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1)
    a.post({"write": WRITE, "read": READ, "long": SEND}[what], length=8, remote=away)
    kind = EventType.QP_REQ_ERR if what == "long" else EventType.QP_ACCESS_ERR
    with b.rig.next_async_event() as told:
        assert (told.event_type, told.element) == (kind, b.qp)
    status = WCStatus.REM_INV_REQ_ERR if what == "long" else WCStatus.REM_ACCESS_ERR
    assert poll(a.scq)[0].status == status
    for end in (a, b):
        end.wait_for_error_state()
        assert end.rig.ctx.get_async_event(0) is None


def test_a_send_longer_than_its_receive_raises_qp_req_err(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    b.post_receive(length=4)
    a.post(SEND, length=8)
    with b.rig.next_async_event() as told:
        assert (told.event_type, told.element) == (EventType.QP_REQ_ERR, b.qp)


def build_zero_length_write_fpdu() -> bytes:
    """Return a zero-length Write: the first FPDU, after which siwarp may send to the peer."""
    return bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE)))


def send_wrong_crc(s: socket.socket) -> None:
    s.sendall(build_zero_length_write_fpdu()[:-1] + b"!")


def send_wrong_opcode(s: socket.socket) -> None:
    s.sendall(bytes(FPDU(ulpdu=DDPUntagged(opcode=15))))


def send_wrong_queue_number(s: socket.socket) -> None:
    s.sendall(bytes(FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, qn=9))))


def send_wrong_stag(s: socket.socket) -> None:
    s.sendall(bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE, stag=7) / b"x")))


def reset_connection(s: socket.socket) -> None:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def shut_down_sending(s: socket.socket) -> None:
    s.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (send_wrong_crc, EventType.QP_FATAL),
        (reset_connection, EventType.QP_FATAL),
        (send_wrong_opcode, EventType.QP_REQ_ERR),
        (send_wrong_queue_number, EventType.QP_REQ_ERR),
        (send_wrong_stag, EventType.QP_ACCESS_ERR),
        (shut_down_sending, None),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_way_a_peer_ends_a_connection_determines_the_asynchronous_event(
    two_device_connector: ListenerAndConnector,
    what: Callable[[socket.socket], None],
    kind: EventType | None,
) -> None:
    with connect_plain_socket(two_device_connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=1, ord=1)))
        b = End(
            two_device_connector.passive,
            two_device_connector.next_connection_request().id,
            two_device_connector.p_channel,
        )
        b.id.accept()
        b.next_cm_event()
        s.sendall(build_zero_length_write_fpdu())
        what(s)
        b.wait_for_error_state()
        told = b.rig.ctx.get_async_event(0 if kind is None else LIMIT)
        assert (told and told.event_type) == kind
        assert b.rig.ctx.get_async_event(0) is None


def test_a_disconnect_and_a_modify_to_err_raise_no_asynchronous_event(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    b.wait_for_error_state()
    assert a.rig.ctx.get_async_event(0) is None
    assert b.rig.ctx.get_async_event(0) is None


def test_only_the_first_message_in_rtr_raises_comm_est(rig: Rig) -> None:
    cq = rig.create_cq()
    mr = rig.reg_mr(256)
    sender, receiver = rig.create_ud_qp(cq), rig.create_qp(cq)
    receiver.to_rtr(QPAttr(qkey=0))
    ah = AH(rig.pd, receiver.addr)
    for _ in range(2):
        receiver.post_recv(RecvWR(1, sg=[mr.sge(0, 64)]))
        sender.post_send(SendWR(2, sg=[mr.sge(64, 8)], ah=ah))
        poll(cq, 2)
    assert has_async_event(rig)
    with rig.next_async_event() as told:
        assert (told.event_type, told.element) == (EventType.COMM_EST, receiver)
    assert not has_async_event(rig)
    assert rig.ctx.get_async_event(0) is None


def test_waiting_for_an_asynchronous_event_makes_progress(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    # No thread polls, so the wait for the event receives the Write and sends the Terminate.
    assert b.rig.next_async_event().event_type == EventType.QP_ACCESS_ERR


def raise_qp_event(rig: Rig) -> Handle:
    qp = rig.create_qp(srq=rig.create_srq())
    qp.modify(QPAttr(qp_state=QPState.ERR))
    return qp


def raise_cq_overflow_event(rig: Rig) -> Handle:
    cq = rig.create_cq(1)
    qp = rig.create_qp(scq=rig.create_cq(), rcq=cq)
    qp.to_init()
    qp.modify(QPAttr(qp_state=QPState.ERR))
    qp.post_recv([RecvWR(1), RecvWR(2)])
    qp.close()
    return cq


def raise_srq_event(rig: Rig) -> Handle:
    srq = rig.create_srq()
    srq.modify(SrqAttr(srq_limit=1))
    return srq


EACH_KIND_OF_EVENT = pytest.mark.parametrize(
    ("make", "kind"),
    [
        (raise_qp_event, EventType.QP_LAST_WQE_REACHED),
        (raise_cq_overflow_event, EventType.CQ_ERR),
        (raise_srq_event, EventType.SRQ_LIMIT_REACHED),
    ],
    ids=["QP", "CQ", "SRQ"],
)


@EACH_KIND_OF_EVENT
@pytest.mark.parametrize("how", ["python", "c"])
def test_destroying_an_object_waits_until_another_thread_acknowledges_its_event(
    rig: Rig, make: Callable[[Rig], Handle], kind: EventType, how: str
) -> None:
    one = make(rig)
    told = rig.next_async_event()
    assert (told.event_type, told.element) == (kind, one)
    end: Callable[[], object] = one.close
    if how == "c":
        c, one._c = one._c_object(), None
        destroy = type(one)._destroy
        end = lambda: results.append(destroy(c))  # noqa: E731
    results: list[int] = []
    closer = threading.Thread(target=end)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive(), "the object was destroyed before its event was acknowledged"
    told.ack()
    closer.join(LIMIT)
    assert not closer.is_alive()
    assert one.closed and results in ([], [0])


@EACH_KIND_OF_EVENT
def test_destroying_an_object_discards_its_unread_asynchronous_events(
    rig: Rig, make: Callable[[Rig], Handle], kind: EventType
) -> None:
    one = make(rig)
    assert has_async_event(rig)
    one.close()
    assert not has_async_event(rig)
    assert rig.ctx.get_async_event(0) is None, kind


def test_ctrl_c_ends_the_wait_of_a_close_for_an_event_that_is_not_acknowledged() -> None:
    code = """
import os, signal, threading
from siwarp.verbs import *
ctx = Context()
srq = SRQ(PD(ctx))
srq.modify(SrqAttr(srq_limit=1))
told = ctx.get_async_event(10)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    srq.close()
except KeyboardInterrupt:
    print("interrupted", srq.closed)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    # Unacknowledged asynchronous events do not block the exit of the process.
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted False\n", "")


def test_an_unread_asynchronous_event_is_discarded_with_its_queue_pair(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    wait_until(lambda: has_async_event(b.rig))
    b.id.close()
    b.qp.close()
    assert not has_async_event(b.rig)
    assert b.rig.ctx.get_async_event(0) is None


def test_an_event_object_that_python_has_deleted_counts_as_acknowledged(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    b.rig.next_async_event()
    b.id.close()
    b.qp.close()
    assert b.qp.closed


#: The names that ibv_event_type_str of libibverbs returns, and those of the events of siwarp.
NAMES = {
    EventType.CQ_ERR: "CQ error",
    EventType.QP_FATAL: "local work queue catastrophic error",
    EventType.QP_REQ_ERR: "invalid request local work queue error",
    EventType.QP_ACCESS_ERR: "local access violation work queue error",
    EventType.COMM_EST: "communication established",
    EventType.SQ_DRAINED: "send queue drained",
    EventType.PATH_MIG: "path migrated",
    EventType.PATH_MIG_ERR: "path migration request error",
    EventType.DEVICE_FATAL: "local catastrophic error",
    EventType.PORT_ACTIVE: "port active",
    EventType.PORT_ERR: "port error",
    EventType.LID_CHANGE: "LID changed",
    EventType.PKEY_CHANGE: "P_Key changed",
    EventType.SM_CHANGE: "SM changed",
    EventType.SRQ_ERR: "SRQ catastrophic error",
    EventType.SRQ_LIMIT_REACHED: "SRQ limit reached",
    EventType.QP_LAST_WQE_REACHED: "last WQE reached",
    EventType.CLIENT_REREGISTER: "client reregistration",
    EventType.GID_CHANGE: "GID table changed",
    EventType.QP_ERR_QUEUED: "error queued",
    EventType.PEER_RESTARTED: "peer restarted",
    EventType.CONGESTED: "congested",
}


def test_each_event_type_has_a_name_and_other_numbers_are_unknown_events() -> None:
    def event_name(number: int) -> str:
        return ffi.string(lib.siw_event_type_str(number)).decode()

    assert {event: event_name(event) for event in EventType} == NAMES
    for number in (-1, -(1 << 31), EventType.GID_CHANGE + 1, 999, 1003, 1 << 30):
        assert event_name(number) == "unknown event"
