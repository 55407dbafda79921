# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Limits on the cost of reading a capture; a small file can unpack to gigabytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Limits", "TooMuch", "count_against_limits", "enforce_limits"]

#: Number of blocks or frames of a capture file that are allowed per allowed message; a block or
#: frame needs a fifth of the memory of a message.
FRAMES_A_MESSAGE = 5
#: The clock is read once per this number of frames or messages.
LOOK = 64


class TooMuch(ValueError):
    """A capture exceeds a limit; the text names the limit and the option that raises it."""


@dataclass(frozen=True)
class Limits:
    """Limits on reading a capture; 0: no limit.

    Attributes:
        messages: messages in the capture; five times as many blocks and frames are allowed.
        unpacked: octets to which a compressed file unpacks.
        seconds: duration of reading.
    """

    messages: int = 100_000
    unpacked: int = 256 << 20
    seconds: float = 120.0


class _Consumption:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.messages = self.frames = self.unpacked = self._looks = 0
        self._until = time.monotonic() + limits.seconds if limits.seconds else float("inf")

    def count(self, messages: int, frames: int, unpacked: int) -> None:
        self.messages += messages
        self.frames += frames
        self.unpacked += unpacked
        limits = self.limits
        if limits.messages and self.messages > limits.messages:
            raise TooMuch(
                f"the capture has more than {limits.messages} messages: give --max-messages N to "
                "read more (about 1 kB of memory each), 0 for all"
            )
        if limits.messages and self.frames > FRAMES_A_MESSAGE * limits.messages:
            raise TooMuch(
                f"the capture has more than {FRAMES_A_MESSAGE * limits.messages} frames: give "
                f"--max-messages N to read {FRAMES_A_MESSAGE} times N, 0 for all"
            )
        if limits.unpacked and self.unpacked > limits.unpacked:
            raise TooMuch(
                f"the file unpacks to more than {limits.unpacked >> 20} MiB: give --max-unpacked "
                "MIB, 0 for all, or decompress the file first"
            )
        self._looks += 1
        if self._looks % LOOK == 0 and time.monotonic() > self._until:
            raise TooMuch(
                f"reading the file took more than {limits.seconds:g} s: give --max-seconds N, 0 "
                "for no limit"
            )


_now: ContextVar[_Consumption | None] = ContextVar("_now", default=None)


@contextmanager
def enforce_limits(limits: Limits) -> Iterator[None]:
    """Count everything that is read in this ``with`` block against ``limits``."""
    token = _now.set(_Consumption(limits))
    try:
        yield
    finally:
        _now.reset(token)


def count_against_limits(messages: int = 0, frames: int = 0, unpacked: int = 0) -> None:
    """Count objects that were read, and check the clock from time to time.

    Raises:
        TooMuch: a limit is exceeded.

    """
    spent = _now.get()
    if spent is not None:
        spent.count(messages, frames, unpacked)
