"""Memory regions: the pages checked at registration, the keys, and when keys become invalid."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
from collections.abc import Iterator

import pytest
from harness.verbs_harness import ALL_ACCESS, Pair, Rig, errno_raised_by, poll

from siwarp._siwarp import ffi, lib
from siwarp.verbs import MR, PD, SGE, AccessFlag, RecvWR, SendWR, WCStatus

PAGE = mmap.PAGESIZE
LOCAL, REMOTE_W, REMOTE_R = AccessFlag.LOCAL_WRITE, AccessFlag.REMOTE_WRITE, AccessFlag.REMOTE_READ
PROT_NONE, PROT_READ, PROT_RW = 0, 1, 3

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MAP_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # 0x4000 is MAP_NORESERVE


class GuardedPages:
    """Four consecutive pages, of which the outer two are inaccessible.

    The test sets the protection of the two inner pages. The outer pages are mapped, so that no
    other mapping can be placed at their addresses.
    """

    def __init__(self, prot: int) -> None:
        self.base = libc.mmap(None, 4 * PAGE, PROT_NONE, MAP_FLAGS, -1, 0)
        assert self.base not in (None, ctypes.c_void_p(-1).value)
        self.first = self.base + PAGE
        self.end = self.base + 3 * PAGE
        assert libc.mprotect(self.first, 2 * PAGE, prot) == 0

    def close(self) -> None:
        libc.munmap(self.base, 4 * PAGE)


@pytest.fixture(name="pages")
def guarded_pages(request: pytest.FixtureRequest) -> Iterator[GuardedPages]:
    made = GuardedPages(request.param)
    yield made
    made.close()


def errno_of_registration(rig: Rig, address: int, length: int, access: int) -> int:
    """Register and deregister a memory region; return 0 or the errno of the registration."""
    mr = lib.siw_reg_mr(rig.pd._c_object(), ffi.cast("void *", address), length, access)
    if not mr:
        return int(ffi.errno)
    assert (int(ffi.cast("uintptr_t", mr.addr)), mr.length) == (address, length)
    assert mr.lkey == mr.rkey != 0
    assert lib.siw_dereg_mr(mr) == 0
    return 0


@pytest.mark.parametrize("pages", [PROT_RW], indirect=True)
@pytest.mark.parametrize("access", [0, LOCAL, REMOTE_R, LOCAL | REMOTE_W, ALL_ACCESS])
def test_a_region_whose_first_or_last_page_is_not_mapped_is_refused(
    rig: Rig, pages: GuardedPages, access: int
) -> None:
    assert errno_of_registration(rig, pages.first, 2 * PAGE, access) == 0
    assert errno_of_registration(rig, pages.first, 1, access) == 0
    assert errno_of_registration(rig, pages.end - 1, 1, access) == 0
    assert errno_of_registration(rig, pages.first - 1, 1, access) == errno.EFAULT
    assert errno_of_registration(rig, pages.first - 1, 2, access) == errno.EFAULT
    assert errno_of_registration(rig, pages.end, 1, access) == errno.EFAULT
    # Nothing is ever mapped at the address PAGE.
    assert errno_of_registration(rig, PAGE, 1, access) == errno.EFAULT
    assert errno_of_registration(rig, pages.end - 1, 2, access) == errno.EFAULT
    assert errno_of_registration(rig, pages.first, 2 * PAGE + 1, access) == errno.EFAULT
    assert errno_of_registration(rig, 0, 1, access) == errno.EFAULT
    assert errno_of_registration(rig, 8, 100, access) == errno.EFAULT


@pytest.mark.parametrize("pages", [PROT_READ], indirect=True)
def test_read_only_memory_is_refused_only_with_local_write_access(
    rig: Rig, pages: GuardedPages
) -> None:
    assert errno_of_registration(rig, pages.first, 2 * PAGE, 0) == 0
    assert errno_of_registration(rig, pages.first, 2 * PAGE, REMOTE_R) == 0
    for access in (LOCAL, LOCAL | REMOTE_W, LOCAL | REMOTE_R, ALL_ACCESS):
        assert errno_of_registration(rig, pages.first, 2 * PAGE, access) == errno.EFAULT
        assert errno_of_registration(rig, pages.first + 5, 1, access) == errno.EFAULT


@pytest.mark.parametrize("pages", [PROT_NONE], indirect=True)
def test_registration_of_unreadable_memory_is_refused(rig: Rig, pages: GuardedPages) -> None:
    for access in (0, LOCAL, REMOTE_R, ALL_ACCESS):
        assert errno_of_registration(rig, pages.first, PAGE, access) == errno.EFAULT


@pytest.mark.parametrize("pages", [PROT_RW], indirect=True)
def test_a_read_only_page_at_either_end_of_a_region_is_detected(
    rig: Rig, pages: GuardedPages
) -> None:
    for page in (pages.first, pages.first + PAGE):
        assert libc.mprotect(page, PAGE, PROT_READ) == 0
        assert errno_of_registration(rig, pages.first, 2 * PAGE, LOCAL) == errno.EFAULT
        assert errno_of_registration(rig, pages.first, 2 * PAGE, 0) == 0
        assert libc.mprotect(page, PAGE, PROT_RW) == 0
    assert errno_of_registration(rig, pages.first, 2 * PAGE, LOCAL) == 0


def test_an_access_to_unmapped_pages_inside_a_region_fails(rig: Rig, ud_pair: Pair) -> None:
    """A registration pins no pages and probes only the first and the last page."""
    hole = libc.mmap(None, 5 * PAGE, PROT_RW, MAP_FLAGS, -1, 0)
    # PROT_NONE, because another mapping could be placed at an unmapped page.
    assert libc.mprotect(hole + 2 * PAGE, PAGE, PROT_NONE) == 0
    mr = lib.siw_reg_mr(rig.pd._c_object(), ffi.cast("void *", hole), 5 * PAGE, LOCAL)
    assert mr
    for offset, status in [
        (0, WCStatus.SUCCESS),
        (2 * PAGE, WCStatus.LOC_PROT_ERR),
        (2 * PAGE - 100, WCStatus.LOC_PROT_ERR),
        (3 * PAGE, WCStatus.SUCCESS),
    ]:
        there = SGE(hole + offset, 200, mr.lkey)
        ud_pair.post_receive()
        ud_pair.a.post_send(SendWR(1, sg=[there], ah=ud_pair.to_b))
        assert poll(ud_pair.scq)[0].status == status
        if status == WCStatus.SUCCESS:
            assert poll(ud_pair.rcq)[0].ok
        else:
            ud_pair.a.to_rts()
        back = ud_pair.rig.create_ud_qp(ud_pair.idle)
        back.post_recv(RecvWR(2, sg=[there]))
        ud_pair.a.post_send(SendWR(3, sg=[ud_pair.out.sge(0, 200)], ah=rig.create_ah(back)))
        assert poll(ud_pair.scq)[0].ok
        assert poll(ud_pair.idle)[0].status == status
        back.close()
    assert lib.siw_dereg_mr(mr) == 0
    libc.munmap(hole, 5 * PAGE)


@pytest.mark.parametrize("offset", range(9))
def test_registration_changes_no_octet_of_the_memory(rig: Rig, offset: int) -> None:
    memory = mmap.mmap(-1, 2 * PAGE)
    memory[:] = bytes(i & 0xFF for i in range(2 * PAGE))
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
    for access in (0, LOCAL, ALL_ACCESS):
        for length in (1, 7, PAGE, 2 * PAGE - offset):
            assert errno_of_registration(rig, address + offset, length, access) == 0
    assert memory[:] == bytes(i & 0xFF for i in range(2 * PAGE))


def test_a_region_of_zero_octets_needs_no_mapped_memory(rig: Rig) -> None:
    assert errno_of_registration(rig, 0, 0, ALL_ACCESS) == 0
    assert errno_of_registration(rig, 12345, 0, 0) == 0


@pytest.mark.parametrize(
    "access", [REMOTE_W, REMOTE_W | REMOTE_R, 8, 64, 1 << 30, REMOTE_W | 32, -1]
)
def test_registration_of_memory_with_invalid_access_flags_is_refused(rig: Rig, access: int) -> None:
    memory = ffi.new("char[64]")
    assert (
        errno_of_registration(rig, int(ffi.cast("uintptr_t", memory)), 64, access) == errno.EINVAL
    )


def test_region_lengths_that_overflow_or_exceed_max_mr_size_are_refused(rig: Rig) -> None:
    memory = ffi.new("char[64]")
    here = int(ffi.cast("uintptr_t", memory))
    most = rig.ctx.query_device().max_mr_size
    assert errno_of_registration(rig, here, most + 1, 0) == errno.EINVAL
    assert errno_of_registration(rig, here, 2**64 - 1, 0) == errno.EINVAL
    assert errno_of_registration(rig, here, most, 0) in (errno.EFAULT, errno.EINVAL)


def test_the_last_octet_of_a_region_of_one_tebibyte_can_be_sent(rig: Rig, ud_pair: Pair) -> None:
    size = 1 << 40
    base = libc.mmap(None, size, PROT_RW, MAP_FLAGS, -1, 0)
    assert base not in (None, ctypes.c_void_p(-1).value)
    try:
        mr = lib.siw_reg_mr(rig.pd._c_object(), ffi.cast("void *", base), size, LOCAL)
        assert mr
        ctypes.memset(base + size - 1, 0x77, 1)
        ud_pair.post_receive()
        ud_pair.a.post_send(SendWR(1, sg=[SGE(base + size - 1, 1, mr.lkey)], ah=ud_pair.to_b))
        assert poll(ud_pair.rcq)[0].ok and ud_pair.into.read(1) == b"\x77"
        assert lib.siw_dereg_mr(mr) == 0
    finally:
        libc.munmap(base, size)


@pytest.mark.clause("RFC5040-8.1.1-09", "RFC5040-8.1.1-10")
def test_region_keys_are_unpredictable_and_are_not_reused_soon(rig: Rig) -> None:
    memory = bytearray(16)
    mrs = [rig.reg_mr(memory) for _ in range(500)]
    keys = [mr.lkey for mr in mrs]
    assert len(set(keys)) == 500 and 0 not in keys
    steps = {b - a for a, b in itertools.pairwise(keys)}
    assert len(steps) > 100
    for mr in mrs:
        mr.close()
    again = []
    for _ in range(500):
        mr = rig.reg_mr(memory)
        again.append(mr.lkey)
        mr.close()
    assert len(set(again)) == 500
    assert not set(again) & set(keys)


def test_the_key_of_a_closed_region_stays_invalid_while_other_regions_are_registered(
    rig: Rig, ud_pair: Pair
) -> None:
    memory = bytearray(b"secret")
    mr = rig.reg_mr(memory)
    stale = SGE(mr.addr, 6, mr.lkey)
    mr.close()
    for i in range(300):
        fresh = rig.reg_mr(memory)
        ud_pair.a.post_send(SendWR(i, sg=[stale], ah=ud_pair.to_b))
        assert poll(ud_pair.scq)[0].status == WCStatus.LOC_PROT_ERR
        # The failed send has moved the queue pair to SQE.
        ud_pair.a.to_rts()
        fresh.close()


def test_a_receive_whose_region_was_deregistered_fails_and_writes_nothing(
    rig: Rig, ud_pair: Pair
) -> None:
    memory = bytearray(b"untouched")
    mr = rig.reg_mr(memory)
    ud_pair.b.post_recv(RecvWR(1, sg=[mr.sge()]))
    mr.close()
    ud_pair.send(b"intruder")
    assert poll(ud_pair.rcq)[0].status == WCStatus.LOC_PROT_ERR
    assert memory == b"untouched"


def test_two_regions_over_the_same_memory_have_separate_access_rights(
    rig: Rig, ud_pair: Pair
) -> None:
    memory = bytearray(8)
    ro, rw = rig.reg_mr(memory, 0), rig.reg_mr(memory)
    ud_pair.b.post_recv([RecvWR(1, sg=[ro.sge()]), RecvWR(2, sg=[rw.sge()])])
    ud_pair.send(b"one")
    assert poll(ud_pair.scq)[0].ok
    ud_pair.send(b"two")
    assert [(w.wr_id, w.ok) for w in poll(ud_pair.rcq, 2)] == [(1, False), (2, True)]
    assert memory[:3] == b"two"


def test_the_key_of_a_region_of_another_device_is_invalid(ud_pair: Pair) -> None:
    other = Rig()
    mr = MR(PD(other.ctx), bytearray(8))
    ud_pair.post_receive()
    ud_pair.a.post_send(SendWR(1, sg=[mr.sge()], ah=ud_pair.to_b))
    assert poll(ud_pair.scq)[0].status == WCStatus.LOC_PROT_ERR
    other.close()


def test_read_only_buffers_can_be_registered_only_for_reading(rig: Rig) -> None:
    assert errno_raised_by(rig.reg_mr, b"constant") == errno.EFAULT
    assert rig.reg_mr(b"constant", REMOTE_R).length == 8
