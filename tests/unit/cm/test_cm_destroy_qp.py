"""Queue pairs that are destroyed although a connection id uses them."""

from __future__ import annotations

import errno
import functools
import threading

from harness.rc_harness import End, Wire
from harness.verbs_harness import refused, until

from siwarp._siwarp import lib
from siwarp.cm import CMEventType


def destroy(end: End) -> None:
    """Destroy the id's queue pair with the C call, as a C program may."""
    assert lib.siw_destroy_qp(end.qp._c_object()) == 0
    end.qp._c = None


def test_a_connection_that_starts_up_fails_when_its_queue_pair_goes(two: Wire) -> None:
    a = two.dial(size=64)
    request = two.request()
    b = End(two.passive, request.id, two.p_channel, size=64)
    destroy(a)
    b.id.accept()
    assert a.event().type == CMEventType.CONNECT_ERROR
    while (event := b.event()).type == CMEventType.ESTABLISHED:
        pass
    assert event.type == CMEventType.DISCONNECTED
    a.id.close()


def test_a_request_whose_queue_pair_went_cannot_be_accepted_until_it_has_another(
    two: Wire,
) -> None:
    a = two.dial(size=64)
    request = two.request()
    b = End(two.passive, request.id, two.p_channel, size=64)
    destroy(b)
    assert refused(b.id.accept) == errno.EINVAL
    b.id.qp = None
    other = b.rig.qp(scq=b.scq, rcq=b.rcq, qp_type=2)
    b.id.bind_qp(other)
    b.id.accept()
    assert a.event().type == b.event().type == CMEventType.ESTABLISHED
    b.id.close()
    other.close()


def test_a_new_queue_pair_in_the_same_memory_is_not_the_ids(two: Wire) -> None:
    a, _b = two.connect(size=64)
    destroy(a)
    assert a.event().type == CMEventType.DISCONNECTED
    fresh = a.rig.qp(qp_type=2)
    assert a.id._call_library(lib.siw_cm_disconnect) in (0, -errno.ENOTCONN)
    a.id.close()
    assert fresh.qp_state == 0
    fresh.close()


def test_destroying_races_with_the_steps_of_start_up(two: Wire) -> None:
    for n in range(60):
        a = two.dial(size=64)
        request = two.request()
        b = End(two.passive, request.id, two.p_channel, size=64)
        gone = (a, b)[n % 2]
        racer = threading.Thread(target=destroy, args=(gone,))
        racer.start()
        accepted = refused_or_not(b)
        racer.join()
        if gone is a or accepted:
            until(functools.partial(over, a, b))
        a.id.close(), b.id.close()
        for end in (a, b):
            if end is not gone:
                end.qp.close()


def refused_or_not(end: End) -> bool:
    try:
        end.id.accept()
    except OSError as e:
        assert e.errno in (errno.EINVAL, errno.ECONNRESET, errno.EPIPE), e
        return False
    return True


def over(a: End, b: End) -> bool:
    a.channel.get_event(0)  # reading the event processes the MPA Reply
    event = b.channel.get_event(0.01)
    return event is not None and event.type == CMEventType.DISCONNECTED
