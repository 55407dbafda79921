"""Calls of the system that fail, in a process of its own: tests/c/failing.c is preloaded there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pace

#: In front of the text that the process runs: `with failing("socket", errno.EMFILE): ...`, of which
#: the n-th call fails, and `times` in all.
PRELUDE = """
import contextlib, ctypes, errno, os, sys, time
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import *

@contextlib.contextmanager
def failing(name, error, nth=1, times=1):
    # Made ready before: what the import of a name allocates is nobody's failure.
    by_name = ctypes.CDLL(None).failing_name
    by_name.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    by_name.restype = ctypes.c_long
    by_name(name.encode(), nth, times, error)
    try:
        yield
    finally:
        calls = by_name(b"", 0, 0, 0)
    assert calls >= nth, f"{name} was called {calls} times, and none failed"
"""


def run_failing(build_dir: Path, code: str, **env: str) -> str:
    """Run Python text in which calls fail, and return what it prints; its assertions count."""
    tests = Path(__file__).resolve().parent
    paths = [str(build_dir), str(tests), os.environ.get("PYTHONPATH", "")]
    done = pace.run(
        [sys.executable, "-c", PRELUDE + code],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("SIWARP_")},
            # By name, as a path with a blank in it would be two.
            "LD_PRELOAD": "libsiw-test-failing.so",
            "LD_LIBRARY_PATH": str(build_dir / "tests/c"),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **env,
        },
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
