"""Connections that are established, refused, rejected or abandoned, and the events of both ends."""

from __future__ import annotations

import errno
import select
import socket
import struct
import threading
import time

import pytest
from harness.rc_harness import (
    READ,
    SEND,
    WRITE,
    End,
    ListenerAndConnector,
    connect_plain_socket,
    create_plain_listener,
    read_to_end,
)
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    errno_raised_by,
    octet_pattern,
    poll,
    wait_until,
)
from unit.cm.cm_harness import GARBAGE, assert_transfers_work_both_ways

from siwarp import cm
from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, RTR, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import MPAReply, MPARequest
from siwarp.verbs import (
    QP,
    PeerGone,
    QPAttr,
    QPState,
    QPType,
    SendWR,
)

# ---- successful connections


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_at_port_zero_reports_its_port_and_both_ends_agree_on_addresses(
    rig: Rig, host: str
) -> None:
    connector = ListenerAndConnector(rig, host=host)
    assert connector.address[0] == host and connector.address[1] > 0
    a, b = connector.connect()
    assert (a.id.local_addr, a.id.peer_addr) == (b.id.peer_addr, b.id.local_addr)
    assert b.id.local_addr == connector.address
    assert a.qp.qp_state == b.qp.qp_state == QPState.RTS
    assert_transfers_work_both_ways(a, b)


@pytest.mark.parametrize("rev", [1, 2])
@pytest.mark.parametrize("ask_crc", [True, False])
@pytest.mark.parametrize("answer_crc", [True, False])
def test_connections_of_each_mpa_revision_and_crc_choice_transfer_data(
    two_device_connector: ListenerAndConnector, rev: int, ask_crc: bool, answer_crc: bool
) -> None:
    a = two_device_connector.begin_connect(ConnParam(rev=rev, crc=ask_crc), size=1 << 16)
    request = two_device_connector.next_connection_request()
    assert (request.rev, request.crc) == (rev, ask_crc)
    b = End(two_device_connector.passive, request.id, two_device_connector.p_channel, size=1 << 16)
    b.id.accept(ConnParam(crc=answer_crc))
    for end in (a, b):
        event = end.next_cm_event()
        assert event.type == CMEventType.ESTABLISHED
        assert (event.rev, event.crc) == (rev, ask_crc or answer_crc)
    assert_transfers_work_both_ways(a, b)


@pytest.mark.parametrize("rtr", [RTR.FPDU, RTR.WRITE, RTR.READ])
def test_after_the_rtr_of_a_peer_to_peer_connection_the_responder_may_send_first(
    two_device_connector: ListenerAndConnector, rtr: RTR
) -> None:
    def post_receive(b: End) -> None:
        b.post_receive(wr_id=5)

    a, b = two_device_connector.connect(ConnParam(peer_to_peer=rtr), before_accept=post_receive)
    a.post_receive(wr_id=6)
    b.mem.write(b"I first")
    b.post(SEND, 1, length=7)
    assert poll(b.scq)[0].ok
    (got,) = poll(a.rcq)
    assert (got.wr_id, got.byte_len, a.mem.read(7)) == (6, 7, b"I first")
    # The RTR consumes no receive of the responder and completes no request of the initiator.
    assert b.rcq.poll(4) == [] and a.scq.poll(4) == []
    a.post(SEND, 2, length=3)
    assert poll(b.rcq)[0].wr_id == 5
    assert poll(a.scq)[0].wr_id == 2
    assert_transfers_work_both_ways(a, b)


@pytest.mark.parametrize(
    "offered",
    [RTR.FPDU | RTR.WRITE, RTR.FPDU | RTR.READ, RTR.WRITE | RTR.READ, RTR(7)],
)
def test_both_ends_choose_the_same_one_of_several_offered_rtrs(
    two_device_connector: ListenerAndConnector, offered: RTR
) -> None:
    a = two_device_connector.begin_connect(ConnParam(peer_to_peer=offered), size=1 << 16)
    request = two_device_connector.next_connection_request()
    assert request.peer_to_peer == offered
    b = End(two_device_connector.passive, request.id, two_device_connector.p_channel, size=1 << 16)
    b.id.accept()
    chosen = {end.next_cm_event().peer_to_peer for end in (a, b)}
    assert len(chosen) == 1
    (one,) = chosen
    assert one in (RTR.FPDU, RTR.WRITE, RTR.READ) and one & offered
    assert_transfers_work_both_ways(a, b)


@pytest.mark.parametrize("rev", [1, 2])
@pytest.mark.parametrize("size", [0, 1, 3, 507, 508])
def test_private_data_is_exchanged_in_both_directions(
    connector: ListenerAndConnector, rev: int, size: int
) -> None:
    hello, answer = octet_pattern(size, 1), octet_pattern(size, 2)
    a = connector.begin_connect(ConnParam(rev=rev, private_data=hello))
    request = connector.next_connection_request()
    assert request.private_data == hello
    b = End(connector.passive, request.id, connector.p_channel)
    b.id.accept(ConnParam(private_data=answer))
    assert a.next_cm_event().private_data == answer
    assert b.next_cm_event().type == CMEventType.ESTABLISHED


@pytest.mark.parametrize(("rev", "most"), [(1, 512), (2, 508)])
def test_private_data_of_a_connect_above_the_limit_is_refused(
    connector: ListenerAndConnector, rev: int, most: int
) -> None:
    a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
    too_much = ConnParam(rev=rev, private_data=bytes(most + 1))
    assert errno_raised_by(a.id.connect, connector.address, too_much) == errno.EINVAL
    a.id.connect(connector.address, ConnParam(rev=rev, private_data=bytes(most)))
    request = connector.next_connection_request()
    assert len(request.private_data) == most
    b = End(connector.passive, request.id, connector.p_channel)
    assert errno_raised_by(b.id.accept, ConnParam(private_data=bytes(most + 1))) == errno.EINVAL
    assert errno_raised_by(request.id.reject, bytes(most + 1)) == errno.EINVAL
    b.id.accept(ConnParam(private_data=bytes(most)))
    assert len(a.next_cm_event().private_data) == most


def test_a_rejection_carries_private_data_and_the_queue_pair_can_connect_again(
    two_device_connector: ListenerAndConnector,
) -> None:
    # Both ends count the rejection.
    with assert_counter_grows("rejects", 2):
        a = two_device_connector.begin_connect(ConnParam(private_data=b"please"), size=1 << 16)
        request = two_device_connector.next_connection_request()
        request.id.reject(b"no, thanks")
        event = a.next_cm_event()
    assert (event.type, event.status, event.private_data) == (
        CMEventType.REJECTED,
        errno.ECONNREFUSED,
        b"no, thanks",
    )
    assert a.qp.qp_state == QPState.INIT
    request.id.close()
    a.id.close()
    a.id = CMID(a.channel)
    a.qp.modify(QPAttr(qp_state=QPState.RESET))
    a.id.bind_qp(a.qp)
    a.id.connect(two_device_connector.address)
    b = End(
        two_device_connector.passive,
        two_device_connector.next_connection_request().id,
        two_device_connector.p_channel,
        size=1 << 16,
    )
    b.id.accept()
    assert a.next_cm_event().type == CMEventType.ESTABLISHED
    assert_transfers_work_both_ways(a, b)


@pytest.mark.clause("RFC5044-7.1.2-05#a", "RFC5044-7.1.2-05#b")
def test_a_rejected_client_reads_the_mpa_reply_and_then_the_end_of_the_stream(
    connector: ListenerAndConnector,
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=1, ord=1)))
        request = connector.next_connection_request()
        request.id.reject(b"not today")
        reply = MPAReply(read_to_end(s))
        assert (reply.r, reply.private_data) == (1, b"not today")
        request.id.close()


def test_one_listener_accepts_many_connections_with_separate_data(
    two_device_connector: ListenerAndConnector,
) -> None:
    n = 12
    dialled = [
        two_device_connector.begin_connect(
            ConnParam(private_data=bytes([i])), size=1 << 12, max_send_wr=8
        )
        for i in range(n)
    ]
    served: dict[int, End] = {}
    established = 0
    while established < n:
        event = two_device_connector.p_channel.get_event(5)
        assert event is not None
        if event.type == CMEventType.ESTABLISHED:
            established += 1
            continue
        assert event.type == CMEventType.CONNECT_REQUEST
        b = End(
            two_device_connector.passive,
            event.id,
            two_device_connector.p_channel,
            size=1 << 12,
            max_send_wr=8,
        )
        b.id.accept()
        served[event.private_data[0]] = b
    assert {two_device_connector.a_channel.get_event(5).id for _ in range(n)} == {
        a.id for a in dialled
    }
    for i, a in enumerate(dialled):
        served[i].post_receive(length=16)
        a.mem.write(bytes([i]) * 8)
        a.post(SEND, length=8)
    for i, b in served.items():
        assert poll(b.rcq)[0].byte_len == 8
        assert b.mem.read(8) == bytes([i]) * 8


def test_two_queue_pairs_of_one_process_connect_with_one_cm_channel(rig: Rig) -> None:
    channel = CMEventChannel(rig.ctx)
    listener = CMID(channel)
    listener.listen(("127.0.0.1", 0))
    a = End(rig, CMID(channel), channel, size=1 << 16)
    a.id.connect(listener.local_addr)
    b = None
    seen = []
    for _ in range(3):
        event = channel.get_event(5)
        assert event is not None
        seen.append(event.type)
        if event.type == CMEventType.CONNECT_REQUEST:
            b = End(rig, event.id, channel, size=1 << 16)
            b.id.accept()
    assert b is not None and seen.count(CMEventType.ESTABLISHED) == 2
    assert_transfers_work_both_ways(a, b)


def test_the_cm_channel_descriptor_is_readable_while_an_event_is_unread(
    two_device_connector: ListenerAndConnector,
) -> None:
    p = select.poll()
    p.register(two_device_connector.p_channel, select.POLLIN)
    assert p.poll(20) == []
    a = two_device_connector.begin_connect()
    assert p.poll(5000)
    assert two_device_connector.p_channel.get_event(0) is not None
    assert p.poll(20) == [] and a.qp.qp_state == QPState.INIT


def test_the_source_address_of_a_connect_can_be_chosen(connector: ListenerAndConnector) -> None:
    a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
    a.id.connect(connector.address, source=("127.0.0.9", 0))
    assert connector.next_connection_request().id.peer_addr[0] == "127.0.0.9"


# ---- IRD and ORD


@pytest.mark.parametrize(
    ("a_ord", "a_ird", "b_ord", "b_ird"),
    [(None,) * 4, (4, 8, 16, 2), (1, 1, 1, 1), (0, 0, 0, 0), (128, 3, 128, 3), (2, 0, 7, 9)],
)
def test_ird_and_ord_are_negotiated_and_reported_to_both_ends(
    connector: ListenerAndConnector,
    a_ord: int | None,
    a_ird: int | None,
    b_ord: int | None,
    b_ird: int | None,
) -> None:
    def default_to_maximum(x: int | None) -> int:
        return 128 if x is None else x

    a = connector.begin_connect(ConnParam(initiator_depth=a_ord, responder_resources=a_ird))
    request = connector.next_connection_request()
    assert (request.initiator_depth, request.responder_resources) == (
        default_to_maximum(a_ird),
        default_to_maximum(a_ord),
    )
    assert (request.peer_ird, request.peer_ord) == (
        default_to_maximum(a_ird),
        default_to_maximum(a_ord),
    )
    b = End(connector.passive, request.id, connector.p_channel)
    b.id.accept(ConnParam(initiator_depth=b_ord, responder_resources=b_ird))
    at_a, at_b = a.next_cm_event(), b.next_cm_event()
    assert at_a.initiator_depth == min(default_to_maximum(a_ord), default_to_maximum(b_ird))
    assert at_a.responder_resources == default_to_maximum(a_ird)
    assert at_b.initiator_depth == min(default_to_maximum(b_ord), default_to_maximum(a_ird))
    assert at_b.responder_resources == default_to_maximum(b_ird)
    assert (at_a.peer_ird, at_a.peer_ord) == (default_to_maximum(b_ird), at_b.initiator_depth)


def test_a_read_on_a_connection_with_a_negotiated_ord_of_zero_is_refused(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(ConnParam(initiator_depth=0))
    wr = SendWR(1, READ, sg=[a.mem.sge(0, 8)], remote=b.mem.remote(0, 8))
    assert errno_raised_by(a.qp.post_send, wr) == errno.EINVAL
    send_one_message(a, b)


def send_one_message(a: End, b: End) -> None:
    b.post_receive()
    a.post(SEND, 1, length=8)
    assert poll(b.rcq)[0].ok


def test_max_rd_atomic_of_the_queue_pair_limits_the_depths_of_the_connection(
    connector: ListenerAndConnector,
) -> None:
    a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
    a.qp.modify(QPAttr(max_rd_atomic=3, max_dest_rd_atomic=5))
    assert (
        errno_raised_by(a.id.connect, connector.address, ConnParam(initiator_depth=4))
        == errno.EINVAL
    )
    a.id.connect(connector.address)
    request = connector.next_connection_request()
    assert (request.peer_ord, request.peer_ird) == (3, 5)


# ---- invalid use


def test_invalid_connection_manager_calls_are_refused(connector: ListenerAndConnector) -> None:
    a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
    where = connector.address
    for wrong in (
        ConnParam(rev=3),
        ConnParam(rev=-1),
        ConnParam(rev=1, peer_to_peer=RTR.WRITE),
        ConnParam(peer_to_peer=8),
        ConnParam(initiator_depth=129),
        ConnParam(responder_resources=129),
        ConnParam(initiator_depth=-2),
    ):
        assert errno_raised_by(a.id.connect, where, wrong) == errno.EINVAL, wrong
    empty = CMID(connector.a_channel)
    # The id cannot connect, because it has no queue pair.
    assert errno_raised_by(empty.connect, where) == errno.EINVAL
    # The id has no connection request to accept or reject.
    assert errno_raised_by(a.id.accept) == errno.EINVAL
    assert errno_raised_by(a.id.reject) == errno.EINVAL
    assert errno_raised_by(a.id.disconnect) == errno.ENOTCONN
    assert errno_raised_by(connector.listener.disconnect) == errno.ENOTCONN
    assert errno_raised_by(connector.listener.listen, ("127.0.0.1", 0)) == errno.EINVAL
    assert errno_raised_by(lambda: empty.local_addr) == errno.ENOTCONN
    a.id.connect(where)
    # The id cannot connect again while it is connecting.
    assert errno_raised_by(a.id.connect, where) == errno.EINVAL
    request = connector.next_connection_request()
    # The id of the request cannot accept, because it has no queue pair.
    assert errno_raised_by(request.id.accept) == errno.EINVAL
    # After the invalid calls, the listener still works.
    b = End(connector.passive, request.id, connector.p_channel)
    b.id.accept()
    assert a.next_cm_event().type == CMEventType.ESTABLISHED
    assert errno_raised_by(b.id.accept) == errno.EINVAL
    assert errno_raised_by(b.id.reject) == errno.EINVAL


def test_a_cm_id_accepts_only_one_rc_queue_pair_of_its_own_device(
    connector: ListenerAndConnector,
) -> None:
    cm_id = CMID(connector.a_channel)
    other = Rig()
    assert errno_raised_by(cm_id.bind_qp, other.create_qp(qp_type=QPType.RC)) == errno.EINVAL
    assert errno_raised_by(cm_id.bind_qp, connector.active.create_qp()) == errno.EINVAL
    qp = connector.active.create_qp(qp_type=QPType.RC)
    qp.modify(QPAttr(qp_state=QPState.ERR))
    assert errno_raised_by(cm_id.bind_qp, qp) == errno.EINVAL
    cm_id.bind_qp(connector.active.create_qp(qp_type=QPType.RC))
    assert (
        errno_raised_by(cm_id.bind_qp, connector.active.create_qp(qp_type=QPType.RC))
        == errno.EINVAL
    )
    other.close()


def test_listening_at_a_port_in_use_or_a_foreign_address_is_refused(
    connector: ListenerAndConnector,
) -> None:
    again = CMID(connector.p_channel)
    assert errno_raised_by(again.listen, connector.address) == errno.EADDRINUSE
    assert errno_raised_by(again.listen, ("198.51.100.77", 0)) == errno.EADDRNOTAVAIL
    again.listen(("127.0.0.1", 0))


def test_a_cm_channel_with_an_id_is_busy(rig: Rig) -> None:
    ch = lib.siw_cm_create_channel(rig.ctx._c_object())
    cm_id = lib.siw_cm_create_id(ch, ffi.NULL)
    assert lib.siw_cm_destroy_channel(ch) == -errno.EBUSY
    assert lib.siw_cm_destroy_id(cm_id) == 0
    assert lib.siw_cm_destroy_channel(ch) == 0


# ---- no listener, or a peer that violates the protocol


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connect_to_a_port_without_a_listener_is_rejected(rig: Rig, host: str) -> None:
    connector = ListenerAndConnector(rig, host=host)
    with create_plain_listener(host) as s:
        gone = s.getsockname()[:2]
    a = End(rig, CMID(connector.a_channel), connector.a_channel)
    a.id.connect(gone)
    event = a.next_cm_event()
    assert (event.type, event.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    # The revision is 0, because no MPA frame of the peer has been received.
    assert event.rev == 0
    assert a.qp.qp_state == QPState.INIT


@pytest.mark.parametrize("garbage", GARBAGE, ids=["http", "zeros", "a request", "x"])
def test_an_invalid_mpa_reply_causes_a_connect_error(
    connector: ListenerAndConnector, garbage: bytes
) -> None:
    with create_plain_listener() as s:
        a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
        a.id.connect(s.getsockname(), ConnParam(timeout=2))
        peer, _ = s.accept()
        with peer:
            peer.sendall(garbage)
            event = a.next_cm_event()
    assert (event.type, event.status) == (CMEventType.CONNECT_ERROR, errno.EPROTO)


@pytest.mark.parametrize("said", [b"", b"MPA ID Re", bytes(MPAReply(rev=2))[:19]])
def test_a_listener_that_closes_the_tcp_connection_causes_a_connect_error(
    connector: ListenerAndConnector, said: bytes
) -> None:
    with create_plain_listener() as s:
        a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
        a.id.connect(s.getsockname(), ConnParam(timeout=2))
        peer, _ = s.accept()
        peer.recv(100)
        peer.sendall(said)
        peer.close()
        event = a.next_cm_event()
    assert event.type == CMEventType.CONNECT_ERROR
    assert event.status in (errno.ECONNRESET, errno.EPROTO)


def test_closing_a_listener_does_not_affect_its_established_connections(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    # No thread accepts the second connection request.
    waiting = two_device_connector.begin_connect()
    address = two_device_connector.address
    wait_until(lambda: select.select([two_device_connector.p_channel], [], [], 0)[0])
    two_device_connector.listener.close()
    assert waiting.next_cm_event().type == CMEventType.CONNECT_ERROR
    assert_transfers_work_both_ways(a, b)
    late = End(
        two_device_connector.active,
        CMID(two_device_connector.a_channel),
        two_device_connector.a_channel,
    )
    late.id.connect(address)
    assert late.next_cm_event().status == errno.ECONNREFUSED


def test_cm_ids_are_closed_in_one_thread_while_another_waits_for_events(
    two_device_connector: ListenerAndConnector,
) -> None:
    stop = threading.Event()
    seen: list[CMEvent] = []

    def collect_events() -> None:
        while not stop.is_set():
            event = two_device_connector.a_channel.get_event(0.01)
            if event is not None:
                seen.append(event)

    threads = [threading.Thread(target=collect_events) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        for i in range(60):
            a = two_device_connector.begin_connect(max_send_wr=1, max_recv_wr=1)
            request = two_device_connector.next_connection_request()
            b = End(
                two_device_connector.passive,
                request.id,
                two_device_connector.p_channel,
                max_send_wr=1,
                max_recv_wr=1,
            )
            if i % 3:
                b.id.accept()
            else:
                b.id.reject()
            if i % 2:
                time.sleep(0.0005)
            a.close()
            b.close()
    finally:
        stop.set()
        for t in threads:
            t.join(10)
    assert not any(t.is_alive() for t in threads)


# ---- siwarp.connect and siwarp.listen


def test_connections_of_siwarp_connect_and_listen_send_write_and_read() -> None:
    done: list[bytes] = []

    def serve_one_connection(listener: cm.Listener) -> None:
        with listener.accept(10) as conn:
            memory = conn.register(bytearray(b"remote memory"))
            conn.send(memory.remote().pack())
            done.append(conn.recv(10))
            done.append(memory.read())

    with cm.listen(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_one_connection, args=(listener,))
        thread.start()
        with cm.connect(listener.address) as conn:
            # The initiator must transmit first, so an empty Write precedes recv.
            from siwarp.verbs import RemoteBuffer

            conn.qp.post_send(SendWR(9, WRITE, send_flags=0))
            remote = RemoteBuffer.unpack(conn.recv(10))
            assert conn.read(remote) == b"remote memory"
            conn.write(remote, b"REMOTE", timeout=5)
            conn.send(b"bye", 5)
            thread.join(10)
    assert done == [b"bye", b"REMOTE memory"]


def test_messages_of_a_connection_query_no_address_and_the_error_of_a_lost_one_names_the_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted = threading.Event()

    def echo_once(listener: cm.Listener) -> None:
        with listener.accept(10) as conn:
            accepted.set()
            conn.send(conn.recv(10), 10)

    with cm.listen(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=echo_once, args=(listener,))
        thread.start()
        with cm.connect(listener.address) as conn:
            host, port = conn.peer
            assert accepted.wait(10)

            def fail_if_peer_address_is_queried(qp: QP) -> None:
                raise AssertionError("the address was queried")

            monkeypatch.setattr(QP, "peer", property(fail_if_peer_address_is_queried))
            conn.send(b"a message", 10)
            assert conn.recv(10) == b"a message"
            thread.join(10)
            with pytest.raises(PeerGone):
                conn.recv(10)
            with pytest.raises(PeerGone, match=f"SEND to {host} port {port}: "):
                conn.send(b"another message", 10)


def test_the_request_of_a_client_that_has_disconnected_can_only_be_rejected(
    connector: ListenerAndConnector,
) -> None:
    for left in (True, False):
        with connect_plain_socket(connector.address) as s:
            s.sendall(bytes(MPARequest(rev=2, s=1, ird=1, ord=1)))
            request = connector.next_connection_request()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        b = End(connector.passive, request.id, connector.p_channel)
        if left:
            request.id.reject(b"not today")
        else:
            assert errno_raised_by(request.id.accept) == errno.ECONNRESET
        b.close()
