# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Programs of verbs on siwarp's libibverbs.so.1: their performance, and the library's own cost."""
