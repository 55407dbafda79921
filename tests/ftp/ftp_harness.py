"""Starts an FTP server in a process of its own, and connects clients to it."""

from __future__ import annotations

import contextlib
import ftplib
import ipaddress
import json
import multiprocessing
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Seconds without an answer after which a test has failed.
LIMIT = 60.0


#: Starts servers by forking a process that has already imported the modules of a server.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["siwarp.cli.main", "siwarp.cli.ftp", "siwarp.ulp.ftp.server"])


def _run_siwarp_command(
    arguments: Sequence[str],
    output: Connection,
    file_size: int | None,
    token_lifetime: float | None,
) -> None:
    """Act as the command `siwarp`, with standard output to ``output`` and shorter delays."""
    from siwarp.cli.main import main
    from siwarp.ulp.ftp import control, tprt, workers

    control.Handler.auth_failed_timeout = control.TLSHandler.auth_failed_timeout = 0
    workers.RESTART_PAUSE = 0.05
    if token_lifetime is not None:
        tprt.LIFETIME = token_lifetime
    if file_size is not None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, hard))
    os.dup2(output.fileno(), 1)
    output.close()
    sys.argv = ["siwarp", *arguments]
    main()


class ServerProcess:
    """``siwarp ftp serve`` on a free port."""

    def __init__(
        self,
        root: Path,
        *options: str,
        file_size: int | None = None,
        token_lifetime: float | None = None,
    ) -> None:
        """Start the server process, and wait until it listens.

        ``file_size``: the largest file, in octets, that it may write. ``token_lifetime``: seconds
        for which a token is valid.
        """
        arguments = ("ftp", "serve", str(root), "--port", "0", "--json", *options)
        reader, writer = _PROCESSES.Pipe(duplex=False)
        self.process = _PROCESSES.Process(
            target=_run_siwarp_command,
            args=(arguments, writer, file_size, token_lifetime),
            daemon=True,
        )
        self.process.start()
        writer.close()
        with os.fdopen(os.dup(reader.fileno())) as printed:
            line = printed.readline()
        reader.close()
        assert line, "the server has ended; its message is above"
        told = json.loads(line)
        self.host, self.port = told["addr"], told["port"]
        self.user, self.password = told.get("user", ""), told.get("password", "")

    def kill(self) -> None:
        """Kill the server, and wait until it has ended."""
        self.process.kill()
        self.process.join()

    @property
    def url(self) -> str:
        """The URL of the root, with user and password."""
        return f"ftp://{self.user}:{self.password}@{self.host}:{self.port}"

    def worker_pids(self) -> list[int]:
        """Return the PIDs of the workers."""
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def count_descriptors(self) -> int:
        """Return the number of open descriptors of all workers."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.worker_pids())

    def log_in(self, timeout: float = LIMIT) -> ftplib.FTP:
        """Return a connection that is logged in."""
        ftp = ftplib.FTP(timeout=timeout)
        ftp.connect(self.host, self.port)
        ftp.login(self.user, self.password)
        return ftp

    def connect(self) -> socket.socket:
        """Return a plain connection to the control port."""
        return socket.create_connection((self.host, self.port), LIMIT)


@contextlib.contextmanager
def run_server(root: Path, *options: str, **more: Any) -> Iterator[ServerProcess]:
    """Run a server in a with block; it has to end within seconds of SIGTERM, with status 0."""
    server = ServerProcess(root, *options, **more)
    try:
        yield server
        server.process.terminate()
        server.process.join(LIMIT)
        assert server.process.exitcode == 0
    finally:
        server.kill()


def wait_until(condition: Callable[[], bool], describe: Callable[[], object]) -> None:
    """Wait until a condition holds, at most ``LIMIT`` seconds; the condition is polled."""
    import net

    began = net.now()
    while not condition():
        assert net.now() - began < LIMIT, describe()
        net.sleep(0.01)


def read_file(ftp: ftplib.FTP, path: str, rest: int | None = None) -> bytes:
    """Return the octets of a file of the server."""
    found = bytearray()
    ftp.retrbinary(f"RETR {path}", found.extend, rest=rest)
    return bytes(found)


def send_part_and_reset(ftp: ftplib.FTP, command: str, data: bytes) -> None:
    """Send the beginning of a file, and then reset both connections."""
    ftp.voidcmd("TYPE I")
    with ftp.transfercmd(command) as data_socket:
        data_socket.sendall(data)
        # SO_LINGER with 0 seconds: close sends a reset.
        for sock in (data_socket, ftp.sock):
            assert sock is not None
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    ftp.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key; return the two files."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ftp test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def fewer_octets_for_ud(kind: str, count: int) -> int:
    """Return a test's number of octets for a transport: a sixth of ``count`` on UD.

    UD is slower, because a unit is a single datagram. A sixth of five megabytes is still more than
    the window of UD.
    """
    return count // 6 if kind == "ud" else count


def random_octets(count: int) -> bytes:
    """Return random octets, so that the data of different tests differs."""
    return os.urandom(count)
