# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A peer process that a command starts, and that ends when the command does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import siwarp
from siwarp.base.closing import Closing
from siwarp.verbs.qkey import qkey_environment

__all__ = ["Peer", "call_at_stdin_end", "call_at_stop_signal"]


class Peer(Closing):
    """A Python module of the package that runs in a separate process.

    The process prints JSON values, one per line, which ``receive_value`` reads; ``send_value``
    sends values to the process. The process ends when its standard input ends, and therefore also
    when this process dies.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C at the terminal must reach only the parent, which then ends this process.
            start_new_session=True,
            # -m searches the current folder first, so start in the folder that holds this package.
            cwd=Path(siwarp.__file__).parent.parent,
            env={**os.environ, **qkey_environment()},
        )
        self.pid = self._process.pid

    def receive_value(self) -> Any:
        """Wait for the next value that the peer process prints.

        Raises:
            OSError: the process ended instead; its own message is on standard error.

        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait(timeout=10)
            raise OSError(f"the peer process ended with status {status}; its message is above")
        return json.loads(line)

    def send_value(self, value: Any) -> None:
        """Send a value to the peer process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def close(self) -> int:
        """End the peer process and return its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # A broken pipe means that the process ended before it had read the last value.
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
            self._process.terminate()  # the process may wait for a message that will not arrive
        self.close()


def call_at_stdin_end(call: Callable[[], None]) -> None:
    """Call ``call`` in a thread when standard input ends."""

    def watch_stdin() -> None:
        try:
            # Do not use sys.stdin: the interpreter aborts if a thread holds its lock at exit.
            while os.read(sys.stdin.fileno(), 4096):
                pass
        finally:
            call()

    threading.Thread(target=watch_stdin, name="siwarp-stdin", daemon=True).start()


def call_at_stop_signal(call: Callable[[], object], until_eof: bool) -> None:
    """Call ``call`` in the running event loop at SIGTERM or SIGINT and, if ``until_eof``, when
    standard input ends.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, call)
    if until_eof:

        def call_in_loop() -> None:
            with contextlib.suppress(RuntimeError):  # a signal has already ended the loop
                loop.call_soon_threadsafe(call)

        call_at_stdin_end(call_in_loop)
