"""Connections of queue pairs in all lanes of devices with several lanes."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator

import pytest
from harness.lanes_harness import LANES, PAIRS_OF_LANES, LaneRig
from harness.rc_harness import (
    SEND,
    End,
    ListenerAndConnector,
    connect_plain_socket,
    create_plain_listener,
    read_to_end,
)
from harness.verbs_harness import LIMIT, poll, temporary_settings, wait_until
from harness.wire_peer import build_send, recv_startup_frame
from pace import scale_limit
from scapy.packet import Raw
from unit.cm.cm_harness import assert_transfers_work_both_ways
from unit.cm.test_cm_destroy_qp import destroy_qp_in_c

from siwarp._siwarp import lib
from siwarp.cm import CMID, RTR, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import FPDU, MPAReply, MPARequest, split_stream
from siwarp.verbs import QPState


@pytest.fixture(name="lanes_wire")
def listener_on_device_with_lanes() -> Iterator[ListenerAndConnector]:
    """Provide a listener on one device with lanes, and connections to it from another one."""
    active, passive = LaneRig(), LaneRig()
    yield ListenerAndConnector(active, passive)
    active.close()
    passive.close()


def choose_lanes_of_next_qps(connector: ListenerAndConnector, active: int, passive: int) -> None:
    """Create the next queue pairs of both devices in these lanes."""
    assert isinstance(connector.active, LaneRig) and isinstance(connector.passive, LaneRig)
    connector.active.lane, connector.passive.lane = active, passive


def expect_disconnect_event(end: End) -> CMEvent:
    event = end.next_cm_event()
    assert event.type == CMEventType.DISCONNECTED, event
    return event


def test_queue_pairs_of_all_lanes_connect_transfer_data_and_disconnect(
    lanes_wire: ListenerAndConnector,
) -> None:
    for lanes in PAIRS_OF_LANES:
        choose_lanes_of_next_qps(lanes_wire, *lanes)
        a, b = lanes_wire.connect()
        assert a.id.local_addr == b.id.peer_addr
        assert_transfers_work_both_ways(a, b)
        for one, other in ((a, b), (b, a)):
            other.post_receive(7, length=10)
            one.post(SEND, 8, length=10)
            assert poll(other.rcq)[0].ok
        (a, b)[lanes[0] % 2].id.disconnect()
        assert expect_disconnect_event(a).status == expect_disconnect_event(b).status == 0
        a.close()
        b.close()


def test_connections_of_all_lanes_exist_at_the_same_time_on_one_device() -> None:
    rig = LaneRig()
    connector = ListenerAndConnector(rig)
    ends = []
    for lanes in PAIRS_OF_LANES:
        rig.lane = lanes[0]
        a = connector.begin_connect(size=1 << 14)
        request = connector.next_connection_request()
        rig.lane = lanes[1]
        b = End(rig, request.id, connector.p_channel, size=1 << 14)
        b.id.accept()
        assert a.next_cm_event().type == b.next_cm_event().type == CMEventType.ESTABLISHED
        ends.append((a, b))
    for a, b in ends:
        assert_transfers_work_both_ways(a, b)
    for a, b in ends:
        destroy_qp_in_c(a)
        expect_disconnect_event(b)
    rig.close()


@pytest.mark.parametrize("rtr", [RTR.FPDU, RTR.WRITE, RTR.READ])
def test_the_responder_of_any_lane_may_send_after_the_rtr(
    lanes_wire: ListenerAndConnector, rtr: RTR
) -> None:
    for lane in range(LANES):
        choose_lanes_of_next_qps(lanes_wire, LANES - 1 - lane, lane)
        a, b = lanes_wire.connect(ConnParam(peer_to_peer=rtr))
        assert_transfers_work_both_ways(b, a)
        a.close()
        b.close()


@pytest.mark.parametrize("lane", range(LANES))
def test_data_that_arrives_with_the_mpa_request_is_received_in_the_lane_of_the_queue_pair(
    lanes_wire: ListenerAndConnector, lane: int
) -> None:
    choose_lanes_of_next_qps(lanes_wire, 0, lane)
    texts = [b"early", b"and later"]
    fpdus = [bytes(FPDU(ulpdu=build_send(i + 1) / Raw(text))) for i, text in enumerate(texts)]
    with connect_plain_socket(lanes_wire.address) as s:
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=4, ord=4)) + fpdus[0])
        request = lanes_wire.next_connection_request()
        end = End(lanes_wire.passive, request.id, lanes_wire.p_channel, size=1 << 12)
        for i in range(2):
            end.post_receive(i, i << 10, 1 << 10)
        end.id.accept()
        assert end.next_cm_event().type == CMEventType.ESTABLISHED
        assert [wc.byte_len for wc in poll(end.rcq)] == [len(texts[0])]
        recv_startup_frame(s)
        s.sendall(fpdus[1])
        assert [wc.byte_len for wc in poll(end.rcq)] == [len(texts[1])]
        assert [end.mem.read(len(text), i << 10) for i, text in enumerate(texts)] == texts
    expect_disconnect_event(end)


@pytest.mark.parametrize("lane", range(LANES))
def test_data_that_arrives_with_the_mpa_reply_is_received_in_the_lane_of_the_queue_pair(
    lanes_wire: ListenerAndConnector, lane: int
) -> None:
    choose_lanes_of_next_qps(lanes_wire, lane, 0)
    with create_plain_listener() as listener:
        channel = CMEventChannel(lanes_wire.active.ctx)
        end = End(lanes_wire.active, CMID(channel), channel, size=1 << 12)
        end.post_receive(1, 0, 1 << 10)
        end.id.connect(listener.getsockname()[:2], ConnParam(hold=True))
        sock, _ = listener.accept()
    with sock:
        recv_startup_frame(sock)
        fpdu = bytes(FPDU(ulpdu=build_send() / Raw(b"at once")))
        sock.sendall(bytes(MPAReply(rev=2, s=1, ird=4, ord=4)) + fpdu)
        assert end.next_cm_event().type == CMEventType.CONNECT_RESPONSE
        end.id.establish()
        assert end.next_cm_event().type == CMEventType.ESTABLISHED
        # Nobody polls: the thread of the device receives the data and the end of the stream.
        sock.close()
        expect_disconnect_event(end)
    assert [wc.byte_len for wc in poll(end.rcq)] == [7]
    assert end.mem.read(7) == b"at once"


@pytest.mark.parametrize("lane", range(LANES))
def test_a_disconnect_right_after_accept_reaches_the_initiator(
    lanes_wire: ListenerAndConnector, lane: int
) -> None:
    for destroys in (False, True):
        choose_lanes_of_next_qps(lanes_wire, LANES - 1 - lane, lane)
        a = lanes_wire.begin_connect(size=64)
        request = lanes_wire.next_connection_request()
        b = End(lanes_wire.passive, request.id, lanes_wire.p_channel, size=64)
        b.id.accept()
        if destroys:
            b.id.close()
        else:
            b.id.disconnect()
        while (event := a.next_cm_event()).type == CMEventType.ESTABLISHED:
            pass
        assert event.type == CMEventType.DISCONNECTED
        wait_until(lambda b=b: b.qp.qp_state == QPState.ERR)
        for end in (a, b):
            end.id.close()
            end.qp.close()
        while lanes_wire.p_channel.get_event(0):
            pass


@pytest.mark.parametrize("lane", range(LANES))
def test_a_missing_rtr_ends_the_connection_in_any_lane(
    lanes_wire: ListenerAndConnector, lane: int
) -> None:
    choose_lanes_of_next_qps(lanes_wire, 0, lane)
    with (
        temporary_settings(mpa_timeout_ms=round(1000 * scale_limit(0.1))),
        connect_plain_socket(lanes_wire.address) as s,
    ):
        s.sendall(bytes(MPARequest(rev=2, s=1, a=1, c_rtr=1, ird=4, ord=4)))
        request = lanes_wire.next_connection_request()
        end = End(lanes_wire.passive, request.id, lanes_wire.p_channel)
        end.id.accept()
        assert expect_disconnect_event(end).status == errno.ETIMEDOUT


@pytest.mark.parametrize("lane", range(LANES))
def test_a_connection_that_cannot_be_attached_ends_with_a_terminate(
    lanes_wire: ListenerAndConnector, lane: int
) -> None:
    choose_lanes_of_next_qps(lanes_wire, lane, 0)
    with create_plain_listener() as listener:
        end = End(lanes_wire.active, CMID(lanes_wire.a_channel), lanes_wire.a_channel)
        end.id.connect(listener.getsockname()[:2], ConnParam(hold=True))
        sock, _ = listener.accept()
    with sock:
        recv_startup_frame(sock)
        sock.sendall(bytes(MPAReply(rev=2, s=1, ird=4, ord=4)))
        assert end.next_cm_event().type == CMEventType.CONNECT_RESPONSE
        destroy_qp_in_c(end)
        with pytest.raises(OSError) as raised:
            end.id.establish()
        assert raised.value.errno == errno.EINVAL
        fpdus = split_stream(read_to_end(sock)).fpdus
        assert len(fpdus) == 1


def test_queue_pairs_of_all_lanes_are_destroyed_concurrently_with_accept(
    lanes_wire: ListenerAndConnector,
) -> None:
    for n in range(40):
        choose_lanes_of_next_qps(lanes_wire, n % LANES, n // 4 % LANES)
        a = lanes_wire.begin_connect(size=64)
        request = lanes_wire.next_connection_request()
        b = End(lanes_wire.passive, request.id, lanes_wire.p_channel, size=64)
        c, b.qp._c = b.qp._c_object(), None
        racer = threading.Thread(target=lib.siw_destroy_qp, args=(c,))
        racer.start()
        with contextlib.suppress(OSError):
            b.id.accept()
        racer.join()
        b.id.close()
        assert a.next_cm_event().type in (CMEventType.ESTABLISHED, CMEventType.CONNECT_ERROR)
        a.close()
        while lanes_wire.a_channel.get_event(0) or lanes_wire.p_channel.get_event(0):
            pass


def test_threads_connect_and_disconnect_in_their_lanes_at_the_same_time() -> None:
    rigs = LaneRig(), LaneRig()
    wires: list[tuple[int, ListenerAndConnector]] = []
    failures: list[BaseException] = []

    def connect_and_disconnect(lane: int, connector: ListenerAndConnector) -> None:
        try:
            for n in range(15):
                with creating:
                    choose_lanes_of_next_qps(connector, lane, (lane + n) % LANES)
                    a = connector.begin_connect(size=1 << 12)
                request = connector.next_connection_request()
                with creating:
                    choose_lanes_of_next_qps(connector, lane, (lane + n) % LANES)
                    b = End(connector.passive, request.id, connector.p_channel, size=1 << 12)
                b.id.accept()
                assert a.next_cm_event().type == b.next_cm_event().type == CMEventType.ESTABLISHED
                assert_transfers_work_both_ways(a, b)
                (a, b)[n % 2].id.disconnect()
                expect_disconnect_event(a)
                expect_disconnect_event(b)
                a.close()
                b.close()
        except BaseException as e:
            failures.append(e)

    creating = threading.Lock()
    wires = [(lane, ListenerAndConnector(*rigs)) for lane in range(LANES)]
    threads = [
        threading.Thread(target=connect_and_disconnect, args=connector) for connector in wires
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for rig in rigs:
        rig.close()


def test_a_device_is_closed_by_force_while_a_thread_attaches_queue_pairs_of_all_lanes() -> None:
    for n in range(2 * LANES):
        active, passive = LaneRig(), LaneRig()
        connector = ListenerAndConnector(active, passive)
        choose_lanes_of_next_qps(connector, n % LANES, n // 2 % LANES)
        ends = [connector.begin_connect(size=64) for _ in range(4)]
        requests = [connector.next_connection_request() for _ in ends]
        for request in requests:
            End(passive, request.id, connector.p_channel, size=64).id.accept()

        def read_events(channel: CMEventChannel = connector.a_channel) -> None:
            with contextlib.suppress(OSError):
                while channel.get_event(LIMIT):
                    pass

        reader = threading.Thread(target=read_events)
        reader.start()
        # Reading the events attaches the queue pairs of the initiators.
        assert lib.siw_close_device_forced(active.ctx._c_object()) == 0
        reader.join()
        passive.close()
