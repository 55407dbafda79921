# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``pyverbs.libibverbs_enums``, the name of ``pyverbs.enums`` in rdma-core 59 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siwarp.pyverbs.enums import *  # noqa: F403  re-exported
from siwarp.pyverbs.enums import (  # noqa: F401  re-exported
    _IBV_ADVISE_MR_ADVICE_PREFETCH,
    _IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    _IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    _IBV_ADVISE_MR_FLAG_FLUSH,
    _IBV_ALLOCATOR_USE_DEFAULT,
    _IBV_DEVICE_CC_DMA_BOUNCE,
    _IBV_DEVICE_PCI_WRITE_END_PADDING,
    _IBV_DEVICE_RAW_SCATTER_FCS,
)

if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """Return a member of the module's enumerations by its name."""
