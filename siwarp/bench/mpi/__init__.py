# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp bench mpi``: MPICH on siwarp beside the same MPICH on the kernel's TCP."""
