"""Helpers that run the siwarp command as a process or in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pace
from harness.siwarp_process import COMMAND, SiwarpProcess

from siwarp.cli.main import main

#: The Q_Key of the UD, UC and RD servers that `run_ping_server` starts.
QKEY = 4711


def environment_without_sanitizer() -> dict[str, str]:
    """Return the environment for third-party programs, into which no sanitizer library is
    loaded.
    """
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def is_running(pid: int) -> bool:
    """Return whether a process exists that has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def run_siwarp_command(
    *arguments: object, cwd: object = "/", env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return pace.run_command(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        seconds=timeout,
        cwd=str(cwd),
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        start=SiwarpProcess,
        check=False,
    )


def run_siwarp_in_process(
    *arguments: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a siwarp command in this process, which avoids the start of another interpreter.

    Only commands that change no setting can be run in this way.
    """
    words = list(map(str, arguments))
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, env or {}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main(words)
        except SystemExit as end:
            assert isinstance(end.code, int)
            status = end.code
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def dissect_to_json(file: object, *options: object) -> Any:
    """Return the parsed output of ``siwarp dissect --json`` for a file."""
    done = run_siwarp_in_process("dissect", file, *options, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_siwarp_json(*arguments: object) -> Any:
    done = run_siwarp_command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def qkey_options(qp: str = "ud") -> list[str]:
    """Return the Q_Key options that a client of `run_ping_server` needs."""
    return [] if qp == "rc" else ["--qkey", str(QKEY)]


@contextlib.contextmanager
def run_ping_server(
    *arguments: object, env: dict[str, str] | None = None
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run a ``siwarp ping --server``; yield its port and its process."""
    words = [*COMMAND, "ping", "--server", "--port", "0", "--json", *map(str, arguments)]
    with SiwarpProcess(
        words
        if "SIWARP_QKEY" in (env or {})
        else words + qkey_options("rc" if "rc" in words else "ud"),
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, **(env or {})},
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["port"], process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
