"""Mapped memory that can be removed while it is registered as a memory region."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import tempfile

PAGE = mmap.PAGESIZE
PROT_NONE = 0
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

MAP_FIXED_NOREPLACE = 0x100000
#: Addresses far below those that the kernel assigns, so that a hole remains unmapped. The shadow
#: memory of AddressSanitizer and of ThreadSanitizer lies in different places.
_places = itertools.count(
    0x40_0000_0000 if os.environ.get("SANITIZER") == "tsan" else 0x2000_0000_0000, 1 << 28
)

#: The methods by which memory is removed; "read-only" leaves the memory readable.
HOWS = ("unmapped", "protected", "truncated", "read-only")


class RemovableMemory:
    """Mapped memory of ``size`` octets; ``buffer`` is the object to register."""

    def __init__(self, size: int, how: str) -> None:
        assert how in HOWS
        self.size, self.how = size, how
        self.fd = -1
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if how == "truncated":
            self.fd, name = tempfile.mkstemp()
            os.unlink(name)  # noqa: PTH108  no Path at hand
            os.ftruncate(self.fd, size)
            flags = mmap.MAP_SHARED
        right = mmap.PROT_READ | mmap.PROT_WRITE
        at = next(_places)
        self.addr = libc.mmap(at, size, right, flags | MAP_FIXED_NOREPLACE, self.fd, 0)
        assert self.addr == at
        self.buffer = (ctypes.c_uint8 * size).from_address(self.addr)
        ctypes.memset(self.addr, 0x5A, size)

    def remove_pages(self, keep: int = 0) -> None:
        """Remove all but the first ``keep`` octets (a multiple of the page size)."""
        addr, size = self.addr + keep, self.size - keep
        if self.how == "unmapped":
            assert libc.munmap(addr, size) == 0
        elif self.how == "truncated":
            os.ftruncate(self.fd, keep)
        else:
            right = mmap.PROT_READ if self.how == "read-only" else PROT_NONE
            assert libc.mprotect(addr, size, right) == 0

    def close(self) -> None:
        """Unmap the remaining memory, unless it was unmapped before: its addresses may have been
        reused.
        """
        if self.how != "unmapped":
            assert libc.munmap(self.addr, self.size) == 0
        if self.fd >= 0:
            os.close(self.fd)
