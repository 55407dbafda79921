"""Connections that are established, refused, rejected or timed out, and the events at each end."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from harness.rc_harness import (
    End,
    Wire,
    plain_client,
    read_all,
)
from harness.verbs_harness import refused
from unit.cm.cm_harness import GARBAGE, exchange

from siwarp.cm import CMEventType
from siwarp.inspect import MPARequest
from siwarp.verbs import (
    QPAttr,
    QPState,
)


def test_a_client_that_is_known_to_have_left_may_be_rejected_and_not_accepted(wire: Wire) -> None:
    for left in (True, False):
        with plain_client(wire.address) as s:
            s.sendall(bytes(MPARequest(rev=2, s=1, ird=1, ord=1)))
            request = wire.request()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert wire.p_channel.get_event(0.05) is None
        b = End(wire.passive, request.id, wire.p_channel)
        if left:
            request.id.reject(b"not today")
        else:
            assert refused(request.id.accept) == errno.ECONNRESET
        b.close()


def test_accepting_with_a_queue_pair_that_left_init_says_nothing_to_the_peer(wire: Wire) -> None:
    a = wire.dial(size=1 << 16)
    b = End(wire.passive, wire.request().id, wire.p_channel, size=1 << 16)
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert refused(b.id.accept) == errno.EINVAL
    assert wire.a_channel.get_event(0.05) is None
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    b.qp.modify(QPAttr(qp_state=QPState.INIT))
    b.id.accept()
    assert a.event().type == b.event().type == CMEventType.ESTABLISHED
    exchange(a, b)


@pytest.mark.parametrize(
    "garbage", [*GARBAGE[:2], b"MPA ID Rep Frame" + bytes(4), b"", b"MPA ID Req"]
)
def test_clients_that_talk_garbage_or_leave_do_not_disturb_the_listener(
    two: Wire, garbage: bytes
) -> None:
    with plain_client(two.address) as s:
        s.sendall(garbage)
        if len(garbage) < 20:
            s.shutdown(socket.SHUT_WR)
        read_all(s)
    assert two.p_channel.get_event(0.02) is None
    a, b = two.connect()
    exchange(a, b)


def test_an_id_may_be_closed_at_any_stage_of_its_connection(two: Wire) -> None:
    two.dial().close()  # close the id before the listener receives the request
    dialled = two.dial()
    request = None
    while request is None or request.private_data != b"":
        request = two.request()
        if two.p_channel.get_event(0.02) is None:
            break
    request.id.close()  # the listener closes the id of a request without an answer
    event = dialled.event()
    assert event.type == CMEventType.CONNECT_ERROR
    a = two.dial()
    b = End(two.passive, two.request().id, two.p_channel)
    b.id.accept()
    b.close()  # close a connection that was accepted, but is not established yet
    events = [a.event().type]
    if events[0] == CMEventType.ESTABLISHED:
        events.append(a.event().type)
    assert events[-1] in (CMEventType.DISCONNECTED, CMEventType.CONNECT_ERROR)
