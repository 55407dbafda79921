"""The program runs under `siwarp run`, and the test is its peer, by means of siwarp.connect."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import siwarp

#: Seconds after which the program counts as hanging.
LIMIT = 60


@pytest.fixture(scope="session")
def upper_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the program as for an adapter; `siwarp run` replaces the libraries at run time."""
    program = tmp_path_factory.mktemp("build") / "upper"
    source = Path(__file__).with_name("upper.c")
    subprocess.run(
        ["cc", "-O2", "-Wall", "-Wextra", source, "-o", program, "-lrdmacm", "-libverbs"],
        check=True,
    )
    return program


class Server:
    """The program under test, which is running."""

    def __init__(self, program: Path, *options: str) -> None:
        siwarp_command = shutil.which("siwarp", path=str(Path(sys.executable).parent)) or "siwarp"
        self.process = subprocess.Popen(
            [siwarp_command, "run", *options, "--", program, "127.0.0.1"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = "127.0.0.1", int(self.process.stdout.readline())

    def wait(self) -> int:
        """Return the program's exit status, after it has ended by itself."""
        return self.process.wait(LIMIT)


@pytest.fixture
def start_server(upper_program: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts the program; at the end of the test, the program is killed."""
    started: list[Server] = []

    def start_program(*options: str) -> Server:
        started.append(Server(upper_program, *options))
        return started[-1]

    yield start_program
    for server in started:
        server.process.kill()
        server.process.wait()


def test_messages_are_returned_in_capital_letters(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with siwarp.connect(server.address) as conn:
        for message in (b"hello", b"", b"x" * 4096):
            conn.send(message, LIMIT)
            assert conn.recv(LIMIT) == message.upper()
    assert server.wait() == 0


def test_the_program_ends_when_its_connection_is_reset(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--faults", "reset=2KB")
    with siwarp.connect(server.address) as conn, pytest.raises(siwarp.PeerGone):
        for _ in range(10):
            conn.send(b"x" * 1000, LIMIT)
            conn.recv(LIMIT)
    assert server.wait() == 0


def test_a_message_longer_than_the_receive_is_refused(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with siwarp.connect(server.address) as conn, pytest.raises(siwarp.Error):
        conn.send(b"x" * 5000, LIMIT)
        conn.recv(LIMIT)
    assert server.wait() == 1
