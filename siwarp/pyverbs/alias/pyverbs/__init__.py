# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The package ``pyverbs``: an alias of ``siwarp.pyverbs`` and all of its modules.

The folder of this package is on the module search path of programs that ``python -m
siwarp.pyverbs`` runs, and of the processes that their ``multiprocessing`` starts.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Sequence

_ALIAS, _MEANT = __name__, "siwarp.pyverbs"


class _Loader:
    """Loader of a module of ``siwarp.pyverbs`` under its name in ``pyverbs``."""

    def __init__(self, meant: types.ModuleType) -> None:
        self._meant, self._spec = meant, meant.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._meant

    def exec_module(self, module: types.ModuleType) -> None:
        """Restore the module's own spec, which the import has replaced, and execute no code."""
        module.__spec__ = self._spec


class _Finder:
    """Finder of the module of ``siwarp.pyverbs`` for a module of ``pyverbs``."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{_ALIAS}."):
            return None
        meant = _MEANT + name[len(_ALIAS) :]
        try:
            module = importlib.import_module(meant)
        except ModuleNotFoundError as error:
            if error.name != meant:
                raise
            return None
        loader = _Loader(module)
        return importlib.machinery.ModuleSpec(name, loader)  # type: ignore[arg-type]


sys.meta_path.insert(0, _Finder)
sys.modules[_ALIAS] = importlib.import_module(_MEANT)
