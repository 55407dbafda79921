# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""pyverbs on siwarp: the modules, classes and names of rdma-core's Python bindings.

A program written for pyverbs runs if it imports ``siwarp.pyverbs`` instead of ``pyverbs``, or,
unchanged, by ``python -m siwarp.pyverbs PROGRAM [ARGS]``. docs/pyverbs.md lists the differences.
"""

#: The version of rdma-core whose pyverbs has the same names; names that it lacks but older versions
#: have, such as ``enums``, exist as well.
__version__ = "65.0"
