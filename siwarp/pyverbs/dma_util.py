# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Writes to device registers (``pyverbs.dma_util``), which are ordinary memory writes."""

from __future__ import annotations

from siwarp.pyverbs.mem_alloc import writebe32, writebe64


def udma_to_dev_barrier() -> None:
    """Do nothing, because only the CPU accesses the memory."""


def udma_from_dev_barrier() -> None:
    """Do nothing, because only the CPU accesses the memory."""


def mmio_write32_as_be(addr: int, val: int) -> None:
    """Write 32 bits to an address, in network byte order."""
    writebe32(addr, val)


def mmio_write64_as_be(addr: int, val: int) -> None:
    """Write 64 bits to an address, in network byte order."""
    writebe64(addr, val)
