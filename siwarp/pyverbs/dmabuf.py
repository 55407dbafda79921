# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""GPU memory, which siwarp cannot allocate: ``pyverbs.dmabuf``."""

from __future__ import annotations

from siwarp.pyverbs._field import Shown
from siwarp.pyverbs.base import PyverbsRDMAErrno, raise_unsupported

__all__ = ["DmaBuf", "PyverbsRDMAErrno"]


class DmaBuf:
    """GPU memory; ``DmaBufMR`` accepts the descriptor of existing GPU memory.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    size = Shown(0)
    gpu = Shown(0)
    handle = Shown(0)
    fd = Shown(-1)
    drm_fd = Shown(-1)
    map_offset = Shown(0)

    def __init__(self, size: int, gpu: int = 0, gtt: int = 0) -> None:
        raise_unsupported("DmaBuf", "it cannot allocate GPU memory; pass a descriptor to DmaBufMR")

    def close(self) -> None:
        """Do nothing: no memory was allocated."""
