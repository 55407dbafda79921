"""siwarp: a software RNIC in user space.

siwarp implements iWARP over TCP (RC) and over UDP (UD, UC, RD). ``siwarp.verbs`` has the OF verbs,
``siwarp.cm`` the connection manager, ``siwarp.inspect`` scapy layers for the wire formats.
``siwarp.connect`` and ``siwarp.listen`` create connections in a few lines, and ``siwarp.aio`` does
so for asyncio; ``siwarp.testing`` creates connected ends for tests.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siwarp import aio, cm, verbs
    from siwarp.cm import connect, listen
    from siwarp.verbs import (
        Error,
        LimitError,
        PeerGone,
        ProtocolError,
        RemoteBuffer,
        StateError,
        Timeout,
        capture,
        faults,
    )

__all__ = [
    "Error",
    "LimitError",
    "PeerGone",
    "ProtocolError",
    "RemoteBuffer",
    "StateError",
    "Timeout",
    "__version__",
    "aio",
    "capture",
    "cm",
    "connect",
    "faults",
    "listen",
    "verbs",
]

__version__: str

if importlib.util.find_spec("siwarp._siwarp") is None:
    _root = Path(__file__).resolve().parent.parent
    if (_root / "meson.build").is_file():
        raise ImportError(
            f"siwarp's C module is not built for this Python. Run: make -C '{_root}' build, "
            f"then use '{_root}/.venv/bin/python'"
        )
    raise ImportError(
        "siwarp's C module is missing from this installation. "
        "Install it again: pip install --force-reinstall WHEEL, one that `make wheel` made"
    )


# The modules of these names load the C library, so each name is imported when it is first used:
# siwarp.inspect and the command's help do not need the library.
_FROM = {
    "Error": "siwarp.verbs",
    "LimitError": "siwarp.verbs",
    "PeerGone": "siwarp.verbs",
    "ProtocolError": "siwarp.verbs",
    "RemoteBuffer": "siwarp.verbs",
    "StateError": "siwarp.verbs",
    "Timeout": "siwarp.verbs",
    "capture": "siwarp.verbs",
    "connect": "siwarp.cm",
    "faults": "siwarp.verbs",
    "listen": "siwarp.cm",
}
_PACKAGES = ("aio", "cm", "verbs")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("siwarp")
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"siwarp.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
