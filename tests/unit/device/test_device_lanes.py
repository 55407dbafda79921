"""Queue pairs in several lanes of a device, used by several threads."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path


def test_queue_pairs_created_in_all_lanes_beside_traffic_and_queries_have_numbers_of_their_own(
    build_dir: Path,
) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-lanes", "4000" if "SANITIZER" in os.environ else "500"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    # The program prints the numbers of queue pairs, of creations refused at the device's limit, of
    # messages, and of queries of living queue pairs and of those that may be destroyed.
    counts = [int(n) for n in re.findall(r"\d+", done.stdout)]
    assert len(counts) == 5 and min(counts) > 0, done.stdout
