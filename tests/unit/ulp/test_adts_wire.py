"""The wire format of ADTS: encoding as in spec/adts.md, and strict decoding of any octets."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import fields

import crcmod.predefined
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table import run_test_for_each_row

from siwarp.ulp.adts import wire
from siwarp.ulp.adts.wire import (
    ChannelKind,
    DigestKind,
    ErrorCode,
    FileKind,
    Message,
    Option,
    Record,
    Type,
    WireError,
)

crc32c: Callable[..., int] = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

HELLO = wire.Hello(
    min_version=1,
    max_version=3,
    nonce=bytes(range(16)),
    channels=(ChannelKind.RD, ChannelKind.TCP),
    unit_size=1 << 20,
    window=8,
    files=64,
    idle=30,
)
OPEN = wire.Open(path=b"a/\xff", size=5, mtime_ns=-1, mode=0o640)
MESSAGES = [
    HELLO,
    wire.Auth(mac=bytes(32)),
    wire.UseChannel(kind=ChannelKind.RC),
    wire.UseChannel(
        kind=ChannelKind.RD, token=bytes(16), port=7, qkey=0xFFFF_FFFF, unit_size=65536, window=1
    ),
    wire.Join(token=bytes(16)),
    wire.Reclaim(keep=3),
    wire.Error(code=ErrorCode.NO_SPACE, text="the disk is full: ä"),
    wire.Bye(),
    wire.Pause(),
    wire.Resume(),
    wire.Cancel(),
    wire.Get(path=b"", options=Option.RECURSIVE | Option.UPDATE, digest=DigestKind.SHA256),
    wire.List(path=b"d"),
    wire.Entry(path=b"d", kind=FileKind.SYMLINK, size=0, mtime_ns=1, mode=0o777, target=b"t"),
    wire.Delete(path=b"d", options=Option.RECURSIVE),
    wire.RequestDone(files=1 << 40, failed=2),
    OPEN,
    wire.Accept(offset=9, digest=bytes(4)),
    wire.Skip(),
    wire.Hole(offset=4096, length=1 << 40),
    wire.End(size=5, digest=bytes(32)),
    wire.Done(),
]


def build_unit(*parts: bytes, version: int = 1, magic: bytes = b"ADTS") -> memoryview:
    """Return a unit, built without the module under test."""
    length = 24 + sum(map(len, parts))
    head = struct.pack(">4sBBHIII", magic, version, 0, 0, length, 0, 0)
    return memoryview(b"".join([head, struct.pack(">I", crc32c(head)), *parts]))


def build_record(
    kind: int,
    body: bytes = b"",
    *,
    flags: int = 0,
    transfer: int = 0,
    offset: int = 0,
    aux: int = 0,
) -> bytes:
    head = struct.pack(">BBHIQQI", kind, flags, 0, transfer, offset, aux, len(body))
    covered = head if kind == Type.DATA else head + body
    return head + struct.pack(">I", crc32c(covered)) + body


def build_field(number: int, value: bytes) -> bytes:
    return struct.pack(">HH", number, len(value)) + value


def encode_messages(*messages: Message, transfer: int = 0) -> memoryview:
    """Return a unit with messages, encoded by the module under test."""
    view = memoryview(bytearray(1 << 16))
    at = wire.UNIT_HEADER_SIZE
    for message in messages:
        at = message.put(view, at, transfer)
    wire.put_unit_header(view, at)
    return view[:at]


def parse_record_body(body: bytes, kind: Type) -> Message:
    (record,) = wire.parse_records(build_unit(build_record(kind, body)))
    return wire.parse_message(record)


@pytest.mark.clause("ADTS-UNIT-1", "ADTS-UNIT-2", "ADTS-UNIT-4")
def test_a_unit_header_has_the_octets_of_figure_2_1() -> None:
    view = memoryview(bytearray(24))
    wire.put_unit_header(view, 24, granted=0x01020304, returned=0xFFFFFFFF)
    head = bytes.fromhex("41445453 01 00 0000 00000018 01020304 ffffffff")
    assert bytes(view) == head + crc32c(head).to_bytes(4, "big")
    assert wire.parse_unit_header(view) == (24, 0x01020304, 0xFFFFFFFF)
    # Flags and the zero field are ignored.
    head = bytes.fromhex("41445453 01 ff ffff 00000018 00000005 00000006")
    changed = memoryview(head + crc32c(head).to_bytes(4, "big"))
    assert wire.parse_unit_header(changed) == (24, 5, 6)


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        pytest.param(
            bytes(build_unit(magic=b"ADTX")),
            "a unit begins with 41445458, not with 41445453 (ADTS)",
            marks=pytest.mark.clause("ADTS-UNIT-3#a"),
        ),
        pytest.param(
            bytes(build_unit(version=2)),
            "a unit has version 2: this end has version 1",
            marks=pytest.mark.clause("ADTS-UNIT-3#b"),
        ),
        pytest.param(
            bytes(build_unit()[:12]) + b"\1" + bytes(build_unit()[13:]),
            "the CRC of a unit header is ",
            marks=pytest.mark.clause("ADTS-UNIT-3#c"),
        ),
        pytest.param(
            bytes(build_unit()) + b"x",
            "a unit of 25 octets has the length 24 in its header",
            marks=pytest.mark.clause("ADTS-UNIT-3#d"),
        ),
        pytest.param(b"ADTS", "4 octets are no unit: its header has 24"),
    ],
)
def test_an_invalid_unit_is_refused_with_its_fault(octets: bytes, text: str) -> None:
    with pytest.raises(WireError) as refused:
        list(wire.parse_records(memoryview(octets)))
    assert text in str(refused.value)


@pytest.mark.clause("ADTS-UNIT-3#d")
@pytest.mark.parametrize("length", [0, 23, 2049, 0xFFFF_FFFF])
def test_a_length_outside_of_the_limits_is_refused(length: int) -> None:
    head = struct.pack(">4sBBHIII", b"ADTS", 1, 0, 0, length, 0, 0)
    octets = memoryview(head + crc32c(head).to_bytes(4, "big"))
    with pytest.raises(WireError, match=f"a unit of {length} octets: 24 to 2048 are permitted"):
        wire.parse_unit_header(octets, limit=2048)


@pytest.mark.clause("ADTS-REC-1", "ADTS-REC-2")
def test_records_have_the_octets_of_figure_2_2() -> None:
    view = memoryview(bytearray(512))
    at = wire.Hole(offset=0x0102, length=0x0304).put(view, 24, transfer=7)
    view[at + 32 : at + 35] = b"abc"
    end = wire.put_data_header(view, at, transfer=8, offset=9, length=3)
    wire.put_unit_header(view, end)
    hole = build_record(36, transfer=7, offset=0x0102, aux=0x0304)
    data = build_record(35, b"abc", transfer=8, offset=9)
    assert bytes(view[:end]) == bytes(build_unit(hole, data))


@pytest.mark.clause("ADTS-UNIT-4", "ADTS-REC-1")
def test_records_are_views_of_the_unit_and_unknown_flags_are_ignored() -> None:
    unit = build_unit(
        build_record(35, b"abc", flags=0x7F, transfer=8, offset=9),
        build_record(7),
        build_record(35),
    )
    data, bye, empty = wire.parse_records(unit)
    assert data == (Type.DATA, 0x7F, 8, 9, 0, b"abc")
    assert data.body.obj is unit.obj
    assert (bye.type, empty.type, len(empty.body)) == (Type.BYE, Type.DATA, 0)


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        pytest.param(
            build_record(35, b"abc")[:-1],
            "a record of 35 octets in a unit with 34 left",
            marks=pytest.mark.clause("ADTS-REC-3#a"),
        ),
        pytest.param(
            build_record(7)[:-1],
            "a unit ends 31 octets after the start of a record header",
            marks=pytest.mark.clause("ADTS-REC-3#a"),
        ),
        pytest.param(
            build_record(6, b"abc")[:-1] + b"x",
            "the CRC of a record is ",
            marks=pytest.mark.clause("ADTS-REC-3#b"),
        ),
        pytest.param(
            b"\x21" + build_record(35, b"abc")[1:],
            "the CRC of a record is ",
            marks=pytest.mark.clause("ADTS-REC-3#b"),
        ),
        pytest.param(
            build_record(6, bytes(8449)),
            "a record of type 6 has 8449 octets: the limit is 8448",
            marks=pytest.mark.clause("ADTS-REC-3#c"),
        ),
        pytest.param(
            build_record(77),
            "a record of unknown type 77, which is not marked as optional",
            marks=pytest.mark.clause("ADTS-REC-4"),
        ),
        pytest.param(
            build_record(35, b"abc", offset=(1 << 63) - 3),
            "a DATA of 3 octets at offset 9223372036854775805",
            marks=pytest.mark.clause("ADTS-REC-5"),
        ),
    ],
)
def test_an_invalid_record_ends_the_unit_after_the_records_in_front_of_it(
    octets: bytes, text: str
) -> None:
    found = wire.parse_records(build_unit(build_record(8), octets))
    assert next(found).type == Type.PAUSE
    with pytest.raises(WireError) as refused:
        next(found)
    assert text in str(refused.value)


@pytest.mark.clause("ADTS-REC-4")
def test_an_optional_record_of_unknown_type_is_left_out() -> None:
    unit = build_unit(build_record(77, b"new", flags=wire.OPTIONAL), build_record(7))
    assert [record.type for record in wire.parse_records(unit)] == [Type.BYE]


@pytest.mark.clause("ADTS-REC-5")
def test_the_sum_of_offset_and_length_of_a_hole_is_limited() -> None:
    last = (1 << 63) - 1
    (record,) = wire.parse_records(build_unit(build_record(36, offset=last - 1, aux=1)))
    assert wire.parse_message(record) == wire.Hole(offset=last - 1, length=1)
    for offset, length in ((last, 1), (1 << 63, 0), (0, 1 << 63), (1 << 62, 1 << 62)):
        (record,) = wire.parse_records(build_unit(build_record(36, offset=offset, aux=length)))
        with pytest.raises(WireError):
            wire.parse_message(record)


@run_test_for_each_row("message", MESSAGES, ids=lambda m: m.TYPE.name)
def test_each_message_comes_back_as_it_was_written(message: Message) -> None:
    unit = encode_messages(message, transfer=0xFFFF_FFFF)
    assert len(unit) == 24 + message.record_length()
    (record,) = wire.parse_records(unit)
    assert record.transfer == 0xFFFF_FFFF
    assert wire.parse_message(record) == message
    assert type(message).unpack(record) == message


def test_there_is_a_message_for_each_type_but_data() -> None:
    assert {type(m).TYPE for m in MESSAGES} == set(Type) - {Type.DATA}
    (record,) = wire.parse_records(build_unit(build_record(35)))
    with pytest.raises(WireError, match="a DATA record where a message is expected"):
        wire.parse_message(record)
    with pytest.raises(WireError, match="DATA instead of BYE"):
        wire.Bye.unpack(record)


@pytest.mark.clause("ADTS-FIELD-1")
def test_a_body_consists_of_fields_in_the_order_of_their_numbers() -> None:
    assert OPEN.body() == b"".join(
        [
            build_field(1, b"a/\xff"),
            build_field(3, (5).to_bytes(8, "big")),
            build_field(4, b"\xff" * 8),
            build_field(5, (0o640).to_bytes(2, "big")),
        ]
    )
    assert HELLO.body() == b"".join(
        [
            build_field(1, b"\1"),
            build_field(2, b"\3"),
            build_field(3, bytes(range(16))),
            build_field(4, b"\3\1"),
            build_field(5, (1 << 20).to_bytes(4, "big")),
            build_field(6, b"\0\x08"),
            build_field(7, b"\0\x40"),
            build_field(8, b"\0\x1e"),
        ]
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (build_field(2, b"x") + build_field(1, b"\0\1"), "ERROR field 1 follows field 2"),
        (build_field(1, b"\0\1") * 2, "ERROR field 1 follows field 1"),
        (build_field(0, b""), "ERROR field 0 follows field 0"),
        (b"\0\1\0", "ERROR ends 3 octets after the start of a field"),
        (build_field(1, b"\0\1")[:-1], "ERROR field 1 has 2 octets, 1 are left"),
        (b"\0\1\xff\xff", "ERROR field 1 has 65535 octets, 0 are left"),
    ],
)
@pytest.mark.clause("ADTS-FIELD-1")
def test_fields_out_of_order_or_beyond_the_end_are_refused(body: bytes, text: str) -> None:
    with pytest.raises(WireError) as refused:
        parse_record_body(body, Type.ERROR)
    assert str(refused.value).startswith(text)


@pytest.mark.clause("ADTS-FIELD-2", "ADTS-FIELD-4")
def test_unknown_fields_are_ignored_and_absent_ones_have_their_defaults() -> None:
    body = build_field(1, b"p") + build_field(9, b"new") + build_field(0xFFFF, bytes(100))
    assert parse_record_body(body, Type.GET) == wire.Get(path=b"p")
    # An explicit default is the same as an absent field.
    assert parse_record_body(build_field(1, b"p") + build_field(2, bytes(4)), Type.GET) == wire.Get(
        path=b"p"
    )
    hello = HELLO.body().replace(b"\0\4\0\2\3\1", b"\0\4\0\3\3\x63\1")
    assert (
        parse_record_body(hello, Type.HELLO) == HELLO
    )  # the unknown kind of channel 99 is left out


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        pytest.param(
            Type.ERROR,
            build_field(2, b"text"),
            "ERROR has no code (field 1)",
            marks=pytest.mark.clause("ADTS-FIELD-3#a"),
        ),
        *(
            pytest.param(kind, body, text, marks=pytest.mark.clause("ADTS-FIELD-3#b"))
            for kind, body, text in [
                (Type.ERROR, build_field(1, b"\1"), "ERROR code: 1 octets instead of 2"),
                (Type.AUTH, build_field(1, bytes(31)), "AUTH mac: 31 octets instead of 32"),
                (
                    Type.ACCEPT,
                    build_field(1, bytes(5)),
                    "ACCEPT digest: 5 octets instead of 4 or 32",
                ),
                (
                    Type.LIST,
                    build_field(1, bytes(4097)),
                    "LIST path: 4097 octets instead of 0 to 4096",
                ),
                (
                    Type.ERROR,
                    build_field(1, b"\0\1") + build_field(2, bytes(1025)),
                    "ERROR text: 1025 octets instead of 0 to 1024",
                ),
            ]
        ),
        *(
            pytest.param(kind, body, text, marks=pytest.mark.clause("ADTS-FIELD-3#c"))
            for kind, body, text in [
                (
                    Type.HELLO,
                    HELLO.body().replace(b"\0\7\0\2\0\x40", b"\0\7\0\2\0\0"),
                    "HELLO files: 0 is not in the range 1 to 65535",
                ),
                (
                    Type.HELLO,
                    HELLO.body().replace(b"\0\5\0\4\0\x10\0\0", b"\0\5\0\4\0\x40\0\1"),
                    "HELLO unit_size: 4194305 is not in the range 2048 to 4194304",
                ),
                (Type.CHANNEL, build_field(1, b"\x63"), "CHANNEL kind: 99 is unknown; known are 1"),
                (
                    Type.GET,
                    build_field(1, b"") + build_field(2, b"\0\0\0\x21"),
                    "GET options: the options 0x20 are unknown",
                ),
                (
                    Type.ERROR,
                    build_field(1, b"\0\1") + build_field(2, b"a\xff"),
                    "ERROR text: octet 1 of the text is not UTF-8",
                ),
            ]
        ),
    ],
)
def test_a_missing_or_invalid_field_is_refused_by_name(kind: Type, body: bytes, text: str) -> None:
    with pytest.raises(WireError) as refused:
        parse_record_body(body, kind)
    assert str(refused.value).startswith(text)


@pytest.mark.clause("ADTS-FIELD-3#c")
def test_a_size_in_the_record_header_is_limited() -> None:
    octets = build_record(37, build_field(1, bytes(4)), aux=1 << 63)
    (record,) = wire.parse_records(build_unit(octets))
    with pytest.raises(WireError, match="END size: 9223372036854775808 is not in the range 0 to"):
        wire.parse_message(record)


@pytest.mark.clause("ADTS-END-5")
def test_the_text_of_an_error_has_no_control_characters() -> None:
    with pytest.raises(WireError, match="ERROR text: the text has a control character"):
        parse_record_body(build_field(1, b"\0\1") + build_field(2, b"\x1b[2J"), Type.ERROR)
    (record,) = wire.parse_records(encode_messages(wire.Error(ErrorCode.IO, "a\nb\x1b[2J \udcff")))
    assert wire.Error.unpack(record).text == "a\ufffdb\ufffd[2J \ufffd"


def test_a_text_that_is_too_long_is_cut_between_two_characters() -> None:
    (record,) = wire.parse_records(encode_messages(wire.Error(ErrorCode.IO, "x" + "ä" * 1000)))
    assert wire.Error.unpack(record).text == "x" + "ä" * 511


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (wire.Get(path=bytes(4097)), "GET path: 4097 octets instead of 0 to 4096"),
        (wire.Join(token=b""), "JOIN token: 0 octets instead of 16"),
        (wire.Reclaim(keep=4097), "RECLAIM keep: 4097 is not in the range 0 to 4096"),
        (wire.End(size=-1, digest=bytes(4)), "END size: -1 is not in the range 0 to"),
        (wire.RequestDone(files=-1), "REQUEST_DONE files: -1 is not in the range 0 to"),
    ],
)
def test_a_value_that_the_format_cannot_express_is_not_written(message: Message, text: str) -> None:
    view = memoryview(bytearray(8192))
    with pytest.raises(WireError) as refused:
        message.put(view, 24)
    assert str(refused.value).startswith(text)
    assert bytes(view) == bytes(8192)


def test_a_record_that_does_not_fit_is_not_written() -> None:
    room = OPEN.record_length()
    view = memoryview(bytearray(100 + room))
    with pytest.raises(WireError, match=f"OPEN of {room} octets does not fit: {room - 1} octets"):
        OPEN.put(view, 101)
    with pytest.raises(WireError, match="DATA of 33 octets does not fit: 32 octets are left"):
        wire.put_data_header(view, len(view) - 32, transfer=1, offset=0, length=1)
    assert bytes(view) == bytes(len(view))
    assert OPEN.put(view, 100) == len(view)


def test_the_largest_message_is_within_the_limit_of_a_body() -> None:
    path = bytes(wire.MAX_PATH)
    longest = wire.Open(
        path=path,
        size=1,
        mtime_ns=1,
        mode=1,
        kind=FileKind.SYMLINK,
        target=path,
        options=Option.UPDATE,
        digest=DigestKind.SHA256,
        request=1,
    )
    assert all(getattr(longest, f.name) != f.default for f in fields(longest))
    assert len(longest.body()) <= wire.MAX_BODY == 8448


def test_the_handshake_fits_into_its_units() -> None:
    """The test gives each field, including the text of an ERROR, its maximum length."""
    hello = wire.Hello(1, 1, bytes(16), (ChannelKind.UD,) * 16, 1 << 20, 1, 1, 1)
    channel = wire.UseChannel(ChannelKind.RD, bytes(16), 1, 1, 1 << 20, 1)
    for messages in (
        [hello],
        [wire.Auth(bytes(32)), channel],
        [wire.Error(ErrorCode.REFUSED, "x" * 2000)],
        [wire.Join(bytes(16))],
    ):
        assert len(encode_messages(*messages)) <= wire.HANDSHAKE_UNIT_SIZE == 2048


def decode_records(octets: memoryview) -> Iterator[Record | Message]:
    for record in wire.parse_records(octets):
        yield record if record.type == Type.DATA else wire.parse_message(record)


def recompute_unit_crcs(octets: bytearray) -> None:
    """Correct the CRCs of a damaged unit, so that the later checks are reached."""
    octets[20:24] = crc32c(bytes(octets[:20])).to_bytes(4, "big")
    at = 24
    while at + 32 <= len(octets):
        length = int.from_bytes(octets[at + 24 : at + 28], "big")
        covered = bytes(octets[at : at + 28])
        if octets[at] != Type.DATA:
            covered += bytes(octets[at + 32 : at + 32 + length])
        octets[at + 28 : at + 32] = crc32c(covered).to_bytes(4, "big")
        at += 32 + length


@given(st.binary(max_size=400))
def test_any_octets_are_records_or_a_wire_error(octets: bytes) -> None:
    for unit in (memoryview(octets), build_unit(octets), build_unit(build_record(7), octets)):
        try:
            list(decode_records(unit))
        except WireError as error:
            assert str(error)


@given(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=4)), max_size=4),
    st.booleans(),
)
def test_a_damaged_unit_gives_records_or_a_wire_error(
    messages: list[Message], damage: list[tuple[int, bytes]], corrected: bool
) -> None:
    octets = bytearray(encode_messages(*messages))
    for position, changed in damage:
        at = position % len(octets)
        octets[at : at + len(changed)] = changed[: len(octets) - at]
    if corrected:
        recompute_unit_crcs(octets)
    try:
        found = list(decode_records(memoryview(octets)))
    except WireError as error:
        assert str(error)
        return
    for got in found:
        # An accepted message is within the limits of the format.
        assert isinstance(got, Record) or len(got.body()) <= wire.MAX_BODY


@given(st.sampled_from(list(Type)), st.binary(max_size=300), st.integers(0, (1 << 64) - 1))
def test_any_body_is_a_message_or_a_wire_error(kind: Type, body: bytes, number: int) -> None:
    try:
        list(decode_records(build_unit(build_record(kind, body, offset=number, aux=number))))
    except WireError as error:
        assert str(error)


def test_decoding_allocates_nothing_in_proportion_to_a_stated_length() -> None:
    unit = bytearray(1 << 20)
    view = memoryview(unit)
    wire.put_data_header(view, 24, transfer=1, offset=0, length=len(unit) - 56)
    wire.put_unit_header(view, len(unit))
    claimed = struct.pack(">BBHIQQI", 6, 0, 0, 0, 0, 0, 0xFFFF_FFFF)
    lying = build_unit(claimed + crc32c(claimed).to_bytes(4, "big"))
    tracemalloc.start()
    try:
        (record,) = wire.parse_records(view)
        with pytest.raises(WireError, match="a record of 4294967327 octets in a unit with 32 left"):
            list(wire.parse_records(lying))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(record.body) == len(unit) - 56
    assert peak < 65536  # the unit has 1 MiB, and the lying record states 4 GiB
