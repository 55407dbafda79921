"""A fixture for the tests of base/ that runs code with the C functions in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import _siwarp_layers
import pace
import pytest
from harness.siwarp_process import SiwarpProcess

Child = Callable[..., subprocess.CompletedProcess[str]]

PRELUDE = "from _siwarp_layers import ffi, lib\n"


@pytest.fixture
def run_in_child() -> Child:
    """A function that runs Python code with ffi and lib imported in a child process.

    Keyword arguments are added to the environment of the child, which inherits no SIWARP_
    variables.
    """

    def run_code(code: str, **env: str) -> subprocess.CompletedProcess[str]:
        full = {k: v for k, v in os.environ.items() if not k.startswith("SIWARP_")}
        folder = str(Path(_siwarp_layers.__file__).parent)
        full["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, full.get("PYTHONPATH")]))
        full.update(env)
        done = pace.run_command(
            [sys.executable, "-c", PRELUDE + code],
            env=full,
            capture_output=True,
            text=True,
            seconds=60,
            start=SiwarpProcess,
            imports=("_siwarp_layers",),
        )
        assert done.returncode == 0, done.stderr
        return done

    return run_code
