"""Starts Python programs quickly: forks a process that has already imported their modules.

A new interpreter needs a tenth of a second of CPU time until it has imported typer and siwarp, and
the suite starts hundreds: the command ``siwarp``, and Python code of tests. ``SiwarpProcess``
therefore sends the program to a server, which has imported the modules but has opened no device and
started no thread. The server forks a process, which gets the arguments, the environment, the
directory and the standard descriptors of the program, and ends like an interpreter does. The server
is the parent of the process and reports the exit status.

A program that is started by a shell or by such a process, and not by a test, uses the server
through a client that is found as ``python`` and ``siwarp`` (tests/c/python.c;
``folder_of_fork_server_clients``).

This file is the server's program, too, and imports nothing else of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import io
import os
import pickle
import resource
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, AnyStr

COMMAND = [sys.executable, "-m", "siwarp.cli"]

#: Beginnings of names of environment variables that an interpreter or a library reads only when it
#: is loaded. A program for which such a variable differs from the server's gets a new interpreter.
_READ_AT_START = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "SIWARP_SIM", "TZ")
#: The only such variable that a forked process can still apply.
_UNBUFFERED = "PYTHONUNBUFFERED"
#: Modules that choose, before they import siwarp.verbs, whether the process is simulated.
_NOT_FORKED = ("pytest", "siwarp.sim.workloads")
#: Runs in which every program gets a new interpreter: sanitizers and branch counts write files at
#: the end of a process, and a simulated process chooses its library at its start.
_ALWAYS_NEW = ("COVERAGE", "SANITIZER", "SIWARP_SIM")
#: The largest request in octets. A request contains the environment.
_REQUEST = 1 << 20

Variables = tuple[tuple[str, str], ...]


def _variables_read_at_process_start(environment: dict[str, str]) -> Variables:
    return tuple(
        sorted(
            (k, v)
            for k, v in environment.items()
            if k.startswith(_READ_AT_START) and k != _UNBUFFERED
        )
    )


def _make_program_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder whose folder ``bin`` holds the clients of the fork server."""
    spec = importlib.util.find_spec("siwarp._siwarp")
    assert spec is not None and spec.origin is not None
    folder = tempfile.TemporaryDirectory(prefix="siwarp-python-")
    programs = Path(folder.name) / "bin"
    programs.mkdir()
    python = programs / "python"
    shutil.copy(Path(spec.origin).resolve().parent / "tests/c/siw-test-python", python)
    for name in ("python3", "siwarp"):
        (programs / name).hardlink_to(python)
    (Path(folder.name) / "interpreter").symlink_to(sys.executable)
    Path(folder.name).chmod(0o755)  # for programs that another user starts
    return folder


class _Server:
    """A server process, and the socket over which it receives requests.

    ``imports``: the modules that it imports; none for those of the commands. Such a server also
    receives the requests of the programs in the folder ``programs``.
    """

    programs: Path | None = None

    def __init__(self, at_start: Variables, imports: Sequence[str]) -> None:
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("SIWARP_", *_READ_AT_START)) or k == _UNBUFFERED
        }
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(theirs)]
            if not imports:
                self._folder = _make_program_folder()
                self.programs = Path(self._folder.name) / "bin"
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                sockets.append(stack.enter_context(listener))
                listener.bind(f"{self._folder.name}/socket")
                listener.listen(64)
            numbers = [each.fileno() for each in sockets]
            self.process = subprocess.Popen(
                [sys.executable, __file__, ",".join(map(str, numbers)), *imports],
                pass_fds=numbers,
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


def folder_of_fork_server_clients() -> Path:
    """Return a folder with the programs ``python``, ``python3`` and ``siwarp``.

    The server forks what they run, if it has the variables that are read at the start of a process
    and the command line has a module, code or a file, and no option of the interpreter. Otherwise
    they start a new interpreter. The process has a session of its own, and another process ID than
    the program, which forwards signals to it.
    """
    if set(_ALWAYS_NEW) & os.environ.keys():
        return Path(sys.executable).parent
    at_start = _variables_read_at_process_start(dict(os.environ))
    programs = _get_or_start_server(at_start, ()).programs
    assert programs is not None
    return programs


def _command_runs_this_python(args: Sequence[Any]) -> bool:
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
            _command_runs_this_python(args)
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


#: A request in the server: what the process gets, its descriptors by the numbers that they have in
#: the program, and the descriptor to which its process ID and status are written.
_Received = tuple[dict[str, Any], dict[int, int], int]


def _parse_fork_request(data: bytes) -> tuple[dict[str, Any], list[int]]:
    """Return a request of tests/c/python.c, and the numbers of its descriptors."""
    cwd, count, *words = map(os.fsdecode, data.split(b"\0")[:-1])
    arguments, (numbers, *environment) = words[: int(count)], words[int(count) :]
    request = {
        "arguments": arguments,
        "environment": {name: value for name, _, value in (v.partition("=") for v in environment)},
        "cwd": cwd,
        "network": None,
    }
    return request, list(map(int, numbers.split()))


def _is_in_namespace_of(client: int, kind: str) -> bool:
    try:
        theirs = Path(f"/proc/{client}/ns/{kind}").readlink()
    except FileNotFoundError:  # the client has ended
        return False
    return theirs == Path(f"/proc/self/ns/{kind}").readlink()


def _receive_fork_request(listener: socket.socket) -> _Received | None:
    """Receive the request of a client of tests/c/python.c; refuse it if no fork can serve it."""
    connection, _ = listener.accept()
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    client, user, _ = struct.unpack("iII", credentials)
    data, descriptors, _, _ = socket.recv_fds(connection, _REQUEST, 253)
    request, numbers = _parse_fork_request(data) if data else ({}, [])
    if (
        data
        and user == os.getuid()
        and {0, 1, 2} <= set(numbers)
        and _command_runs_this_python([sys.executable, *request["arguments"]])
        and not set(_NOT_FORKED) & set(request["arguments"][:2])
        and _variables_read_at_process_start(request["environment"])
        == _variables_read_at_process_start(dict(os.environ))
        and all(_is_in_namespace_of(client, kind) for kind in ("mnt", "pid"))
    ):
        request["client"] = client
        return request, dict(zip(numbers, descriptors, strict=True)), connection.detach()
    with connection, contextlib.suppress(BrokenPipeError):
        connection.send(bytes(4))
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _receive_request(requests: socket.socket) -> _Received | None:
    """Receive a request of ``SiwarpProcess``; return None if no more can come."""
    data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST, 4)
    return (pickle.loads(data), dict(enumerate(descriptors[:3])), descriptors[3]) if data else None


def _serve_fork_requests(
    requests: socket.socket, listener: socket.socket | None
) -> tuple[dict[str, Any], dict[int, int]] | None:
    """Fork a process for each request, until no request of ``SiwarpProcess`` can come.

    Returns None in the server, and in a forked process its request and its descriptors.
    """
    running: dict[int, tuple[int, int]] = {}  # by pidfd: pid, descriptor for the exit status
    #: By the client's connection: the pid of its program, which is killed when the client ends.
    clients: dict[int, int] = {}
    events = select.poll()
    events.register(requests, select.POLLIN)
    if listener is not None:
        events.register(listener, select.POLLIN)
    while True:
        # New descriptors are opened only for the first events, before others are closed.
        for ready, _ in events.poll():
            if ready in running:
                events.unregister(ready)
                pid, status = running.pop(ready)
                if clients.pop(status, None) is not None:
                    events.unregister(status)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, os.waitpid(pid, 0)[1].to_bytes(4, "little"))
                os.close(status)
                os.close(ready)
                continue
            if ready in clients:
                events.unregister(ready)
                os.kill(clients.pop(ready), signal.SIGKILL)
                continue
            if listener is not None and ready == listener.fileno():
                received = _receive_fork_request(listener)
                if received is None:
                    continue
            elif ready == requests.fileno():
                received = _receive_request(requests)
                if received is None:
                    return None
            else:  # the connection of a client that ended at the same time as its program
                continue
            request, descriptors, status = received
            pid = os.fork()
            if pid == 0:
                for ended, (_, other) in running.items():
                    os.close(ended)
                    os.close(other)
                os.close(status)
                return request, descriptors
            with contextlib.suppress(BrokenPipeError):
                os.write(status, pid.to_bytes(4, "little"))
            ended = os.pidfd_open(pid)
            events.register(ended, select.POLLIN)
            running[ended] = pid, status
            if "client" in request:
                events.register(status, 0)  # only the end of the connection
                clients[status] = pid
            for descriptor in descriptors.values():
                os.close(descriptor)


def _inherit_from_client(client: int) -> None:
    """Take over what a program inherits from its parent, from a client of tests/c/python.c."""
    os.setsid()
    with open(f"/proc/{client}/status") as file:  # noqa: PTH123
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    ignored = int(status["SigIgn"], 16)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if ignored >> (number - 1) & 1:
            signal.signal(number, signal.SIG_IGN)
    os.umask(int(status["Umask"], 8))
    os.sched_setaffinity(0, os.sched_getaffinity(client))
    for limit in range(16):
        resource.setrlimit(limit, resource.prlimit(client, limit))
    kinds = [kind for kind in ("user", "net") if not _is_in_namespace_of(client, kind)]
    _enter_namespaces(f"/proc/{client}/ns/{kind}" for kind in kinds)


def _enter_namespaces(paths: Iterable[str]) -> None:
    with contextlib.ExitStack() as stack:
        # Those of a process can be opened only before the first is entered.
        for file in [stack.enter_context(open(path)) for path in paths]:  # noqa: PTH123
            assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0


def _place_descriptors(descriptors: dict[int, int]) -> None:
    """Give descriptors their numbers."""
    above = max(descriptors) + 1
    for number, descriptor in descriptors.items():
        descriptors[number] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
        os.close(descriptor)
    for number, descriptor in descriptors.items():
        os.dup2(descriptor, number)
        os.close(descriptor)


def _imitate_new_interpreter(
    request: dict[str, Any], descriptors: dict[int, int], programs: Path | None
) -> None:
    """Make this process like a new interpreter that begins to run the program."""
    _place_descriptors(descriptors)
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
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["network"] is not None:
        _enter_namespaces([f"/proc/{request['network']}/ns/net"])
    if "client" in request:
        _inherit_from_client(request["client"])
    if programs is not None:
        sys.executable = str(programs / "python")
    if (system := sys.modules.get("siwarp.base.system")) is not None:
        system._QKEY = system._make_random_qkey()


def _run_in_this_interpreter(arguments: list[str]) -> None:
    """Run the program that the arguments of a Python interpreter name: -m, -c or a file."""
    what, *rest = arguments
    if what == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()  # noqa: PTH109
        if not hasattr(sys.modules.get(rest[0]), "__path__"):
            sys.modules.pop(rest[0], None)  # runpy warns of a module that was imported before
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


def _run_exit_handlers_and_exit(status: int) -> None:
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
    descriptors, *imports = sys.argv[1:]
    for module in imports:
        importlib.import_module(module)
    if not imports:
        _import_commands()
    gc.collect()
    gc.freeze()
    with contextlib.ExitStack() as stack:
        requests, *rest = (
            stack.enter_context(socket.socket(fileno=int(number)))
            for number in descriptors.split(",")
        )
        listener = rest[0] if rest else None
        programs = None if listener is None else Path(listener.getsockname()).parent / "bin"
        found = _serve_fork_requests(requests, listener)
    if found is None:
        return 0
    _imitate_new_interpreter(*found, programs)
    status: int | None = 0
    try:
        _run_in_this_interpreter(found[0]["arguments"])
    except SystemExit as e:
        if not isinstance(e.code, int | None):
            raise
        status = e.code
    _run_exit_handlers_and_exit(status or 0)
    return status or 0


if __name__ == "__main__":
    sys.exit(_main())
