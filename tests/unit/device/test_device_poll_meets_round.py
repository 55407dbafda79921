"""A poll that coincides with another thread's progress round."""

from __future__ import annotations

import subprocess
from pathlib import Path


def test_a_poll_flushes_batched_posts_during_a_progress_round_of_another_thread(
    build_dir: Path,
) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-meets"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
