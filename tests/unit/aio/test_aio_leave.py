"""Closing objects on which event loops and threads wait; a close ends after these waits end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from harness.verbs_harness import Pair, Rig
from unit.aio.aio_harness import LIMIT

from siwarp import StateError, aio
from siwarp.aio.wait import _watched
from siwarp.cm import CMEventChannel
from siwarp.verbs import CompChannel, _ffi

LOOPS = 3
DEVICES = 3
#: The seconds for which a loop is busy with other work while its objects are closed.
BUSY = 0.05


class DeviceWithChannels:
    """A device with completion queues on a channel, and a channel of connection events."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.ids = CMEventChannel(self.rig.ctx)
        self.channel = CompChannel(self.rig.ctx)
        self.cqs = [self.rig.create_cq(64, self.channel) for _ in range(LOOPS)]
        self.watched_after: list[object] = []

    def close(self) -> None:
        """Close the device and record which of its descriptors a loop still watches."""
        self.rig.ctx.close(force=True)
        for here in list(_watched.values()):
            self.watched_after += [one for one in (self.ids, self.channel) if one in here]


class EventLoopThread(threading.Thread):
    """A thread with an event loop in which tasks wait on each device."""

    def __init__(self, which: int, devices: list[DeviceWithChannels]) -> None:
        super().__init__()
        self.which, self.devices = which, devices
        self.waits, self.busy = threading.Event(), threading.Event()
        self.told: list[object] = []

    def run(self) -> None:
        asyncio.run(self.wait_for_device_events())

    async def wait_for_device_events(self) -> None:
        self.loop = asyncio.get_running_loop()
        waiting = [
            asyncio.create_task(wait)
            for device in self.devices
            for wait in (aio.wait(device.cqs[self.which]), aio.cm_event(device.ids))
        ]
        while not all(d.ids in _watched.get(self.loop, {}) for d in self.devices):
            await asyncio.sleep(0)
        self.waits.set()
        self.told += await asyncio.gather(*waiting, return_exceptions=True)

    def block_loop(self) -> None:
        self.busy.set()
        time.sleep(BUSY)


class BlockingCallThread(threading.Thread):
    """A thread that repeats a blocking call until the call raises an exception."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self.call = call
        self.told: list[object] = []

    def run(self) -> None:
        try:
            while True:
                self.call()
        except Exception as e:
            self.told.append(e)


def join_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), thread


@pytest.mark.parametrize("round_", range(5))
def test_threads_close_devices_on_which_event_loops_and_threads_wait(
    monkeypatch: pytest.MonkeyPatch, round_: int
) -> None:
    # The limit is long enough for a slow machine.
    monkeypatch.setattr(_ffi, "_LEAVING_S", LIMIT)
    devices = [DeviceWithChannels() for _ in range(DEVICES)]
    loops = [EventLoopThread(n, devices) for n in range(LOOPS)]
    waiters = [
        BlockingCallThread(call)
        for device in devices
        for call in (device.rig.ctx.get_async_event, device.channel.get_cq_event)
    ]
    for thread in (*loops, *waiters):
        thread.start()
    for loop in loops:
        assert loop.waits.wait(LIMIT)
        loop.loop.call_soon_threadsafe(loop.block_loop)
    for loop in loops:
        assert loop.busy.wait(LIMIT)
    closers: list[threading.Thread] = [threading.Thread(target=d.close) for d in devices]
    for thread in closers:
        thread.start()
    join_threads([*closers, *loops, *waiters])
    assert [d.watched_after for d in devices] == [[]] * DEVICES
    for told in (t.told for t in (*loops, *waiters)):
        assert told
        assert {type(e) for e in told} == {StateError}
    # Descriptors of new objects are watched, even if they have the numbers of closed descriptors.
    rig = Rig()
    pair = Pair(rig)
    pair.rcq = rig.create_cq(64, rig.create_channel())
    pair.b = rig.create_ud_qp(scq=pair.idle, rcq=pair.rcq)
    pair.to_b = rig.create_ah(pair.b)
    pair.post_receive(round_)
    pair.send(b"x")
    assert [wc.wr_id for wc in asyncio.run(asyncio.wait_for(aio.wait(pair.rcq), LIMIT))] == [round_]
    rig.close()
