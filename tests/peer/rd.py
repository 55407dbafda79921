"""An RD endpoint, written from section 9 of the datagram-iWARP specification.

rdmap.py implements the messages, and rd_wire.py the formats.
"""

from __future__ import annotations

import hashlib
import random
import socket
import struct
from collections import deque
from dataclasses import dataclass, field, replace

import net
from peer.link import Address, receive_waiting_datagrams
from peer.rd_wire import (
    ACK,
    ANSWER,
    BYE,
    CHALLENGE,
    CLOSES,
    DATA,
    ECHO,
    GREETING_OCTETS,
    HELLO,
    INSTANCE,
    LONGEST_SEGMENT,
    MOST_RANGES,
    NEXT,
    NOT_READY,
    PROBE,
    PROBED,
    REQUESTS,
    RESPONSE,
    RESPONSES,
    SEGMENT_OCTETS,
    UNKNOWN_PAIR,
    WINDOW,
    WRONG_MSN,
    AckBody,
    Datagram,
    Greeting,
    ack_ranges_of_psns,
    count_credit_units,
    encode_handshake_body,
    parse_ack,
    parse_datagram,
    parse_handshake_body,
    psn_within,
    psns_of_ranges,
    unused_fields_are_zero,
)
from peer.rdmap import Arrival, Conversation, Region, Request
from peer.wire import Segment, WireError, parse_segment

COOKIE = struct.Struct("!I8x8s")
COOKIE_LIFE_S = 30.0
HELLO_FIRST_S, HELLO_MOST_S = 0.02, 0.5
RTO_LEAST_S, RTO_MOST_S = 0.02, 1.0
FARTHEST = 16_384
LINGER_S = 5.0
# The type of an option that is not defined, which the other end must skip.
UNKNOWN_OPTION = 200
OPTIONS = {
    LONGEST_SEGMENT: (65_000).to_bytes(4, "big"),
    UNKNOWN_OPTION: b"odd",
    WINDOW: FARTHEST.to_bytes(4, "big"),
}
FIRST_WINDOW, MOST_WINDOW = 10, 128


@dataclass
class SegmentInFlight:
    """An RD segment that was transmitted and is not yet acknowledged."""

    psn: int
    octets: bytes
    request: Request
    when: float
    again: bool = False
    came: bool = False


@dataclass
class SendSpace:
    """A sequence space of this end: queued segments, segments in flight, and the peer's credit."""

    psn: int
    credit: int = 0
    waiting: deque[tuple[bytes, Request]] = field(default_factory=deque)
    outstanding: deque[SegmentInFlight] = field(default_factory=deque)

    def lowest_unacknowledged_psn(self) -> int:
        """Return the lowest PSN that the peer has not acknowledged."""
        return self.outstanding[0].psn if self.outstanding else self.psn

    def has_credit_for_next_segment(self) -> bool:
        """Return whether the peer's credit covers the next queued segment."""
        if not self.waiting:
            return False
        taken = sum(count_credit_units(sent.octets) for sent in self.outstanding)
        return taken + count_credit_units(self.waiting[0][0]) <= self.credit


@dataclass
class ReceiveSpace:
    """A sequence space of the peer: the next PSN, and the segments stored out of order."""

    psn: int
    stored: dict[int, bytes] = field(default_factory=dict)
    taken_units: int = 0
    # The highest credit granted to the peer so far, relative to the first PSN.
    granted_units: int = 0


class RdPair:
    """The state of this end and one peer during one incarnation of an RD pair."""

    def __init__(self, end: RdPeer, address: Address, mine: int, theirs: int) -> None:
        self.end, self.address, self.mine, self.theirs = end, address, mine, theirs
        self.state = "open" if theirs else "hello"
        self.echo = b""
        self.greeting = Greeting(b"", 0)
        self.began_by = -1.0
        self.out = [SendSpace(mine), SendSpace(mine)]
        self.incoming = [ReceiveSpace(theirs), ReceiveSpace(theirs)]
        self.talk = Conversation(
            end.regions, self.queue_segment, end.consume_receive, end.arrivals, end.segment_octets
        )
        self.wait, self.due = HELLO_FIRST_S, 0.0
        self.repeated = 0
        self.rto, self.srtt = 0.1, 0.0
        self.window, self.shrunk = float(FIRST_WINDOW), 0.0
        self.owes_ack = False
        self.newest = 0.0
        self.not_ready = False
        self.peer_not_ready, self.peer_rnr_timer = 0, 0
        self.probe_psn = 0
        self.ended: int | None = None
        self.reason, self.give_up, self.answered = CLOSES, 0.0, False

    def queue_segment(self, segment: Segment, request: Request, response: bool) -> None:
        """Queue a segment for transmission in the space of requests or of responses."""
        space = RESPONSES if response else REQUESTS
        self.out[space].waiting.append((segment.octets(), request))

    def make_datagram(self, kind: int, **fields: object) -> Datagram:
        """Return a datagram of this pair, with acknowledgements and a grant of credit."""
        if self.state == "hello":
            return Datagram(kind, self.end.qkey, self.mine, 0)
        idle = not self.newest or kind == ECHO
        delay = 0 if idle else int((net.now() - self.newest) * 1e6)
        credit = self.end.credit
        for way in self.incoming:
            way.granted_units = max(way.granted_units, way.taken_units + credit)
        made = Datagram(
            kind,
            self.end.qkey,
            self.mine,
            self.theirs,
            acknowledged=(self.incoming[0].psn, self.incoming[1].psn),
            credit=(credit, credit),
            delay=min(delay, 65_535),
            ird_or_reason=self.end.ird if kind in (DATA, ACK, PROBE) else 0,
        )
        return replace(made, **fields)  # type: ignore[arg-type]

    def send(self, datagram: Datagram) -> None:
        """Send a datagram to the peer of this pair."""
        self.end.sock.sendto(datagram.octets(), self.address)

    # Processing of received datagrams.

    def process_datagram(self, datagram: Datagram) -> None:
        """Process a datagram whose epochs are those of this pair."""
        if datagram.type == BYE:
            self._process_bye(datagram)
            return
        if self.state == "closing":
            return
        if self.state == "echo":
            self.state, self.wait = "open", self.rto
            self.due = 0.0
        if datagram.type in (DATA, ACK, PROBE):
            self.talk.peer_ird = datagram.ird_or_reason
            self.talk.start_queued_read_and_atomic_requests()
        body = parse_ack(datagram.body) if datagram.type == ACK else AckBody()
        if datagram.flags & NOT_READY and datagram.type == ACK:
            self.peer_not_ready += 1
            self.peer_rnr_timer = body.rnr_timer
        elif body.rnr_timer:
            raise WireError("an RNR timer without NOT_READY")
        if datagram.type in (DATA, ACK, ECHO, PROBE):
            for space in (REQUESTS, RESPONSES):
                self._process_acknowledgement(space, datagram, body.ranges[space])
        if datagram.type == DATA:
            self._store_data_segment(datagram)
        elif datagram.type == PROBE:
            self._send_ack(PROBED, datagram.psn)

    def _process_bye(self, datagram: Datagram) -> None:
        """End the incarnation, after the acknowledgements in the BYE are processed (DGRAM-BYE-1,
        -2).
        """
        reason = datagram.ird_or_reason
        if reason != UNKNOWN_PAIR:
            for space in (REQUESTS, RESPONSES):
                self._process_acknowledgement(space, datagram, [], over=True)
            if not datagram.flags & ANSWER:
                self.send(self.make_datagram(BYE, flags=ANSWER, ird_or_reason=reason))
        self.answered = bool(datagram.flags & ANSWER)
        self.end_incarnation(reason)

    def close(self) -> None:
        """End the incarnation: repeat the BYE until it is answered or its time limit expires."""
        if self.state not in ("open", "echo"):
            self.end_incarnation(CLOSES)
            return
        self.state, self.wait, self.due = "closing", HELLO_FIRST_S, 0.0
        self.give_up = net.now() + LINGER_S

    def _process_acknowledgement(
        self,
        space: int,
        datagram: Datagram,
        ranges: list[tuple[int, int]],
        over: bool = False,
    ) -> None:
        out, ack = self.out[space], datagram.acknowledged[space]
        first, after = out.lowest_unacknowledged_psn(), out.psn
        if ack != after and not psn_within(ack, first, after):
            # An old acknowledgement, or one of a segment that was never sent, is ignored.
            return
        now = net.now()
        out.credit = datagram.credit[space]
        while out.outstanding and out.outstanding[0].psn != ack:
            sent = out.outstanding.popleft()
            sent.request.unacknowledged -= 1
            self._grow_congestion_window_and_update_rto(sent, now, datagram.delay)
        if over:
            return
        came = {psn for psn in psns_of_ranges(ack, ranges) if psn_within(psn, ack, after)}
        for sent in out.outstanding:
            if sent.psn in came and not sent.came:
                sent.came = True
                self._grow_congestion_window_and_update_rto(sent, now, datagram.delay)
        self._retransmit_overtaken_segments(out, now)

    def _grow_congestion_window_and_update_rto(
        self, sent: SegmentInFlight, now: float, delay: int
    ) -> None:
        self.window = min(self.window + 1, MOST_WINDOW)
        self.repeated = 0
        if sent.again:
            return
        trip = max(now - sent.when - delay / 1e6, 1e-6)
        self.srtt = trip if not self.srtt else 0.875 * self.srtt + 0.125 * trip
        self.rto = min(max(4 * self.srtt, RTO_LEAST_S), RTO_MOST_S)
        self.due = now + self.rto

    def _retransmit_overtaken_segments(self, out: SendSpace, now: float) -> None:
        """Retransmit the segments that three later segments have overtaken (DGRAM-RD-19)."""
        later = 0
        for sent in reversed(out.outstanding):
            if sent.came:
                later += 1
            elif later >= 3 and now - sent.when > max(self.srtt, 0.005):
                self._retransmit_segment(sent, now)

    def _retransmit_segment(self, sent: SegmentInFlight, now: float) -> None:
        if now - self.shrunk > self.srtt:
            self.window, self.shrunk = max(self.window * 0.7, 4.0), now
        sent.when, sent.again = now, True
        space = RESPONSES if sent in self.out[RESPONSES].outstanding else REQUESTS
        self._send_data_segment(space, sent)

    def _store_data_segment(self, datagram: Datagram) -> None:
        self.owes_ack = True
        space = RESPONSES if datagram.flags & RESPONSE else REQUESTS
        way = self.incoming[space]
        if (datagram.psn - way.psn) % NEXT >= FARTHEST or datagram.psn in way.stored:
            self.end.counts["late"] += 1
            return
        self.newest = net.now()
        way.stored[datagram.psn] = datagram.body
        self.deliver_segments()

    def deliver_segments(self) -> None:
        """Deliver the next segments of each sequence space while the receiver can accept them."""
        for way in self.incoming:
            while way.psn in way.stored:
                octets = way.stored[way.psn]
                try:
                    taken = self.talk.process_ddp_segment(parse_segment(octets, (0, 1)))
                except WireError as wrong:
                    self.end.wrong.append(str(wrong))
                    self.reason = WRONG_MSN if "MSN" in str(wrong) else CLOSES
                    self.close()
                    return
                if not taken:
                    self.not_ready = True
                    break
                if way is self.incoming[REQUESTS]:
                    self.not_ready = False
                del way.stored[way.psn]
                way.psn = (way.psn + 1) % NEXT
                way.taken_units += count_credit_units(octets)
                if way.taken_units > way.granted_units:
                    self.end.wrong.append("more units than the credit")
                self.owes_ack = True

    def end_incarnation(self, reason: int) -> None:
        """End the incarnation: fail all requests, and discard all segments of this end."""
        self.state, self.ended = "closed", reason
        self.talk.fail_all_requests()
        for out in self.out:
            out.waiting.clear()
            out.outstanding.clear()

    # Sending of datagrams.

    def transmit_and_run_timers(self, now: float) -> None:
        """Transmit as the peer's credit, its advertised window and the congestion window allow;
        retransmit after a time-out.
        """
        if self.state == "closed":
            return
        if self.state == "closing":
            if now > self.give_up:
                self.end_incarnation(self.reason)
            elif now >= self.due:
                self.send(self.make_datagram(BYE, ird_or_reason=self.reason))
                self.due, self.wait = now + self.wait, min(2 * self.wait, HELLO_MOST_S)
            return
        if self.state in ("hello", "echo"):
            if now >= self.due and (self.state == "echo" or self.has_unacknowledged_segments()):
                self._send_hello_or_echo(now)
            return
        self.deliver_segments()
        self._send_waiting_segments(now)
        if self.owes_ack:
            self._send_ack(0, self.out[REQUESTS].psn)
        if self.due and now >= self.due:
            self._retransmit_or_probe_after_timeout(now)

    def has_unacknowledged_segments(self) -> bool:
        """Return whether any segment is queued or not yet acknowledged."""
        return any(out.waiting or out.outstanding for out in self.out)

    def _send_hello_or_echo(self, now: float) -> None:
        self.repeated += 1
        if self.state == "echo" and self.repeated > 3:
            # Three ECHOs were not answered, so this end requests another CHALLENGE.
            self.state, self.theirs = "hello", 0
        if self.state == "hello":
            body = self.end.own.ljust(GREETING_OCTETS, b"\0")
            self.send(replace(self.make_datagram(HELLO), body=body))
        else:
            self.send(self.make_datagram(ECHO, body=self.echo))
        self.due, self.wait = now + self.wait, min(2 * self.wait, HELLO_MOST_S)

    def process_challenge(self, datagram: Datagram) -> None:
        """Answer the first CHALLENGE to this end's HELLO with an ECHO, and ignore other
        CHALLENGEs.
        """
        if self.state != "hello" or datagram.dest != self.mine or not datagram.source:
            return
        self.greeting, cookie = parse_handshake_body(datagram.body)
        self.echo = self.end.own + cookie
        self.state, self.theirs = "echo", datagram.source
        self.incoming = [ReceiveSpace(self.theirs), ReceiveSpace(self.theirs)]
        self.wait, self.due, self.repeated = HELLO_FIRST_S, 0.0, 0

    def _send_waiting_segments(self, now: float) -> None:
        """Transmit responses, then requests (DGRAM-RD-38); the timer requests credit
        (DGRAM-RD-20).
        """
        for space in (RESPONSES, REQUESTS):
            out = self.out[space]
            # The number of datagrams that may be outstanding (DGRAM-EXT-4).
            far = self.greeting.window
            while (
                out.has_credit_for_next_segment()
                and len(out.outstanding) < far
                and self._count_segments_in_flight() < self.window
            ):
                octets, request = out.waiting.popleft()
                sent = SegmentInFlight(out.psn, octets, request, now)
                out.psn = (out.psn + 1) % NEXT
                out.outstanding.append(sent)
                self._send_data_segment(space, sent)
        if self.has_unacknowledged_segments() and not self.due:
            self.due = now + self.rto
        elif not self.has_unacknowledged_segments():
            self.due = 0.0

    def _count_segments_in_flight(self) -> int:
        return sum(not sent.came for out in self.out for sent in out.outstanding)

    def _send_data_segment(self, space: int, sent: SegmentInFlight) -> None:
        flags = RESPONSE if space == RESPONSES else 0
        made = self.make_datagram(DATA, psn=sent.psn, flags=flags, body=sent.octets)
        self.send(made)
        self.owes_ack = self.owes_ack and any(way.stored for way in self.incoming)

    def _send_ack(self, flags: int, psn: int) -> None:
        ranges = tuple(
            ack_ranges_of_psns(way.psn, list(way.stored))[: MOST_RANGES // 2]
            for way in self.incoming
        )
        flags |= NOT_READY if self.not_ready else 0
        body = AckBody(ranges, rnr_timer=self.end.rnr_timer if self.not_ready else 0)  # type: ignore[arg-type]
        self.send(self.make_datagram(ACK, psn=psn, flags=flags, body=body.octets()))
        self.owes_ack = False

    def _retransmit_or_probe_after_timeout(self, now: float) -> None:
        """Retransmit the first missing segment; if no segment is missing, request an
        acknowledgement.
        """
        self.repeated += 1
        self.rto = min(2 * self.rto, RTO_MOST_S)
        self.due = now + self.rto
        missing = [sent for out in self.out for sent in out.outstanding if not sent.came]
        if missing:
            self._retransmit_segment(missing[0], now)
            return
        self.probe_psn += 1
        self.send(self.make_datagram(PROBE, psn=self.probe_psn))


class RdPeer:
    """An RD endpoint, independent of siwarp, that exchanges messages with any number of peers."""

    def __init__(
        self,
        sock: socket.socket,
        qkey: int,
        seed: object,
        *,
        credit: int = 256,
        ird: int = 4,
        segment_octets: int = SEGMENT_OCTETS,
        receives: int | None = None,
        rnr_timer: int = 12,
    ) -> None:
        self.sock, self.qkey, self.credit, self.ird = sock, qkey, credit, ird
        self.segment_octets = segment_octets
        # The number of posted receives; None means unlimited.
        self.receives = receives
        self.rnr_timer = rnr_timer
        self.regions: dict[int, Region] = {}
        self.arrivals: list[Arrival] = []
        self.pairs: dict[Address, RdPair] = {}
        self.past: list[RdPair] = []
        self.wrong: list[str] = []
        self.counts = {"CRC": 0, "Q_Key": 0, "late": 0, "cookie": 0, "unknown": 0}
        self._rng = random.Random(f"epochs {seed}")
        self._secret = self._rng.randbytes(16)
        self.instance = self._rng.randrange(1, 1 << 64)
        self.own = encode_handshake_body(OPTIONS | {INSTANCE: self.instance.to_bytes(8, "big")})
        self._began = net.now()

    def consume_receive(self) -> bool:
        """Consume a posted receive; return False if there is none."""
        if self.receives is None:
            return True
        if self.receives == 0:
            return False
        self.receives -= 1
        return True

    def get_or_create_rd_pair(self, address: Address) -> RdPair:
        """Return the pair with this peer; the first segment to the peer starts the handshake."""
        found = self.pairs.get(address)
        if found is None or found.state == "closed":
            if found is not None:
                self.past.append(found)
            found = self.pairs[address] = RdPair(self, address, self._draw_random_epoch(), 0)
        return found

    def conversation_with(self, address: Address) -> Conversation:
        """Return the Conversation that sends messages to this peer."""
        return self.get_or_create_rd_pair(address).talk

    def process_datagrams_and_run_timers(self) -> None:
        """Process all queued datagrams, and run the timers of all pairs."""
        for octets, source in receive_waiting_datagrams(self.sock):
            try:
                datagram = parse_datagram(octets)
            except WireError:
                self.counts["CRC"] += 1
                continue
            if datagram.qkey != self.qkey:
                self.counts["Q_Key"] += 1
                continue
            if not unused_fields_are_zero(datagram):
                self.wrong.append(f"fields without meaning are not zero: {datagram}")
            try:
                self._process_datagram(datagram, source)
            except WireError as wrong:
                self.wrong.append(str(wrong))
        now = net.now()
        for pair in list(self.pairs.values()):
            pair.transmit_and_run_timers(now)

    def close(self) -> None:
        """End the incarnations of all pairs."""
        for pair in self.pairs.values():
            pair.close()

    def is_idle(self) -> bool:
        """Return whether every peer has acknowledged all segments that were sent to it."""
        return not any(
            p.has_unacknowledged_segments() for p in self.pairs.values() if p.state != "closed"
        )

    def _draw_random_epoch(self) -> int:
        return self._rng.randrange(1, NEXT)

    def _process_datagram(self, datagram: Datagram, source: Address) -> None:
        pair = self.pairs.get(source)
        if datagram.type == HELLO:
            self._send_challenge(datagram, source, pair)
        elif datagram.type == CHALLENGE:
            if pair is not None:
                pair.process_challenge(datagram)
        elif datagram.type == ECHO and not self._epochs_match(pair, datagram):
            self._process_echo(datagram, source, pair)
        elif pair is not None and self._epochs_match(pair, datagram):
            if datagram.type == ECHO:
                pair.owes_ack = True
            pair.process_datagram(datagram)
        elif datagram.type in (DATA, ACK, PROBE):
            self.counts["unknown"] += 1
            bye = Datagram(
                BYE, self.qkey, datagram.dest, datagram.source, ird_or_reason=UNKNOWN_PAIR
            )
            self.sock.sendto(bye.octets(), source)
        elif datagram.type == BYE:
            self._answer_unknown_bye(datagram, source)

    def _answer_unknown_bye(self, bye: Datagram, source: Address) -> None:
        """Answer a BYE of an unknown pair, because an earlier answer may have been lost
        (DGRAM-BYE-2).
        """
        reason = bye.ird_or_reason
        if bye.flags & ANSWER or reason == UNKNOWN_PAIR:
            return
        answer = Datagram(BYE, self.qkey, bye.dest, bye.source, ird_or_reason=reason, flags=ANSWER)
        self.sock.sendto(answer.octets(), source)

    @staticmethod
    def _epochs_match(pair: RdPair | None, datagram: Datagram) -> bool:
        if pair is None or pair.state == "closed" or not pair.theirs:
            return False
        return (datagram.source, datagram.dest) == (pair.theirs, pair.mine)

    def _send_challenge(self, hello: Datagram, source: Address, pair: RdPair | None) -> None:
        """Answer a HELLO without storing state; a repeated HELLO receives the same epoch
        (DGRAM-MEET-2).
        """
        if len(hello.body) < GREETING_OCTETS or not hello.source:
            return
        said, _ = parse_handshake_body(hello.body)
        mine = (
            int.from_bytes(self._keyed_hash(f"epoch {source} {hello.source}".encode(), 4), "big")
            or 1
        )
        lives = pair is not None and pair.state != "closed"
        if pair is not None and lives and (pair.state == "hello" or hello.source == pair.theirs):
            mine = pair.mine
        cookie = self._make_cookie(source, hello.source, mine, self._cookie_clock_ms(), said)
        body = self.own + cookie
        answer = Datagram(CHALLENGE, self.qkey, mine, hello.source, body=body)
        self.sock.sendto(answer.octets(), source)

    def _cookie_clock_ms(self) -> int:
        """Return the current time as cookies contain it, in milliseconds."""
        return int((net.now() - self._began) * 1000) % NEXT

    def _keyed_hash(self, covered: bytes, size: int) -> bytes:
        return hashlib.blake2b(covered, key=self._secret, digest_size=size).digest()

    def _make_cookie(
        self, source: Address, theirs: int, mine: int, when: int, said: Greeting
    ) -> bytes:
        """Return a cookie whose hash covers the version and the options of both ends
        (DGRAM-EXT-1).
        """
        covered = f"cookie {source} {theirs} {mine} {when} 1 ".encode()
        return COOKIE.pack(when, self._keyed_hash(covered + said.octets + self.own, 8))

    def _process_echo(self, echo: Datagram, source: Address, pair: RdPair | None) -> None:
        """Create a pair if this end made the ECHO's cookie for the source address and both
        epochs.
        """
        said, cookie = parse_handshake_body(echo.body)
        if len(cookie) != COOKIE.size:
            return
        (when, _) = COOKIE.unpack(cookie)
        good = cookie == self._make_cookie(source, echo.source, echo.dest, when, said)
        if not good or (self._cookie_clock_ms() - when) % NEXT > 1000 * COOKIE_LIFE_S:
            self.counts["cookie"] += 1
            return
        if pair is not None and pair.state == "hello":
            if echo.source < pair.mine or echo.dest != pair.mine:
                # Both ends started a handshake, and the handshake of this end continues.
                return
            pair.theirs, pair.state = echo.source, "open"
            pair.incoming = [ReceiveSpace(pair.theirs), ReceiveSpace(pair.theirs)]
        else:
            if pair is not None and pair.began_by >= 0 and when <= pair.began_by:
                return
            if pair is not None:
                pair.end_incarnation(UNKNOWN_PAIR)
                self.past.append(pair)
            pair = self.pairs[source] = RdPair(self, source, echo.dest, echo.source)
        pair.greeting = said
        pair.began_by, pair.due, pair.owes_ack = when, 0.0, True
        pair.process_datagram(echo)
