"""Each command in a tmux terminal: no line exceeds the terminal's width, and no box is drawn."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.test_cli_terminal import CAPTURE, COMMANDS, PRINT_HELP_TEXTS
from harness.siwarp_process import COMMAND
from pace import limit_exceeded

pytestmark = pytest.mark.programs
SIZES = [(80, 24), (120, 40)]
#: Prints the help of every command; the output of one process is seen sooner than that of forty.
EVERY_HELP = shlex.join([sys.executable, "-c", PRINT_HELP_TEXTS, "", *COMMANDS])
SHOWN_COMMANDS = [
    EVERY_HELP,
    "config",
    "devices",
    "doctor",
    "spec dgram",
    "spec adts",
    f"dissect {shlex.quote(str(CAPTURE))}",
    "ping -n 5",
    "demo --size 1 --no-bench",
    "bench lat -n 50 --rounds 2 --qp rc --markers",
    "serve . --port 0 --until-eof </dev/null",
    "cp siw://127.0.0.1:1/results results --key /nonexistent/key",
    "ftp get ftp://127.0.0.1:1/results results",
]


class Tmux:
    """A separate tmux server without any user's settings."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "tmux"

    def __call__(self, *words: object) -> str:
        command = ["tmux", "-f", "/dev/null", "-S", self.socket, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def run_and_capture_lines(self, command: str, columns: int, lines: int) -> list[str]:
        """Return the lines that a command printed, after it has ended; a wrapped line is returned
        as one line.
        """
        size = ["-x", columns, "-y", lines]
        self("new-session", "-d", "-s", "it", *size, command)
        began = time.monotonic()
        while self("display", "-p", "-t", "it", "#{pane_dead}").strip() != "1":
            assert not limit_exceeded(began, 60), self("capture-pane", "-p", "-t", "it")
            time.sleep(0.05)
        seen = self("capture-pane", "-p", "-J", "-S", "-", "-t", "it")
        self("kill-session", "-t", "it")
        return [line.rstrip() for line in seen.splitlines()]


@pytest.fixture(scope="module")
def tmux_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tmux]:
    made = Tmux(tmp_path_factory.mktemp("t"))
    made("new-session", "-d", "-s", "stays", "sleep 3600")
    for option, value in (
        ("history-limit", 20_000),
        ("remain-on-exit", "on"),
        ("remain-on-exit-format", ""),
    ):
        made("set", "-g", option, value)
    yield made
    made("kill-server")


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40"])
@pytest.mark.parametrize(
    "command", SHOWN_COMMANDS, ids=lambda c: c.replace(str(CAPTURE), "FILE")[-40:]
)
def test_no_output_line_is_wrapped_except_a_single_word_that_is_too_wide(
    tmux_server: Tmux, command: str, size: tuple[int, int]
) -> None:
    line = command if command == EVERY_HELP else f"{shlex.join(COMMAND)} {command}"
    shown = tmux_server.run_and_capture_lines(f"cd / && {line}", *size)
    assert [line for line in shown if line], "the command printed nothing"
    assert not any(line.startswith("Traceback") for line in shown)
    assert not [line for line in shown if len(line) > size[0] and len(line.split()) > 1]
    assert not set("".join(shown)) & set("│┃╭╰┏")
