"""RFC 7306 section 5: atomic operations on the wire, at both ends."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from unit.rdmap.rdmap_harness import (
    ALL,
    PD,
    Memory,
    RdmapPoller,
    Stream,
    build_atomic_request,
    build_atomic_response,
    build_read_request,
    build_read_response,
    build_send,
    build_write,
    check_result,
)

from siwarp.inspect import AtomicCode, Opcode, Queue

ADD, SWAP = AtomicCode.FETCH_ADD, AtomicCode.CMP_SWAP
ONES = (1 << 64) - 1
STREAM = (0, 2, lib.SIW_RDMAP_CATASTROPHIC_STREAM)
OPCODE = (0, 2, lib.SIW_RDMAP_OPCODE)


def write_64_bit_word(m: Memory, value: int, at: int = 0) -> None:
    m[at : at + 8] = value.to_bytes(8, sys.byteorder)


def read_64_bit_word(m: Memory, at: int = 0) -> int:
    return int.from_bytes(m.octets()[at : at + 8], sys.byteorder)


def register_64_bit_words(layer_poller: RdmapPoller, *values: int, **how: Any) -> Memory:
    m = layer_poller.register_new_memory(8 * len(values), **how)
    assert m.addr % 8 == 0
    for i, value in enumerate(values):
        write_64_bit_word(m, value, 8 * i)
    return m


def answer_atomic_request(stream: Stream) -> tuple[Any, Any]:
    """Receive one request, send its response, and return the two headers of the response."""
    assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    return stream.read_sent_atomic_response()


def build_compare_and_swap(m: Memory, compare: int, data: int, **fields: Any) -> bytes:
    masks = {"mask": ONES, "compare_mask": ONES}
    asked = {"code": SWAP, "compare": compare, "data": data, **masks, **fields}
    return build_atomic_request(stag=m.stag, to=m.addr, **asked)


# ---- the requester


@pytest.mark.clause("RFC7306-5.2-01", "RFC7306-5.2.1-04", "RFC7306-5.2.1-10")
def test_an_atomic_request_is_untagged_on_the_queue_of_read_requests(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(16)
    stream.begin_and_flush_operation(Opcode.RDMA_READ_REQUEST, [m.sge(0, 8)], rkey=3, remote_to=4)
    stream.request_atomic(m.sge(8, 8), 0x1234, 0x5678, kind=ADD, data=7)
    assert stream.read_sent_read_request()[0].msn == 1
    head, request = stream.read_sent_atomic_request()
    assert (head.t, head.l, head.qn, head.msn, head.mo) == (0, 1, Queue.READ_REQUEST, 2, 0)
    assert (request.stag, request.to, request.data) == (0x1234, 0x5678, 7)


@pytest.mark.clause("RFC7306-5.2.1-03", "RFC7306-5.2.1-09", "RFC7306-5.2.1-11")
def test_atomic_requests_are_transmitted_in_the_order_of_posting(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(ord=8)
    m = layer_poller.register_new_memory(64)
    for i in range(8):
        stream.request_atomic(m.sge(8 * i, 8), i, 8 * i, kind=SWAP if i % 2 else ADD, data=i)
    seen = [stream.read_sent_atomic_request() for _ in range(8)]
    assert [(head.t, head.qn, head.msn) for head, _ in seen] == [(0, 1, i + 1) for i in range(8)]
    assert [(r.code, r.stag, r.to, r.data) for _, r in seen] == [
        (SWAP if i % 2 else ADD, i, 8 * i, i) for i in range(8)
    ]
    assert len({r.request for _, r in seen}) == 8


def test_the_fields_that_fetch_add_does_not_use_have_the_values_of_the_rfc(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8)
    stream.request_atomic(m.sge(), kind=ADD, data=5, mask=9, compare=6, compare_mask=7)
    _, request = stream.read_sent_atomic_request()
    assert (request.reserved, request.data, request.mask) == (0, 5, 9)
    assert (request.compare, request.compare_mask) == (0, ONES)


@pytest.mark.clause("RFC7306-5.2.2-07", "RFC7306-5.4-01", "RFC7306-5.4-08")
def test_an_atomic_operation_completes_only_with_its_response(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8)
    stream.request_atomic(m.sge(), user_data=77, kind=ADD, data=1)
    _, request = stream.read_sent_atomic_request()
    stream.recvs.post(5)
    stream.inject_segments(build_send(b""))
    assert stream.next_event().kind == "RECV"
    response = build_atomic_response(request.request, 0x0102030405060708)
    assert stream.poll_event() is None and m.is_untouched()
    stream.inject_segments(response)
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length) == ("READ_DONE", 77, 8)
    assert read_64_bit_word(m) == 0x0102030405060708


@pytest.mark.clause("RFC7306-5.2.2-06")
def test_there_are_buffers_for_the_responses_of_all_outstanding_atomics(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ord=6)
    m = layer_poller.register_new_memory(48)
    for i in range(6):
        stream.request_atomic(m.sge(8 * i, 8), user_data=i, kind=ADD)
    requests = [stream.read_sent_atomic_request()[1] for _ in range(6)]
    stream.inject_segments(
        *(build_atomic_response(r.request, i, msn=i + 1) for i, r in enumerate(requests))
    )
    assert [stream.next_event().user_data for _ in range(6)] == list(range(6))
    assert [read_64_bit_word(m, 8 * i) for i in range(6)] == list(range(6))


@pytest.mark.clause("RFC7306-5.2.2-01")
def test_an_atomic_response_that_repeats_an_msn_is_refused(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(16)
    stream.request_atomic(m.sge(0, 8), kind=ADD)
    stream.request_atomic(m.sge(8, 8), kind=ADD)
    one, two = (stream.read_sent_atomic_request()[1] for _ in range(2))
    stream.inject_segments(
        build_atomic_response(one.request, 1), build_atomic_response(two.request, 2, msn=1)
    )
    assert stream.next_event().kind == "READ_DONE"
    stream.assert_terminates_with((1, 2, lib.SIW_DDP_MSN_RANGE))
    assert m.octets()[8:] == bytes([m.octets()[8]]) * 8


WRONG_RESPONSES = {
    "nobody asked": (None, b"", OPCODE),
    "a Read was asked": (Opcode.RDMA_READ_REQUEST, b"", OPCODE),
    "another identifier": (Opcode.ATOMIC_REQUEST, b"id", (0, 2, 0xFF)),
    "too short": (Opcode.ATOMIC_REQUEST, b"short", (0, 2, 0xFF)),
    "too long": (Opcode.ATOMIC_REQUEST, b"long", (1, 2, lib.SIW_DDP_TOO_LONG)),
}


@pytest.mark.parametrize("why", WRONG_RESPONSES)
def test_an_invalid_atomic_response_is_an_error_and_places_nothing(
    layer_poller: RdmapPoller, why: str
) -> None:
    asked, how, error = WRONG_RESPONSES[why]
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8)
    number = 1
    if asked == Opcode.RDMA_READ_REQUEST:
        stream.begin_and_flush_operation(asked, [m.sge()], rkey=1)
        stream.read_sent_read_request()
    elif asked:
        stream.request_atomic(m.sge(), kind=ADD)
        number = stream.read_sent_atomic_request()[1].request
    response = build_atomic_response(number ^ (how == b"id"), 5)
    response = response[:-1] if how == b"short" else response
    stream.inject_segments(response + (b"x" if how == b"long" else b""))
    t = stream.assert_terminates_with(error)
    assert (t.m, t.d, t.r) == (1, 1, 0)
    assert m.is_untouched()


def test_a_read_response_does_not_answer_an_atomic(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8)
    stream.request_atomic(m.sge(), kind=ADD)
    stream.read_sent_atomic_request()
    stream.inject_segments(build_read_response(b"12345678", stag=1, to=0))
    stream.assert_terminates_with(OPCODE)
    assert m.is_untouched()


# ---- the responder


@pytest.mark.clause("RFC7306-5-03", "RFC7306-5.2.1-01", "RFC7306-5.2.1-13")
def test_fetch_add_and_cmp_swap_are_executed_and_answered(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 40)
    stream.inject_segments(
        build_atomic_request(stag=m.stag, to=m.addr, code=ADD, data=2, request=0xABCD)
    )
    _, response = answer_atomic_request(stream)
    assert (response.request, response.old, read_64_bit_word(m)) == (0xABCD, 40, 42)
    stream.inject_segments(build_compare_and_swap(m, 42, 7, msn=2, request=0xCAFE))
    _, response = answer_atomic_request(stream)
    assert (response.request, response.old, read_64_bit_word(m)) == (0xCAFE, 42, 7)


@pytest.mark.clause("RFC7306-5-05", "RFC7306-5.2-02", "RFC7306-5.2.2-02")
def test_an_atomic_response_is_untagged_on_queue_3(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 40)
    for msn in (1, 2, 3):
        stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr, data=2, msn=msn))
        head, _ = answer_atomic_request(stream)
        assert (head.t, head.l, head.qn, head.msn, head.mo) == (0, 1, 3, msn, 0)


@pytest.mark.clause("RFC7306-5.2.2-03", "RFC7306-5.2.2-04")
def test_atomic_responses_have_msns_of_their_own_queue(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 40)
    stream.inject_segments(build_read_request(size=8, src_stag=m.stag, src_to=m.addr))
    assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    assert stream.read_sent_segment()[0].opcode == Opcode.RDMA_READ_RESPONSE
    stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr, msn=2))
    head, _ = answer_atomic_request(stream)
    assert (head.qn, head.msn) == (Queue.ATOMIC_RESPONSE, 1)


@pytest.mark.clause("RFC7306-5.1.2-01")
@pytest.mark.parametrize("compare", [999, 1000])
def test_cmp_swap_leaves_the_old_value_or_writes_the_masked_new_value(
    layer_poller: RdmapPoller, compare: int
) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 1000, 5)
    stream.inject_segments(build_compare_and_swap(m, compare, 0xFFFF, mask=0x0F0F))
    _, response = answer_atomic_request(stream)
    assert response.old == 1000
    assert read_64_bit_word(m) == (1000 if compare == 999 else 1000 & ~0x0F0F | 0x0F0F)
    assert read_64_bit_word(m, 8) == 5


@pytest.mark.clause("RFC7306-5.2.1-06", "RFC7306-5.2.1-07")
def test_an_atomic_request_is_not_delivered_to_the_program(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 1)
    stream.recvs.post(9, layer_poller.register_new_memory(100).sge())
    stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr, data=1))
    e = stream.next_event()
    assert (e.kind, e.length) == ("REQUESTED", 8)
    stream.flush()
    assert stream.poll_event() is None
    assert stream.recvs.take_buffer() == 9
    assert read_64_bit_word(m) == 2


@pytest.mark.clause("RFC7306-5.2.1-08")
@pytest.mark.parametrize("code", [1, *range(3, 16)])
def test_an_unknown_atomic_operation_is_an_error(layer_poller: RdmapPoller, code: int) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 1)
    stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr, code=code, data=ONES))
    t = stream.assert_terminates_with(OPCODE)
    assert (t.d, t.r, t.quoted_ddp.opcode) == (1, 0, Opcode.ATOMIC_REQUEST)
    assert read_64_bit_word(m) == 1


def test_the_reserved_bits_of_an_atomic_request_are_ignored(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 1)
    stream.inject_segments(
        build_atomic_request(stag=m.stag, to=m.addr, reserved=0xFFFFFFF, code=ADD, data=1)
    )
    answer_atomic_request(stream)
    assert read_64_bit_word(m) == 2


@pytest.mark.clause("RFC7306-5.2.1-12", "RFC7306-5.4-09", "RFC7306-5.4-10")
def test_atomic_requests_are_executed_and_answered_in_order(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(ird=6)
    m = register_64_bit_words(layer_poller, 0)
    stream.inject_segments(
        *(build_compare_and_swap(m, i, i + 1, msn=i + 1, request=100 + i) for i in range(6)),
    )
    for _ in range(6):
        assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    got = [stream.read_sent_atomic_response() for _ in range(6)]
    assert [(head.msn, r.request, r.old) for head, r in got] == [
        (i + 1, 100 + i, i) for i in range(6)
    ]
    assert read_64_bit_word(m) == 6


@pytest.mark.clause("RFC7306-5.2.2-05", "RFC7306-5.2.2-08")
def test_reads_and_atomics_share_the_negotiated_ird_and_are_answered_in_order(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ird=4)
    m = register_64_bit_words(layer_poller, 10)
    for i in range(4):
        if i % 2:
            stream.inject_segments(
                build_read_request(size=8, src_stag=m.stag, src_to=m.addr, msn=i + 1)
            )
        else:
            stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr, data=1, msn=i + 1))
    for _ in range(4):
        assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    seen = []
    for i in range(4):
        if i % 2:
            head, octets = stream.read_sent_message()
            assert head.opcode == Opcode.RDMA_READ_RESPONSE
            seen.append(int.from_bytes(octets, sys.byteorder))
        else:
            seen.append(stream.read_sent_atomic_response()[1].old)
    assert seen == [10, 11, 11, 12]


@pytest.mark.clause("RFC7306-5.2.1-05")
def test_an_atomic_request_beyond_the_negotiated_ird_finds_no_buffer(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ird=2)
    m = register_64_bit_words(layer_poller, 0)
    stream.inject_segments(
        *(build_atomic_request(stag=m.stag, to=m.addr, data=1, msn=i + 1) for i in range(3))
    )
    stream.assert_terminates_with((1, 2, lib.SIW_DDP_NO_BUFFER))
    assert read_64_bit_word(m) == 0  # no response was sent, so the operation was not executed


@pytest.mark.clause("RFC7306-5.4-04")
def test_an_incomplete_atomic_request_has_no_effect(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 1)
    whole = build_atomic_request(stag=m.stag, to=m.addr, data=1)
    first = bytes([whole[0] & ~0x40]) + whole[1 : 18 + 30]
    stream.inject_segments(first)
    assert stream.next_event(progress=True).kind == "PROGRESS"
    stream.flush()
    assert stream.poll_event() is None and read_64_bit_word(m) == 1
    stream.inject_segments(whole[:14] + (30).to_bytes(4, "big") + whole[18 + 30 :])
    answer_atomic_request(stream)
    assert read_64_bit_word(m) == 2


@pytest.mark.clause("RFC7306-5.4-06")
def test_preceding_messages_are_delivered_before_an_atomic_request_is_answered(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=1 << 20)
    m = register_64_bit_words(layer_poller, 1, 0)
    stream.inject_segments(
        build_send(b"abc"),
        build_write((9).to_bytes(8, sys.byteorder), stag=m.stag, to=m.addr),
        build_atomic_request(stag=m.stag, to=m.addr, data=1),
    )
    assert stream.next_event().kind == "PARKED"
    while stream.poll_event():
        pass
    stream.flush()
    assert not stream.has_pending_responses and read_64_bit_word(m) == 9
    stream.recvs.post(4, layer_poller.register_new_memory(10).sge())
    assert stream.next_event().kind == "RECV"
    _, response = answer_atomic_request(stream)
    assert (response.old, read_64_bit_word(m)) == (9, 10)


@pytest.mark.clause("RFC7306-5.4-05", "RFC7306-5.4-07")
def test_messages_after_an_atomic_request_need_not_wait_for_its_response(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 1, 0)
    stream.recvs.post(4, layer_poller.register_new_memory(10).sge())
    stream.inject_segments(
        build_atomic_request(stag=m.stag, to=m.addr, data=1),
        build_write(b"behind..", stag=m.stag, to=m.addr + 8),
        build_send(b"abc"),
    )
    assert stream.next_event().kind == "REQUESTED"
    assert stream.next_event().kind == "RECV"
    assert m.octets()[8:16] == b"behind.." and read_64_bit_word(m) == 1
    stream.flush()
    assert stream.read_sent_atomic_response()[1].old == 1


# ---- alignment and access rights


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.clause("RFC7306-5.1.1-02", "RFC7306-5.1.1-03", "RFC7306-8.2-07")
def test_a_misaligned_fetch_add_causes_a_terminate_and_changes_nothing(
    layer_poller: RdmapPoller, offset: int
) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 0, 0)
    stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr + offset, data=ONES))
    t = stream.assert_terminates_with(STREAM)
    assert (t.m, t.d, t.r, t.ddp_seg_len) == (1, 1, 0, 18 + 52)
    assert m.octets() == bytes(16)


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.clause("RFC7306-5.1.2-03", "RFC7306-5.1.2-04", "RFC7306-5.1.2-06")
def test_a_misaligned_cmp_swap_causes_a_terminate_and_changes_nothing(
    layer_poller: RdmapPoller, offset: int
) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 0, 0)
    stream.inject_segments(
        build_atomic_request(stag=m.stag, to=m.addr + offset, code=SWAP, data=ONES, mask=ONES)
    )
    stream.assert_terminates_with(STREAM)
    assert m.octets() == bytes(16)


@pytest.mark.clause("RFC7306-5.1.2-05", "RFC7306-8.2-05", "RFC7306-8.2-06")
def test_a_misaligned_atomic_is_also_reported_at_the_end_that_detects_the_error(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 0, 0)
    stream.inject_segments(
        build_atomic_request(stag=m.stag, to=m.addr + 4, code=SWAP, data=1, mask=ONES)
    )
    e = stream.receive_until_error()
    assert (e.err, e.quoted, e.quoted_qn, e.quoted_msn) == (STREAM, True, 1, 1)
    assert m.octets() == bytes(16)


@pytest.mark.clause("RFC7306-5.2.1-02")
def test_an_atomic_requires_alignment_of_the_address_and_not_of_the_tagged_offset(
    layer_poller: RdmapPoller,
) -> None:
    """The virtual address must be aligned, not the tagged offset: the base of the region is
    misaligned.
    """
    m = Memory(20)
    stag = ffi.new("uint32_t *")
    where = {"addr": ffi.cast("uint8_t *", m.addr + 4), "length": 16, "rights": ALL, "pd": PD}
    # The tagged offsets of the region begin at 0 (to_base).
    region = ffi.new("struct siw_mem_region *", where)
    check_result(lib.siw_mem_stag_alloc(layer_poller.mem, region, stag))
    m[0:20] = bytes(20)
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_atomic_request(stag=stag[0], to=4, data=3))
    answer_atomic_request(stream)
    assert read_64_bit_word(m, 8) == 3
    stream.inject_segments(build_atomic_request(stag=stag[0], to=8, data=3, msn=2))
    stream.assert_terminates_with(STREAM)
    assert m.octets() == bytes(8) + (3).to_bytes(8, sys.byteorder) + bytes(4)


@pytest.mark.parametrize("rights", [0, 1, 1 | 2 | 4], ids=["none", "local", "read and write"])
def test_an_atomic_checks_access_rights_before_alignment(
    layer_poller: RdmapPoller, rights: int
) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 0, 0, rights=rights)
    stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr + 3, data=1))
    t = stream.assert_terminates_with((0, 1, lib.SIW_RDMAP_ACCESS))
    assert (t.d, t.r) == (1, 0)
    assert m.octets() == bytes(16)


def test_an_atomic_fails_if_its_region_is_freed_before_the_response(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = register_64_bit_words(layer_poller, 1)
    stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr, data=1))
    assert stream.next_event().kind == "REQUESTED"
    assert layer_poller.free_stag(m.stag) == 0
    assert lib.siw_rdmap_flush_tx(stream.handle, ffi.new("uint64_t *")) < 0
    t = stream.assert_terminates_with((0, 1, lib.SIW_RDMAP_INVALID_STAG))
    assert (t.d, t.r) == (1, 0)
    assert read_64_bit_word(m) == 1
