"""Failing allocations: calls report them, the seed determines them, requests are executed once."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sim import rc_harness

from siwarp.sim import World
from siwarp.verbs import AH, CQ, Error, QPState, QPType, SendFlag, SendWR, WCStatus, WROpcode


def test_a_call_fails_with_enomem_and_succeeds_after_memory_is_available_again() -> None:
    with World() as world:
        device = world.device("10.0.0.1")
        world.fail_memory(1_000_000)
        with pytest.raises(Error) as refused:
            CQ(device, 64)
        assert refused.value.errno == errno.ENOMEM
        world.fail_memory(0)
        assert CQ(device, 64).capacity >= 64
        assert world.stats.allocations_failed == 1


def create_queues_and_list_successes(seed: int) -> list[bool]:
    """Create queues while half of all allocations fail; return the success of each call."""
    found = []
    with World(seed) as world:
        device = world.device("10.0.0.1")
        world.fail_memory(500_000)
        for _ in range(32):
            try:
                CQ(device, 64).close()
            except Error:
                found.append(False)
            else:
                found.append(True)
    return found


def test_only_the_seed_determines_which_allocations_fail() -> None:
    first = create_queues_and_list_successes(1)
    assert first == create_queues_and_list_successes(1)
    assert create_queues_and_list_successes(2) != first
    assert {True, False} == set(first)


def test_a_rate_of_allocation_failures_above_one_million_is_refused() -> None:
    with World() as world, pytest.raises(Error) as refused:
        world.fail_memory(1_000_001)
    assert refused.value.errno == errno.EINVAL


def post_fetch_and_add(a: Any, b: Any, wr_id: int, **more: Any) -> None:
    """Add 1 to the first 8 octets of the memory of the peer."""
    a.qp.post_send(
        SendWR(
            wr_id,
            WROpcode.ATOMIC_FETCH_AND_ADD,
            sg=[a.mr.sge(8, 8)],
            remote=b.mr.remote(0, 8),
            compare_add=1,
            send_flags=SendFlag.SIGNALED,
            **more,
        )
    )


def counter_in_memory(b: Any) -> int:
    return int.from_bytes(bytes(b.mr.read(8)), "little")


@pytest.mark.parametrize("of_million", [300_000, 1_000_000])
def test_an_rc_responder_without_memory_for_a_response_ends_the_connection(of_million: int) -> None:
    with World(seed=7) as world:
        a, b = (rc_harness.End(world, f"10.0.0.{i}") for i in (1, 2))
        rc_harness.connect_by_cm(a, b)
        statuses = []
        while not statuses or statuses[-1] == WCStatus.SUCCESS:
            post_fetch_and_add(a, b, len(statuses))
            world.fail_memory(of_million)
            world.run_for("1ms")
            world.fail_memory(0)
            statuses += [
                wc.status for wc in a.wait_for_sends()
            ]  # the request completes in any case
        assert statuses[-1] == WCStatus.WR_FLUSH_ERR
        assert a.state == QPState.ERR
        assert counter_in_memory(b) in (len(statuses) - 1, len(statuses))


@pytest.fixture(name="world")
def seeded_world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(request.param) as world:
        yield world


@pytest.mark.parametrize("world", range(1, 6), indirect=True)
def test_an_rd_atomic_is_executed_once_although_memory_for_its_response_is_missing(
    world: World, create_rdma_endpoint: Callable[..., Any]
) -> None:
    a, b = (create_rdma_endpoint(world.device(f"10.0.0.{i}"), QPType.RD) for i in (1, 2))
    for one in (a, b):
        one.qp.to_rts()
    handle = AH(a.pd, b.qp.addr)
    lost = 0
    for done in range(20):
        post_fetch_and_add(a, b, done, ah=handle)
        world.fail_memory(300_000)
        world.run_for("20ms")
        world.fail_memory(0)
        status = a.cq.wait(60)[0].status
        assert status in (WCStatus.SUCCESS, WCStatus.RETRY_EXC_ERR)
        lost += status != WCStatus.SUCCESS
        assert done + 1 - lost <= counter_in_memory(b) <= done + 1
        # The time is long enough that idle state is released and has to be allocated again.
        world.run_for("100s")
    assert world.stats.allocations_failed > 10
