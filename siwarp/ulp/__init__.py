# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Upper layer protocols: services that use siwarp through its public interface alone.

The extras ``siwarp[cli]`` and ``siwarp[dask]`` install this package.
"""
