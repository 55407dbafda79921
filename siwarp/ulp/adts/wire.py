# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The wire format of ADTS: units, records and messages (spec/adts.md). No I/O.

A *unit* is what one Send carries on RC, RD and UD, and a block of a TCP stream: a unit header, and
records one behind the other, without padding. A unit without records only announces credits. A
*record* is a record header and a body. A record is either DATA, whose body is octets of a file, or
a control record, whose body is a sequence of fields: the classes derived from ``Message``.

Encoding writes into memory of the caller, who fills a unit from ``UNIT_HEADER_SIZE`` on::

    at = UNIT_HEADER_SIZE
    at = Open(path=b"a", size=3, mtime_ns=0, mode=0o644).put(view, at, transfer=1)
    view[at + RECORD_HEADER_SIZE : at + RECORD_HEADER_SIZE + 3] = b"abc"   # or preadv
    at = put_data_header(view, at, transfer=1, offset=0, length=3)
    at = End(size=3, digest=digest).put(view, at, transfer=1)
    put_unit_header(view, at, granted, returned)                           # the channel does this

Decoding accepts any octets: each function returns what is documented or raises ``WireError``, reads
nothing beyond the memory that it was given, and allocates no memory in proportion to a length
before it has checked that length. The bodies of records are views of the unit, not copies.
"""

from __future__ import annotations

import dataclasses
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_type_hints

from crc32c import crc32c

from siwarp.ulp.adts.credit import MAX_WINDOW

__all__ = [
    "DEFAULT_PORT",
    "HANDSHAKE_UNIT_SIZE",
    "MAC_SIZE",
    "MAGIC",
    "MAX_BODY",
    "MAX_OFFSET",
    "MAX_PATH",
    "MAX_TEXT",
    "MAX_UNIT_SIZE",
    "MIN_UNIT_SIZE",
    "NONCE_SIZE",
    "OPTIONAL",
    "RECORD_HEADER_SIZE",
    "TOKEN_SIZE",
    "UNIT_HEADER_SIZE",
    "VERSION",
    "Accept",
    "Auth",
    "Bye",
    "Cancel",
    "ChannelKind",
    "Delete",
    "DigestKind",
    "Done",
    "End",
    "Entry",
    "Error",
    "ErrorCode",
    "FileKind",
    "Get",
    "Hello",
    "Hole",
    "Join",
    "List",
    "Message",
    "Open",
    "Option",
    "Pause",
    "Reclaim",
    "Record",
    "RequestDone",
    "Resume",
    "Skip",
    "Type",
    "UnitHeader",
    "UseChannel",
    "WireError",
    "parse_message",
    "parse_records",
    "parse_unit_header",
    "put_data_header",
    "put_record",
    "put_unit_header",
]

MAGIC = b"ADTS"
#: The version of ADTS that this module implements. HELLO is the same in all versions.
VERSION = 1
#: TCP port of the rendezvous if none is given.
DEFAULT_PORT = 18517

#: The unit header: magic, version, flags, reserved, length, granted, returned, CRC.
_UNIT_HEADER = struct.Struct(">4sBBHIIII")
#: The record header: type, flags, reserved, transfer, offset, aux, length, CRC.
_RECORD_HEADER = struct.Struct(">BBHIQQII")
_FIELD_HEADER = struct.Struct(">HH")
#: The octets of a header before its CRC, which is the last field.
_UNIT_HEAD = struct.Struct(">4sBBHIII")
_RECORD_HEAD = struct.Struct(">BBHIQQI")
UNIT_HEADER_SIZE = _UNIT_HEADER.size
RECORD_HEADER_SIZE = _RECORD_HEADER.size
#: Number of octets of the record header that the CRC covers; it also covers the body of a control
#: record.
_UNIT_HEAD_SIZE = _UNIT_HEAD.size
_RECORD_HEAD_SIZE = _RECORD_HEAD.size

#: Unit sizes, in octets, that two ends may agree on. 2 KiB holds each record of the handshake, and
#: is the smallest unit that the study of unit sizes measures; 4 MiB is the largest.
MIN_UNIT_SIZE, MAX_UNIT_SIZE = 2 << 10, 4 << 20
#: Minimum size of a unit of any channel: every IPv6 path carries a datagram with such a unit.
MIN_DATAGRAM_SIZE = 1 << 10
#: Largest unit before the peer has proved that it knows the key: a stranger cannot make this end
#: reserve more memory than that.
HANDSHAKE_UNIT_SIZE = MIN_UNIT_SIZE
#: Largest size of a file, as in POSIX (off_t): a sum of a valid offset and length never overflows.
MAX_OFFSET = (1 << 63) - 1
#: Linux's PATH_MAX: no longer path can be opened.
MAX_PATH = 4096
#: Largest text of an error, in octets of UTF-8: a few lines on a terminal.
MAX_TEXT = 1024
#: Largest body of a control record: a path and a target of a symbolic link, with the other fields.
MAX_BODY = 2 * MAX_PATH + 256
NONCE_SIZE = 16
TOKEN_SIZE = 16
MAC_SIZE = 32
#: Sizes in octets of the digests CRC32C and SHA-256.
_DIGEST_SIZES = (4, 32)
#: Maximum number of kinds of channels that a HELLO lists; more than exist, so kinds can be added.
_MAX_CHANNELS = 16
_U8, _U16, _U32, _U64 = ((1 << bits) - 1 for bits in (8, 16, 32, 64))


class WireError(Exception):
    """Raised for octets that are not a valid unit, record or message, or for a value that no
    message can carry.

    The text says what is wrong, and gives the value and the limit.
    """


class Type(IntEnum):
    """The types of records."""

    HELLO = 1
    AUTH = 2
    CHANNEL = 3
    JOIN = 4
    RECLAIM = 5
    ERROR = 6
    BYE = 7
    PAUSE = 8
    RESUME = 9
    CANCEL = 10
    GET = 16
    LIST = 17
    ENTRY = 18
    DELETE = 19
    REQUEST_DONE = 20
    OPEN = 32
    ACCEPT = 33
    SKIP = 34
    DATA = 35
    HOLE = 36
    END = 37
    DONE = 38


_TYPES = {int(kind): kind for kind in Type}

#: Flag of a record that a receiver ignores if it does not know the type.
OPTIONAL = 0x80


class ChannelKind(IntEnum):
    """The transports of a channel."""

    TCP = 1
    RC = 2
    RD = 3
    UD = 4


_CHANNELS = frozenset(ChannelKind)


class FileKind(IntEnum):
    """The kind of file that an OPEN or ENTRY describes."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class DigestKind(IntEnum):
    """The digest of a file's octets."""

    CRC32C = 1
    SHA256 = 2


class Option(IntFlag):
    """Options of GET, LIST, DELETE and OPEN; a set bit that has no name here is an error."""

    NONE = 0
    #: GET, LIST, DELETE: the directory with all that is below it.
    RECURSIVE = 1
    #: GET, OPEN: skip a file whose size and modification time the receiver has already.
    UPDATE = 2
    #: GET, OPEN: continue a transfer that was interrupted.
    RESUME = 4
    #: OPEN: DATA follows at once, without an ACCEPT.
    AT_ONCE = 8
    #: GET, OPEN: DONE says that the file is in stable storage.
    SYNC = 16


_ALL_OPTIONS = sum(Option)


class ErrorCode(IntEnum):
    """What an ERROR reports. The codes from 32 on concern one request or transfer."""

    PROTOCOL = 1
    VERSION = 2
    REFUSED = 3
    BUSY = 4
    TIMEOUT = 5
    SHUTDOWN = 6
    CHANNEL = 7
    NOT_FOUND = 32
    PERMISSION = 33
    READ_ONLY = 34
    EXISTS = 35
    NAME = 36
    KIND = 37
    NO_SPACE = 38
    QUOTA = 39
    IO = 40
    CHANGED = 41
    DIGEST = 42
    UNSUPPORTED = 43
    CANCELLED = 44


class UnitHeader(NamedTuple):
    """A unit's header: its length with the header, in octets, and two credit counts (credit.py)."""

    length: int
    granted: int
    returned: int


class Record(NamedTuple):
    """A record. `transfer` is 0 for the session; `body` is a view of the unit."""

    type: Type
    flags: int
    transfer: int
    offset: int
    aux: int
    body: memoryview


def put_unit_header(into: memoryview, length: int, granted: int = 0, returned: int = 0) -> None:
    """Write the header of a unit of `length` octets, header included, at the start of `into`.

    `granted` and `returned` are the credit counts modulo 2**32; they are 0 on TCP.
    """
    head = _UNIT_HEAD.pack(MAGIC, VERSION, 0, 0, length, granted, returned)
    into[:UNIT_HEADER_SIZE] = head + crc32c(head).to_bytes(4, "big")


def parse_unit_header(octets: memoryview, limit: int = MAX_UNIT_SIZE) -> UnitHeader:
    """Return the header at the start of `octets`; `limit` is the largest permitted unit.

    Raises:
        WireError: fewer octets than a header, or a wrong magic, CRC, version or length.

    """
    if len(octets) < UNIT_HEADER_SIZE:
        raise WireError(f"{len(octets)} octets are no unit: its header has {UNIT_HEADER_SIZE}")
    magic, version, _, _, length, granted, returned, crc = _UNIT_HEADER.unpack_from(octets)
    if magic != MAGIC:
        raise WireError(f"a unit begins with {magic.hex()}, not with {MAGIC.hex()} (ADTS)")
    computed = crc32c(octets[:_UNIT_HEAD_SIZE])
    if crc != computed:
        raise WireError(f"the CRC of a unit header is {crc:08x}, computed {computed:08x}")
    if version != VERSION:
        raise WireError(f"a unit has version {version}: this end has version {VERSION}")
    if not UNIT_HEADER_SIZE <= length <= limit:
        raise WireError(f"a unit of {length} octets: {UNIT_HEADER_SIZE} to {limit} are permitted")
    return UnitHeader(length, granted, returned)


def put_record(
    into: memoryview,
    at: int,
    kind: Type,
    body: bytes = b"",
    *,
    transfer: int = 0,
    offset: int = 0,
    aux: int = 0,
    flags: int = 0,
) -> int:
    """Write a control record at position `at` of `into`; return the position after it.

    Raises:
        WireError: `into` has no room for the record; nothing was written.

    """
    end = at + RECORD_HEADER_SIZE + len(body)
    if end > len(into):
        room = len(into) - at
        raise WireError(f"a {kind.name} of {end - at} octets does not fit: {room} octets are left")
    head = _RECORD_HEAD.pack(kind, flags, 0, transfer, offset, aux, len(body))
    crc = crc32c(body, crc32c(head))
    into[at:end] = b"%b%b%b" % (head, crc.to_bytes(4, "big"), body)
    return end


def put_data_header(into: memoryview, at: int, *, transfer: int, offset: int, length: int) -> int:
    """Write the header of a DATA record at `at`; return the position after the payload.

    The payload is in place at ``at + RECORD_HEADER_SIZE``, or written there later.

    Raises:
        WireError: `into` has no room for the record, or the record reaches beyond ``MAX_OFFSET``;
            nothing was written.

    """
    end = at + RECORD_HEADER_SIZE + length
    if end > len(into):
        room = len(into) - at
        raise WireError(f"a DATA of {end - at} octets does not fit: {room} octets are left")
    _check_file_range("DATA", offset, length)
    head = _RECORD_HEAD.pack(Type.DATA, 0, 0, transfer, offset, 0, length)
    into[at : at + RECORD_HEADER_SIZE] = head + crc32c(head).to_bytes(4, "big")
    return end


def _check_file_range(name: str, offset: int, length: int) -> None:
    if offset + length > MAX_OFFSET:
        raise WireError(
            f"a {name} of {length} octets at offset {offset}: a file has at most {MAX_OFFSET}"
        )


def parse_records(unit: memoryview) -> Iterator[Record]:
    """Yield the records of a unit; each record is checked before it is yielded.

    Records of unknown types that are marked as optional are left out. A body is a view of `unit`,
    valid as long as the unit's memory is.

    Raises:
        WireError: the unit's header is invalid, `unit` is not exactly as long as it says, or the
            next record is invalid. Earlier records were yielded.

    """
    size = len(unit)
    length = parse_unit_header(unit).length
    if length != size:
        raise WireError(f"a unit of {size} octets has the length {length} in its header")
    at = UNIT_HEADER_SIZE
    while at < size:
        body = at + RECORD_HEADER_SIZE
        if body > size:
            raise WireError(f"a unit ends {size - at} octets after the start of a record header")
        code, flags, _, transfer, offset, aux, length, crc = _RECORD_HEADER.unpack_from(unit, at)
        end = body + length
        if end > size:
            raise WireError(f"a record of {end - at} octets in a unit with {size - at} left")
        kind = _TYPES.get(code)
        computed = crc32c(unit[at : at + _RECORD_HEAD_SIZE])
        if kind is Type.DATA:
            _check_file_range("DATA", offset, length)
        elif length > MAX_BODY:
            raise WireError(f"a record of type {code} has {length} octets: the limit is {MAX_BODY}")
        else:
            computed = crc32c(unit[body:end], computed)
        if crc != computed:
            raise WireError(f"the CRC of a record is {crc:08x}, computed {computed:08x}")
        if kind is not None:
            yield Record(kind, flags, transfer, offset, aux, unit[body:end])
        elif not flags & OPTIONAL:
            raise WireError(f"a record of unknown type {code}, which is not marked as optional")
        at = end


class _Kind(ABC):
    """The encoding of a type of field. Errors name the value and the limit, but not the field."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the octets of `value`; raise ``WireError`` if it has none."""

    @abstractmethod
    def decode(self, octets: memoryview) -> Any:
        """Return the value; raise ``WireError`` if the octets are invalid."""


@dataclass(frozen=True)
class _Int(_Kind):
    """An integer of `size` octets."""

    size: int
    least: int
    most: int

    def encode(self, value: int) -> bytes:
        return self._check_bounds(value).to_bytes(self.size, "big", signed=self.least < 0)

    def decode(self, octets: memoryview) -> int:
        _check_field_size(octets, (self.size,))
        return self._check_bounds(int.from_bytes(octets, "big", signed=self.least < 0))

    def _check_bounds(self, value: int) -> int:
        if not self.least <= value <= self.most:
            raise WireError(f"{value} is not in the range {self.least} to {self.most}")
        return value


@dataclass(frozen=True)
class _Enum(_Kind):
    """A member of an enumeration, in `size` octets."""

    members: type[IntEnum]
    size: int = 1

    def encode(self, value: IntEnum) -> bytes:
        return value.to_bytes(self.size, "big")

    def decode(self, octets: memoryview) -> IntEnum:
        _check_field_size(octets, (self.size,))
        value = int.from_bytes(octets, "big")
        try:
            return self.members(value)
        except ValueError:
            known = ", ".join(f"{m.value} ({m.name})" for m in self.members)
            raise WireError(f"{value} is unknown; known are {known}") from None


class _Options(_Kind):
    """A set of ``Option``, in 4 octets."""

    def encode(self, value: Option) -> bytes:
        return value.to_bytes(4, "big")

    def decode(self, octets: memoryview) -> Option:
        _check_field_size(octets, (4,))
        value = int.from_bytes(octets, "big")
        if unknown := value & ~_ALL_OPTIONS:
            raise WireError(f"the options {unknown:#x} are unknown")
        return Option(value)


class _Channels(_Kind):
    """Kinds of channels, one octet each. A receiver leaves out those that it does not know."""

    def encode(self, value: tuple[ChannelKind, ...]) -> bytes:
        octets = bytes(value)
        _check_field_size(octets, range(1, _MAX_CHANNELS + 1))
        return octets

    def decode(self, octets: memoryview) -> tuple[ChannelKind, ...]:
        _check_field_size(octets, range(1, _MAX_CHANNELS + 1))
        return tuple(ChannelKind(octet) for octet in octets if octet in _CHANNELS)


@dataclass(frozen=True)
class _Octets(_Kind):
    """A field of octets, whose number is one of `sizes`."""

    sizes: Sequence[int]

    def encode(self, value: bytes) -> bytes:
        _check_field_size(value, self.sizes)
        return value

    def decode(self, octets: memoryview) -> bytes:
        _check_field_size(octets, self.sizes)
        return bytes(octets)


class _Text(_Kind):
    """UTF-8 for a person, without control characters, which might be commands to a terminal."""

    def encode(self, value: str) -> bytes:
        octets = "".join(c if c.isprintable() else "\ufffd" for c in value).encode()
        return octets[:MAX_TEXT].decode(errors="ignore").encode()

    def decode(self, octets: memoryview) -> str:
        _check_field_size(octets, range(MAX_TEXT + 1))
        try:
            text = str(octets, "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"octet {error.start} of the text is not UTF-8") from None
        if not text.isprintable():
            raise WireError("the text has a control character")
        return text


def _check_field_size(octets: bytes | memoryview, sizes: Sequence[int]) -> None:
    if len(octets) not in sizes:
        ranges = f"{sizes[0]} to {sizes[-1]}", " or ".join(map(str, sizes))
        raise WireError(f"{len(octets)} octets instead of {ranges[not isinstance(sizes, range)]}")


_PATH = _Octets(range(MAX_PATH + 1))
_TOKEN = _Octets((TOKEN_SIZE,))
_DIGEST = _Octets(_DIGEST_SIZES)
_FILE_SIZE = _Int(8, 0, MAX_OFFSET)
_TIME = _Int(8, -(1 << 63), MAX_OFFSET)
_MODE = _Int(2, 0, 0o7777)
_COUNT = _Int(8, 0, _U64)


@dataclass(frozen=True)
class _Field:
    """Marks an attribute of a message as the field of the body with this number."""

    number: int
    kind: _Kind


@dataclass(frozen=True)
class _InHeader:
    """Marks an attribute of a message as a field of 8 octets in the record header."""

    name: str
    most: int


_OFFSET = _InHeader("offset", MAX_OFFSET)


class _Layout(NamedTuple):
    """The attributes of a kind of message: those in the body with defaults, those in the header."""

    body: tuple[tuple[str, _Field, Any], ...]
    header: tuple[tuple[str, _InHeader], ...]


def _field_layout_of_message(message: type[Message]) -> _Layout:
    hints = get_type_hints(message, include_extras=True)
    body, header = [], []
    for attribute in dataclasses.fields(message):
        place = hints[attribute.name].__metadata__[0]
        if isinstance(place, _Field):
            body.append((attribute.name, place, attribute.default))
        else:
            header.append((attribute.name, place))
    return _Layout(tuple(sorted(body, key=lambda row: row[1].number)), tuple(header))


@dataclass(frozen=True)
class Message:
    """A control record as an object; each derived class represents one type of record.

    An attribute that has its default value is left out of the body; a receiver ignores fields that
    it does not know.
    """

    TYPE: ClassVar[Type]
    _LAYOUT: ClassVar[_Layout]  # set at the end of the module, after the classes of all messages

    def put(self, into: memoryview, at: int, transfer: int = 0) -> int:
        """Write the record at position `at` of `into`; return the position after it.

        Raises:
            WireError: `into` has no room for the record, or an attribute has a value that the
                format cannot express; nothing was written.

        """
        header = {"offset": 0, "aux": 0}
        for name, place in self._LAYOUT.header:
            header[place.name] = value = getattr(self, name)
            if not 0 <= value <= place.most:
                raise WireError(
                    f"{self.TYPE.name} {name}: {value} is not in the range 0 to {place.most}"
                )
        return put_record(into, at, self.TYPE, self.body(), transfer=transfer, **header)

    def body(self) -> bytes:
        """Return the encoded fields of the record's body.

        Raises:
            WireError: as for ``put``.

        """
        octets = bytearray()
        for name, field, default in self._LAYOUT.body:
            value = getattr(self, name)
            if value == default:
                continue
            try:
                encoded = field.kind.encode(value)
            except WireError as error:
                raise WireError(f"{self.TYPE.name} {name}: {error}") from None
            octets += _FIELD_HEADER.pack(field.number, len(encoded)) + encoded
        return bytes(octets)

    def record_length(self) -> int:
        """Return the length of the record in octets, header included."""
        return RECORD_HEADER_SIZE + len(self.body())

    @classmethod
    def unpack(cls: type[M], record: Record) -> M:
        """Return the message in a record.

        Raises:
            WireError: the record has another type, or is invalid.

        """
        if record.type is not cls.TYPE:
            raise WireError(f"{record.type.name} instead of {cls.TYPE.name}")
        layout = cls._LAYOUT
        values: dict[str, Any] = {}
        for name, place in layout.header:
            value = values[name] = getattr(record, place.name)
            if value > place.most:
                raise WireError(
                    f"{cls.TYPE.name} {name}: {value} is not in the range 0 to {place.most}"
                )
        fields = _parse_fields(record.body, cls.TYPE)
        for name, field, default in layout.body:
            octets = fields.get(field.number)
            if octets is None:
                if default is dataclasses.MISSING:
                    raise WireError(f"{cls.TYPE.name} has no {name} (field {field.number})")
                continue
            try:
                values[name] = field.kind.decode(octets)
            except WireError as error:
                raise WireError(f"{cls.TYPE.name} {name}: {error}") from None
        return cls(**values)


M = TypeVar("M", bound=Message)


def _parse_fields(body: memoryview, kind: Type) -> dict[int, memoryview]:
    """Return the fields of a body by number, which must increase from field to field."""
    fields: dict[int, memoryview] = {}
    at = last = 0
    while at < len(body):
        value = at + _FIELD_HEADER.size
        if value > len(body):
            raise WireError(f"{kind.name} ends {len(body) - at} octets after the start of a field")
        number, length = _FIELD_HEADER.unpack_from(body, at)
        at = value + length
        if at > len(body):
            left = len(body) - value
            raise WireError(f"{kind.name} field {number} has {length} octets, {left} are left")
        if number <= last:
            raise WireError(f"{kind.name} field {number} follows field {last}: numbers increase")
        last = number
        fields[number] = body[value:at]
    return fields


def parse_message(record: Record) -> Message:
    """Return the message in a control record, an instance of the class for its type.

    Raises:
        WireError: the record is invalid, or it is DATA, which is no message.

    """
    message = _MESSAGES.get(record.type)
    if message is None:
        raise WireError(f"a {record.type.name} record where a message is expected")
    return message.unpack(record)


@dataclass(frozen=True)
class Hello(Message):
    """HELLO, the first record of each end on the rendezvous."""

    TYPE = Type.HELLO
    #: Lowest and highest version of ADTS that the sender of the HELLO supports.
    min_version: Annotated[int, _Field(1, _Int(1, 1, _U8))]
    max_version: Annotated[int, _Field(2, _Int(1, 1, _U8))]
    #: Random octets, new for each session.
    nonce: Annotated[bytes, _Field(3, _Octets((NONCE_SIZE,)))]
    #: Kinds of channels that the sender of the HELLO offers, preferred ones first.
    channels: Annotated[tuple[ChannelKind, ...], _Field(4, _Channels())]
    #: Largest unit, in octets, that the sender of the HELLO can receive.
    unit_size: Annotated[int, _Field(5, _Int(4, MIN_UNIT_SIZE, MAX_UNIT_SIZE))]
    #: Credits that the initiator grants when a channel opens. The acceptor sends 0: it grants
    #: nothing to a peer that has not proved that it knows the key (UseChannel.window).
    window: Annotated[int, _Field(6, _Int(2, 0, MAX_WINDOW))]
    #: Maximum number of transfers that are open at a time, and seconds without a record after
    #: which an idle session ends. The smaller of the two ends' values applies.
    files: Annotated[int, _Field(7, _Int(2, 1, _U16))]
    idle: Annotated[int, _Field(8, _Int(2, 1, _U16))]


@dataclass(frozen=True)
class Auth(Message):
    """AUTH: the proof that the sender knows the key (auth.py)."""

    TYPE = Type.AUTH
    mac: Annotated[bytes, _Field(1, _Octets((MAC_SIZE,)))]


@dataclass(frozen=True)
class UseChannel(Message):
    """CHANNEL: how the initiator opens the channel of the session.

    The acceptor sends it after its AUTH, for the first kind of the initiator's list that the
    acceptor offers, too. If that channel does not open, the initiator asks for the next kind with a
    CHANNEL that has only the kind, and the acceptor answers with a complete one.
    """

    TYPE = Type.CHANNEL
    kind: Annotated[ChannelKind, _Field(1, _Enum(ChannelKind))]
    #: One-time token; empty for the kind of the rendezvous, on which the session goes on.
    token: Annotated[bytes, _Field(2, _TOKEN)] = b""
    #: RC: TCP port of the listener. RD, UD: UDP port, and Q_Key.
    port: Annotated[int, _Field(3, _Int(2, 0, _U16))] = 0
    qkey: Annotated[int, _Field(4, _Int(4, 0, _U32))] = 0
    #: Largest unit of the session in both directions, in octets.
    unit_size: Annotated[int, _Field(5, _Int(4, MIN_DATAGRAM_SIZE, MAX_UNIT_SIZE))] = 0
    #: Credits that the acceptor grants when the channel opens; UD: units that each end stores in
    #: each direction, at most; 0 on TCP.
    window: Annotated[int, _Field(6, _Int(2, 0, MAX_WINDOW))] = 0


@dataclass(frozen=True)
class Join(Message):
    """JOIN, the first record of the initiator on an RD channel."""

    TYPE = Type.JOIN
    token: Annotated[bytes, _Field(1, _TOKEN)]


@dataclass(frozen=True)
class Reclaim(Message):
    """RECLAIM: give back all unused credits but `keep`. It is the only record of its unit."""

    TYPE = Type.RECLAIM
    keep: Annotated[int, _InHeader("aux", MAX_WINDOW)]


@dataclass(frozen=True)
class Error(Message):
    """ERROR: the end of a transfer or request, or with transfer 0 of the session.

    Characters of the text that cannot be printed are replaced, and a text that is too long is
    truncated.
    """

    TYPE = Type.ERROR
    code: Annotated[ErrorCode, _Field(1, _Enum(ErrorCode, 2))]
    text: Annotated[str, _Field(2, _Text())] = ""


@dataclass(frozen=True)
class Bye(Message):
    """BYE: the sender of this record closes the session, because nothing is left to do."""

    TYPE = Type.BYE


@dataclass(frozen=True)
class Pause(Message):
    """PAUSE: send nothing of any transfer until RESUME."""

    TYPE = Type.PAUSE


@dataclass(frozen=True)
class Resume(Message):
    """RESUME: the end of a PAUSE."""

    TYPE = Type.RESUME


@dataclass(frozen=True)
class Cancel(Message):
    """CANCEL: the sender of this record no longer wants the transfer or request."""

    TYPE = Type.CANCEL


@dataclass(frozen=True)
class _Request(Message):
    """A request about a path. An empty path is the directory that the acceptor serves."""

    path: Annotated[bytes, _Field(1, _PATH)]
    options: Annotated[Option, _Field(2, _Options())] = Option.NONE


@dataclass(frozen=True)
class Get(_Request):
    """GET: a request to send files. Its id (`transfer`) is in the OPENs that answer it."""

    TYPE = Type.GET
    digest: Annotated[DigestKind, _Field(3, _Enum(DigestKind))] = DigestKind.CRC32C


@dataclass(frozen=True)
class List(_Request):
    """LIST: a request for the ENTRY of a path, and with RECURSIVE of all that is below it."""

    TYPE = Type.LIST


@dataclass(frozen=True)
class Entry(Message):
    """ENTRY: a file, a directory or a symbolic link, in answer to LIST."""

    TYPE = Type.ENTRY
    path: Annotated[bytes, _Field(1, _PATH)]
    kind: Annotated[FileKind, _Field(2, _Enum(FileKind))]
    size: Annotated[int, _Field(3, _FILE_SIZE)]
    #: Modification time, in nanoseconds since 1970.
    mtime_ns: Annotated[int, _Field(4, _TIME)]
    #: Permission bits.
    mode: Annotated[int, _Field(5, _MODE)]
    #: Target of a symbolic link.
    target: Annotated[bytes, _Field(6, _PATH)] = b""


@dataclass(frozen=True)
class Delete(_Request):
    """DELETE: a request to remove a file, or with RECURSIVE a directory."""

    TYPE = Type.DELETE


@dataclass(frozen=True)
class RequestDone(Message):
    """REQUEST_DONE: the end of the answer to GET, LIST or DELETE.

    `files`: number of OPENs or ENTRYs sent, or of files removed; `failed`: of files that the ERRORs
    of this request were about.
    """

    TYPE = Type.REQUEST_DONE
    files: Annotated[int, _Field(1, _COUNT)]
    failed: Annotated[int, _Field(2, _COUNT)] = 0


@dataclass(frozen=True)
class Open(Message):
    """OPEN: a file that the sender is going to send; it chooses the id (`transfer`)."""

    TYPE = Type.OPEN
    path: Annotated[bytes, _Field(1, _PATH)]
    size: Annotated[int, _Field(3, _FILE_SIZE)]
    mtime_ns: Annotated[int, _Field(4, _TIME)]
    mode: Annotated[int, _Field(5, _MODE)]
    kind: Annotated[FileKind, _Field(2, _Enum(FileKind))] = FileKind.FILE
    target: Annotated[bytes, _Field(6, _PATH)] = b""
    options: Annotated[Option, _Field(7, _Options())] = Option.NONE
    digest: Annotated[DigestKind, _Field(8, _Enum(DigestKind))] = DigestKind.CRC32C
    #: The id of the GET that this answers; 0 for a put.
    request: Annotated[int, _Field(9, _Int(4, 0, _U32))] = 0


@dataclass(frozen=True)
class Accept(Message):
    """ACCEPT: send the file from `offset` on; `digest` is of the octets before `offset`."""

    TYPE = Type.ACCEPT
    offset: Annotated[int, _OFFSET] = 0
    digest: Annotated[bytes, _Field(1, _DIGEST)] = b""


@dataclass(frozen=True)
class Skip(Message):
    """SKIP: the receiver has this version of the file already."""

    TYPE = Type.SKIP


@dataclass(frozen=True)
class Hole(Message):
    """HOLE: `length` octets of zeros at `offset`."""

    TYPE = Type.HOLE
    offset: Annotated[int, _OFFSET]
    length: Annotated[int, _InHeader("aux", MAX_OFFSET)]

    def __post_init__(self) -> None:
        _check_file_range("HOLE", self.offset, self.length)


@dataclass(frozen=True)
class End(Message):
    """END: all octets of the file were sent; contains the file's size and digest."""

    TYPE = Type.END
    size: Annotated[int, _InHeader("aux", MAX_OFFSET)]
    digest: Annotated[bytes, _Field(1, _DIGEST)]


@dataclass(frozen=True)
class Done(Message):
    """DONE: the receiver reports that the file is complete and has its final name."""

    TYPE = Type.DONE


_MESSAGES: dict[Type, type[Message]] = {
    cls.TYPE: cls
    for cls in (*Message.__subclasses__(), *_Request.__subclasses__())
    if cls is not _Request
}
for _message in _MESSAGES.values():
    _message._LAYOUT = _field_layout_of_message(_message)
