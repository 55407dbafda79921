# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The base class of all classes that ``with`` closes at its end."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["Closing"]

C = TypeVar("C", bound="Closing")


class Closing:
    """``with`` yields the object itself, and closes it at its end."""

    __slots__ = ()

    def close(self) -> Any:
        """End it; a second call does nothing."""
        raise NotImplementedError

    def _enter(self) -> None:
        """Raise if a ``with`` block cannot begin with it."""

    def _leave(self) -> None:
        """End it at the end of a ``with`` block."""
        self.close()

    def __enter__(self: C) -> C:
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
