# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A peer process that a command starts, and that ends when the command does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import siwarp
from siwarp.base.closing import Closing
from siwarp.verbs.qkey import shared_qkey

__all__ = ["Peer", "when_starter_is_gone"]


class Peer(Closing):
    """A Python module of the package in a process of its own.

    It prints JSON values, one a line; ``say`` and ``hear`` talk with it. It ends when its standard
    input does, so also when this process dies.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C at the terminal is for the starter alone, which ends this process then.
            start_new_session=True,
            # -m looks in the current folder first: there must be this very package.
            cwd=Path(siwarp.__file__).parent.parent,
            env={**os.environ, **shared_qkey()},
        )
        self.pid = self._process.pid

    def hear(self) -> Any:
        """Wait for what it says next.

        Raises:
            OSError: it ended instead; its own message is on standard error.

        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait(timeout=10)
            raise OSError(f"the peer process ended with status {status}; its message is above")
        return json.loads(line)

    def say(self, value: Any) -> None:
        """Send it a value."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def close(self) -> int:
        """End it and return its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # A broken pipe: it ended before it read the last value.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        return self._process.returncode

    def __exit__(self, *raised: object) -> None:
        if isinstance(raised[1], KeyboardInterrupt):
            self._process.terminate()  # it may be waiting for what does not come now
        self.close()


def when_starter_is_gone(call: Callable[[], None]) -> None:
    """Have ``call`` called, in a thread, when standard input ends."""

    def watch() -> None:
        try:
            # Not by sys.stdin: the interpreter aborts if a thread holds its lock at exit.
            while os.read(sys.stdin.fileno(), 4096):
                pass
        finally:
            call()

    threading.Thread(target=watch, name="siwarp-stdin", daemon=True).start()
