# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Finds the boundaries of MPA's frames, with Markers or without (RFC 5044 section 4).

This module works on octets; mpa.py makes scapy layers of the frames found here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from siwarp.inspect.crc import crc32c

REQUEST_KEY = b"MPA ID Req Frame"
REPLY_KEY = b"MPA ID Rep Frame"
KEY_LEN = 16
#: Length of the header of a start-up frame: key, flags, revision, PD_Length.
STARTUP_HDR_LEN = 20
LENGTH_LEN = 2
CRC_LEN = 4
MARKER_LEN = 4
#: Octets from the start of one Marker to the start of the next.
MARKER_SPACING = 512


def pad_len(ulpdu_length: int) -> int:
    """Return the octets of padding that make length field, ULPDU and pad a multiple of four."""
    return -(LENGTH_LEN + ulpdu_length) % 4


def fpdu_len(ulpdu_length: int) -> int:
    """Return the octets of a complete FPDU without Markers."""
    return LENGTH_LEN + ulpdu_length + pad_len(ulpdu_length) + CRC_LEN


class FoundMarker(NamedTuple):
    """A Marker in a stream: its position, its pointer, and the correct value of the pointer.

    `position` is relative to the first octet of the first Marker. The two lowest bits of a pointer
    count as zero.
    """

    position: int
    fpduptr: int
    expected: int

    @property
    def agrees(self) -> bool:
        """Whether the Marker points to the start of its FPDU."""
        return self.fpduptr & ~3 == self.expected


class Span(NamedTuple):
    """An FPDU in a stream: from `start` to before `end`; `octets` is the FPDU without Markers."""

    start: int
    end: int
    octets: bytes
    crc_good: bool  # whether the CRC field is correct, even if CRC was not negotiated
    marked: bytes | None = None  # the FPDU with its Markers; None if it has no Markers
    markers: tuple[FoundMarker, ...] = ()


def next_fpdu_without_markers(octets: bytes, at: int) -> Span | None:
    """Return the FPDU at `at` in a stream without Markers; None if it is incomplete."""
    if len(octets) - at < LENGTH_LEN:
        return None
    end = at + fpdu_len(int.from_bytes(octets[at : at + LENGTH_LEN], "big"))
    if end > len(octets):
        return None
    fpdu = octets[at:end]
    return Span(at, end, fpdu, read_fpdu_crc_field(fpdu) == crc32c(fpdu[:-CRC_LEN]))


def read_fpdu_crc_field(octets: bytes) -> int:
    """Return an FPDU's CRC field."""
    return int.from_bytes(octets[-CRC_LEN:], "little")


def next_fpdu_with_markers(octets: bytes, at: int, origin: int) -> Span | None:
    """Return the FPDU that begins, or whose leading Marker begins, at `at`; None if incomplete.

    There is a Marker at `origin` and every 512 octets from there; the CRC covers the Markers
    inside.
    """
    plain, markers, cursor = bytearray(), [], at
    want, head = LENGTH_LEN, at
    while len(plain) < want:
        inside = (cursor - origin) % MARKER_SPACING
        if inside == 0:
            if cursor + MARKER_LEN > len(octets):
                return None
            markers.append(cursor)
            cursor += MARKER_LEN
            head = cursor if not plain else head
            continue
        piece = octets[cursor : cursor + min(MARKER_SPACING - inside, want - len(plain))]
        if not piece:
            return None
        plain += piece
        cursor += len(piece)
        if want == LENGTH_LEN and len(plain) == want:
            want = fpdu_len(int.from_bytes(plain, "big"))
    whole = octets[at:cursor]
    found = tuple(
        FoundMarker(
            m - origin, int.from_bytes(octets[m + 2 : m + MARKER_LEN], "big"), max(m - head, 0)
        )
        for m in markers
    )
    good = read_fpdu_crc_field(whole) == crc32c(whole[:-CRC_LEN])
    return Span(at, cursor, bytes(plain), good, whole, found)


def iterate_complete_fpdus(octets: bytes, at: int, origin: int | None = None) -> Iterator[Span]:
    """Yield the complete FPDUs from `at` on; `origin`: a Marker's position, None: no Markers."""
    while True:
        span = (
            next_fpdu_without_markers(octets, at)
            if origin is None
            else next_fpdu_with_markers(octets, at, origin)
        )
        if span is None:
            return
        yield span
        at = span.end


def mpa_startup_frame_end_offset(octets: bytes) -> int | None:
    """Return the end offset of the start-up frame at offset 0; 0: no frame, None: incomplete."""
    if octets[:KEY_LEN] not in (REQUEST_KEY, REPLY_KEY):
        return 0
    if len(octets) < STARTUP_HDR_LEN:
        return None
    end = STARTUP_HDR_LEN + int.from_bytes(octets[STARTUP_HDR_LEN - 2 : STARTUP_HDR_LEN], "big")
    return end if end <= len(octets) else None


def is_plausible_fpdu(octets: bytes) -> bool:
    """Return whether an FPDU begins like one of RDMAP: versions 1, and the T bit that its opcode
    needs.
    """
    if len(octets) < LENGTH_LEN + 14 + CRC_LEN:
        return False
    control, rdmap = octets[LENGTH_LEN], octets[LENGTH_LEN + 1]
    opcode, tagged = rdmap & 0xF, bool(control & 0x80)
    if control & 0x3F != 1 or rdmap & 0xF0 != 0x40 or tagged != (opcode in (0, 2)):
        return False
    return tagged or len(octets) >= LENGTH_LEN + 18 + CRC_LEN
