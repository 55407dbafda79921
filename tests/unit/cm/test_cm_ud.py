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
from unit.cm.ud_harness import (
    HOST,
    SidrEndpoints,
    build_sidr_query,
    parse_sidr_frame,
    plain_udp_socket,
)

from siwarp.cm import CMID, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import SIDRType
from siwarp.verbs import AH, QPAttr, QPState, QPType, RecvWR, SendWR, StateError

QKEY = 0x01234567


@pytest.fixture
def sidr_endpoints(rig: Rig) -> SidrEndpoints:
    return SidrEndpoints(rig)


def test_a_sidr_query_is_answered_with_a_queue_pair_that_receives_messages(
    sidr_endpoints: SidrEndpoints,
) -> None:
    qp, mr = sidr_endpoints.create_qp(), sidr_endpoints.rig.reg_mr(1024)
    id = sidr_endpoints.send_sidr_query(b"who is there")
    asked = sidr_endpoints.next_connection_request()
    assert asked.private_data == b"who is there" and asked.id.peer_addr[0] == HOST
    assert asked.id.local_addr == sidr_endpoints.door.local_addr
    sidr_endpoints.accept(asked, qp, b"it is me")
    told = sidr_endpoints.next_query_result()
    assert told.type == CMEventType.ESTABLISHED and told.id is id and told.status == 0
    assert (told.qpn, told.qkey, told.private_data) == (qp.qp_num, QKEY, b"it is me")
    assert id.peer_addr[0] == HOST and qp.query()[0].qp_state == QPState.RTS
    assert (
        sidr_endpoints.asking.get_event(0) is None and sidr_endpoints.answering.get_event(0) is None
    )

    other = CMID(sidr_endpoints.asking, ud=True)
    mine = sidr_endpoints.create_qp()
    other.bind_qp(mine)
    qp.post_recv(RecvWR(1, sg=[mr.sge(0, 512)]))
    ah = AH(sidr_endpoints.rig.pd, (id.peer_addr[0], 0))
    mine.post_send(
        SendWR(2, sg=[mr.sge(512, 5)], ah=ah, remote_qpn=told.qpn, remote_qkey=told.qkey)
    )
    assert {wc.wr_id for wc in poll(sidr_endpoints.cq, 2)} == {1, 2}


def test_a_queue_pair_moved_to_rts_by_the_program_keeps_its_qkey_in_the_sidr_answer(
    sidr_endpoints: SidrEndpoints,
) -> None:
    qp = sidr_endpoints.create_qp()
    qp.to_rts(QPAttr(qkey=0x77))
    sidr_endpoints.send_sidr_query()
    sidr_endpoints.accept(sidr_endpoints.next_connection_request(), qp)
    told = sidr_endpoints.next_query_result()
    assert (told.qpn, told.qkey) == (qp.qp_num, 0x77)


def test_one_queue_pair_is_the_answer_to_many_sidr_queries(sidr_endpoints: SidrEndpoints) -> None:
    qp = sidr_endpoints.create_qp()
    ids = {sidr_endpoints.send_sidr_query(bytes([i])) for i in range(20)}
    found = set()
    for _ in range(20):
        sidr_endpoints.accept(sidr_endpoints.next_connection_request(), qp)
    for _ in range(20):
        told = sidr_endpoints.next_query_result()
        assert told.qpn == qp.qp_num
        found.add(told.id)
    assert found == ids


@pytest.mark.parametrize("how", ["reject", "destroy", "close", "owe"])
def test_a_refused_sidr_query_reports_the_reason(sidr_endpoints: SidrEndpoints, how: str) -> None:
    sidr_endpoints.send_sidr_query()
    if how == "close":
        assert select.select([sidr_endpoints.answering], [], [], LIMIT)[0]
    asked = None if how == "close" else sidr_endpoints.next_connection_request()
    if asked and how == "reject":
        asked.id.reject(b"not today")
    elif asked and how == "destroy":
        asked.id.close()
    else:
        # The listener closes while the query is pending or after the program has received it.
        sidr_endpoints.door.close()
        if asked:
            asked.id.reject()
    told = sidr_endpoints.next_query_result(scale_limit(20))
    assert told.type == CMEventType.REJECTED and told.status == errno.ECONNREFUSED
    assert told.wire_error == (1 if how == "close" else 2)
    assert told.private_data == (b"not today" if how == "reject" else b"")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("time_limit", [{}, {"timeout": 0.25}], ids=["patient", "hasty"])
def test_a_sidr_query_to_a_port_without_listener_is_rejected_soon(
    sidr_endpoints: SidrEndpoints, host: str, time_limit: dict[str, float]
) -> None:
    with plain_udp_socket(host) as gone:
        where = gone.getsockname()[:2]
    id = sidr_endpoints.send_sidr_query(to=where, **time_limit)
    told = sidr_endpoints.next_query_result(scale_limit(3))
    assert told.id is id and (told.type, told.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert told.wire_error == 1, "the wire error is not that of a closed listener"
    assert sidr_endpoints.asking.get_event(0) is None


def test_a_repeated_sidr_query_gets_the_same_answer_without_a_second_event(
    sidr_endpoints: SidrEndpoints,
) -> None:
    qp = sidr_endpoints.create_qp()
    with plain_udp_socket() as s:
        s.sendto(build_sidr_query(7, b"x"), sidr_endpoints.door.local_addr)
        asked = sidr_endpoints.next_connection_request()
        before = counter_value("drop_sidr_length")
        # The query is repeated while the first query is pending.
        s.sendto(build_sidr_query(7, b"x"), sidr_endpoints.door.local_addr)
        # An invalid datagram is processed and counted after the repeated query.
        s.sendto(b"", sidr_endpoints.door.local_addr)
        wait_until(lambda: counter_value("drop_sidr_length") > before)
        sidr_endpoints.accept(asked, qp, b"yes")
        first = s.recv(2048)
        with assert_counter_grows("sidr_response_retries", 2):
            for _ in range(2):
                s.sendto(build_sidr_query(7, b"x"), sidr_endpoints.door.local_addr)
                assert s.recv(2048) == first
    answer = parse_sidr_frame(first)
    assert (answer.type, answer.id, answer.qpn, answer.q_key) == (
        SIDRType.ANSWER,
        7,
        qp.qp_num,
        QKEY,
    )
    assert answer.gid == f"::ffff:{HOST}" and answer.data == b"yes" and answer.cookie == 0
    assert sidr_endpoints.answering.get_event(0) is None


def test_a_closed_listener_still_retransmits_its_last_sidr_answers(
    sidr_endpoints: SidrEndpoints,
) -> None:
    with plain_udp_socket() as s:
        s.sendto(build_sidr_query(7), sidr_endpoints.door.local_addr)
        sidr_endpoints.accept(sidr_endpoints.next_connection_request(), sidr_endpoints.create_qp())
        sidr_endpoints.door.close()
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
    ends = SidrEndpoints(rig)
    with plain_udp_socket() as mute:
        ends.send_sidr_query(to=mute.getsockname())
        ends.send_sidr_query()
        taken = ends.next_connection_request()
        ends.send_sidr_query()
        rig.ctx.close(force=True)
    assert errno_raised_by(taken.id.accept) == errno.EBADF


def test_invalid_calls_on_ids_of_sidr_queries_are_refused(sidr_endpoints: SidrEndpoints) -> None:
    id = CMID(sidr_endpoints.asking, ud=True)
    with pytest.raises(StateError):
        id.bind_qp(sidr_endpoints.rig.create_qp(sidr_endpoints.cq, qp_type=QPType.RC))
    for call in (id.accept, id.establish, id.reject):
        assert errno_raised_by(call) == errno.EINVAL
    assert errno_raised_by(id.disconnect) == errno.ENOTCONN
    too_much = ConnParam(private_data=bytes(181))
    assert errno_raised_by(id.connect, sidr_endpoints.door.local_addr, too_much) == errno.EINVAL
    id.connect(sidr_endpoints.door.local_addr, ConnParam(private_data=bytes(180)))
    assert errno_raised_by(id.connect, sidr_endpoints.door.local_addr) == errno.EINVAL
    asked = sidr_endpoints.next_connection_request()
    assert len(asked.private_data) == 180
    assert errno_raised_by(asked.id.accept) == errno.EINVAL, "accept succeeded without a queue pair"
    qp = sidr_endpoints.create_qp()
    asked.id.bind_qp(qp)
    assert errno_raised_by(asked.id.accept, ConnParam(private_data=bytes(137))) == errno.EINVAL
    asked.id.accept(ConnParam(private_data=bytes(136)))
    assert errno_raised_by(asked.id.accept) == errno.EINVAL, "accept succeeded twice"
    assert len(sidr_endpoints.next_query_result().private_data) == 136
