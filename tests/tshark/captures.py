# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What stock tshark shows of captures of ours.

Only tests/tshark/run collects this file: it needs tshark, which `make test` does not install. What
the captures hold is asserted without tshark too: tests/unit/llp and tests/cli.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from pathlib import Path

import pytest
from cli.cli_harness import COMMAND, server, siwarp, siwarp_json, unsanitized

import siwarp as package
from siwarp.verbs import CQ, PD, QP, Context, QPInitAttr, QPType

# Each mends a failure of stock tshark: short Sends shown as malformed RPC/RDMA or SMB Direct,
# heuristics after well-known ports, segments out of order. The checksums are off by default.
TSHARK = [
    "tshark", "--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct",
    "-o", "tcp.try_heuristic_first:TRUE", "-o", "tcp.reassemble_out_of_order:TRUE",
    "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
    "-o", "udp.check_checksum:TRUE",
]  # fmt: skip


def tshark(file: Path) -> str:
    """The whole file in words."""
    done = subprocess.run(
        [*TSHARK, "-r", str(file), "-V"],
        capture_output=True,
        text=True,
        timeout=100,
        env=unsanitized(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_checksums(words: str) -> None:
    """Every packet's TCP or UDP checksum is good, and every IPv4 header's."""
    packets = len(re.findall(r"^Frame \d+:", words, re.MULTILINE))
    assert packets > 0
    assert words.count("    [Checksum Status: Good]") == packets
    v4 = len(re.findall(r"^Internet Protocol Version 4", words, re.MULTILINE))
    assert words.count("[Header checksum status: Good]") == v4
    assert "Malformed" not in words


@pytest.mark.parametrize(
    ("host", "size"), [("127.0.0.1", 1), ("::1", 3000), ("127.0.0.1", 200_000)]
)
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_every_fpdu_of_an_rc_capture_shows_a_good_crc(
    tmp_path: Path, op: str, size: int, host: str
) -> None:
    ours, theirs = tmp_path / "client.pcapng", tmp_path / "server.pcapng"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIWARP_CAPTURE", str(theirs))
        with server("--qp", "rc", "--addr", host) as (port, _):
            done = siwarp(
                "capture", "-o", ours, "--", *COMMAND,
                "ping", host, "-p", port, "-n", 50, "-s", size, "--qp", "rc", "--op", op,
            )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for file in (ours, theirs):
        words = tshark(file)
        check_checksums(words)
        messages = siwarp_json("dissect", file)
        fpdus = sum(m["segments"] for m in messages if not m["kind"].startswith("MPA_"))
        assert fpdus >= 100
        assert words.count("(Good CRC32)") == fpdus
        assert "Bad CRC32" not in words
        assert words.count("Expert Info (Warning") == words.count("Expert Info (Error") == 0
        assert words.count("(suspected) retransmission") == 0


def test_a_ud_capture_has_good_checksums_and_drops_with_their_reasons(tmp_path: Path) -> None:
    file = tmp_path / "ud.pcapng"
    sent = [b"x" * n for n in (0, 21, 22, 1000, 65507)]
    with (
        package.capture(file),
        Context() as ctx,
        PD(ctx) as pd,
        CQ(ctx) as cq,
        QP(pd, QPInitAttr(QPType.UD, scq=cq)) as qp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s,
    ):
        qp.to_rts()
        for octets in sent:
            s.sendto(octets, ("127.0.0.1", qp.addr[1]))
        deadline = time.monotonic() + 20
        while len(siwarp_json("dissect", file)) < len(sent):
            assert time.monotonic() < deadline
            cq.poll(8)
    words = tshark(file)
    check_checksums(words)
    comments = re.findall(r"Expert Info \(Comment/Comment\): (\w+):", words)
    assert comments == ["drop_short"] * 2 + ["drop_crc"] * 3
