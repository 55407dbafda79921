"""Awaiting the verbs' own objects in asyncio."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable

import pytest
from harness.verbs_harness import Pair, Rig, wait_until
from unit.aio.aio_harness import LOOPBACK, gone, run

from siwarp import StateError, aio
from siwarp.base.system import readable_now
from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.verbs import CQ, CompChannel, SendWR


def ud(rig: Rig, channel: object = None) -> Pair:
    pair = Pair(rig)
    pair.rcq = rig.create_cq(64, channel or rig.create_channel())
    pair.b = rig.create_ud_qp(scq=pair.idle, rcq=pair.rcq)
    pair.to_b = rig.create_ah(pair.b)
    return pair


def test_completions_are_awaited_in_batches() -> None:
    rig = Rig()
    pair = ud(rig)

    async def main() -> None:
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

    run(main)
    rig.close()


def test_tasks_that_wait_on_one_channel_each_get_their_own() -> None:
    rig = Rig()
    channel = rig.create_channel()
    pairs = [ud(rig, channel) for _ in range(4)]

    async def main() -> None:
        for round_ in range(20):
            waiting = [asyncio.create_task(aio.wait(pair.rcq)) for pair in pairs]
            await asyncio.sleep(0)
            await gone(waiting[round_ % 4])
            for n, pair in enumerate(pairs):
                pair.post_receive(n)
                pair.send(b"x")
            for n, pair in enumerate(pairs):
                task = waiting[n]
                wcs = await aio.wait(pair.rcq) if task.cancelled() else await task
                assert [wc.wr_id for wc in wcs] == [n]

    run(main)
    rig.close()


class Late(CQ):
    """A CQ whose next message arrives right after the check for completions that follows arming."""

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


def test_an_event_that_another_task_takes_wakes_the_task_that_it_is_for() -> None:
    rig = Rig()
    channel = rig.create_channel()
    idle = ud(rig, channel)
    queues = [Late(rig.ctx, 64, channel=channel) for _ in range(2)]
    pairs = []
    for cq in queues:
        cq.armed, cq.message = 0, None
        pair = Pair(rig)
        pair.b = rig.create_ud_qp(scq=pair.idle, rcq=cq)
        pair.to_b = rig.create_ah(pair.b)
        pairs.append(pair)

    sent: list[int] = []

    def send(n: int) -> None:
        """Send to one of the queue pairs, once; called by the first empty check after arming."""
        for cq in queues:
            cq.message = None
        sent.append(n)
        pairs[n].post_receive(n)
        pairs[n].send(b"x")
        wait_until(lambda: readable_now(channel.fileno()))

    async def main() -> None:
        for n, cq in enumerate(queues):
            cq.message = functools.partial(send, n)
        waiting = [asyncio.create_task(aio.wait(cq)) for cq in queues]
        await asyncio.sleep(0)
        # No task awaits this CQ, so its event would wake only tasks that it is not meant for.
        idle.rcq.req_notify()
        idle.post_receive(9)
        idle.send(b"x")
        wait_until(lambda: readable_now(channel.fileno()))
        for _ in range(20):
            await asyncio.sleep(0)
        if not sent:
            send(0)
        for _ in range(2):
            n = sent[-1]
            assert [wc.wr_id for wc in await waiting[n]] == [n]
            if len(sent) == 1:
                send(1 - n)

    run(main, 10)
    rig.close()


def test_an_event_that_a_thread_takes_wakes_the_task_that_it_is_for() -> None:
    rig = Rig()
    channel = rig.create_channel()
    pair = ud(rig, channel)
    pair.post_receive(1)

    def take(channel: CompChannel) -> None:
        cq = channel.get_cq_event(10)
        assert cq is pair.rcq
        cq.ack_events(1)

    async def main() -> None:
        waiting = asyncio.create_task(aio.wait(pair.rcq))
        await asyncio.sleep(0)
        pair.send(b"x")
        # The event loop is blocked meanwhile, so this thread reads the event.
        thread = threading.Thread(target=take, args=(channel,))
        thread.start()
        thread.join()
        assert [wc.wr_id for wc in await waiting] == [1]

    run(main, 10)
    rig.close()


def test_closing_what_a_task_waits_on_ends_the_wait() -> None:
    rig = Rig()
    pair = ud(rig)
    events = CMEventChannel(rig.ctx)
    channel = pair.rcq.channel
    assert channel is not None

    async def main() -> None:
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
        # The loop keeps nothing of the task: new objects with the same descriptors are watched.
        other = ud(rig)
        other.post_receive(7)
        again = asyncio.create_task(aio.wait(other.rcq))
        await asyncio.sleep(0.01)
        other.send(b"x")
        assert [wc.wr_id for wc in await again] == [7]

    run(main, 10)
    rig.close()


def test_connections_are_awaited_as_events() -> None:
    rig = Rig()

    async def main() -> None:
        channel, other = CMEventChannel(rig.ctx), CMEventChannel(rig.ctx)
        listener = CMID(channel)
        listener.listen(LOOPBACK)
        waiting = asyncio.create_task(aio.cm_event(channel))
        await gone(waiting)
        ours = CMID(other)
        ours.bind_qp(rig.create_qp(qp_type=2))
        ours.connect(listener.local_addr)
        request = await aio.cm_event(channel)
        assert request.type == CMEventType.CONNECT_REQUEST
        request.id.bind_qp(rig.create_qp(qp_type=2))
        request.id.accept()
        events = await asyncio.gather(aio.cm_event(other), aio.cm_event(channel))
        assert [e.type for e in events] == [CMEventType.ESTABLISHED] * 2

    run(main)
    rig.close()


def test_waiting_on_a_cq_without_a_channel_raises() -> None:
    rig = Rig()

    async def main() -> None:
        with pytest.raises(StateError, match="channel"):
            await aio.wait(rig.create_cq())

    run(main)
    rig.close()


def test_pending_neither_polls_nor_makes_progress() -> None:
    rig = Rig()
    pair = Pair(rig)
    assert pair.scq.pending == 0
    pair.a.post_send([SendWR(i, ah=pair.to_b) for i in range(3)])
    assert pair.scq.pending == pair.scq.pending == 3
    assert len(pair.scq.poll(8)) == 3
    assert pair.scq.pending == 0
    rig.close()


def test_tasks_find_their_device_closed_by_force() -> None:
    rig = Rig()
    pair = ud(rig)
    ids = CMEventChannel(rig.ctx)

    async def main() -> None:
        waiting = [asyncio.create_task(aio.wait(pair.rcq)), asyncio.create_task(aio.cm_event(ids))]
        await asyncio.sleep(0.01)
        rig.ctx.close(force=True)
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(e) for e in told] == [StateError, StateError]
        other = Rig()  # descriptors of the new device may reuse the numbers of closed ones
        pair2 = ud(other)
        wcs = asyncio.create_task(aio.wait(pair2.rcq))
        pair2.post_receive(1)
        pair2.send(b"x")
        assert (await wcs)[0].ok
        other.close()

    run(main)


def test_a_thread_closes_the_device_of_tasks_by_force() -> None:
    rig = Rig()
    pair = ud(rig)

    async def main() -> None:
        waiting = asyncio.create_task(aio.wait(pair.rcq))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(rig.ctx.close, force=True)
        with pytest.raises(StateError):
            await waiting

    run(main)
