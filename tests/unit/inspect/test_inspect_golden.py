"""Building and dissecting packets, compared with octets written by hand from RFC figures."""

from __future__ import annotations

import crcmod.predefined
import pytest
from scapy.packet import Raw

from siwarp.inspect import (
    DDP,
    FPDU,
    MPA,
    DDPDatagram,
    DDPTagged,
    DDPUntagged,
    MPAReply,
    MPARequest,
    MPAStartup,
    Opcode,
    Queue,
    QuotedReadRequest,
    QuotedTagged,
    QuotedUntagged,
    ReadRequest,
    Terminate,
    UDDatagram,
    crc32c,
    term_reason,
    ud_qn,
)

crc32c_oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def octets_from_hex(text: str) -> bytes:
    """Convert hexadecimal digits, which may be separated by blanks, to octets."""
    return bytes.fromhex("".join(text.split()))


# In RFC 5044, figure 5 is a Marker and a Send of 24 zero octets, and figure 6 is the second FPDU of
# that stream, with a Marker inside. The CRC covers the Markers in both figures.
FIGURE_5 = octets_from_hex("0000 0000  002a 4143 00000000 00000000 00000001 00000000") + bytes(24)
FIGURE_5_CRC = octets_from_hex("52 23 99 83")
FIGURE_6 = octets_from_hex("002a 4143 00000000 00000000 00000002 00000000  0000 0014") + bytes(24)
FIGURE_6_CRC = octets_from_hex("84 92 58 98")


@pytest.mark.parametrize(("covered", "crc"), [(FIGURE_5, FIGURE_5_CRC), (FIGURE_6, FIGURE_6_CRC)])
def test_the_crcs_in_the_figures_of_rfc_5044_are_little_endian(covered: bytes, crc: bytes) -> None:
    assert crc32c(covered).to_bytes(4, "little") == crc
    assert crc32c_oracle(covered).to_bytes(4, "little") == crc


def test_crc32c_of_the_standard_check_string_is_correct() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_send_of_figure_5_without_its_marker_is_built_and_parsed() -> None:
    built = FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, qn=Queue.SEND, msn=1) / Raw(bytes(24)))
    assert bytes(built)[:-4] == FIGURE_5[4:]
    marked = FPDU(FIGURE_5[4:] + FIGURE_5_CRC)
    assert (marked.ulpdu.opcode, marked.ulpdu.msn, marked.ulpdu.mo) == (Opcode.SEND, 1, 0)
    assert marked.ulpdu[Raw].load == bytes(24)
    assert marked.crc == 0x83992352


def test_a_send_fpdu_with_one_octet_of_padding_is_built_and_parsed() -> None:
    covered = octets_from_hex("0015 4143 00000000 00000000 00000007 00000000 616263 00")
    whole = covered + crc32c_oracle(covered).to_bytes(4, "little")
    assert len(whole) % 4 == 0
    assert bytes(FPDU(ulpdu=DDPUntagged(msn=7) / Raw(b"abc"))) == whole
    assert FPDU(whole).pad == b"\0"
    assert FPDU(whole).ulpdu[Raw].load == b"abc"


def test_a_send_with_solicited_event_and_invalidate_contains_the_stag_after_the_control_field() -> (
    None
):
    whole = octets_from_hex("41 46 DEADBEEF 00000000 00000002 00000000")
    built = DDPUntagged(opcode=Opcode.SEND_SE_INVALIDATE, inv_stag=0xDEADBEEF, msn=2)
    assert bytes(built) == whole
    assert DDP(whole).inv_stag == 0xDEADBEEF


def test_an_rdma_write_segment_is_built_and_parsed() -> None:
    whole = octets_from_hex("c1 40 11223344 0102030405060708 aa bb")
    built = DDPTagged(opcode=Opcode.RDMA_WRITE, stag=0x11223344, to=0x0102030405060708)
    assert bytes(built / Raw(b"\xaa\xbb")) == whole
    seen = DDP(whole)
    assert isinstance(seen, DDPTagged)
    assert (seen.t, seen.l, seen.dv, seen.rv) == (1, 1, 1, 1)
    assert seen[Raw].load == b"\xaa\xbb"


def test_a_segment_that_is_not_the_last_has_an_l_bit_of_zero() -> None:
    assert bytes(DDPTagged(l=0, opcode=Opcode.RDMA_READ_RESPONSE))[:2] == octets_from_hex("81 42")
    assert DDP(octets_from_hex("81 42 00000000 0000000000000000")).l == 0


READ_REQUEST = octets_from_hex(
    """41 41 00000000 00000001 00000001 00000000
       0000aa01 0000000000001000 00000bb8 0000bb02 0000000000002000"""
)


def test_a_read_request_is_built_and_parsed() -> None:
    header = ReadRequest(
        sink_stag=0xAA01, sink_to=0x1000, size=3000, src_stag=0xBB02, src_to=0x2000
    )
    assert bytes(DDPUntagged() / header) == READ_REQUEST
    seen = DDP(READ_REQUEST)
    assert (seen.opcode, seen.qn) == (Opcode.RDMA_READ_REQUEST, Queue.READ_REQUEST)
    assert seen[ReadRequest] == header


def test_a_terminate_about_a_tagged_segment_quotes_its_length_and_header() -> None:
    # The Terminate has layer DDP, tagged buffer error, invalid STag, M and D set, R clear; the
    # refused segment has 14 + 32 octets.
    whole = octets_from_hex(
        """41 47 00000000 00000002 00000001 00000000
           11 00 c000 002e c1 40 11223344 0102030405060708"""
    )
    quoted = QuotedTagged(opcode=Opcode.RDMA_WRITE, stag=0x11223344, to=0x0102030405060708)
    header = Terminate(layer=1, etype=1, code=0, m=1, d=1, ddp_seg_len=46, quoted_ddp=quoted)
    assert bytes(DDPUntagged() / header) == whole
    seen = DDP(whole)[Terminate]
    assert (seen.layer, seen.etype, seen.code) == (1, 1, 0)
    assert (seen.m, seen.d, seen.r, seen.ddp_seg_len) == (1, 1, 0, 46)
    assert isinstance(seen.quoted_ddp, QuotedTagged)
    assert seen.quoted_ddp.stag == 0x11223344
    assert seen.reason() == "DDP: Tagged Buffer Error: Invalid STag"


def test_a_terminate_about_a_read_request_quotes_both_headers() -> None:
    # The Terminate has layer RDMAP, remote protection error, access rights violation, M, D and R
    # set.
    whole = (
        octets_from_hex("41 47 00000000 00000002 00000001 00000000  01 02 e000 002e") + READ_REQUEST
    )
    seen = DDP(whole)[Terminate]
    assert (seen.m, seen.d, seen.r, seen.ddp_seg_len) == (1, 1, 1, 46)
    assert isinstance(seen.quoted_ddp, QuotedUntagged)
    assert isinstance(seen.quoted_rdma, QuotedReadRequest)
    assert (seen.quoted_ddp.qn, seen.quoted_rdma.size) == (1, 3000)
    assert seen.reason() == "RDMA: Remote Protection Error: Access rights violation"
    seen.clear_cache()
    assert bytes(seen) == whole[18:]


def test_a_terminate_of_the_mpa_layer_has_four_octets() -> None:
    # In RFC 6581 section 9.1, the Terminate has layer 2, type 0, code 6.
    whole = octets_from_hex("41 47 00000000 00000002 00000001 00000000  20 06 0000")
    assert bytes(DDPUntagged() / Terminate(layer=2, etype=0, code=6)) == whole
    assert DDP(whole)[Terminate].reason() == "LLP: MPA Error: Insufficient IRD resources"


def test_unnamed_terminate_codes_are_reported_as_numbers() -> None:
    assert term_reason(0, 0, 0x55) == "RDMA: Local Catastrophic Error"
    assert term_reason(1, 2, 0x77) == "DDP: Untagged Buffer Error: code 0x77"
    assert term_reason(9, 8, 7) == "layer 0x9: type 0x8: code 0x07"


@pytest.mark.parametrize(
    ("cls", "key"),
    [
        (MPARequest, "4D 50 41 20 49 44 20 52 65 71 20 46 72 61 6D 65"),
        (MPAReply, "4D 50 41 20 49 44 20 52 65 70 20 46 72 61 6D 65"),
    ],
)
def test_a_revision_1_start_up_frame_is_built_and_parsed(cls: type[MPAStartup], key: str) -> None:
    whole = octets_from_hex(key) + octets_from_hex("40 01 0003") + b"abc"
    assert bytes(cls(c=1, rev=1, private_data=b"abc")) == whole
    seen = MPAStartup(whole)
    assert type(seen) is cls
    assert (seen.m, seen.c, seen.r, seen.s, seen.rev) == (0, 1, 0, 0, 1)
    assert (seen.pd_length, seen.private_data) == (3, b"abc")


def test_a_revision_2_request_contains_ird_and_ord_before_the_private_data() -> None:
    whole = octets_from_hex("4D504120494420526571204672616D65 50 02 0006 8010 c020 6869")
    frame = MPARequest(c=1, s=1, rev=2, a=1, ird=16, c_rtr=1, d_rtr=1, ord=32, private_data=b"hi")
    assert bytes(frame) == whole
    seen = MPAStartup(whole)
    assert (seen.a, seen.b, seen.ird) == (1, 0, 16)
    assert (seen.c_rtr, seen.d_rtr, seen.ord) == (1, 1, 32)
    assert (seen.pd_length, seen.private_data) == (6, b"hi")


def test_in_a_revision_1_frame_the_s_bit_does_not_change_the_private_data() -> None:
    seen = MPAStartup(octets_from_hex("4D504120494420526571204672616D65 10 01 0004 8010c020"))
    assert (seen.s, seen.private_data) == (1, octets_from_hex("8010c020"))


def test_a_ud_datagram_consists_of_a_segment_with_q_key_and_the_crc() -> None:
    segment = octets_from_hex("41 43 80010000 00030500 00000009 00000000 68656c6c6f")
    whole = segment + crc32c_oracle(segment).to_bytes(4, "little")
    header = DDPDatagram(q_key=0x80010000, qn=ud_qn(0, dest_index=5, source_index=3), msn=9)
    assert bytes(UDDatagram(segment=header / Raw(b"hello"))) == whole
    seen = UDDatagram(whole)
    assert (seen.segment.q_key, seen.segment.msn) == (0x80010000, 9)
    assert (seen.segment.queue, seen.segment.dest_index, seen.segment.source_index) == (0, 5, 3)
    assert seen.segment[Raw].load == b"hello"
    assert seen.crc == seen.crc_expected()


def test_a_ud_error_message_has_the_layout_of_a_terminate() -> None:
    quoted = octets_from_hex("41 43 00000007 00000000 00000009 00000000")
    segment = octets_from_hex("41 47 00000007 00000002 00000001 00000000  12 05 c000 0040") + quoted
    seen = UDDatagram(segment + bytes(4))
    assert seen.segment.queue == 2
    assert seen.segment[Terminate].quoted_ddp.msn == 9
    assert seen.crc == 0
    assert seen.crc_expected() == crc32c_oracle(segment)


def test_octets_with_a_reply_and_several_fpdus_are_split_into_frames() -> None:
    first = FPDU(ulpdu=DDPUntagged(msn=1) / Raw(b"x"))
    second = FPDU(ulpdu=DDPTagged(stag=5) / Raw(b"yz"))
    run = bytes(MPAReply(private_data=b"pd")) + bytes(first) + bytes(second)
    frames = MPA(run).frames
    assert [type(frame) for frame in frames] == [MPAReply, FPDU, FPDU]
    assert [frame.original[: len(bytes(frame))] for frame in frames[1:]] == [
        bytes(first),
        bytes(second),
    ]
    assert bytes(MPA(frames=frames)) == run
