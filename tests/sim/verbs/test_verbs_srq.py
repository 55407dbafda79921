"""Shared receive queues: order of receives, the limit event, and receives left by errors."""

from __future__ import annotations

import socket

from harness.rc_harness import SEND, End, ListenerAndConnector, connect_plain_socket
from harness.srq_harness import (
    LAST_WQE,
    LIMIT_REACHED,
    SharedReceiveQueue,
    connect_with_srq,
    consume_receives,
)
from harness.verbs_harness import (
    Pair,
    Rig,
    assert_counter_grows,
    assert_no_completion,
    poll,
    wait_until,
)

from siwarp.inspect import FPDU, DDPUntagged, MPARequest, Opcode
from siwarp.verbs import (
    AH,
    QPAttr,
    QPState,
    SendWR,
    SrqAttr,
    WCStatus,
)

FLUSHED = WCStatus.WR_FLUSH_ERR


# ---- errors


def test_a_ud_message_is_dropped_if_the_shared_receive_queue_is_empty(rig: Rig) -> None:
    shared = SharedReceiveQueue(rig)
    pair = Pair(rig)
    ud = rig.create_ud_qp(shared.cq, srq=shared.srq)
    with assert_counter_grows("drop_no_buffer", 1):
        pair.a.post_send(SendWR(sg=[pair.out.sge(0, 4)], ah=AH(rig.pd, ud.addr)))
        poll(pair.scq)
        assert_no_completion(shared.cq)


def test_a_queue_pair_in_err_raises_last_wqe_reached_and_leaves_shared_receives(
    two_device_connector: ListenerAndConnector,
) -> None:
    shared = SharedReceiveQueue(two_device_connector.passive)
    (a, b), (c, d) = (
        connect_with_srq(two_device_connector, shared),
        connect_with_srq(two_device_connector, shared),
    )
    ud = two_device_connector.passive.create_ud_qp(shared.cq, srq=shared.srq)
    shared.post_receives(1, 2)
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    with two_device_connector.passive.next_async_event() as told:
        assert (told.event_type, told.element) == (LAST_WQE, b.qp)
    ud.modify(QPAttr(qp_state=QPState.ERR))
    with two_device_connector.passive.next_async_event() as told:
        assert (told.event_type, told.element) == (LAST_WQE, ud)
    assert_no_completion(b.rcq)
    assert_no_completion(shared.cq)
    a.wait_for_error_state()
    c.post(SEND, length=4)
    (wc,) = poll(d.rcq)
    assert (wc.wr_id, wc.ok) == (1, True)
    assert two_device_connector.passive.ctx.get_async_event(0) is None


def test_the_shared_receive_of_an_incomplete_message_is_flushed(
    connector: ListenerAndConnector,
) -> None:
    shared = SharedReceiveQueue(connector.passive)
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=1, ord=1)))
        b = End(
            connector.passive,
            connector.next_connection_request().id,
            connector.p_channel,
            srq=shared.srq,
        )
        shared.post_receives(7, 8)
        shared.srq.modify(SrqAttr(srq_limit=2))
        b.id.accept()
        b.next_cm_event()
        s.recv(24)
        part = DDPUntagged(l=0, opcode=Opcode.SEND, msn=1) / (b"x" * 32)
        s.sendall(bytes(FPDU(ulpdu=part)))
        with (
            connector.passive.next_async_event() as told
        ):  # the message has been assigned its receive
            assert told.event_type == LIMIT_REACHED
        s.shutdown(socket.SHUT_WR)
        b.wait_for_error_state()
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.status) == (7, FLUSHED)
    wait_until(lambda: connector.passive.next_async_event().event_type == LAST_WQE)
    assert_no_completion(b.rcq)
    # The other receive is still in the shared receive queue.
    consume_receives(connector.passive, shared, 1)
