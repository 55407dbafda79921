"""README's lines for CI do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pace import scaled

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.programs
def test_the_lines_for_ci_run() -> None:
    found = re.search(r"<!-- ci: begin -->\n```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    install, *lines = found[1].splitlines()
    assert install.startswith("apt-get install -y ") and "perftest" in install
    if not shutil.which("ib_write_bw"):
        pytest.skip("no perftest on this machine: make abi installs it")
    # In a network namespace of its own: elsewhere another test may have perftest's port.
    script = "set -e; ip link set lo up\n" + "\n".join(lines)
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"(?m)^\s*65536\s+100\s", done.stdout)) == 2
