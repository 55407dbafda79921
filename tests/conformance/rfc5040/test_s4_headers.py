"""RFC 5040 section 4: control fields, Read Request and Terminate headers."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from _siwarp_layers import lib
from unit.rdmap.rdmap_harness import (
    ALL,
    PD,
    REMOTE_WRITE,
    Memory,
    RdmapPoller,
    StreamError,
    build_atomic_request,
    build_read_request,
    build_read_response,
    build_send,
    build_terminate,
    build_untagged_segment,
    build_write,
    octet_pattern,
    parse_segment,
    recv_exactly,
    recv_to_end,
    split_fpdus,
    temporary_setting,
    wait_until,
)

from siwarp.inspect import DDP, Opcode, Terminate

SEND, SEND_SE, WRITE = lib.SIW_RDMAP_SEND, lib.SIW_RDMAP_SEND_SE, lib.SIW_RDMAP_WRITE
READ = lib.SIW_RDMAP_READ_REQUEST
CASES = [(SEND, 0x43, 0), (SEND_SE, 0x45, 0), (READ, 0x41, 1), (WRITE, 0x40, None)]


def read_raw_segment(stream: Any) -> bytes:
    """Read one transmitted FPDU, and return the octets of its segment."""
    length = int.from_bytes(recv_exactly(stream.sock, 2), "big")
    octets = recv_exactly(stream.sock, length + -(2 + length) % 4 + 4)
    return octets[:length]


# ---- section 4.1


@pytest.mark.parametrize(("opcode", "octet", "qn"), CASES)
@pytest.mark.clause("RFC5040-4.1-01", "RFC5040-4.1-02", "RFC5040-4.1-06")
def test_the_rdmap_control_field_is_the_first_octet_that_ddp_reserves(
    layer_poller: RdmapPoller, opcode: int, octet: int, qn: int | None
) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(opcode)
    assert read_raw_segment(stream)[1] == octet


@pytest.mark.parametrize(("opcode", "octet", "qn"), CASES)
@pytest.mark.clause(
    "RFC5040-4.1-04", "RFC5040-4.1-05", "RFC5040-4.1-07#a", "RFC5040-4.1-07#b", "RFC5040-4.1-07#c"
)
def test_the_tagged_flag_and_the_queue_number_are_those_of_the_operation(
    layer_poller: RdmapPoller, opcode: int, octet: int, qn: int | None
) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(opcode, rkey=0xAABB, remote_to=0xCCDD)
    head, _ = parse_segment(read_raw_segment(stream))
    assert head.t == (qn is None)
    if qn is None:
        assert (head.stag, head.to) == (0xAABB, 0xCCDD)
    else:
        assert head.qn == qn


@pytest.mark.parametrize(("opcode", "octet", "qn"), CASES)
@pytest.mark.clause(
    "RFC5040-4.1-08#a",
    "RFC5040-4.1-08#b",
    "RFC5040-4.1-08#c",
    "RFC5040-4.1-08#e",
    "RFC5040-4.1-09",
    "RFC5040-4.1-10",
)
def test_the_rdmap_version_is_one_and_reserved_or_unused_fields_are_zero(
    layer_poller: RdmapPoller, opcode: int, octet: int, qn: int | None
) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(opcode)
    head, _ = parse_segment(read_raw_segment(stream))
    assert (head.rv, head.rdmap_rsvd) == (1, 0)
    assert qn is None or head.inv_stag == 0


@pytest.mark.parametrize("reserved", range(4))
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.clause(
    "RFC5040-4.1-08#a", "RFC5040-4.1-08#b", "RFC5040-4.1-08#e", "RFC5040-4.1-09", "RFC5040-4.1-10"
)
def test_rdmap_versions_0_and_1_are_accepted_and_reserved_fields_are_ignored(
    layer_poller: RdmapPoller, version: int, reserved: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(3)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(build_send(b"abc", rv=version, rdmap_rsvd=reserved, inv_stag=0xDEADBEEF))
    assert stream.next_event().kind == "RECV"


# ---- section 4.2


@pytest.mark.parametrize("opcode", [SEND, SEND_SE, WRITE])
@pytest.mark.clause("RFC5040-4.2-01#c")
def test_the_payload_of_a_send_or_write_follows_the_ddp_header_directly(
    layer_poller: RdmapPoller, opcode: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100, octet_pattern(100))
    stream.begin_and_flush_operation(opcode, [m.sge()], rkey=1)
    segment = read_raw_segment(stream)
    assert segment[14 if opcode == WRITE else 18 :] == octet_pattern(100)


@pytest.mark.clause("RFC5040-4.2-01#c")
def test_the_payload_of_a_read_response_follows_the_ddp_header_directly(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100, octet_pattern(100))
    stream.inject_segments(build_read_request(size=100, src_stag=m.stag, src_to=m.addr))
    assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    assert read_raw_segment(stream)[14:] == octet_pattern(100)


# ---- the layers below: section 3.1, RFC 5044 appendix C.1


@pytest.mark.parametrize("role", ["create_initiator", "create_responder"])
@pytest.mark.clause("RFC5040-3.1-01", "RFC5044-C.1-01")
def test_all_transmitted_octets_are_ddp_segments_of_version_one(
    layer_poller: RdmapPoller, role: str
) -> None:
    """Every octet after start-up belongs to an FPDU with a segment, whose two versions are 1.

    siwarp rejects an RDMAC RNIC, which uses version 0, by its MPA revision (section 7.1.1).
    """
    stream = getattr(layer_poller, role)()
    m = layer_poller.register_new_memory(100, octet_pattern(100), rights=ALL)
    for request in (
        build_read_request(size=100, src_stag=m.stag, src_to=m.addr),
        build_atomic_request(stag=m.stag, to=m.addr, msn=2),
    ):
        stream.inject_segments(request)
        wait_until(lambda: (e := stream.poll_event()) and e.kind == "REQUESTED")
        stream.flush()
    for opcode in (SEND, SEND_SE, WRITE, READ, lib.SIW_RDMAP_SEND_INV):
        stream.begin_and_flush_operation(opcode, [m.sge(0, 100 if opcode != READ else 8)], rkey=1)
    stream.inject_segments(build_write(b"abc", stag=1))
    stream.receive_until_error()
    stream.send_terminate()
    stream.sock.shutdown(socket.SHUT_WR)
    heads = [parse_segment(segment)[0] for segment in split_fpdus(recv_to_end(stream.sock))]
    assert {(head.dv, head.rv) for head in heads} == {(1, 1)}
    assert {head.opcode for head in heads} == {
        *(Opcode.SEND, Opcode.SEND_SE, Opcode.SEND_INVALIDATE, Opcode.RDMA_WRITE),
        *(Opcode.RDMA_READ_REQUEST, Opcode.RDMA_READ_RESPONSE),
        *(Opcode.ATOMIC_RESPONSE, Opcode.TERMINATE),
    }


# ---- section 4.4


@pytest.mark.clause(
    "RFC5040-4.2-01#a",
    "RFC5040-4.4-01#a",
    "RFC5040-4.4-01#b",
    "RFC5040-4.4-01#c",
    "RFC5040-4.4-01#d",
    "RFC5040-4.4-01#e",
)
def test_a_read_request_has_its_header_and_no_payload(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(0x102)
    stream.begin_and_flush_operation(READ, [m.sge()], rkey=0x03040506, remote_to=0x0708090A0B0C0D0E)
    segment = read_raw_segment(stream)
    assert segment[:18] == bytes.fromhex("4141 00000000 00000001 00000001 00000000")
    sink = segment[18:22]
    assert sink != bytes(4)
    assert segment[22:] == bytes.fromhex("0000000000000000 00000102 03040506 0708090a0b0c0d0e")


@pytest.mark.parametrize("sink", [(0, 0), (0xFFFFFFFF, 2**64 - 11), (0x12345678, 1)])
@pytest.mark.clause("RFC5040-4.4-02", "RFC5040-4.4-03")
def test_the_sink_of_a_read_request_is_copied_unchanged_into_the_response(
    layer_poller: RdmapPoller, sink: tuple[int, int]
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    stream.inject_segments(
        build_read_request(
            size=10, src_stag=m.stag, src_to=m.addr, sink_stag=sink[0], sink_to=sink[1]
        )
    )
    assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    head, octets = stream.read_sent_message()
    assert (head.stag, head.to, octets) == (*sink, octet_pattern(10))


@pytest.mark.parametrize(("at", "size"), [(0, 100), (1, 99), (99, 1), (37, 20)])
@pytest.mark.clause("RFC5040-4.4-04", "RFC5040-5.2.1-12")
def test_the_source_of_a_read_may_be_any_part_of_a_region(
    layer_poller: RdmapPoller, at: int, size: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100, octet_pattern(100))
    stream.inject_segments(build_read_request(size=size, src_stag=m.stag, src_to=m.addr + at))
    stream.next_event()
    stream.flush()
    assert stream.read_sent_message()[1] == octet_pattern(100)[at : at + size]


# ---- section 4.8


@pytest.mark.clause(
    "RFC5040-4.8-01#a",
    "RFC5040-4.8-01#b",
    "RFC5040-4.8-01#c",
    "RFC5040-4.8-01#d",
    "RFC5040-4.8-02",
    "RFC5040-4.8-07",
)
def test_a_terminate_has_the_layout_of_the_rfc_figures(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    segment = build_write(b"abcde", stag=0x01020304, to=0x05060708090A0B0C)
    stream.inject_segments(segment)
    assert stream.receive_until_error().err == (1, 1, 0)
    stream.send_terminate()
    got = read_raw_segment(stream)
    assert got[:18] == bytes.fromhex("4147 00000000 00000002 00000001 00000000")
    # The fields are layer and type, code, M and D, reserved, the segment's length, the segment's
    # header.
    assert got[18:] == bytes.fromhex("11 00 c0 00 0013") + segment[:14]


@pytest.mark.clause("RFC5040-4.1-07#d", "RFC5040-4.2-01#b")
def test_a_terminate_uses_queue_2_and_has_a_terminate_header_and_no_payload(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_write(b"abcde", stag=0x01020304))
    assert stream.receive_until_error().err == (1, 1, 0)
    stream.send_terminate()
    head, octets = parse_segment(read_raw_segment(stream))
    assert (head.t, head.qn, head.opcode) == (0, 2, Opcode.TERMINATE)
    assert octets == bytes(Terminate(octets))
    # A Terminate has a control field, a length, and in this case the DDP header of a tagged
    # segment.
    assert len(octets) == 4 + 2 + 14


def unreadable_stags_with_errors(
    layer_poller: RdmapPoller, m: Memory
) -> list[tuple[tuple[int, int], int]]:
    """Return ((STag, offset), expected error code) for sources that must not be read."""
    other = layer_poller.register_new_memory(100, pd=PD + 1)
    closed = layer_poller.register_new_memory(100, rights=REMOTE_WRITE | 1)
    freed = layer_poller.register_new_memory(100)
    layer_poller.free_stag(freed.stag)
    return [
        ((m.stag ^ 0x10, m.addr), lib.SIW_RDMAP_INVALID_STAG),
        ((freed.stag, freed.addr), lib.SIW_RDMAP_INVALID_STAG),
        ((m.stag, m.addr - 1), lib.SIW_RDMAP_BOUNDS),
        ((m.stag, m.addr + 91), lib.SIW_RDMAP_BOUNDS),
        ((closed.stag, closed.addr), lib.SIW_RDMAP_ACCESS),
        ((other.stag, other.addr), lib.SIW_RDMAP_STAG_NOT_OF_STREAM),
        ((m.stag, 2**64 - 5), lib.SIW_RDMAP_TO_WRAP),
    ]


@pytest.mark.parametrize("which", range(7))
@pytest.mark.clause("RFC5040-4.8-09", "RFC5040-4.8-10", "RFC5040-4.8-11")
def test_the_terminate_for_a_refused_read_request_quotes_the_complete_request(
    layer_poller: RdmapPoller, which: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100)
    (stag, to), code = unreadable_stags_with_errors(layer_poller, m)[which]
    segment = build_read_request(size=10, src_stag=stag, src_to=to, sink_stag=77, sink_to=88)
    stream.inject_segments(segment)
    t = stream.assert_terminates_with((0, 1, code))
    assert (t.m, t.d, t.r, t.ddp_seg_len) == (1, 1, 1, 18 + 28)
    assert bytes(t.quoted_ddp) + bytes(t.quoted_rdma) == segment


@pytest.mark.parametrize(
    ("segment", "error"),
    [
        (build_send(b"abc", msn=5), (1, 2, 3)),
        (build_send(b"abc", dv=2), (1, 2, 6)),
        (build_read_request(size=1, src_stag=1, src_to=0, msn=9), (1, 2, 3)),
        (build_write(b"abc", dv=0), (1, 1, 4)),
        (build_write(b"abc", stag=1), (1, 1, 0)),
        (build_send(b"abc", rv=2), (0, 2, 5)),
        (build_send(b"abc", opcode=13), (0, 2, 6)),
    ],
)
@pytest.mark.clause("RFC5040-4.8-04", "RFC5040-4.8-05", "RFC5040-4.8-08")
def test_a_terminate_quotes_length_and_header_of_the_failing_segment(
    layer_poller: RdmapPoller, segment: bytes, error: tuple[int, int, int]
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(segment)
    t = stream.assert_terminates_with(error)
    assert (t.m, t.d, t.r, t.ddp_seg_len) == (1, 1, 0, len(segment))
    assert bytes(t.quoted_ddp) == segment[: 14 if segment[0] & 0x80 else 18]


@pytest.mark.clause("RFC5040-4.8-06")
def test_only_a_protection_error_of_a_read_request_quotes_its_rdma_header(
    layer_poller: RdmapPoller,
) -> None:
    one, other = layer_poller.create_initiator(), layer_poller.create_initiator()
    one.inject_segments(build_read_request(size=1, src_stag=1, src_to=0))
    assert one.assert_terminates_with((0, 1, 0)).r == 1
    other.inject_segments(build_read_request(size=1, src_stag=1, src_to=0, rv=3))
    assert other.assert_terminates_with((0, 2, 5)).r == 0


@pytest.mark.clause("RFC5040-4.8-04", "RFC5040-4.8-05")
def test_the_terminate_for_an_llp_error_quotes_nothing(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.sock.sendall(b"\0\x12" + bytes(18) + b"\xff\xff\xff\xff")
    t = stream.assert_terminates_with((2, 0, lib.SIW_MPA_CRC))
    assert (t.m, t.d, t.r) == (0, 0, 0)
    assert len(bytes(t)) == 4


@pytest.mark.parametrize("error", [(0, 1, 1), (1, 2, 5), (2, 0, 2)])
@pytest.mark.clause("RFC5040-4.8-03")
def test_received_terminate_codes_of_figure_9_are_reported(
    layer_poller: RdmapPoller, error: tuple[int, int, int]
) -> None:
    stream = layer_poller.create_initiator()
    layer, etype, code = error
    stream.inject_segments(build_terminate(bytes([layer << 4 | etype, code, 0, 0])))
    e = stream.next_event()
    assert (e.kind, e.err) == ("TERMINATED", error)


@pytest.mark.clause("RFC5040-4.8-07")
def test_reserved_bits_of_a_received_terminate_are_ignored(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_terminate(bytes.fromhex("1202 c0ff 0020") + build_send(msn=6)))
    e = stream.next_event()
    assert (e.err, e.quoted, e.quoted_msn) == ((1, 2, 2), True, 6)
    other = layer_poller.create_initiator()
    other.inject_segments(build_terminate(bytes.fromhex("1202 1fff")))
    assert other.next_event().err in [(1, 2, 2), (2, 1, 2)]


@pytest.mark.clause("RFC5040-4.8-01#e", "RFC5040-4.8-11", "RFC5040-7.1-02#c")
def test_a_terminate_for_an_aborted_read_response_quotes_the_rest_of_the_request(
    layer_poller: RdmapPoller,
) -> None:
    size = 8 << 20
    with temporary_setting("mulpdu", 30_000):
        stream = layer_poller.create_initiator()
        m = layer_poller.register_new_memory(size)
        request = build_read_request(
            size=size, src_stag=m.stag, src_to=m.addr, sink_stag=5, sink_to=1000
        )
        stream.inject_segments(request)
        assert stream.next_event().kind == "REQUESTED"
        assert stream.flush_once() == 0
        assert lib.siw_ddp_tx_still_refers_to_stag(stream.ddp, m.stag) == 1
        layer_poller.free_stag(m.stag)
        with pytest.raises(StreamError, match="EACCES"):
            stream.flush_once()
    e = stream.next_event()
    assert (e.kind, e.err) == ("ERROR", (0, 1, lib.SIW_RDMAP_INVALID_STAG))
    sent = 0
    while True:
        lib.siw_rdmap_terminate(stream.handle)
        head, octets = stream.read_sent_segment()
        if head.opcode == Opcode.TERMINATE:
            break
        assert head.l == 0
        sent += len(octets)
    assert 0 < sent < size
    assert octets[:4] == bytes([0x01, 0, 0xE0, 0])
    assert octets[6:24] == request[:18]
    quoted = DDP(request[:18] + octets[24:]).payload
    assert (quoted.sink_stag, quoted.sink_to) == (5, 1000 + sent)
    assert (quoted.src_stag, quoted.src_to) == (m.stag, m.addr + sent)
    assert quoted.size == size - sent


@pytest.mark.clause("RFC5040-4.2-01#a")
def test_a_read_request_of_a_wrong_length_is_refused(layer_poller: RdmapPoller) -> None:
    for length, error in [(0, (0, 2, 255)), (27, (0, 2, 255)), (29, (1, 2, 5))]:
        stream = layer_poller.create_initiator()
        stream.inject_segments(build_untagged_segment(bytes(length), opcode=1, qn=1))
        stream.assert_terminates_with(error)


@pytest.mark.parametrize(
    "opcode",
    [
        pytest.param(4, marks=pytest.mark.clause("RFC5040-4.1-03#a", "RFC5040-4.1-08#d")),
        pytest.param(6, marks=pytest.mark.clause("RFC5040-4.1-03#b", "RFC5040-4.1-08#d")),
    ],
)
def test_a_send_with_invalidate_is_recognized_by_its_opcode_and_stag_field(
    layer_poller: RdmapPoller, opcode: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, rights=ALL)
    stream.recvs.post(1, m.sge())
    segment = build_send(b"abc", opcode=opcode, inv_stag=m.stag)
    stream.inject_segments(segment)
    t = stream.assert_terminates_with((0, 1, lib.SIW_RDMAP_CANNOT_INVALIDATE))
    assert t.quoted_ddp.inv_stag == m.stag
    assert m.is_untouched()
    assert stream.recvs.take_buffer() == 1
    assert layer_poller.free_stag(m.stag) == 0, "the STag must remain valid"


def test_an_unrequested_read_response_is_an_unexpected_opcode(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.inject_segments(build_read_response(b"abc", stag=m.stag, to=m.addr))
    stream.assert_terminates_with((0, 2, lib.SIW_RDMAP_OPCODE))
    assert m.is_untouched()
