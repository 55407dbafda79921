"""A program that acts as ssh does, with the other end of `siwarp cp HOST:PATH` on loopback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from cli.cli_harness import is_running, run_siwarp_command
from harness.siwarp_process import folder_of_fork_server_clients
from harness.verbs_harness import wait_until

#: A program that runs the arguments after the host by a shell, as ssh does, with SSH_CONNECTION set
#: and the exit status of the shell. The program writes its process id and the host to a log.
FAKE_SSH = """#!/bin/sh
while [ "$1" = -p ]; do shift 2; done
echo "$$ $1" >>"$FAKE_SSH_LOG"
[ "$1" != unreachable ] || { echo "ssh: no route to host" >&2; exit 255; }
shift
cd "$FAKE_SSH_HOME"
echo "Welcome to this machine."
[ -z "$FAKE_SSH_CONNECTION" ] || export SSH_CONNECTION="$FAKE_SSH_CONNECTION"
exec /bin/sh -c "$*"
"""


class Ssh:
    """A directory with the programs `ssh` and `siwarp`, and the user's home at the far end."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.log = root / "log"
        self.programs = root / "bin"
        for folder in (self.home, self.programs):
            folder.mkdir()
        self.add_program("ssh", FAKE_SSH)
        self.add_program(
            "siwarp", f'#!/bin/sh\nexec "{folder_of_fork_server_clients()}/siwarp" "$@"\n'
        )

    def add_program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, connection: str = "127.0.0.1 1 127.0.0.1 22") -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "FAKE_SSH_LOG": str(self.log),
            "FAKE_SSH_HOME": str(self.home),
            "FAKE_SSH_CONNECTION": connection,
        }

    def run_siwarp_cp(
        self, *arguments: object, env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        return run_siwarp_command("cp", *arguments, env=self.environment() | (env or {}), **more)

    def check_that_far_ends_have_ended(self) -> None:
        for line in self.log.read_text().splitlines():
            pid = int(line.split()[0])
            wait_until(lambda pid=pid: not is_running(pid), 30)
