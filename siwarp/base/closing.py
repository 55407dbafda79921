# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The base class of all classes whose objects a ``with`` statement closes."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["Closing"]

C = TypeVar("C", bound="Closing")


class Closing:
    """A context manager that yields the object itself and closes it at the end."""

    __slots__ = ()

    def close(self) -> Any:
        """Close the object; a second call has no effect."""
        raise NotImplementedError

    def _check_usable(self) -> None:
        """Raise an exception if the object cannot be used in a ``with`` block."""

    def _close_at_block_end(self) -> None:
        """Close the object at the end of a ``with`` block."""
        self.close()

    def __enter__(self: C) -> C:
        self._check_usable()
        return self

    def __exit__(self, *_: object) -> None:
        self._close_at_block_end()
