"""The STag table: lookups, refused accesses, and freeing."""

from __future__ import annotations

import errno
import threading
import time
from itertools import pairwise

import pytest
from _siwarp_layers import ffi, lib
from hypothesis import given
from hypothesis import strategies as st
from unit.ddp.ddp_harness import PD, DdpPoller, Memory, Sge, StreamError, open_ddp_poller

WRITE, READ = lib.SIW_MEM_REMOTE_WRITE, lib.SIW_MEM_REMOTE_READ
DDP, TAGGED = lib.SIW_LAYER_DDP, lib.SIW_DDP_TAGGED_BUFFER
INVALID = (DDP, TAGGED, lib.SIW_DDP_INVALID_STAG)
BOUNDS = (DDP, TAGGED, lib.SIW_DDP_BOUNDS)
NOT_OF_STREAM = (DDP, TAGGED, lib.SIW_DDP_STAG_NOT_OF_STREAM)
WRAP = (DDP, TAGGED, lib.SIW_DDP_TO_WRAP)
ACCESS = (lib.SIW_LAYER_RDMAP, lib.SIW_RDMAP_REMOTE_PROTECTION, lib.SIW_RDMAP_ACCESS)
TOP = 2**64


def test_an_stag_and_an_offset_resolve_to_the_registered_memory(layer_poller: DdpPoller) -> None:
    m = layer_poller.register_new_memory(1000, to_base=5000)
    assert layer_poller.look_up_stag(m.stag, WRITE, 5000, 1000) == [(m.addr, 1000)]
    assert layer_poller.look_up_stag(m.stag, WRITE, 5999, 1) == [(m.addr + 999, 1)]


@pytest.mark.parametrize(
    ("to", "length"), [(4999, 1), (4999, 1001), (5000, 1001), (5999, 2), (6000, 1), (0, 1)]
)
def test_a_range_that_is_not_completely_inside_the_region_is_a_bounds_error(
    layer_poller: DdpPoller, to: int, length: int
) -> None:
    m = layer_poller.register_new_memory(1000, to_base=5000)
    assert layer_poller.look_up_stag(m.stag, WRITE, to, length) == BOUNDS


def test_a_range_past_the_largest_tagged_offset_is_a_wrap_error(layer_poller: DdpPoller) -> None:
    m = layer_poller.register_new_memory(1000, to_base=TOP - 1000)
    # the range ends at 2**64, which wraps around to 0
    assert layer_poller.look_up_stag(m.stag, WRITE, TOP - 1, 1) == WRAP
    assert layer_poller.look_up_stag(m.stag, WRITE, TOP - 2, 1) == [(m.addr + 998, 1)]
    assert layer_poller.look_up_stag(m.stag, WRITE, TOP - 1, 3) == WRAP


def test_the_first_failed_check_of_an_stag_lookup_determines_the_error(
    layer_poller: DdpPoller,
) -> None:
    m = layer_poller.register_new_memory(100, rights=lib.SIW_MEM_LOCAL_READ)
    assert layer_poller.look_up_stag(m.stag ^ 1, WRITE, 999, 9, pd=PD + 1) == INVALID
    assert layer_poller.look_up_stag(m.stag, WRITE, 999, 9, pd=PD + 1) == NOT_OF_STREAM
    assert layer_poller.look_up_stag(m.stag, WRITE, 999, 9) == ACCESS
    layer_poller.assign_stag_to_memory(m)
    assert layer_poller.look_up_stag(m.stag, WRITE, 999, 9) == BOUNDS


@pytest.mark.parametrize("rights", range(32))
def test_each_access_right_of_an_stag_is_checked_separately(
    layer_poller: DdpPoller, rights: int
) -> None:
    m = layer_poller.register_new_memory(10, rights=rights)
    for right in (1, 2, 4, 8, 16):
        got = layer_poller.look_up_stag(m.stag, right, 0, 10)
        assert got == ([(m.addr, 10)] if rights & right else ACCESS)


def test_a_lookup_of_length_0_checks_nothing(layer_poller: DdpPoller) -> None:
    assert layer_poller.look_up_stag(0, WRITE, TOP - 1, 0) == []
    assert layer_poller.look_up_stag(12345, WRITE, 0, 0, pd=99) == []


def test_an_stag_of_one_stream_is_refused_for_other_streams(layer_poller: DdpPoller) -> None:
    one, other = layer_poller.create_receiver(), layer_poller.create_receiver()
    m = layer_poller.register_new_memory(10, stream=one)
    assert layer_poller.look_up_stag(m.stag, WRITE, 0, 10, stream=one) == [(m.addr, 10)]
    assert layer_poller.look_up_stag(m.stag, WRITE, 0, 10, stream=other) == NOT_OF_STREAM
    assert layer_poller.look_up_stag(m.stag, WRITE, 0, 10) == NOT_OF_STREAM


def test_a_freed_stag_is_invalid_and_cannot_be_freed_again(layer_poller: DdpPoller) -> None:
    m = layer_poller.register_new_memory(10)
    assert layer_poller.free_stag(m.stag) == 0
    assert layer_poller.look_up_stag(m.stag, WRITE, 0, 1) == INVALID
    assert layer_poller.free_stag(m.stag) == -errno.ENOENT


@pytest.mark.parametrize("stag", [0, 1, 2**32 - 1])
def test_an_stag_that_was_never_allocated_is_invalid(layer_poller: DdpPoller, stag: int) -> None:
    assert layer_poller.look_up_stag(stag, WRITE, 0, 1) == INVALID
    assert layer_poller.free_stag(stag) == -errno.ENOENT


def test_stags_are_unique_and_never_zero(layer_poller: DdpPoller) -> None:
    memories = [
        layer_poller.register_new_memory(1) for _ in range(5000)
    ]  # more STags than one chunk of the table holds
    stags = {m.stag for m in memories}
    assert len(stags) == 5000
    assert 0 not in stags
    assert all(layer_poller.look_up_stag(m.stag, WRITE, 0, 1) == [(m.addr, 1)] for m in memories)


def test_a_freed_stag_value_is_not_reused_within_20000_allocations(layer_poller: DdpPoller) -> None:
    seen = set()
    for _ in range(20_000):
        m = layer_poller.register_new_memory(1)
        assert m.stag not in seen
        seen.add(m.stag)
        layer_poller.free_stag(m.stag)


def test_stags_are_unpredictable_and_differ_between_two_pollers(layer_poller: DdpPoller) -> None:
    with open_ddp_poller() as other:
        ours = [layer_poller.register_new_memory(1).stag for _ in range(64)]
        theirs = [other.register_new_memory(1).stag for _ in range(64)]
    assert not set(ours) & set(theirs)
    steps = {b - a for a, b in pairwise(ours)}
    assert len(steps) > 32, "the next STag can be predicted from the previous one"


def test_freeing_an_stag_waits_for_an_access_in_progress(layer_poller: DdpPoller) -> None:
    m = layer_poller.register_new_memory(10)
    iov, err = ffi.new("struct iovec[1]"), ffi.new("struct siw_wire_err *")
    got = lib.siw_mem_stag_acquire(
        layer_poller.mem, m.stag, PD, ffi.NULL, WRITE, 0, 10, iov, 1, err
    )
    assert got == 1
    done = threading.Event()

    def free_stag_in_thread() -> None:
        assert layer_poller.free_stag(m.stag) == 0
        done.set()

    thread = threading.Thread(target=free_stag_in_thread)
    thread.start()
    while layer_poller.look_up_stag(m.stag, WRITE, 0, 1) != INVALID:
        time.sleep(0.001)
    assert not done.wait(0.05), "the STag was freed while a reference was held"
    lib.siw_mem_stag_release(layer_poller.mem, m.stag)
    assert done.wait(10)
    thread.join()


def test_concurrent_lookups_and_frees_of_stags_are_consistent(layer_poller: DdpPoller) -> None:
    stop = threading.Event()
    current = [layer_poller.register_new_memory(8)]
    failures: list[str] = []

    def look_up_stag_until_stopped() -> None:
        while not stop.is_set():
            m = current[0]
            got = layer_poller.look_up_stag(m.stag, WRITE, 0, 8)
            if got not in (INVALID, [(m.addr, 8)]):
                failures.append(f"{got} for {m.stag:#x}")

    threads = [threading.Thread(target=look_up_stag_until_stopped) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2000):
            old, current[0] = current[0], layer_poller.register_new_memory(8)
            assert layer_poller.free_stag(old.stag) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


# ---- a scatter/gather list under an STag


def test_an_stag_of_a_scatter_list_has_one_continuous_range_of_offsets(
    layer_poller: DdpPoller,
) -> None:
    a, b = layer_poller.register_new_memory(10), layer_poller.register_new_memory(20)
    array = ffi.new("struct siw_sge[]", 2)
    for sge, m in zip(array, (a, b), strict=True):
        sge.addr, sge.length, sge.lkey = m.sge()
    region = ffi.new(
        "struct siw_mem_region *",
        {"length": 30, "sgl": array, "nsge": 2, "rights": lib.SIW_MEM_READ_SINK, "pd": PD},
    )
    stag = ffi.new("uint32_t *")
    assert lib.siw_mem_stag_alloc(layer_poller.mem, region, stag) == 0
    sink = lib.SIW_MEM_READ_SINK
    assert layer_poller.look_up_stag(stag[0], sink, 0, 30) == [(a.addr, 10), (b.addr, 20)]
    assert layer_poller.look_up_stag(stag[0], sink, 5, 10) == [(a.addr + 5, 5), (b.addr, 5)]
    assert layer_poller.look_up_stag(stag[0], sink, 25, 5) == [(b.addr + 15, 5)]
    assert layer_poller.look_up_stag(stag[0], sink, 25, 6) == BOUNDS
    layer_poller.free_stag(b.stag)
    catastrophic = (DDP, lib.SIW_DDP_LOCAL_CATASTROPHIC, 0)
    assert layer_poller.look_up_stag(stag[0], sink, 5, 10) == catastrophic


# ---- local scatter/gather elements


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=16),
    data=st.data(),
)
def test_any_part_of_a_scatter_gather_list_resolves_to_its_addresses(
    sizes: list[int], data: st.DataObject
) -> None:
    with open_ddp_poller() as layer_poller:
        memories = [layer_poller.register_new_memory(n) for n in sizes]
        offset = data.draw(st.integers(0, sum(sizes)))
        length = data.draw(st.integers(0, sum(sizes) - offset))
        got = layer_poller.resolve_sgl(
            [m.sge() for m in memories], write=True, offset=offset, length=length
        )
        octets = [m.addr + i for m in memories for i in range(m.size)]
        want = octets[offset : offset + length]
        assert [a + i for a, n in got for i in range(n)] == want


@pytest.mark.parametrize(
    ("rights", "write", "allowed"),
    [
        (lib.SIW_MEM_LOCAL_READ, False, True),
        (lib.SIW_MEM_LOCAL_READ, True, False),
        (lib.SIW_MEM_LOCAL_READ | lib.SIW_MEM_LOCAL_WRITE, True, True),
        (lib.SIW_MEM_REMOTE_WRITE | lib.SIW_MEM_LOCAL_READ, True, False),
        (lib.SIW_MEM_READ_SINK, True, False),
        (lib.SIW_MEM_READ_SINK, False, False),
    ],
)
def test_a_scatter_gather_element_requires_the_local_access_right(
    layer_poller: DdpPoller, rights: int, write: bool, allowed: bool
) -> None:
    m = layer_poller.register_new_memory(10, rights=rights)
    if allowed:
        assert layer_poller.resolve_sgl([m.sge()], write=write) == [(m.addr, 10)]
    else:
        with pytest.raises(StreamError, match="EACCES"):
            layer_poller.resolve_sgl([m.sge()], write=write)


def _invalid_sges(m: Memory) -> list[Sge]:
    return [
        (m.base - 1, 5, m.stag),
        (m.base, m.size + 1, m.stag),
        (m.base + m.size, 1, m.stag),
        (m.base + m.size - 1, 2, m.stag),
        (m.base, 5, m.stag ^ 0x100),
        (m.base, 5, 0),
        (2**64 - 4, 8, m.stag),
    ]


@pytest.mark.parametrize("which", range(7))
def test_an_element_outside_its_region_or_with_a_wrong_key_is_refused(
    layer_poller: DdpPoller, which: int
) -> None:
    m = layer_poller.register_new_memory(100, to_base=5000)
    assert layer_poller.resolve_sgl([m.sge()], write=False) == [(m.addr, 100)]
    with pytest.raises(StreamError, match="EACCES"):
        layer_poller.resolve_sgl([_invalid_sges(m)[which]], write=False)


def test_a_key_of_another_protection_domain_is_refused(layer_poller: DdpPoller) -> None:
    m = layer_poller.register_new_memory(100)
    with pytest.raises(StreamError, match="EACCES"):
        layer_poller.resolve_sgl([m.sge()], write=False, pd=PD + 1)


def test_elements_in_the_librarys_own_memory_need_no_key(layer_poller: DdpPoller) -> None:
    m = Memory(10)
    assert layer_poller.resolve_sgl([m.sge()], write=True, internal=True) == [(m.addr, 10)]


def test_resolving_more_octets_than_the_list_has_is_refused(layer_poller: DdpPoller) -> None:
    m = layer_poller.register_new_memory(10)
    with pytest.raises(StreamError, match="EMSGSIZE"):
        layer_poller.resolve_sgl([m.sge()], write=False, length=11)
