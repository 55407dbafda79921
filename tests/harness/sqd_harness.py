"""For the tests of the queue pair states SQD and SQE."""

from __future__ import annotations

from harness.verbs_harness import Rig

from siwarp.verbs import (
    EventType,
)


def next_drained_qp(rig: Rig, limit: float = 10) -> object:
    """Return the queue pair of the next asynchronous event, which must be SQ_DRAINED."""
    event = rig.ctx.get_async_event(limit)
    assert event is not None, "no event"
    with event:
        assert event.event_type == EventType.SQ_DRAINED
        return event.element
