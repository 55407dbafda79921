"""What `siwarp cp` and `siwarp serve` print if a name is hostile, or an option is wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import run_siwarp_command, run_siwarp_in_process

from siwarp.ulp import adts


def test_names_of_a_peer_do_not_control_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def return_failure_with_escape_sequence(*_: Any, **__: Any) -> adts.Result:
        text = "e\x1b[31mvil: is a directory at the receiver"
        return adts.Result(failures=[adts.Failure("", adts.ErrorCode.KIND, text)])

    monkeypatch.setattr(adts, "copy_async", return_failure_with_escape_sequence)
    done = run_siwarp_in_process("cp", "siw://[::1]/x", ".", env={"ADTS_KEY": "0" * 64})
    assert done.returncode == 23
    assert "e\\x1b[31mvil: is a directory" in done.stderr


def test_a_server_that_cannot_listen_says_where_and_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_siwarp_command("serve", tmp_path, "--port", port)
    assert done.returncode == 1
    assert f"cannot listen at 127.0.0.1 port {port}: Address already in use" in done.stderr
    assert "free port" in done.stderr


def test_a_server_listens_on_loopback_unless_told(tmp_path: Path) -> None:
    done = run_siwarp_command("serve", tmp_path, "--port", 0, "--json", "--until-eof")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["host"] == "127.0.0.1"


def test_an_unknown_channel_is_reported_with_the_option_that_names_it(tmp_path: Path) -> None:
    done = run_siwarp_in_process("serve", tmp_path, "--channel", "rx")
    assert done.returncode == 2
    assert "--channel" in done.stderr and "use rd, rc, ud or tcp" in done.stderr
