# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``pyverbs.librdmacm_enums``, the name of ``pyverbs.cm_enums`` in rdma-core 59 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siwarp.pyverbs.cm_enums import *  # noqa: F403  re-exported

if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """Return a member of the module's enumerations by its name."""
