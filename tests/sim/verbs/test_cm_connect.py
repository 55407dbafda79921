"""Connections that are established, refused, rejected or timed out, and the events at each end."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from harness.rc_harness import (
    End,
    ListenerAndConnector,
    connect_plain_socket,
    read_to_end,
)
from harness.verbs_harness import errno_raised_by
from unit.cm.cm_harness import GARBAGE, assert_transfers_work_both_ways

from siwarp.cm import CMEventType
from siwarp.inspect import MPARequest
from siwarp.verbs import (
    QPAttr,
    QPState,
)


def test_the_request_of_a_client_that_has_left_can_be_rejected_but_not_accepted(
    connector: ListenerAndConnector,
) -> None:
    for left in (True, False):
        with connect_plain_socket(connector.address) as s:
            s.sendall(bytes(MPARequest(rev=2, s=1, ird=1, ord=1)))
            request = connector.next_connection_request()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert connector.p_channel.get_event(0.05) is None
        b = End(connector.passive, request.id, connector.p_channel)
        if left:
            request.id.reject(b"not today")
        else:
            assert errno_raised_by(request.id.accept) == errno.ECONNRESET
        b.close()


def test_accepting_with_a_queue_pair_in_err_fails_without_a_message_to_the_client(
    connector: ListenerAndConnector,
) -> None:
    a = connector.begin_connect(size=1 << 16)
    b = End(
        connector.passive, connector.next_connection_request().id, connector.p_channel, size=1 << 16
    )
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert errno_raised_by(b.id.accept) == errno.EINVAL
    assert connector.a_channel.get_event(0.05) is None
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    b.qp.modify(QPAttr(qp_state=QPState.INIT))
    b.id.accept()
    assert a.next_cm_event().type == b.next_cm_event().type == CMEventType.ESTABLISHED
    assert_transfers_work_both_ways(a, b)


@pytest.mark.parametrize(
    "garbage", [*GARBAGE[:2], b"MPA ID Rep Frame" + bytes(4), b"", b"MPA ID Req"]
)
def test_clients_that_send_garbage_or_close_do_not_disturb_the_listener(
    two_device_connector: ListenerAndConnector, garbage: bytes
) -> None:
    with connect_plain_socket(two_device_connector.address) as s:
        s.sendall(garbage)
        if len(garbage) < 20:
            s.shutdown(socket.SHUT_WR)
        read_to_end(s)
    assert two_device_connector.p_channel.get_event(0.02) is None
    a, b = two_device_connector.connect()
    assert_transfers_work_both_ways(a, b)


def test_a_connection_identifier_may_be_closed_at_any_stage_of_its_connection(
    two_device_connector: ListenerAndConnector,
) -> None:
    # close the id before the listener receives the request
    two_device_connector.begin_connect().close()
    dialled = two_device_connector.begin_connect()
    request = None
    while request is None or request.private_data != b"":
        request = two_device_connector.next_connection_request()
        if two_device_connector.p_channel.get_event(0.02) is None:
            break
    request.id.close()  # the listener closes the id of a request that it has not answered
    event = dialled.next_cm_event()
    assert event.type == CMEventType.CONNECT_ERROR
    a = two_device_connector.begin_connect()
    b = End(
        two_device_connector.passive,
        two_device_connector.next_connection_request().id,
        two_device_connector.p_channel,
    )
    b.id.accept()
    b.close()  # the id is closed after the accept and before the connection is established
    events = [a.next_cm_event().type]
    if events[0] == CMEventType.ESTABLISHED:
        events.append(a.next_cm_event().type)
    assert events[-1] in (CMEventType.DISCONNECTED, CMEventType.CONNECT_ERROR)
