# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Vendors' modules of pyverbs, from which all names can be imported, but not used.

Programs for several adapters import these modules regardless of the installed adapter.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from siwarp.pyverbs.base import raise_unsupported

_NAME = __name__


class _Missing(type):
    """Metaclass of unavailable names, which have no instances and are 0 as numbers."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(name, (Missing,), {})

    def __call__(cls, *args: object, **more: object) -> object:
        # instances of Attr classes are allowed, because they only describe objects
        if not cls.__name__.endswith("Attr"):
            raise_unsupported(f"vendor-specific {cls.__name__}", "it is not an adapter")
        return types.SimpleNamespace(args=args, **more)

    def __index__(cls) -> int:
        return 0

    def __or__(cls, other: Any) -> Any:
        return other

    def __ror__(cls, other: Any) -> Any:
        return other

    def __and__(cls, other: Any) -> int:
        return 0

    def __rand__(cls, other: Any) -> int:
        return 0


class Missing(metaclass=_Missing):
    """Base class of all names in vendors' modules."""


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Missing(name, (Missing,), {"__module__": self.__name__})
        setattr(self, name, found)
        return found


class _Finder:
    """Finder that returns a module for any name below the package."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{_NAME}."):
            return None
        return importlib.machinery.ModuleSpec(name, cls(), is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing, because the module has no code."""


sys.meta_path.append(_Finder)
