"""The command ``siwarp`` as a process that starts fast: a fork of a process that has its modules.

A new interpreter needs a tenth of a second of CPU time until it has imported typer and siwarp, and
the suite runs the command hundreds of times. ``SiwarpProcess`` therefore sends the command to a
server, which has imported the modules but has opened no device and started no thread. The server
forks a process, which gets the arguments, the environment, the directory and the standard
descriptors of the command, and ends like an interpreter does. The server is the parent of the
process and reports the exit status.

This file is the server's program, too, and imports nothing else of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any, AnyStr

COMMAND = [sys.executable, "-m", "siwarp.cli"]

#: Variables whose names begin like this are read when an interpreter or a library is loaded. A
#: command for which one of them differs from the server's environment gets a new interpreter.
_READ_AT_START = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "SIWARP_SIM", "TZ")
#: Runs in which every command gets a new interpreter: sanitizers and branch counts write files at
#: the end of a process, and a simulated process chooses its library at its start.
_ALWAYS_NEW = ("COVERAGE", "SANITIZER", "SIWARP_SIM")
#: The largest request in octets. A request contains the environment.
_REQUEST = 1 << 20


class _Server:
    """A server process, and the socket over which it receives requests."""

    def __init__(self) -> None:
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("SIWARP_")}
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.end)

    def end(self) -> None:
        """End the server; processes that it has started go on."""
        self.socket.close()
        self.process.wait()


#: The server of this process, if it has started one; protected by the lock.
_servers: list[_Server] = []
_lock = threading.Lock()


def _get_or_start_server() -> _Server:
    with _lock:
        if not _servers:
            _servers.append(_Server())
        return _servers[0]


def _variables_read_at_process_start(environment: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(_READ_AT_START)}


class SiwarpProcess(subprocess.Popen[AnyStr]):
    """A ``subprocess.Popen`` for ``[*COMMAND, ...]``.

    Any other command, and a command with another option than ``stdin``, ``stdout``, ``stderr``,
    ``text``, ``cwd`` and ``env``, is started by ``subprocess.Popen``.
    """

    #: The end of a pipe that tells the exit status, unless subprocess.Popen started the command.
    _status: IO[bytes] | None = None

    def __init__(self, args: Sequence[Any], **options: Any) -> None:
        self._plain = (
            list(args[: len(COMMAND)]) == COMMAND
            and not set(_ALWAYS_NEW) & os.environ.keys()
            and options.keys() <= {"stdin", "stdout", "stderr", "text", "cwd", "env"}
        )
        self._status_lock = threading.Lock()
        super().__init__(args, **options)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Start the command: the method by which subprocess.Popen starts a program."""
        cwd, env = rest[4:6]
        child_input, _, _, child_output, _, child_errors = pipes = rest[9:15]
        environment = dict(os.environ if env is None else env)
        wanted = _variables_read_at_process_start(environment)
        if not self._plain or wanted != _variables_read_at_process_start(
            _get_or_start_server().environment
        ):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        request = {
            "arguments": [os.fsdecode(word) for word in args[len(COMMAND) :]],
            "environment": environment,
            "cwd": os.fsdecode(cwd or os.getcwd()),  # noqa: PTH109
        }
        reader, writer = os.pipe()
        self._status = os.fdopen(reader, "rb", buffering=0)
        standard = [
            own if given == -1 else given
            for own, given in enumerate((child_input, child_output, child_errors))
        ]
        try:
            socket.send_fds(
                _get_or_start_server().socket, [pickle.dumps(request)], [*standard, writer]
            )
        finally:
            os.close(writer)
        told = self._status.read(4)
        assert told, "the server of processes has ended"
        self.pid = int.from_bytes(told, "little")
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _has_ended(self, timeout: float | None) -> bool:
        """Return whether the process has ended; wait until it has, at most ``timeout`` seconds."""
        assert self._status is not None
        if self.returncode is None:
            ends = select.poll()
            ends.register(self._status, select.POLLIN)
            if not ends.poll(None if timeout is None else max(timeout, 0) * 1000):
                return False
            with self._status_lock:
                if self.returncode is None:
                    told = self._status.read(4)
                    assert told, "the server of processes has ended"
                    self.returncode = os.waitstatus_to_exitcode(int.from_bytes(told, "little"))
        return True

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        if self._status is None:
            return super().poll()
        self._has_ended(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit status."""
        if self._status is None:
            return super().wait(timeout)
        if not self._has_ended(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


# ---- the server

#: Modules that commands import when they run, and that many tests need.
_IMPORTED_LATE = (
    "rich.console",
    "rich.progress",
    "rich.table",
    "siwarp.cli.config",
    "siwarp.cli.ping_client",
    "siwarp.cli.ping_server",
    "siwarp.cli.run",
    "siwarp.cli.settings",
)


def _import_commands() -> None:
    """Import what the commands import, so that forked processes have it."""
    from siwarp.cli import app

    for module, _ in app._COMMANDS.values():
        importlib.import_module(module)
    for module in _IMPORTED_LATE:
        importlib.import_module(module)


def _fork(descriptors: list[int]) -> tuple[int, int]:
    """Fork; return the process and a descriptor that is readable once it has ended."""
    pid = os.fork()
    if pid == 0:
        return 0, -1
    os.write(descriptors[3], pid.to_bytes(4, "little"))
    return pid, os.pidfd_open(pid)


def _serve_fork_requests(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a process for each request, until no request can come.

    Returns None in the server, and in a forked process its request and standard descriptors.
    """
    running: dict[int, tuple[int, int]] = {}  # by descriptor: process, descriptor for its status
    events = select.poll()
    events.register(requests, select.POLLIN)
    while True:
        for ready, _ in events.poll():
            if ready != requests.fileno():
                events.unregister(ready)
                pid, status = running.pop(ready)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, os.waitpid(pid, 0)[1].to_bytes(4, "little"))
                os.close(status)
                os.close(ready)
                continue
            data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST, 4)
            if not data:
                return None
            pid, ended = _fork(descriptors)
            if pid == 0:
                for kept, (_, status) in running.items():
                    os.close(kept)
                    os.close(status)
                os.close(descriptors.pop())
                return pickle.loads(data), descriptors
            events.register(ended, select.POLLIN)
            running[ended] = pid, descriptors[3]
            for descriptor in descriptors[:3]:
                os.close(descriptor)


def _become_command(request: dict[str, Any], descriptors: list[int]) -> None:
    """Make this process like a new interpreter that runs the command."""
    from siwarp.base import system

    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [str(importlib.import_module("siwarp.cli").__path__[0]), *request["arguments"]]
    sys.path[0] = request["cwd"]
    system._QKEY = system._make_random_qkey()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(status: int) -> None:
    """End the process like an interpreter, but without freeing all objects, which takes longest.

    Returns if standard output cannot be written: then the interpreter reports that.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    ctypes.CDLL(None).exit(status)


def _main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends pytest, which ends the server
    del sys.path[0]
    sys.path.insert(0, "/")
    _import_commands()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        found = _serve_fork_requests(requests)
    if found is None:
        return 0
    _become_command(*found)
    from siwarp.cli.main import main

    try:
        status = main()
    except SystemExit as e:
        if not isinstance(e.code, int | None):
            raise
        status = e.code or 0
    _exit(status)
    return status


if __name__ == "__main__":
    sys.exit(_main())
