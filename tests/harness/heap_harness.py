"""The memory of this process that malloc has allocated."""

from __future__ import annotations

import ctypes
import gc


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *(
            (name, ctypes.c_size_t)
            for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keep")
        ),
    ]


def heap_octets_in_use() -> int:
    """Return the number of octets allocated by malloc, including large blocks.

    A sanitizer replaces malloc, and its allocator is not counted.
    """
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    gc.collect()
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)
