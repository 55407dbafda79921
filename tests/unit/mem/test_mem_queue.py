"""Untagged queues: rings of buffers in first-in, first-out order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.ddp.ddp_harness import DdpPoller, StreamError, open_ddp_poller


def test_an_untagged_queue_returns_buffers_in_posting_order(layer_poller: DdpPoller) -> None:
    q = layer_poller.create_queue(depth=4)
    for user_data in (7, 2**64 - 1, 0):
        q.post(user_data)
    assert [q.take_buffer(), q.take_buffer(), q.take_buffer(), q.take_buffer()] == [
        7,
        2**64 - 1,
        0,
        None,
    ]


@pytest.mark.parametrize(("depth", "room"), [(1, 1), (2, 2), (3, 4), (16, 16), (17, 32)])
def test_the_depth_of_an_untagged_queue_is_rounded_up_to_a_power_of_two(
    layer_poller: DdpPoller, depth: int, room: int
) -> None:
    q = layer_poller.create_queue(depth=depth)
    for i in range(room):
        q.post(i)
    with pytest.raises(StreamError, match="ENOMEM"):
        q.post(room)
    assert q.take_buffer() == 0
    q.post(room)
    assert [q.take_buffer() for _ in range(room)] == list(range(1, room + 1))


def test_a_buffer_with_more_elements_than_max_sge_is_refused(layer_poller: DdpPoller) -> None:
    q = layer_poller.create_queue(max_sge=2)
    m = layer_poller.register_new_memory(10)
    q.post(1, m.sge(), m.sge())
    with pytest.raises(StreamError, match="EINVAL"):
        q.post(2, m.sge(), m.sge(), m.sge())
    assert [q.take_buffer(), q.take_buffer()] == [1, None]


def test_an_untagged_queue_with_max_sge_above_16_is_refused(layer_poller: DdpPoller) -> None:
    with pytest.raises(StreamError, match="EINVAL"):
        layer_poller.create_queue(max_sge=17)


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.none()), max_size=200))
def test_an_untagged_queue_matches_a_list_model(steps: list[int | None]) -> None:
    with open_ddp_poller() as layer_poller:
        q = layer_poller.create_queue(depth=8)
        model: list[int] = []
        for user_data in steps:
            if user_data is None:
                assert q.take_buffer() == (model.pop(0) if model else None)
            elif len(model) == 8:
                with pytest.raises(StreamError, match="ENOMEM"):
                    q.post(user_data)
            else:
                q.post(user_data)
                model.append(user_data)


#: Steps of a test: post a number, take a buffer (None), or resize (a negative number).
STEPS = st.one_of(st.integers(0, 2**64 - 1), st.none(), st.integers(-40, -1))


@given(st.lists(STEPS, max_size=200))
def test_an_untagged_queue_that_is_resized_matches_a_list_model(steps: list[int | None]) -> None:
    with open_ddp_poller() as layer_poller:
        q = layer_poller.create_queue(depth=8)
        model: list[int] = []
        room = 8
        for step in steps:
            if step is None:
                assert q.take_buffer() == (model.pop(0) if model else None)
            elif step < 0 and -step < len(model):
                with pytest.raises(StreamError, match="EINVAL"):
                    q.resize(-step)
            elif step < 0:
                q.resize(-step)
                room = 1 << (-step - 1).bit_length()
            elif len(model) == room:
                with pytest.raises(StreamError, match="ENOMEM"):
                    q.post(step)
            else:
                q.post(step)
                model.append(step)
        assert [q.take_buffer() for _ in model] == model


def test_resizing_an_untagged_queue_above_the_maximum_depth_is_refused(
    layer_poller: DdpPoller,
) -> None:
    with pytest.raises(StreamError, match="EINVAL"):
        layer_poller.create_queue().resize((1 << 20) + 1)
