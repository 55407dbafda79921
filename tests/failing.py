"""Runs Python code in a separate process in which system calls fail (tests/c/failing.c).

The process preloads the library that is compiled from tests/c/failing.c.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pace
from harness.siwarp_process import SiwarpProcess

#: Code that precedes the code to run. `with failing("socket", errno.EMFILE): ...` makes the `nth`
#: call of socket() in the block, and `times` calls in all, fail with EMFILE.
PRELUDE = """
import contextlib, ctypes, errno, os, sys, time
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import *

@contextlib.contextmanager
def failing(name, error, nth=1, times=1):
    # The function is looked up first, because an allocation of the lookup must not fail.
    by_name = ctypes.CDLL(None).fail_named_function
    by_name.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    by_name.restype = ctypes.c_long
    by_name(name.encode(), nth, times, error)
    try:
        yield
    finally:
        calls = by_name(b"", 0, 0, 0)
    assert calls >= nth, f"{name} was called {calls} times, and none failed"
"""

#: Modules that the process has already imported when the code begins; most of the code uses them.
IMPORTS = ("_siwarp_layers", "unit.llp.llp_harness", "harness.uc_harness", "siwarp.verbs")


def run_with_failing_calls(build_dir: Path, code: str, **env: str) -> str:
    """Run Python code with failing system calls; return the output. The code must succeed."""
    tests = Path(__file__).resolve().parent
    paths = [str(build_dir), str(tests), os.environ.get("PYTHONPATH", "")]
    done = pace.run_command(
        [sys.executable, "-c", PRELUDE + code],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("SIWARP_")},
            # LD_PRELOAD names the library without its path, because a path may have a blank, at
            # which LD_PRELOAD would be split.
            "LD_PRELOAD": "libsiw-test-failing.so",
            "LD_LIBRARY_PATH": str(build_dir / "tests/c"),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **env,
        },
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
        start=SiwarpProcess,
        imports=IMPORTS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
