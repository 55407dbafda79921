# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What tshark displays with siwarp's Lua script: datagrams, Markers, and MPA revision 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_harness import qkey_options, run_ping_server, run_siwarp_command, run_siwarp_json
from harness.rc_traffic import generate_rc_capture, generate_terminate_capture
from harness.siwarp_process import COMMAND
from harness.verbs_harness import temporary_settings
from scapy.packet import Raw
from tshark.tshark_harness import (
    capture_received_datagrams,
    check_packet_checksums,
    lua_options,
    read_packet_fields,
    run_tshark,
)
from unit.inspect.inspect_harness import (
    CAPTURES,
    TCPConversation,
    add_startup_frames,
    make_send_fpdu,
    make_stream_with_markers,
    make_udp_packet,
    write_capture,
)

from siwarp.inspect import (
    DDPDatagram,
    QuotedReadRequest,
    QuotedUntagged,
    Terminate,
    UDDatagram,
)

ALL_MPA_OPTIONS = (*lua_options(), "-o", "siwarp_mpa.all:TRUE")


def build_ud_datagram(msn: int, payload: bytes = b"", q_key: int = 0x11111111) -> bytes:
    return bytes(UDDatagram(segment=DDPDatagram(msn=msn, q_key=q_key) / Raw(payload)))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("size", [1, 64, 60_000])
def test_the_script_shows_fields_and_a_good_crc_for_every_ud_datagram(
    tmp_path: Path, size: int, host: str
) -> None:
    file = tmp_path / "ud.pcapng"
    with run_ping_server("--qp", "ud", "--addr", host) as (port, _):
        done = run_siwarp_command(
            "capture", "-o", file, "--", *COMMAND,
            "ping", host, "-p", port, "-n", 20, "-s", size, "--qp", "ud", *qkey_options(),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    messages = run_siwarp_json("dissect", file)
    assert len(messages) == 40
    words = run_tshark(file, *lua_options(), "-V")
    check_packet_checksums(words)
    assert words.count("(Good CRC32)") == 40
    assert words.count("Direct Data Placement and Remote Direct Memory Access Protocol") == 40
    shown = read_packet_fields(
        file, "siwarp", "siwarp.msn", "siwarp.length", "siwarp.q_key", "siwarp.queue",
        "siwarp.opcode", "siwarp.crc.status", "iwarp_ddp.msn", options=lua_options(),
    )  # fmt: skip
    assert [row[:2] for row in shown] == [
        [str(m["fields"]["msn"]), str(m["length"])] for m in messages
    ]
    assert {int(row[2], 0) for row in shown} == {m["fields"]["q_key"] for m in messages}
    assert {tuple(row[3:6]) for row in shown} == {("0", "3", "Good")}
    assert [row[6] for row in shown] == [row[0] for row in shown]


def test_the_script_shows_a_corrupted_datagram_as_bad_with_its_drop_reason(
    tmp_path: Path,
) -> None:
    file = tmp_path / "bad.pcapng"
    corrupted = bytearray(build_ud_datagram(2, b"x" * 40))
    corrupted[30] ^= 1
    capture_received_datagrams(file, [build_ud_datagram(1), bytes(corrupted), b"short"])
    words = run_tshark(file, *lua_options(), "-V")
    assert words.count("(Good CRC32)") == words.count("(Bad CRC32, should be 0x") == 1
    assert "drop_crc: wrong CRC" in words
    assert read_packet_fields(file, "siwarp.bad_crc", "siwarp.msn", options=lua_options()) == [
        ["2"]
    ]
    assert len(read_packet_fields(file, "siwarp.short", "frame.number", options=lua_options())) == 1


def test_the_script_shows_reason_clause_and_quoted_message_of_an_error_message(
    tmp_path: Path,
) -> None:
    quoted = QuotedUntagged(msn=4711, inv_stag=0x11111111, qn=0x010200)
    told = Terminate(layer=1, etype=2, code=5, m=1, d=1, ddp_seg_len=90, quoted_ddp=quoted)
    head = DDPDatagram(opcode=7, qn=2, q_key=0x11111111)
    error = bytes(UDDatagram(segment=head / told))
    file = write_capture([make_udp_packet(error)], tmp_path / "x.pcapng")
    assert read_packet_fields(
        file, "siwarp", "siwarp.about.msn", "siwarp.about.qn", "siwarp.about.q_key",
        "siwarp.term.reason", "siwarp.term.clause", options=lua_options(),
    ) == [
        ["4711", "0x00010200", "0x11111111", "DDP: message too long for the buffer",
         "RFC5041-7.2-01"]
    ]  # fmt: skip
    assert "about MSN 4711" in run_tshark(file, *lua_options())


def test_a_single_datagram_with_a_bad_crc_is_dissected_only_with_decode_as(tmp_path: Path) -> None:
    packet = make_udp_packet(build_ud_datagram(7)[:-1] + b"\xee", b=("10.1.0.2", 53))
    file = write_capture([packet], tmp_path / "x.pcapng")
    assert read_packet_fields(file, "siwarp", "siwarp.msn", options=lua_options()) == []
    chosen = (*lua_options(), "-d", "udp.port==53,siwarp")
    assert read_packet_fields(
        file, "siwarp", "siwarp.msn", "siwarp.crc.status", options=chosen
    ) == [["7", "Bad"]]


def test_ud_datagrams_captured_as_one_batch_before_segmentation_are_shown_separately(
    tmp_path: Path,
) -> None:
    batch = b"".join(build_ud_datagram(n, b"t" * 64) for n in range(1, 21)) + build_ud_datagram(
        21, b"t"
    )
    file = write_capture([make_udp_packet(batch)], tmp_path / "x.pcapng")
    words = run_tshark(file, *lua_options(), "-V")
    assert words.count("(Good CRC32)") == 21
    assert [words.count(f"    MSN: {n}\n") for n in (1, 20, 21)] == [1, 1, 1]


def test_the_script_leaves_other_udp_traffic_to_other_dissectors(tmp_path: Path) -> None:
    queries = [make_udp_packet(bytes([n, 0x41, 1, 0, 0, 1]) + bytes(40)) for n in range(0x40, 0x50)]
    file = write_capture(queries, tmp_path / "x.pcapng")
    assert len(read_packet_fields(file, "siwarp", "frame.number", options=lua_options())) <= 1


@pytest.mark.parametrize("twice", [(), ("-2",)], ids=["once", "twice"])
@pytest.mark.parametrize("marked", ["m", "reply_m", "both"])
def test_fpdus_with_markers_are_shown_with_good_crcs_for_any_tcp_segmentation(
    tmp_path: Path, marked: str, twice: tuple[str, ...]
) -> None:
    asks = {"m": 1, "reply_m": 1} if marked == "both" else {marked: 1}
    link = add_startup_frames(TCPConversation().add_handshake(), **asks)
    fpdus = [make_send_fpdu(n, b"m" * (n * 150)) for n in range(1, 9)]
    for who, asked in ((0, "reply_m"), (1, "m")):
        stream = make_stream_with_markers(fpdus) if asked in asks else b"".join(fpdus)
        link.add_data(who, stream, [100, 600, 3])
    file = write_capture(link.add_fins().packets, tmp_path / "x.pcapng")
    words = run_tshark(file, *ALL_MPA_OPTIONS, *twice, "-V")
    assert words.count("(Good CRC32)") == 16
    assert words.count("Queue number: 0") == 16
    # Each of the two directions has at least 5,600 octets, and therefore at least eleven Markers.
    assert words.count("    Marker: 0x") >= 11 * len(asks)
    assert "does not point" not in words


@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_connections_of_siwarp_with_markers_are_shown_with_good_crcs(
    tmp_path: Path, op: str
) -> None:
    file = tmp_path / "rc.pcapng"
    with temporary_settings(markers=1):
        generate_rc_capture(file, op, count=6, size=70_000)
    messages = run_siwarp_json("dissect", file)
    assert {m["error"] for m in messages} == {None}
    (stream,) = run_siwarp_json("dissect", file, "--summary")
    assert set(stream["markers"].values()) == {True}
    fpdus = sum(m["segments"] for m in messages if not m["kind"].startswith("MPA_"))
    words = run_tshark(file, *lua_options(), "-V")
    assert words.count("(Good CRC32)") == fpdus > 6
    assert "does not point" not in words
    assert "Bad CRC32" not in words


def test_a_marker_with_a_wrong_pointer_and_a_wrong_crc_are_reported(tmp_path: Path) -> None:
    stream = bytearray(make_stream_with_markers([make_send_fpdu(1, b"x" * 600), make_send_fpdu(2)]))
    stream[515] ^= 8
    link = add_startup_frames(TCPConversation().add_handshake(), m=1, reply_m=1).add_data(
        0, bytes(stream)
    )
    words = run_tshark(write_capture(link.packets, tmp_path / "x.pcapng"), *lua_options(), "-V")
    assert words.count("(Bad CRC32, should be 0x") == words.count("(Good CRC32)") == 1
    assert "A Marker that does not point to its FPDU" in words


@pytest.mark.parametrize("every", [False, True])
def test_mpa_revision_2_is_shown_with_and_without_the_stock_dissector(
    tmp_path: Path, every: bool
) -> None:
    fields_of = {"rev": 2, "s": 1, "ird": 5, "ord": 6, "a": 1, "c_rtr": 1}
    reply = {f"reply_{name}": value for name, value in {**fields_of, "ird": 9}.items()}
    link = add_startup_frames(
        TCPConversation().add_handshake(), **fields_of, **reply, private_data=b"pd"
    ).add_data(0, make_send_fpdu(1))
    file = write_capture(link.packets, tmp_path / "x.pcapng")
    shown = read_packet_fields(
        file, "siwarp_mpa.ird", "siwarp_mpa.ird", "siwarp_mpa.ord", "siwarp_mpa.a",
        "siwarp_mpa.b", "siwarp_mpa.c_rtr", options=ALL_MPA_OPTIONS if every else lua_options(),
    )  # fmt: skip
    assert shown == [["5", "6", "1", "0", "1"], ["9", "6", "1", "0", "1"]]
    stock = read_packet_fields(file, "iwarp_mpa.crc_check", "frame.number", options=lua_options())
    assert len(stock) == 1


def test_the_read_request_that_a_terminate_quotes_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "terminate.pcapng"
    generate_terminate_capture(file)
    shown = read_packet_fields(
        file, "iwarp_rdma.term_layer", "siwarp_mpa.term.src_stag", "siwarp_mpa.term.src_to",
        "siwarp_mpa.term.size", options=lua_options(),
    )  # fmt: skip
    assert shown == [["0x00dead00", "0x0000000000001000", "8"]]


def test_a_terminate_in_a_datagram_is_shown_in_words_with_its_read_request(tmp_path: Path) -> None:
    body = Terminate(
        layer=0, etype=1, code=2, m=1, d=1, r=1, ddp_seg_len=46,
        quoted_ddp=QuotedUntagged(opcode=1, qn=1), quoted_rdma=QuotedReadRequest(size=99),
    )  # fmt: skip
    octets = bytes(UDDatagram(segment=DDPDatagram(opcode=7, qn=2) / body))
    file = write_capture([make_udp_packet(octets)], tmp_path / "x.pcapng")
    shown = read_packet_fields(
        file, "siwarp", "siwarp.term.reason", "siwarp.term.size", options=lua_options()
    )
    assert shown == [["RDMAP: access rights violation", "99"]]


@pytest.mark.parametrize("name", ["siw-rping", "siw-rping-crc", "siw-rping-p2p"])
def test_recorded_connections_of_linux_siw_are_shown_completely_by_the_script(name: str) -> None:
    words = run_tshark(CAPTURES / f"{name}.pcap", *ALL_MPA_OPTIONS, "-V")
    status = "Good" if "crc" in name else "Unused"
    frames = 34 if "p2p" in name else 33
    assert words.count(f"[CRC status: {status}]") == frames
    assert words.count("Direct Data Placement and Remote Direct") == frames


def test_truncated_and_mutated_frames_cause_no_error_in_the_script(tmp_path: Path) -> None:
    whole = bytes(UDDatagram(segment=DDPDatagram(opcode=7, qn=2) / Terminate(m=1, d=1, r=1)))
    packets = [make_udp_packet(whole)]
    for size in range(len(whole) + 1):
        sound = UDDatagram(segment=Raw(whole[:size]))
        packets += [make_udp_packet(whole[:size]), make_udp_packet(bytes(sound))]
    link = add_startup_frames(
        TCPConversation(packets=packets).add_handshake(), m=1, reply_m=1, rev=2, s=1
    )
    stream = make_stream_with_markers([make_send_fpdu(1, b"q" * 500), make_send_fpdu(2)])
    link.add_data(0, stream[:600]).add_data(1, b"\xff\xff" + stream[:300])
    again = TCPConversation(("10.4.0.1", 9), packets=packets).add_handshake()
    again.add_data(0, b"MPA ID Req Frame\xff\xff\xff\xff and so on").add_data(
        1, b"MPA ID Rep Frame\xf0"
    )
    words = run_tshark(write_capture(packets, tmp_path / "x.pcapng"), *ALL_MPA_OPTIONS, "-V")
    assert words.count("Frame ") >= len(packets)


@pytest.mark.parametrize("every", [False, True])
def test_delivery_counts_of_siwarp_connections_are_shown(tmp_path: Path, every: bool) -> None:
    options = ALL_MPA_OPTIONS if every else lua_options()
    file = tmp_path / "x.pcapng"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIWARP_PERSONA", "roce")
        with run_ping_server("--qp", "rc", "--addr", "127.0.0.1") as (port, _):
            done = run_siwarp_command(
                "capture", "-o", file, "--", *COMMAND,
                "ping", "127.0.0.1", "-p", port, "-n", 6, "-s", 64, "--qp", "rc",
            )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [m["fields"] for m in run_siwarp_json("dissect", file) if m["kind"] == "PRIVATE"]
    counts = [one for one in told if one["subcode"] == 4]
    asked = [one for one in told if one["subcode"] == 5]
    assert len(counts) >= 6 and len(asked) == 2
    shown = read_packet_fields(
        file, "siwarp.sends", "siwarp.sends", "siwarp.writes", options=options
    )
    both = [
        tuple(map(int, pair))
        for row in shown
        for pair in zip(*(r.split(",") for r in row), strict=True)
    ]
    assert both == [(one["sends"], one["writes"]) for one in counts]
    shown = read_packet_fields(
        file, "siwarp.rnr_retry", "siwarp.rnr_retry", "siwarp.wants_counts", options=options
    )
    assert shown == [[str(one["rnr_retry"]), str(one["wants_counts"])] for one in asked]
    words = run_tshark(file, *options)
    assert f"Delivery count: {counts[-1]['sends']} Sends, 0 Writes" in words
    assert "Requester, rnr_retry 7" in words
