"""RDMAP over reliable datagrams, where requests are sent within the call that posts them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.mark.clause("DGRAM-RDV-3")
def test_a_response_that_arrives_before_the_posting_call_returns_is_accepted(
    build_dir: Path,
) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-early"], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
