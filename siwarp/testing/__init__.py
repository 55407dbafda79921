# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Creates two connected ends with one line of code, for tests of programs that use RDMA.

::

    with pair("rd") as (a, b):
        a.send(b"hello")
        assert b.recv() == b"hello"

``pair`` provides all verbs objects of each end: device, PD, CQ, queue pair and registered memory.
``aio_pair`` provides two connections of ``siwarp.aio``. pytest is not needed;
``siwarp.pytest_plugin`` provides the same objects as pytest fixtures.
"""

from siwarp.testing.aio_pair import aio_pair
from siwarp.testing.end import End
from siwarp.testing.pair import Kind, Pair, pair

__all__ = ["End", "Kind", "Pair", "aio_pair", "pair"]


def __dir__() -> list[str]:
    return __all__
