"""UD queue pairs found by address and port: spec/cm-udp.md as seen by two programs."""

from __future__ import annotations

import errno
import select

import pytest
from harness.verbs_harness import LIMIT, Rig, counted, counter, poll, refused, until
from pace import scale_limit
from unit.cm.ud_harness import HOST, Ends, plain, question, read

from siwarp.cm import CMID, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import SIDRType
from siwarp.verbs import AH, QPAttr, QPState, QPType, RecvWR, SendWR, StateError

QKEY = 0x01234567


@pytest.fixture
def ends(rig: Rig) -> Ends:
    return Ends(rig)


def test_a_question_is_answered_and_the_queue_pair_can_be_sent_to(ends: Ends) -> None:
    qp, mr = ends.qp(), ends.rig.mr(1024)
    id = ends.ask(b"who is there")
    asked = ends.request()
    assert asked.private_data == b"who is there" and asked.id.peer_addr[0] == HOST
    assert asked.id.local_addr == ends.door.local_addr
    ends.accept(asked, qp, b"it is me")
    told = ends.result()
    assert told.type == CMEventType.ESTABLISHED and told.id is id and told.status == 0
    assert (told.qpn, told.qkey, told.private_data) == (qp.qp_num, QKEY, b"it is me")
    assert id.peer_addr[0] == HOST and qp.query()[0].qp_state == QPState.RTS
    assert ends.asking.get_event(0) is None and ends.answering.get_event(0) is None

    other = CMID(ends.asking, ud=True)
    mine = ends.qp()
    other.bind_qp(mine)
    qp.post_recv(RecvWR(1, sg=[mr.sge(0, 512)]))
    ah = AH(ends.rig.pd, (id.peer_addr[0], 0))
    mine.post_send(
        SendWR(2, sg=[mr.sge(512, 5)], ah=ah, remote_qpn=told.qpn, remote_qkey=told.qkey)
    )
    assert {wc.wr_id for wc in poll(ends.cq, 2)} == {1, 2}


def test_a_queue_pair_that_its_user_moved_keeps_its_key(ends: Ends) -> None:
    qp = ends.qp()
    qp.to_rts(QPAttr(qkey=0x77))
    ends.ask()
    ends.accept(ends.request(), qp)
    told = ends.result()
    assert (told.qpn, told.qkey) == (qp.qp_num, 0x77)


def test_one_queue_pair_answers_many(ends: Ends) -> None:
    qp = ends.qp()
    ids = {ends.ask(bytes([i])) for i in range(20)}
    found = set()
    for _ in range(20):
        ends.accept(ends.request(), qp)
    for _ in range(20):
        told = ends.result()
        assert told.qpn == qp.qp_num
        found.add(told.id)
    assert found == ids


@pytest.mark.parametrize("how", ["reject", "destroy", "close", "owe"])
def test_a_refused_query_reports_the_reason(ends: Ends, how: str) -> None:
    ends.ask()
    if how == "close":
        assert select.select([ends.answering], [], [], LIMIT)[0]
    asked = None if how == "close" else ends.request()
    if asked and how == "reject":
        asked.id.reject(b"not today")
    elif asked and how == "destroy":
        asked.id.close()
    else:
        # closes the listener while the query is pending, or after the program has received it
        ends.door.close()
        if asked:
            asked.id.reject()
    told = ends.result(scale_limit(20))
    assert told.type == CMEventType.REJECTED and told.status == errno.ECONNREFUSED
    assert told.wire_error == (1 if how == "close" else 2)
    assert told.private_data == (b"not today" if how == "reject" else b"")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("time_limit", [{}, {"timeout": 0.25}], ids=["patient", "hasty"])
def test_a_query_to_a_port_without_listener_fails_soon(
    ends: Ends, host: str, time_limit: dict[str, float]
) -> None:
    with plain(host) as gone:
        where = gone.getsockname()[:2]
    id = ends.ask(to=where, **time_limit)
    told = ends.result(scale_limit(3))
    assert told.id is id and (told.type, told.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert told.wire_error == 1, "as of a listener that is closed"
    assert ends.asking.get_event(0) is None


def test_a_lost_answer_is_asked_for_again_and_the_program_is_asked_once(ends: Ends) -> None:
    qp = ends.qp()
    with plain() as s:
        s.sendto(question(7, b"x"), ends.door.local_addr)
        asked = ends.request()
        before = counter("drop_sidr_length")
        # a repeated query, while the first one is pending
        s.sendto(question(7, b"x"), ends.door.local_addr)
        # an invalid datagram, which is processed and counted after the repeated query
        s.sendto(b"", ends.door.local_addr)
        until(lambda: counter("drop_sidr_length") > before)
        ends.accept(asked, qp, b"yes")
        first = s.recv(2048)
        with counted("sidr_response_retries", 2):
            for _ in range(2):
                s.sendto(question(7, b"x"), ends.door.local_addr)
                assert s.recv(2048) == first
    answer = read(first)
    assert (answer.type, answer.id, answer.qpn, answer.q_key) == (
        SIDRType.ANSWER,
        7,
        qp.qp_num,
        QKEY,
    )
    assert answer.gid == f"::ffff:{HOST}" and answer.data == b"yes" and answer.cookie == 0
    assert ends.answering.get_event(0) is None


def test_a_closed_listener_still_retransmits_its_last_answers(ends: Ends) -> None:
    with plain() as s:
        s.sendto(question(7), ends.door.local_addr)
        ends.accept(ends.request(), ends.qp())
        ends.door.close()
        assert len({s.recv(2048) for _ in range(3)}) == 1


def test_a_wildcard_listener_answers_at_each_address_and_a_socket_may_have_the_port(
    rig: Rig,
) -> None:
    channel = CMEventChannel()
    with plain("127.0.0.3") as taken:
        id = CMID(channel, ud=True)
        # binds an id to an address at which the program already has a socket
        id.bind_addr(("127.0.0.3", taken.getsockname()[1]))
        assert id.local_addr == taken.getsockname()
        id.set_device(rig.ctx)
        assert refused(id.listen) == errno.EADDRINUSE
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


def test_a_device_that_is_closed_by_force_ends_what_is_under_way(rig: Rig) -> None:
    ends = Ends(rig)
    with plain() as mute:
        ends.ask(to=mute.getsockname())
        ends.ask()
        taken = ends.request()
        ends.ask()
        rig.ctx.close(force=True)
    assert refused(taken.id.accept) == errno.EBADF


def test_calls_that_make_no_sense_are_refused(ends: Ends) -> None:
    id = CMID(ends.asking, ud=True)
    with pytest.raises(StateError):
        id.bind_qp(ends.rig.qp(ends.cq, qp_type=QPType.RC))
    for call in (id.accept, id.establish, id.reject):
        assert refused(call) == errno.EINVAL
    assert refused(id.disconnect) == errno.ENOTCONN
    too_much = ConnParam(private_data=bytes(181))
    assert refused(id.connect, ends.door.local_addr, too_much) == errno.EINVAL
    id.connect(ends.door.local_addr, ConnParam(private_data=bytes(180)))
    assert refused(id.connect, ends.door.local_addr) == errno.EINVAL
    asked = ends.request()
    assert len(asked.private_data) == 180
    assert refused(asked.id.accept) == errno.EINVAL, "without a queue pair"
    qp = ends.qp()
    asked.id.bind_qp(qp)
    assert refused(asked.id.accept, ConnParam(private_data=bytes(137))) == errno.EINVAL
    asked.id.accept(ConnParam(private_data=bytes(136)))
    assert refused(asked.id.accept) == errno.EINVAL, "twice"
    assert len(ends.result().private_data) == 136
