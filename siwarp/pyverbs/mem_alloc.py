# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory access by address: ``pyverbs.mem_alloc``, the C library's functions.

As in C, addresses are not checked: an invalid address crashes the process.
"""

from __future__ import annotations

import ctypes
import mmap as _mmap
import os
import struct
import sys

from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

PROT_NONE_ = 0
PROT_READ_ = _mmap.PROT_READ
PROT_WRITE_ = _mmap.PROT_WRITE
PROT_EXEC_ = _mmap.PROT_EXEC
MAP_SHARED_ = _mmap.MAP_SHARED
MAP_PRIVATE_ = _mmap.MAP_PRIVATE
MAP_ANONYMOUS_ = _mmap.MAP_ANONYMOUS
MAP_STACK_ = 0x20000
# Constants of Linux, which are equal on all processors that siwarp supports.
MAP_FIXED_ = 0x10
MAP_GROWSDOWN_ = 0x100
MAP_LOCKED_ = 0x2000
MAP_NORESERVE_ = 0x4000
MAP_POPULATE_ = 0x8000
MAP_HUGETLB_ = 0x40000
MADV_DONTNEED_ = _mmap.MADV_DONTNEED

_libc = ctypes.CDLL(None, use_errno=True)
_FAILED = ctypes.c_void_p(-1).value
_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc.malloc.restype, _libc.malloc.argtypes = _pointer, (_size,)
_libc.free.restype, _libc.free.argtypes = None, (_pointer,)
_libc.posix_memalign.argtypes = (ctypes.POINTER(_pointer), _size, _size)
_libc.mmap.restype = _pointer
_libc.mmap.argtypes = (_pointer, _size, _int, _int, _int, ctypes.c_long)
_libc.munmap.argtypes = (_pointer, _size)
_libc.madvise.argtypes = (_pointer, _size, _int)


def _make_libc_error(what: str) -> PyverbsRDMAError:
    return PyverbsRDMAError(f"Failed to {what}", ctypes.get_errno())


def malloc(size: int) -> int:
    """Allocate ``size`` octets and return their address, or 0 if memory is exhausted."""
    return int(_libc.malloc(size) or 0)


def free(ptr: int) -> None:
    """Free memory of ``malloc`` or ``posix_memalign``."""
    _libc.free(ptr)


def posix_memalign(size: int, alignment: int = 8) -> int:
    """Allocate ``size`` zeroed octets and return their address, a multiple of ``alignment``.

    Raises:
        PyverbsError: out of memory, or ``alignment`` is not a power of two above 4.

    """
    ptr = ctypes.c_void_p()
    number = _libc.posix_memalign(ctypes.byref(ptr), alignment, size)
    if number:
        raise PyverbsError(f"Failed to allocate {size} octets: {os.strerror(number)}")
    address = int(ptr.value or 0)
    ctypes.memset(address, 0, size)
    return address


def mmap(
    addr: int = 0,
    length: int = 100,
    prot: int = PROT_READ_ | PROT_WRITE_,
    flags: int = MAP_PRIVATE_ | MAP_ANONYMOUS_,
    fd: int = -1,
    offset: int = 0,
) -> int:
    """Map memory or a file, as mmap(2); return its address.

    Raises:
        PyverbsRDMAError: the system call failed.

    """
    found = _libc.mmap(addr or None, length, prot, flags, fd, offset)
    if found == _FAILED:
        raise _make_libc_error(f"map {length} octets")
    return int(found or 0)


def munmap(addr: int, length: int) -> None:
    """Unmap memory, as munmap(2).

    Raises:
        PyverbsRDMAError: the system call failed.

    """
    if _libc.munmap(addr, length):
        raise _make_libc_error(f"unmap {length} octets")


def madvise(addr: int, length: int, flags: int = MADV_DONTNEED_) -> None:
    """Give advice about memory, as madvise(2).

    Raises:
        PyverbsRDMAError: the system call failed.

    """
    if _libc.madvise(addr, length, flags):
        raise _make_libc_error(f"advise about {length} octets")


def write(addr: int, data: bytes | str, length: int, offset: int = 0) -> None:
    """Write ``length`` octets of ``data`` at ``addr + offset``.

    Raises:
        PyverbsError: ``data`` is shorter.

    """
    octets = data.encode() if isinstance(data, str) else bytes(data)
    if not 0 <= length <= len(octets):
        raise PyverbsError(f"Cannot write {length} octets: the data has {len(octets)}")
    ctypes.memmove(addr + offset, octets, length)


def read(addr: int, length: int, offset: int = 0) -> bytes:
    """Return ``length`` octets at ``addr + offset``."""
    if length < 0:
        raise PyverbsError(f"Cannot read {length} octets")
    return ctypes.string_at(addr + offset, length)


def read32(addr: int, offset: int = 0) -> int:
    """Return element number ``offset`` of an array of 32-bit numbers."""
    return int.from_bytes(read(addr, 4, 4 * offset), sys.byteorder)


def read64(addr: int, offset: int = 0) -> int:
    """Return element number ``offset`` of an array of 64-bit numbers."""
    return int.from_bytes(read(addr, 8, 8 * offset), sys.byteorder)


def writebe32(addr: int, val: int, offset: int = 0) -> None:
    """Write a 32-bit number as element ``offset`` of an array, in network byte order."""
    write(addr, struct.pack("!I", val), 4, 4 * offset)


def writebe64(addr: int, val: int, offset: int = 0) -> None:
    """Write a 64-bit number at index ``offset`` of an array, in network byte order."""
    write(addr, struct.pack("!Q", val), 8, 8 * offset)
