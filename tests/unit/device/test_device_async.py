from __future__ import annotations

import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, Wire, plain_connect
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
def pair(two_device_wire: Wire) -> tuple[End, End]:
    """Two connected endpoints, each on its own device, so that each gets only its own events."""
    return two_device_wire.connect()


def readable(rig: Rig) -> bool:
    return bool(select.select([rig.ctx.async_fd()], [], [], 0)[0])


def test_a_write_to_memory_that_is_not_the_peers_tells_both_ends(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    with b.rig.next_async_event() as told:
        assert (told.event_type, told.element) == (EventType.QP_ACCESS_ERR, b.qp)
    assert b.qp.qp_state == QPState.ERR
    with a.rig.next_async_event() as told:
        assert (told.event_type, told.element) == (EventType.QP_FATAL, a.qp)
    assert b.rig.ctx.get_async_event(0) is None


@pytest.mark.parametrize("what", ["write", "read", "long"])
def test_with_persona_roce_a_requester_hears_of_a_refusal_by_its_completion_alone(
    two_device_wire: Wire, what: str
) -> None:
    a, b = two_device_wire.connect(persona=Persona.ROCE)
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


def test_a_send_that_no_receive_fits_is_an_invalid_request(pair: tuple[End, End]) -> None:
    a, b = pair
    b.post_receive(length=4)
    a.post(SEND, length=8)
    with b.rig.next_async_event() as told:
        assert (told.event_type, told.element) == (EventType.QP_REQ_ERR, b.qp)


def hello() -> bytes:
    """Return a zero-length Write: the first FPDU, after which siwarp may send to the peer."""
    return bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE)))


def wrong_crc(s: socket.socket) -> None:
    s.sendall(hello()[:-1] + b"!")


def wrong_opcode(s: socket.socket) -> None:
    s.sendall(bytes(FPDU(ulpdu=DDPUntagged(opcode=15))))


def wrong_queue(s: socket.socket) -> None:
    s.sendall(bytes(FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, qn=9))))


def wrong_stag(s: socket.socket) -> None:
    s.sendall(bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE, stag=7) / b"x")))


def reset(s: socket.socket) -> None:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def leave(s: socket.socket) -> None:
    s.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (wrong_crc, EventType.QP_FATAL),
        (reset, EventType.QP_FATAL),
        (wrong_opcode, EventType.QP_REQ_ERR),
        (wrong_queue, EventType.QP_REQ_ERR),
        (wrong_stag, EventType.QP_ACCESS_ERR),
        (leave, None),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_how_a_peer_ends_a_connection_says_which_event_comes_of_it(
    two_device_wire: Wire, what: Callable[[socket.socket], None], kind: EventType | None
) -> None:
    with plain_connect(two_device_wire.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=1, ord=1)))
        b = End(
            two_device_wire.passive, two_device_wire.next_request().id, two_device_wire.p_channel
        )
        b.id.accept()
        b.next_cm_event()
        s.sendall(hello())
        what(s)
        b.wait_for_error_state()
        told = b.rig.ctx.get_async_event(0 if kind is None else LIMIT)
        assert (told and told.event_type) == kind
        assert b.rig.ctx.get_async_event(0) is None


def test_a_disconnect_and_a_modify_to_err_raise_nothing(pair: tuple[End, End]) -> None:
    a, b = pair
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    b.wait_for_error_state()
    assert a.rig.ctx.get_async_event(0) is None
    assert b.rig.ctx.get_async_event(0) is None


def test_the_first_message_in_rtr_is_told_once(rig: Rig) -> None:
    cq = rig.create_cq()
    mr = rig.reg_mr(256)
    sender, receiver = rig.create_ud_qp(cq), rig.create_qp(cq)
    receiver.to_rtr(QPAttr(qkey=0))
    ah = AH(rig.pd, receiver.addr)
    for _ in range(2):
        receiver.post_recv(RecvWR(1, sg=[mr.sge(0, 64)]))
        sender.post_send(SendWR(2, sg=[mr.sge(64, 8)], ah=ah))
        poll(cq, 2)
    assert readable(rig)
    with rig.next_async_event() as told:
        assert (told.event_type, told.element) == (EventType.COMM_EST, receiver)
    assert not readable(rig)
    assert rig.ctx.get_async_event(0) is None


def test_waiting_for_an_event_moves_the_traffic(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    # No thread polls: the wait for the event itself receives the Write and sends the Terminate.
    assert b.rig.next_async_event().event_type == EventType.QP_ACCESS_ERR


def of_a_qp(rig: Rig) -> Handle:
    qp = rig.create_qp(srq=rig.create_srq())
    qp.modify(QPAttr(qp_state=QPState.ERR))
    return qp


def of_a_cq(rig: Rig) -> Handle:
    cq = rig.create_cq(1)
    qp = rig.create_qp(scq=rig.create_cq(), rcq=cq)
    qp.to_init()
    qp.modify(QPAttr(qp_state=QPState.ERR))
    qp.post_recv([RecvWR(1), RecvWR(2)])
    qp.close()
    return cq


def of_an_srq(rig: Rig) -> Handle:
    srq = rig.create_srq()
    srq.modify(SrqAttr(srq_limit=1))
    return srq


KINDS = pytest.mark.parametrize(
    ("make", "kind"),
    [
        (of_a_qp, EventType.QP_LAST_WQE_REACHED),
        (of_a_cq, EventType.CQ_ERR),
        (of_an_srq, EventType.SRQ_LIMIT_REACHED),
    ],
    ids=["QP", "CQ", "SRQ"],
)


@KINDS
@pytest.mark.parametrize("how", ["python", "c"])
def test_destroying_waits_until_another_thread_acknowledges(
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
    assert closer.is_alive(), "it was destroyed before its event was acknowledged"
    told.ack()
    closer.join(LIMIT)
    assert not closer.is_alive()
    assert one.closed and results in ([], [0])


@KINDS
def test_destroying_an_object_discards_its_unread_events(
    rig: Rig, make: Callable[[Rig], Handle], kind: EventType
) -> None:
    one = make(rig)
    assert readable(rig)
    one.close()
    assert not readable(rig)
    assert rig.ctx.get_async_event(0) is None, kind


def test_ctrl_c_ends_the_wait_for_an_acknowledgement_that_does_not_come() -> None:
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


def test_an_event_that_nobody_took_goes_with_its_object(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    wait_until(lambda: readable(b.rig))
    b.id.close()
    b.qp.close()
    assert not readable(b.rig)
    assert b.rig.ctx.get_async_event(0) is None


def test_a_dropped_event_counts_as_acknowledged(pair: tuple[End, End]) -> None:
    a, b = pair
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey ^ 1))
    b.rig.next_async_event()
    b.id.close()
    b.qp.close()
    assert b.qp.closed


#: The names that libibverbs uses (ibv_event_type_str), and one of siwarp's own.
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


def test_each_event_has_its_name_and_no_other_number_has_one() -> None:
    def name(number: int) -> str:
        return ffi.string(lib.siw_event_type_str(number)).decode()

    assert {event: name(event) for event in EventType} == NAMES
    for number in (-1, -(1 << 31), EventType.GID_CHANGE + 1, 999, 1003, 1 << 30):
        assert name(number) == "unknown event"
