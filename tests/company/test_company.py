"""SIWARP_COMPANY: what is posted arrives whole and in order, whether posts wait for others or not.

`make stress` has the tests of a hostile network in it, too.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pace
import pytest

#: Set by `make stress`.
LONG = "SIWARP_STRESS_MESSAGES" in os.environ
PARTS = ("tests/unit/verbs/test_verbs_model.py", "tests/stress", *(("tests/hostile",) * LONG))


@pytest.mark.scales
@pytest.mark.timeout(3000 if LONG else 300)
@pytest.mark.skipif("SANITIZER" in os.environ, reason="make test shows it, in a twentieth the time")
@pytest.mark.parametrize("company", ["never", "always"])
def test_posts_arrive_whole_and_in_order_if_they_wait(root: Path, company: str) -> None:
    env = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
    done = pace.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
         *PARTS],
        cwd=root, env={**env, "SIWARP_COMPANY": company}, capture_output=True, text=True,
        seconds=2900 if LONG else 280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > (700 if LONG else 90), done.stdout[-200:]
