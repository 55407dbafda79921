"""RFC 5041 section 4: headers that are sent, and how received headers are interpreted."""

from __future__ import annotations

from typing import Any

import pytest
from _siwarp_layers import lib
from unit.ddp.ddp_harness import (
    DdpPoller,
    build_tagged_segment,
    build_untagged_segment,
    octet_pattern,
    temporary_setting,
)

TAGGED_VERSION = (lib.SIW_LAYER_DDP, lib.SIW_DDP_TAGGED_BUFFER, lib.SIW_DDP_TAGGED_VERSION)
UNTAGGED_VERSION = (lib.SIW_LAYER_DDP, lib.SIW_DDP_UNTAGGED_BUFFER, lib.SIW_DDP_UNTAGGED_VERSION)


def send_and_read_headers(layer_poller: DdpPoller, size: int = 1000, **fields: object) -> list[Any]:
    """Send a message with a small MULPDU, and return the headers of its segments."""
    with temporary_setting("mulpdu", 128):
        stream = layer_poller.create_sender()
        m = layer_poller.register_new_memory(size, octet_pattern(size))
        stream.transmit(stream.build_message([m.sge()], **fields))
        got = stream.read_sent_segments(size)
    assert b"".join(payload for _, payload in got) == octet_pattern(size)
    return [head for head, _ in got]


# ---- section 4.1


@pytest.mark.clause("RFC5041-4.1-01", "RFC5041-4.1-02")
def test_the_t_bit_selects_the_tagged_or_the_untagged_buffer(layer_poller: DdpPoller) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    posted, region = layer_poller.register_new_memory(3), layer_poller.register_new_memory(3)
    q.post(1, posted.sge())
    stream.inject_segments(build_tagged_segment(b"tag", stag=region.stag))
    stream.receive_segment()
    assert region.octets() == b"tag"
    assert posted.is_untouched()
    stream.inject_segments(build_untagged_segment(b"unt"))
    stream.receive_segment()
    assert posted.octets() == b"unt"
    assert region.octets() == b"tag"


@pytest.mark.parametrize("is_tagged", [False, True])
@pytest.mark.clause("RFC5041-4.1-03", "RFC5041-4.1-04", "RFC5041-4.1-05")
def test_only_the_last_transmitted_segment_of_a_message_has_the_l_bit(
    layer_poller: DdpPoller, is_tagged: bool
) -> None:
    heads = send_and_read_headers(layer_poller, tagged=is_tagged)
    assert len(heads) > 5
    assert [h.l for h in heads] == [0] * (len(heads) - 1) + [1]
    offsets = [h.to if is_tagged else h.mo for h in heads]
    assert offsets == sorted(offsets)


@pytest.mark.clause("RFC5041-4.1-06")
def test_the_last_untagged_segment_of_a_message_has_the_highest_mo(layer_poller: DdpPoller) -> None:
    heads = send_and_read_headers(layer_poller)
    assert heads[-1].l == 1
    assert heads[-1].mo == max(h.mo for h in heads) > 0


@pytest.mark.clause("RFC5041-4.1-07#a", "RFC5041-4.1-07#b")
def test_messages_are_delivered_in_order_and_with_their_last_segment(
    layer_poller: DdpPoller,
) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(10)
    for user_data in (1, 2):
        q.post(user_data, m.sge())
    stream.inject_segments(
        build_untagged_segment(b"abc", l=0),
        build_untagged_segment(b"de", mo=3),
        build_untagged_segment(b"f", msn=2),
    )
    assert [stream.receive_segment(), stream.receive_segment(), stream.receive_segment()] == [
        None,
        (1, 5),
        (2, 1),
    ]


@pytest.mark.parametrize("is_tagged", [False, True])
@pytest.mark.clause("RFC5041-4.1-08", "RFC5041-4.1-09", "RFC5041-4.1-10")
def test_reserved_ddp_bits_are_sent_as_zero_and_the_version_as_one(
    layer_poller: DdpPoller, is_tagged: bool
) -> None:
    heads = send_and_read_headers(layer_poller, tagged=is_tagged)
    assert {(h.ddp_rsvd, h.dv) for h in heads} == {(0, 1)}


@pytest.mark.parametrize("reserved", range(16))
@pytest.mark.clause("RFC5041-4.1-08")
def test_reserved_bits_of_received_ddp_segments_are_ignored(
    layer_poller: DdpPoller, reserved: int
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(3)
    stream.inject_segments(build_tagged_segment(b"abc", stag=m.stag, ddp_rsvd=reserved))
    assert stream.receive_segment() == (0, 3)


@pytest.mark.parametrize("version", [0, 2, 3])
@pytest.mark.clause("RFC5041-4.1-10", "RFC5041-7.2-01#e", "RFC5041-7.2-01#k")
def test_a_segment_of_another_ddp_version_is_refused(layer_poller: DdpPoller, version: int) -> None:
    one, other, q = (
        layer_poller.create_receiver(),
        layer_poller.create_receiver(),
        layer_poller.create_queue(),
    )
    lib.siw_ddp_stream_set_buffer_queue(other.handle, 0, q.handle)
    m = layer_poller.register_new_memory(3)
    q.post(1, m.sge())
    one.inject_segments(build_tagged_segment(b"abc", stag=m.stag, dv=version))
    assert one.receive_until_error() == TAGGED_VERSION
    other.inject_segments(build_untagged_segment(b"abc", dv=version))
    assert other.receive_until_error() == UNTAGGED_VERSION
    assert m.is_untouched()


# ---- section 4.2


@pytest.mark.clause("RFC5041-4.2-01", "RFC5041-4.2-02", "RFC5041-4.2-07")
def test_a_tagged_header_contains_the_values_of_the_upper_layer(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(3, b"abc")
    stream.transmit(
        stream.build_message(
            [m.sge()], tagged=True, ulp_octet=0xA7, stag=0x01020304, to=0x05060708090A
        )
    )
    octets = stream.sock.recv(100)
    assert octets[:2] == (14 + 3).to_bytes(2, "big")
    assert octets[2:19] == bytes.fromhex("c1a7 01020304 000005060708090a") + b"abc"


@pytest.mark.clause("RFC5041-4.2-04", "RFC5041-4.2-05")
def test_all_tagged_segments_of_a_message_have_the_same_rsvdulp(layer_poller: DdpPoller) -> None:
    heads = send_and_read_headers(layer_poller, tagged=True, ulp_octet=0xA7, stag=9)
    assert {(h.rv, h.rdmap_rsvd, h.opcode) for h in heads} == {(2, 2, 7)}


@pytest.mark.clause("RFC5041-4.2-09", "RFC5041-4.2-10")
def test_all_tagged_segments_of_a_message_have_the_same_stag(layer_poller: DdpPoller) -> None:
    heads = send_and_read_headers(layer_poller, tagged=True, stag=0xDEADBEEF)
    assert {h.stag for h in heads} == {0xDEADBEEF}


@pytest.mark.clause("RFC5041-4.2-03", "RFC5041-4.2-08")
def test_rsvdulp_and_stag_of_a_tagged_segment_are_passed_to_the_upper_layer(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(3)
    stream.inject_segments(build_tagged_segment(b"abc", stag=m.stag, rv=2, rdmap_rsvd=2, opcode=7))
    seg = stream.next_segment_header()
    assert (seg.ulp_octet, seg.stag) == (0xA7, m.stag)
    assert stream.place_segment(seg) == (0, 3)


@pytest.mark.clause("RFC5041-4.2-06", "RFC5041-8.3-04")
def test_a_tagged_segment_with_an_invalid_stag_is_refused(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(3)
    layer_poller.free_stag(m.stag)
    stream.inject_segments(build_tagged_segment(b"abc", stag=m.stag))
    assert stream.receive_until_error() == (1, 1, lib.SIW_DDP_INVALID_STAG)
    assert m.is_untouched()


@pytest.mark.parametrize("to", [0, 1, 500, 997])
@pytest.mark.clause("RFC5041-4.2-11")
def test_a_tagged_message_may_start_at_any_offset(layer_poller: DdpPoller, to: int) -> None:
    stream = layer_poller.create_receiver()
    m = layer_poller.register_new_memory(1000)
    stream.inject_segments(build_tagged_segment(b"abc", stag=m.stag, to=to))
    stream.receive_segment()
    assert m.octets()[to : to + 3] == b"abc"
    assert m.octets().count(0xA5) == 997


# ---- section 4.3


@pytest.mark.clause("RFC5041-4.3-01", "RFC5041-4.3-02", "RFC5041-4.3-13")
def test_an_untagged_header_contains_the_values_of_the_upper_layer(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(3, b"abc")
    stream.transmit(stream.build_message([m.sge()], ulp_octet=0xA7, ulp_word=0x01020304, qn=2))
    octets = stream.sock.recv(100)
    assert octets[:2] == (18 + 3).to_bytes(2, "big")
    assert octets[2:23] == bytes.fromhex("41a7 01020304 00000002 00000001 00000000") + b"abc"


@pytest.mark.clause("RFC5041-4.3-04", "RFC5041-4.3-06", "RFC5041-4.3-07")
def test_all_untagged_segments_of_a_message_have_the_same_rsvdulp_and_qn(
    layer_poller: DdpPoller,
) -> None:
    heads = send_and_read_headers(layer_poller, ulp_octet=0xA7, ulp_word=0xDEADBEEF, qn=3)
    got = {(h.rv, h.rdmap_rsvd, h.opcode, h.inv_stag, h.qn) for h in heads}
    assert got == {(2, 2, 7, 0xDEADBEEF, 3)}


@pytest.mark.clause("RFC5041-4.3-11", "RFC5041-4.3-12")
def test_all_untagged_segments_of_a_message_have_the_same_msn(layer_poller: DdpPoller) -> None:
    heads = send_and_read_headers(layer_poller)
    assert {h.msn for h in heads} == {1}


@pytest.mark.clause("RFC5041-4.3-08", "RFC5041-4.3-09")
def test_msns_start_at_one_and_are_counted_per_queue(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    got = []
    for qn in (0, 0, 1, 2, 0, 1):
        stream.transmit(stream.build_message(qn=qn))
        ((head, _),) = stream.read_sent_segments(0)
        got.append((head.qn, head.msn))
    assert got == [(0, 1), (0, 2), (1, 1), (2, 1), (0, 3), (1, 2)]


@pytest.mark.clause("RFC5041-4.3-10")
def test_msns_wrap_around_to_zero_in_both_directions(layer_poller: DdpPoller) -> None:
    out, in_, q = (
        layer_poller.create_sender(),
        layer_poller.create_receiver(),
        layer_poller.create_queue(),
    )
    lib.siw_ddp_stream_set_buffer_queue(in_.handle, 0, q.handle)
    for stream in (out, in_):
        lib.siw_ddp_set_msn_for_tests(stream.handle, 0, 2**32 - 1)
    got = []
    for user_data, msn in enumerate([2**32 - 1, 0, 1]):
        out.transmit(out.build_message())
        got += [head.msn for head, _ in out.read_sent_segments(0)]
        q.post(user_data)
        in_.inject_segments(build_untagged_segment(msn=msn))
        assert in_.receive_segment() == (user_data, 0)
    assert got == [2**32 - 1, 0, 1]


@pytest.mark.clause("RFC5041-4.3-03", "RFC5041-4.3-05", "RFC5041-5.4-03")
def test_rsvdulp_is_passed_up_even_if_it_differs_between_segments(layer_poller: DdpPoller) -> None:
    stream, q = layer_poller.create_receiver(), layer_poller.create_queue()
    lib.siw_ddp_stream_set_buffer_queue(stream.handle, 0, q.handle)
    m = layer_poller.register_new_memory(10)
    q.post(1, m.sge())
    stream.inject_segments(
        build_untagged_segment(b"abc", l=0, inv_stag=5),
        build_untagged_segment(b"de", mo=3, inv_stag=6, opcode=7),
    )
    assert stream.receive_segment() is None
    seg = stream.next_segment_header()
    assert (seg.ulp_octet, seg.ulp_word) == (0x47, 6)
    assert stream.place_segment(seg) == (1, 5)


# ---- section 4.4


@pytest.mark.clause("RFC5041-4.4-01")
def test_a_message_of_length_0_consists_of_a_header_only(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    stream.transmit(stream.build_message(tagged=True))
    stream.transmit(stream.build_message())
    ((head, payload),) = stream.read_sent_segments(0)
    assert (head.t, bytes(head), payload) == (1, bytes.fromhex("c100") + bytes(12), b"")
    ((head, payload),) = stream.read_sent_segments(0)
    assert (head.t, len(bytes(head)), payload) == (0, 18, b"")
