# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Studies that run from a checkout (``make lab-mpi``, ``make lab-wan``) and are not installed."""
