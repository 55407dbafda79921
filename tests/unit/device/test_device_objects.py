"""Objects used by threads while other threads create, change and destroy related objects."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def test_threads_use_and_destroy_objects_that_share_one_cq_and_one_srq(
    build_dir: Path,
) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-objects", "4000" if "SANITIZER" in os.environ else "500"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    # The program prints the numbers of messages, queue pairs, resizes, asynchronous events,
    # completion events and memory regions.
    assert all(int(n) > 0 for n in done.stdout.split()), done.stdout
