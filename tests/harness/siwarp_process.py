"""Starts Python programs quickly: forks a process that has already imported their modules.

A new interpreter needs a tenth of a second of CPU time until it has imported typer and siwarp, and
the suite starts hundreds: the command ``siwarp``, and Python code of tests. ``SiwarpProcess``
therefore sends the program to a server, which has imported the modules but has opened no device and
started no thread. The server forks a process, which gets the arguments, the environment, the
directory and the standard descriptors of the program, and ends like an interpreter does. The server
is the parent of the process and reports the exit status.

This file is the server's program, too, and imports nothing else of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Sequence
from typing import IO, Any, AnyStr

COMMAND = [sys.executable, "-m", "siwarp.cli"]

#: Beginnings of names of environment variables that an interpreter or a library reads only when it
#: is loaded. A program for which such a variable differs from the server's gets a new interpreter.
_READ_AT_START = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "SIWARP_SIM", "TZ")
#: The only such variable that a forked process can still apply.
_UNBUFFERED = "PYTHONUNBUFFERED"
#: Runs in which every program gets a new interpreter: sanitizers and branch counts write files at
#: the end of a process, and a simulated process chooses its library at its start.
_ALWAYS_NEW = ("COVERAGE", "SANITIZER", "SIWARP_SIM")
#: The largest request in octets. A request contains the environment.
_REQUEST = 1 << 20
#: The flag of setns(2) for a network namespace.
_CLONE_NEWNET = 0x40000000

Variables = tuple[tuple[str, str], ...]


def _variables_read_at_process_start(environment: dict[str, str]) -> Variables:
    return tuple(
        sorted(
            (k, v)
            for k, v in environment.items()
            if k.startswith(_READ_AT_START) and k != _UNBUFFERED
        )
    )


class _Server:
    """A server process, and the socket over which it receives requests.

    ``imports``: the modules that it imports; none for those of the commands.
    """

    def __init__(self, at_start: Variables, imports: Sequence[str]) -> None:
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("SIWARP_", *_READ_AT_START)) or k == _UNBUFFERED
        }
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *imports],
                pass_fds=[theirs.fileno()],
                env=kept | dict(at_start),
                cwd="/",
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.end)

    def end(self) -> None:
        """End the server; processes that it has started go on."""
        self.socket.close()
        self.process.wait()


#: The servers of this process, by variables and imports; protected by the lock.
_servers: dict[tuple[Variables, tuple[str, ...]], _Server] = {}
_lock = threading.Lock()


def _get_or_start_server(at_start: Variables, imports: Sequence[str]) -> _Server:
    with _lock:
        key = at_start, tuple(imports)
        if key not in _servers:
            _servers[key] = _Server(*key)
        return _servers[key]


def _is_python_program(args: Sequence[Any]) -> bool:
    """Return whether a command line has a module, code or a file for this Python, and no option."""
    first = [os.fspath(word) for word in args[:2]]
    return (
        len(first) == 2
        and first[0] == sys.executable
        and (first[1] in ("-m", "-c") or not first[1].startswith("-"))
    )


class SiwarpProcess(subprocess.Popen[AnyStr]):
    """A ``subprocess.Popen`` for ``[*COMMAND, ...]`` or another program of this Python.

    Any other program, and one with another option of ``subprocess.Popen`` than ``stdin``,
    ``stdout``, ``stderr``, ``text``, ``cwd`` and ``env``, is started by ``subprocess.Popen``.

    Args:
        args: the command line.
        network: a process whose network namespace the program runs in; needs root.
        imports: the modules that the server has. Such a server is used for programs whose
            environment has the same variables that are read at the start of a process; without
            ``imports`` a program with other such variables than this process is not forked.
        options: the options of ``subprocess.Popen``.

    """

    #: The pipe from which the exit status is read; None if subprocess.Popen started the program.
    _status: IO[bytes] | None = None
    _server: _Server | None = None

    def __init__(
        self,
        args: Sequence[Any],
        *,
        network: str | None = None,
        imports: Sequence[str] = (),
        **options: Any,
    ) -> None:
        wanted = _variables_read_at_process_start(dict(options.get("env") or os.environ))
        if (
            _is_python_program(args)
            and not set(_ALWAYS_NEW) & os.environ.keys()
            and options.keys() <= {"stdin", "stdout", "stderr", "text", "cwd", "env"}
            and (imports or wanted == _variables_read_at_process_start(dict(os.environ)))
        ):
            self._server = _get_or_start_server(wanted, imports)
        elif network is not None:
            args = ["nsenter", "-t", network, "-n", *args]
        self._network = network
        self._status_lock = threading.Lock()
        super().__init__(args, **options)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Start the program: the method by which subprocess.Popen starts a program."""
        if self._server is None:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        cwd, env = rest[4:6]
        child_input, _, _, child_output, _, child_errors = pipes = rest[9:15]
        request = {
            "arguments": [os.fsdecode(word) for word in args[1:]],
            "environment": dict(os.environ if env is None else env),
            "cwd": os.fsdecode(cwd or os.getcwd()),  # noqa: PTH109
            "network": self._network,
        }
        reader, writer = os.pipe()
        self._status = os.fdopen(reader, "rb", buffering=0)
        standard = [
            own if given == -1 else given
            for own, given in enumerate((child_input, child_output, child_errors))
        ]
        try:
            socket.send_fds(self._server.socket, [pickle.dumps(request)], [*standard, writer])
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
    """Import the modules of the commands, so that forked processes need not import them."""
    from siwarp.cli import app

    for module, _ in app._COMMANDS.values():
        importlib.import_module(module)
    for module in _IMPORTED_LATE:
        importlib.import_module(module)


def _fork(descriptors: list[int]) -> tuple[int, int]:
    """Fork; return the pid, and a pidfd, which is readable when the process has ended."""
    pid = os.fork()
    if pid == 0:
        return 0, -1
    os.write(descriptors[3], pid.to_bytes(4, "little"))
    return pid, os.pidfd_open(pid)


def _serve_fork_requests(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a process for each request, until the requesting process has closed the socket.

    Returns None in the server, and in a forked process its request and standard descriptors.
    """
    running: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and pipe for the exit status
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


def _become_program(request: dict[str, Any], descriptors: list[int]) -> None:
    """Make this process like a new interpreter that begins to run the program."""
    from siwarp.base import system

    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    unbuffered = bool(request["environment"].get(_UNBUFFERED))
    output = os.fdopen(1, "wb", 0 if unbuffered else -1, closefd=False)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(output, write_through=unbuffered)
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["network"] is not None:
        with open(f"/proc/{request['network']}/ns/net") as namespace:  # noqa: PTH123
            assert ctypes.CDLL(None).setns(namespace.fileno(), _CLONE_NEWNET) == 0
    system._QKEY = system._make_random_qkey()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_program(arguments: list[str]) -> None:
    """Run the program that the arguments of a Python interpreter name: -m, -c or a file."""
    what, *rest = arguments
    if what == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()  # noqa: PTH109
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if what == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(what)  # noqa: PTH120
        main.__file__ = what
        with open(what, "rb") as file:  # noqa: PTH123
            code = compile(file.read(), what, "exec")
    exec(code, main.__dict__)


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
    descriptor, *imports = sys.argv[1:]
    for module in imports:
        importlib.import_module(module)
    if not imports:
        _import_commands()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(descriptor)) as requests:
        found = _serve_fork_requests(requests)
    if found is None:
        return 0
    _become_program(*found)
    status: int | None = 0
    try:
        _run_program(found[0]["arguments"])
    except SystemExit as e:
        if not isinstance(e.code, int | None):
            raise
        status = e.code
    _exit(status or 0)
    return status or 0


if __name__ == "__main__":
    sys.exit(_main())
