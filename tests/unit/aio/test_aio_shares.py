"""Shares of a limited resource that each peer may use, and rates that each source may use."""

from __future__ import annotations

import asyncio

import pytest

from siwarp.aio.shares import Admission, RateLimit, Shares, ipv4_address_or_ipv6_prefix

A, B, C = ("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 1)


@pytest.mark.parametrize(
    ("address", "source"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8:1:2:3::4", 5), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5), "fe80::"),
    ],
)
def test_the_source_of_an_address_is_an_ipv4_address_or_an_ipv6_network(
    address: tuple[str, int], source: str
) -> None:
    assert ipv4_address_or_ipv6_prefix(address) == source


def acquire_slots_for_peers(shares: Shares, *peers: tuple[str, int], most: int = 1000) -> int:
    """Take slots for ``peers`` in turn and return how many slots were granted."""
    before = shares.used
    for _ in range(most):
        for peer in peers:
            if shares.may_acquire(peer):
                shares.acquire(peer)
    return shares.used - before


def test_a_peer_gets_a_quarter_and_a_source_three_quarters_of_a_limited_resource() -> None:
    shares = Shares(64)
    assert acquire_slots_for_peers(shares, A) == 16
    assert acquire_slots_for_peers(shares, B) == 1, "a peer without a slot did not get one slot"
    assert acquire_slots_for_peers(shares, *[("10.0.0.1", port) for port in range(3, 100)]) == 31
    assert shares.used == 48
    assert not shares.may_acquire(("10.0.0.1", 200))
    assert acquire_slots_for_peers(shares, C) == 1
    assert acquire_slots_for_peers(shares, *[(f"10.1.0.{i}", 1) for i in range(100)]) == 15
    assert shares.used == 64
    shares.release(A)
    assert not shares.may_acquire(A)
    assert shares.may_acquire(("10.2.0.1", 1))
    for peer in (*[A] * 15, B):
        shares.release(peer)
    assert shares.may_acquire(("10.0.0.1", 200))


def test_a_peer_beyond_its_share_waits_and_does_not_delay_other_peers() -> None:
    async def acquire_more_than_share() -> None:
        admission = Admission(16)
        for _ in range(4):
            await asyncio.wait_for(admission.acquire(A), 1)
        late = [asyncio.ensure_future(admission.acquire(A)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert not any(one.done() for one in late)
        await asyncio.wait_for(admission.acquire(B), 1)
        await asyncio.wait_for(admission.acquire(C), 1)
        late[0].cancel()
        await asyncio.sleep(0)
        for peer in (B, C, A):
            admission.release(peer)
        await asyncio.wait_for(late[1], 1)
        assert not late[2].done()
        admission.release(A)
        await asyncio.wait_for(late[2], 1)

    asyncio.run(acquire_more_than_share())


def test_each_source_has_a_separate_ration() -> None:
    ration = RateLimit(0.001, 3)
    assert [
        ration.try_consume(A),
        ration.try_consume(B),
        ration.try_consume(A),
        ration.try_consume(B),
    ] == [True] * 3 + [False]
    assert [ration.try_consume(C) for _ in range(4)] == [True] * 3 + [False]
    fast = RateLimit(1000, 1)
    assert fast.try_consume(A)
    for i in range(RateLimit.SOURCES):
        assert fast.try_consume((f"10.{i >> 8}.{i & 255}.9", 1))
