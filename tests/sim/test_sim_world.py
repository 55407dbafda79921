"""Simulated networks: time, tasks, event loops, and identical runs for the same seed."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest
from sim.seeded_program import check_that_a_seed_determines_the_run

import siwarp
import siwarp.pyverbs.device as pyverbs
from siwarp.base import system
from siwarp.sim import Deadlock, World
from siwarp.verbs import CompChannel, Context, Error, StateError, Timeout


def test_simulated_time_advances_only_while_a_world_runs(world) -> None:
    assert world.now == 0
    world.run_for("10min")
    assert world.now == 600
    world.run_for(0.5)
    assert world.now_ns == 600_500_000_000


def test_the_seed_determines_the_order_of_tasks() -> None:
    def order_in_which_tasks_ran(seed: int) -> list[int]:
        done: list[int] = []
        with World(seed) as world:

            def yield_and_append_number(which: int) -> None:
                for _ in range(3):
                    world.sleep(0)
                    done.append(which)

            for which in range(4):
                world.spawn(yield_and_append_number, which)
            world.run_tasks()
        return done

    assert order_in_which_tasks_ran(1) == order_in_which_tasks_ran(1)
    assert len({tuple(order_in_which_tasks_ran(seed)) for seed in range(8)}) > 1


def test_run_until_returns_at_the_time_when_the_condition_becomes_true(world) -> None:
    task = world.spawn(lambda: world.sleep("3s") or "slept")
    world.run_until(task.done)
    assert (world.now, task.result()) == (3, "slept")


def test_run_until_names_the_waiting_tasks_when_it_times_out(world) -> None:
    world.spawn(world.sleep, "1h", name="sleeper")
    with pytest.raises(Timeout, match="within 5s, and these tasks wait: sleeper, seed 7"):
        world.run_until(lambda: False, within="5s")


def test_a_world_whose_tasks_all_wait_forever_raises_deadlock(world) -> None:
    lock = system.lock()
    lock.acquire()
    world.spawn(lock.acquire, name="locked")
    with pytest.raises((Deadlock, Timeout), match="locked"):
        world.run_until(lambda: False)


def test_an_exception_of_a_task_is_raised_by_run_for(world) -> None:
    def fail_after_a_second() -> None:
        world.sleep(1)
        raise KeyError("of the task")

    world.spawn(fail_after_a_second)
    with pytest.raises(KeyError, match="of the task"):
        world.run_for(10)
    assert world.now == 1


def test_a_lock_is_acquired_in_the_order_of_waiting_tasks(world) -> None:
    lock = system.rlock()
    got: list[int] = []

    def hold_lock_for_a_second(which: int) -> None:
        world.sleep(which * 0.001)
        with lock, lock:
            world.sleep(1)
            got.append(which)

    for which in range(4):
        world.spawn(hold_lock_for_a_second, which)
    world.run_tasks()
    assert got == [0, 1, 2, 3]
    assert world.now == pytest.approx(4)


def test_waiting_tasks_end_when_their_world_is_closed() -> None:
    with World() as world:
        tasks = [world.spawn(world.sleep, "100h") for _ in range(3)]
        world.run_for(1)
    assert all(task.done() for task in tasks)


def test_a_process_can_have_only_one_open_world(world) -> None:
    with pytest.raises(StateError, match="only one open world"):
        World()


def test_addresses_of_a_world_are_invalid_after_it_is_closed() -> None:
    with World() as world:
        world.device("10.0.0.1")
        world.run_for(1)
    with pytest.raises(Error, match="no device has this address"):
        Context("10.0.0.1")
    assert world.now == 1.0


def test_an_invalid_fault_plan_is_refused(world) -> None:
    with pytest.raises(Error, match="loss"):
        world.faults("loss=many")


def test_an_event_loop_in_a_world_uses_simulated_time(world) -> None:
    async def sleep_in_task_and_thread() -> list[object]:
        async def sleep_an_hour() -> str:
            await asyncio.sleep(3600)
            return "an hour"

        thread = asyncio.to_thread(lambda: world.sleep(5) or "five")
        return await asyncio.gather(sleep_an_hour(), thread)

    assert world.run(sleep_in_task_and_thread()) == ["an hour", "five"]
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


def test_a_seed_produces_the_same_world_in_every_process(tmp_path: Path) -> None:
    check_that_a_seed_determines_the_run(PROGRAM, tmp_path)


def test_fault_plans_for_real_networks_are_refused_with_a_world(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Error, match=r"use world\.faults"), siwarp.faults("loss=1%"):
        pass
    monkeypatch.setenv("SIWARP_FAULTS", "loss=1%")
    with pytest.raises(Error, match=r"unset it.*world\.faults"):
        World()


def test_pyverbs_clocks_show_simulated_time(world: World) -> None:
    world.device("10.0.0.1")
    world.run_for("1h")
    with pyverbs.Context(name="siw_sim0") as context:
        _, raw = context.query_rt_values_ex() or (0, 0)
        assert raw == world.now_ns + 1_000 * 10**9
        assert world.run_for("1ms") is None
        _, later = context.query_rt_values_ex() or (0, 0)
        assert later - raw == 1_000_000


def test_tasks_of_a_crashed_host_end_and_tasks_of_other_hosts_raise_an_error(world: World) -> None:
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


def test_a_world_runs_many_instants_with_few_task_switches(world: World) -> None:
    def sleep_repeatedly() -> None:
        for _ in range(1000):
            world.sleep("1us")

    task = world.spawn(sleep_repeatedly)
    world.run_until(task.done, within="10ms")
    world.spawn(sleep_repeatedly)
    world.run_tasks(within="10ms")
    world.spawn(sleep_repeatedly)
    world.run_for("10ms")
    assert world.stats.instants >= 3000
    # The expected switches are one to each task and one back at the end of each task.
    assert world.stats.switches <= 12


def test_the_condition_of_run_until_is_called_at_each_simulated_instant(world: World) -> None:
    seen: list[int] = []

    def record_time_and_check_end() -> bool:
        seen.append(world.now_ns)
        return world.now_ns >= 5000

    world.spawn(lambda: [world.sleep("1us") for _ in range(10)])
    world.run_until(record_time_and_check_end)
    assert seen == [0, 1000, 2000, 3000, 4000, 5000]


def test_an_event_loop_services_more_descriptors_than_one_wait_reports(world: World) -> None:
    wakers = [system.waker() for _ in range(600)]
    heard: list[int] = []

    async def register_wakers_and_wake_all() -> None:
        loop = asyncio.get_running_loop()

        def record_wakeup(i: int) -> None:
            heard.append(i)
            loop.remove_reader(wakers[i])

        for i, waker in enumerate(wakers):
            loop.add_reader(waker, record_wakeup, i)
            waker.wake()
        await asyncio.sleep(1)

    world.run(register_wakers_and_wake_all())
    for waker in wakers:
        waker.close()
    assert heard == list(range(600))


@pytest.mark.skipif("SIM_LAYERS" in os.environ, reason="tests/sim/rd is in the same run")
def test_the_installed_simulation_library_is_tested() -> None:
    module = sys.modules["siwarp._siwarp_sim"]
    assert Path(str(module.__file__)).name.startswith("_siwarp_sim.")
