"""RFC 5041 sections 7 and 8: which errors are detected, their numbers, and that nothing is
placed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _siwarp_layers import ffi, lib
from unit.ddp.ddp_harness import (
    PD,
    DdpPoller,
    Memory,
    Queue,
    Stream,
    StreamError,
    build_tagged_segment,
    build_untagged_segment,
    octet_pattern,
)

UNTAGGED = (lib.SIW_LAYER_DDP, lib.SIW_DDP_UNTAGGED_BUFFER)
TAGGED = (lib.SIW_LAYER_DDP, lib.SIW_DDP_TAGGED_BUFFER)
#: Payload sizes in octets: one that MPA passes on completely after the CRC check, and one so large
#: that MPA places the payload before the CRC has arrived.
SIZES = [100, 20_000]


@pytest.fixture
def receiving_stream(layer_poller: DdpPoller) -> tuple[Stream, Queue, Memory]:
    """Return a stream whose queue 0 has two buffers of 30,000 octets, both at the start of one
    region.
    """
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(30_000)
    q.post(1, m.sge())
    q.post(2, m.sge())
    return stream, q, m


# ---- untagged segments


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("qn", [1, 3, 4, 2**32 - 1])
@pytest.mark.clause("RFC5041-7.1-01#a", "RFC5041-7.2-01#f")
def test_a_segment_for_an_unknown_queue_is_refused(
    receiving_stream: tuple[Stream, Queue, Memory], qn: int, size: int
) -> None:
    stream, _, m = receiving_stream
    stream.inject_segments(build_untagged_segment(octet_pattern(size), qn=qn))
    assert stream.receive_until_error() == (*UNTAGGED, 0x01)
    assert m.is_untouched()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.clause("RFC5041-7.1-01#b", "RFC5041-7.1-05", "RFC5041-7.2-01#g")
def test_an_untagged_message_without_a_posted_buffer_is_refused(
    layer_poller: DdpPoller, size: int
) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(10)
    q.post(1, m.sge())
    stream.inject_segments(
        build_untagged_segment(b"abc"), build_untagged_segment(octet_pattern(size), msn=2)
    )
    assert stream.receive_segment() == (1, 3)
    assert stream.receive_until_error() == (*UNTAGGED, 0x02)
    assert m.octets() == b"abc" + bytes([0xA5]) * 7


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("msn", [0, 2, 3, 2**32 - 1])
@pytest.mark.clause("RFC5041-7.1-01#e", "RFC5041-7.2-01#h")
def test_an_msn_other_than_the_next_is_refused(
    receiving_stream: tuple[Stream, Queue, Memory], msn: int, size: int
) -> None:
    stream, _, m = receiving_stream
    stream.inject_segments(build_untagged_segment(octet_pattern(size), msn=msn))
    assert stream.receive_until_error() == (*UNTAGGED, 0x03)
    assert m.is_untouched()


@pytest.mark.clause("RFC5041-7.1-01#e")
def test_an_msn_that_was_already_delivered_is_refused(
    receiving_stream: tuple[Stream, Queue, Memory],
) -> None:
    stream, q, m = receiving_stream
    stream.inject_segments(build_untagged_segment(b"abc"), build_untagged_segment(b"xyz"))
    assert stream.receive_segment() == (1, 3)
    assert stream.receive_until_error() == (*UNTAGGED, 0x03)
    assert m.octets()[:3] == b"abc"
    assert q.take_buffer() == 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("before", "mo"), [(0, 1), (0, 2**32 - 1), (10, 0), (10, 9), (10, 11)])
@pytest.mark.clause("RFC5041-7.1-01#c", "RFC5041-7.2-01#i")
def test_an_mo_that_leaves_a_gap_or_goes_back_is_refused(
    receiving_stream: tuple[Stream, Queue, Memory], before: int, mo: int, size: int
) -> None:
    stream, _, m = receiving_stream
    if before:
        stream.inject_segments(build_untagged_segment(octet_pattern(before), l=0))
        stream.receive_segment()
    stream.inject_segments(build_untagged_segment(octet_pattern(size, 2), mo=mo))
    assert stream.receive_until_error() == (*UNTAGGED, 0x04)
    assert m.octets() == octet_pattern(before) + bytes([0xA5]) * (30_000 - before)


@pytest.mark.parametrize("parts", [[30_001], [1, 30_000], [29_999, 2], [30_000, 1]])
@pytest.mark.clause("RFC5041-7.1-01#d", "RFC5041-7.2-01#j")
def test_an_untagged_message_too_long_for_its_buffer_is_refused(
    receiving_stream: tuple[Stream, Queue, Memory], parts: list[int]
) -> None:
    stream, _, m = receiving_stream
    at = 0
    for n in parts[:-1]:
        stream.inject_segments(build_untagged_segment(octet_pattern(n), l=0))
        stream.receive_segment()
        at += n
    stream.inject_segments(build_untagged_segment(octet_pattern(parts[-1]), mo=at))
    assert stream.receive_until_error() == (*UNTAGGED, 0x05)
    assert m.octets() == (octet_pattern(at) + bytes([0xA5]) * 30_000)[:30_000]


# ---- tagged segments


def _fields_with_invalid_stag(layer_poller: DdpPoller, s: Stream, m: Memory) -> dict[str, int]:
    return {"stag": m.stag ^ 0x4000, "to": 0}


def _free_stag_and_make_fields(layer_poller: DdpPoller, s: Stream, m: Memory) -> dict[str, int]:
    layer_poller.free_stag(m.stag)
    return {"stag": m.stag, "to": 0}


def _fields_with_offset_below_region(
    layer_poller: DdpPoller, s: Stream, m: Memory
) -> dict[str, int]:
    return {"stag": layer_poller.assign_stag_to_memory(m, to_base=1000), "to": 999}


def _fields_with_offset_above_region(
    layer_poller: DdpPoller, s: Stream, m: Memory
) -> dict[str, int]:
    return {"stag": m.stag, "to": 30_000}


def _fields_with_segment_past_region_end(
    layer_poller: DdpPoller, s: Stream, m: Memory
) -> dict[str, int]:
    return {"stag": m.stag, "to": 29_901}


def _fields_with_stag_of_other_pd(layer_poller: DdpPoller, s: Stream, m: Memory) -> dict[str, int]:
    return {"stag": layer_poller.assign_stag_to_memory(m, pd=PD + 1), "to": 0}


def _fields_with_stag_of_other_stream(
    layer_poller: DdpPoller, s: Stream, m: Memory
) -> dict[str, int]:
    return {
        "stag": layer_poller.assign_stag_to_memory(m, stream=layer_poller.create_receiver()),
        "to": 0,
    }


def _fields_with_wrapping_offset(layer_poller: DdpPoller, s: Stream, m: Memory) -> dict[str, int]:
    return {
        "stag": layer_poller.assign_stag_to_memory(m, to_base=2**64 - 30_000),
        "to": 2**64 - 100,
    }


Case = tuple[Callable[[DdpPoller, Stream, Memory], dict[str, int]], int]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            (_fields_with_invalid_stag, 0x00),
            marks=pytest.mark.clause("RFC5041-7.1-06#a", "RFC5041-7.2-01#a"),
            id="_invalid_stag",
        ),
        pytest.param(
            (_free_stag_and_make_fields, 0x00),
            marks=pytest.mark.clause("RFC5041-7.1-06#a", "RFC5041-7.2-01#a"),
            id="_freed_stag",
        ),
        pytest.param(
            (_fields_with_offset_below_region, 0x01),
            marks=pytest.mark.clause("RFC5041-7.1-06#c", "RFC5041-7.2-01#b"),
            id="_below_region",
        ),
        pytest.param(
            (_fields_with_offset_above_region, 0x01),
            marks=pytest.mark.clause("RFC5041-7.1-06#c", "RFC5041-7.2-01#b"),
            id="_above_region",
        ),
        pytest.param(
            (_fields_with_segment_past_region_end, 0x01),
            marks=pytest.mark.clause("RFC5041-7.1-06#d", "RFC5041-7.2-01#b"),
            id="_past_region_end",
        ),
        pytest.param(
            (_fields_with_stag_of_other_pd, 0x02),
            marks=pytest.mark.clause("RFC5041-7.1-06#a", "RFC5041-7.2-01#c"),
            id="_other_pd",
        ),
        pytest.param(
            (_fields_with_stag_of_other_stream, 0x02),
            marks=pytest.mark.clause("RFC5041-7.1-06#a", "RFC5041-7.2-01#c"),
            id="_other_stream",
        ),
        pytest.param(
            (_fields_with_wrapping_offset, 0x03),
            marks=pytest.mark.clause("RFC5041-7.1-06#e", "RFC5041-7.2-01#d"),
            id="_wrapping_offset",
        ),
    ],
)
@pytest.mark.clause("RFC5041-7.1-07")
def test_a_tagged_segment_with_an_invalid_stag_or_offset_is_refused_and_not_placed(
    layer_poller: DdpPoller, case: Case, size: int
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(30_000)
    make, code = case
    stream.inject_segments(
        build_tagged_segment(octet_pattern(size), **make(layer_poller, stream, m))
    )
    assert stream.receive_until_error() == (*TAGGED, code)
    assert m.is_untouched()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.clause("RFC5041-7.1-06#b")
def test_memory_without_remote_write_access_is_not_written(
    layer_poller: DdpPoller, size: int
) -> None:
    for rights in (0, lib.SIW_MEM_REMOTE_READ, lib.SIW_MEM_LOCAL_WRITE, lib.SIW_MEM_READ_SINK):
        stream = layer_poller.create_receiver()
        m = layer_poller.register_new_memory(30_000, rights=rights)
        stream.inject_segments(build_tagged_segment(octet_pattern(size), stag=m.stag))
        # DDP defines no code for this error, but RDMAP does.
        assert stream.receive_until_error() == (0, 1, lib.SIW_RDMAP_ACCESS)
        assert m.is_untouched()


@pytest.mark.clause("RFC5041-7.1-08")
def test_header_and_length_of_a_refused_segment_are_passed_to_the_upper_layer(
    receiving_stream: tuple[Stream, Queue, Memory],
) -> None:
    stream, _, _ = receiving_stream
    segment = build_untagged_segment(octet_pattern(100), msn=9, inv_stag=7)
    stream.inject_segments(segment)
    seg = ffi.new("struct siw_ddp_seg *")
    while (rv := lib.siw_ddp_rx_peek_segment(stream.handle, seg)) == 0:
        pass
    assert rv < 0
    assert bytes(ffi.buffer(seg.head, seg.head_len)) == segment[:18]
    assert (seg.seg_len, seg.msn) == (118, 9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.clause("RFC5041-7.1-09")
def test_segments_after_an_invalid_segment_are_dropped(
    receiving_stream: tuple[Stream, Queue, Memory], size: int
) -> None:
    stream, q, m = receiving_stream
    stream.inject_segments(
        build_tagged_segment(b"abc", stag=m.stag ^ 1),
        build_tagged_segment(octet_pattern(size), stag=m.stag),
    )
    stream.inject_segments(build_untagged_segment(octet_pattern(size)))
    stream.receive_until_error()
    for _ in range(3):
        with pytest.raises(StreamError):
            stream.next_segment_header()
    assert m.is_untouched()
    assert q.take_buffer() == 1


# ---- section 8


@pytest.mark.clause("RFC5041-8.2-01", "RFC5041-8.3.1-02")
def test_a_stream_cannot_access_memory_of_another_protection_domain(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(100, pd=PD + 1)
    stream.inject_segments(build_tagged_segment(b"abc", stag=m.stag))
    assert stream.receive_until_error() == (*TAGGED, lib.SIW_DDP_STAG_NOT_OF_STREAM)
    assert m.is_untouched()


@pytest.mark.clause("RFC5041-8.2-02", "RFC5041-8.3.1-03", "RFC5041-8.3-03")
def test_an_stag_bound_to_one_stream_is_refused_on_another(layer_poller: DdpPoller) -> None:
    one, other = layer_poller.create_receiver(), layer_poller.create_receiver()
    m = layer_poller.register_new_memory(100, stream=one)
    one.inject_segments(build_tagged_segment(b"abc", stag=m.stag))
    assert one.receive_segment() == (0, 3)
    other.inject_segments(build_tagged_segment(b"xyz", stag=m.stag))
    assert other.receive_until_error() == (*TAGGED, lib.SIW_DDP_STAG_NOT_OF_STREAM)
    assert m.octets()[:3] == b"abc"


@pytest.mark.clause("RFC5041-8.2-04#a", "RFC5041-8.2-04#b")
def test_an_stag_can_be_bound_to_a_protection_domain_or_to_a_stream(
    layer_poller: DdpPoller,
) -> None:
    one, other = layer_poller.create_receiver(), layer_poller.create_receiver()
    of_domain, of_stream = (
        layer_poller.register_new_memory(10),
        layer_poller.register_new_memory(10, stream=one, pd=PD + 1),
    )
    for stream in (one, other):
        stream.inject_segments(build_tagged_segment(b"abc", stag=of_domain.stag))
        assert stream.receive_segment() == (0, 3)
    one.inject_segments(build_tagged_segment(b"xyz", stag=of_stream.stag))
    assert one.receive_segment() == (0, 3)


@pytest.mark.clause("RFC5041-8.3.1-04")
@pytest.mark.parametrize("to", [0, 1, 9_999, 20_000, 39_999, 2**63, 2**64 - 10_000])
def test_a_segment_at_any_offset_cannot_write_outside_the_region(
    layer_poller: DdpPoller, to: int
) -> None:
    whole = Memory(40_000)
    inner = Memory(0)
    inner.size, inner._all = 10_000, whole._all
    stag = layer_poller.assign_stag_to_memory(inner, to_base=20_001)
    stream = layer_poller.create_receiver()
    stream.inject_segments(build_tagged_segment(octet_pattern(10_000), stag=stag, to=to))
    assert stream.receive_until_error()[:2] == TAGGED
    assert whole.is_untouched()


@pytest.mark.clause("RFC5041-8.3-01", "RFC5041-8.3-02", "RFC5041-8.3.1-05#a", "RFC5041-8.3.1-05#b")
def test_an_stag_is_valid_for_its_range_and_until_it_is_freed(layer_poller: DdpPoller) -> None:
    m = layer_poller.register_new_memory(100, to_base=500)
    stream = layer_poller.create_receiver()
    stream.inject_segments(build_tagged_segment(b"abc", stag=m.stag, to=597))
    assert stream.receive_segment() == (0, 3)
    assert m.octets()[97:] == b"abc"
    assert layer_poller.free_stag(m.stag) == 0
    stream.inject_segments(build_tagged_segment(b"xyz", stag=m.stag, to=597))
    assert stream.receive_until_error() == (*TAGGED, lib.SIW_DDP_INVALID_STAG)
    assert m.octets()[97:] == b"abc"


@pytest.mark.clause("RFC5041-8.3.1-07")
def test_the_memory_of_a_freed_stag_is_not_changed(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(20_000)
    for i in range(5):
        stream.inject_segments(build_tagged_segment(octet_pattern(20_000, i), stag=m.stag))
    stream.receive_segment()
    assert layer_poller.free_stag(m.stag) == 0
    before = m.octets()
    assert stream.receive_until_error() == (*TAGGED, lib.SIW_DDP_INVALID_STAG)
    assert m.octets() == before
