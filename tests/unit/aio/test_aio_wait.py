"""Waits in asyncio for events of completion queues and CM channels."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable

import pytest
from harness.verbs_harness import Pair, Rig, wait_until
from unit.aio.aio_harness import LOOPBACK, cancel_and_wait, run_in_event_loop

from siwarp import StateError, aio
from siwarp.base.system import readable_now
from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.verbs import CQ, PD, SRQ, CompChannel, EventType, SendWR, SrqAttr


def create_ud_pair(rig: Rig, channel: object = None) -> Pair:
    pair = Pair(rig)
    pair.rcq = rig.create_cq(64, channel or rig.create_channel())
    pair.b = rig.create_ud_qp(scq=pair.idle, rcq=pair.rcq)
    pair.to_b = rig.create_ah(pair.b)
    return pair


def test_completions_are_awaited_in_batches() -> None:
    rig = Rig()
    pair = create_ud_pair(rig)

    async def await_completions_in_batches() -> None:
        waiting = asyncio.create_task(aio.wait(pair.rcq))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        pair.post_receive(0)
        pair.send(b"x")
        found = list(await waiting)
        for i in range(1, 6):
            pair.post_receive(i)
            pair.send(b"x")
        async for batch in aio.completions(pair.rcq, 2):
            assert 1 <= len(batch) <= 2
            found += batch
            if len(found) == 6:
                break
        assert [wc.wr_id for wc in found] == [0, 1, 2, 3, 4, 5]

    run_in_event_loop(await_completions_in_batches)
    rig.close()


def test_each_task_that_waits_on_a_shared_channel_gets_the_completions_of_its_cq() -> None:
    rig = Rig()
    channel = rig.create_channel()
    pairs = [create_ud_pair(rig, channel) for _ in range(4)]

    async def await_completions_on_shared_channel() -> None:
        for round_ in range(20):
            waiting = [asyncio.create_task(aio.wait(pair.rcq)) for pair in pairs]
            await asyncio.sleep(0)
            await cancel_and_wait(waiting[round_ % 4])
            for n, pair in enumerate(pairs):
                pair.post_receive(n)
                pair.send(b"x")
            for n, pair in enumerate(pairs):
                task = waiting[n]
                wcs = await aio.wait(pair.rcq) if task.cancelled() else await task
                assert [wc.wr_id for wc in wcs] == [n]

    run_in_event_loop(await_completions_on_shared_channel)
    rig.close()


class LateMessageCQ(CQ):
    """A CQ to which a message arrives right after a task has armed the CQ and found it empty."""

    __slots__ = ("armed", "message")

    message: Callable[[], None] | None
    armed: int

    def req_notify(self, solicited_only: bool = False) -> None:
        super().req_notify(solicited_only)
        self.armed += 1

    @property
    def pending(self) -> int:
        found = super().pending
        if self.armed >= 3 and found == 0 and self.message is not None:
            message, self.message = self.message, None
            message()
        return found


def test_a_cq_event_that_another_task_reads_wakes_the_task_that_waits_on_the_cq() -> None:
    rig = Rig()
    channel = rig.create_channel()
    idle = create_ud_pair(rig, channel)
    queues = [LateMessageCQ(rig.ctx, 64, channel=channel) for _ in range(2)]
    pairs = []
    for cq in queues:
        cq.armed, cq.message = 0, None
        pair = Pair(rig)
        pair.b = rig.create_ud_qp(scq=pair.idle, rcq=cq)
        pair.to_b = rig.create_ah(pair.b)
        pairs.append(pair)

    sent: list[int] = []

    def send_message(n: int) -> None:
        """Send to the queue pair with index ``n``, whose CQ has been armed and found empty."""
        for cq in queues:
            cq.message = None
        sent.append(n)
        pairs[n].post_receive(n)
        pairs[n].send(b"x")
        wait_until(lambda: readable_now(channel.fileno()))

    async def await_completions_in_many_tasks() -> None:
        for n, cq in enumerate(queues):
            cq.message = functools.partial(send_message, n)
        waiting = [asyncio.create_task(aio.wait(cq)) for cq in queues]
        await asyncio.sleep(0)
        # No task waits on the idle CQ, so its event wakes only tasks that wait on other CQs.
        idle.rcq.req_notify()
        idle.post_receive(9)
        idle.send(b"x")
        wait_until(lambda: readable_now(channel.fileno()))
        for _ in range(20):
            await asyncio.sleep(0)
        if not sent:
            send_message(0)
        for _ in range(2):
            n = sent[-1]
            assert [wc.wr_id for wc in await waiting[n]] == [n]
            if len(sent) == 1:
                send_message(1 - n)

    run_in_event_loop(await_completions_in_many_tasks, 10)
    rig.close()


def test_a_cq_event_that_a_thread_reads_wakes_the_task_that_waits_on_the_cq() -> None:
    rig = Rig()
    channel = rig.create_channel()
    pair = create_ud_pair(rig, channel)
    pair.post_receive(1)

    def read_and_ack_event(channel: CompChannel) -> None:
        cq = channel.get_cq_event(10)
        assert cq is pair.rcq
        cq.ack_events(1)

    async def await_completion_while_thread_reads_event() -> None:
        waiting = asyncio.create_task(aio.wait(pair.rcq))
        await asyncio.sleep(0)
        pair.send(b"x")
        # join() blocks the event loop, so the thread reads the event.
        thread = threading.Thread(target=read_and_ack_event, args=(channel,))
        thread.start()
        thread.join()
        assert [wc.wr_id for wc in await waiting] == [1]

    run_in_event_loop(await_completion_while_thread_reads_event, 10)
    rig.close()


def test_closing_an_object_on_which_a_task_waits_ends_the_wait() -> None:
    rig = Rig()
    pair = create_ud_pair(rig)
    events = CMEventChannel(rig.ctx)
    channel = pair.rcq.channel
    assert channel is not None

    async def close_objects_of_waiting_tasks() -> None:
        waiting = [
            asyncio.create_task(aio.wait(pair.rcq)),
            asyncio.create_task(aio.cm_event(events)),
        ]
        await asyncio.sleep(0.01)
        for one in (pair.b, pair.rcq, channel, events):
            one.close()
        for task in waiting:
            with pytest.raises(StateError, match="closed"):
                await task
        # The loop watches new objects, even if they have the numbers of closed descriptors.
        other = create_ud_pair(rig)
        other.post_receive(7)
        again = asyncio.create_task(aio.wait(other.rcq))
        await asyncio.sleep(0.01)
        other.send(b"x")
        assert [wc.wr_id for wc in await again] == [7]

    run_in_event_loop(close_objects_of_waiting_tasks, 10)
    rig.close()


def test_cm_events_can_be_awaited() -> None:
    rig = Rig()

    async def await_cm_events() -> None:
        channel, other = CMEventChannel(rig.ctx), CMEventChannel(rig.ctx)
        listener = CMID(channel)
        listener.listen(LOOPBACK)
        waiting = asyncio.create_task(aio.cm_event(channel))
        await cancel_and_wait(waiting)
        ours = CMID(other)
        ours.bind_qp(rig.create_qp(qp_type=2))
        ours.connect(listener.local_addr)
        request = await aio.cm_event(channel)
        assert request.type == CMEventType.CONNECT_REQUEST
        request.id.bind_qp(rig.create_qp(qp_type=2))
        request.id.accept()
        events = await asyncio.gather(aio.cm_event(other), aio.cm_event(channel))
        assert [e.type for e in events] == [CMEventType.ESTABLISHED] * 2

    run_in_event_loop(await_cm_events)
    rig.close()


def raise_srq_limit_event(srq: SRQ) -> None:
    """Arm the limit of an empty SRQ, which raises SRQ_LIMIT_REACHED at once."""
    srq.modify(SrqAttr(srq_limit=1))


def test_asynchronous_events_can_be_awaited() -> None:
    rig = Rig()
    srqs = [SRQ(PD(rig.ctx), SrqAttr(4)) for _ in range(2)]

    async def await_async_events() -> None:
        waiting = asyncio.create_task(aio.async_event(rig.ctx))
        await cancel_and_wait(waiting)
        raise_srq_limit_event(srqs[0])
        with await aio.async_event(rig.ctx) as event:
            assert (event.event_type, event.element) == (EventType.SRQ_LIMIT_REACHED, srqs[0])
        # Each event is returned to one of the tasks that wait on the device.
        tasks = [asyncio.create_task(aio.async_event(rig.ctx)) for _ in srqs]
        await asyncio.sleep(0)
        for srq in srqs:
            raise_srq_limit_event(srq)
        events = await asyncio.gather(*tasks)
        assert {event.element for event in events} == set(srqs)
        for event in events:
            event.ack()

    run_in_event_loop(await_async_events)
    rig.close()


def test_waiting_on_a_cq_without_a_channel_raises() -> None:
    rig = Rig()

    async def check_wait_without_channel_refused() -> None:
        with pytest.raises(StateError, match="channel"):
            await aio.wait(rig.create_cq())

    run_in_event_loop(check_wait_without_channel_refused)
    rig.close()


def test_the_pending_count_of_a_cq_neither_polls_nor_makes_progress() -> None:
    rig = Rig()
    pair = Pair(rig)
    assert pair.scq.pending == 0
    pair.a.post_send([SendWR(i, ah=pair.to_b) for i in range(3)])
    assert pair.scq.pending == pair.scq.pending == 3
    assert len(pair.scq.poll(8)) == 3
    assert pair.scq.pending == 0
    rig.close()


def test_a_forced_close_of_the_device_raises_an_error_in_waiting_tasks() -> None:
    rig = Rig()
    pair = create_ud_pair(rig)
    ids = CMEventChannel(rig.ctx)

    async def close_device_of_waiting_tasks() -> None:
        waiting = [
            asyncio.create_task(aio.wait(pair.rcq)),
            asyncio.create_task(aio.cm_event(ids)),
            asyncio.create_task(aio.async_event(rig.ctx)),
        ]
        await asyncio.sleep(0.01)
        rig.ctx.close(force=True)
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(e) for e in told] == [StateError] * 3
        # The new device may reuse the numbers of the closed descriptors.
        other = Rig()
        pair2 = create_ud_pair(other)
        wcs = asyncio.create_task(aio.wait(pair2.rcq))
        pair2.post_receive(1)
        pair2.send(b"x")
        assert (await wcs)[0].ok
        other.close()

    run_in_event_loop(close_device_of_waiting_tasks)


def test_a_thread_closes_the_device_of_waiting_tasks_by_force() -> None:
    rig = Rig()
    pair = create_ud_pair(rig)

    async def close_device_in_thread() -> None:
        waiting = asyncio.create_task(aio.wait(pair.rcq))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(rig.ctx.close, force=True)
        with pytest.raises(StateError):
            await waiting

    run_in_event_loop(close_device_in_thread)
