"""Errors in datagrams: messages to the sender, the error queue, and the error policy."""

from __future__ import annotations

import contextlib
import errno
import select
import subprocess
import threading
from pathlib import Path

import pytest
from harness.errq_harness import (
    QKEY,
    TOO_LONG,
    WRONG,
    PlainUDPSocket,
    build_datagram,
    build_wire_error_message,
    create_qp_with_duplicate_socket,
    parse_error_message,
)
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    counter_value,
    errno_raised_by,
    poll,
    temporary_settings,
    wait_until,
)

from siwarp._siwarp import ffi, lib
from siwarp.inspect import examine, ud_qn
from siwarp.verbs import (
    QP,
    ErrorOrigin,
    ErrorPolicy,
    ErrorReport,
    EventType,
    QPAttr,
    QPState,
    RecvWR,
    SendWR,
    StateError,
    WCStatus,
    capture,
)

ERROR, MESSAGE = ErrorPolicy.ERROR, ErrorPolicy.MESSAGE


def wait_for_qp_errors(qp: QP, n: int = 1) -> list[ErrorReport]:
    """Wait for `n` queued errors of a queue pair and return them; assert that no more exist."""
    found: list[ErrorReport] = []
    wait_until(lambda: found.extend(qp.errors()) or len(found) >= n)
    assert len(found) == n
    return found


def assert_still_receives(qp: QP, rig: Rig, who: PlainUDPSocket) -> None:
    """Assert that the queue pair still receives a message."""
    mr = rig.reg_mr(bytearray(8))
    qp.post_recv(RecvWR(77, sg=[mr.sge()]))
    who.sendto(build_datagram(b"good"), qp.addr)
    (wc,) = poll(qp.rcq)
    assert (wc.wr_id, wc.status, mr.read(4)) == (77, WCStatus.SUCCESS, b"good")


# ---- errors that the receiver detects


@pytest.mark.clause("DGRAM-ERR-1", "DGRAM-ERR-7", "DGRAM-ERR-8")
@pytest.mark.parametrize("policy", [ERROR, MESSAGE])
@pytest.mark.parametrize("what", WRONG)
def test_an_invalid_message_is_reported_to_its_sender_and_handled_by_the_error_policy(
    rig: Rig, what: str, policy: ErrorPolicy
) -> None:
    fields, err = WRONG[what]
    qp = rig.create_ud_qp(qkey=QKEY, error_policy=policy)
    qp.post_recv(RecvWR(5))
    with PlainUDPSocket() as who:
        wrong = build_datagram(b"some octets", msn=4711, qn=ud_qn(0, 0, 9), **fields)
        with assert_counter_grows("err_found", 1), assert_counter_grows("err_sent", 1):
            who.sendto(wrong, qp.addr)
            (found,) = wait_for_qp_errors(qp)
        answer, source = who.recvfrom(1 << 16)
        head, told = parse_error_message(answer)
        assert source == qp.addr
        assert (head.q_key, head.qn, head.msn) == (QKEY, ud_qn(2, 9, 0), 1)
        assert (told.layer, told.etype, told.code) == err
        assert (told.ddp_seg_len, bytes(told.quoted_ddp)) == (len(wrong) - 4, wrong[:18])
        assert found == ErrorReport(
            ErrorOrigin.FOUND,
            who.getsockname(),
            9 << 16 | who.getsockname()[1],
            *err,
            msn=4711,
            wr_id=None,
            header=wrong[:18],
            seg_len=len(wrong) - 4,
        )
        with rig.next_async_event() as event:
            assert event.element is qp
            abortive = policy == ERROR
            assert event.event_type == (
                EventType.QP_REQ_ERR if abortive else EventType.QP_ERR_QUEUED
            )
        assert qp.qp_state == (QPState.ERR if abortive else QPState.RTS)
        if abortive:
            assert [(w.wr_id, w.status) for w in poll(qp.rcq)] == [(5, WCStatus.WR_FLUSH_ERR)]
            return
        who.sendto(build_datagram(), qp.addr)
        assert [(w.wr_id, w.status) for w in poll(qp.rcq)] == [(5, WCStatus.SUCCESS)]


@pytest.mark.clause("DGRAM-ERR-7")
def test_after_a_fatal_error_a_queue_pair_can_be_reset_and_receives_again(rig: Rig) -> None:
    qp = rig.create_ud_qp(qkey=QKEY)
    with PlainUDPSocket() as who:
        who.sendto(build_datagram(opcode=4), qp.addr)
        with rig.next_async_event() as event:
            assert event.event_type == EventType.QP_REQ_ERR
        assert qp.qp_state == QPState.ERR
        for state in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS):
            attr = QPAttr(qp_state=state)
            if state == QPState.INIT:
                attr.qkey = QKEY
            qp.modify(attr)
        assert [e.msn for e in wait_for_qp_errors(qp)] == [1], "a reset discarded the queued error"
        assert_still_receives(qp, rig, who)
        out = rig.reg_mr(bytearray(b"and sends"))
        qp.post_send(SendWR(1, sg=[out.sge()], ah=rig.create_ah(who.getsockname())))
        poll(qp.scq)
        parse_error_message(who.recv(1 << 16))
        assert who.recv(1 << 16)[18:-4] == b"and sends"


@pytest.mark.clause("DGRAM-ERR-14")
@pytest.mark.parametrize("policy", [ERROR, MESSAGE])
def test_a_message_longer_than_its_receive_is_reported_and_the_queue_pair_stays_in_rts(
    rig: Rig, policy: ErrorPolicy
) -> None:
    qp = rig.create_ud_qp(qkey=QKEY, error_policy=policy)
    mr = rig.reg_mr(bytearray(3))
    qp.post_recv(RecvWR(5, sg=[mr.sge()]))
    with PlainUDPSocket() as who:
        who.sendto(build_datagram(b"long", msn=12), qp.addr)
        (wc,) = poll(qp.rcq)
        assert (wc.wr_id, wc.status) == (5, WCStatus.LOC_LEN_ERR)
        _, told = parse_error_message(who.recv(1 << 16))
        assert (told.layer, told.etype, told.code) == TOO_LONG
        assert (told.quoted_ddp.msn, told.ddp_seg_len) == (12, 22)
        assert qp.errors() == [] and qp.qp_state == QPState.RTS
        assert_still_receives(qp, rig, who)
    assert rig.ctx.get_async_event(0) is None


UNREPORTED_DATAGRAMS = {
    "wrong Q_Key": build_datagram(q_key=QKEY ^ 1, opcode=4),
    "no Q_Key": build_datagram(q_key=0, l=0),
    "queue 1": build_datagram(qn=1),
    "queue 3": build_datagram(qn=3),
    "a destination that is not there": build_datagram(qn=ud_qn(0, 5, 0), opcode=4),
    "DDP version": build_datagram(dv=2),
    "RDMAP version": build_datagram(rv=2),
    "tagged": build_datagram(t=1),
    "wrong CRC": build_datagram(opcode=4)[:-1] + b"!",
    "short": build_datagram()[:21],
    "a Terminate among the Sends": build_datagram(opcode=7),
    "a Terminate among the Sends, in parts": build_datagram(opcode=7, l=0),
    "an error message": build_wire_error_message(1),
    "a part of an error message": build_wire_error_message(1, l=0),
    "an error message cut short": build_datagram(b"\0\0", opcode=7, qn=2),
    "a Send among the error messages": build_datagram(qn=2),
}


@pytest.mark.clause("DGRAM-ERR-2", "DGRAM-ERR-3")
@pytest.mark.parametrize("what", UNREPORTED_DATAGRAMS)
def test_invalid_datagrams_and_error_messages_cause_no_report(rig: Rig, what: str) -> None:
    qp = rig.create_ud_qp(qkey=QKEY)
    with PlainUDPSocket() as who:
        before = counter_value("err_found")
        who.sendto(UNREPORTED_DATAGRAMS[what], qp.addr)
        assert_still_receives(qp, rig, who)
        assert who.has_empty_buffer() and counter_value("err_found") == before
    assert (qp.qp_state, qp.errors()) == (QPState.RTS, [])
    assert rig.ctx.get_async_event(0) is None


def test_a_queue_pair_in_init_sends_no_error_messages(rig: Rig) -> None:
    qp = rig.create_qp()
    qp.to_init(QPAttr(qkey=QKEY))
    with PlainUDPSocket() as who:
        before = counter_value("drop_no_buffer")
        who.sendto(build_datagram(opcode=4), qp.addr)
        wait_until(lambda: qp.errors() or counter_value("drop_no_buffer") == before + 1)
        assert qp.qp_state == QPState.INIT and who.has_empty_buffer()


# ---- errors that peers report


def send_and_return_msn(rig: Rig, qp: QP, to: PlainUDPSocket, wr_id: int = 1, **kwargs: int) -> int:
    """Send a UD message to a plain socket; return the message's MSN."""
    qp.post_send(SendWR(wr_id, ah=rig.create_ah(to.getsockname()), remote_qkey=QKEY, **kwargs))
    poll(qp.scq)
    return int.from_bytes(to.recv(1 << 16)[10:14], "big")


@pytest.mark.clause("DGRAM-ERR-11")
def test_a_peers_error_message_is_queued_and_does_not_change_the_queue_pairs_state(
    rig: Rig,
) -> None:
    qp = rig.create_ud_qp(qkey=1)
    with PlainUDPSocket() as who, assert_counter_grows("err_received", 1):
        msn = send_and_return_msn(rig, qp, who, wr_id=0xFEDCBA9876543210)
        assert not select.select([rig.ctx.async_fd()], [], [], 0)[0]
        message = build_wire_error_message(msn, (1, 2, 5), qn=ud_qn(2, 0, 3))
        who.sendto(message, qp.addr)
        assert select.select([rig.ctx.async_fd()], [], [], 10)[0]
        with rig.next_async_event() as event:
            assert (event.event_type, event.element) == (EventType.QP_ERR_QUEUED, qp)
        (told,) = qp.errors()
        assert told == ErrorReport(
            ErrorOrigin.REPORTED,
            who.getsockname(),
            3 << 16 | who.getsockname()[1],
            1,
            2,
            5,
            msn=msn,
            wr_id=0xFEDCBA9876543210,
            header=message[24:42],
            seg_len=18,
        )
        assert "too long" in told.reason and told.clause == "RFC5041-7.2-01"
        assert qp.qp_state == QPState.RTS and qp.errors() == []
        assert who.has_empty_buffer(), "an error message was answered"


@pytest.mark.clause("DGRAM-ERR-9", "DGRAM-ERR-10")
@pytest.mark.parametrize(
    "what", ["another MSN", "MSN 0", "another source", "another Q_Key", "Q_Keys that differ",
             "another queue", "twice", "tagged"],
)  # fmt: skip
def test_an_error_message_about_a_message_never_sent_to_its_source_is_stale(
    rig: Rig, what: str
) -> None:
    qp = rig.create_ud_qp(qkey=1)
    with PlainUDPSocket() as who, PlainUDPSocket() as other:
        msn = send_and_return_msn(rig, qp, who)
        says = who
        stale = {
            "another MSN": build_wire_error_message(msn + 1),
            "MSN 0": build_wire_error_message(0),
            "another source": build_wire_error_message(msn),
            "another Q_Key": build_wire_error_message(msn, quoted={"inv_stag": 7}, q_key=7),
            "Q_Keys that differ": build_wire_error_message(msn, q_key=7),
            "another queue": build_wire_error_message(msn, quoted={"qn": 2}),
            "twice": build_wire_error_message(msn),
            "tagged": build_wire_error_message(msn, quoted={"t": 1}),
        }[what]
        if what == "another source":
            says = other
        if what == "twice":
            who.sendto(stale, qp.addr)
            wait_for_qp_errors(qp)
        before = counter_value("err_stale")
        says.sendto(stale, qp.addr)
        wait_until(lambda: qp.errors() or counter_value("err_stale") == before + 1)
        assert qp.errors() == []
        if what != "twice":
            who.sendto(build_wire_error_message(msn), qp.addr)
            assert wait_for_qp_errors(qp)[0].msn == msn, "a stale error message hid a valid one"


def test_error_messages_about_older_than_the_last_sent_messages_are_stale(rig: Rig) -> None:
    with temporary_settings(err_window=4):
        qp = rig.create_ud_qp(qkey=1)
        with PlainUDPSocket() as who:
            msns = [send_and_return_msn(rig, qp, who, wr_id=i) for i in range(9)]
            before = counter_value("err_stale")
            for msn in msns:
                who.sendto(build_wire_error_message(msn), qp.addr)
            found = wait_for_qp_errors(qp, 4)
            assert [(e.msn, e.wr_id) for e in found] == [(m, m - 1) for m in msns[-4:]]
            assert counter_value("err_stale") == before + 5


def test_an_error_message_about_any_message_of_a_batch_is_queued_with_its_wr_id(rig: Rig) -> None:
    qp = rig.create_ud_qp(qkey=1)
    with PlainUDPSocket() as who:
        ah = rig.create_ah(who.getsockname())
        qp.post_send([SendWR(100 + i, ah=ah, remote_qkey=QKEY) for i in range(20)])
        poll(qp.scq, 20)
        msns = [int.from_bytes(who.recv(1 << 16)[10:14], "big") for _ in range(20)]
        for msn in (msns[7], msns[0], msns[19]):
            who.sendto(build_wire_error_message(msn), qp.addr)
        assert [e.wr_id for e in wait_for_qp_errors(qp, 3)] == [107, 100, 119]


def test_a_queue_pair_reports_to_another_that_its_message_was_too_long(rig: Rig) -> None:
    a, b = rig.create_ud_qp(qkey=1), rig.create_ud_qp(qkey=QKEY)
    out, into = rig.reg_mr(bytearray(b"too long")), rig.reg_mr(bytearray(4))
    b.post_recv(RecvWR(1, sg=[into.sge()]))
    a.post_send(SendWR(42, sg=[out.sge()], ah=rig.create_ah(b), remote_qkey=QKEY))
    assert poll(b.rcq)[0].status == WCStatus.LOC_LEN_ERR
    (told,) = wait_for_qp_errors(a)
    assert (told.origin, told.source, told.qpn) == (ErrorOrigin.REPORTED, b.addr, b.qp_num)
    assert ((told.layer, told.type, told.code), told.wr_id) == (TOO_LONG, 42)
    assert a.qp_state == b.qp_state == QPState.RTS


def test_errors_are_found_and_reported_over_ipv6(rig: Rig) -> None:
    qp = rig.create_ud_qp(qkey=QKEY, error_policy=MESSAGE, addr=("::1", 0))
    with PlainUDPSocket("::1") as who:
        who.sendto(build_datagram(opcode=9, msn=3), qp.addr)
        (found,) = wait_for_qp_errors(qp)
        assert (found.origin, found.msn) == (ErrorOrigin.FOUND, 3)
        assert found.source == who.getsockname()[:2]
        assert parse_error_message(who.recv(1 << 16))[1].quoted_ddp.msn == 3
        msn = send_and_return_msn(rig, qp, who, wr_id=8)
        who.sendto(build_wire_error_message(msn), qp.addr)
        assert [(e.wr_id, e.source) for e in wait_for_qp_errors(qp)] == [(8, who.getsockname()[:2])]


# ---- messages that cause no error report, and limits


@pytest.mark.clause("DGRAM-ERR-3")
def test_two_queue_pairs_do_not_answer_each_others_error_messages(rig: Rig) -> None:
    a, as_a = create_qp_with_duplicate_socket(rig, error_policy=MESSAGE)
    b, as_b = create_qp_with_duplicate_socket(rig, error_policy=MESSAGE)
    with assert_counter_grows("err_sent", 2), assert_counter_grows("err_found", 2):
        before = counter_value("err_stale")
        as_a.sendto(build_datagram(opcode=4), b.addr)
        as_b.sendto(build_datagram(opcode=4), a.addr)
        # Each queue pair reports an error to the other and ignores the report that it receives,
        # which is about a message that it never sent.
        assert [e.code for e in wait_for_qp_errors(a) + wait_for_qp_errors(b)] == [6, 6]
        wait_until(lambda: a.errors() or b.errors() or counter_value("err_stale") == before + 2)
        as_a.sendto(build_wire_error_message(1), b.addr)
        as_b.sendto(build_wire_error_message(1), a.addr)
        wait_until(lambda: a.errors() or b.errors() or counter_value("err_stale") == before + 4)
        for _ in range(50):
            assert a.errors() == b.errors() == []
        assert as_a.has_empty_buffer() and as_b.has_empty_buffer()
    as_a.close()
    as_b.close()


@pytest.mark.clause("DGRAM-ERR-13")
def test_a_full_error_queue_keeps_its_first_errors_and_counts_the_rest(rig: Rig) -> None:
    with temporary_settings(err_queue=8):
        qp = rig.create_ud_qp(qkey=QKEY, error_policy=MESSAGE)
        with PlainUDPSocket() as who, assert_counter_grows("err_lost", 6):
            msn = send_and_return_msn(rig, qp, who)
            before = counter_value("err_found")
            for i in range(10):
                who.sendto(build_datagram(opcode=4, msn=100 + i), qp.addr)
            wait_until(lambda: qp.rcq.poll(1) == [] and counter_value("err_found") == before + 10)
            # Found and received errors have separate limits, so a flood of one kind leaves space
            # for the other.
            stale = counter_value("err_received")
            who.sendto(build_wire_error_message(msn), qp.addr)
            wait_until(lambda: qp.rcq.poll(1) == [] and counter_value("err_received") == stale + 1)
            assert [e.msn for e in qp.errors()] == [100, 101, 102, 103, msn]


def test_an_error_affects_only_the_addressed_queue_pair_of_a_shared_socket(rig: Rig) -> None:
    first = rig.create_ud_qp(qkey=QKEY, addr=("127.0.0.1", 0))
    second = rig.create_ud_qp(qkey=QKEY, shared_socket_qp=first)
    index = second.qp_num >> 16
    with PlainUDPSocket() as who:
        who.sendto(build_datagram(opcode=4, msn=5, qn=ud_qn(0, index, 7)), second.addr)
        (found,) = wait_for_qp_errors(second)
        assert (found.msn, found.qpn) == (5, 7 << 16 | who.getsockname()[1])
        head, told = parse_error_message(who.recv(1 << 16))
        assert (head.qn, told.quoted_ddp.msn) == (ud_qn(2, 7, index), 5)
        assert (first.qp_state, second.qp_state) == (QPState.RTS, QPState.ERR)
        assert_still_receives(first, rig, who)
        # An error message is queued at the queue pair that sent the reported message.
        msn = send_and_return_msn(rig, first, who)
        who.sendto(build_wire_error_message(msn, qn=ud_qn(2, index, 0)), first.addr)
        who.sendto(build_wire_error_message(msn), first.addr)
        assert wait_for_qp_errors(first)[0].msn == msn
        assert second.errors() == []


def test_several_threads_may_cause_and_read_errors_while_the_queue_pair_is_reset(
    rig: Rig,
) -> None:
    qp = rig.create_ud_qp(qkey=QKEY)
    stop = threading.Event()
    found: list[ErrorReport] = []

    def poll_errors_until_stopped() -> None:
        while not stop.is_set():
            found.extend(qp.poll_errors(3))

    def send_invalid_datagrams_until_stopped() -> None:
        with PlainUDPSocket() as who:
            ah = rig.create_ah(who.getsockname())
            while not stop.is_set():
                who.sendto(build_datagram(opcode=4), qp.addr)
                # a post fails while the queue pair is in RESET, INIT or RTR
                with contextlib.suppress(OSError):
                    qp.post_send(SendWR(1, ah=ah, send_flags=0, remote_qkey=QKEY))
                who.sendto(build_wire_error_message(1), qp.addr)
                qp.scq.poll(16)

    threads = [
        threading.Thread(target=f)
        for f in (
            poll_errors_until_stopped,
            poll_errors_until_stopped,
            send_invalid_datagrams_until_stopped,
            send_invalid_datagrams_until_stopped,
        )
    ]
    for thread in threads:
        thread.start()
    try:
        resets = 0
        while resets < 20:
            with rig.next_async_event() as event:
                if event.event_type == EventType.QP_ERR_QUEUED:
                    continue
            qp.modify(QPAttr(qp_state=QPState.RESET))
            # another error may arrive before the queue pair is in RTS
            with contextlib.suppress(StateError):
                qp.to_rts(QPAttr(qkey=QKEY))
            resets += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    found += qp.errors()
    assert sum(e.origin == ErrorOrigin.FOUND for e in found) >= resets


def test_error_messages_to_one_source_are_rate_limited(rig: Rig) -> None:
    with temporary_settings(err_source_rate=3, err_queue=64):
        mine = Rig()
        qp = mine.create_ud_qp(qkey=QKEY, error_policy=MESSAGE)
        with PlainUDPSocket() as who:
            limited = counter_value("err_limited")
            for _ in range(20):
                who.sendto(build_datagram(opcode=4), qp.addr)
            wait_for_qp_errors(qp, 20)
            told = 20 - (counter_value("err_limited") - limited)
            # The limit allows three error messages, and one more in each third of a second.
            assert 3 <= told <= 3 + 30
            for _ in range(told):
                parse_error_message(who.recv(1 << 16))
            assert who.has_empty_buffer()
        mine.close()


# ---- the interface


def test_a_query_returns_the_requested_error_policy(rig: Rig) -> None:
    def queried_error_policy(qp: QP) -> int | str:
        return qp.query()[1].error_policy

    assert queried_error_policy(rig.create_ud_qp(qkey=QKEY)) == ERROR
    assert queried_error_policy(rig.create_qp(error_policy="message")) == MESSAGE
    assert queried_error_policy(rig.create_qp(error_policy="error")) == ERROR
    with temporary_settings(error_policy=MESSAGE):
        assert queried_error_policy(rig.create_qp()) == MESSAGE
        assert queried_error_policy(rig.create_qp(error_policy=ERROR)) == ERROR


@pytest.mark.clause("DGRAM-ERR-16")
def test_the_default_error_policy_of_a_multicast_member_is_message(rig: Rig) -> None:
    member, strict = rig.create_ud_qp(qkey=QKEY), rig.create_ud_qp(qkey=QKEY, error_policy=ERROR)

    def queried_error_policies() -> list[int | str]:
        return [qp.query()[1].error_policy for qp in (member, strict)]

    for qp in (member, strict):
        qp.attach_mcast("239.192.7.92")
    assert queried_error_policies() == [MESSAGE, ERROR]
    with PlainUDPSocket() as who:
        for qp in (member, strict):
            who.sendto(build_datagram(opcode=4), qp.addr)
            wait_for_qp_errors(qp)
    assert [member.qp_state, strict.qp_state] == [QPState.RTS, QPState.ERR]
    for qp in (member, strict):
        qp.detach_mcast("239.192.7.92")
    assert queried_error_policies() == [ERROR, ERROR]


@pytest.mark.parametrize("policy", [3, -1, "fatal", ""])
def test_an_unknown_error_policy_is_refused(rig: Rig, policy: int | str) -> None:
    with pytest.raises(OSError, match="error_policy is ") as e:
        rig.create_qp(error_policy=policy)
    assert e.value.errno == errno.EINVAL


def test_poll_errors_returns_at_most_the_requested_number_of_errors(rig: Rig) -> None:
    qp = rig.create_ud_qp(qkey=QKEY, error_policy=MESSAGE)
    with PlainUDPSocket() as who:
        before = counter_value("err_found")
        for i in range(5):
            who.sendto(build_datagram(opcode=0, msn=i), qp.addr)
        wait_until(lambda: qp.rcq.poll(1) == [] and counter_value("err_found") == before + 5)
    assert qp.poll_errors(0) == []
    assert [e.msn for e in qp.poll_errors(2)] == [0, 1]
    assert [e.msn for e in qp.errors()] == [2, 3, 4]
    assert qp.errors() == []


def test_siw_poll_err_refuses_invalid_arguments_and_rc_queue_pairs(rig: Rig) -> None:
    qp = rig.create_ud_qp()
    assert lib.siw_poll_err(ffi.NULL, 0, ffi.NULL) == -errno.EINVAL
    assert lib.siw_poll_err(qp._c, 1, ffi.NULL) == -errno.EINVAL
    assert lib.siw_poll_err(qp._c, -1, ffi.new("struct siw_err_entry *")) == -errno.EINVAL
    from siwarp.verbs import QPType

    assert errno_raised_by(rig.create_qp(qp_type=QPType.RC).errors) == errno.EINVAL


def test_a_c_program_reads_queued_errors_and_continues(build_dir: Path) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-errors"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_capture_shows_invalid_messages_error_messages_and_reasons_of_drops(
    rig: Rig, tmp_path: Path
) -> None:
    file = tmp_path / "errors.pcapng"
    with capture(file), PlainUDPSocket() as who:
        qp = rig.create_ud_qp(qkey=QKEY, error_policy=MESSAGE)
        before = counter_value("err_stale")
        for octets in (
            build_datagram(b"x", opcode=4, msn=9),
            build_datagram(b"short", opcode=7, qn=2),
            build_wire_error_message(77),
        ):
            who.sendto(octets, qp.addr)
        wait_until(lambda: qp.rcq.poll(1) or counter_value("err_stale") == before + 1)
        parse_error_message(who.recv(1 << 16))
    found = {
        (m.source == address_as_in_capture(qp), m.dropped or "", m.clause)
        for m in examine(file).messages
    }
    assert found == {
        (False, "drop_opcode: unknown or unexpected RDMAP opcode", "RFC5040-7.2-07"),
        (True, "", "RFC5040-4.8-03"),
        (False, "err_malformed: malformed error messages", "DGRAM-ERR-12"),
        (False, "err_stale: error messages about no recently sent message", "DGRAM-ERR-9"),
    }
    (answer,) = (m for m in examine(file).messages if m.source == address_as_in_capture(qp))
    (cause,) = (m for m in examine(file).messages if m.fields.get("msn") == 9)
    assert answer.about == cause.number


def address_as_in_capture(qp: QP) -> str:
    """Return a queue pair's address in the form that captures use."""
    return f"{qp.addr[0]}:{qp.addr[1]}"
