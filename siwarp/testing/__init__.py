# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Creates two connected ends with one line of code, for tests of programs that use RDMA.

::

    with pair("rd") as (a, b):
        a.send(b"hello")
        assert b.recv() == b"hello"

``pair`` provides all verbs objects of each end: device, PD, CQ, queue pair and registered memory.
``pair("rd", sim=True)`` connects the ends in a simulated world, with a virtual clock and without
sockets (extra ``siwarp[sim]``). ``aio_pair`` provides two connections of ``siwarp.aio``. pytest is
not needed; ``siwarp.pytest_plugin`` provides the same objects as pytest fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from siwarp.testing.aio_pair import aio_pair
from siwarp.testing.pair import Kind, Pair, pair

if TYPE_CHECKING:
    from siwarp.testing.end import End

__all__ = ["End", "Kind", "Pair", "aio_pair", "pair"]


def __getattr__(name: str) -> Any:
    # Imported late: the module of End imports siwarp.verbs, which loads the library for real
    # sockets, and pair(sim=True) could then not load the simulated library.
    if name == "End":
        from siwarp.testing.end import End

        return End
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
