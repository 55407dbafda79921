# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Figures of queue pairs that `siwarp bench` does not measure, and RC's personas compared."""
