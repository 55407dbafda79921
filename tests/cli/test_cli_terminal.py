"""Commands on terminals of 80 and 120 columns: no line is wider, and no word is broken."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main
from cli.cli_harness import (
    qkey_options,
    run_ping_server,
    run_siwarp_command,
    run_siwarp_in_process,
)
from harness.siwarp_process import COMMAND, SiwarpProcess
from pace import scale_limit
from table import run_test_for_each_row
from unit.inspect.inspect_harness import RECORDED

from siwarp.cli.app import build_app
from siwarp.cli.config import _select_settings
from siwarp.cli.run import _parse_options
from siwarp.cli.settings import settings

COMMANDS = [
    "demo", "ping", "devices", "doctor", "config", "counters", "capture", "dissect", "run", "env",
    "wan", "spec", "spec dgram", "spec adts", "sim", "cp", "serve", "ftp", "ftp serve", "ftp get",
    "ftp put", "ftp mirror", "bench", "bench lat", "bench bw", "bench rate", "bench memory",
    "bench threads", "bench all", "bench table",
]  # fmt: skip
CAPTURE = max(RECORDED, key=lambda path: path.stat().st_size)


def run_on_terminal(columns: int, *arguments: object, command: Sequence[str] = COMMAND) -> str:
    """Return the output of a command on a terminal of this width, without colours."""
    master, slave = pty.openpty()
    size = struct.pack("HHHH", {80: 24, 120: 40}.get(columns, 24), columns, 0, 0)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    octets = b""
    with (
        os.fdopen(master, "rb", buffering=0) as screen,
        SiwarpProcess(
            [*command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            cwd="/",
            env={**environment, "TERM": "xterm-256color"},
        ) as process,
    ):
        os.close(slave)
        limit = threading.Timer(scale_limit(60), process.kill)
        limit.start()
        # The error EIO means that the other end of the pty has been closed.
        with contextlib.suppress(OSError):
            while got := screen.read(1 << 16):
                octets += got
        assert process.wait() in (0, 2)
        limit.cancel()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", octets.decode()).replace("\r\n", "\n")


def find_lines_too_wide(said: str, columns: int) -> list[str]:
    """Return the lines that are too wide, except a single word that is too wide after its
    indent.
    """
    return [
        line
        for line in said.splitlines()
        if len(line) > columns and (len(line.split()) > 1 or len(line.strip()) <= columns - 4)
    ]


#: Program: prints the help of each command, in one process; a FORM FEED separates the texts.
PRINT_HELP_TEXTS = """
import sys
from siwarp.cli.main import main
for command in sys.argv[1:]:
    try:
        main([*command.split(), "--help"])
    except SystemExit as end:
        assert end.code == 0
    print(end="\\f", flush=True)
"""


@functools.cache
def collect_help_texts(columns: int) -> dict[str, str]:
    """Return the help of each command on a terminal of this width, keyed by command."""
    commands = ["", *COMMANDS]
    *said, rest = run_on_terminal(
        columns, *commands, command=[sys.executable, "-c", PRINT_HELP_TEXTS]
    ).split("\f")
    assert not rest
    return dict(zip(commands, said, strict=True))


@run_test_for_each_row("columns", [80, 120])
@run_test_for_each_row("command", ["", *COMMANDS])
def test_help_has_the_width_of_the_terminal_and_no_boxes(command: str, columns: int) -> None:
    said = collect_help_texts(columns)[command]
    assert "Usage: siwarp" in said
    assert not find_lines_too_wide(said, columns)
    assert not set(said) & set("│╭╰─")
    assert not re.search(r"[a-z,]\.\.\.", said)  # no help text was truncated with "..."


def find_example_commands(text: str) -> list[list[str]]:
    """Return the words after ``siwarp`` of each command line in a help text, and of each command
    that such a line starts.
    """
    lines = re.findall(r"^ {2,4}(siwarp \S.*)$", re.sub(r"\\\n +", "", text), re.MULTILINE)
    found = []
    for words in map(shlex.split, lines):
        found += [words, *(shlex.split(word) for word in words if word.startswith("siwarp "))]
        if "siwarp" in words[1:]:
            found.append(words[words.index("siwarp", 1) :])
    return [words[1:] for words in found]


def find_subcommand_of_words(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command at the beginning of the words, after any settings, and the later words."""
    options, rest = {setting.option for setting in settings()}, list(words)
    while rest and rest[0] in options:
        del rest[:2]
    command: Any = typer.main.get_command(build_app())
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command = command.commands[rest.pop(0).partition("|")[0]]
    return command, rest


def test_the_command_lines_in_every_help_text_are_valid() -> None:
    examples = [e for text in collect_help_texts(80).values() for e in find_example_commands(text)]
    assert ["ping", "10.77.0.2"] in examples and ["ping", "--server"] in examples
    for words in examples:
        command, rest = find_subcommand_of_words(words)
        if command.name in ("run", "env"):
            _parse_options(command.name, rest)
        elif command.name == "config":
            _select_settings([word for word in rest if not word.startswith("--c")])
        else:
            command.make_context(command.name, rest)


def test_the_commands_and_options_that_help_texts_mention_exist() -> None:
    for text in collect_help_texts(80).values():
        for mention in re.findall(r"`siwarp ([^`]+)`", re.sub(r"\n +", " ", text)):
            command, rest = find_subcommand_of_words(mention.split(" -- ")[0].split())
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in rest if word.startswith("-")} <= known | {"--help"}, mention


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ["config"],
        ["config", "source_share"],
        ["devices"],
        ["doctor"],
        ["dissect", CAPTURE],
        ["dissect", "--summary", CAPTURE],
    ],
    ids=lambda words: " ".join(map(str, words)).replace(str(CAPTURE), "FILE"),
)
def test_tables_break_lines_only_between_words(
    arguments: list[object], columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # doctor names processes that have lost messages; in an empty folder it finds no such process.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    said, plain = run_on_terminal(columns, *arguments), run_siwarp_in_process(*arguments).stdout
    assert not find_lines_too_wide(said, columns)
    assert not set(said) & set("│┃╭╰─━┏")
    assert sorted(said.split()) == sorted(plain.split())


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        ("ping -n 5", r"round trip in us: min .* max\s+[\d.]+"),
        ("ping -n 5 --qp rc", r"round trip in us: min .* max\s+[\d.]+"),
        ("demo --size 1 --no-bench", r"Next: siwarp ping; [^.]+\.py"),
        (
            "bench lat -n 50 --rounds 2 --qp rd --faults loss=1%",
            r"  siwarp, the same without the losses",
        ),
        ("bench lat -n 50 --rounds 2 --qp rc --markers", r"  raw TCP, blocking"),
        (
            "bench bw -n 50 --rounds 2 -s 60000",
            r"ratio [\d.]+ \([\d.]+ to [\d.]+; more is better\)",
        ),
    ],
)
def test_measurements_are_printed_without_broken_words(arguments: str, last: str) -> None:
    said = run_on_terminal(80, *arguments.split())
    # The output may have a line break where numbers are long.
    assert re.search(last, said, re.DOTALL)
    assert not find_lines_too_wide(said, 80)
    assert not re.search(r"\w…", said)


@pytest.mark.parametrize("columns", [80, 120])
def test_requirements_are_printed_with_their_tests_below(columns: int) -> None:
    said = run_on_terminal(columns, "spec", "dgram")
    assert not find_lines_too_wide(said, columns)
    (test,) = re.findall(r"DGRAM-LLP-2 +MUST\n    The last [^:]+\.\n    (\S+)\n", said)
    assert re.fullmatch(r"test_\w+\.py::test_\w+", test)


@pytest.mark.parametrize(
    "arguments",
    [
        "bench lat --markers -s 1000000 -D 1",
        "cp siw://127.0.0.1:9/results results --digest nonsense",
        "config no-such-setting-has-this-name",
        "run --faults loss=nonsense true",
    ],
)
def test_error_messages_break_lines_only_between_words(arguments: str) -> None:
    said = run_on_terminal(60, *arguments.split())
    assert said
    assert not find_lines_too_wide(said, 60)


def test_a_long_word_in_the_last_column_is_not_broken() -> None:
    with run_ping_server("--addr", "127.0.0.1") as (_port, process):
        said = run_on_terminal(40, "counters")
    assert str(process.pid) in said
    assert Path(COMMAND[0]).name in said


def test_watching_counters_prints_changes_until_the_process_ends() -> None:
    with (
        run_ping_server("--addr", "127.0.0.1") as (port, process),
        SiwarpProcess(
            [*COMMAND, "counters", str(process.pid), "--watch", "0.05"],
            stdout=subprocess.PIPE,
            text=True,
        ) as watching,
    ):
        assert (
            run_siwarp_command(
                "ping", "127.0.0.1", "-p", port, "-n", 25, *qkey_options()
            ).returncode
            == 0
        )
        assert watching.stdout is not None
        for line in watching.stdout:
            if re.match(r"rx_msgs +25\b", line):
                break
        process.terminate()
        rest = watching.stdout.read()
        assert watching.wait(scale_limit(60)) == 0
    assert rest.splitlines()[-1] == f"Process {process.pid} has ended."


@pytest.mark.parametrize("more", [["--json"], ["--prometheus"], []])
def test_watching_counters_needs_a_pid_and_prints_only_tables(more: list[str]) -> None:
    words = [str(os.getpid()), *more] if more else []
    done = run_siwarp_in_process("counters", *words, "--watch", 1)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--watch needs a PID, and cannot print JSON or Prometheus format" in done.stderr


def test_counters_are_printed_in_prometheus_format_for_each_process() -> None:
    with run_ping_server("--addr", "127.0.0.1") as (port, process):
        assert (
            run_siwarp_command(
                "ping", "127.0.0.1", "-p", port, "-n", 25, *qkey_options()
            ).returncode
            == 0
        )
        one = run_siwarp_command("counters", process.pid, "--prometheus").stdout
        every = run_siwarp_command("counters", "--prometheus").stdout
    sample = f'siwarp_rx_msgs_total{{pid="{process.pid}"}} 25'
    for text in (one, every):
        lines = text.splitlines()
        at = lines.index(sample)
        kinds = [line.split()[:3] for line in lines[:at] if line.startswith("#")]
        assert kinds[-2:] == [
            ["#", "HELP", "siwarp_rx_msgs_total"],
            ["#", "TYPE", "siwarp_rx_msgs_total"],
        ]
    families = re.findall(r"^# TYPE (\S+) counter$", one, re.MULTILINE)
    assert len(set(families)) == len(families) == one.count(f'{{pid="{process.pid}"}}')
