# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m siwarp.cli`` is the command ``siwarp``."""

import sys

from siwarp.cli.main import main

sys.exit(main())
