"""A numerical model of a bottleneck: a queue with a rate, and flows with a round-trip time.

The model runs in virtual time with a fixed random seed, and calls the congestion controllers of
`siwarp/rd/rd_cc.h` as the RD sender does.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import Any

from _siwarp_layers import ffi, lib

MS, SECOND, MSS = 10**6, 10**9, 1472
#: Nanoseconds between the first datagrams of the flows, which send one each, as in a handshake; and
#: until all flows begin to send data together.
_HELLO, _BEGIN = 50 * MS, 200 * MS


@dataclass(eq=False)
class Datagram:
    """A datagram in flight."""

    sent_ns: int
    sent: Any
    dropped: bool = False
    marked: bool = False


@dataclass(eq=False)
class Flow:
    """A sender that always has data to send through a Bottleneck."""

    cc: Any
    rtt: int
    flying: list[Datagram] = field(default_factory=list)
    in_flight: int = 0
    pace: int = 0
    delivered: int = 0
    lost: int = 0
    full: bool = False
    started: bool = False
    timer: int = 0
    heard: int = 0


class Bottleneck:
    """A queue of limited rate and capacity, through which several flows send packets.

    Args:
        mbit_s: the rate at which the queue drains, in Mbit/s.
        queue: the capacity of the queue in octets.
        loss: the fraction of packets lost before the queue.
        mark_at: octets in the queue from which packets are marked CE.
        bucket: octets of a token bucket, which pass without delay after a pause.

    """

    def __init__(
        self,
        mbit_s: float,
        queue: int,
        loss: float = 0.0,
        mark_at: int | None = None,
        bucket: int = 0,
    ) -> None:
        self.ns_per_octet = 8000 / mbit_s
        self.queue, self.loss, self.mark_at, self.bucket = queue, loss, mark_at, bucket
        self.random = random.Random(7)
        self.now = 0
        self.free_at = 0.0
        self.flows: list[Flow] = []
        self.events: list[tuple[int, int, str, Flow, Datagram | None]] = []
        self.n = 0
        self.marks = 0

    def add_flow(self, rtt_ms: float, kind: str = "bbr", starts: int = 0) -> Flow:
        """Add a flow with this round-trip time in ms and this congestion controller."""
        cc = ffi.new("struct siw_rd_cc *")
        lib.siw_setting_set(b"rd_cc", {"bbr": 1, "cubic": 2}[kind])
        lib.siw_rd_cc_init(cc, MSS, False)
        lib.siw_setting_set(b"rd_cc", 0)
        cc.bbr.random = len(self.flows)  # a fixed seed; the default is a random one
        made = Flow(cc, int(rtt_ms * MS))
        self._schedule_event(starts + len(self.flows) * _HELLO, "hello", made)
        self._schedule_event(starts + _BEGIN, "begin", made)
        self.flows.append(made)
        return made

    def _schedule_event(
        self, when: int, what: str, flow: Flow, datagram: Datagram | None = None
    ) -> None:
        self.n += 1
        heapq.heappush(self.events, (max(int(when), self.now), self.n, what, flow, datagram))

    def _pacing_delay_of_flow(self, flow: Flow, octets: int) -> int:
        return int(lib.siw_rd_cc_pacing_delay(flow.cc, octets))

    def _send_datagram(self, flow: Flow) -> None:
        sent = ffi.new("struct siw_rd_sent *")
        lib.siw_rd_cc_note_sent(flow.cc, self.now, MSS, flow.in_flight, sent)
        flow.in_flight += MSS
        flow.pace = max(flow.pace, self.now - self._pacing_delay_of_flow(flow, flow.cc.burst))
        flow.pace += self._pacing_delay_of_flow(flow, MSS)
        self._queue_or_drop(flow, Datagram(self.now, sent))

    def _send_within_cwnd_and_pace(self, flow: Flow) -> None:
        while flow.started:
            if flow.in_flight and flow.in_flight + MSS > flow.cc.cwnd:
                flow.full = True
                break
            if flow.pace > self.now:
                if flow.timer <= self.now:
                    flow.timer = flow.pace + self._pacing_delay_of_flow(flow, flow.cc.quantum - MSS)
                    self._schedule_event(flow.timer, "send", flow)
                break
            self._send_datagram(flow)

    def _queue_or_drop(self, flow: Flow, datagram: Datagram) -> None:
        waiting = max(self.free_at - self.now, 0) / self.ns_per_octet - self.bucket
        flow.flying.append(datagram)
        # Without a token bucket, the packet being sent does not count as queued.
        room = self.queue - MSS if self.bucket else self.queue
        if waiting > room or self.random.random() < self.loss:
            datagram.dropped = True
            flow.lost += 1
            return
        if self.mark_at is not None and waiting > self.mark_at:
            datagram.marked = True
            self.marks += 1
        self.free_at = max(self.free_at, self.now) + MSS * self.ns_per_octet
        leaves = max(self.free_at - self.bucket * self.ns_per_octet, self.now)
        self._schedule_event(int(leaves) + flow.rtt, "ack", flow, datagram)

    def _process_ack(self, flow: Flow, datagram: Datagram) -> None:
        ack = ffi.new("struct siw_rd_cc_ack *")
        ack.now = self.now
        flow.heard = self.now
        if datagram not in flow.flying:
            return  # the datagram has already been declared lost
        flow.flying.remove(datagram)
        flow.in_flight -= MSS
        lib.siw_rd_cc_note_delivered(flow.cc, ack, datagram.sent, MSS, datagram.sent_ns)
        flow.delivered += MSS
        ack.rtt = self.now - datagram.sent_ns
        lib.siw_rd_cc_add_rtt_sample(flow.cc, ack.rtt)
        for other in [d for d in flow.flying[:8] if d.dropped and d.sent_ns < datagram.sent_ns]:
            flow.flying.remove(other)
            flow.in_flight -= MSS
            lib.siw_rd_cc_note_lost(flow.cc, ack, other.sent, MSS, other.sent_ns)
        ack.in_flight = flow.in_flight
        ack.ce = int(datagram.marked)
        ack.full = flow.full or flow.in_flight * 4 >= flow.cc.cwnd * 3
        flow.full = False
        lib.siw_rd_cc_handle_ack(flow.cc, ack)
        self._send_within_cwnd_and_pace(flow)

    def _declare_losses_after_rto(self, flow: Flow) -> None:
        """Declare all datagrams lost if no ACK has arrived within the retransmission time-out."""
        if flow.flying and flow.heard + flow.cc.rto <= self.now:
            flow.heard = self.now
            flow.flying.clear()
            flow.in_flight = 0
            lib.siw_rd_cc_handle_timeout(flow.cc, self.now)
            self._send_within_cwnd_and_pace(flow)
        self._schedule_event(
            flow.heard + flow.cc.rto if flow.flying else self.now + 20 * MS, "timeout", flow
        )

    def run(self, seconds: float) -> None:
        """Run the model for this many seconds of virtual time."""
        end = self.now + int(seconds * SECOND)
        while self.events and self.events[0][0] <= end:
            self.now, _, what, flow, datagram = heapq.heappop(self.events)
            if what == "ack":
                assert datagram is not None
                self._process_ack(flow, datagram)
            elif what == "hello":
                self._send_datagram(flow)
            elif what == "timeout":
                self._declare_losses_after_rto(flow)
            else:
                if what == "begin":
                    flow.started, flow.heard = True, self.now
                    self._declare_losses_after_rto(flow)
                self._send_within_cwnd_and_pace(flow)
        self.now = end


def capacity_share(flow: Flow, line: Bottleneck) -> float:
    """Return the fraction of the link's capacity that the flow has used since all flows began."""
    return float(flow.delivered * line.ns_per_octet / (line.now - _BEGIN))


def loss_fraction(*flows: Flow) -> float:
    """Return the fraction of the flows' datagrams that was dropped."""
    dropped = sum(flow.lost * MSS for flow in flows)
    return dropped / (dropped + sum(flow.delivered for flow in flows))
