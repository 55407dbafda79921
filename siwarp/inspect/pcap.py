# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Reads the frames in a capture file, pcap or pcapng, without dissecting them.

scapy's readers are not used: they truncate frames at 65,535 octets, keep one of several comments,
end silently if a file is damaged, and try all their protocols on octets that may be hostile. Here
every length is checked against the file's contents, and damage is reported.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from siwarp.inspect.limits import count_against_limits

PCAPNG = b"\x0a\x0d\x0d\x0a"
#: Magic number of a pcap file -> octet order, and units of the time stamp per second.
PCAP = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1_000_000_000),
    b"\xa1\xb2\x3c\x4d": (">", 1_000_000_000),
}
GZIP = b"\x1f\x8b"
SECTION, INTERFACE, OLD_PACKET, SIMPLE_PACKET, PACKET = 0x0A0D0D0A, 1, 2, 3, 6
BYTE_ORDER_MAGIC = 0x1A2B3C4D
OPT_END, OPT_COMMENT, OPT_RESOLUTION, OPT_OFFSET = 0, 1, 9, 14
#: Limit of a block or frame in octets. No program writes larger ones, but a file may state any
#: length.
BLOCK_MAX = 1 << 24
#: Nanoseconds per second.
SECOND = 1_000_000_000
#: The link type of a frame if the file does not state it.
NO_LINK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Frame:
    """A captured frame; `number` counts from 1, as packet tools do.

    `when`: nanoseconds since 1970, as an integer because a float is not precise enough.
    """

    number: int
    when: int
    link: int
    octets: bytes
    length: int  # length on the wire; more than len(octets) if truncated
    comment: str | None = None


@dataclass
class _Interface:
    link: int = NO_LINK
    snap: int = 0
    parts: int = 1_000_000  # time stamp units per second
    offset: int = 0  # seconds to add to time stamps


@dataclass
class CaptureFile:
    """A capture file that is read by iterating it once.

    Afterwards `damage` describes a defect of the file; None for an intact file. Iteration raises
    ValueError if the file is not a capture.
    """

    file: BinaryIO
    name: str
    damage: str | None = None
    frames: int = 0
    #: Whether `file` decompresses the file's contents.
    packed: bool = False
    _order: str = "<"
    _interfaces: list[_Interface] = field(default_factory=list)

    def __iter__(self) -> Iterator[Frame]:
        magic = self._read(4)
        if magic == PCAPNG:
            yield from self._read_pcapng_frames()
        elif magic in PCAP:
            yield from self._read_pcap_frames(*PCAP[magic])
        elif not magic:
            raise ValueError(f"{self.name} is empty: check that the command opens a siwarp device")
        else:
            raise ValueError(f"{self.name} is not a pcapng or pcap file")

    def _read(self, size: int) -> bytes:
        try:
            octets = self.file.read(size)
            if self.packed:
                count_against_limits(unpacked=len(octets))
            return octets
        except (EOFError, gzip.BadGzipFile, zlib.error) as e:
            self.damage = f"its compressed octets are damaged ({e})"
            return b""

    def _record_damage(self, what: str) -> None:
        if self.damage is None:
            self.damage = f"{what} after frame {self.frames}"

    def _next_frame_number(self) -> int:
        self.frames += 1
        return self.frames

    # ---- pcap format -----------------------------------------------------------------------------

    def _read_pcap_frames(self, order: str, parts: int) -> Iterator[Frame]:
        head = self._read(20)
        if len(head) < 20:
            raise ValueError(
                f"{self.name} ends within its header and contains no packet: run the capture again"
            )
        link = struct.unpack(order + "I", head[16:])[0] & 0xFFFF
        while record := self._read(16):
            if len(record) < 16:
                self._record_damage("the file ends within a record's header")
                return
            seconds, fraction, size, length = struct.unpack(order + "IIII", record)
            if size > BLOCK_MAX:
                self._record_damage(f"a record claims {size} octets")
                return
            octets = self._read(size)
            if len(octets) < size:
                self._record_damage("the file ends within a frame")
                return
            when = seconds * SECOND + fraction * SECOND // parts
            count_against_limits(frames=1)
            yield Frame(self._next_frame_number(), when, link, octets, length)

    # ---- pcapng format ---------------------------------------------------------------------------

    def _read_pcapng_frames(self) -> Iterator[Frame]:
        kind = PCAPNG
        while kind:
            if len(kind) < 4:
                self._record_damage("the file ends within a block's header")
                return
            if kind == PCAPNG:
                body = self._read_section_header()
                if body is None:
                    return
            else:
                body = self._read_block_body()
                if body is None:
                    return
                frame = self._frame_from_block(struct.unpack(self._order + "I", kind)[0], body)
                if frame is not None:
                    yield frame
            kind = self._read(4)

    def _read_section_header(self) -> bytes | None:
        """Return the body of a section header, which defines the octet order; None (and `damage`)
        on error.
        """
        raw = self._read(8)
        for order in "<>":
            if raw[4:] == struct.pack(order + "I", BYTE_ORDER_MAGIC):
                self._order = order
                break
        else:
            if not self.frames:
                raise ValueError(f"{self.name} has a damaged pcapng header: run the capture again")
            self._record_damage("a damaged section header")
            return None
        self._interfaces = []
        body = self._read_rest_of_block(raw, 4)
        if body is None and not self.frames:
            raise ValueError(
                f"{self.name} ends within its header and contains no packet: run the capture again"
            )
        return body

    def _read_block_body(self) -> bytes | None:
        return self._read_rest_of_block(self._read(4), 0)

    def _read_rest_of_block(self, head: bytes, already: int) -> bytes | None:
        """Return a block's body; `head` holds the block's length and the first `already` octets."""
        if len(head) < 4 + already:
            self._record_damage("the file ends within a block's header")
            return None
        (size,) = struct.unpack(self._order + "I", head[:4])
        if size % 4 or not 12 + already <= size <= BLOCK_MAX:
            self._record_damage(f"a block claims {size} octets")
            return None
        body = self._read(size - 8 - already)
        if len(body) < size - 8 - already:
            self._record_damage("the file ends within a block")
            return None
        count_against_limits(frames=1)
        if body[-4:] != head[:4]:
            self._record_damage("a block whose two lengths differ")
            return None
        return head[4:] + body[:-4]

    def _frame_from_block(self, kind: int, body: bytes) -> Frame | None:
        if kind == INTERFACE:
            self._interfaces.append(self._parse_interface(body))
        if kind == PACKET and len(body) >= 20:
            which, high, low, size, length = struct.unpack(self._order + "IIIII", body[:20])
            return self._parse_frame(which, high << 32 | low, size, length, body[20:])
        if kind == OLD_PACKET and len(body) >= 20:
            which, _drops, high, low, size, length = struct.unpack(
                self._order + "HHIIII", body[:20]
            )
            return self._parse_frame(which, high << 32 | low, size, length, body[20:])
        if kind == SIMPLE_PACKET and len(body) >= 4:
            (length,) = struct.unpack(self._order + "I", body[:4])
            snap = self._interfaces[0].snap if self._interfaces else 0
            size = min(length, snap or length, len(body) - 4)
            return self._parse_frame(0, 0, size, length, body[4:])
        return None

    def _parse_frame(self, which: int, when: int, size: int, length: int, rest: bytes) -> Frame:
        known = which < len(self._interfaces)
        of = self._interfaces[which] if known else _Interface()
        padded = (size + 3) // 4 * 4
        comments = [o for code, o in self._parse_options(rest[padded:]) if code == OPT_COMMENT]
        return Frame(
            self._next_frame_number(),
            when * SECOND // of.parts + of.offset * SECOND,
            of.link,
            rest[:size],
            max(length, size),
            b"; ".join(comments).decode(errors="replace") or None,
        )

    def _parse_interface(self, body: bytes) -> _Interface:
        if len(body) < 8:
            return _Interface()
        link, snap = struct.unpack(self._order + "HxxI", body[:8])
        found = _Interface(link, snap)
        for code, value in self._parse_options(body[8:]):
            if code == OPT_RESOLUTION and len(value) == 1:
                power = value[0] & 0x7F
                # Finer resolutions than 2^-63 s do not fit in the 64-bit time stamp.
                base, most = (2, 63) if value[0] & 0x80 else (10, 19)
                found.parts = base ** min(power, most)
            if code == OPT_OFFSET and len(value) == 8:
                (found.offset,) = struct.unpack(self._order + "q", value)
        return found

    def _parse_options(self, octets: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while len(octets) - at >= 4:
            code, size = struct.unpack_from(self._order + "HH", octets, at)
            at += 4
            if code == OPT_END or len(octets) - at < size:
                return
            yield code, octets[at : at + size]
            at += (size + 3) // 4 * 4


@contextlib.contextmanager
def open_capture(path: str | Path) -> Iterator[CaptureFile]:
    """Open a pcap or pcapng file (or pipe), possibly compressed by gzip, for a ``with`` block.

    Raises OSError if it cannot be opened.
    """
    with Path(path).open("rb") as plain:
        if plain.peek(2)[:2] != GZIP:  # peek does not consume octets of a pipe
            yield CaptureFile(plain, str(path))
            return
        with gzip.GzipFile(fileobj=plain) as packed:
            yield CaptureFile(cast(BinaryIO, packed), str(path), packed=True)
