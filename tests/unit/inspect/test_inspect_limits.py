"""Limits for hostile captures: reading ends in a clear error without using much memory or time."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from siwarp.inspect import DDPDatagram, Limits, TooMuch, UDDatagram, examine

MIB = 1 << 20
PCAP_HEAD = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 228)
SECTION = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)


def make_pcap_record(payload: bytes) -> bytes:
    ip = bytes(IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=5, dport=6) / Raw(payload))
    return struct.pack("<IIII", 0, 0, len(ip), len(ip)) + ip


def make_pcapng_block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size


#: A program that runs the command siwarp and then prints the peak memory of its process.
COMMAND = """
import sys
from siwarp.cli.main import main
try:
    status = main()
except SystemExit as e:
    status = e.code
print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
sys.exit(status)
"""


#: Options that set a tenth of the default limit of messages, to save time and memory.
TENTH_OF_MESSAGES = ["--max-messages", "10000"]


@pytest.fixture(scope="module")
def compressed_captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Compressed captures of some tens of kB that unpack to large sizes, by name."""
    folder = tmp_path_factory.mktemp("limits")
    message = make_pcap_record(bytes(UDDatagram(segment=DDPDatagram(msn=1))))
    octets = {
        "messages": PCAP_HEAD + message * (2 * 10**6 // len(message)),
        "frames": PCAP_HEAD + make_pcap_record(b"") * 10_100,
        "interfaces": SECTION + make_pcapng_block(1, struct.pack("<HHI", 1, 0, 0)) * 10_100,
    }
    packed = {name: gzip.compress(unpacked, 1) for name, unpacked in octets.items()}
    # The members of a file are unpacked one after the other.
    block = gzip.compress(make_pcapng_block(0xBAD, bytes(15 * MIB)), 1)
    packed["unpacked"] = gzip.compress(SECTION) + block * 18
    found = {name: folder / f"{name}.gz" for name in packed}
    for name, path in found.items():
        path.write_bytes(packed[name])
    yield found


@pytest.mark.parametrize(
    ("name", "options", "most_kb", "said"),
    [
        (
            "messages",
            TENTH_OF_MESSAGES,
            103_000,
            "the capture has more than 10000 messages: give --max-messages N",
        ),
        (
            "frames",
            ["--max-messages", "2000"],
            40_000,
            "the capture has more than 10000 frames: give --max-messages N",
        ),
        (
            "interfaces",
            ["--max-messages", "2000"],
            40_000,
            "the capture has more than 10000 frames: give --max-messages N",
        ),
        ("unpacked", [], 400_000, "the file unpacks to more than 256 MiB: give --max-unpacked MIB"),
    ],
)
def test_a_small_capture_that_unpacks_to_a_large_size_is_refused_with_little_memory(
    compressed_captures: dict[str, Path], name: str, options: list[str], most_kb: int, said: str
) -> None:
    path = compressed_captures[name]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "dissect", str(path), "--summary", *options],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=240,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert done.stderr.startswith(f"siwarp: {path}: {said}"), done.stderr
    if "SANITIZER" not in os.environ:
        # The memory of the Python interpreter alone is 23,000 kB.
        assert int(done.stdout.split()[-2]) < most_kb, done.stdout


def test_the_default_limit_of_a_capture_is_100000_messages() -> None:
    assert Limits().messages == 100_000


def test_each_capture_limit_may_be_raised_or_removed(compressed_captures: dict[str, Path]) -> None:
    assert examine(compressed_captures["unpacked"], Limits(unpacked=0)).messages == []
    with pytest.raises(TooMuch, match="more than 10000 frames"):
        examine(compressed_captures["interfaces"], Limits(messages=2_000))
    assert examine(compressed_captures["interfaces"], Limits(messages=2_100)).messages == []
    assert examine(compressed_captures["interfaces"], Limits(messages=0)).messages == []


def test_reading_a_capture_ends_at_the_time_limit(compressed_captures: dict[str, Path]) -> None:
    with pytest.raises(TooMuch, match=r"took more than 0\.01 s: give --max-seconds"):
        examine(compressed_captures["messages"], Limits(seconds=0.01))


@pytest.mark.parametrize("size", [1 << 24, (1 << 24) + 4, 0xFFFF_FFFF, 0x7FFF_FFFC])
def test_a_false_length_in_a_capture_file_does_not_cause_an_allocation_of_that_length(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "x"
    for octets in (
        PCAP_HEAD + make_pcap_record(b"a") + struct.pack("<IIII", 0, 0, size, size) + b"rest",
        SECTION + struct.pack("<II", 6, size & ~3) + b"rest",
        SECTION + struct.pack("<II", 1, size & ~3) + b"rest",
    ):
        path.write_bytes(octets)
        found = examine(path)
        assert found.messages == [] and found.damage is not None
