# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What tshark displays with the script for datagrams with the LLP header: RD, UC, Write-Record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.rd_harness import RDEnd
from harness.record_harness import WriteRecordTarget
from harness.uc_harness import UCPair
from harness.verbs_harness import Pair, Rig, octet_pattern, poll
from scapy.packet import Packet, Raw
from tshark.tshark_harness import (
    check_packet_checksums,
    lua_options,
    read_packet_fields,
    run_tshark,
)
from unit.inspect.inspect_harness import make_udp_packet, write_capture

import siwarp as package
from siwarp.inspect import (
    UC_FIRST,
    DDPDatagram,
    DDPTagged,
    DDPUntagged,
    Opcode,
    PrivateHead,
    QuotedTagged,
    RecordDatagram,
    RecordHeader,
    Terminate,
    UCDatagram,
    UDDatagram,
)
from siwarp.inspect.packets import packets_from_frames
from siwarp.inspect.pcap import open_capture
from siwarp.inspect.rd import (
    RDDatagram,
    RDOption,
    RDType,
    cookie_in_handshake_body,
    make_ack_body,
    make_handshake_offer,
)
from siwarp.verbs import SendWR, WROpcode

#: The fields for errors that the script reports; the queue pairs of siwarp cause none of them.
ERROR_FIELDS = (
    "siwarp.bad_crc", "siwarp.bad_header", "siwarp.short", "siwarp.bad_llp", "siwarp.no_answer",
    "siwarp.bad_cookie", "siwarp.bad_offer", "siwarp.bad_private", "siwarp.bad_record",
)  # fmt: skip
EPOCHS = {"source_epoch": 0x11, "dest_epoch": 0x22}


@pytest.fixture
def verbs_device() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def read_udp_payloads(file: Path) -> list[bytes]:
    """Return the UDP payloads of a capture, in order."""
    with open_capture(file) as capture:
        return [bytes(p.payload) for p in packets_from_frames(capture) if not p.tcp]


def check_crcs_and_read_payloads(file: Path) -> list[bytes]:
    """Assert that tshark displays every datagram with a good CRC and without errors; return the
    payloads.
    """
    octets = read_udp_payloads(file)
    words = run_tshark(file, *lua_options(), "-V")
    check_packet_checksums(words)
    assert words.count("(Good CRC32)") == len(octets) > 0
    for name in ERROR_FIELDS:
        assert read_packet_fields(file, name, "frame.number", options=lua_options()) == []
    return octets


def read_shown_fields(file: Path, chosen: str, *names: str) -> list[list[str]]:
    return read_packet_fields(file, chosen, *names, options=lua_options())


def test_the_script_shows_type_epochs_and_segment_of_every_rd_datagram(
    verbs_device: Rig, tmp_path: Path
) -> None:
    file = tmp_path / "rd.pcapng"
    with package.capture(file):
        a, b = RDEnd(verbs_device), RDEnd(verbs_device)
        for n in (1, 5000):
            b.post_receive()
            a.send(b, octet_pattern(n))
            assert b.poll_receives()[0].ok and a.poll_sends()[0].ok
        a.post_rdma(b, WROpcode.RDMA_READ, 100)
        a.post_rdma(b, WROpcode.RDMA_WRITE, 100)
        assert all(w.ok for w in a.poll_sends(2))
        for peer in (a, b):
            peer.qp.close()
    found = [RDDatagram(octets) for octets in check_crcs_and_read_payloads(file)]
    types = Counter(int(p.type) for p in found)
    assert all(types[t] for t in (RDType.DATA, RDType.HELLO, RDType.CHALLENGE, RDType.ECHO))
    rows = read_shown_fields(
        file, "siwarp", "siwarp.llp.type", "siwarp.psn", "siwarp.q_key", "siwarp.rd.source_epoch",
        "siwarp.rd.dest_epoch", "siwarp.rd.acknowledged", "siwarp.rd.credit", "siwarp.rd.ird",
        "siwarp.rd.reason", "siwarp.rd.response_acknowledged", "siwarp.rd.response_credit",
        "siwarp.rd.delay",
    )  # fmt: skip
    assert [[int(x, 0) for x in row if x] for row in rows] == [
        [
            p.type,
            p.psn,
            p.q_key,
            p.source_epoch,
            p.dest_epoch,
            p.acknowledged,
            p.credit,
            p.ird,
            p.response_acknowledged,
            p.response_credit,
            p.delay,
        ]
        for p in found
    ]
    opcodes = Counter(
        row[0] for row in read_shown_fields(file, "siwarp.llp.type == 4", "siwarp.opcode")
    )
    assert {"0", "1", "2", "3"} == set(opcodes)
    stock = read_shown_fields(file, "siwarp.llp.type == 4 && iwarp_ddp", "frame.number")
    assert len(stock) == types[RDType.DATA]
    cookies = read_shown_fields(file, "siwarp.rd.cookie", "siwarp.rd.cookie")
    assert [bytes.fromhex(c.replace(":", "")) for (c,) in cookies] == [
        cookie_in_handshake_body(p.body) for p in found if p.type in (RDType.CHALLENGE, RDType.ECHO)
    ]


def test_the_script_shows_the_fields_of_uc_write_record_and_immediate_data(
    verbs_device: Rig, tmp_path: Path
) -> None:
    file = tmp_path / "both.pcapng"
    with package.capture(file):
        uc = UCPair(verbs_device, attrs={"path_mtu": 256})
        uc.post_receive()
        uc.send(octet_pattern(600), opcode=WROpcode.SEND_WITH_IMM, imm_data=0x01020304)
        assert uc.poll_sends()[0].ok and uc.poll_receives()[0].ok
        ud, target = Pair(verbs_device), WriteRecordTarget(verbs_device)
        ud.post_receive()
        ud.send(b"with data", opcode=WROpcode.SEND_WITH_IMM, imm_data=0x01020304)
        assert poll(ud.scq)[0].ok and poll(ud.rcq)[0].ok
        wr = SendWR(
            1, WROpcode.RDMA_WRITE_RECORD, sg=[ud.out.sge(0, 70_000)],
            ah=verbs_device.create_ah(target.qp), remote=target.memory.remote(), remote_qkey=0x2345,
        )  # fmt: skip
        target.memory = verbs_device.reg_mr(bytearray(70_000), 7)
        wr.set_wr_rdma(target.memory.rkey, target.memory.addr)
        ud.a.post_send(wr)
        assert poll(ud.scq)[0].ok
        ((_, record),) = target.poll_write_records()
    check_crcs_and_read_payloads(file)
    first = read_shown_fields(
        file, "siwarp.llp.type == 1", "siwarp.psn", "siwarp.llp.first", "siwarp.mo"
    )
    # Each datagram is captured when sent and when received, and the script does not show the second
    # copy as a repetition.
    assert sorted(first) == sorted([["0", "1", "0"], ["1", "0", "256"], ["2", "0", "512"]] * 2)
    assert read_shown_fields(file, "siwarp.again", "frame.number") == []
    assert (
        len({row[0] for row in read_shown_fields(file, "siwarp.imm_data", "siwarp.imm_data")}) == 1
    )
    assert [row[0] for row in read_shown_fields(file, "siwarp.private == 1", "siwarp.opcode")] == [
        "15"
    ] * 4
    rows = read_shown_fields(
        file, "siwarp.llp.type == 2", "siwarp.record.id", "siwarp.record.length", "siwarp.stag",
        "siwarp.record.to", "siwarp.last",
    )  # fmt: skip
    assert sorted([int(x, 0) for x in row] for row in rows) == [
        [record.message_id, 70_000, record.rkey, record.addr, last] for last in (0, 0, 1, 1)
    ]
    assert "Write-Record" in run_tshark(file, *lua_options())


def build_rd_datagram(kind: RDType, body: bytes | Packet = b"", **more: int) -> bytes:
    return bytes(RDDatagram(type=kind, body=bytes(body), **{**EPOCHS, **more}))


def make_write_record(octets: int = 4, last: int = 1, to: int = 0, **head: int) -> bytes:
    segment = DDPTagged(opcode=15, l=last, to=0x1000 + to) / RecordHeader(
        **{"message_id": 9, "to": 0x1000, "length": 4, **head}
    )
    return bytes(RecordDatagram(segment=bytes(segment) + bytes(octets)))


OFFER = make_handshake_offer(
    {RDOption.LONGEST: 9000, RDOption.FEATURES: 0, RDOption.INSTANCE: 5, 77: 1}
)
SEGMENT = bytes(DDPUntagged(msn=3) / Raw(b"octets"))
VALID_DATAGRAMS = {
    "DATA": (
        build_rd_datagram(RDType.DATA, SEGMENT, psn=7),
        "RD DATA PSN=7 Ack=0 Send MSN=3, 6 octets",
    ),
    "ACK": (
        build_rd_datagram(RDType.ACK, make_ack_body(5, [7, 8, 20]), acknowledged=5, rd_flags=1),
        "RD ACK PSN=0 Ack=5, and 3 after a gap",
    ),
    "HELLO": (
        build_rd_datagram(RDType.HELLO, OFFER.ljust(64, b"\0"), dest_epoch=0),
        "RD HELLO PSN=0 Ack=0",
    ),
    "CHALLENGE": (
        build_rd_datagram(RDType.CHALLENGE, OFFER + bytes(20)),
        "RD CHALLENGE PSN=0 Ack=0",
    ),
    "ECHO": (build_rd_datagram(RDType.ECHO, OFFER + bytes(20)), "RD ECHO PSN=0 Ack=0"),
    "VERSIONS": (
        build_rd_datagram(RDType.VERSIONS, make_handshake_offer(), source_epoch=0),
        "RD VERSIONS PSN=0 Ack=0",
    ),
    "PROBE": (build_rd_datagram(RDType.PROBE, bytes(99), psn=4), "RD PROBE PSN=4 Ack=0"),
    "BYE": (build_rd_datagram(RDType.BYE), "RD BYE PSN=0 Ack=0"),
    "UC": (
        bytes(UCDatagram(psn=2, flags=UC_FIRST, segment=DDPTagged(opcode=0) / Raw(b"four"))),
        "UC PSN=2 Write, 4 octets",
    ),
    "Record": (make_write_record(), "Record PSN=0 Write-Record 9, octets 0 to 4 of 4"),
}


def test_each_type_of_datagram_has_its_own_info_line_and_no_error(tmp_path: Path) -> None:
    file = write_capture(
        [make_udp_packet(octets) for octets, _ in VALID_DATAGRAMS.values()], tmp_path / "x.pcapng"
    )
    lines = read_packet_fields(file, "siwarp", "_ws.col.Info", options=lua_options())
    assert [row[0] for row in lines] == [info for _, info in VALID_DATAGRAMS.values()]
    check_crcs_and_read_payloads(file)


INVALID_DATAGRAMS = {
    "a type that is none": (
        build_rd_datagram(RDType.BYE)[:0] + b"\xf6" + build_rd_datagram(RDType.BYE)[1:-4],
        "bad_llp",
    ),
    "another version": (b"\x52" + build_rd_datagram(RDType.ACK)[1:-4], "bad_llp"),
    "no source epoch": (build_rd_datagram(RDType.DATA, SEGMENT, source_epoch=0)[:-4], "bad_llp"),
    "ranges that are cut": (
        build_rd_datagram(RDType.ACK, make_ack_body(5, [7])[:-1])[:-4],
        "bad_llp",
    ),
    "a bye with something behind it": (build_rd_datagram(RDType.BYE, b"more")[:-4], "bad_llp"),
    "a hello that nothing answers": (
        build_rd_datagram(RDType.HELLO, OFFER, dest_epoch=0)[:-4],
        "no_answer",
    ),
    "options that are cut": (build_rd_datagram(RDType.CHALLENGE, OFFER[:-1])[:-4], "bad_offer"),
    "no options": (build_rd_datagram(RDType.VERSIONS, b"\2")[:-4], "bad_offer"),
    "a cookie that is cut": (build_rd_datagram(RDType.ECHO, OFFER + bytes(19))[:-4], "bad_cookie"),
    "a life that is not known": (build_rd_datagram(RDType.BYE, ird=1)[:-4], "unknown_pair"),
    "a segment that is cut": (build_rd_datagram(RDType.DATA, SEGMENT[:17])[:-4], "short"),
    "a segment of another DDP": (
        build_rd_datagram(RDType.DATA, b"\x42" + SEGMENT[1:])[:-4],
        "bad_header",
    ),
    "a record beyond its message": (make_write_record(5)[:-4], "bad_record"),
    "a record before its message": (make_write_record(to=-1)[:-4], "bad_record"),
    "a record's last, not marked": (make_write_record(last=0)[:-4], "bad_record"),
    "a record of another kind": (make_write_record(subcode=4)[:-4], "bad_private"),
    "a private message of no kind": (
        bytes(UDDatagram(segment=DDPDatagram(opcode=15) / PrivateHead(subcode=3)))[:-4],
        "bad_private",
    ),
    "a private message cut short": (
        bytes(UDDatagram(segment=DDPDatagram(opcode=15) / Raw(b"\1cut")))[:-4],
        "bad_private",
    ),
}  # fmt: skip


def append_crc(octets: bytes) -> bytes:
    """Return the octets followed by their valid CRC."""
    return bytes(UDDatagram(segment=Raw(octets)))


def test_datagrams_that_no_receiver_accepts_are_shown_with_the_error(tmp_path: Path) -> None:
    packets = [make_udp_packet(append_crc(octets)) for octets, _ in INVALID_DATAGRAMS.values()]
    file = write_capture(packets, tmp_path / "x.pcapng")
    of: dict[str, list[int]] = {}
    for number, (_, name) in enumerate(INVALID_DATAGRAMS.values(), 1):
        of.setdefault(name, []).append(number)
    for name, frames in of.items():
        rows = read_packet_fields(file, f"siwarp.{name}", "frame.number", options=lua_options())
        assert [int(row[0]) for row in rows] == frames, name


def test_a_repeated_datagram_names_the_frame_of_its_first_appearance(tmp_path: Path) -> None:
    data = [build_rd_datagram(RDType.DATA, SEGMENT, psn=n) for n in (7, 8, 7, 9, 8)]
    other = build_rd_datagram(RDType.DATA, SEGMENT, psn=7, source_epoch=0x33)
    file = write_capture(
        [make_udp_packet(octets) for octets in (*data, other)], tmp_path / "x.pcapng"
    )
    rows = read_packet_fields(
        file, "siwarp.again", "frame.number", "siwarp.first_seen", options=(*lua_options(), "-2")
    )  # fmt: skip
    assert rows == [["3", "1"], ["5", "2"]]


def test_rd_datagrams_captured_as_one_batch_are_shown_separately(tmp_path: Path) -> None:
    batch = b"".join(build_rd_datagram(RDType.DATA, SEGMENT, psn=n) for n in range(20))
    file = write_capture(
        [make_udp_packet(batch + build_rd_datagram(RDType.DATA, SEGMENT[:20], psn=20))],
        tmp_path / "x.pcapng",
    )
    words = run_tshark(file, *lua_options(), "-V")
    assert words.count("(Good CRC32)") == 21
    assert words.count("    Type: RD DATA (4)") + words.count("= Type: RD DATA (4)") == 21


@pytest.mark.parametrize("kind", ["DATA", "UC", "Record", "HELLO"])
def test_datagrams_without_a_crc_are_recognized_by_their_llp_header(
    tmp_path: Path, kind: str
) -> None:
    octets = VALID_DATAGRAMS[kind][0][:-4] + bytes(4)
    file = write_capture([make_udp_packet(octets)], tmp_path / "x.pcapng")
    assert read_shown_fields(file, "siwarp", "siwarp.crc.status") == [["Unused"]]


def test_an_error_message_about_a_write_record_names_the_message_id(tmp_path: Path) -> None:
    told = bytes(Terminate(layer=0, etype=2, code=6, m=1, d=1, quoted_ddp=QuotedTagged(opcode=15)))
    octets = bytearray(told) + bytes(RecordHeader(message_id=4711))
    octets[2] |= 0x20
    segment = DDPDatagram(opcode=Opcode.TERMINATE, qn=2) / Raw(bytes(octets))
    file = write_capture(
        [make_udp_packet(bytes(UDDatagram(segment=segment)))], tmp_path / "x.pcapng"
    )
    assert read_shown_fields(file, "siwarp", "siwarp.about.record_id") == [["4711"]]
    assert "about Write-Record 4711" in run_tshark(file, *lua_options())


def test_truncated_and_mutated_datagrams_cause_no_error_in_the_script(tmp_path: Path) -> None:
    packets = []
    for octets, _ in VALID_DATAGRAMS.values():
        for size in range(0, len(octets) + 1, 1 if len(octets) < 60 else 7):
            packets += [make_udp_packet(octets[:size]), make_udp_packet(append_crc(octets[:size]))]
        for at in range(min(len(octets) - 4, 50)):
            changed = bytearray(octets[:-4])
            changed[at] ^= 0xFF
            packets.append(make_udp_packet(append_crc(bytes(changed))))
    words = run_tshark(write_capture(packets, tmp_path / "x.pcapng"), *lua_options(), "-V")
    assert words.count("\nFrame ") + 1 == len(packets)
