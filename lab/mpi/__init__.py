# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m lab.mpi``: MPICH on siwarp compared with the same MPICH on the kernel's TCP."""
