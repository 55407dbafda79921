"""STags that are reserved first and bound later, and STags whose key octet the owner chooses."""

from __future__ import annotations

import errno
import threading
from itertools import pairwise

import pytest
from _siwarp_layers import ffi, lib
from unit.ddp.ddp_harness import PD, DdpPoller, Memory

WRITE = lib.SIW_MEM_REMOTE_WRITE
INVALID = (lib.SIW_LAYER_DDP, lib.SIW_DDP_TAGGED_BUFFER, lib.SIW_DDP_INVALID_STAG)
TOP = 1 << 31


def reserve_stag(layer_poller: DdpPoller, window: bool) -> int:
    stag = ffi.new("uint32_t *")
    assert lib.siw_mem_stag_reserve(layer_poller.mem, window, stag) == 0
    return int(stag[0])


def bind_memory_window(
    layer_poller: DdpPoller, stag: int, m: Memory, length: int | None = None
) -> int:
    region = ffi.new("struct siw_mem_region *")
    region.addr = ffi.cast("uint8_t *", m.addr)
    region.length = m.size if length is None else length
    region.rights = WRITE | lib.SIW_MEM_REMOTE_INVALIDATE
    region.pd = PD
    return int(lib.siw_mem_stag_bind(layer_poller.mem, stag, region))


def stag_is_valid(layer_poller: DdpPoller, stag: int) -> bool:
    return bool(lib.siw_mem_is_stag_valid(layer_poller.mem, stag))


@pytest.mark.parametrize("window", [False, True])
def test_a_reserved_stag_is_invalid_until_it_is_bound(
    layer_poller: DdpPoller, window: bool
) -> None:
    stag, m = reserve_stag(layer_poller, window), layer_poller.register_new_memory(100)
    assert (
        not stag_is_valid(layer_poller, stag)
        and layer_poller.look_up_stag(stag, WRITE, 0, 1) == INVALID
    )
    assert bind_memory_window(layer_poller, stag, m, 50) == 0
    assert stag_is_valid(layer_poller, stag) and layer_poller.look_up_stag(stag, WRITE, 0, 50) == [
        (m.addr, 50)
    ]
    assert bind_memory_window(layer_poller, stag, m) == -errno.EBUSY
    assert layer_poller.free_stag(stag) == 0
    assert (
        not stag_is_valid(layer_poller, stag)
        and layer_poller.look_up_stag(stag, WRITE, 0, 1) == INVALID
    )
    assert (
        bind_memory_window(layer_poller, stag, m) == layer_poller.free_stag(stag) == -errno.ENOENT
    )


def test_a_window_may_be_bound_with_any_key_octet_and_is_found_only_with_that_one(
    layer_poller: DdpPoller,
) -> None:
    base, m = reserve_stag(layer_poller, True), layer_poller.register_new_memory(100)
    assert base & 0xFF == 0 and base & TOP
    last = base
    for octet in range(256):
        stag = base | octet
        assert bind_memory_window(layer_poller, stag, m, octet + 1) == 0
        for other in (last, base | (octet + 1) % 256, base ^ 0x100 | octet):
            assert (other == stag) is stag_is_valid(layer_poller, other)
            assert (layer_poller.look_up_stag(other, WRITE, 0, 1) == INVALID) is (other != stag)
        assert bind_memory_window(layer_poller, base | (octet + 7) % 256, m) == -errno.EBUSY
        assert layer_poller.free_stag(base | (octet + 7) % 256) == -errno.ENOENT
        assert lib.siw_mem_stag_invalidate(layer_poller.mem, stag, ffi.NULL) == 0
        assert layer_poller.look_up_stag(stag, WRITE, 0, 1) == INVALID
        last = stag
    assert layer_poller.free_stag(last) == 0


def test_a_reserved_stag_that_is_no_window_can_be_bound_only_with_its_own_key(
    layer_poller: DdpPoller,
) -> None:
    stag, m = reserve_stag(layer_poller, False), layer_poller.register_new_memory(100)
    assert not stag & TOP
    assert bind_memory_window(layer_poller, stag ^ 1, m) == -errno.ENOENT
    assert bind_memory_window(layer_poller, stag, m) == 0


def test_stags_of_windows_and_of_regions_are_never_equal(layer_poller: DdpPoller) -> None:
    """Windows reuse indexes that regions have freed, and regions those that windows freed."""
    windows: set[int] = set()
    regions: set[int] = set()
    for turn in range(6):
        mine = [reserve_stag(layer_poller, True) for _ in range(600)]
        other = [layer_poller.register_new_memory(1).stag for _ in range(600)]
        assert len({s >> 8 for s in mine}) == 600
        assert not any(s & TOP for s in other)
        assert not regions & set(other), turn
        windows |= {s >> 8 for s in mine}
        regions |= set(other)
        for stag in mine + other:
            assert layer_poller.free_stag(stag) == 0
    assert len(regions) == 3600
    assert len(windows) > 1800  # window keys have 3 generation bits, so some keys recur


def test_window_keys_are_unpredictable(layer_poller: DdpPoller) -> None:
    keys = [reserve_stag(layer_poller, True) >> 8 for _ in range(64)]
    steps = {b - a for a, b in pairwise(keys)}
    assert len(steps) > 32


def test_binding_a_window_waits_for_an_access_through_its_previous_binding(
    layer_poller: DdpPoller,
) -> None:
    base, m, other = (
        reserve_stag(layer_poller, True),
        layer_poller.register_new_memory(100),
        layer_poller.register_new_memory(200),
    )
    assert bind_memory_window(layer_poller, base | 5, m) == 0
    iov, err = ffi.new("struct iovec[1]"), ffi.new("struct siw_wire_err *")
    got = lib.siw_mem_stag_acquire(
        layer_poller.mem, base | 5, PD, ffi.NULL, WRITE, 0, 10, iov, 1, err
    )
    assert got == 1
    ends = [
        threading.Thread(
            target=lib.siw_mem_stag_invalidate, args=(layer_poller.mem, base | 5, ffi.NULL)
        )
    ]
    ends[0].start()
    while stag_is_valid(layer_poller, base | 5):
        pass
    done = threading.Event()
    ends.append(
        threading.Thread(
            target=lambda: bind_memory_window(layer_poller, base | 6, other) or done.set()
        )
    )
    ends[1].start()
    assert not done.wait(0.02)
    lib.siw_mem_stag_release(layer_poller.mem, base | 5)
    assert done.wait(10)
    for thread in ends:
        thread.join()
    assert layer_poller.look_up_stag(base | 6, WRITE, 0, 200) == [(other.addr, 200)]
    assert layer_poller.look_up_stag(base | 5, WRITE, 0, 1) == INVALID


def test_a_window_that_is_rebound_repeatedly_is_never_found_partly_bound(
    layer_poller: DdpPoller,
) -> None:
    base, small, large = (
        reserve_stag(layer_poller, True),
        layer_poller.register_new_memory(10),
        layer_poller.register_new_memory(1000),
    )
    stop = threading.Event()
    odd: list[object] = []

    def look_up_stag_until_stopped() -> None:
        while not stop.is_set():
            for octet, m in ((1, small), (2, large)):
                got = layer_poller.look_up_stag(base | octet, WRITE, 0, m.size)
                if got not in (INVALID, [(m.addr, m.size)]):
                    odd.append(got)

    threads = [threading.Thread(target=look_up_stag_until_stopped) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(2000):
        octet, m = (1, small) if i % 2 else (2, large)
        assert bind_memory_window(layer_poller, base | octet, m) == 0
        assert lib.siw_mem_stag_invalidate(layer_poller.mem, base | octet, ffi.NULL) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert not odd
