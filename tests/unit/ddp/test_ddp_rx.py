"""Receiving DDP segments over TCP: placement, and refused segments, which write nothing.

The clauses of RFC 5041 are tested in tests/conformance/rfc5041.
"""

from __future__ import annotations

import errno

import pytest
from _siwarp_layers import ffi, lib
from hypothesis import given
from hypothesis import strategies as st
from unit.ddp.ddp_harness import (
    PD,
    DdpPoller,
    StreamError,
    build_fpdu,
    build_tagged_segment,
    build_untagged_segment,
    octet_pattern,
    open_ddp_poller,
    wait_until,
)

WRITE, SINK = lib.SIW_MEM_REMOTE_WRITE, lib.SIW_MEM_READ_SINK
CATASTROPHIC = (lib.SIW_LAYER_DDP, lib.SIW_DDP_LOCAL_CATASTROPHIC, 0)
CRC = (lib.SIW_LAYER_LLP, 0, lib.SIW_MPA_CRC)
#: Length of a segment in octets that is long enough to be placed before its CRC is checked.
LARGE = 20_000


@given(
    pieces=st.lists(st.integers(0, 4000), min_size=1, max_size=8),
    sizes=st.lists(st.integers(0, 9000), min_size=1, max_size=16),
    crc=st.booleans(),
)
def test_an_untagged_message_in_any_segments_fills_any_scatter_list(
    pieces: list[int], sizes: list[int], crc: bool
) -> None:
    total = sum(pieces)
    sizes = [*sizes[:15], max(total - sum(sizes[:15]), 0)]
    with open_ddp_poller() as layer_poller:
        stream, q = layer_poller.create_receiver(crc=crc), layer_poller.create_queue()
        lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
        memories = [layer_poller.register_new_memory(n) for n in sizes]
        q.post(42, *[m.sge() for m in memories])
        octets, at, delivered = octet_pattern(total), 0, []
        for i, n in enumerate(pieces):
            last = i == len(pieces) - 1
            stream.inject_segments(
                build_untagged_segment(
                    octets[at : at + n], l=int(last), mo=at, inv_stag=i, opcode=5
                )
            )
            seg = stream.next_segment_header()
            assert (seg.payload, seg.mo, seg.msn, seg.last) == (n, at, 1, last)
            assert (seg.ulp_octet, seg.ulp_word) == (0x45, i)
            delivered.append(stream.place_segment(seg))
            at += n
        assert delivered == [None] * (len(pieces) - 1) + [(42, total)]
        want = octets + bytes([0xA5]) * (sum(sizes) - total)
        assert b"".join(m.octets() for m in memories) == want


@given(
    writes=st.lists(st.tuples(st.integers(0, 2999), st.integers(0, 3000)), max_size=10),
    base=st.sampled_from([0, 1, 2**40, 2**64 - 3000]),
)
def test_tagged_segments_are_placed_at_their_offsets(
    writes: list[tuple[int, int]], base: int
) -> None:
    with open_ddp_poller() as layer_poller:
        stream = layer_poller.create_receiver()
        m = layer_poller.register_new_memory(3000, to_base=base)
        model = bytearray([0xA5]) * 3000
        for i, (at, n) in enumerate(writes):
            n = min(n, 3000 - at - (base == 2**64 - 3000))
            stream.inject_segments(
                build_tagged_segment(octet_pattern(n, i), stag=m.stag, to=base + at)
            )
            assert stream.receive_segment() == (0, n)
            model[at : at + n] = octet_pattern(n, i)
        assert m.octets() == model


def test_the_ddp_header_of_a_segment_is_reported_unchanged(layer_poller: DdpPoller) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 2, q.handle)
    m = layer_poller.register_new_memory(10)
    q.post(1, m.sge())
    first = build_tagged_segment(
        b"abc", stag=m.stag, to=1, l=0, ddp_rsvd=9, rv=3, rdmap_rsvd=1, opcode=11
    )
    second = build_untagged_segment(b"de", qn=2, inv_stag=0xCAFEBABE, opcode=7)
    stream.inject_segments(first, second)
    seg = stream.next_segment_header()
    assert bytes(ffi.buffer(seg.head, seg.head_len)) == first[:14]
    assert (seg.tagged, seg.last, seg.ulp_octet) == (True, False, 0xDB)
    assert (seg.stag, seg.to, seg.payload, seg.seg_len) == (m.stag, 1, 3, 17)
    assert stream.place_segment(seg) is None
    seg = stream.next_segment_header()
    assert bytes(ffi.buffer(seg.head, seg.head_len)) == second[:18]
    assert (seg.tagged, seg.last, seg.ulp_word, seg.qn) == (False, True, 0xCAFEBABE, 2)
    assert stream.place_segment(seg) == (1, 2)


def test_the_same_segment_is_reported_until_it_is_placed(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(10)
    stream.inject_segments(
        build_tagged_segment(b"abc", stag=m.stag), build_tagged_segment(b"xyz", stag=m.stag, to=5)
    )
    assert [stream.next_segment_header().to for _ in range(3)] == [0, 0, 0]
    stream.receive_segment()
    assert stream.next_segment_header().to == 5


def test_placing_is_refused_before_a_header_was_reported(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    seg = ffi.new("struct siw_ddp_seg *")
    with pytest.raises(StreamError, match="EINVAL"):
        stream.try_to_place_segment(seg, WRITE)


def test_an_fpdu_without_a_ulpdu_is_reported_as_empty(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(10)
    stream.sock.sendall(build_fpdu(b""))
    stream.inject_segments(build_tagged_segment(b"abc", stag=m.stag))
    assert stream.next_segment_header() == "empty"
    assert stream.receive_segment() == (0, 3)


def test_each_untagged_queue_has_its_own_msns(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(10)
    for qn in range(4):
        q = layer_poller.create_queue()
        lib.siw_ddp_stream_set_buffer_queue(stream.handle, qn, q.handle)
        for i in range(3):
            q.post(10 * qn + i, m.sge())
    for qn, msn in [(0, 1), (3, 1), (0, 2), (1, 1), (2, 1), (3, 2), (0, 3)]:
        stream.inject_segments(build_untagged_segment(b"x", qn=qn, msn=msn))
        assert stream.receive_segment() == (10 * qn + msn - 1, 1)


def test_two_streams_may_share_one_untagged_queue(layer_poller: DdpPoller) -> None:
    one, other, q = (
        layer_poller.create_receiver(),
        layer_poller.create_receiver(),
        layer_poller.create_queue(),
    )
    m, n = layer_poller.register_new_memory(10), layer_poller.register_new_memory(10)
    for stream in (one, other):
        lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    q.post(1, m.sge())
    q.post(2, n.sge())
    one.inject_segments(build_untagged_segment(b"abc", l=0))
    assert one.receive_segment() is None
    other.inject_segments(build_untagged_segment(b"xyz"))
    assert other.receive_segment() == (2, 3)
    one.inject_segments(build_untagged_segment(b"def", mo=3))
    assert one.receive_segment() == (1, 6)
    assert m.octets()[:6] == b"abcdef"
    assert n.octets()[:3] == b"xyz"


def test_another_stream_may_use_the_last_buffer_between_header_and_placement(
    layer_poller: DdpPoller,
) -> None:
    one, other, q = (
        layer_poller.create_receiver(),
        layer_poller.create_receiver(),
        layer_poller.create_queue(),
    )
    m = layer_poller.register_new_memory(10)
    for stream in (one, other):
        lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    q.post(1, m.sge())
    one.inject_segments(build_untagged_segment(b"abc"))
    other.inject_segments(build_untagged_segment(b"xyz"))
    seg = one.next_segment_header()
    assert other.receive_segment() == (1, 3)
    with pytest.raises(StreamError, match="EPROTO"):
        one.place_segment(seg)
    assert one.error == (1, 2, lib.SIW_DDP_NO_BUFFER)


def test_the_buffer_of_an_incomplete_message_can_be_reclaimed(layer_poller: DdpPoller) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(10)
    q.post(5, m.sge())
    q.post(6, m.sge())
    user_data = ffi.new("uint64_t *")
    assert lib.siw_ddp_stream_pop_partial_buffer(stream.handle, 0, user_data) == 0
    stream.inject_segments(build_untagged_segment(b"abc", l=0))
    stream.receive_segment()
    stream.sock.close()
    with pytest.raises(StreamError, match="ENOTCONN"):
        stream.next_segment_header()
    assert lib.siw_ddp_stream_pop_partial_buffer(stream.handle, 0, user_data) == 1
    assert user_data[0] == 5
    assert lib.siw_ddp_stream_pop_partial_buffer(stream.handle, 0, user_data) == 0
    assert q.take_buffer() == 6


# ---- refused segments


@pytest.mark.parametrize(
    "segment", [b"\xc1", build_tagged_segment()[:13], b"\x41", build_untagged_segment()[:17]]
)
def test_a_segment_shorter_than_its_header_ends_the_stream(
    layer_poller: DdpPoller, segment: bytes
) -> None:
    stream = layer_poller.create_receiver()
    stream.inject_segments(segment)
    assert stream.receive_until_error() == CATASTROPHIC


@pytest.mark.parametrize("size", [100, LARGE])
def test_a_segment_with_a_wrong_crc_and_other_errors_is_a_crc_error(
    layer_poller: DdpPoller, size: int
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(build_tagged_segment(octet_pattern(size), stag=1, dv=3), crc=0))
    assert stream.receive_until_error() == CRC


@pytest.mark.parametrize("size", [100, LARGE])
def test_a_segment_with_a_wrong_crc_is_not_delivered(layer_poller: DdpPoller, size: int) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(size)
    q.post(1, m.sge())
    stream.sock.sendall(build_fpdu(build_untagged_segment(octet_pattern(size)), crc=0))
    assert stream.receive_until_error() == CRC
    assert len(m.octets()) == size  # octets() asserts that nothing outside the buffer was written


@pytest.mark.fast_path
def test_a_refused_large_segment_is_reported_after_its_crc_check(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    octets = build_fpdu(build_tagged_segment(octet_pattern(LARGE), stag=1))
    stream.sock.sendall(octets[:-1])
    seg = stream.next_segment_header()
    assert stream.try_to_place_segment(seg, WRITE) is None
    assert stream.poll_segment_header() is None
    stream.sock.sendall(octets[-1:])
    assert stream.receive_until_error() == (1, 1, lib.SIW_DDP_INVALID_STAG)


@pytest.mark.parametrize("size", [100, LARGE])
def test_segments_after_a_refused_segment_are_not_processed(
    layer_poller: DdpPoller, size: int
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(size)
    good = build_tagged_segment(octet_pattern(size), stag=m.stag)
    stream.inject_segments(build_tagged_segment(octet_pattern(size), stag=m.stag ^ 1), good)
    assert stream.receive_until_error() == (1, 1, lib.SIW_DDP_INVALID_STAG)
    for _ in range(3):
        with pytest.raises(StreamError):
            stream.poll_segment_header()
    assert m.is_untouched()


@pytest.mark.parametrize("size", [100, LARGE])
def test_the_upper_layer_may_refuse_a_segment_and_nothing_is_placed(
    layer_poller: DdpPoller, size: int
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(size)
    stream.inject_segments(
        build_tagged_segment(octet_pattern(size), stag=m.stag),
        build_tagged_segment(b"abc", stag=m.stag),
    )
    stream.next_segment_header()
    err = ffi.new("struct siw_wire_err *", {"layer": 0, "type": 2, "code": 6})
    lib.siw_ddp_rx_refuse_for_upper_layer(stream.handle, err[0])
    with pytest.raises(StreamError, match="EPROTO"):
        stream.next_segment_header()
    assert stream.error == (0, 2, 6)
    assert m.is_untouched()


@pytest.mark.fast_path
def test_a_crc_error_takes_precedence_over_a_refusal_by_the_upper_layer(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(LARGE)
    octets = build_fpdu(build_tagged_segment(octet_pattern(LARGE), stag=m.stag), crc=0)
    stream.sock.sendall(octets[:-1])
    stream.next_segment_header()
    stream.sock.sendall(octets[-1:])
    err = ffi.new("struct siw_wire_err *", {"layer": 0, "type": 2, "code": 6})
    lib.siw_ddp_rx_refuse_for_upper_layer(stream.handle, err[0])
    with pytest.raises(StreamError, match="EBADMSG"):
        stream.next_segment_header()
    assert stream.error == CRC


@pytest.mark.fast_path
def test_freeing_an_stag_in_the_middle_of_a_segment_stops_its_placement(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(LARGE)
    octets = build_fpdu(build_tagged_segment(octet_pattern(LARGE), stag=m.stag))
    stream.sock.sendall(octets[:10_000])
    seg = stream.next_segment_header()
    wait_until(
        lambda: (
            stream.try_to_place_segment(seg, WRITE)
            or m.octets()[9000] == octet_pattern(LARGE)[9000]
        )
    )
    assert layer_poller.free_stag(m.stag) == 0  # freeing the STag does not wait for the peer
    before = m.octets()
    stream.sock.sendall(octets[10_000:])
    assert stream.receive_until_error() == (1, 1, lib.SIW_DDP_INVALID_STAG)
    assert m.octets() == before


def test_a_posted_buffer_whose_key_was_freed_is_a_local_error(layer_poller: DdpPoller) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(10)
    q.post(9, m.sge())
    layer_poller.free_stag(m.stag)
    stream.inject_segments(build_untagged_segment(b"abc"))
    assert stream.receive_until_error() == CATASTROPHIC
    assert m.is_untouched()
    user_data = ffi.new("uint64_t *")
    assert lib.siw_ddp_stream_pop_partial_buffer(stream.handle, 0, user_data) == 1
    assert user_data[0] == 9


def test_a_read_sink_accepts_only_read_responses(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(10, rights=SINK, stream=stream)
    stream.inject_segments(
        build_tagged_segment(b"abc", stag=m.stag), build_tagged_segment(b"xyz", stag=m.stag)
    )
    assert stream.receive_segment(SINK) == (0, 3)
    assert stream.receive_until_error(WRITE) == (0, 1, lib.SIW_RDMAP_ACCESS)
    assert m.octets()[:3] == b"abc"


@given(segment=st.binary(max_size=200))
def test_no_segment_from_the_peer_writes_outside_the_permitted_memory(segment: bytes) -> None:
    with open_ddp_poller() as layer_poller:
        stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
        lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
        posted, foreign = (
            layer_poller.register_new_memory(50),
            layer_poller.register_new_memory(50, pd=PD + 1),
        )
        q.post(1, posted.sge())
        stream.inject_segments(segment)
        try:
            seg = stream.next_segment_header()
            if seg != "empty":
                stream.place_segment(seg)
        except StreamError as e:
            assert e.errno in (errno.EPROTO, errno.EACCES)
            assert posted.is_untouched()
        assert foreign.is_untouched()
        posted.octets()


def test_an_orderly_end_of_stream_and_a_truncated_segment_are_different_errors(
    layer_poller: DdpPoller,
) -> None:
    one, other = layer_poller.create_receiver(), layer_poller.create_receiver()
    one.sock.close()
    with pytest.raises(StreamError, match="ENOTCONN"):
        one.next_segment_header()
    other.sock.sendall(build_fpdu(build_tagged_segment(b"abc", stag=1))[:5])
    other.sock.close()
    with pytest.raises(StreamError, match="ECONNRESET"):
        other.next_segment_header()


# ---- quoted headers


@given(st.binary(max_size=40))
def test_a_quoted_ddp_header_is_parsed_only_if_it_is_complete(octets: bytes) -> None:
    seg = ffi.new("struct siw_ddp_seg *")
    got = lib.siw_ddp_parse_quoted_header(octets, len(octets), seg)
    want = 0 if not octets else 14 if octets[0] & 0x80 else 18
    assert got == (want > 0 and len(octets) >= want)
    if got:
        assert seg.head_len == want
        assert bytes(ffi.buffer(seg.head, want)) == octets[:want]
