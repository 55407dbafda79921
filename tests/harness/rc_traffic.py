"""Captures of RC messages between two ends in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import siwarp
from siwarp.testing import pair


def generate_rc_capture(
    file: Path, op: str, count: int, size: int, host: str = "127.0.0.1"
) -> None:
    """Capture ``count`` Sends with their answers ("send"), Writes that are each confirmed by a Read
    of the last octet ("write"), or Reads ("read"), all of ``size`` octets.
    """
    with siwarp.capture(file), pair("rc", host, size=size, recv_size=size) as (a, b):
        for _ in range(count):
            if op == "send":
                a.send(bytes(size))
                b.send(b.recv())
                assert a.recv() == bytes(size)
            elif op == "write":
                a.write(b"w" * size)
                assert a.read(1, size - 1) == b"w"
            else:
                assert a.read(size) == bytes(size)


def generate_terminate_capture(file: Path) -> None:
    """Capture a Read of 8 octets at offset 0x1000 of STag 0xDEAD00, and its Terminate."""
    with (
        siwarp.capture(file),
        siwarp.listen(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as pool,
    ):
        accepting = pool.submit(listener.accept)
        with (
            siwarp.connect(listener.address) as conn,
            accepting.result(),
            pytest.raises(siwarp.ProtocolError),
        ):
            conn.read(siwarp.RemoteBuffer(addr=0x1000, length=8, rkey=0xDEAD00), 8)
