# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Writes to an adapter's registers: ``pyverbs.dma_util``. Memory is all that there is."""

from __future__ import annotations

from siwarp.pyverbs.mem_alloc import writebe32, writebe64


def udma_to_dev_barrier() -> None:
    """Do nothing: no device reads memory behind the CPU's back."""


def udma_from_dev_barrier() -> None:
    """Do nothing, as above."""


def mmio_write32_as_be(addr: int, val: int) -> None:
    """Write 32 bits at an address, in the network's octet order."""
    writebe32(addr, val)


def mmio_write64_as_be(addr: int, val: int) -> None:
    """Write 64 bits at an address, in the network's octet order."""
    writebe64(addr, val)
