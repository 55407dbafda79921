# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m siwarp.bench``, the command that `make bench` runs."""

import sys

from siwarp.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
