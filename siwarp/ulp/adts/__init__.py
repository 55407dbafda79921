# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""ADTS, the advanced data transfer service: files and memory over RD, RC or TCP."""
