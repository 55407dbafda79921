"""Simulated networks: time, tasks, event loops, and identical runs for the same seed."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import siwarp
import siwarp.pyverbs.device as pyverbs
from siwarp.base import system
from siwarp.sim import Deadlock, World
from siwarp.verbs import CompChannel, Context, Error, StateError, Timeout


def test_time_stands_still_and_then_jumps(world) -> None:
    assert world.now == 0
    world.run_for("10min")
    assert world.now == 600
    world.run_for(0.5)
    assert world.now_ns == 600_500_000_000


def test_the_seed_picks_the_order_of_tasks() -> None:
    def order(seed: int) -> list[int]:
        done: list[int] = []
        with World(seed) as world:

            def work(which: int) -> None:
                for _ in range(3):
                    world.sleep(0)
                    done.append(which)

            for which in range(4):
                world.spawn(work, which)
            world.run_tasks()
        return done

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


def test_run_until_ends_at_the_instant_of_the_condition(world) -> None:
    task = world.spawn(lambda: world.sleep("3s") or "slept")
    world.run_until(task.done)
    assert (world.now, task.result()) == (3, "slept")


def test_run_until_says_what_waits_when_it_does_not_come(world) -> None:
    world.spawn(world.sleep, "1h", name="sleeper")
    with pytest.raises(Timeout, match="within 5s, and these tasks wait: sleeper, seed 7"):
        world.run_until(lambda: False, within="5s")


def test_a_world_in_which_nothing_will_happen_is_a_deadlock(world) -> None:
    lock = system.lock()
    lock.acquire()
    world.spawn(lock.acquire, name="locked")
    with pytest.raises((Deadlock, Timeout), match="locked"):
        world.run_until(lambda: False)


def test_what_a_task_raises_is_raised_by_run(world) -> None:
    def fail() -> None:
        world.sleep(1)
        raise KeyError("of the task")

    world.spawn(fail)
    with pytest.raises(KeyError, match="of the task"):
        world.run_for(10)
    assert world.now == 1


def test_a_lock_is_given_in_the_order_of_waiting(world) -> None:
    lock = system.rlock()
    got: list[int] = []

    def work(which: int) -> None:
        world.sleep(which * 0.001)
        with lock, lock:
            world.sleep(1)
            got.append(which)

    for which in range(4):
        world.spawn(work, which)
    world.run_tasks()
    assert got == [0, 1, 2, 3]
    assert world.now == pytest.approx(4)


def test_tasks_that_still_wait_end_with_their_world() -> None:
    with World() as world:
        tasks = [world.spawn(world.sleep, "100h") for _ in range(3)]
        world.run_for(1)
    assert all(task.done() for task in tasks)


def test_a_process_has_one_world_at_a_time(world) -> None:
    with pytest.raises(StateError, match="only one open world"):
        World()


def test_the_addresses_of_a_world_end_with_it() -> None:
    with World() as world:
        world.device("10.0.0.1")
        world.run_for(1)
    with pytest.raises(Error, match="no device has this address"):
        Context("10.0.0.1")
    assert world.now == 1.0


def test_what_is_no_plan_is_refused(world) -> None:
    with pytest.raises(Error, match="loss"):
        world.faults("loss=many")


def test_an_event_loop_has_the_time_of_the_world(world) -> None:
    async def main() -> list[object]:
        async def slow() -> str:
            await asyncio.sleep(3600)
            return "an hour"

        thread = asyncio.to_thread(lambda: world.sleep(5) or "five")
        return await asyncio.gather(slow(), thread)

    assert world.run(main()) == ["an hour", "five"]
    assert world.now == pytest.approx(3600)


PROGRAM = """
import sys

import siwarp.sim
from siwarp.verbs import AH, CQ, MR, PD, QP, CompChannel, QPInitAttr, QPType, RecvWR, SendWR

with siwarp.sim.World(int(sys.argv[1]), "loss=5%,delay=1ms,jitter=1ms") as world:
    def end(address):
        device = world.device(address)
        pd = PD(device)
        cq = CQ(device, 64, channel=CompChannel(device))
        qp = QP(pd, QPInitAttr(QPType.RD, scq=cq, addr=(address, 0), qkey=7))
        qp.to_rts()
        return pd, cq, qp, MR(pd, bytearray(4096))

    a, b = end("10.0.0.1"), end("10.0.0.2")

    def receive():
        for i in range(32):
            b[2].post_recv(RecvWR(i, sg=[b[3].sge(0, 64)]))
        n = 0
        while n < 30:
            n += len(b[1].wait())

    def send():
        ah = AH(a[0], b[2].addr)
        for i in range(30):
            a[2].post_send(SendWR(i, sg=[a[3].sge(0, 64)], ah=ah))
        n = 0
        while n < 30:
            n += len(a[1].wait())

    world.spawn(receive)
    world.spawn(send)
    world.run_tasks()
    print(f"{world.trace_hash:016x} {world.now_ns}")
"""


def run_program(path: Path, seed: int, hash_seed: str) -> str:
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(path), str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_seed_is_the_same_run_in_every_process(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    runs = {run_program(path, 7, hash_seed) for hash_seed in ("0", "1", "4711")}
    assert len(runs) == 1
    assert run_program(path, 8, "0") not in runs


def test_plans_of_the_machines_network_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Error, match=r"use world\.faults"), siwarp.faults("loss=1%"):
        pass
    monkeypatch.setenv("SIWARP_FAULTS", "loss=1%")
    with pytest.raises(Error, match=r"unset it.*world\.faults"):
        World()


def test_the_clocks_of_pyverbs_are_the_worlds(world: World) -> None:
    world.device("10.0.0.1")
    world.run_for("1h")
    with pyverbs.Context(name="siw_sim0") as context:
        _, raw = context.query_rt_values_ex() or (0, 0)
        assert raw == world.now_ns + 1_000 * 10**9
        assert world.run_for("1ms") is None
        _, later = context.query_rt_values_ex() or (0, 0)
        assert later - raw == 1_000_000


def test_tasks_of_a_host_that_crashes_end_and_others_fail(world: World) -> None:
    device = world.device("10.0.0.1")
    channel = CompChannel(device)
    killed = world.spawn(channel.get_cq_event, on=device)
    world.run_for("1s")
    world.crash(device)
    world.run_for("1s")
    with pytest.raises(StateError) as error:
        killed.result()
    assert error.value.errno == errno.ESTALE
    world.spawn(channel.get_cq_event)
    with pytest.raises(StateError):
        world.run_for("1s")


def test_a_world_that_runs_costs_no_switch_at_each_instant(world: World) -> None:
    def work() -> None:
        for _ in range(1000):
            world.sleep("1us")

    task = world.spawn(work)
    world.run_until(task.done, within="10ms")
    world.spawn(work)
    world.run_tasks(within="10ms")
    world.spawn(work)
    world.run_for("10ms")
    assert world.stats.instants >= 3000
    # One switch to each task, and one back at its end.
    assert world.stats.switches <= 12


def test_a_condition_of_the_program_is_called_at_each_instant(world: World) -> None:
    seen: list[int] = []

    def look() -> bool:
        seen.append(world.now_ns)
        return world.now_ns >= 5000

    world.spawn(lambda: [world.sleep("1us") for _ in range(10)])
    world.run_until(look)
    assert seen == [0, 1000, 2000, 3000, 4000, 5000]


def test_an_event_loop_hears_of_more_descriptors_than_one_wait_reports(world: World) -> None:
    wakers = [system.waker() for _ in range(600)]
    heard: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def hear(i: int) -> None:
            heard.append(i)
            loop.remove_reader(wakers[i])

        for i, waker in enumerate(wakers):
            loop.add_reader(waker, hear, i)
            waker.wake()
        await asyncio.sleep(1)

    world.run(main())
    for waker in wakers:
        waker.close()
    assert heard == list(range(600))


@pytest.mark.skipif("SIM_LAYERS" in os.environ, reason="tests/sim/rd is in the same run")
def test_these_tests_run_on_the_library_that_is_installed() -> None:
    module = sys.modules["siwarp._siwarp_sim"]
    assert Path(str(module.__file__)).name.startswith("_siwarp_sim.")
