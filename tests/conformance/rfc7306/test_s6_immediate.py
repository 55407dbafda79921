"""RFC 7306 section 6: Immediate Data on the wire, at both ends."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from unit.rdmap.rdmap_harness import (
    RdmapPoller,
    Stream,
    build_send,
    build_untagged_segment,
    build_write,
    octet_pattern,
)

from siwarp.inspect import ImmediateData, Opcode, Queue

OPCODES = [Opcode.IMMEDIATE, Opcode.IMMEDIATE_SE]
UNSPECIFIED = (0, 2, 0xFF)


def build_immediate(data: int = 0, **fields: Any) -> bytes:
    body = fields.pop("body", bytes(ImmediateData(data=data)))
    return build_untagged_segment(body, **{"opcode": Opcode.IMMEDIATE, **fields})


def post_write_with_imm(
    stream: Stream, imm: int, opcode: int = Opcode.IMMEDIATE, size: int = 0
) -> None:
    """Post an RDMA Write with immediate data."""
    how = {"imm_opcode": opcode, "imm": imm, "internal": True}
    data = ffi.new("uint8_t[]", octet_pattern(size) or b"\0")
    stream._kept.append(data)
    source = [(int(ffi.cast("uintptr_t", data)), size, 0)] if size else []
    stream.begin_and_flush_operation(Opcode.RDMA_WRITE, source, rkey=7, remote_to=0x100, **how)


@pytest.mark.parametrize("opcode", OPCODES)
@pytest.mark.clause("RFC7306-6.3-02", "RFC7306-6.3-05", "RFC7306-6.3-06")
def test_immediate_data_are_eight_untagged_octets_on_queue_0(
    layer_poller: RdmapPoller, opcode: Opcode
) -> None:
    stream = layer_poller.create_initiator()
    post_write_with_imm(stream, 0xC0FFEE, opcode)
    assert stream.read_sent_segment()[0].opcode == Opcode.RDMA_WRITE
    head, octets = stream.read_sent_segment()
    assert (head.t, head.l, head.opcode, head.qn) == (0, 1, opcode, Queue.SEND)
    assert octets == (0xC0FFEE).to_bytes(4, sys.byteorder) + bytes(4)


@pytest.mark.clause("RFC7306-6.3-01", "RFC7306-6.3-07")
def test_immediate_data_follow_their_write_and_use_the_msns_of_sends(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_operation(Opcode.SEND)
    for i in range(3):
        post_write_with_imm(stream, i, size=200_000 * i)
    seen = [stream.read_sent_message() for _ in range(7)]
    assert [head.opcode for head, _ in seen] == [3, 0, 8, 0, 8, 0, 8]
    untagged_ones = [(head, octets) for head, octets in seen if not head.t]
    assert [head.msn for head, _ in untagged_ones] == [1, 2, 3, 4]
    said = [int.from_bytes(octets[:4], sys.byteorder) for _, octets in untagged_ones[1:]]
    assert said == [0, 1, 2]
    assert [len(octets) for head, octets in seen if head.t] == [0, 200_000, 400_000]
    assert (stream.begun_operation_count, stream.count_operations_accepted_by_tcp) == (4, 4)


@pytest.mark.parametrize("opcode", OPCODES)
@pytest.mark.clause("RFC7306-6.3-03", "RFC7306-6.3-04")
def test_each_immediate_data_message_consumes_a_receive_and_is_delivered_in_order(
    layer_poller: RdmapPoller, opcode: Opcode
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100)
    for user_data in (1, 2, 3):
        stream.recvs.post(user_data, m.sge())
    event = ffi.new("struct siw_rdmap_event *")
    stream.inject_segments(
        build_immediate(5, opcode=opcode),
        build_send(b"abc", msn=2),
        build_immediate(6, opcode=opcode, msn=3),
    )
    seen = []
    while len(seen) < 3:
        if lib.siw_rdmap_next_event(stream.handle, event) == 1 and event.kind == lib.SIW_RDMAP_RECV:
            imm = int.from_bytes(bytes(ffi.buffer(ffi.addressof(event, "imm"))), "big")
            seen.append((event.user_data, event.with_imm, event.solicited, imm * event.with_imm))
    se = opcode == Opcode.IMMEDIATE_SE
    assert seen == [(1, True, se, 5), (2, False, False, 0), (3, True, se, 6)]
    assert m.octets()[:3] == b"abc" and m.octets()[3:] == bytes([m.octets()[99]]) * 97


@pytest.mark.parametrize("size", [0, 1, 7, 9, 12, 100])
@pytest.mark.clause("RFC7306-6.3-08")
def test_immediate_data_of_a_size_other_than_eight_octets_are_an_error(
    layer_poller: RdmapPoller, size: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(200)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(build_immediate(body=bytes(size)))
    t = stream.assert_terminates_with(UNSPECIFIED)
    assert (t.m, t.d, t.r, t.quoted_ddp.opcode) == (1, 1, 0, Opcode.IMMEDIATE)
    assert m.is_untouched()
    assert stream.recvs.take_buffer() == 1


def test_immediate_data_may_arrive_in_two_segments(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.recvs.post(1)
    stream.inject_segments(
        build_immediate(body=b"\1\2\3", l=0), build_immediate(body=b"\4\0\0\0\0", mo=3)
    )
    event = ffi.new("struct siw_rdmap_event *")
    while not (
        lib.siw_rdmap_next_event(stream.handle, event) == 1 and event.kind == lib.SIW_RDMAP_RECV
    ):
        pass
    assert bytes(ffi.buffer(ffi.addressof(event, "imm"))) == b"\1\2\3\4"


def test_nine_octets_of_immediate_data_in_two_segments_are_an_error(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(
        build_immediate(body=b"\1\2\3", l=0), build_immediate(body=bytes(6), mo=3)
    )
    stream.assert_terminates_with(UNSPECIFIED)
    assert m.is_untouched()
    assert stream.pop_partial_receive() == 1


def test_immediate_data_without_a_posted_receive_are_refused(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_immediate())
    t = stream.assert_terminates_with((1, 2, lib.SIW_DDP_NO_BUFFER))
    assert (t.d, t.r) == (1, 0)


def test_a_begun_write_with_immediate_data_is_completed_before_a_terminate(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8)
    post_write_with_imm(stream, 1)
    stream.inject_segments(build_write(b"x", stag=m.stag ^ 1, to=m.addr))
    stream.receive_until_error()
    stream.send_terminate()
    assert [stream.read_sent_segment()[0].opcode for _ in range(3)] == [0, 8, 7]
