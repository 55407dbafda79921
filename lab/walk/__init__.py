# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The calls of functions that a message causes, counted by layer: ``python -m lab.walk``."""
