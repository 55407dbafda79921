# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""RD compared with the kernel's TCP on links with faults and at bottlenecks."""
