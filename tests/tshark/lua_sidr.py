# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What tshark displays with the script for the resolution of UD queue pairs (spec/cm-udp.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.verbs_harness import Rig
from tshark.tshark_harness import (
    check_packet_checksums,
    lua_options,
    read_packet_fields,
    run_tshark,
)
from unit.cm.ud_harness import SidrEndpoints
from unit.inspect.inspect_harness import make_udp_packet, write_capture
from unit.inspect.test_inspect_resolution import (
    ANSWER,
    COOKIE,
    LISTENER,
    QUERIER,
    REFUSAL,
    build_sidr_frame,
    change_octet_and_fix_crc,
)

import siwarp as package
from siwarp.cm import CMEventType

ERROR_FILTER = "siwarp.bad_crc || siwarp.bad_sidr || siwarp.short || siwarp.bad_header"


@pytest.fixture
def verbs_device() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_queries_and_answers_of_siwarp_are_shown_with_fields_and_good_crcs(
    tmp_path: Path, verbs_device: Rig
) -> None:
    file = tmp_path / "sidr.pcapng"
    with package.capture(file):
        ends = SidrEndpoints(verbs_device)
        qp = ends.create_qp()
        ends.send_sidr_query(b"who is there")
        ends.accept(ends.next_connection_request(), qp, b"it is me")
        assert ends.next_query_result().type == CMEventType.ESTABLISHED
        ends.send_sidr_query()
        ends.next_connection_request().id.reject()
        assert ends.next_query_result().type == CMEventType.REJECTED
    words = run_tshark(file, *lua_options(), "-V")
    check_packet_checksums(words)
    assert words.count("(Good CRC32)") == words.count("UD resolution\n") == 8
    assert read_packet_fields(file, ERROR_FILTER, "frame.number", options=lua_options()) == []
    shown = read_packet_fields(
        file, "siwarp.sidr.type == 2", "siwarp.sidr.qpn", "siwarp.q_key", "siwarp.sidr.gid",
        "siwarp.sidr.data", "siwarp.sidr.asked", options=lua_options(),
    )  # fmt: skip
    assert len(shown) == 2
    for qpn, q_key, gid, data, asked in shown:
        assert (int(qpn, 0), int(q_key, 0), gid) == (qp.qp_num, 0x01234567, "::ffff:127.0.0.1")
        assert (bytes.fromhex(data.replace(":", "")), asked) == (b"it is me", "1")
    columns = run_tshark(file, *lua_options())
    assert "UD resolution: question" in columns
    assert "UD resolution: refusal: the program rejected" in columns


def test_cookies_and_queries_that_return_a_cookie_are_shown(tmp_path: Path) -> None:
    sent = [
        (QUERIER, LISTENER, build_sidr_frame(id=7)),
        (LISTENER, QUERIER, build_sidr_frame(**COOKIE)),
    ]
    sent += [
        (QUERIER, LISTENER, build_sidr_frame(id=7, cookie=0x99)),
        (LISTENER, QUERIER, build_sidr_frame(**ANSWER)),
    ]
    file = write_capture([make_udp_packet(o, a, b) for a, b, o in sent], tmp_path / "x.pcapng")
    assert "question with a cookie" in run_tshark(file, *lua_options())
    shown = read_packet_fields(
        file,
        "siwarp",
        "siwarp.sidr.type",
        "siwarp.sidr.cookie",
        "siwarp.sidr.asked",
        options=lua_options(),
    )
    assert [(kind, cookie and int(cookie, 0), asked) for kind, cookie, asked in shown] == [
        ("1", 0, ""), ("4", 0x99, "1"), ("1", 0x99, ""), ("2", "", "1")
    ]  # fmt: skip
    assert read_packet_fields(file, ERROR_FILTER, "frame.number", options=lua_options()) == []


@pytest.mark.parametrize(
    "octets",
    [
        build_sidr_frame(id=7)[:-1],
        change_octet_and_fix_crc(build_sidr_frame(id=7), 4, 2),
        build_sidr_frame(id=0),
        change_octet_and_fix_crc(build_sidr_frame(id=7), 5, 9),
        change_octet_and_fix_crc(build_sidr_frame(id=7), 7, 181),
        change_octet_and_fix_crc(build_sidr_frame(**ANSWER), 7, 137),
        build_sidr_frame(**(REFUSAL | {"status": 0})),
        build_sidr_frame(**(COOKIE | {"cookie": 0})),
        build_sidr_frame(**(ANSWER | {"qpn": 0})),
        build_sidr_frame(**(ANSWER | {"gid": "ff02::1"})),
        build_sidr_frame(**(ANSWER | {"gid": "::ffff:224.0.0.1"})),
    ],
)
def test_an_invalid_resolution_frame_is_shown_as_invalid(tmp_path: Path, octets: bytes) -> None:
    file = write_capture([make_udp_packet(octets, QUERIER, LISTENER)], tmp_path / "x.pcapng")
    assert read_packet_fields(file, "siwarp.bad_sidr", "frame.number", options=lua_options()) == [
        ["1"]
    ]


def test_a_wrong_crc_of_a_resolution_frame_is_shown_as_bad(tmp_path: Path) -> None:
    file = write_capture(
        [make_udp_packet(build_sidr_frame(id=7, crc=5), QUERIER, LISTENER)], tmp_path / "x.pcapng"
    )
    assert read_packet_fields(
        file, "siwarp.bad_crc", "siwarp.sidr.id", "siwarp.crc.status", options=lua_options()
    ) == [["0x0000000000000007", "Bad"]]


@pytest.mark.parametrize("length", [0, 3, 4, 5, 47, 231, 233, 1000])
def test_resolution_frames_of_any_length_cause_no_error_in_the_script(
    tmp_path: Path, length: int
) -> None:
    octets = build_sidr_frame(**ANSWER).ljust(1000, b"\0")[:length]
    file = write_capture([make_udp_packet(octets, QUERIER, LISTENER)], tmp_path / "x.pcapng")
    assert len(
        read_packet_fields(file, "siwarp.bad_sidr", "frame.number", options=lua_options())
    ) == (length >= 4)
