# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""dask.distributed over siwarp: rates beside its TCP comm, and comm tests from Debian's package."""
