"""UD queue pairs found by address and port (spec/cm-udp.md), from the view of two programs."""

from __future__ import annotations

import errno
import select

import pytest
from harness.verbs_harness import (
    LIMIT,
    Rig,
    assert_counter_grows,
    counter_value,
    errno_raised_by,
    poll,
    wait_until,
)
from pace import scale_limit
from unit.cm.ud_harness import HOST, Ends, build_question, parse_frame, plain_udp_socket

from siwarp.cm import CMID, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import SIDRType
from siwarp.verbs import AH, QPAttr, QPState, QPType, RecvWR, SendWR, StateError

QKEY = 0x01234567


@pytest.fixture
def sidr_ends(rig: Rig) -> Ends:
    return Ends(rig)


def test_a_sidr_query_is_answered_with_a_queue_pair_that_receives_messages(sidr_ends: Ends) -> None:
    qp, mr = sidr_ends.create_qp(), sidr_ends.rig.reg_mr(1024)
    id = sidr_ends.send_request(b"who is there")
    asked = sidr_ends.next_request()
    assert asked.private_data == b"who is there" and asked.id.peer_addr[0] == HOST
    assert asked.id.local_addr == sidr_ends.door.local_addr
    sidr_ends.accept(asked, qp, b"it is me")
    told = sidr_ends.next_result()
    assert told.type == CMEventType.ESTABLISHED and told.id is id and told.status == 0
    assert (told.qpn, told.qkey, told.private_data) == (qp.qp_num, QKEY, b"it is me")
    assert id.peer_addr[0] == HOST and qp.query()[0].qp_state == QPState.RTS
    assert sidr_ends.asking.get_event(0) is None and sidr_ends.answering.get_event(0) is None

    other = CMID(sidr_ends.asking, ud=True)
    mine = sidr_ends.create_qp()
    other.bind_qp(mine)
    qp.post_recv(RecvWR(1, sg=[mr.sge(0, 512)]))
    ah = AH(sidr_ends.rig.pd, (id.peer_addr[0], 0))
    mine.post_send(
        SendWR(2, sg=[mr.sge(512, 5)], ah=ah, remote_qpn=told.qpn, remote_qkey=told.qkey)
    )
    assert {wc.wr_id for wc in poll(sidr_ends.cq, 2)} == {1, 2}


def test_a_queue_pair_moved_to_rts_by_the_program_keeps_its_qkey_in_the_sidr_answer(
    sidr_ends: Ends,
) -> None:
    qp = sidr_ends.create_qp()
    qp.to_rts(QPAttr(qkey=0x77))
    sidr_ends.send_request()
    sidr_ends.accept(sidr_ends.next_request(), qp)
    told = sidr_ends.next_result()
    assert (told.qpn, told.qkey) == (qp.qp_num, 0x77)


def test_one_queue_pair_is_the_answer_to_many_sidr_queries(sidr_ends: Ends) -> None:
    qp = sidr_ends.create_qp()
    ids = {sidr_ends.send_request(bytes([i])) for i in range(20)}
    found = set()
    for _ in range(20):
        sidr_ends.accept(sidr_ends.next_request(), qp)
    for _ in range(20):
        told = sidr_ends.next_result()
        assert told.qpn == qp.qp_num
        found.add(told.id)
    assert found == ids


@pytest.mark.parametrize("how", ["reject", "destroy", "close", "owe"])
def test_a_refused_sidr_query_reports_the_reason(sidr_ends: Ends, how: str) -> None:
    sidr_ends.send_request()
    if how == "close":
        assert select.select([sidr_ends.answering], [], [], LIMIT)[0]
    asked = None if how == "close" else sidr_ends.next_request()
    if asked and how == "reject":
        asked.id.reject(b"not today")
    elif asked and how == "destroy":
        asked.id.close()
    else:
        # The listener closes while the query is pending or after the program has received it.
        sidr_ends.door.close()
        if asked:
            asked.id.reject()
    told = sidr_ends.next_result(scale_limit(20))
    assert told.type == CMEventType.REJECTED and told.status == errno.ECONNREFUSED
    assert told.wire_error == (1 if how == "close" else 2)
    assert told.private_data == (b"not today" if how == "reject" else b"")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("time_limit", [{}, {"timeout": 0.25}], ids=["patient", "hasty"])
def test_a_sidr_query_to_a_port_without_listener_is_rejected_soon(
    sidr_ends: Ends, host: str, time_limit: dict[str, float]
) -> None:
    with plain_udp_socket(host) as gone:
        where = gone.getsockname()[:2]
    id = sidr_ends.send_request(to=where, **time_limit)
    told = sidr_ends.next_result(scale_limit(3))
    assert told.id is id and (told.type, told.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert told.wire_error == 1, "the wire error is not that of a closed listener"
    assert sidr_ends.asking.get_event(0) is None


def test_a_repeated_sidr_query_gets_the_same_answer_without_a_second_event(sidr_ends: Ends) -> None:
    qp = sidr_ends.create_qp()
    with plain_udp_socket() as s:
        s.sendto(build_question(7, b"x"), sidr_ends.door.local_addr)
        asked = sidr_ends.next_request()
        before = counter_value("drop_sidr_length")
        # The query is repeated while the first query is pending.
        s.sendto(build_question(7, b"x"), sidr_ends.door.local_addr)
        # An invalid datagram is processed and counted after the repeated query.
        s.sendto(b"", sidr_ends.door.local_addr)
        wait_until(lambda: counter_value("drop_sidr_length") > before)
        sidr_ends.accept(asked, qp, b"yes")
        first = s.recv(2048)
        with assert_counter_grows("sidr_response_retries", 2):
            for _ in range(2):
                s.sendto(build_question(7, b"x"), sidr_ends.door.local_addr)
                assert s.recv(2048) == first
    answer = parse_frame(first)
    assert (answer.type, answer.id, answer.qpn, answer.q_key) == (
        SIDRType.ANSWER,
        7,
        qp.qp_num,
        QKEY,
    )
    assert answer.gid == f"::ffff:{HOST}" and answer.data == b"yes" and answer.cookie == 0
    assert sidr_ends.answering.get_event(0) is None


def test_a_closed_listener_still_retransmits_its_last_sidr_answers(sidr_ends: Ends) -> None:
    with plain_udp_socket() as s:
        s.sendto(build_question(7), sidr_ends.door.local_addr)
        sidr_ends.accept(sidr_ends.next_request(), sidr_ends.create_qp())
        sidr_ends.door.close()
        assert len({s.recv(2048) for _ in range(3)}) == 1


def test_a_wildcard_sidr_listener_answers_at_each_address(
    rig: Rig,
) -> None:
    channel = CMEventChannel()
    with plain_udp_socket("127.0.0.3") as taken:
        id = CMID(channel, ud=True)
        # An id can be bound to an address at which the program already has a socket.
        id.bind_addr(("127.0.0.3", taken.getsockname()[1]))
        assert id.local_addr == taken.getsockname()
        id.set_device(rig.ctx)
        assert errno_raised_by(id.listen) == errno.EADDRINUSE
    door = CMID(channel, ud=True)
    door.bind_addr(("0.0.0.0", 0))
    port = door.local_addr[1]
    door.listen_also(rig.ctx, (HOST, port))
    door.listen_also(rig.ctx, ("127.0.0.2", port))
    assert door.local_addr == ("0.0.0.0", port)
    asker = CMID(channel, ud=True)
    asker.set_device(rig.ctx)
    asker.connect(("127.0.0.2", port))
    event = channel.get_event(LIMIT)
    assert event is not None and event.listen_id is door
    assert event.id.local_addr == ("127.0.0.2", port)


def test_a_forced_close_of_the_device_ends_pending_sidr_queries(rig: Rig) -> None:
    ends = Ends(rig)
    with plain_udp_socket() as mute:
        ends.send_request(to=mute.getsockname())
        ends.send_request()
        taken = ends.next_request()
        ends.send_request()
        rig.ctx.close(force=True)
    assert errno_raised_by(taken.id.accept) == errno.EBADF


def test_invalid_calls_on_ids_of_sidr_queries_are_refused(sidr_ends: Ends) -> None:
    id = CMID(sidr_ends.asking, ud=True)
    with pytest.raises(StateError):
        id.bind_qp(sidr_ends.rig.create_qp(sidr_ends.cq, qp_type=QPType.RC))
    for call in (id.accept, id.establish, id.reject):
        assert errno_raised_by(call) == errno.EINVAL
    assert errno_raised_by(id.disconnect) == errno.ENOTCONN
    too_much = ConnParam(private_data=bytes(181))
    assert errno_raised_by(id.connect, sidr_ends.door.local_addr, too_much) == errno.EINVAL
    id.connect(sidr_ends.door.local_addr, ConnParam(private_data=bytes(180)))
    assert errno_raised_by(id.connect, sidr_ends.door.local_addr) == errno.EINVAL
    asked = sidr_ends.next_request()
    assert len(asked.private_data) == 180
    assert errno_raised_by(asked.id.accept) == errno.EINVAL, "accept succeeded without a queue pair"
    qp = sidr_ends.create_qp()
    asked.id.bind_qp(qp)
    assert errno_raised_by(asked.id.accept, ConnParam(private_data=bytes(137))) == errno.EINVAL
    asked.id.accept(ConnParam(private_data=bytes(136)))
    assert errno_raised_by(asked.id.accept) == errno.EINVAL, "accept succeeded twice"
    assert len(sidr_ends.next_result().private_data) == 136
