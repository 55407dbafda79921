"""Every field of every scapy layer, with boundary values, against a live RC queue pair.

hostile.fields takes the list from fields_desc, so that a new layer or field fails here until its
expected outcome is defined. hostile.oracle derives the expected outcome from the octets.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator

import pytest
from harness.verbs_harness import pattern
from hostile.fields import cases, field_of, layers, values, width
from hostile.target import PAGE, SINK, SOURCE, WRITES, Session, Target
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

#: The test file that covers each layer.
HERE = {
    "DDPUntagged", "DDPTagged", "ReadRequest", "Terminate", "QuotedTagged", "QuotedUntagged",
    "QuotedReadRequest", "FPDU", "Marker", "AtomicRequest", "AtomicResponse", "ImmediateData",
    "PrivateHead",
}  # fmt: skip
IN_STARTUP = {"MPARequest", "MPAReply"}  # test_hostile_frames.py
ON_DATAGRAMS = {"DDPDatagram", "UDDatagram"}  # test_hostile_datagrams.py
ON_RD = {"RDDatagram"}  # tests/sim/rd/test_rd_wire_acks.py
ON_UC = {"LLPDatagram", "UCDatagram", "UCReport"}  # tests/unit/qp/uc
IN_RECORDS = {"RecordDatagram", "RecordHeader"}  # tests/unit/qp/ud/test_qp_ud_record.py
IN_COUNTS = {"DeliveryCount", "Requester"}  # tests/sim/verbs/test_verbs_counts.py
IN_RESOLUTION = {"SIDR"}  # tests/unit/cm/test_cm_ud_hostile.py


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def clean(target: Target) -> None:
    target.reset()


def send(n: int = 100) -> Packet:
    return DDPUntagged(opcode=Opcode.SEND, msn=1) / Raw(pattern(n, 2))


def write(target: Target, n: int = 100) -> Packet:
    head = DDPTagged(opcode=Opcode.RDMA_WRITE, stag=target.mr.rkey, to=target.mr.addr + WRITES)
    return head / Raw(pattern(n, 3))


def read(target: Target) -> Packet:
    return DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1) / ReadRequest(
        sink_stag=0x1234, sink_to=0x5678, size=100, src_stag=target.mr.rkey,
        src_to=target.mr.addr + SOURCE,
    )  # fmt: skip


def atomic(target: Target, code: AtomicCode = AtomicCode.FETCH_ADD) -> Packet:
    return DDPUntagged(opcode=Opcode.ATOMIC_REQUEST, qn=1, msn=1) / AtomicRequest(
        code=code, request=7, stag=target.mr.rkey, to=target.mr.addr + SOURCE,
        data=0x0102030405060708, mask=0xFF00FF00FF00FF00, compare_mask=0xFF,
        compare=int.from_bytes(target.image[PAGE + SOURCE : PAGE + SOURCE + 8], sys.byteorder),
    )  # fmt: skip


def immediate() -> Packet:
    return DDPUntagged(opcode=Opcode.IMMEDIATE, msn=1) / ImmediateData(data=0x01020304)


def private() -> Packet:
    return DDPUntagged(opcode=Opcode.PRIVATE, msn=1) / PrivateHead(data=7) / Raw(pattern(20))


def terminate(**quoted: Packet) -> Packet:
    quoted = quoted or {"quoted_ddp": QuotedUntagged(opcode=1, qn=1, msn=1)}
    return DDPUntagged(opcode=Opcode.TERMINATE, qn=2, msn=1) / Terminate(
        layer=0, etype=1, code=1, m=1, d=1, r=1, ddp_seg_len=46,
        quoted_rdma=QuotedReadRequest(size=7), **quoted,
    )  # fmt: skip


def test_no_layer_and_no_field_is_forgotten() -> None:
    elsewhere = IN_STARTUP | ON_DATAGRAMS | ON_RD | ON_UC | IN_RECORDS | IN_COUNTS | IN_RESOLUTION
    assert set(layers()) == HERE | elsewhere
    for layer in layers().values():
        for field in layer.fields_desc:
            width(field)  # fails for a kind of field for which no values are defined


def changed(packet: Packet, layer: str, name: str) -> Iterator[tuple[int, Packet]]:
    """Yield the packet with each boundary value in this field of this layer."""
    sound = int(packet[layers()[layer]].getfieldval(name) or 0)
    for value in values(field_of(layer, name), sound):
        one = packet.copy()
        one[layers()[layer]].setfieldval(name, value)
        yield value, one


@pytest.mark.parametrize(("layer", "name"), cases("DDPUntagged"))
@pytest.mark.parametrize("of", ["send", "read", "terminate"])
def test_untagged_header(target: Target, layer: str, name: str, of: str) -> None:
    base = {"send": send(), "read": read(target), "terminate": terminate()}[of]
    for value, packet in changed(base, layer, name):
        target.session().say(packet, f"{of}: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), cases("DDPTagged"))
def test_tagged_header_of_a_write(target: Target, layer: str, name: str) -> None:
    for value, packet in changed(write(target), layer, name):
        target.session().say(packet, f"write: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), cases("DDPTagged"))
def test_tagged_header_of_a_read_response(target: Target, layer: str, name: str) -> None:
    base = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=0, to=0) / Raw(pattern(100, 5))
    for value, packet in changed(base, layer, name):
        session = target.session()
        state = session.read()
        assert state.reading is not None
        if name != "stag":
            packet.stag = state.reading.stag
        session.respond(packet, state, f"response: {name}={value:#x}")


@pytest.mark.parametrize("which", ["ours", "one off"])
def test_a_read_response_to_another_stag(target: Target, which: str) -> None:
    session = target.session()
    state = session.read()
    assert state.reading is not None
    stag = target.mr.rkey if which == "ours" else state.reading.stag ^ 1
    to = target.mr.addr + SINK if which == "ours" else 0
    segment = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=stag, to=to) / Raw(pattern(100))
    session.respond(segment, state, which)


@pytest.mark.parametrize(("layer", "name"), cases("ReadRequest"))
def test_read_request(target: Target, layer: str, name: str) -> None:
    for value, packet in changed(read(target), layer, name):
        target.session().say(packet, f"read: {name}={value:#x}")


@pytest.mark.parametrize("code", list(AtomicCode))
@pytest.mark.parametrize(("layer", "name"), cases("AtomicRequest"))
def test_atomic_request(target: Target, layer: str, name: str, code: AtomicCode) -> None:
    for value, packet in changed(atomic(target, code), layer, name):
        target.session().say(packet, f"atomic: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), cases("AtomicResponse"))
def test_atomic_response(target: Target, layer: str, name: str) -> None:
    session = target.session()
    asking = session.atomic().asking
    session.peer.close()
    session.close()
    base = DDPUntagged(opcode=Opcode.ATOMIC_RESPONSE, qn=3, msn=1) / AtomicResponse(request=asking)
    for value, packet in changed(base, layer, name):
        session = target.session()
        session.answer(packet, session.atomic(), f"answer: {name}={value:#x}")


@pytest.mark.parametrize("of", ["atomic", "immediate"])
@pytest.mark.parametrize(("layer", "name"), cases("DDPUntagged"))
def test_untagged_header_of_rfc_7306(target: Target, layer: str, name: str, of: str) -> None:
    base = atomic(target) if of == "atomic" else immediate()
    for value, packet in changed(base, layer, name):
        target.session().say(packet, f"{of}: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), cases("ImmediateData"))
def test_immediate_data(target: Target, layer: str, name: str) -> None:
    for value, packet in changed(immediate(), layer, name):
        target.session().say(packet, f"immediate: {name}={value:#x}")


@pytest.mark.parametrize(("layer", "name"), cases("PrivateHead"))
def test_a_private_message_is_nobodys_here(target: Target, layer: str, name: str) -> None:
    for value, packet in changed(private(), layer, name):
        target.session().say(packet, f"private: {name}={value:#x}")


@pytest.mark.parametrize(
    ("layer", "name"), cases("Terminate", "QuotedUntagged", "QuotedTagged", "QuotedReadRequest")
)
def test_terminate_and_what_it_quotes(target: Target, layer: str, name: str) -> None:
    base = terminate(quoted_ddp=QuotedTagged()) if layer == "QuotedTagged" else terminate()
    inside = {
        "QuotedUntagged": "quoted_ddp",
        "QuotedTagged": "quoted_ddp",
        "QuotedReadRequest": "quoted_rdma",
    }.get(layer)
    sound = base[Terminate].getfieldval(inside) if inside else base[Terminate]
    for value in values(field_of(layer, name), int(sound.getfieldval(name) or 0)):
        packet = base.copy()
        at = packet[Terminate].getfieldval(inside) if inside else packet[Terminate]
        at.setfieldval(name, value)
        target.session().say(packet, f"terminate: {layer}.{name}={value:#x}")


# ---- lengths


@pytest.mark.parametrize("of", ["send", "write", "read", "terminate", "atomic", "immediate"])
def test_segments_cut_at_every_octet(target: Target, of: str) -> None:
    """The FPDU is valid; the segment that it contains is truncated."""
    whole = bytes(
        {
            "send": send(6),
            "write": write(target, 6),
            "read": read(target),
            "terminate": terminate(),
            "atomic": atomic(target),
            "immediate": immediate(),
        }[of]
    )
    for n in range(1, len(whole) + 1):
        target.session().say(Raw(whole[:n]), f"{of}: {n} of {len(whole)} octets")


def test_a_read_response_cut_at_every_octet(target: Target) -> None:
    for n in range(1, 14 + 6 + 1):
        session = target.session()
        state = session.read(6)
        assert state.reading is not None
        whole = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=state.reading.stag)
        segment = Raw(bytes(whole / Raw(pattern(6, 5)))[:n])
        session.respond(segment, state, f"response: {n} of 20 octets")


def test_an_atomic_response_cut_at_every_octet(target: Target) -> None:
    for n in range(1, 18 + 12 + 1):
        session = target.session()
        state = session.atomic()
        answer = AtomicResponse(request=state.asking, old=0x0102030405060708)
        whole = DDPUntagged(opcode=Opcode.ATOMIC_RESPONSE, qn=3, msn=1) / answer
        session.answer(Raw(bytes(whole)[:n]), state, f"answer: {n} of 30 octets")


def test_each_bit_that_a_send_and_a_read_request_reserve_is_nobodys_business(
    target: Target,
) -> None:
    """The reserved bits are those that hold the STag in a Send with Invalidate."""
    for half in (range(16), range(16, 32)):
        session = target.session(receives=len(half))
        for msn, bit in enumerate(half, 1):
            segment = DDPUntagged(opcode=Opcode.SEND, msn=msn, inv_stag=1 << bit)
            session.peer.fpdu(segment / Raw(b"bit %d" % bit))
            session.received(b"bit %d" % bit)
            asked = read(target)
            asked.msn, asked.inv_stag = msn, 1 << bit
            session.peer.fpdu(asked)
            session.answers(asked[ReadRequest])
        session.close()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_payloads_one_octet_off(target: Target, more: int) -> None:
    target.session().say(send(200 + more), f"send: {more} beyond its receive")
    edge = write(target, 200 + more)
    edge.to = target.mr.addr + target.mr.length - 200
    target.session().say(edge, f"write: {more} beyond its region")
    edge = write(target, 200)
    edge.to = target.mr.addr - max(more, 0)
    target.session().say(edge, f"write: {more} before its region")
    asked = read(target)
    asked[ReadRequest].src_to = target.mr.addr + target.mr.length - 100 + more
    target.session().say(asked, f"read: {more} beyond its region")
    longer = Raw(bytes(read(target)) + b"x") if more > 0 else read(target)
    target.session().say(longer, "read: an octet too much")


@pytest.mark.parametrize("more", [-1, 1])
def test_a_read_response_one_octet_off(target: Target, more: int) -> None:
    session = target.session()
    state = session.read()
    assert state.reading is not None
    head = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=state.reading.stag)
    segment = head / Raw(pattern(100 + more))
    if more < 0:  # a short response is placed before the error is found, so the memory is restored
        target.reset()
    session.respond(segment, state, f"response: {more:+}")


# ---- FPDUs


def fpdu_verdict(octets: bytes) -> tuple[bool, bool]:
    """Return whether an FPDU is complete according to its length field, and whether its CRC is
    correct.
    """
    ulpdu = int.from_bytes(octets[:2], "big")
    covered = 2 + ulpdu + pad_len(ulpdu)
    if len(octets) < covered + 4:
        return False, False
    return True, crc32c(octets[:covered]).to_bytes(4, "little") == octets[covered : covered + 4]


def send_invalid_fpdu(target: Target, session: Session, octets: bytes, what: str) -> None:
    """Send an invalid FPDU: a wrong CRC causes a Terminate, a truncated FPDU the end of
    the stream.
    """
    whole, good = fpdu_verdict(octets)
    try:
        session.peer.send(octets)
        if whole:
            assert not good
            session.terminated((2, 0, 2))
        else:
            session.peer.sock.shutdown(1)
            assert session.peer.terminate() is None
            session.over((0, 0, 0))
    except AssertionError as e:
        raise AssertionError(f"{what}: {e}\n{octets.hex()}") from e
    session.close()


@pytest.mark.parametrize(("layer", "name"), cases("FPDU"))
def test_fpdu(target: Target, layer: str, name: str) -> None:
    sound = FPDU(bytes(FPDU(ulpdu=write(target, 6))))
    for value, packet in changed(sound, layer, name):
        octets = bytes(packet)
        if fpdu_verdict(octets) == (True, True):
            assert value == sound.getfieldval(name)
            continue
        send_invalid_fpdu(target, target.session(), octets, f"fpdu: {name}={value:#x}")


def test_a_wrong_crc_of_a_large_fpdu(target: Target) -> None:
    """Octets may have been placed directly into memory that the peer may write; with
    crc_first, none.
    """
    sound = FPDU(bytes(FPDU(ulpdu=write(target, 9000))))
    strict = lib.siw_setting_value(index_of("crc_first"))
    for value, packet in changed(sound, "FPDU", "crc"):
        if value == sound.crc:
            continue
        session = target.session()
        session.peer.send(bytes(packet))
        session.terminated((2, 0, 2))
        if not strict:
            target.accept(WRITES, pattern(9000, 3))
        session.close()
        target.reset()


def index_of(setting: str) -> int:
    names = [ffi.string(lib.siw_setting_name(i)) for i in range(lib.siw_settings_count())]
    return names.index(setting.encode())


def test_a_pad_of_any_octets_is_covered_by_the_crc_and_otherwise_nobodys_business(
    target: Target,
) -> None:
    for n in (1, 2, 3, 5):
        segment = send(n)
        pad = b"\xff" * pad_len(len(bytes(segment)))
        session = target.session()
        session.peer.send(FPDU(ulpdu=segment, pad=pad))
        session.received(pattern(n, 2))
        session.alive(2)
        session.close()


def test_streams_cut_at_every_octet_of_an_fpdu(target: Target) -> None:
    whole = bytes(FPDU(ulpdu=write(target, 6)))
    for n in range(1, len(whole)):
        send_invalid_fpdu(target, target.session(), whole[:n], f"{n} of {len(whole)} octets")


# ---- Markers


@pytest.mark.parametrize(("layer", "name"), cases("Marker"))
def test_marker(target: Target, layer: str, name: str) -> None:
    """The siwarp end has requested Markers: only a wrong pointer is an error (RFC 5044
    section 8).
    """
    for value in values(field_of(layer, name), 512 - 28):
        session = target.session(markers=True)
        octets = bytearray(mark_stream([FPDU(ulpdu=write(target, 700))], session.position))
        place = 512 - session.position
        marker = Marker(bytes(octets[place : place + 4]))
        assert marker.fpduptr == place, "it stands in this FPDU, whose first octet is the next"
        marker.setfieldval(name, value)
        octets[place : place + 4] = bytes(marker)
        octets[-4:] = crc32c(bytes(octets[:-4])).to_bytes(4, "little")
        session.peer.send(bytes(octets))
        try:
            # The last two bits of a Marker's pointer are ignored.
            if int(marker.fpduptr) & ~3 == place:
                target.expect(WRITES, pattern(700, 3))
                session.peer.send(
                    mark_stream([FPDU(ulpdu=send(5))], session.position + len(octets))
                )
                session.received(pattern(5, 2))
            else:
                session.terminated((2, 0, 3))
        except AssertionError as e:
            raise AssertionError(f"marker: {name}={value:#x}: {e}") from e
        session.close()
        target.reset()


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *(
            (name, ctypes.c_size_t)
            for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keep")
        ),
    ]


def heap_in_use() -> int:
    """Return the number of octets allocated by malloc, including large blocks."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    gc.collect()
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


@pytest.mark.skipif(
    "SANITIZER" in os.environ, reason="a sanitizer's allocator does not count in mallinfo2"
)
def test_the_memory_of_hostile_connections_comes_back(target: Target) -> None:
    def some(count: int) -> None:
        for i in range(count):
            segment = (send(), write(target), read(target), terminate())[i % 4]
            if i % 8 >= 4:
                segment.dv = 0
            target.reset()
            target.session().say(segment, i)

    some(40)  # first allocate objects that are created once and kept
    before = heap_in_use()
    some(400)
    # The smallest object of a connection is larger than 64 octets; Python's own usage varies.
    assert heap_in_use() - before < 400 * 64
