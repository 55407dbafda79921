# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The far end of ``siwarp cp HOST:PATH``: a server for one copy, started through ssh.

``siwarp cp`` runs ``siwarp cp-far-end PATH...`` at the other machine. The far end listens on the
address that ssh was connected to, prints its port, a random key and the paths on standard output,
and ends when its standard input ends, which is when the connection of ssh ends. Files do not pass
through ssh.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import typer

from siwarp.cli.adts_key import parse_channel_list
from siwarp.cli.peer import call_at_stdin_end
from siwarp.cli.serve import raise_descriptor_limit

__all__ = [
    "FarEnd",
    "FarEndError",
    "HostPath",
    "cp_far_end",
    "parse_host_path",
    "start_far_end_over_ssh",
]

#: What the far end's line on standard output begins with. Other lines are from the login scripts of
#: the remote shell.
_MARK = "siwarp-cp-far-end "
#: Maximum number of lines of login scripts that are skipped, and maximum length of a line.
_MOST_LINES, _LONGEST_LINE = 1000, 1 << 20
#: Seconds within which the far end must be ready. sshd waits 120 s for a login by default, in which
#: ssh may ask for a password, and login scripts may be slow.
START_S = 300
#: Seconds for which the far end may take to end after the copy.
_END_S = 5
#: Seconds within which the port of the far end must answer.
CONNECT_S = 10
#: Exit status of a shell that finds no such program, and of ssh without a connection.
_NO_PROGRAM, _NO_CONNECTION = 127, 255

_HOST_PATH = re.compile(
    r"(?P<host>(?:[^@:/\[\]]+@)?(?:\[[^\]/]+\]|[^:/\[\]]+)):(?P<path>.*)", re.DOTALL
)


@dataclass(frozen=True)
class HostPath:
    """A path at a machine that is reached through ssh; ``host`` may begin with a user."""

    host: str
    path: str


def parse_host_path(text: str) -> HostPath | None:
    """Return the path that ``[USER@]HOST:PATH`` means; None for a local path or another form.

    As with rsync, a local path with a colon is given as ``./a:b``.

    Raises:
        ValueError: it is the address of an rsync daemon, or the host looks like an option of ssh.

    """
    found = _HOST_PATH.fullmatch(text)
    if found is None or found["path"].startswith("//"):
        return None
    host, path = found["host"], found["path"]
    if path.startswith(":"):
        raise ValueError(f"{text}: two colons mean an rsync daemon: give [USER@]HOST:PATH")
    if host.startswith("-"):
        raise ValueError(f"{text}: give a host whose name does not begin with '-'")
    return HostPath(re.sub(r"\[(.*)\]", r"\1", host), path)


class FarEndError(Exception):
    """The far end could not be started; the text says why and what to do."""


class _Answer(NamedTuple):
    """The line that the far end prints when it accepts connections."""

    #: The address and the port on which the far end listens.
    host: str
    port: int
    #: The key of the session, as text.
    key: str
    #: The paths of the command, relative to the directory that the far end serves.
    paths: list[str]

    @classmethod
    def parse(cls, answer: dict[str, Any], paths: int) -> _Answer:
        """Return the far end's answer from its parsed line, which must list ``paths`` paths.

        Raises:
            KeyError, TypeError, ValueError: the line is of another form.

        """
        from siwarp.ulp.adts import Key

        found = cls(
            str(answer["host"]), int(answer["port"]), str(answer["key"]), list(answer["paths"])
        )
        Key.from_text(found.key)
        if len(found.paths) != paths or not 0 < found.port < 1 << 16:
            raise ValueError(answer)
        return found


class FarEnd:
    """A running far end on another host, started by ``start_far_end_over_ssh``."""

    def __init__(self, process: subprocess.Popen[bytes], host: str, answer: _Answer) -> None:
        self._process = process
        self._host = host.rpartition("@")[2]
        self._listens_on, self._port, self.key, self._paths = answer

    def urls(self, given: list[str]) -> list[str]:
        """Return the URLs of ``given``, the paths that were passed to ``start_far_end_over_ssh``.

        Raises:
            FarEndError: the far end cannot be reached.

        """
        address = self._find_address()
        shown = f"[{address}]" if ":" in address else address
        ends = ("/" if path.endswith("/") else "" for path in given)
        return [
            f"siw://{shown}:{self._port}/{quote(os.fsencode(path))}{end}"
            for path, end in zip(self._paths, ends, strict=True)
        ]

    def _find_address(self) -> str:
        """Return an address at which the port of the far end can be reached."""
        reason = ""
        # If a router translates addresses, the far end does not know the address at which it is
        # reachable.
        for address in (self._listens_on, self._host):
            try:
                with socket.create_connection((address, self._port), CONNECT_S) as probe:
                    return str(probe.getpeername()[0])
            except OSError as e:
                reason = reason or (e.strerror or str(e))
        raise FarEndError(
            f"siwarp was started at {self._host} through ssh, but TCP port {self._port} of "
            f"{self._listens_on} cannot be reached ({reason}): files do not pass through ssh: "
            "let the firewalls pass TCP and UDP between the two machines, or use a tunnel"
        )

    def close(self) -> None:
        """End the far end and ssh."""
        _close_pipes_and_wait(self._process)

    def __enter__(self) -> FarEnd:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def start_far_end_over_ssh(
    host: str, paths: list[str], *, write: bool, rsh: str, program: str, channels: list[str]
) -> FarEnd:
    """Start the far end at a host, and wait until it listens.

    Args:
        host: as for ssh, perhaps with a user.
        paths: the paths at the host; a relative one begins in the user's home directory.
        write: whether the copy changes files there.
        rsh: the command to use in place of ``ssh``, with its options.
        program: siwarp's name at the host, which the remote shell interprets.
        channels: names of channels.

    Raises:
        FarEndError: ssh or siwarp is missing, ssh gets no connection, or the far end has refused
            the paths.

    """
    words = [program, "cp-far-end", *(["--write"] if write else [])]
    words += ["--channel", ",".join(channels), "--", *(shlex.quote(path) for path in paths)]
    shell = shlex.split(rsh)
    try:
        process = subprocess.Popen(
            [*shell, host, " ".join(words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    except (OSError, IndexError) as e:
        reason = e.strerror if isinstance(e, OSError) else "no command"
        raise FarEndError(
            f"cannot start {rsh!r} ({reason}): install an ssh client, or name another one with "
            "--rsh; or run `siwarp serve` at the far end, and copy with siw://HOST/PATH"
        ) from None
    try:
        return FarEnd(process, host, _read_answer(process, shell[0], host, program, len(paths)))
    except BaseException:
        process.terminate()
        _close_pipes_and_wait(process)
        raise


def _close_pipes_and_wait(process: subprocess.Popen[bytes]) -> None:
    """Close the program's standard input, which tells the program to exit; wait for its exit."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.stdout.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def _read_lines(fd: int, limit: float) -> Iterator[str]:
    """Yield the lines that arrive on a descriptor, and a last line without a newline.

    Raises:
        TimeoutError: the next line was not complete ``limit`` seconds after the first call.

    """
    deadline = time.monotonic() + limit
    held = b""
    while True:
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        octets = os.read(fd, 65536)
        *lines, held = (held + octets).split(b"\n")
        if len(held) > _LONGEST_LINE or not octets:
            lines, held = [*lines, held], b""
        for line in lines:
            yield line.decode(errors="replace") + "\n"
        if not octets:
            return


def _read_answer(
    process: subprocess.Popen[bytes], shell: str, host: str, program: str, paths: int
) -> _Answer:
    """Read the far end's line, while ssh may ask for a password."""
    assert process.stdout is not None
    late = FarEndError(
        f"{program} at {host} was not ready {START_S:g} seconds after the start of {shell}: check "
        f"that `{shell} {host} {program} --version` ends, and that no login script waits for input"
    )
    lines = _read_lines(process.stdout.fileno(), START_S)
    for _ in range(_MOST_LINES):
        try:
            line = next(lines, "")
        except TimeoutError:
            raise late from None
        if line.startswith(_MARK):
            try:
                answer = json.loads(line[len(_MARK) :])
                if "error" not in answer:
                    return _Answer.parse(answer, paths)
            except (KeyError, TypeError, ValueError):
                raise FarEndError(
                    f"{program} at {host} sent an answer of another form: install the same release "
                    "of siwarp at both ends"
                ) from None
            raise FarEndError(f"{host}: {answer['error']}")
        if not line:
            break
    try:
        status = process.wait(START_S) if not line else None
    except subprocess.TimeoutExpired:
        raise late from None
    if status == _NO_PROGRAM:
        raise FarEndError(
            f"{host} has no command {program!r}: install siwarp there, or give its path with "
            "--siwarp-path"
        )
    if status == _NO_CONNECTION:
        raise FarEndError(f"{shell} got no connection to {host}: see its message above")
    how = "sent too many other lines" if status is None else f"ended with status {status}"
    raise FarEndError(
        f"{program} at {host} {how} before it was ready: install the same release of siwarp at "
        "both ends, and let the login scripts print nothing"
    )


# ---- at the far end


def _directory_to_serve(paths: list[str], *, is_target: bool) -> tuple[Path, list[str]]:
    """Return the directory to serve, and the paths relative to it.

    The directory has the names of all paths. It is the directory itself for one that is the target
    of the copy, that the path does not name (``.``), or that is named by a symbolic link.
    """
    places: list[tuple[Path, str]] = []
    for path in paths:
        where = Path(path).expanduser()
        names_itself = where.name not in {"", ".."} and not where.is_symlink()
        if where.is_dir() and (is_target or not names_itself):
            places.append((where.resolve(), ""))
        else:
            places.append((where.parent.resolve(strict=True), where.name))
    root = Path(os.path.commonpath([folder for folder, _ in places]))
    return root, [
        "/".join(part for part in (str(folder.relative_to(root)), name) if part not in {"", "."})
        for folder, name in places
    ]


async def _serve_until_stdin_ends(paths: list[str], write: bool, channels: list[str]) -> None:
    from siwarp.ulp.adts import Key
    from siwarp.ulp.adts import serve as serve_directory

    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) != 4:
        raise OSError(
            "the remote shell did not set SSH_CONNECTION, which has the address to listen on: use "
            "ssh, or run `siwarp serve` at the far end, and copy with siw://HOST/PATH"
        )
    root, relative = _directory_to_serve(paths, is_target=write)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)

    def stop_at_eof() -> None:
        loop.call_soon_threadsafe(stop.set)

    call_at_stdin_end(stop_at_eof)
    key = Key.random()
    address = connection[2], 0
    async with await serve_directory(
        root, address, key=key, writable=write, channels=channels
    ) as server:
        host, port = server.address
        _print_answer({"host": host, "port": port, "key": key.text, "paths": relative})
        await stop.wait()


def _print_answer(answer: dict[str, Any]) -> None:
    print(_MARK + json.dumps(answer), flush=True)


def cp_far_end(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...")],
    write: bool = typer.Option(False, "--write"),
    channels: str = typer.Option("rd,rc,tcp", "--channel", metavar="LIST"),
) -> None:
    """Serve the far end of one `siwarp cp HOST:PATH`, which starts this command through ssh."""
    names = parse_channel_list(channels)
    raise_descriptor_limit()
    try:
        asyncio.run(_serve_until_stdin_ends(paths, write, names))
    except OSError as e:
        where = f"{e.filename}: " if e.filename is not None else ""
        _print_answer({"error": f"{where}{e.strerror or e}"})
        raise typer.Exit(1) from None
