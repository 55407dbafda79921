# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""siwarp.aio compared with asyncio's streams."""
