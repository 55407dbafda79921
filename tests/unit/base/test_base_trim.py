"""Free memory is returned to the system after many objects have been freed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from _siwarp_layers import ffi, lib

#: The number of objects from which struct siw_crowd counts as a crowd, whose departure triggers
#: siw_trim.
CROWD = 1024
BLOCK = 16 << 10


class Crowd:
    """An empty struct siw_crowd."""

    def __init__(self) -> None:
        lib.siw_trim()  # returns memory that other tests have left
        self._zeros = ffi.new("uint32_t[2]")
        self._crowd = ffi.cast("struct siw_population *", self._zeros)

    def join(self, n: int) -> None:
        for _ in range(n):
            lib.siw_crowd_join(self._crowd)

    def leave(self, n: int) -> None:
        for _ in range(n):
            lib.siw_crowd_leave(self._crowd)


def resident_octets() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_memory_is_returned_once_when_three_quarters_of_a_crowd_have_left() -> None:
    crowd = Crowd()
    crowd.join(CROWD)
    crowd.leave(CROWD * 3 // 4 - 1)
    assert not lib.siw_trim()
    crowd.leave(1)
    assert lib.siw_trim()
    crowd.leave(CROWD // 4)
    assert not lib.siw_trim(), "there was no crowd since"


def test_few_objects_never_trigger_siw_trim() -> None:
    crowd = Crowd()
    for _ in range(3):
        crowd.join(CROWD - 1)
        crowd.leave(CROWD - 1)
    assert not lib.siw_trim()


@pytest.mark.skipif("SANITIZER" in os.environ, reason="its malloc is another one")
def test_what_was_freed_between_memory_in_use_is_no_longer_resident() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    crowd = Crowd()
    crowd.join(CROWD)
    blocks = [libc.malloc(BLOCK) for _ in range(2 * CROWD)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    crowd.leave(CROWD)
    # frees every second block: free blocks lie between used ones, as with records of peers
    for block in blocks[::2]:
        libc.free(block)
    before = resident_octets()
    assert lib.siw_trim()
    after = resident_octets()
    for block in blocks[1::2]:
        libc.free(block)
    # Three pages of four are returned, because each block shares one with memory in use.
    assert before - after > CROWD * BLOCK // 2
