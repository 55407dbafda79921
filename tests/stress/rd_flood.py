"""Spoofed first datagrams sent to an RD queue pair that also serves an honest peer.

A separate process sends them, each from a different address of 127.0.0.0/8, with the Q_Key and a
valid CRC, of every type, until the queue pair has handled the requested number. Prints one line of
JSON: number of datagrams, answers, growth of memory, and the honest peer's messages meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from siwarp.base.counters import read_counters
from siwarp.inspect.crc import crc32c
from siwarp.inspect.rd import COOKIE_LEN, HELLO_LEAST, RDDatagram, RDType, make_handshake_offer
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
)

QKEY = 0xF100D
DEPTH, OCTETS = 16, 64
SOCKETS = 32
BLOCK = 2000
#: The counters for the outcome of each spoofed datagram, except a HELLO that was answered.
JUDGED = ("drop_rd_epoch", "drop_rd_hello", "drop_rd_cookie", "drop_rd_peers")
IP_PKTINFO, IN_PKTINFO = 8, struct.Struct("=i4s4s")  # a constant and a struct of linux/in.h


# ---- the attacker


def build_datagram_templates() -> list[tuple[bytearray, bool]]:
    """Return a datagram of each RD type, and whether it has a cookie."""
    cookie = make_handshake_offer() + bytes(COOKIE_LEN)
    bodies = {RDType.HELLO: make_handshake_offer().ljust(HELLO_LEAST, b"\0"),
              RDType.CHALLENGE: cookie,
              RDType.ECHO: cookie, RDType.DATA: bytes(20)}  # fmt: skip
    found = []
    for kind in [*RDType, RDType.HELLO, RDType.ECHO]:
        body = bodies.get(kind, b"")
        d = RDDatagram(type=int(kind), q_key=QKEY, credit=64, source_epoch=1, body=body)
        if kind != RDType.HELLO:
            d.dest_epoch = 1
        found.append((bytearray(bytes(d)), kind == RDType.ECHO))
    return found


class SpoofedFlood:
    """The spoofed datagrams, each from a different address, and the answers to them."""

    def __init__(self, port: int) -> None:
        self.dest = ("127.0.0.1", port)
        self.socks = []
        for _ in range(SOCKETS):
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            s.bind(("", 0))
            s.setblocking(False)
            self.socks.append(s)
        self.kinds = build_datagram_templates()
        self.rng = random.Random(1)
        self.sent = self.sent_octets = self.answers = self.answer_octets = 0
        self.challenges = self.longest = self.too_long = 0

    def send_spoofed_datagrams(self) -> None:
        """Send a block of datagrams, each from a different source address."""
        for _ in range(BLOCK):
            octets, cookie = self.kinds[self.sent % len(self.kinds)]
            octets[12:16] = self.rng.randbytes(4)
            if octets[16:20] != bytes(4):
                octets[16:20] = self.rng.randbytes(4)
            if cookie:
                octets[-4 - COOKIE_LEN : -4] = self.rng.randbytes(COOKIE_LEN)
            octets[-4:] = crc32c(memoryview(octets)[:-4]).to_bytes(4, "little")
            where = (self.sent + 2).to_bytes(3, "big")
            info = IN_PKTINFO.pack(0, b"\x7f" + where, bytes(4))
            s = self.socks[self.sent % SOCKETS]
            s.sendmsg([octets], [(socket.IPPROTO_IP, IP_PKTINFO, info)], 0, self.dest)
            self.sent += 1
            self.sent_octets += len(octets)

    def receive_answers(self) -> None:
        """Receive and count the answers that have arrived."""
        for s in self.socks:
            for _ in range(10 * BLOCK):
                try:
                    got = s.recv(65536)
                except BlockingIOError:
                    break
                challenge = got[0] >> 4 == RDType.CHALLENGE
                self.challenges += challenge
                self.answers += 1
                self.answer_octets += len(got)
                self.longest = max(self.longest, len(got))
                # A CHALLENGE may be as long as the HELLO that it answers; other answers may be as
                # long as a header.
                self.too_long += len(got) > (40 + HELLO_LEAST if challenge else 40)


def run_attacker(port: int, pid: int, goal: int, limit: float) -> dict[str, Any]:
    """Send spoofed datagrams until the queue pair has handled this number of them."""
    f = SpoofedFlood(port)

    def poll_and_sum_counters() -> int:
        counters = read_counters(pid)
        return sum(counters[name] for name in JUDGED)

    before, stop = poll_and_sum_counters(), time.monotonic() + limit
    while poll_and_sum_counters() - before + f.challenges < goal and time.monotonic() < stop:
        f.send_spoofed_datagrams()
        f.receive_answers()
    return {
        "spoofed": f.sent,
        "judged": poll_and_sum_counters() - before + f.challenges,
        "answers": f.answers,
        "longest_answer": f.longest,
        "longer_than_asked": f.too_long,
        "octets_spoofed": f.sent_octets,
        "octets_answered": f.answer_octets,
    }


# ---- the target


class RdEnd:
    """An RD queue pair with receives posted."""

    def __init__(self, ctx: Context, max_peers: int = 0) -> None:
        self.pd = PD(ctx)
        self.scq, self.rcq = CQ(ctx, 2 * DEPTH), CQ(ctx, 2 * DEPTH)
        cap = QPCap(DEPTH, DEPTH, 1, 1)
        attr = QPInitAttr(QPType.RD, scq=self.scq, rcq=self.rcq, cap=cap, max_peers=max_peers)
        self.qp = QP(self.pd, attr)
        self.qp.to_rts(QPAttr(qkey=QKEY))
        self.mr = MR(self.pd, 2 * OCTETS)
        self.recvs = [RecvWR(i, sg=[self.mr.sge(OCTETS, OCTETS)]) for i in range(DEPTH)]
        self.qp.post_recv(self.recvs)

    def set_destination(self, other: RdEnd) -> None:
        """Set the destination of the messages of this end."""
        self.wr = SendWR(1, sg=[self.mr.sge(0, OCTETS)], ah=AH(self.pd, other.qp.addr))

    def poll_and_count_messages(self) -> int:
        """Poll the completion queues, and return the number of received messages."""
        for wc in self.scq.poll(DEPTH):
            assert wc.ok, wc
        got = self.rcq.poll(DEPTH)
        for wc in got:
            assert wc.ok, wc
            self.qp.post_recv(self.recvs[wc.wr_id])
        return len(got)


def measure_round_trip(a: RdEnd, b: RdEnd, limit: float = 30.0) -> float:
    """Send a message and have it sent back; return the round trip time in seconds."""
    began = time.monotonic()
    for end, other in ((a, b), (b, a)):
        end.qp.post_send(end.wr)
        while not other.poll_and_count_messages():
            end.poll_and_count_messages()
            if time.monotonic() - began > limit:
                raise SystemExit(f"an honest message took more than {limit} s")
    return time.monotonic() - began


def resident_octets() -> int:
    """Return the resident memory of this process in octets."""
    statm = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(statm.split()[1]) * os.sysconf("SC_PAGESIZE")


def run_flood_target(count: int, limit: float) -> dict[str, Any]:
    """Exchange messages with an honest peer during the flood, and return the results."""
    ctx = Context("siw_lo")
    # The queue pair has peer records for the honest peer and one more peer. If a spoofed datagram
    # used a peer record, none would be left for the other peer.
    victim, honest, late = RdEnd(ctx, max_peers=2), RdEnd(ctx), RdEnd(ctx)
    for a, b in ((victim, honest), (honest, victim), (late, victim)):
        a.set_destination(b)
    times = deque((measure_round_trip(honest, victim) for _ in range(2000)), maxlen=2000)
    before = list(times)
    memory = resident_octets()
    code = [sys.executable, __file__, "--port", str(victim.qp.addr[1]), "--pid", str(os.getpid())]
    child = subprocess.Popen(
        [*code, f"--count={count}", f"--limit={limit}"], stdout=subprocess.PIPE, text=True
    )
    messages, began = 0, time.monotonic()
    while child.poll() is None:
        for _ in range(20):
            times.append(measure_round_trip(honest, victim))
            messages += 1
    took = time.monotonic() - began
    grown = resident_octets() - memory
    late.qp.post_send(late.wr)
    stop = time.monotonic() + 30
    while not victim.poll_and_count_messages() and time.monotonic() < stop:
        late.poll_and_count_messages()
    assert child.stdout is not None
    result: dict[str, Any] = json.loads(child.stdout.read())
    result |= {
        "memory_grew": grown,
        "honest_messages": 2 * messages,
        "honest_us_before": round(1e6 * statistics.median(before), 1),
        "honest_us_during": round(1e6 * statistics.median(times), 1),
        "newcomer_served": time.monotonic() < stop,
        "seconds": round(took, 1),
    }
    return result


def main(argv: list[str] | None = None) -> int:
    """Run the attacker or the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds")
    parser.add_argument("--port", type=int, help="flood this port; without, be flooded")
    parser.add_argument("--pid", type=int, help="of whoever has that port")
    args = parser.parse_args(argv)
    if args.port:
        result = run_attacker(args.port, args.pid, args.count, args.limit)
    else:
        result = run_flood_target(args.count, args.limit)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
