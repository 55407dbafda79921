"""The tests of the wire format pass with SIWARP_CRC_FIRST=1: data is placed after the CRC check.

`make strict` runs the complete suite with this setting; this file runs the part of the suite that
every change must pass.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pace
import pytest
from harness.siwarp_process import SiwarpProcess

#: Files whose tests receive FPDUs of more than 8 KiB without Markers. Shorter FPDUs and FPDUs with
#: Markers are checked before placement even without the setting (mpa/mpa_rx.c), so the setting
#: would make no difference to other tests, nor to the tests of these files whose names say that
#: FPDUs are small or have Markers.
ABOUT_THE_WIRE = (
    "tests/unit/mpa/test_mpa_rx.py",
    "tests/conformance/rfc5040/test_s4_8_table.py",
    "tests/conformance/rfc5040/test_s5_3_invalidate.py",
    "tests/conformance/rfc5040/test_s5_operations.py",
    "tests/conformance/rfc5040/test_s7_errors.py",
    "tests/conformance/rfc5040/test_s8_1_1.py",
    "tests/conformance/rfc5041/test_s7_errors.py",
    "tests/conformance/rfc5044/test_s3.py",
    "tests/conformance/rfc5044/test_s4_1.py",
    "tests/conformance/rfc5044/test_s4_4.py",
    "tests/conformance/rfc5044/test_s4_5.py",
    "tests/conformance/rfc5044/test_s6.py",
    "tests/conformance/rfc5044/test_s7_1_2.py",
    "tests/unit/qp/rc/test_qp_rc.py",
)


@pytest.mark.scales
@pytest.mark.timeout(300)
@pytest.mark.skipif("SANITIZER" in os.environ, reason="make test shows it, in a twentieth the time")
@pytest.mark.skipif("SIWARP_CRC_FIRST" in os.environ, reason="everything runs so already")
def test_the_tests_of_the_wire_format_pass_if_data_is_placed_after_the_crc_check(
    root: Path,
) -> None:
    env = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
    done = pace.run_command(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
         "-k", "not small and not markers", *ABOUT_THE_WIRE],
        cwd=root, env={**env, "SIWARP_CRC_FIRST": "1"}, capture_output=True, text=True,
        seconds=280, check=False, start=SiwarpProcess, imports=("pytest",),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 800, done.stdout[-200:]
