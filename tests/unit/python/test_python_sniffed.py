"""Captures that siwarp writes of its connections, read with sniff() of scapy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from unit.inspect.inspect_harness import frames_by_port, frames_from_port, sniff_offline

import siwarp
from siwarp.inspect import FPDUSession


def test_sniff_of_a_siwarp_capture_yields_all_fpdus_of_both_directions(tmp_path: Path) -> None:
    file = tmp_path / "x.pcapng"
    with (
        siwarp.capture(file),
        siwarp.listen(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as pool,
    ):
        accepting = pool.submit(listener.accept)
        with siwarp.connect(listener.address) as conn, accepting.result() as other:
            for n in range(20):
                conn.send(bytes([n]) * 1000 * n)
                assert len(other.recv()) == 1000 * n
    packets = sniff_offline(file, FPDUSession)
    for port, octets in frames_by_port(file).items():
        assert frames_from_port(packets, port) == octets
