# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""pyverbs on siwarp: the modules, classes and names of rdma-core's Python bindings.

A program written for pyverbs runs when it imports ``siwarp.pyverbs`` in place of ``pyverbs``, or
unchanged by ``python -m siwarp.pyverbs PROGRAM [ARGS]``. docs/pyverbs.md says what differs.
"""
