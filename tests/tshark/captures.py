# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Tests how tshark without siwarp's script displays captures of siwarp.

Only tests/tshark/run collects this file, because it needs tshark, which `make test` does not
install. tests/unit/llp and tests/cli check the content of the captures without tshark.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import (
    environment_without_sanitizer,
    run_siwarp_command,
    run_siwarp_json,
)
from harness.rc_traffic import generate_rc_capture
from tshark.tshark_harness import (
    capture_received_datagrams,
    check_fpdus,
    check_packet_checksums,
    read_packet_fields,
    run_tshark,
)

import siwarp as package

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("host", "size"), [("127.0.0.1", 1), ("::1", 3000), ("127.0.0.1", 200_000)]
)
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_tshark_shows_a_good_crc_for_every_fpdu_of_an_rc_capture(
    tmp_path: Path, op: str, size: int, host: str
) -> None:
    file = tmp_path / "rc.pcapng"
    generate_rc_capture(file, op, count=50, size=size, host=host)
    fpdus = count_segments(run_siwarp_json("dissect", file))
    assert fpdus >= 100
    check_fpdus(file, fpdus)


def count_segments(messages: list[dict[str, Any]]) -> int:
    return sum(m["segments"] for m in messages if not m["kind"].startswith("MPA_"))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_tshark_shows_good_crcs_for_thousands_of_mixed_messages_and_a_terminate(
    tmp_path: Path, host: str
) -> None:
    file = tmp_path / "mixed.pcapng"
    with (
        package.capture(file),
        package.listen((host, 0)) as listener,
        ThreadPoolExecutor(1) as pool,
    ):
        accepting = pool.submit(listener.accept)
        with package.connect(listener.address) as one, accepting.result() as other:
            memory = [end.register(bytearray(100_000)) for end in (one, other)]
            for n in range(400):
                for end, peer, there in ((one, other, memory[1]), (other, one, memory[0])):
                    end.send(bytes(n))
                    assert len(peer.recv()) == n
                    end.write(there.remote(), bytes(37 * n))
                    assert end.read(there.remote(), 11 * n) == bytes(11 * n)
            assert one.read(memory[1].remote(), 100_000) == bytes(100_000)
            with pytest.raises(package.ProtocolError):
                one.read(package.RemoteBuffer(addr=0x1000, length=8, rkey=0xDEAD00), 8)
    messages = run_siwarp_json("dissect", file)
    kinds = Counter(m["kind"] for m in messages)
    assert kinds["RDMA_READ_REQUEST"] == 802
    # There is one Write more than requested: the empty "ready to receive" Write of the initiator.
    assert [kinds[k] for k in ("SEND", "RDMA_WRITE", "RDMA_READ_RESPONSE")] == [800, 801, 801]
    assert kinds["TERMINATE"] == 1
    check_fpdus(file, count_segments(messages))
    rows = read_packet_fields(file, "iwarp_rdma.opcode", "iwarp_rdma.opcode")
    shown = Counter(int(opcode, 0) for row in rows for opcode in row[0].split(","))
    assert (shown[1], shown[7]) == (802, 1)


def test_the_environment_variable_captures_an_unmodified_c_program(
    tmp_path: Path,
) -> None:
    program, files = tmp_path / "rc_write", tmp_path / "of-%p.pcapng"
    flags = shlex.split(run_siwarp_command("config", "--cflags", "--libs").stdout)
    source = ROOT / "examples" / "c" / "rc_write.c"
    subprocess.run(
        ["cc", str(source), *flags, "-o", str(program)],
        check=True,
        timeout=60,
        env=environment_without_sanitizer(),
    )
    environment = {**os.environ, "SIWARP_CAPTURE": str(files)}
    with subprocess.Popen(
        [program], stdout=subprocess.PIPE, text=True, env=environment
    ) as responder:
        assert responder.stdout is not None
        port = responder.stdout.readline().strip().rpartition(":")[2]
        subprocess.run(
            [program, "127.0.0.1", port, "some text"], check=True, timeout=60, env=environment
        )
        assert responder.wait(timeout=30) == 0
    captured = sorted(tmp_path.glob("of-*.pcapng"))
    assert len(captured) == 2
    for file in captured:
        messages = run_siwarp_json("dissect", file)
        assert [m["length"] for m in messages if m["kind"] == "RDMA_WRITE"]
        assert {m["error"] for m in messages} == {None}
        check_fpdus(file, count_segments(messages))


def test_tshark_shows_good_checksums_and_the_drop_reasons_of_a_ud_capture(tmp_path: Path) -> None:
    file = tmp_path / "ud.pcapng"
    sent = [b"x" * n for n in (0, 21, 22, 1000, 65507)]
    capture_received_datagrams(file, sent)
    words = run_tshark(file)
    check_packet_checksums(words)
    comments = re.findall(r"Expert Info \(Comment/Comment\): (\w+):", words)
    assert comments == ["drop_short"] * 2 + ["drop_crc"] * 3
