"""Queue pairs that are destroyed although a connection id uses them."""

from __future__ import annotations

import errno
import functools
import threading

from harness.rc_harness import End, ListenerAndConnector
from harness.verbs_harness import errno_raised_by, wait_until

from siwarp._siwarp import lib
from siwarp.cm import CMEventType


def destroy_qp_in_c(end: End) -> None:
    """Destroy the queue pair of a connection id through the C API, as a C program may."""
    assert lib.siw_destroy_qp(end.qp._c_object()) == 0
    end.qp._c = None


def test_a_connect_fails_when_its_queue_pair_is_destroyed_during_start_up(
    two_device_connector: ListenerAndConnector,
) -> None:
    a = two_device_connector.begin_connect(size=64)
    request = two_device_connector.next_connection_request()
    b = End(two_device_connector.passive, request.id, two_device_connector.p_channel, size=64)
    destroy_qp_in_c(a)
    b.id.accept()
    assert a.next_cm_event().type == CMEventType.CONNECT_ERROR
    while (event := b.next_cm_event()).type == CMEventType.ESTABLISHED:
        pass
    assert event.type == CMEventType.DISCONNECTED
    a.id.close()


def test_a_request_whose_queue_pair_was_destroyed_needs_another_to_be_accepted(
    two_device_connector: ListenerAndConnector,
) -> None:
    a = two_device_connector.begin_connect(size=64)
    request = two_device_connector.next_connection_request()
    b = End(two_device_connector.passive, request.id, two_device_connector.p_channel, size=64)
    destroy_qp_in_c(b)
    assert errno_raised_by(b.id.accept) == errno.EINVAL
    b.id.qp = None
    other = b.rig.create_qp(scq=b.scq, rcq=b.rcq, qp_type=2)
    b.id.bind_qp(other)
    b.id.accept()
    assert a.next_cm_event().type == b.next_cm_event().type == CMEventType.ESTABLISHED
    b.id.close()
    other.close()


def test_a_cm_id_does_not_mistake_a_new_queue_pair_for_its_destroyed_queue_pair(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, _b = two_device_connector.connect(size=64)
    destroy_qp_in_c(a)
    assert a.next_cm_event().type == CMEventType.DISCONNECTED
    fresh = a.rig.create_qp(qp_type=2)
    assert a.id._call_library(lib.siw_cm_disconnect) in (0, -errno.ENOTCONN)
    a.id.close()
    assert fresh.qp_state == 0
    fresh.close()


def test_queue_pairs_are_destroyed_concurrently_with_connection_start_up(
    two_device_connector: ListenerAndConnector,
) -> None:
    for n in range(60):
        a = two_device_connector.begin_connect(size=64)
        request = two_device_connector.next_connection_request()
        b = End(two_device_connector.passive, request.id, two_device_connector.p_channel, size=64)
        gone = (a, b)[n % 2]
        racer = threading.Thread(target=destroy_qp_in_c, args=(gone,))
        racer.start()
        accepted = try_to_accept(b)
        racer.join()
        if gone is a or accepted:
            wait_until(functools.partial(has_disconnected, a, b))
        a.id.close(), b.id.close()
        for end in (a, b):
            if end is not gone:
                end.qp.close()


def try_to_accept(end: End) -> bool:
    try:
        end.id.accept()
    except OSError as e:
        assert e.errno in (errno.EINVAL, errno.ECONNRESET, errno.EPIPE), e
        return False
    return True


def has_disconnected(a: End, b: End) -> bool:
    # Reading events of the initiator makes it process the MPA Reply.
    a.channel.get_event(0)
    event = b.channel.get_event(0.01)
    return event is not None and event.type == CMEventType.DISCONNECTED
