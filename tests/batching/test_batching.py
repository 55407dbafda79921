"""SIWARP_BATCHING: messages arrive intact and in order, whether or not posts wait for more posts.

`make stress` also runs the tests with hostile peers with each value of the setting.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pace
import pytest

#: Whether `make stress` runs the test.
LONG = "SIWARP_STRESS_MESSAGES" in os.environ
PARTS = ("tests/unit/qp/test_qp_model.py", "tests/stress", *(("tests/hostile",) * LONG))
SIMULATED = ("tests/sim/verbs/test_verbs_model.py",)


@pytest.mark.scales
@pytest.mark.timeout(3000 if LONG else 300)
@pytest.mark.skipif("SANITIZER" in os.environ, reason="make test shows it, in a twentieth the time")
@pytest.mark.parametrize("batching", ["never", "always"])
def test_the_tests_of_messages_pass_if_posts_never_or_always_wait_for_more_posts(
    root: Path, batching: str
) -> None:
    env = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
    env["SIWARP_BATCHING"] = batching
    total = 0
    for parts, more in ((PARTS, {}), (SIMULATED, {"SIWARP_SIM": "1"})):
        done = pace.run_command(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
             *parts],
            cwd=root, env=env | more, capture_output=True, text=True,
            seconds=2900 if LONG else 280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
        passed = re.search(r"(\d+) passed", done.stdout)
        assert passed is not None, done.stdout[-200:]
        total += int(passed[1])
    assert total > (700 if LONG else 90)
