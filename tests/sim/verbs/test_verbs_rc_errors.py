"""Errors of RC queue pairs: Terminate messages, statuses, flushing, and peers that disconnect."""

from __future__ import annotations

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import (
    ALL_ACCESS,
    assert_counter_grows,
    assert_no_completion,
    octet_pattern,
    poll,
)

from siwarp.cm import CMEventType
from siwarp.verbs import (
    MR,
    PD,
    SGE,
    AccessFlag,
    QPAttr,
    QPState,
    RecvWR,
    RemoteBuffer,
    SendWR,
    WCOpcode,
    WCStatus,
)

LOCAL = AccessFlag.LOCAL_WRITE
RDMAP, DDP = 0, 1
FLUSHED = WCStatus.WR_FLUSH_ERR


def encode_terminate_error(layer: int, kind: int, code: int) -> int:
    return layer << 16 | kind << 8 | code


def check_both_terminated(a: End, b: End, err: int) -> None:
    """Check that both ends are in ERR and that both report the error of the Terminate message."""
    a.wait_for_error_state()
    b.wait_for_error_state()
    for end in (a, b):
        event = end.next_cm_event()
        assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, err)


# ---- inaccessible memory of the peer


def buffer_with_unknown_key(b: End) -> RemoteBuffer:
    return RemoteBuffer(b.mem.addr, 64, b.mem.rkey ^ 0x100)


def deregistered_buffer(b: End) -> RemoteBuffer:
    mr = b.rig.reg_mr(bytearray(64), ALL_ACCESS)
    remote = mr.remote()
    mr.close()
    return remote


def buffer_beyond_region_end(b: End) -> RemoteBuffer:
    return RemoteBuffer(b.mem.addr + b.mem.length - 63, 64, b.mem.rkey)


def remote_buffer_before_region_start(b: End) -> RemoteBuffer:
    return RemoteBuffer(b.mem.addr - 1, 64, b.mem.rkey)


def buffer_that_wraps(b: End) -> RemoteBuffer:
    return RemoteBuffer(2**64 - 32, 64, b.mem.rkey)


def buffer_without_remote_access(b: End) -> RemoteBuffer:
    return b.rig.reg_mr(bytearray(64), LOCAL).remote()


def buffer_with_access_for_other_operation(b: End, opcode: int) -> RemoteBuffer:
    other = AccessFlag.REMOTE_READ if opcode == WRITE else AccessFlag.REMOTE_WRITE
    return b.rig.reg_mr(bytearray(64), LOCAL | other).remote()


def buffer_of_another_pd(b: End) -> RemoteBuffer:
    return MR(PD(b.rig.ctx), bytearray(64), ALL_ACCESS).remote()


INVALID_BUFFERS = {  # each value contains a function, the code for a Write, and the code for a Read
    "no such key": (buffer_with_unknown_key, (DDP, 1, 0), (RDMAP, 1, 0)),
    "deregistered": (deregistered_buffer, (DDP, 1, 0), (RDMAP, 1, 0)),
    "past the end": (buffer_beyond_region_end, (DDP, 1, 1), (RDMAP, 1, 1)),
    "before the start": (remote_buffer_before_region_start, (DDP, 1, 1), (RDMAP, 1, 1)),
    "no right": (buffer_without_remote_access, (RDMAP, 1, 2), (RDMAP, 1, 2)),
    "only the other right": (buffer_with_access_for_other_operation, (RDMAP, 1, 2), (RDMAP, 1, 2)),
    "another PD": (buffer_of_another_pd, (DDP, 1, 2), (RDMAP, 1, 3)),
    "wraps": (buffer_that_wraps, (DDP, 1, 3), (RDMAP, 1, 4)),
}


@pytest.mark.clause("RFC5040-8.1.1-02", "RFC5040-8.1.1-04", "RFC5040-8.1.1-06#a")
@pytest.mark.parametrize("opcode", [WRITE, READ], ids=["write", "read"])
@pytest.mark.parametrize("what", INVALID_BUFFERS)
def test_an_invalid_memory_access_is_terminated_with_the_code_of_the_rfcs(
    two_device_connector: ListenerAndConnector, what: str, opcode: int
) -> None:
    a, b = two_device_connector.connect()
    how, for_write, for_read = INVALID_BUFFERS[what]
    remote = how(b, opcode) if how is buffer_with_access_for_other_operation else how(b)
    b.mem.view[:] = b"\x33" * b.mem.length
    a.mem.view[:] = b"\x44" * a.mem.length
    b.post_receive(wr_id=50)
    a.post_receive(wr_id=51)
    err = encode_terminate_error(*(for_write if opcode == WRITE else for_read))
    with assert_counter_grows("terminate_tx", 1), assert_counter_grows("terminate_rx", 1):
        a.post(opcode, 1, length=64, remote=remote)
        check_both_terminated(a, b, err)
    (wc,) = poll(a.scq)
    assert wc.wr_id == 1
    if opcode == READ:
        assert (wc.status, wc.vendor_err) == (WCStatus.REM_ACCESS_ERR, err)
    else:  # TCP may have accepted the Write long before the peer checked it
        assert wc.status in (WCStatus.SUCCESS, WCStatus.REM_ACCESS_ERR)
    assert [(w.wr_id, w.status, w.vendor_err) for w in poll(a.rcq)] == [(51, FLUSHED, err)]
    assert [(w.wr_id, w.status, w.vendor_err) for w in poll(b.rcq)] == [(50, FLUSHED, err)]
    assert set(b.mem.read()) == {0x33} and set(a.mem.read()) == {0x44}


@pytest.mark.parametrize("opcode", [WRITE, READ], ids=["write", "read"])
@pytest.mark.parametrize("when", ["before connecting", "while connected"])
@pytest.mark.parametrize("length", [1, 64])
def test_an_operation_that_a_queue_pair_denies_is_refused_for_every_key(
    two_device_connector: ListenerAndConnector, length: int, opcode: int, when: str
) -> None:
    other = AccessFlag.REMOTE_READ if opcode == WRITE else AccessFlag.REMOTE_WRITE

    def deny_operation(b: End) -> None:
        b.qp.modify(QPAttr(qp_access_flags=other))

    a, b = two_device_connector.connect(
        before_accept=deny_operation if when == "before connecting" else None
    )
    if when == "while connected":
        deny_operation(b)
    b.mem.view[:] = b"\x33" * b.mem.length
    a.mem.view[:] = b"\x44" * a.mem.length
    assert b.qp.query()[0].qp_access_flags == other
    a.post(READ if opcode == WRITE else WRITE, 1, length=64, remote=b.mem.remote(64, 64))
    assert poll(a.scq)[0].ok
    # Zero-length requests are always allowed.
    a.post(opcode, 2, length=0, remote=b.mem.remote(0, 0))
    assert poll(a.scq)[0].ok
    a.post(opcode, 3, length=length, remote=b.mem.remote(0, length))
    check_both_terminated(a, b, encode_terminate_error(RDMAP, 1, 2))
    assert set(b.mem.read(64)) == {0x33}


def test_the_invalid_read_among_several_reads_completes_with_an_access_error(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    good, bad = b.mem.remote(0, 16), buffer_with_unknown_key(b)
    a.qp.post_send(
        [
            SendWR(i, READ, sg=[a.mem.sge(16 * i, 16)], remote=bad if i == 3 else good)
            for i in range(6)
        ]
    )
    done = poll(a.scq, 6)
    assert [w.wr_id for w in done] == list(range(6))
    statuses = [w.status for w in done]
    assert statuses[3] == WCStatus.REM_ACCESS_ERR
    assert all(s in (WCStatus.SUCCESS, FLUSHED) for s in statuses[:3])
    assert statuses[4:] == [FLUSHED, FLUSHED]


def test_a_zero_length_read_needs_no_valid_key(two_device_connector: ListenerAndConnector) -> None:
    a, b = two_device_connector.connect()
    a.post(READ, 1, remote=RemoteBuffer(12345, 0, 0xBAD))
    assert poll(a.scq)[0].ok
    assert a.qp.qp_state == b.qp.qp_state == QPState.RTS


def test_a_zero_length_write_needs_no_valid_key(two_device_connector: ListenerAndConnector) -> None:
    a, b = two_device_connector.connect()
    b.qp.post_recv(RecvWR(1))
    a.post(WRITE, 1, remote=RemoteBuffer(12345, 0, 0xBAD))
    a.post(SEND, 2)
    assert poll(b.rcq)[0].ok
    assert all(w.ok for w in poll(a.scq, 2))


# ---- receives


def test_with_persona_iwarp_a_send_without_a_receive_ends_the_connection(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    err = encode_terminate_error(DDP, 2, 2)
    a.post(SEND, 1, length=100)
    check_both_terminated(a, b, err)
    assert poll(a.scq)[0].status in (WCStatus.SUCCESS, WCStatus.RNR_RETRY_EXC_ERR)


@pytest.mark.parametrize("size", [11, 5000, 300_000])
def test_a_send_longer_than_its_receive_is_terminated_and_not_placed_beyond_it(
    two_device_connector: ListenerAndConnector, size: int
) -> None:
    a, b = two_device_connector.connect(size=1 << 20)
    b.mem.view[:] = b"\x33" * b.mem.length
    b.post_receive(wr_id=7, length=size - 1)
    b.post_receive(wr_id=8, offset=1 << 19, length=1 << 19)
    a.post(SEND, 1, length=size)
    check_both_terminated(a, b, encode_terminate_error(DDP, 2, 5))
    done = poll(b.rcq, 2)
    assert [w.wr_id for w in done] == [7, 8]
    assert [w.status for w in done] == [WCStatus.LOC_LEN_ERR, FLUSHED]
    assert set(b.mem.read(offset=size - 1)) == {0x33}


@pytest.mark.parametrize("size", [6, 6000, 200_000])
def test_a_receive_with_an_invalid_key_completes_with_a_protection_error(
    two_device_connector: ListenerAndConnector, size: int
) -> None:
    a, b = two_device_connector.connect(size=1 << 20, max_recv_sge=2)
    b.qp.post_recv(RecvWR(7, sg=[b.mem.sge(0, 2), SGE(b.mem.addr, size, 0xBAD)]))
    b.post_receive(wr_id=8)
    a.post(SEND, 1, length=size)
    a.wait_for_error_state()
    b.wait_for_error_state()
    done = poll(b.rcq, 2)
    assert [(w.wr_id, w.status) for w in done] == [(7, WCStatus.LOC_PROT_ERR), (8, FLUSHED)]


# ---- local keys


@pytest.mark.parametrize("opcode", [SEND, WRITE, READ], ids=["send", "write", "read"])
@pytest.mark.parametrize("size", [8, 50_000])
@pytest.mark.parametrize("polling", [True, False], ids=["polling", "event"])
def test_an_invalid_local_key_is_a_protection_error_and_ends_the_connection(
    two_device_connector: ListenerAndConnector, opcode: int, size: int, polling: bool
) -> None:
    a, b = two_device_connector.connect(max_send_sge=2)
    b.mem.view[:] = b"\x33" * b.mem.length
    b.post_receive(wr_id=5)
    a.post_receive(wr_id=6)
    a.scq.req_notify()
    sg = [a.mem.sge(0, 4), SGE(a.mem.addr, size, a.mem.lkey ^ 0x700)]
    remote = None if opcode == SEND else b.mem.remote(0, size + 4)
    a.qp.post_send([SendWR(1, opcode, sg=sg, remote=remote, send_flags=0), SendWR(2, send_flags=0)])
    if not polling:
        assert a.events.get_cq_event(5) is a.scq
    done = poll(a.scq, 2)
    assert [(w.wr_id, w.status) for w in done] == [(1, WCStatus.LOC_PROT_ERR), (2, FLUSHED)]
    a.wait_for_error_state()
    b.wait_for_error_state()
    assert [(w.wr_id, w.status) for w in poll(a.rcq)] == [(6, FLUSHED)]
    assert [(w.wr_id, w.status) for w in poll(b.rcq)] == [(5, FLUSHED)]
    assert set(b.mem.read()) == {0x33}


def test_an_rdma_read_into_read_only_memory_is_a_protection_error(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    ro = a.rig.reg_mr(bytearray(64), 0)
    a.qp.post_send(SendWR(1, READ, sg=[ro.sge()], remote=b.mem.remote(0, 64)))
    assert poll(a.scq)[0].status == WCStatus.LOC_PROT_ERR
    a.wait_for_error_state()
    b.wait_for_error_state()


def test_sends_posted_before_a_request_with_an_invalid_key_arrive(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    for i in range(3):
        b.post_receive(wr_id=i)
    good = SendWR(1, sg=[a.mem.sge(0, 100)])
    bad = SendWR(2, sg=[SGE(a.mem.addr, 8, 0xBAD)])
    a.qp.post_send([good, good, bad])
    assert [w.status for w in poll(a.scq, 3)] == [0, 0, WCStatus.LOC_PROT_ERR]
    assert [w.status for w in poll(b.rcq, 3)] == [0, 0, FLUSHED]


# ---- flushing and reset


def test_moving_to_err_flushes_the_requests_of_both_ends_in_order(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(max_send_wr=8)
    for i in range(5):
        a.post_receive(wr_id=10 + i)
        b.post_receive(wr_id=20 + i)
    for i in range(4):  # the responder's Sends wait for the initiator's first message
        b.post(SEND, i)
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    a.wait_for_error_state()
    assert [(w.wr_id, w.status) for w in poll(b.scq, 4)] == [(i, FLUSHED) for i in range(4)]
    assert [(w.wr_id, w.status) for w in poll(b.rcq, 5)] == [(20 + i, FLUSHED) for i in range(5)]
    assert [(w.wr_id, w.status) for w in poll(a.rcq, 5)] == [(10 + i, FLUSHED) for i in range(5)]
    for end in (a, b):
        assert end.next_cm_event().type == CMEventType.DISCONNECTED
        end.post(SEND, 77, flags=0)
        end.post_receive(wr_id=78)
        assert [(w.wr_id, w.status) for w in poll(end.scq)] == [(77, FLUSHED)]
        assert [(w.wr_id, w.status, w.opcode) for w in poll(end.rcq)] == [
            (78, FLUSHED, WCOpcode.RECV)
        ]
        assert_no_completion(end.scq)
        assert_no_completion(end.rcq)


def test_an_rc_queue_pair_can_be_reset_and_connected_again(
    two_device_connector: ListenerAndConnector,
) -> None:
    from siwarp.cm import CMID

    a, b = two_device_connector.connect()
    for round_ in range(3):
        a.mem.write(octet_pattern(100, round_))
        b.post_receive(wr_id=round_)
        a.post(SEND, round_, length=100)
        assert poll(b.rcq)[0].wr_id == round_
        assert poll(a.scq)[0].wr_id == round_
        assert b.mem.read(100) == octet_pattern(100, round_)
        a.id.disconnect()
        for end in (a, b):
            assert end.next_cm_event().type == CMEventType.DISCONNECTED
            end.wait_for_error_state()
            end.id.close()
            end.qp.modify(QPAttr(qp_state=QPState.RESET))
            assert end.qp.qp_state == QPState.RESET
        a.id = CMID(a.channel)
        a.id.bind_qp(a.qp)
        a.id.connect(two_device_connector.address)
        b.id = two_device_connector.next_connection_request().id
        b.id.bind_qp(b.qp)
        b.id.accept()
        assert a.next_cm_event().type == b.next_cm_event().type == CMEventType.ESTABLISHED


def test_reset_of_a_connected_queue_pair_discards_its_posted_requests(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    b.post_receive(wr_id=1)
    b.post(SEND, 2)
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    a.wait_for_error_state()
    assert b.next_cm_event().type == CMEventType.DISCONNECTED
    assert_no_completion(b.rcq)
    assert_no_completion(b.scq)


# ---- ends of connections


@pytest.mark.parametrize("who", ["active", "passive"])
@pytest.mark.parametrize("how", ["disconnect", "close id", "destroy", "error"])
def test_the_end_of_a_connection_by_either_end_is_reported_to_both_ends(
    two_device_connector: ListenerAndConnector, who: str, how: str
) -> None:
    a, b = two_device_connector.connect()
    one, other = (a, b) if who == "active" else (b, a)
    one.post_receive(wr_id=1)
    other.post_receive(wr_id=2)
    if how == "disconnect":
        one.id.disconnect()
    elif how == "close id":
        one.id.close()
    elif how == "error":
        one.qp.modify(QPAttr(qp_state=QPState.ERR))
    else:
        one.id.close()
        one.qp.close()
    event = other.next_cm_event()
    assert (event.type, event.id, event.wire_error) == (CMEventType.DISCONNECTED, other.id, 0)
    other.wait_for_error_state()
    assert [(w.wr_id, w.status) for w in poll(other.rcq)] == [(2, FLUSHED)]
    if how != "destroy":
        one.wait_for_error_state()
        assert [(w.wr_id, w.status) for w in poll(one.rcq)] == [(1, FLUSHED)]
    if how in ("disconnect", "error"):
        assert one.next_cm_event().type == CMEventType.DISCONNECTED
        one.id.disconnect()  # a second disconnect is harmless


def test_both_ends_of_a_connection_may_disconnect_at_the_same_time(
    two_device_connector: ListenerAndConnector,
) -> None:
    for _ in range(10):
        a, b = two_device_connector.connect()
        a.id.disconnect()
        b.id.disconnect()
        for end in (a, b):
            event = end.next_cm_event()
            assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, 0)
            end.wait_for_error_state()
            end.close()


@pytest.mark.parametrize("size", [1, 100_000, 1 << 20])
def test_a_completed_send_arrives_although_its_sender_is_destroyed_immediately(
    two_device_connector: ListenerAndConnector, size: int
) -> None:
    a, b = two_device_connector.connect(size=2 << 20)
    data = octet_pattern(size, 5)
    a.mem.view[:size] = data
    b.post_receive(wr_id=9)
    a.post(SEND, 1, length=size)
    # The Write of `b` stays unread in the socket of `a`; closing the socket would reset the
    # connection.
    b.post(WRITE, 5, offset=1 << 20, length=1000, remote=a.mem.remote(1 << 20, 1000))
    assert poll(a.scq)[0].ok
    a.id.close()
    a.qp.close()
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.ok, wc.byte_len) == (9, True, size)
    assert b.mem.read(size) == data
    b.wait_for_error_state()


def test_a_queue_pair_with_pending_requests_can_be_destroyed(
    two_device_connector: ListenerAndConnector,
) -> None:
    size = 4 << 20
    for _ in range(5):
        a, b = two_device_connector.connect(size=3 * size)
        for i in range(10):
            a.post(WRITE, i, length=size, remote=b.mem.remote(0, size))
            a.post(READ, i, offset=size, length=size, remote=b.mem.remote(size, size))
            a.post_receive(wr_id=i)
        a.close()
        a.mem.close()
        b.wait_for_error_state()
        assert b.next_cm_event().type == CMEventType.DISCONNECTED
        b.close()
        b.mem.close()
