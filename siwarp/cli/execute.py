# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs a program in place of this process, or as its child."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import FrameType

__all__ = ["end_by_signal_of_child", "replace_this_process", "run_program_and_wait"]

#: Signals that Python ignores; the program must start with their default action, as in a shell.
_IGNORED_HERE = (signal.SIGPIPE, signal.SIGXFSZ)


def replace_this_process(command: list[str], environment: Mapping[str, str]) -> int:
    """Replace this process by a program, which keeps the PID, the terminal, open files and signals.

    Returns only on failure: the exit status that a shell would have then.
    """
    for number in _IGNORED_HERE:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as e:
        return _print_exec_error(command[0], e)


def _print_exec_error(program: str, error: OSError) -> int:
    print(f"siwarp: cannot run {program}: {error.strerror}", file=sys.stderr)
    return 127 if isinstance(error, FileNotFoundError) else 126


#: The terminal sends SIGINT and SIGQUIT to the program as well. SIGTERM and SIGHUP reach only this
#: process and are forwarded to the program.
_OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class _ChildProcess:
    """A child program that receives this process's signals; ignored signals stay ignored in the
    child.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.early: list[int] = []

    def _forward_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.process:
            self.process.send_signal(number)
        else:
            self.early.append(number)

    def _ignore_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Do nothing: the terminal has signalled the program too. SIG_IGN would be inherited."""

    @contextlib.contextmanager
    def install_signal_handlers_temporarily(self) -> Iterator[None]:
        wanted = dict.fromkeys(_OF_THE_TERMINAL, self._ignore_signal) | dict.fromkeys(
            _FORWARDED, self._forward_signal
        )
        before = {number: signal.getsignal(number) for number in wanted}
        for number, handler in wanted.items():
            if before[number] != signal.SIG_IGN:
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    def run_program(self, command: list[str], environment: Mapping[str, str]) -> int:
        with _pipe_readable_after_signals() as pipe:
            self.process = subprocess.Popen(command, env=environment, close_fds=False)
            for number in self.early:
                self.process.send_signal(number)
            while self.process.poll() is None:
                select.select([pipe], [], [])
                os.read(pipe, 4096)
        return self.process.returncode


@contextlib.contextmanager
def _pipe_readable_after_signals() -> Iterator[int]:
    """Yield the read end of a pipe that is readable after each signal, including SIGCHLD.

    A sleep on the pipe ends also if the signal arrives after Python has checked for signals and
    before the system call; ``Popen.wait`` would go on sleeping, and not call the handler.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # A signal makes the pipe readable only if the signal has a handler.
    children = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGCHLD, children)
        os.close(reader)
        os.close(writer)


def run_program_and_wait(command: list[str], environment: Mapping[str, str]) -> int:
    """Run a program as a child and wait for it; return its status, -N if signal N ended it.

    For a program that cannot be run, returns the status that a shell would have then.
    """
    child = _ChildProcess()
    with child.install_signal_handlers_temporarily():
        try:
            return child.run_program(command, environment)
        except OSError as e:
            return _print_exec_error(command[0], e)


def end_by_signal_of_child(status: int) -> int:
    """End this process by the signal that ended a program (status -N); return any other status."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status
