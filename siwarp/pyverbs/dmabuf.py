# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""GPU memory, which siwarp cannot allocate: ``pyverbs.dmabuf``."""

from __future__ import annotations

from siwarp.pyverbs._field import ReadOnlyAttribute
from siwarp.pyverbs.base import PyverbsRDMAErrno, raise_unsupported

__all__ = ["DmaBuf", "PyverbsRDMAErrno"]


class DmaBuf:
    """GPU memory, which siwarp cannot allocate; ``DmaBufMR`` accepts existing GPU memory.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    size = ReadOnlyAttribute(0)
    gpu = ReadOnlyAttribute(0)
    handle = ReadOnlyAttribute(0)
    fd = ReadOnlyAttribute(-1)
    drm_fd = ReadOnlyAttribute(-1)
    map_offset = ReadOnlyAttribute(0)

    def __init__(self, size: int, gpu: int = 0, gtt: int = 0) -> None:
        raise_unsupported("DmaBuf", "it cannot allocate GPU memory; pass a descriptor to DmaBufMR")

    def close(self) -> None:
        """Do nothing, because no memory was allocated."""
