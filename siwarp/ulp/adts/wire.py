# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The wire format of ADTS: units, records and messages (spec/adts.md). No I/O.

A *unit* is what one Send carries on RC and RD, and a block of a TCP stream: a unit header, and
records one behind the other, without padding. A unit without records only announces credits. A
*record* is a record header and a body. A record is either DATA, whose body is octets of a file, or
a control record, whose body is a sequence of fields: the classes derived from ``Message``.

Encoding writes into memory of the caller, who fills a unit from ``UNIT_HEADER_SIZE`` on::

    at = UNIT_HEADER_SIZE
    at = Open(path=b"a", size=3, mtime_ns=0, mode=0o644).put(view, at, transfer=1)
    view[at + RECORD_HEADER_SIZE : at + RECORD_HEADER_SIZE + 3] = b"abc"   # or preadv
    at = put_data(view, at, transfer=1, offset=0, length=3)
    at = End(size=3, digest=digest).put(view, at, transfer=1)
    put_unit_header(view, at, granted, returned)                           # the channel does this

Decoding accepts any octets: each function returns what is documented or raises ``WireError``, reads
nothing beyond the memory that it was given, and allocates no memory in proportion to a length
before it has checked that length. The bodies of records are views of the unit, not copies.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from crc32c import crc32c

__all__ = [
    "DEFAULT_PORT",
    "HANDSHAKE_UNIT_SIZE",
    "MAGIC",
    "MAX_BODY",
    "MAX_PATH",
    "MAX_TEXT",
    "MAX_UNIT_SIZE",
    "MIN_UNIT_SIZE",
    "NONCE_SIZE",
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
    "data_unit_header",
    "parse_message",
    "parse_unit_header",
    "put_data",
    "put_record",
    "put_unit_header",
    "records",
]

MAGIC = b"ADTS"
#: The version of ADTS that this module implements. HELLO is the same in all versions.
VERSION = 1
#: TCP port of the rendezvous if none is given.
DEFAULT_PORT = 18517

#: Octets of magic, version, flags, reserved, length, granted, returned, CRC.
_UNIT_HEADER = struct.Struct(">4sBBHIIII")
#: Octets of type, flags, reserved, transfer, offset, aux, length, CRC.
_RECORD_HEADER = struct.Struct(">BBHIQQII")
_FIELD_HEADER = struct.Struct(">HH")
#: The octets of a header before its CRC, which is the last field.
_UNIT_HEAD = struct.Struct(">4sBBHIII")
_RECORD_HEAD = struct.Struct(">BBHIQQI")
UNIT_HEADER_SIZE = _UNIT_HEADER.size
RECORD_HEADER_SIZE = _RECORD_HEADER.size
#: The CRC covers the header up to here, and the body of a control record.
_UNIT_HEAD_SIZE = _UNIT_HEAD.size
_RECORD_HEAD_SIZE = _RECORD_HEAD.size

#: Unit sizes, in octets, that two ends may agree on. 2 KiB holds each record of the handshake, and
#: is the smallest unit that the study of unit sizes measures; 4 MiB is the largest.
MIN_UNIT_SIZE, MAX_UNIT_SIZE = 2 << 10, 4 << 20
#: Largest unit before the peer has proved that it knows the key: a stranger cannot make this end
#: reserve more memory than that.
HANDSHAKE_UNIT_SIZE = MIN_UNIT_SIZE
#: Linux's PATH_MAX: no longer path can be opened.
MAX_PATH = 4096
#: Largest text of an error, in octets of UTF-8: some lines of a terminal.
MAX_TEXT = 1024
#: Largest body of a control record: a path and a target of a symbolic link, with the other fields.
MAX_BODY = 2 * MAX_PATH + 256
NONCE_SIZE = 16
TOKEN_SIZE = 16
MAC_SIZE = 32
#: Digests are CRC32C (4 octets) or SHA-256 (32).
_MAX_DIGEST = 32
#: Most channels that a HELLO lists: more than there are kinds, so that kinds can be added.
_MAX_CHANNELS = 16
_U8, _U16, _U32, _U64 = 0xFF, 0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


class WireError(Exception):
    """Octets that are no valid unit, record or message, or a value that no message can carry.

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


#: Flag of a record that a receiver ignores if it does not know the type.
OPTIONAL = 0x80


class ChannelKind(IntEnum):
    """The transports of a channel. UD has a number, but no channel yet."""

    TCP = 1
    RC = 2
    RD = 3
    UD = 4


class FileKind(IntEnum):
    """What an OPEN or ENTRY describes."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


class DigestKind(IntEnum):
    """The digest of a file's octets."""

    CRC32C = 1
    SHA256 = 2


class Option(IntFlag):
    """Options of GET, LIST, DELETE and OPEN; a set bit that has no name here is an error."""

    #: GET, LIST, DELETE: the directory with all that is below it.
    RECURSIVE = 1
    #: GET, OPEN: skip a file whose size and modification time the receiver has already.
    UPDATE = 2
    #: GET, OPEN: continue a transfer that was cut.
    RESUME = 4
    #: OPEN: DATA follows at once, without an ACCEPT.
    AT_ONCE = 8


class ErrorCode(IntEnum):
    """What an ERROR reports. The codes from 32 on concern one request or transfer."""

    PROTOCOL = 1
    VERSION = 2
    REFUSED = 3
    BUSY = 4
    TIMEOUT = 5
    SHUTDOWN = 6
    CREDITS = 7
    CHANNEL = 8
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
    """Write a control record at position `at` of `into`; return the position behind it.

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


def put_data(into: memoryview, at: int, *, transfer: int, offset: int, length: int) -> int:
    """Write the header of a DATA record at `at`, whose payload is in place at ``at +
    RECORD_HEADER_SIZE``; return the position behind the payload.

    Raises:
        WireError: `into` has no room for the record; nothing was written.

    """
    raise NotImplementedError


def data_unit_header(*, transfer: int, offset: int, length: int) -> bytes:
    """Return the headers of a unit that consists of one DATA record, with credit counts of 0."""
    raise NotImplementedError


def records(unit: memoryview) -> Iterator[Record]:
    """Yield the records of a unit, each after it was checked.

    Records of unknown types that are marked as optional are left out. A body is a view of `unit`,
    valid as long as the unit's memory is.

    Raises:
        WireError: the unit is invalid from the next record on, or its header is, or `unit` is not
            exactly as long as its header says. Earlier records were yielded.

    """
    raise NotImplementedError
    yield


@dataclass(frozen=True)
class Message:
    """A control record as an object. The derived classes have the fields of their types."""

    TYPE: ClassVar[Type]

    def put(self, into: memoryview, at: int, transfer: int = 0) -> int:
        """Write the record at position `at` of `into`; return the position behind it.

        Raises:
            WireError: `into` has no room for the record, or a field has a value that the format
                cannot express; nothing was written.

        """
        raise NotImplementedError

    def octets(self) -> int:
        """Return the length of the record, header included."""
        raise NotImplementedError

    @classmethod
    def unpack(cls: type[M], record: Record) -> M:
        """Return the message in a record of this type.

        Raises:
            WireError: the body is invalid.

        """
        raise NotImplementedError


M = TypeVar("M", bound=Message)


def parse_message(record: Record) -> Message:
    """Return the message in a control record, an instance of the class for its type.

    Raises:
        WireError: the body is invalid, or the record is DATA, which is no message.

    """
    raise NotImplementedError


@dataclass(frozen=True)
class Hello(Message):
    """HELLO, the first record of each end on the rendezvous."""

    TYPE = Type.HELLO
    #: Range of the versions of ADTS that the sender has.
    min_version: int
    max_version: int
    #: Random octets, new for each session.
    nonce: bytes
    #: Kinds of channels that the sender offers, preferred ones first.
    channels: tuple[ChannelKind, ...]
    #: Largest unit that the sender receives, in octets.
    unit_size: int
    #: Credits that the initiator grants when a channel opens. The acceptor sends 0: it grants
    #: nothing to a peer that has not proved that it knows the key (UseChannel.window).
    window: int
    #: Most transfers that are open at a time, and seconds without a record after which an idle
    #: session ends; the smaller value of the two ends counts.
    files: int
    idle: int


@dataclass(frozen=True)
class Auth(Message):
    """AUTH: the proof that the sender knows the key (auth.py)."""

    TYPE = Type.AUTH
    mac: bytes


@dataclass(frozen=True)
class UseChannel(Message):
    """CHANNEL: how the initiator opens the channel of the session.

    The acceptor sends it behind its AUTH for the first kind of the initiator's list that the
    acceptor has, too. If that channel does not open, the initiator asks for the next: with a
    CHANNEL that has only the kind, which the acceptor answers with a complete one.
    """

    TYPE = Type.CHANNEL
    kind: ChannelKind
    #: One-time token; empty for the kind of the rendezvous, where the session stays.
    token: bytes = b""
    #: RC: TCP port of the listener. RD: UDP port, which is the QPN, and Q_Key.
    port: int = 0
    qkey: int = 0
    #: Largest unit of the session in both directions, in octets.
    unit_size: int = 0
    #: Credits that the acceptor grants when the channel opens (TCP: 0).
    window: int = 0


@dataclass(frozen=True)
class Join(Message):
    """JOIN, the first record of the initiator on an RD channel."""

    TYPE = Type.JOIN
    token: bytes


@dataclass(frozen=True)
class Reclaim(Message):
    """RECLAIM: give back unused credits, except for `keep` of them."""

    TYPE = Type.RECLAIM
    keep: int  # aux


@dataclass(frozen=True)
class Error(Message):
    """ERROR: the end of a transfer or request, or with transfer 0 of the session."""

    TYPE = Type.ERROR
    code: ErrorCode
    text: str = ""


@dataclass(frozen=True)
class Bye(Message):
    """BYE: the sender has nothing left to do and closes the session."""

    TYPE = Type.BYE


@dataclass(frozen=True)
class Pause(Message):
    """PAUSE: send no DATA of the transfer (0: of any) until RESUME."""

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
class Get(Message):
    """GET: a request to send files. Its id (`transfer`) is in the OPENs that answer it."""

    TYPE = Type.GET
    path: bytes
    options: Option = Option(0)
    digest: DigestKind = DigestKind.CRC32C


@dataclass(frozen=True)
class List(Message):
    """LIST: a request for the ENTRY of a path, and of what is in a directory."""

    TYPE = Type.LIST
    path: bytes
    options: Option = Option(0)


@dataclass(frozen=True)
class Entry(Message):
    """ENTRY: a file, a directory or a symbolic link, in answer to LIST."""

    TYPE = Type.ENTRY
    path: bytes
    kind: FileKind
    size: int
    mtime_ns: int
    mode: int
    target: bytes = b""


@dataclass(frozen=True)
class Delete(Message):
    """DELETE: a request to remove a file, or with RECURSIVE a directory."""

    TYPE = Type.DELETE
    path: bytes
    options: Option = Option(0)


@dataclass(frozen=True)
class RequestDone(Message):
    """REQUEST_DONE: the end of the answer to GET, LIST or DELETE, with counts."""

    TYPE = Type.REQUEST_DONE
    files: int
    failed: int = 0


@dataclass(frozen=True)
class Open(Message):
    """OPEN: a file that its sender is going to send; it chooses the id (`transfer`)."""

    TYPE = Type.OPEN
    path: bytes
    size: int
    mtime_ns: int
    mode: int
    kind: FileKind = FileKind.FILE
    target: bytes = b""
    options: Option = Option(0)
    digest: DigestKind = DigestKind.CRC32C
    #: The id of the GET that this answers; 0 for a put.
    request: int = 0


@dataclass(frozen=True)
class Accept(Message):
    """ACCEPT: send the file from `offset` on; `digest` is of the octets before `offset`."""

    TYPE = Type.ACCEPT
    offset: int = 0  # in the record header
    digest: bytes = b""


@dataclass(frozen=True)
class Skip(Message):
    """SKIP: the receiver has this version of the file already."""

    TYPE = Type.SKIP


@dataclass(frozen=True)
class Hole(Message):
    """HOLE: `length` octets of zeros at `offset`."""

    TYPE = Type.HOLE
    offset: int  # in the record header
    length: int  # aux


@dataclass(frozen=True)
class End(Message):
    """END: the file is complete, with its size and the digest of all its octets."""

    TYPE = Type.END
    size: int  # aux
    digest: bytes


@dataclass(frozen=True)
class Done(Message):
    """DONE: the receiver has renamed the file to its final name."""

    TYPE = Type.DONE
