"""Registrations of the program's memory: shared, bounded, and never kept after the memory."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from siwarp.base.buffer import octets
from siwarp.ulp.adts import registrations
from siwarp.ulp.adts.registrations import ProgramMemory, Registrations
from siwarp.verbs import MR, PD, Context


@pytest.fixture(name="pd")
def protection_domain() -> Iterator[PD]:
    with Context() as context:
        yield PD(context)


def program_memory_of_object(owner: Any) -> ProgramMemory:
    memory = ProgramMemory.find(owner, octets(owner))
    assert memory is not None
    return memory


def run_test_with_registration_cache(pd: PD, test: Callable[[Registrations], None]) -> None:
    async def call_with_new_cache() -> None:
        test(Registrations(pd))

    asyncio.run(call_with_new_cache())


def take_and_release_registration(cache: Registrations, owner: Any) -> MR:
    registration = cache.take(program_memory_of_object(owner))
    cache.release(registration)
    return registration.mr


def test_a_second_transfer_of_the_same_memory_finds_its_registration(pd: PD) -> None:
    array = np.zeros(70_000, np.uint8)

    def register_same_memory_twice(cache: Registrations) -> None:
        mr = take_and_release_registration(cache, array)
        assert (mr.addr, mr.length, mr.access) == (array.ctypes.data, 70_000, 0)
        assert take_and_release_registration(cache, array) is mr
        assert take_and_release_registration(cache, memoryview(array)) is mr
        assert take_and_release_registration(cache, array[1:]) is not mr

    run_test_with_registration_cache(pd, register_same_memory_twice)


def test_a_registration_does_not_keep_memory_and_ends_with_it(pd: PD) -> None:
    async def register_and_free_memory() -> None:
        cache = Registrations(pd)
        array = np.zeros(70_000, np.uint8)
        mr = take_and_release_registration(cache, array)
        assert (len(cache), mr.closed) == (1, False)
        del array
        assert len(cache) == 0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert mr.closed

    asyncio.run(register_and_free_memory())


def test_other_memory_at_the_same_address_has_a_registration_of_its_own(pd: PD) -> None:
    pages = mmap.mmap(-1, 1 << 16)

    def register_other_memory_at_same_address(cache: Registrations) -> None:
        first = np.frombuffer(pages, np.uint8)
        mr = take_and_release_registration(cache, first)
        del first
        second = np.frombuffer(pages, np.uint8)
        other = take_and_release_registration(cache, second)
        assert other is not mr
        assert (other.addr, other.length) == (mr.addr, mr.length)

    run_test_with_registration_cache(pd, register_other_memory_at_same_address)


def test_a_registration_in_use_ends_with_its_last_user(pd: PD) -> None:
    async def free_object_while_in_use() -> None:
        cache = Registrations(pd)
        array = np.zeros(70_000, np.uint8)
        part = array[:]
        registration = cache.take(program_memory_of_object(part))
        assert cache.take(program_memory_of_object(array)) is registration
        del part
        assert len(cache) == 0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cache.release(registration)
        assert not registration.mr.closed
        cache.release(registration)
        assert registration.mr.closed

    asyncio.run(free_object_while_in_use())


def test_registrations_that_were_used_longest_ago_are_dropped_first(
    pd: PD, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrations, "MAX_KEPT", 3)
    arrays = [np.zeros(10_000, np.uint8) for _ in range(5)]

    def register_more_arrays_than_are_kept(cache: Registrations) -> None:
        mrs = [take_and_release_registration(cache, array) for array in arrays[:3]]
        take_and_release_registration(cache, arrays[0])
        take_and_release_registration(cache, arrays[3])
        assert [mr.closed for mr in mrs] == [False, True, False]
        held = cache.take(program_memory_of_object(arrays[2]))
        for array in (arrays[0], arrays[1], arrays[4], arrays[3]):
            take_and_release_registration(cache, array)
        assert not held.mr.closed  # in use
        assert len(cache) == 3
        cache.release(held)

    run_test_with_registration_cache(pd, register_more_arrays_than_are_kept)


def test_the_octets_of_kept_registrations_are_limited_but_for_the_last_one(
    pd: PD, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrations, "MAX_OCTETS", 100_000)
    small, large = np.zeros(50_000, np.uint8), np.zeros(200_000, np.uint8)

    def register_more_octets_than_are_kept(cache: Registrations) -> None:
        mrs = (
            take_and_release_registration(cache, small),
            take_and_release_registration(cache, large),
        )
        assert [mr.closed for mr in mrs] == [True, False]
        take_and_release_registration(cache, small)
        assert mrs[1].closed
        assert len(cache) == 1

    run_test_with_registration_cache(pd, register_more_octets_than_are_kept)


@pytest.mark.parametrize(
    "owner",
    [b"read-only", bytearray(100), memoryview(b"read-only"), np.zeros(0)],
    ids=["bytes", "bytearray", "read-only view", "empty"],
)
def test_memory_whose_end_or_address_is_not_known_is_not_registered(owner: Any) -> None:
    assert ProgramMemory.find(owner, octets(owner)) is None
