"""siw_trim_free_memory returns free memory to the system after many objects have been freed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from _siwarp_layers import ffi, lib

#: The number of objects whose release triggers siw_trim_free_memory.
CROWD = 1024
BLOCK = 16 << 10


class ObjectCounter:
    """A counter of objects for siw_trim_free_memory, initially zero."""

    def __init__(self) -> None:
        # The first call returns free memory of other tests.
        lib.siw_trim_free_memory()
        self._zeros = ffi.new("uint32_t[2]")
        self._crowd = ffi.cast("struct siw_trim_group *", self._zeros)

    def note_created_objects(self, n: int) -> None:
        for _ in range(n):
            lib.siw_trim_group_note_added(self._crowd)

    def note_freed_objects(self, n: int) -> bool:
        """Return whether no objects are left. n: at least 1."""
        return [lib.siw_trim_group_note_removed(self._crowd) for _ in range(n)][-1]


def resident_octets() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_siw_trim_returns_memory_once_after_three_quarters_of_many_objects_are_freed() -> None:
    crowd = ObjectCounter()
    crowd.note_created_objects(CROWD)
    crowd.note_freed_objects(CROWD * 3 // 4 - 1)
    assert not lib.siw_trim_free_memory()
    crowd.note_freed_objects(1)
    assert lib.siw_trim_free_memory()
    crowd.note_freed_objects(CROWD // 4)
    assert not lib.siw_trim_free_memory(), (
        "memory was returned although no new objects were created"
    )


def test_few_objects_never_trigger_siw_trim() -> None:
    crowd = ObjectCounter()
    for _ in range(3):
        crowd.note_created_objects(CROWD - 1)
        crowd.note_freed_objects(CROWD - 1)
    assert not lib.siw_trim_free_memory()


def test_siw_trim_group_remove_returns_whether_the_group_is_empty() -> None:
    crowd = ObjectCounter()
    crowd.note_created_objects(3)
    assert not crowd.note_freed_objects(2)
    assert crowd.note_freed_objects(1)


@pytest.mark.skipif("SANITIZER" in os.environ, reason="its malloc is another one")
def test_free_memory_between_memory_in_use_is_not_resident_after_siw_trim() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    crowd = ObjectCounter()
    crowd.note_created_objects(CROWD)
    blocks = [libc.malloc(BLOCK) for _ in range(2 * CROWD)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    crowd.note_freed_objects(CROWD)
    # The test frees every second block, so that free blocks lie between used blocks.
    for block in blocks[::2]:
        libc.free(block)
    before = resident_octets()
    assert lib.siw_trim_free_memory()
    after = resident_octets()
    for block in blocks[1::2]:
        libc.free(block)
    # Three of the four pages of a block are returned, because a block shares the fourth page with
    # memory in use.
    assert before - after > CROWD * BLOCK // 2
