# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Copies a file over raw UDP sockets on loopback: the minimum cost of a transfer over UDP.

Both ends do the same work as the ends of ADTS: the sender reads units of 1 MiB; the receiver writes
them to a temporary file, which it renames if the CRC32C of the file is correct. Datagrams have no
headers, and nothing is retransmitted: on loopback, datagrams keep their order, and are lost only if
more are sent than the receive buffer holds, which the window prevents.

``receive PATH`` prints its port; ``send PATH PORT`` prints the seconds of the transfer.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import crc32c

from siwarp.bench.runner import BenchError

__all__ = ["copy_over_raw_udp"]

UNIT = 1 << 20
#: Octets of a datagram, as many as ``siwarp bench`` sends with raw sockets.
DATAGRAM = 60_000
#: Maximum number of units that the receiver has not confirmed.
WINDOW = 4
#: Octets of the receive buffer, which must also hold the kernel's overhead per datagram.
BUFFER = 4 * WINDOW * UNIT
_SO_RCVBUFFORCE = 33
#: Seconds without a datagram after which a transfer has failed.
_SILENCE_S = 5


def copy_over_raw_udp(source: Path, target: Path) -> float:
    """Copy a file; return the seconds of the transfer.

    Raises:
        BenchError: an end failed, or a datagram was lost.

    """
    target.unlink(missing_ok=True)
    module = [sys.executable, "-m", "lab.papers.adts.raw_udp"]
    receiver = subprocess.Popen(
        [*module, "receive", str(target)], stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    port = receiver.stdout.readline().strip()
    sender = subprocess.run(
        [*module, "send", str(source), port], stdout=subprocess.PIPE, text=True, check=False
    )
    receiver.communicate()
    if sender.returncode or receiver.returncode:
        raise BenchError("a file over raw UDP: an end failed; its message is above")
    return float(sender.stdout)


def _open_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(_SILENCE_S)
    return sock


def _send_file(path: str, port: int) -> float:
    sock = _open_socket()
    sock.connect(("127.0.0.1", port))
    began = time.monotonic()
    digest = confirmed = 0
    unit = memoryview(bytearray(UNIT))
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    sock.send(size.to_bytes(8, "big"))
    for sent, offset in enumerate(range(0, size, UNIT)):
        part = unit[: os.preadv(fd, [unit], offset)]
        digest = crc32c.crc32c(part, digest)
        while sent - confirmed >= WINDOW:
            confirmed = int.from_bytes(sock.recv(8), "big")
        for at in range(0, len(part), DATAGRAM):
            sock.send(part[at : at + DATAGRAM])
    sock.send(digest.to_bytes(4, "big"))
    while sock.recv(8) != b"done":
        pass
    return time.monotonic() - began


def _receive_file(path: str) -> None:
    sock = _open_socket()
    print(sock.getsockname()[1], flush=True)
    first, sender = sock.recvfrom(8)
    sock.connect(sender)
    size, digest = int.from_bytes(first, "big"), 0
    unit = memoryview(bytearray(UNIT))
    temporary = f"{path}.part"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, offset in enumerate(range(0, size, UNIT), 1):
        part = unit[: min(UNIT, size - offset)]
        for at in range(0, len(part), DATAGRAM):
            sock.recv_into(part[at : at + DATAGRAM])
        sock.send(number.to_bytes(8, "big"))
        os.pwrite(fd, part, offset)
        digest = crc32c.crc32c(part, digest)
    if sock.recv(4) != digest.to_bytes(4, "big"):
        raise SystemExit("raw UDP: the digest is wrong, so a datagram was lost")
    Path(temporary).rename(path)
    sock.send(b"done")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        print(_send_file(sys.argv[2], int(sys.argv[3])))
    else:
        _receive_file(sys.argv[2])
