"""Awaiting the verbs' own objects."""

from __future__ import annotations

import asyncio

import pytest
from unit.aio.aio_harness import LOOPBACK, gone, run
from unit.verbs.verbs_harness import Pair, Rig

from siwarp import StateError, aio
from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.verbs import SendWR


def ud(rig: Rig, channel: object = None) -> Pair:
    pair = Pair(rig)
    pair.rcq = rig.cq(64, channel or rig.channel())
    pair.b = rig.ud(scq=pair.idle, rcq=pair.rcq)
    pair.to_b = rig.ah(pair.b)
    return pair


def test_completions_are_awaited_in_batches() -> None:
    rig = Rig()
    pair = ud(rig)

    async def main() -> None:
        waiting = asyncio.create_task(aio.wait(pair.rcq))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        pair.recv(0)
        pair.send(b"x")
        found = list(await waiting)
        for i in range(1, 6):
            pair.recv(i)
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
    channel = rig.channel()
    pairs = [ud(rig, channel) for _ in range(4)]

    async def main() -> None:
        for round_ in range(20):
            waiting = [asyncio.create_task(aio.wait(pair.rcq)) for pair in pairs]
            await asyncio.sleep(0)
            await gone(waiting[round_ % 4])
            for n, pair in enumerate(pairs):
                pair.recv(n)
                pair.send(b"x")
            for n, pair in enumerate(pairs):
                task = waiting[n]
                wcs = await aio.wait(pair.rcq) if task.cancelled() else await task
                assert [wc.wr_id for wc in wcs] == [n]

    run(main)
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
        ours.bind_qp(rig.qp(qp_type=2))
        ours.connect(listener.local_addr)
        request = await aio.cm_event(channel)
        assert request.type == CMEventType.CONNECT_REQUEST
        request.id.bind_qp(rig.qp(qp_type=2))
        request.id.accept()
        events = await asyncio.gather(aio.cm_event(other), aio.cm_event(channel))
        assert [e.type for e in events] == [CMEventType.ESTABLISHED] * 2

    run(main)
    rig.close()


def test_a_queue_without_a_channel_says_so() -> None:
    rig = Rig()

    async def main() -> None:
        with pytest.raises(StateError, match="channel"):
            await aio.wait(rig.cq())

    run(main)
    rig.close()


def test_looking_at_a_queue_takes_nothing_and_moves_nothing() -> None:
    rig = Rig()
    pair = Pair(rig)
    assert pair.scq.waiting == 0
    pair.a.post_send([SendWR(i, ah=pair.to_b) for i in range(3)])
    assert pair.scq.waiting == pair.scq.waiting == 3
    assert len(pair.scq.poll(8)) == 3
    assert pair.scq.waiting == 0
    rig.close()
