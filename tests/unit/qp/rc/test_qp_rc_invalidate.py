"""Memory regions bound to one queue pair: registration, invalidation by the peer, and closing."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import (
    ALL_ACCESS,
    Rig,
    assert_counter_grows,
    errno_raised_by,
    poll,
    wait_until,
)

from siwarp._siwarp import ffi, lib
from siwarp.cm import CMEventType
from siwarp.verbs import (
    MR,
    PD,
    AccessFlag,
    Persona,
    QPAttr,
    QPState,
    QPType,
    SendWR,
    WCStatus,
    WROpcode,
)

INVALIDATE = ALL_ACCESS | AccessFlag.REMOTE_INVALIDATE
ROUNDS = 20 if "SANITIZER" in os.environ else 60


def test_remote_invalidate_access_requires_a_region_bound_to_one_rc_queue_pair(rig: Rig) -> None:
    rc, ud = rig.create_qp(qp_type=QPType.RC), rig.create_qp()
    memory = ffi.new("char[100]")
    assert lib.siw_reg_mr(rig.pd._c_object(), memory, 100, int(INVALIDATE)) == ffi.NULL
    assert ffi.errno == errno.EINVAL
    assert lib.siw_reg_mr_qp(ud._c_object(), memory, 100, int(INVALIDATE)) == ffi.NULL
    assert ffi.errno == errno.EINVAL
    assert errno_raised_by(MR, rig.pd, bytearray(10), INVALIDATE) == errno.EINVAL
    assert errno_raised_by(MR, rig.pd, bytearray(10), INVALIDATE, qp=ud) == errno.EINVAL
    assert errno_raised_by(MR, PD(rig.ctx), bytearray(10), INVALIDATE, qp=rc) == errno.EINVAL
    MR(rig.pd, bytearray(10), INVALIDATE, qp=rc).close()
    MR(rig.pd, bytearray(10), ALL_ACCESS, qp=rc).close()


def test_a_region_outlives_the_queue_pair_it_is_bound_to(rig: Rig) -> None:
    qp = rig.create_qp(qp_type=QPType.RC)
    mr = MR(rig.pd, bytearray(10), INVALIDATE, qp=qp)
    qp.close()
    mr.close()


def test_send_with_invalidate_is_refused_on_a_ud_queue_pair(rig: Rig) -> None:
    qp = rig.create_ud_qp()
    wr = SendWR(opcode=WROpcode.SEND_WITH_INV, ah=rig.create_ah(qp), invalidate_rkey=7)
    assert errno_raised_by(qp.post_send, wr) == errno.EINVAL


def test_a_bound_region_stays_valid_for_the_next_connection_of_its_queue_pair(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    mr = MR(b.rig.pd, bytearray(100), INVALIDATE, qp=b.qp)
    a.post(WRITE, 1, length=9, remote=mr.remote())
    assert poll(a.scq)[0].ok
    a.close()
    b.wait_for_error_state()
    b.next_cm_event()
    b.id.close()
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    again = two_device_connector.begin_connect(size=100)
    b.id = two_device_connector.next_connection_request().id
    b.id.bind_qp(b.qp)
    b.post_receive(2)
    b.id.accept()
    assert again.next_cm_event().type == b.next_cm_event().type == CMEventType.ESTABLISHED
    again.mem.write(b"once more")
    again.post(WRITE, 1, length=9, remote=mr.remote())
    send_with_invalidate(again, mr.rkey)
    assert poll(b.rcq)[0].invalidated_rkey == mr.rkey
    assert mr.read(9) == b"once more"
    mr.close()


def test_an_invalidated_region_can_be_reregistered_with_new_keys(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect()
    mr = MR(b.rig.pd, bytearray(100), INVALIDATE, qp=b.qp)
    for turn in range(3):
        dead = mr.rkey
        a.mem.write(bytes([turn]) * 9)
        a.post(WRITE, 1, length=9, remote=mr.remote())
        b.post_receive(2)
        send_with_invalidate(a, mr.rkey)
        assert poll(b.rcq)[0].invalidated_rkey == dead
        assert [w.ok for w in poll(a.scq, 2)] == [True, True]
        assert mr.read(9) == bytes([turn]) * 9
        mr.rereg(access=INVALIDATE)
        assert mr.rkey != dead
    mr.close()


def test_a_send_with_invalidate_that_waits_for_its_receive_invalidates_when_received(
    two_device_connector: ListenerAndConnector,
) -> None:
    """With persona roce, a Send with Invalidate invalidates only when a receive is posted."""
    a, b = two_device_connector.connect(persona=Persona.ROCE)
    memory = bytearray(100)
    mr = MR(b.rig.pd, memory, INVALIDATE, qp=b.qp)
    # No request completes until the Send is delivered. Reading the memory locally while the device
    # writes to it would be a race, so the test reads the Write's data over another connection.
    same = b.rig.reg_mr(memory, ALL_ACCESS)
    c, _ = two_device_connector.connect()

    def read_and_check_placed_write() -> bool:
        c.post(READ, 9, length=5, remote=same.remote(0, 5))
        assert poll(c.scq)[0].ok and b.rcq.poll(1) == []
        return c.mem.read(5) == b"still"

    with assert_counter_grows("rnr_unexpected", 1):
        a.mem.write(b"still")
        send_with_invalidate(a, mr.rkey)
        a.post(WRITE, 4, length=5, remote=mr.remote())
        wait_until(read_and_check_placed_write)
    b.post_receive(1)
    assert poll(b.rcq)[0].invalidated_rkey == mr.rkey
    assert [(w.wr_id, w.ok) for w in poll(a.scq, 2)] == [(3, True), (4, True)]
    mr.close()


def send_with_invalidate(a: End, rkey: int) -> None:
    a.qp.post_send(SendWR(3, WROpcode.SEND_WITH_INV, sg=[a.mem.sge(0, 7)], invalidate_rkey=rkey))


@pytest.mark.parametrize("late", [False, True])
def test_a_region_may_be_closed_while_the_peer_invalidates_it(
    two_device_connector: ListenerAndConnector, late: bool
) -> None:
    """If a close wins the race, the peer's Send with Invalidate ends the connection in error."""
    a, b = two_device_connector.connect()
    for _ in range(ROUNDS):
        mr = MR(b.rig.pd, bytearray(4096), INVALIDATE, qp=b.qp)
        b.post_receive(1)
        closer = threading.Thread(target=mr.close)
        if not late:
            closer.start()
        send_with_invalidate(a, mr.rkey)
        if late:
            closer.start()
        wc = poll(b.rcq)[0]
        closer.join(10)
        assert mr.closed
        if wc.ok:
            assert wc.invalidated_rkey == mr.rkey
            assert poll(a.scq)[0].ok
            continue
        b.wait_for_error_state()
        a.wait_for_error_state()
        assert b.next_cm_event().wire_error == 0x000109
        a.next_cm_event()
        a.close()
        b.close()
        a, b = two_device_connector.connect()


def connect_and_enable_both_senders(connector: ListenerAndConnector) -> tuple[End, End]:
    """Connect two endpoints; send a first message from the active one, so that both may send."""
    c, d = connector.connect()
    d.post_receive(9)
    c.post(SEND, 9, length=1)
    assert poll(c.scq)[0].ok and poll(d.rcq)[0].ok
    return c, d


def test_a_region_may_be_invalidated_while_another_connection_sends_from_it(
    two_device_connector: ListenerAndConnector,
) -> None:
    """Sends from an invalidated region that are not yet transmitted complete with LOC_PROT_ERR."""
    a, b = two_device_connector.connect()
    c, d = connect_and_enable_both_senders(two_device_connector)
    for _ in range(ROUNDS // 2):
        mr = MR(b.rig.pd, bytearray(4096), INVALIDATE, qp=b.qp)
        b.post_receive(1)
        c.post_receive(1)
        sender = threading.Thread(target=d.qp.post_send, args=(SendWR(8, sg=[mr.sge()]),))
        sender.start()
        send_with_invalidate(a, mr.rkey)
        wc = poll(b.rcq)[0]
        assert wc.invalidated_rkey == mr.rkey
        sender.join(10)
        assert poll(a.scq)[0].ok
        sent = poll(d.scq)[0]
        mr.close()
        if sent.ok:
            assert poll(c.rcq)[0].ok
            continue
        assert sent.status == WCStatus.LOC_PROT_ERR
        for end in (d, c):
            end.wait_for_error_state()
            end.next_cm_event()
            end.close()
        c, d = connect_and_enable_both_senders(two_device_connector)
