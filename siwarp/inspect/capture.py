# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Converts a capture to messages: requests, their responses, and errors.

Captures by siwarp (``siwarp capture``) and by tcpdump are accepted. TCP connections that begin with
an MPA start-up frame are split into FPDUs. A connection whose start is not in the file is split
from the first octets that look like an FPDU and have a valid CRC. UDP payloads with a valid CRC are
treated as datagram-iWARP, and so are all other datagrams to the same addresses, and datagrams that
a comment marks as dropped. Frames of UD resolution are recognized by their magic number.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from siwarp.inspect import resolution
from siwarp.inspect.crc import crc32c
from siwarp.inspect.limits import Limits, TooMuch, count_against_limits, enforce_limits
from siwarp.inspect.messages import (
    BROKEN,
    DROP_CLAUSES,
    GAP,
    PART,
    RDMAP_VERSION_CLAUSE,
    REPLY,
    REQUEST,
    Header,
    Message,
    Stream,
    address_text,
    check_header,
    check_ud_segment,
    header_fields,
    is_quoted_header_of,
    message_kind,
    message_of_datagram,
    parse_header,
    record_terminate_fields,
)
from siwarp.inspect.names import OPCODES, Opcode
from siwarp.inspect.packets import Packet, packets_from_frames, packets_from_scapy
from siwarp.inspect.pcap import SECOND, open_capture
from siwarp.inspect.rc import HalfConnectionReader, startup_frame_of_direction
from siwarp.inspect.stream import Connection, Connections
from siwarp.inspect.wire import (
    CRC_LEN,
    LLP_HDR_LEN,
    LLP_MARK,
    LLP_TYPES,
    LLP_VERSION,
    RD_HEADER_LEN,
    RD_RESPONSE,
    TAGGED_HDR_LEN,
    parse_rd_header,
    parse_uc_receiver_report,
)

if TYPE_CHECKING:
    from scapy.packet import Packet as ScapyPacket

UD_HEADER_LEN = 18


@dataclass
class Dissection:
    """All messages and streams of a capture; `damage` describes a defect of the file, if any."""

    messages: list[Message] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    damage: str | None = None


@dataclass
class _ExaminedStream:
    """A stream and its messages, not numbered yet."""

    stream: Stream
    messages: list[Message] = field(default_factory=list)
    halves: list[HalfConnectionReader] = field(default_factory=list)
    quoted: list[tuple[Message, Header]] = field(
        default_factory=list
    )  # on UD: each error message, with the header that it quotes


# ---- TCP connections -----------------------------------------------------------------------------


def _decode_connection(connection: Connection) -> _ExaminedStream | None:
    """Return a connection's messages; None if the connection does not carry iWARP."""
    forth, back = connection.first, connection.first.reverse()
    startups = {d: startup_frame_of_direction(connection.halves.get(d)) for d in (forth, back)}
    if (late := startups[back]) is not None and late.asks:
        forth, back = back, forth
    frames = [frame for frame in startups.values() if frame is not None]
    crc = any(frame.c for frame in frames) if len(frames) == 2 else None
    found = _ExaminedStream(
        Stream(
            source=address_text(forth.source, forth.source_port),
            dest=address_text(back.source, back.source_port),
            first_frame=connection.first_frame,
            time=connection.when / SECOND,
            seconds=(connection.last - connection.when) / SECOND,
            crc=crc,
            ended=connection.ended,
        )
    )
    for direction, half in connection.halves.items():
        asked = startups.get(direction.reverse())
        reader = HalfConnectionReader(
            direction, half, crc, marked=bool(asked is not None and asked.m)
        )
        reader.read()
        if reader.messages:
            found.halves.append(reader)
            found.messages += reader.messages
            found.stream.markers[address_text(direction.source, direction.source_port)] = (
                reader.marked
            )
            found.stream.retransmitted += reader.count_retransmissions()
            found.stream.missing += reader.missing
    if not any(message.kind not in (PART, GAP) for message in found.messages):
        return None
    return found


def _match_requests_with_responses(found: _ExaminedStream) -> None:
    """Pair requests with responses, and Terminates with the messages that they quote."""
    for reader in found.halves:
        others = [other.messages for other in found.halves if other is not reader]
        said = others[0] if others else []
        _match_reads(found.stream, reader.messages, said)
        _match_atomics(reader.messages, said)
        _match_startup_frames(found.stream, reader.messages, said)
        for message, quoted in reader.quoted:
            blamed = [
                m.number for m in said if quoted is not None and is_quoted_header_of(quoted, m)
            ]
            message.about = blamed[-1] if blamed else None
    # For each header that an error may quote, note the last message with that header; a search per
    # error would take quadratic time if there are as many errors as messages.
    named = {
        (m.source, m.dest, m.fields.get("qn"), m.fields.get("msn")): m.number
        for m in found.messages
        if found.quoted
    }
    for message, quoted in found.quoted:
        ends = (message.dest, message.source)
        if not quoted.tagged:
            message.about = named.get((*ends, quoted.b, quoted.msn))
            continue
        for cause in found.messages:
            if (cause.source, cause.dest) == ends and is_quoted_header_of(quoted, cause):
                message.about = cause.number
    for asked, answer in resolution.pair_sidr_replies(found.messages):
        _pair_request_with_response(asked, answer)


def _pair_request_with_response(asked: Message, answer: Message) -> None:
    answer.answers, asked.answered_by = asked.number, answer.number
    if answer.whole and asked.whole:
        answer.latency = max(answer.when_ns - asked.when_ns, 0) / SECOND


def _response_fits_request(asked: Message, response: Message) -> bool:
    return response.fields.get("stag") == asked.fields.get("sink_stag") and (
        not response.whole or response.length == asked.fields.get("size")
    )


def _match_atomics(requests: list[Message], responses: list[Message]) -> None:
    """Pair Atomic Requests with Responses: in order, confirmed by the identifier."""
    holes = any(m.kind == GAP or m.note for m in requests + responses)
    waiting = deque(m for m in requests if m.kind == Opcode.ATOMIC_REQUEST.name)
    for response in responses:
        if response.kind != Opcode.ATOMIC_RESPONSE.name:
            continue
        number = response.fields.get("request")
        while holes and waiting and waiting[0].fields.get("request") != number:
            waiting.popleft()
        asked = waiting.popleft() if waiting else None
        if asked is not None:
            _pair_request_with_response(asked, response)
        if asked is None and not holes:
            response.record_error("an unsolicited Atomic Response", "RFC7306-5.2.2-08")
        elif asked is not None and asked.fields.get("request") != number:
            response.record_error(
                "its identifier differs from the Atomic Request's", "RFC7306-5.2.1-13"
            )


def _match_reads(stream: Stream, requests: list[Message], responses: list[Message]) -> None:
    """Pair the Read Requests of one side with the Read Responses of the other, in order.

    If the capture lacks messages, a response that does not fit is matched with a later request.
    """
    holes = any(m.kind == GAP or m.note for m in requests + responses)
    waiting = deque(m for m in requests if m.kind == Opcode.RDMA_READ_REQUEST.name)
    latencies = []
    for response in responses:
        if response.kind != Opcode.RDMA_READ_RESPONSE.name:
            continue
        if holes:
            fitting = next(
                (i for i, asked in enumerate(waiting) if _response_fits_request(asked, response)),
                None,
            )
            if fitting is None:
                continue
            for _ in range(fitting):
                waiting.popleft()
        asked = waiting.popleft() if waiting else None
        if asked is None:
            response.record_error("an unsolicited Read Response", "RFC5040-5.2-01")
            continue
        _pair_request_with_response(asked, response)
        if response.latency is not None:
            latencies.append(response.latency)
        if not _response_fits_request(asked, response):
            response.record_error("differs from the Read Request", "RFC5040-5.2.2-07")
    if latencies:
        stream.read_latency = {
            "min": min(latencies),
            "median": statistics.median(latencies),
            "max": max(latencies),
        }


def _match_startup_frames(stream: Stream, requests: list[Message], replies: list[Message]) -> None:
    asked = requests[0] if requests and requests[0].kind == REQUEST else None
    answer = replies[0] if replies and replies[0].kind == REPLY else None
    if asked is not None:
        stream.request = asked.fields
    if answer is not None:
        stream.reply = answer.fields
    if asked is not None and answer is not None:
        _pair_request_with_response(asked, answer)


# ---- UDP datagrams -------------------------------------------------------------------------------


def _has_valid_crc(octets: bytes) -> bool:
    return int.from_bytes(octets[-CRC_LEN:], "little") == crc32c(octets[:-CRC_LEN])


def _llp_type(octets: bytes) -> str | None:
    """Return the name of a datagram's LLP type; None for a datagram without the LLP header."""
    if not octets or octets[0] & 0xF != LLP_VERSION << 2 | LLP_MARK:
        return None
    kind = LLP_TYPES.get(octets[0] >> 4)
    reliable = kind is not None and kind.startswith("RD_")
    least = RD_HEADER_LEN if reliable else LLP_HDR_LEN + TAGGED_HDR_LEN
    return kind if len(octets) >= least + CRC_LEN else None


def _message_from_llp_datagram(packet: Packet, kind: str, sound: bool) -> Message:
    """Convert a datagram with the LLP header to a message: a DDP segment, or a control datagram of
    RD.
    """
    octets = packet.payload
    reliable = kind.startswith("RD_")
    begin = RD_HEADER_LEN if reliable else LLP_HDR_LEN
    segment = octets[begin:-CRC_LEN] if kind in ("UC", "RECORD", "RD_DATA") else b""
    header = parse_header(segment)
    size = begin + (header.size if header is not None else 0) + CRC_LEN
    message = message_of_datagram(
        packet,
        "rd" if reliable else "uc" if kind.startswith("UC") else "ud",
        kind=_llp_message_kind(kind, header),
        length=max(len(octets) - size, 0),
        fields={
            "psn": int.from_bytes(octets[8:12], "big"),
            "q_key": int.from_bytes(octets[4:8], "big"),
        },
    )
    if reliable:
        message.fields |= parse_rd_header(octets)
    if kind == "UC_REPORT":
        message.fields |= parse_uc_receiver_report(octets)
    if header is not None:
        message.fields |= header_fields(header, b"") | {"last": int(header.last)}
        if not header.tagged:
            message.fields["mo"] = header.mo
    if packet.comment is not None:
        message.record_error(f"dropped by the receiver: {packet.comment}", None)
    elif not packet.missing and not sound:
        message.record_error("wrong CRC", "RFC5041-3-07")
    return message


def _llp_message_kind(kind: str, header: Header | None) -> str:
    """Return the kind of a datagram with the LLP header: that of its segment, or its LLP type."""
    if kind == "RECORD":
        return "WRITE_RECORD"
    if kind not in ("UC", "RD_DATA"):
        return kind
    return message_kind(header)


def _is_datagram_iwarp(packet: Packet) -> bool:
    """Return whether a UDP payload is certainly datagram-iWARP, by its CRC or its complete
    header.
    """
    octets = packet.payload
    if resolution.is_sidr_frame(octets):
        return not packet.missing and resolution.is_intact_sidr_frame(octets)
    if _llp_type(octets) is not None:
        return not packet.missing and _has_valid_crc(octets)
    header = parse_header(octets) if len(octets) >= UD_HEADER_LEN + CRC_LEN else None
    if header is None or header.tagged or header.dv != 1 or packet.missing:
        return False
    crc = int.from_bytes(octets[-CRC_LEN:], "little")
    if crc == 0:
        rest = header.ddp_rsvd or header.mo or header.rv != 1 or header.opcode not in OPCODES
        return header.last and not rest
    return crc == crc32c(octets[:-CRC_LEN])


def _message_from_datagram(packet: Packet, sound: bool) -> tuple[Message, Header | None]:
    """Convert a datagram to a message; also return the header that an error message quotes."""
    quoted: Header | None = None
    octets = packet.payload
    if (kind := _llp_type(octets)) is not None:
        return _message_from_llp_datagram(packet, kind, sound), None
    header = parse_header(octets) if len(octets) >= UD_HEADER_LEN + CRC_LEN else None
    if header is not None and header.tagged:
        header = None
    payload = octets[UD_HEADER_LEN : max(len(octets) - CRC_LEN, UD_HEADER_LEN)]
    message = message_of_datagram(
        packet,
        "ud",
        kind=message_kind(header) if header is not None else PART if packet.fragmented else BROKEN,
        length=len(payload) if header is not None else len(octets),
        fields=header_fields(header, payload, ud=True) if header is not None else {},
    )
    if packet.comment is not None:
        word = packet.comment.partition(":")[0]
        clause = DROP_CLAUSES.get(word)
        if word == "drop_version" and header is not None and header.dv == 1:
            clause = RDMAP_VERSION_CLAUSE
        message.record_error(f"dropped by the receiver: {packet.comment}", clause)
    elif not packet.missing and not sound and header is not None:
        message.record_error("wrong CRC", "RFC5041-3-07")
    if packet.comment is None and not packet.missing:
        check_header(message, header)
        if header is not None:
            check_ud_segment(message, header)
    if not packet.missing and header is not None and header.opcode == Opcode.TERMINATE:
        quoted = record_terminate_fields(message, payload)
    return message, quoted


def _split_gso_batch(packet: Packet) -> list[Packet]:
    """Split a batch that was captured as one packet before the kernel segmented it (UDP_SEGMENT).

    All datagrams have the same size, except that the last one may be shorter. The first length with
    a valid CRC is that size. Without a valid CRC, the packet is one datagram.
    """
    octets = packet.payload
    header = parse_header(octets) if len(octets) >= 2 * (UD_HEADER_LEN + CRC_LEN) else None
    if header is None:
        return [packet]
    plain = not header.tagged and (header.dv, header.rv, header.mo) == (1, 1, 0)
    if not plain and _llp_type(octets) is None:
        return [packet]
    crc = crc32c(octets[:UD_HEADER_LEN])
    for end in range(UD_HEADER_LEN, len(octets) - CRC_LEN - UD_HEADER_LEN):
        if crc == int.from_bytes(octets[end : end + CRC_LEN], "little"):
            size = end + CRC_LEN
            cut = [
                replace(packet, payload=octets[at : at + size])
                for at in range(0, len(octets), size)
            ]
            return cut if all(map(_is_datagram_iwarp, cut)) else [packet]
        crc = crc32c(octets[end : end + 1], crc)
    return [packet]


def _begins_like_ud_segment(octets: bytes) -> bool:
    """Return whether octets begin like a UD segment; used when the CRC is not in the capture."""
    header = parse_header(octets)
    if header is None or header.tagged or (header.dv, header.rv, header.mo) != (1, 1, 0):
        return False
    return header.last and not header.ddp_rsvd and header.opcode in OPCODES


def _decode_datagrams(packets: list[Packet]) -> list[_ExaminedStream]:
    """Return the datagrams of datagram-iWARP, by pair of addresses."""
    judged = []
    # Datagrams that lack fragments are last in ``packets``, regardless of when they were sent.
    for packet in sorted(packets, key=lambda packet: packet.frame):
        sound = _is_datagram_iwarp(packet)
        whole = sound or packet.missing or packet.comment is not None
        for one in [packet] if whole else _split_gso_batch(packet):
            count_against_limits(messages=1)
            judged.append((one, sound or one is not packet))
    known = {(p.dest, p.dest_port) for p, good in judged if good or p.comment is not None}
    asked = {(p.dest, p.dest_port) for p, _ in judged if resolution.is_sidr_frame(p.payload)}
    speak = known | {(p.source, p.source_port) for p, good in judged if good}
    ports = {(p.dest, p.source): (p.dest_port, p.source_port) for p, good in judged if good}
    ports |= {(p.source, p.dest): (p.source_port, p.dest_port) for p, good in judged if good}
    flows: dict[frozenset[tuple[str, int]], _ExaminedStream] = {}
    for one, good in judged:
        packet = one
        if packet.fragmented and not packet.source_port:
            if (packet.source, packet.dest) not in ports:
                continue
            source_port, dest_port = ports[packet.source, packet.dest]
            packet = replace(packet, source_port=source_port, dest_port=dest_port)
        ends = ((packet.source, packet.source_port), (packet.dest, packet.dest_port))
        if resolution.is_sidr_frame(packet.payload) or (ends[1] in asked and not good):
            message, quoted = resolution.message_from_sidr_frame(packet), None
        elif (
            good
            or packet.comment is not None
            or ends[1] in known
            or (packet.fragmented and (ends[1] in speak or _begins_like_ud_segment(packet.payload)))
        ):
            message, quoted = _message_from_datagram(packet, good)
        else:
            continue
        found = flows.get(frozenset(ends))
        if found is None:
            found = flows[frozenset(ends)] = _ExaminedStream(
                Stream(
                    transport=message.transport,
                    source=message.source,
                    dest=message.dest,
                    first_frame=message.frame,
                    time=message.when_ns / SECOND,
                )
            )
        found.messages.append(message)
        if quoted is not None:
            found.quoted.append((message, quoted))
        found.stream.seconds = max(message.when_ns - found.messages[0].when_ns, 0) / SECOND
        found.stream.missing += packet.missing
    return list(flows.values())


# ---- complete captures ---------------------------------------------------------------------------


def _match_rd_retransmissions(found: _ExaminedStream) -> None:
    """Find RD retransmissions: an earlier segment has the same incarnation, PSN space and PSN."""
    first: dict[tuple[object, ...], Message] = {}
    for message in found.messages:
        said = message.fields
        if message.kind.startswith("RD_") or "source_epoch" not in said:
            continue
        space = int(said["rd_flags"]) & RD_RESPONSE
        key = message.source, said["source_epoch"], said["dest_epoch"], space, said["psn"]
        original = first.setdefault(key, message)
        if original is not message:
            message.retransmits = original.number
            original.retransmitted += 1


def _fill_totals_of_captured_streams(found: _ExaminedStream) -> None:
    stream = found.stream
    for message in found.messages:
        message.stream = stream.number
        message.transport = stream.transport
        stream.errors += message.error is not None
        if message.retransmits is not None:
            stream.retransmitted += 1
            continue
        stream.messages[message.kind] = stream.messages.get(message.kind, 0) + 1
        stream.octets[message.kind] = stream.octets.get(message.kind, 0) + message.length


def examine_packets(packets: Iterable[Packet]) -> Dissection:
    """Return the messages and streams of a capture's TCP segments and UDP datagrams.

    Streams are numbered in the order of their first packets, messages in the order of their
    completion; both numbers begin at 1.
    """
    tcp, udp = Connections(), []
    for packet in packets:
        if packet.tcp:
            tcp.find_or_add(packet).add_segment(packet)
        else:
            udp.append(packet)
    everything = [
        found for one in tcp.all if (found := _decode_connection(one)) is not None
    ] + _decode_datagrams(udp)
    everything.sort(key=lambda found: found.stream.first_frame)
    messages = [message for found in everything for message in found.messages]
    messages.sort(key=lambda message: message.frame)
    for number, message in enumerate(messages, 1):
        message.number = number
        message.time = message.when_ns / SECOND
    for number, found in enumerate(everything, 1):
        found.stream.number = number
        _match_requests_with_responses(found)
        _match_rd_retransmissions(found)
        _fill_totals_of_captured_streams(found)
    return Dissection(messages, [found.stream for found in everything])


def examine(path: str | Path, limits: Limits | None = None) -> Dissection:
    """Return the messages and streams of a pcapng or pcap file, which may be compressed by gzip.

    For a file that is damaged or truncated, the result has the part before the defect, and
    `damage`. Raises OSError if the file cannot be read; ValueError if it is not a capture; TooMuch,
    a ValueError, if it exceeds `limits` (by default `Limits()`).
    """
    with open_capture(path) as file, enforce_limits(Limits() if limits is None else limits):
        try:
            found = examine_packets(packets_from_frames(file))
        except TooMuch as e:
            raise TooMuch(f"{path}: {e}") from None
        found.damage = file.damage
    return found


def dissect_packets(packets: Iterable[ScapyPacket]) -> list[Message]:
    """Return the messages in scapy's packets, numbered in the order of their completion."""
    return examine_packets(packets_from_scapy(packets)).messages


def dissect(path: str | Path) -> list[Message]:
    """Return the messages of a pcapng or pcap file; raises the same errors as `examine`."""
    return examine(path).messages


__all__ = ["Dissection", "dissect", "dissect_packets", "examine", "examine_packets"]
