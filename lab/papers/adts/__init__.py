# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m lab.papers.adts``: the file transfer of the paper on FTP over ADTS, with siwarp."""
