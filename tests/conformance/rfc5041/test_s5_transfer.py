"""RFC 5041 section 5: segmentation, order, delivery."""

from __future__ import annotations

import socket
import struct
from itertools import pairwise

import pytest
from _siwarp_layers import lib
from hypothesis import given
from hypothesis import strategies as st
from unit.ddp.ddp_harness import (
    PATIENCE,
    DdpPoller,
    Stream,
    StreamError,
    build_fpdu,
    build_tagged_segment,
    build_untagged_segment,
    octet_pattern,
    open_ddp_poller,
    temporary_setting,
    wait_until,
)


@pytest.mark.clause("RFC5041-5.2-01", "RFC5041-5.2-03")
@given(size=st.integers(0, 5000), mulpdu=st.integers(128, 3000), is_tagged=st.booleans())
def test_a_message_is_transmitted_completely_in_segments_of_at_most_mulpdu_octets(
    size: int, mulpdu: int, is_tagged: bool
) -> None:
    with temporary_setting("mulpdu", mulpdu), open_ddp_poller() as layer_poller:
        stream = layer_poller.create_sender()
        m = layer_poller.register_new_memory(size, octet_pattern(size))
        stream.transmit(stream.build_message([m.sge()], tagged=is_tagged))
        got = stream.read_sent_segments(size)
        assert b"".join(payload for _, payload in got) == octet_pattern(size)
        assert all((14 if is_tagged else 18) + len(p) <= mulpdu for _, p in got)


@pytest.mark.clause("RFC5041-5.2-02")
def test_a_message_of_2_to_the_power_of_32_octets_is_refused(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    with pytest.raises(StreamError, match="EMSGSIZE"):
        stream.begin_message(stream.build_message(length=1 << 32))


@pytest.mark.clause("RFC5041-5.2-05")
def test_the_untagged_example_of_the_rfc_is_segmented_as_described(layer_poller: DdpPoller) -> None:
    with temporary_setting("mulpdu", 1500):
        stream = layer_poller.create_sender()
        m = layer_poller.register_new_memory(2048, octet_pattern(2048))
        stream.transmit(stream.build_message([m.sge()]))
        got = stream.read_sent_segments(2048)
    assert [(head.mo, len(payload)) for head, payload in got] == [(0, 1482), (1482, 566)]


@pytest.mark.clause("RFC5041-5.2-06", "RFC5041-5.2-07")
def test_the_tagged_example_of_the_rfc_is_segmented_as_described(layer_poller: DdpPoller) -> None:
    with temporary_setting("mulpdu", 1500):
        stream = layer_poller.create_sender()
        m = layer_poller.register_new_memory(2048, octet_pattern(2048))
        stream.transmit(stream.build_message([m.sge()], tagged=True, stag=3, to=16384))
        got = stream.read_sent_segments(2048)
    assert [(h.stag, h.to, len(p)) for h, p in got] == [(3, 16384, 1486), (3, 17870, 562)]


@pytest.mark.clause("RFC5041-5.2-04")
@given(cuts=st.sets(st.integers(1, 999), max_size=8))
def test_payload_is_placed_correctly_for_any_segmentation(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), 1000]
    with open_ddp_poller() as layer_poller:
        stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
        lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
        posted, region = (
            layer_poller.register_new_memory(1000),
            layer_poller.register_new_memory(1000),
        )
        q.post(1, posted.sge())
        for at, end in pairwise(edges):
            octets, last = octet_pattern(1000)[at:end], int(end == 1000)
            stream.inject_segments(build_untagged_segment(octets, mo=at, l=last))
            stream.inject_segments(build_tagged_segment(octets, stag=region.stag, to=at, l=last))
            stream.receive_segment()
            stream.receive_segment()
        assert posted.octets() == region.octets() == octet_pattern(1000)


@pytest.mark.parametrize("is_tagged", [False, True])
@pytest.mark.clause("RFC5041-5.2-08")
def test_a_message_of_length_0_is_one_segment(layer_poller: DdpPoller, is_tagged: bool) -> None:
    stream = layer_poller.create_sender()
    stream.transmit(stream.build_message(tagged=is_tagged))
    stream.transmit(stream.build_message(tagged=is_tagged))
    for _ in range(2):
        ((head, payload),) = stream.read_sent_segments(0)
        assert (head.l, payload) == (1, b"")


@pytest.mark.parametrize(("stag", "to"), [(0, 0), (1, 2**64 - 1), (0xFFFFFFFF, 12345)])
@pytest.mark.clause("RFC5041-5.2-09", "RFC5041-5.2-10")
def test_stag_and_offset_of_an_empty_tagged_message_are_not_checked(
    layer_poller: DdpPoller, stag: int, to: int
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(3)
    stream.inject_segments(
        build_tagged_segment(stag=stag, to=to), build_tagged_segment(b"abc", stag=m.stag)
    )
    assert stream.receive_segment() == (0, 0)
    assert stream.receive_segment() == (0, 3)


@pytest.mark.clause("RFC5041-5.3-02", "RFC5041-5.3-03")
def test_messages_and_their_segments_are_transmitted_in_order(layer_poller: DdpPoller) -> None:
    with temporary_setting("mulpdu", 128):
        stream = layer_poller.create_sender()
        m = layer_poller.register_new_memory(500, octet_pattern(500))
        for i in range(6):
            stream.transmit(stream.build_message([m.sge()], tagged=bool(i % 2), stag=i))
        got = stream.read_sent_segments(6 * 500)
    order = [(h.stag, h.to) if h.t else (2 * (h.msn - 1), h.mo) for h, _ in got]
    assert order == sorted(order)


@pytest.mark.clause("RFC5041-5.3-06", "RFC5041-5.3-07", "RFC5041-5.4-01#d")
def test_ddp_messages_are_delivered_once_and_in_order(layer_poller: DdpPoller) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue(depth=64)
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(10)
    for user_data in range(50):
        q.post(user_data, m.sge())
        stream.inject_segments(build_untagged_segment(bytes([user_data]), msn=user_data + 1))
    assert [stream.receive_segment() for _ in range(50)] == [
        (user_data, 1) for user_data in range(50)
    ]
    assert stream.poll_segment_header() is None


@pytest.mark.clause("RFC5041-3-13")
@given(cuts=st.lists(st.integers(1, 2000), max_size=20))
def test_each_segment_is_delivered_once_for_any_division_of_the_tcp_stream(cuts: list[int]) -> None:
    octets = b"".join(
        build_fpdu(build_untagged_segment(octet_pattern(40, n), msn=n)) for n in range(1, 31)
    )
    with open_ddp_poller() as layer_poller:
        stream, q = layer_poller.create_receiver(), layer_poller.create_queue(depth=64)
        lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
        memories = [layer_poller.register_new_memory(40) for _ in range(31)]
        for user_data, m in enumerate(memories):
            q.post(user_data, m.sge())
        got: list[tuple[int, int]] = []
        for at, end in pairwise([0, *sorted({c for c in cuts if c < len(octets)}), len(octets)]):
            stream.sock.sendall(octets[at:end])
            while (seg := stream.poll_segment_header()) is not None:
                got.append(stream.place_segment(seg))
        wait_until(
            lambda: (
                len(got) == 30
                or ((s := stream.poll_segment_header()) and got.append(stream.place_segment(s)))
            )
        )
        assert got == [(n, 40) for n in range(30)]
        assert [m.octets() for m in memories[:30]] == [octet_pattern(40, n) for n in range(1, 31)]
        for _ in range(3):
            assert stream.poll_segment_header() is None


@pytest.mark.clause("RFC5041-5.4-01#a")
def test_a_message_is_not_delivered_without_its_last_segment(layer_poller: DdpPoller) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(10)
    q.post(1, m.sge())
    stream.inject_segments(
        build_untagged_segment(b"01234", l=0), build_untagged_segment(b"56789", mo=5, l=0)
    )
    assert [stream.receive_segment(), stream.receive_segment()] == [None, None]
    assert m.octets() == b"0123456789"  # the octets are placed, but not delivered
    stream.inject_segments(build_untagged_segment(mo=10, l=1))
    assert stream.receive_segment() == (1, 10)


@pytest.mark.parametrize("parts", [[0], [1], [300], [100, 200], [0, 0, 300], [300, 0]])
@pytest.mark.clause("RFC5041-5.4-02")
def test_the_delivery_of_a_message_reports_its_length(
    layer_poller: DdpPoller, parts: list[int]
) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(1000)
    q.post(9, m.sge())
    at = 0
    for i, n in enumerate(parts):
        stream.inject_segments(
            build_untagged_segment(octet_pattern(n), mo=at, l=int(i == len(parts) - 1))
        )
        at += n
    got = [stream.receive_segment() for _ in parts]
    assert got == [None] * (len(parts) - 1) + [(9, sum(parts))]


@pytest.mark.clause("RFC5041-6.2.1-03", "RFC5041-6.2.1-05")
def test_one_direction_of_a_stream_continues_after_the_other_has_ended(
    layer_poller: DdpPoller,
) -> None:
    out, in_ = layer_poller.create_sender(), layer_poller.create_receiver()
    m = layer_poller.register_new_memory(3, b"abc")
    out.sock.shutdown(1)
    with pytest.raises(StreamError, match="ENOTCONN"):
        out.next_segment_header()
    out.transmit(out.build_message([m.sge()]))
    assert out.read_sent_segments(3)[0][1] == b"abc"
    in_.mpa.shutdown()
    assert in_.sock.recv(1) == b""
    in_.inject_segments(build_tagged_segment(b"xyz", stag=m.stag))
    assert in_.receive_segment() == (0, 3)
    assert m.octets() == b"xyz"


@pytest.mark.parametrize(
    ("octets", "fields"),
    [
        (b"abc", {"msn": 2}),
        (b"abc", {"mo": 1}),
        (b"", {"mo": 1}),
    ],
    ids=["the message before is not whole", "an octet is missing", "only L is left"],
)
@pytest.mark.clause("RFC5041-5.4-01#b", "RFC5041-5.4-01#c")
def test_a_segment_with_the_l_bit_delivers_nothing_while_preceding_octets_are_missing(
    layer_poller: DdpPoller, octets: bytes, fields: dict[str, int]
) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(10)
    for user_data in (1, 2):
        q.post(user_data, m.sge())
    if "msn" in fields:
        stream.inject_segments(build_untagged_segment(b"01234", l=0))
        assert stream.receive_segment() is None
    stream.inject_segments(build_untagged_segment(octets, l=1, **fields))
    stream.receive_until_error()  # the segment with L fails, so nothing was delivered
    # The receive of the first message has been consumed.
    assert q.take_buffer() == (2 if "msn" in fields else 1)


@pytest.mark.clause("RFC5041-6.2.2-01#a")
def test_a_lost_connection_is_reported_to_the_upper_layer(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.sock.close()
    for _ in range(2):
        with pytest.raises(StreamError, match="ECONNRESET"):
            wait_until(stream.poll_segment_header)


BAD_HEADERS = [
    (build_tagged_segment(b"abc", stag=1, dv=2), (1, 1, lib.SIW_DDP_TAGGED_VERSION)),
    (build_tagged_segment(b"abc", stag=1), (1, 1, lib.SIW_DDP_INVALID_STAG)),
    (build_untagged_segment(b"abc", dv=0), (1, 2, lib.SIW_DDP_UNTAGGED_VERSION)),
    (build_untagged_segment(b"abc", qn=7), (1, 2, lib.SIW_DDP_INVALID_QN)),
    (build_untagged_segment(b"abc", msn=3), (1, 2, lib.SIW_DDP_MSN_RANGE)),
    (build_untagged_segment(b"abc", mo=9), (1, 2, lib.SIW_DDP_INVALID_MO)),
]


@pytest.mark.parametrize(("segment", "error"), BAD_HEADERS)
@pytest.mark.clause("RFC5041-6.2.2-01#c", "RFC5041-6.2.2-04")
def test_an_invalid_header_is_reported_and_the_stream_stays_open_until_shutdown(
    layer_poller: DdpPoller, segment: bytes, error: tuple[int, int, int]
) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    q.post(1, layer_poller.register_new_memory(10).sge())
    stream.inject_segments(segment)
    assert stream.receive_until_error() == error
    check_stream_stays_open_until_shutdown(stream)


def check_stream_stays_open_until_shutdown(stream: Stream) -> None:
    stream.sock.settimeout(0.03)
    with pytest.raises(TimeoutError):  # the peer sees neither an end of stream nor a reset
        stream.sock.recv(1)
    with pytest.raises(StreamError):
        stream.poll_segment_header()
    stream.mpa.shutdown()
    stream.sock.settimeout(PATIENCE)
    assert stream.sock.recv(1) == b""


@pytest.mark.clause("RFC5041-6.2.2-01#b", "RFC5041-7-01", "RFC5041-6.2.2-04")
def test_a_fatal_error_of_the_lower_layer_is_reported_and_the_stream_stays_open(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(b"\0\x10" + bytes(18) + b"\xff\xff\xff\xff")
    with pytest.raises(StreamError, match="EBADMSG"):
        wait_until(stream.poll_segment_header)
    assert stream.error == (lib.SIW_LAYER_LLP, 0, lib.SIW_MPA_CRC)
    check_stream_stays_open_until_shutdown(stream)


@pytest.mark.clause("RFC5041-6.2.2-03", "RFC5041-7.1-10", "RFC5041-6.2-01")
def test_after_an_error_one_more_message_can_be_sent(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(5, b"cause")
    stream.inject_segments(build_tagged_segment(b"abc", stag=1))
    assert stream.receive_until_error() == (1, 1, lib.SIW_DDP_INVALID_STAG)
    stream.transmit(stream.build_message([m.sge()], qn=2))
    ((head, payload),) = stream.read_sent_segments(5)
    assert (head.qn, payload) == (2, b"cause")
