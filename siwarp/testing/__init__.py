# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Two connected ends in one line, for tests of programs that use RDMA.

::

    with pair("rd") as (a, b):
        a.send(b"hello")
        assert b.recv() == b"hello"

``pair`` gives all that verbs have at each end: device, PD, CQ, queue pair and registered memory.
``aio_pair`` gives two connections of ``siwarp.aio``. pytest is not needed; for those who use it
``siwarp.pytest_plugin`` has the same as fixtures.
"""

from siwarp.testing.aio_pair import aio_pair
from siwarp.testing.end import End
from siwarp.testing.pair import Kind, Pair, pair

__all__ = ["End", "Kind", "Pair", "aio_pair", "pair"]


def __dir__() -> list[str]:
    return __all__
