# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measures FTP for comparison: vsftpd and curl, which use the kernel's TCP and no digest."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.papers.adts.ends import ClientAndServer
from lab.papers.adts.links import Loopback
from lab.papers.adts.promises import temporary_folder, write_random_file
from lab.papers.adts.summary import Log, judge_ratio, measure_rounds, summarize_values
from siwarp.bench.runner import BenchError

__all__ = ["measure_vsftpd_and_curl"]

_SETTINGS = """\
listen=YES
listen_address=127.0.0.1
listen_port={port}
background=NO
run_as_launching_user=YES
seccomp_sandbox=NO
anonymous_enable=YES
no_anon_password=YES
write_enable=YES
anon_upload_enable=YES
anon_world_readable_only=NO
anon_root={root}
secure_chroot_dir={empty}
"""


@contextlib.contextmanager
def _serve_with_vsftpd(folder: Path) -> Iterator[str]:
    """Create the directory ``ftp``, serve it with vsftpd, and yield its URL."""
    program = shutil.which("vsftpd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or shutil.which("curl") is None:
        raise BenchError("vsftpd or curl is missing: apt-get install vsftpd curl")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    root, empty, settings = folder / "ftp", folder / "empty", folder / "vsftpd.conf"
    for directory in (root, empty):
        directory.mkdir()
    settings.write_text(_SETTINGS.format(port=port, root=root, empty=empty), "utf-8")
    server = subprocess.Popen([program, str(settings)])
    try:
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.05)
        yield f"ftp://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


def _time_curl(*words: str) -> float:
    """Run curl, and return the seconds that curl reports."""
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--write-out", "%{stderr}%{time_total}", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise BenchError(f"curl: {done.stderr.strip()}")
    return float(done.stderr)


def measure_vsftpd_and_curl(size: int, rounds: int, log: Log) -> dict[str, Any]:
    """Measure put and get of one file on loopback with vsftpd and curl, beside ADTS.

    Raises:
        BenchError: vsftpd or curl is missing or failed, or another run of the first round.

    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        url = stack.enter_context(_serve_with_vsftpd(folder))
        ends = stack.enter_context(ClientAndServer(Loopback(), folder / "adts"))
        public = folder / "ftp"
        for path in (ends.client_folder / "file", ends.server_folder / "got", public / "got"):
            write_random_file(path, size)
        (public / "got").chmod(0o644)

        def measure_curl_upload_rate() -> float:
            (public / "file").unlink(missing_ok=True)
            return (
                size
                * 8e-6
                / _time_curl("--upload-file", str(ends.client_folder / "file"), f"{url}file")
            )

        def measure_curl_download_rate() -> float:
            target = folder / "curl"
            target.unlink(missing_ok=True)
            return size * 8e-6 / _time_curl("--output", os.fspath(target), f"{url}got")

        def measure_adts_rate(channel: str, way: str) -> float:
            name = "file" if way == "put" else "got"
            return ends.copy_files(channel, way, [name]).mbit_s

        runs: dict[str, Callable[[], float]] = {
            f"{way} {channel}": lambda channel=channel, way=way: measure_adts_rate(channel, way)  # type: ignore[misc]
            for way in ("put", "get")
            for channel in ("tcp", "rc", "rd")
        }
        found = measure_rounds(
            {"put curl": measure_curl_upload_rate, "get curl": measure_curl_download_rate, **runs},
            rounds,
            log,
        )
    judged = [
        judge_ratio(
            f"{way}: {channel.upper()} to vsftpd and curl",
            found[f"{way} {channel}"],
            found[f"{way} curl"],
            None,
        )
        for way in ("put", "get")
        for channel in ("tcp", "rc", "rd")
    ]
    rates = {name: summarize_values(values) for name, values in found.items()}
    return {"line": f"loopback, {size >> 20} MiB", "mbit_s": rates, "ratios": judged}
