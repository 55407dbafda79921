"""Boundary values in every field of every scapy layer, sent to a live RC queue pair.

hostile.fields takes the list from fields_desc, so that the tests fail for a new layer or field
until its expected outcome is defined. hostile.oracle derives the expected outcome from the octets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from harness.heap_harness import heap_octets_in_use
from harness.verbs_harness import octet_pattern
from hostile.fields import (
    all_packet_layer_classes,
    boundary_values,
    field_width_bits,
    find_field_of_layer_class,
    list_numeric_fields_of_layers,
)
from hostile.target import PAGE, SINK, SOURCE, WRITES, HostileSession, Target
from scapy.packet import Packet, Raw

from siwarp._siwarp import ffi, lib
from siwarp.inspect import (
    FPDU,
    AtomicRequest,
    AtomicResponse,
    DDPTagged,
    DDPUntagged,
    ImmediateData,
    Opcode,
    PrivateHead,
    QuotedReadRequest,
    QuotedTagged,
    QuotedUntagged,
    ReadRequest,
    Terminate,
    crc32c,
)
from siwarp.inspect.mpa import Marker, mark_stream, pad_len
from siwarp.inspect.names import AtomicCode

#: The scapy layers that this file tests; the following sets name the layers that other files test.
HERE = {
    "DDPUntagged", "DDPTagged", "ReadRequest", "Terminate", "QuotedTagged", "QuotedUntagged",
    "QuotedReadRequest", "FPDU", "Marker", "AtomicRequest", "AtomicResponse", "ImmediateData",
    "PrivateHead",
}  # fmt: skip
IN_STARTUP = {"MPARequest", "MPAReply"}  # layers tested in test_hostile_frames.py
ON_DATAGRAMS = {"DDPDatagram", "UDDatagram"}  # layers tested in test_hostile_datagrams.py
ON_RD = {"RDDatagram"}  # layers tested in tests/sim/rd/test_rd_wire_acks.py
ON_UC = {"LLPDatagram", "UCDatagram", "UCReport"}  # layers tested in tests/unit/qp/uc
# Layers tested in tests/unit/qp/ud/test_qp_ud_record.py.
IN_RECORDS = {"RecordDatagram", "RecordHeader"}
IN_COUNTS = {"DeliveryCount", "Requester"}  # layers tested in tests/sim/verbs/test_verbs_counts.py
IN_RESOLUTION = {"SIDR"}  # layers tested in tests/unit/cm/test_cm_ud_hostile.py


@pytest.fixture(name="target", scope="module")
def rc_target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def reset_target_memory(target: Target) -> None:
    target.reset_memory()


def make_send_segment(n: int = 100) -> Packet:
    return DDPUntagged(opcode=Opcode.SEND, msn=1) / Raw(octet_pattern(n, 2))


def make_write_segment(target: Target, n: int = 100) -> Packet:
    head = DDPTagged(opcode=Opcode.RDMA_WRITE, stag=target.mr.rkey, to=target.mr.addr + WRITES)
    return head / Raw(octet_pattern(n, 3))


def make_read_request(target: Target) -> Packet:
    return DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1) / ReadRequest(
        sink_stag=0x1234, sink_to=0x5678, size=100, src_stag=target.mr.rkey,
        src_to=target.mr.addr + SOURCE,
    )  # fmt: skip


def make_atomic_request(target: Target, code: AtomicCode = AtomicCode.FETCH_ADD) -> Packet:
    return DDPUntagged(opcode=Opcode.ATOMIC_REQUEST, qn=1, msn=1) / AtomicRequest(
        code=code, request=7, stag=target.mr.rkey, to=target.mr.addr + SOURCE,
        data=0x0102030405060708, mask=0xFF00FF00FF00FF00, compare_mask=0xFF,
        compare=int.from_bytes(target.image[PAGE + SOURCE : PAGE + SOURCE + 8], sys.byteorder),
    )  # fmt: skip


def make_immediate() -> Packet:
    return DDPUntagged(opcode=Opcode.IMMEDIATE, msn=1) / ImmediateData(data=0x01020304)


def make_private_send() -> Packet:
    return DDPUntagged(opcode=Opcode.PRIVATE, msn=1) / PrivateHead(data=7) / Raw(octet_pattern(20))


def make_terminate(**quoted: Packet) -> Packet:
    quoted = quoted or {"quoted_ddp": QuotedUntagged(opcode=1, qn=1, msn=1)}
    return DDPUntagged(opcode=Opcode.TERMINATE, qn=2, msn=1) / Terminate(
        layer=0, etype=1, code=1, m=1, d=1, r=1, ddp_seg_len=46,
        quoted_rdma=QuotedReadRequest(size=7), **quoted,
    )  # fmt: skip


def test_every_scapy_layer_and_field_is_covered_by_a_hostile_test() -> None:
    elsewhere = IN_STARTUP | ON_DATAGRAMS | ON_RD | ON_UC | IN_RECORDS | IN_COUNTS | IN_RESOLUTION
    assert set(all_packet_layer_classes()) == HERE | elsewhere
    for layer in all_packet_layer_classes().values():
        for field in layer.fields_desc:
            # field_width_bits() fails for a kind of field for which no values are defined.
            field_width_bits(field)


def packets_with_boundary_values(
    packet: Packet, layer: str, name: str
) -> Iterator[tuple[int, Packet]]:
    """Yield the packet with each boundary value in this field of this layer."""
    sound = int(packet[all_packet_layer_classes()[layer]].getfieldval(name) or 0)
    for value in boundary_values(find_field_of_layer_class(layer, name), sound):
        one = packet.copy()
        one[all_packet_layer_classes()[layer]].setfieldval(name, value)
        yield value, one


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("DDPUntagged"))
@pytest.mark.parametrize("of", ["send", "read", "terminate"])
def test_boundary_values_in_each_field_of_an_untagged_header_have_the_expected_outcome(
    target: Target, layer: str, name: str, of: str
) -> None:
    base = {
        "send": make_send_segment(),
        "read": make_read_request(target),
        "terminate": make_terminate(),
    }[of]
    for value, packet in packets_with_boundary_values(base, layer, name):
        target.open_session().attack_and_check(packet, f"{of}: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("DDPTagged"))
def test_boundary_values_in_the_tagged_header_of_a_write_have_the_expected_outcome(
    target: Target, layer: str, name: str
) -> None:
    for value, packet in packets_with_boundary_values(make_write_segment(target), layer, name):
        target.open_session().attack_and_check(packet, f"write: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("DDPTagged"))
def test_boundary_values_in_the_header_of_a_read_response_have_the_expected_outcome(
    target: Target, layer: str, name: str
) -> None:
    base = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=0, to=0) / Raw(octet_pattern(100, 5))
    for value, packet in packets_with_boundary_values(base, layer, name):
        session = target.open_session()
        state = session.start_read_by_target()
        assert state.reading is not None
        if name != "stag":
            packet.stag = state.reading.stag
        session.answer_read_and_check(packet, state, f"response: {name}={value:#x}")


@pytest.mark.parametrize("which", ["ours", "one off"])
def test_a_read_response_with_another_stag_is_refused(target: Target, which: str) -> None:
    session = target.open_session()
    state = session.start_read_by_target()
    assert state.reading is not None
    stag = target.mr.rkey if which == "ours" else state.reading.stag ^ 1
    to = target.mr.addr + SINK if which == "ours" else 0
    segment = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=stag, to=to) / Raw(
        octet_pattern(100)
    )
    session.answer_read_and_check(segment, state, which)


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("ReadRequest"))
def test_boundary_values_in_each_field_of_a_read_request_have_the_expected_outcome(
    target: Target, layer: str, name: str
) -> None:
    for value, packet in packets_with_boundary_values(make_read_request(target), layer, name):
        target.open_session().attack_and_check(packet, f"read: {name}={value:#x}")


@pytest.mark.parametrize("code", list(AtomicCode))
@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("AtomicRequest"))
def test_boundary_values_in_each_field_of_an_atomic_request_have_the_expected_outcome(
    target: Target, layer: str, name: str, code: AtomicCode
) -> None:
    for value, packet in packets_with_boundary_values(
        make_atomic_request(target, code), layer, name
    ):
        target.open_session().attack_and_check(packet, f"atomic: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("AtomicResponse"))
def test_boundary_values_in_each_field_of_an_atomic_response_have_the_expected_outcome(
    target: Target, layer: str, name: str
) -> None:
    session = target.open_session()
    asking = session.start_atomic_by_target().asking
    session.peer.close()
    session.close()
    base = DDPUntagged(opcode=Opcode.ATOMIC_RESPONSE, qn=3, msn=1) / AtomicResponse(request=asking)
    for value, packet in packets_with_boundary_values(base, layer, name):
        session = target.open_session()
        session.answer_atomic_and_check(
            packet, session.start_atomic_by_target(), f"answer: {name}={value:#x}"
        )


@pytest.mark.parametrize("of", ["atomic", "immediate"])
@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("DDPUntagged"))
def test_boundary_values_in_headers_of_atomics_and_immediate_data_have_the_expected_outcome(
    target: Target, layer: str, name: str, of: str
) -> None:
    base = make_atomic_request(target) if of == "atomic" else make_immediate()
    for value, packet in packets_with_boundary_values(base, layer, name):
        target.open_session().attack_and_check(packet, f"{of}: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("ImmediateData"))
def test_boundary_values_in_each_field_of_immediate_data_have_the_expected_outcome(
    target: Target, layer: str, name: str
) -> None:
    for value, packet in packets_with_boundary_values(make_immediate(), layer, name):
        target.open_session().attack_and_check(packet, f"immediate: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("PrivateHead"))
def test_a_private_message_from_a_peer_without_announcement_is_refused(
    target: Target, layer: str, name: str
) -> None:
    for value, packet in packets_with_boundary_values(make_private_send(), layer, name):
        target.open_session().attack_and_check(packet, f"private: {name}={value:#x}")


@pytest.mark.parametrize(
    ("layer", "name"),
    list_numeric_fields_of_layers(
        "Terminate", "QuotedUntagged", "QuotedTagged", "QuotedReadRequest"
    ),
)
def test_boundary_values_in_a_terminate_and_its_quotes_have_the_expected_outcome(
    target: Target, layer: str, name: str
) -> None:
    base = (
        make_terminate(quoted_ddp=QuotedTagged()) if layer == "QuotedTagged" else make_terminate()
    )
    inside = {
        "QuotedUntagged": "quoted_ddp",
        "QuotedTagged": "quoted_ddp",
        "QuotedReadRequest": "quoted_rdma",
    }.get(layer)
    sound = base[Terminate].getfieldval(inside) if inside else base[Terminate]
    for value in boundary_values(
        find_field_of_layer_class(layer, name), int(sound.getfieldval(name) or 0)
    ):
        packet = base.copy()
        at = packet[Terminate].getfieldval(inside) if inside else packet[Terminate]
        at.setfieldval(name, value)
        target.open_session().attack_and_check(packet, f"terminate: {layer}.{name}={value:#x}")


# ---- lengths


@pytest.mark.parametrize("of", ["send", "write", "read", "terminate", "atomic", "immediate"])
def test_segments_truncated_at_every_octet_have_the_expected_outcome(
    target: Target, of: str
) -> None:
    """Send segments that are truncated, in FPDUs that are valid."""
    whole = bytes(
        {
            "send": make_send_segment(6),
            "write": make_write_segment(target, 6),
            "read": make_read_request(target),
            "terminate": make_terminate(),
            "atomic": make_atomic_request(target),
            "immediate": make_immediate(),
        }[of]
    )
    for n in range(1, len(whole) + 1):
        target.open_session().attack_and_check(Raw(whole[:n]), f"{of}: {n} of {len(whole)} octets")


def test_a_read_response_truncated_at_every_octet_has_the_expected_outcome(target: Target) -> None:
    for n in range(1, 14 + 6 + 1):
        session = target.open_session()
        state = session.start_read_by_target(6)
        assert state.reading is not None
        whole = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=state.reading.stag)
        segment = Raw(bytes(whole / Raw(octet_pattern(6, 5)))[:n])
        session.answer_read_and_check(segment, state, f"response: {n} of 20 octets")


def test_an_atomic_response_truncated_at_every_octet_has_the_expected_outcome(
    target: Target,
) -> None:
    for n in range(1, 18 + 12 + 1):
        session = target.open_session()
        state = session.start_atomic_by_target()
        answer = AtomicResponse(request=state.asking, old=0x0102030405060708)
        whole = DDPUntagged(opcode=Opcode.ATOMIC_RESPONSE, qn=3, msn=1) / answer
        session.answer_atomic_and_check(Raw(bytes(whole)[:n]), state, f"answer: {n} of 30 octets")


def test_each_reserved_bit_of_a_send_and_of_a_read_request_is_ignored(
    target: Target,
) -> None:
    """The reserved bits are those that hold the STag in a Send with Invalidate."""
    for half in (range(16), range(16, 32)):
        session = target.open_session(receives=len(half))
        for msn, bit in enumerate(half, 1):
            segment = DDPUntagged(opcode=Opcode.SEND, msn=msn, inv_stag=1 << bit)
            session.peer.send_fpdus(segment / Raw(b"bit %d" % bit))
            session.check_next_received_octets(b"bit %d" % bit)
            asked = make_read_request(target)
            asked.msn, asked.inv_stag = msn, 1 << bit
            session.peer.send_fpdus(asked)
            session.check_read_response(asked[ReadRequest])
        session.close()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_payloads_one_octet_below_at_and_above_their_limit_have_the_expected_outcome(
    target: Target, more: int
) -> None:
    target.open_session().attack_and_check(
        make_send_segment(200 + more), f"send: {more} beyond its receive"
    )
    edge = make_write_segment(target, 200 + more)
    edge.to = target.mr.addr + target.mr.length - 200
    target.open_session().attack_and_check(edge, f"write: {more} beyond its region")
    edge = make_write_segment(target, 200)
    edge.to = target.mr.addr - max(more, 0)
    target.open_session().attack_and_check(edge, f"write: {more} before its region")
    asked = make_read_request(target)
    asked[ReadRequest].src_to = target.mr.addr + target.mr.length - 100 + more
    target.open_session().attack_and_check(asked, f"read: {more} beyond its region")
    longer = Raw(bytes(make_read_request(target)) + b"x") if more > 0 else make_read_request(target)
    target.open_session().attack_and_check(longer, "read: an octet too much")


@pytest.mark.parametrize("more", [-1, 1])
def test_a_read_response_that_is_one_octet_short_or_long_is_refused(
    target: Target, more: int
) -> None:
    session = target.open_session()
    state = session.start_read_by_target()
    assert state.reading is not None
    head = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=state.reading.stag)
    segment = head / Raw(octet_pattern(100 + more))
    # siwarp places a response that is too short before it finds the error.
    if more < 0:
        target.reset_memory()
    session.answer_read_and_check(segment, state, f"response: {more:+}")


# ---- FPDUs


def fpdu_completeness_and_crc_validity(octets: bytes) -> tuple[bool, bool]:
    """Return whether an FPDU is complete according to its length field, and whether its CRC is
    correct.
    """
    ulpdu = int.from_bytes(octets[:2], "big")
    covered = 2 + ulpdu + pad_len(ulpdu)
    if len(octets) < covered + 4:
        return False, False
    return True, crc32c(octets[:covered]).to_bytes(4, "little") == octets[covered : covered + 4]


def send_invalid_fpdu(target: Target, session: HostileSession, octets: bytes, what: str) -> None:
    """Send an invalid FPDU: a wrong CRC causes a Terminate, a truncated FPDU the end of the
    stream.
    """
    whole, good = fpdu_completeness_and_crc_validity(octets)
    try:
        session.peer.send(octets)
        if whole:
            assert not good
            session.check_terminated((2, 0, 2))
        else:
            session.peer.sock.shutdown(1)
            assert session.peer.read_terminate() is None
            session.check_ended_in_error((0, 0, 0))
    except AssertionError as e:
        raise AssertionError(f"{what}: {e}\n{octets.hex()}") from e
    session.close()


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("FPDU"))
def test_an_fpdu_with_any_wrong_field_ends_the_connection(
    target: Target, layer: str, name: str
) -> None:
    sound = FPDU(bytes(FPDU(ulpdu=make_write_segment(target, 6))))
    for value, packet in packets_with_boundary_values(sound, layer, name):
        octets = bytes(packet)
        if fpdu_completeness_and_crc_validity(octets) == (True, True):
            assert value == sound.getfieldval(name)
            continue
        send_invalid_fpdu(target, target.open_session(), octets, f"fpdu: {name}={value:#x}")


def test_a_wrong_crc_of_a_large_fpdu_ends_the_connection(target: Target) -> None:
    """Check that with crc_first no octet of the FPDU is placed; without crc_first, siwarp may have
    placed octets in memory that the peer may write.
    """
    sound = FPDU(bytes(FPDU(ulpdu=make_write_segment(target, 9000))))
    strict = lib.siw_setting_value(find_setting_index("crc_first"))
    for value, packet in packets_with_boundary_values(sound, "FPDU", "crc"):
        if value == sound.crc:
            continue
        session = target.open_session()
        session.peer.send(bytes(packet))
        session.check_terminated((2, 0, 2))
        if not strict:
            target.accept_octets_already_placed(WRITES, octet_pattern(9000, 3))
        session.close()
        target.reset_memory()


def find_setting_index(setting: str) -> int:
    names = [ffi.string(lib.siw_setting_name(i)) for i in range(lib.siw_settings_count())]
    return names.index(setting.encode())


def test_pad_octets_of_any_value_are_covered_by_the_crc_and_otherwise_ignored(
    target: Target,
) -> None:
    for n in (1, 2, 3, 5):
        segment = make_send_segment(n)
        pad = b"\xff" * pad_len(len(bytes(segment)))
        session = target.open_session()
        session.peer.send(FPDU(ulpdu=segment, pad=pad))
        session.check_next_received_octets(octet_pattern(n, 2))
        session.check_connection_continues(2)
        session.close()


def test_a_stream_that_ends_within_an_fpdu_ends_the_connection(target: Target) -> None:
    whole = bytes(FPDU(ulpdu=make_write_segment(target, 6)))
    for n in range(1, len(whole)):
        send_invalid_fpdu(target, target.open_session(), whole[:n], f"{n} of {len(whole)} octets")


# ---- Markers


@pytest.mark.parametrize(("layer", "name"), list_numeric_fields_of_layers("Marker"))
def test_a_marker_ends_the_connection_only_if_its_pointer_is_wrong(
    target: Target, layer: str, name: str
) -> None:
    """The siwarp end requests Markers: only a wrong pointer is an error (RFC 5044 section 8)."""
    for value in boundary_values(find_field_of_layer_class(layer, name), 512 - 28):
        session = target.open_session(markers=True)
        octets = bytearray(
            mark_stream([FPDU(ulpdu=make_write_segment(target, 700))], session.position)
        )
        place = 512 - session.position
        marker = Marker(bytes(octets[place : place + 4]))
        assert marker.fpduptr == place, "the Marker does not point to the start of its FPDU"
        marker.setfieldval(name, value)
        octets[place : place + 4] = bytes(marker)
        octets[-4:] = crc32c(bytes(octets[:-4])).to_bytes(4, "little")
        session.peer.send(bytes(octets))
        try:
            # The receiver ignores the last two bits of a Marker's pointer.
            if int(marker.fpduptr) & ~3 == place:
                target.set_expected_content(WRITES, octet_pattern(700, 3))
                session.peer.send(
                    mark_stream([FPDU(ulpdu=make_send_segment(5))], session.position + len(octets))
                )
                session.check_next_received_octets(octet_pattern(5, 2))
            else:
                session.check_terminated((2, 0, 3))
        except AssertionError as e:
            raise AssertionError(f"marker: {name}={value:#x}: {e}") from e
        session.close()
        target.reset_memory()


@pytest.mark.skipif(
    "SANITIZER" in os.environ, reason="a sanitizer's allocator does not count in mallinfo2"
)
def test_the_memory_of_hostile_connections_is_freed(target: Target) -> None:
    def run_hostile_connections(count: int) -> None:
        for i in range(count):
            segment = (
                make_send_segment(),
                make_write_segment(target),
                make_read_request(target),
                make_terminate(),
            )[i % 4]
            if i % 8 >= 4:
                segment.dv = 0
            target.reset_memory()
            target.open_session().attack_and_check(segment, i)

    # The first connections allocate objects that are created once and kept.
    run_hostile_connections(40)
    before = heap_octets_in_use()
    run_hostile_connections(160)
    # The smallest object of a connection is larger than 64 octets; Python's own usage varies.
    assert heap_octets_in_use() - before < 160 * 64
