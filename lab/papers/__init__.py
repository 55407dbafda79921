# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measurements of papers, repeated with siwarp."""
