"""Helpers that run unmodified tshark, with or without the Lua script of siwarp."""

from __future__ import annotations

import functools
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cli.cli_harness import environment_without_sanitizer, run_siwarp_command, run_siwarp_json
from harness.verbs_harness import wait_until

import siwarp
from siwarp.verbs import CQ, PD, QP, Context, QPInitAttr, QPType

# Each option avoids a weakness of tshark: short Sends are shown as malformed RPC/RDMA or SMB
# Direct, heuristics come after well-known ports, segments arrive out of order. Checksum validation
# is off by default.
TSHARK = [
    "tshark", "--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct",
    "-o", "tcp.try_heuristic_first:TRUE", "-o", "tcp.reassemble_out_of_order:TRUE",
    "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
    "-o", "udp.check_checksum:TRUE", "-o", "udp.try_heuristic_first:TRUE",
    "-o", "iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE",
]  # fmt: skip


@functools.cache
def lua_options() -> tuple[str, ...]:
    """Return the options with which tshark loads the Lua script of siwarp."""
    return ("-X", f"lua_script:{run_siwarp_command('dissect', '--lua-path').stdout.strip()}")


def run_tshark(file: Path, *more: str) -> str:
    """Return the output of tshark for a file: all details as text, unless options select
    otherwise.
    """
    done = subprocess.run(
        [*TSHARK, "-r", str(file), *(more or ["-V"])],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment_without_sanitizer(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    assert "Lua Error" not in done.stdout
    return done.stdout


def capture_received_datagrams(file: Path, datagrams: Sequence[bytes]) -> None:
    """Capture the UDP payloads ``datagrams``, which a plain socket sends to a UD queue pair."""
    with (
        siwarp.capture(file),
        Context() as ctx,
        PD(ctx) as pd,
        CQ(ctx) as cq,
        QP(pd, QPInitAttr(QPType.UD, scq=cq)) as qp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s,
    ):
        qp.to_rts()
        for octets in datagrams:
            s.sendto(octets, ("127.0.0.1", qp.addr[1]))

        def are_all_datagrams_captured() -> bool:
            cq.poll(8)
            return len(run_siwarp_json("dissect", file)) >= len(datagrams)

        wait_until(are_all_datagrams_captured, 20)


def read_packet_fields(
    file: Path, chosen: str, *names: str, options: tuple[str, ...] = ()
) -> list[list[str]]:
    """Return the named fields of the packets that a display filter selects, one list for each
    packet.
    """
    columns = [word for name in names for word in ("-e", name)]
    text = run_tshark(file, *options, "-Y", chosen, "-T", "fields", *columns)
    return [line.split("\t") for line in text.splitlines()]


def check_packet_checksums(words: str) -> None:
    """Assert that the checksums of every packet are good, and that TCP analysis reports no
    anomaly.
    """
    packets = len(re.findall(r"^Frame \d+:", words, re.MULTILINE))
    assert packets > 0
    assert words.count("    [Checksum Status: Good]") == packets
    v4 = len(re.findall(r"^Internet Protocol Version 4", words, re.MULTILINE))
    assert words.count("[Header checksum status: Good]") == v4
    assert "Malformed" not in words
    assert "[TCP Analysis Flags]" not in words


def check_fpdus(file: Path, fpdus: int) -> None:
    """Assert that unmodified tshark shows this number of FPDUs, all with good CRCs, and reports no
    error.
    """
    words = run_tshark(file)
    check_packet_checksums(words)
    assert words.count("(Good CRC32)") == fpdus
    assert "Bad CRC32" not in words
    assert words.count("Expert Info (Warning") == words.count("Expert Info (Error") == 0
