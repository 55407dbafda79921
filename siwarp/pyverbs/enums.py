# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""All enumerations of ``pyverbs.enums``, and their members; see also ``libibverbs_enums``.

The enumerations include numbers of unsupported features. A call with such a number raises an error
with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from siwarp.pyverbs._enums_device import *  # noqa: F403  re-exported
from siwarp.pyverbs._enums_ethernet import *  # noqa: F403  re-exported
from siwarp.pyverbs._enums_queues import *  # noqa: F403  re-exported
from siwarp.pyverbs._names import export_enum_members

_IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34
_IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36
_IBV_DEVICE_CC_DMA_BOUNCE = 1 << 41
_IBV_ALLOCATOR_USE_DEFAULT = 0xFFFFFFFFFFFFFFFF
_IBV_ADVISE_MR_ADVICE_PREFETCH = 0
_IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1
_IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2
_IBV_ADVISE_MR_FLAG_FLUSH = 1
IBV_LINK_LAYER_UNSPECIFIED = 0
IBV_LINK_LAYER_INFINIBAND = 1
IBV_LINK_LAYER_ETHERNET = 2
IBV_QPF_GRH_REQUIRED = 1
IBV_WC_STANDARD_FLAGS = 0x7F

export_enum_members(globals())

if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """Return a member of the module's enumerations by its name."""
