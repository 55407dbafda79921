# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Frames of UD resolution (spec/cm-udp.md) as messages of a capture, with their errors.

Parsed with struct and not by the scapy layer `SIDR`, which takes a millisecond per frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv6Address

from siwarp.inspect.crc import crc32c
from siwarp.inspect.messages import BROKEN, Message, message_of_datagram
from siwarp.inspect.packets import Packet
from siwarp.inspect.wire import (
    CRC_LEN,
    SIDR_ANSWER_DATA_LEN,
    SIDR_DATA_LEN,
    SIDR_LEN,
    SIDRType,
)

MAGIC = b"SIWU"
VERSION = 1
MAX_QPN = 0xFFFFFE
_HEAD = struct.Struct(">4sBBBBQQII16s")
_QUESTION, _COOKIE = f"SIDR_{SIDRType.QUESTION.name}", f"SIDR_{SIDRType.COOKIE.name}"
_REPLIES = tuple(f"SIDR_{kind.name}" for kind in SIDRType if kind != SIDRType.QUESTION)


def is_sidr_frame(octets: bytes) -> bool:
    """Return whether a payload begins like a frame of UD resolution, as no queue pair's datagram
    does.
    """
    return octets.startswith(MAGIC)


def is_intact_sidr_frame(octets: bytes) -> bool:
    """Return whether a payload has the length of a frame of UD resolution and a valid CRC."""
    crc = int.from_bytes(octets[-CRC_LEN:], "little")
    return len(octets) == SIDR_LEN and crc == crc32c(octets[:-CRC_LEN])


def _sidr_frame_kind(version: int, kind: int) -> str:
    if version != VERSION:
        return BROKEN
    return f"SIDR_{SIDRType(kind).name}" if kind in list(SIDRType) else f"SIDR type {kind}"


def _sidr_frame_fields(kind: str, octets: bytes) -> dict[str, int | str]:
    """Return the fields that a frame of UD resolution of kind ``kind`` has."""
    _, _, _, status, _, id, cookie, qpn, q_key, gid = _HEAD.unpack_from(octets)
    found: dict[str, int | str] = {"id": id}
    if kind in (_QUESTION, _COOKIE):
        found["cookie"] = cookie
    elif kind == f"SIDR_{SIDRType.REFUSAL.name}":
        found["status"] = status
    elif kind == f"SIDR_{SIDRType.ANSWER.name}":
        address = IPv6Address(gid)
        found.update(qpn=qpn, q_key=q_key, gid=str(address.ipv4_mapped or address))
    return found


def _find_invalid_field(octets: bytes) -> str | None:
    """Return the first field with a value that is invalid for the frame's type, in words."""
    _, _, kind, status, data_len, id, cookie, qpn, _, gid = _HEAD.unpack_from(octets)
    address = IPv6Address(gid)
    most = {SIDRType.QUESTION: SIDR_DATA_LEN, SIDRType.COOKIE: 0}.get(kind, SIDR_ANSWER_DATA_LEN)
    checks = {
        "id 0": id == 0,
        f"unknown type {kind}": kind not in list(SIDRType),
        f"{data_len} octets of private data": data_len > most,
        "a refusal without status": kind == SIDRType.REFUSAL and not status,
        "a cookie frame without a cookie": kind == SIDRType.COOKIE and not cookie,
        f"QPN {qpn:#x}": kind == SIDRType.ANSWER and not 0 < qpn <= MAX_QPN,
        "a group's GID": kind == SIDRType.ANSWER and (address.ipv4_mapped or address).is_multicast,
    }
    return next((words for words, wrong in checks.items() if wrong), None)


def _check_sidr_frame(message: Message, octets: bytes) -> None:
    """Record the reason why a receiver drops a frame, in the order of spec/cm-udp.md."""
    if len(octets) != SIDR_LEN:
        message.record_error(f"{len(octets)} octets instead of {SIDR_LEN}", None)
    elif not is_intact_sidr_frame(octets):
        message.record_error("wrong CRC", None)
    elif octets[:5] != MAGIC + bytes([VERSION]):
        message.record_error("not the magic and version of UD resolution", None)
    elif (wrong := _find_invalid_field(octets)) is not None:
        message.record_error(wrong, None)


def message_from_sidr_frame(packet: Packet) -> Message:
    """Convert a datagram of UD resolution to a message; BROKEN if it is not a valid frame."""
    octets = packet.payload
    known = is_sidr_frame(octets) and len(octets) >= _HEAD.size
    kind = _sidr_frame_kind(octets[4], octets[5]) if known else BROKEN
    message = message_of_datagram(
        packet,
        "ud",
        kind=kind,
        length=len(octets) if kind == BROKEN else min(octets[7], SIDR_DATA_LEN),
        fields=_sidr_frame_fields(kind, octets) if kind != BROKEN else {},
    )
    if packet.comment is not None:
        message.record_error(f"dropped by the receiver: {packet.comment}", None)
    elif not packet.missing:
        _check_sidr_frame(message, octets)
    return message


def pair_sidr_replies(messages: list[Message]) -> Iterator[tuple[Message, Message]]:
    """Yield each ANSWER, REFUSAL or COOKIE frame with the last earlier QUESTION of the same id."""
    asked: dict[tuple[str, str, int | str], Message] = {}
    for message in messages:
        if message.error is not None or "id" not in message.fields:
            continue
        id = message.fields["id"]
        if message.kind == _QUESTION:
            asked[message.source, message.dest, id] = message
        elif message.kind in _REPLIES:
            question = asked.get((message.dest, message.source, id))
            if question is not None:
                yield question, message


__all__ = ["is_intact_sidr_frame", "is_sidr_frame", "message_from_sidr_frame", "pair_sidr_replies"]
