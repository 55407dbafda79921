"""Reliable datagrams under loss, duplication, reordering and corruption; long with `make
stress`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The number of messages: a million for `make stress`; 0 selects the number of the regular suite.
MESSAGES = int(os.environ.get("SIWARP_STRESS_MESSAGES", "0"))
SEED = int(os.environ.get("SIWARP_STRESS_SEED", "1"))


# The limit is long for `make stress`, otherwise the usual limit of a test.
@pytest.mark.timeout(900 if MESSAGES else 120)
def test_under_faults_every_rd_message_arrives_once_in_order_and_atomics_are_exact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    messages = MESSAGES or (1000 if "SANITIZER" in os.environ else 10_000)
    ran = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("rd_stress.py")),
            f"--messages={messages}",
            f"--seed={SEED}",
            "--limit=840" if MESSAGES else "--limit=60",
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.stdout, ran.stderr
    found = json.loads(ran.stdout)
    if MESSAGES:
        with capsys.disabled():
            print(", ".join(f"{name}: {value}" for name, value in found.items()))
    assert ran.returncode == 0, (found, ran.stderr)
    assert found["messages"] == messages
    assert [found[name] for name in ("lost", "doubled", "misordered", "corrupt")] == [0, 0, 0, 0]
    # Retransmissions show that the fault plan was in force.
    assert found["sent_again"] > messages // 20
    assert found["atomics_exact"] and found["atomics"] > 0
