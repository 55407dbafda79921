# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Dask over siwarp: scheduler, workers and clients at addresses that begin with ``siw://``.

With the extra ``siwarp[dask]``, dask.distributed finds this package by its entry point::

    dask scheduler --protocol siw
    dask worker siw://192.0.2.1:8786
    client = distributed.Client("siw://192.0.2.1:8786")

``Backend`` is the class that dask.distributed loads. Data is not encrypted; a Security object that
requires encryption is refused.
"""

from siwarp.ulp.dask.comm import Backend

__all__ = ["Backend"]
