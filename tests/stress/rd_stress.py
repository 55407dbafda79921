"""Many RD messages through an unreliable network, each checked: content, exactly once, in order.

Two queue pairs on loopback send in both directions at once, under a seeded fault plan. Prints one
line of JSON: numbers of messages, lost, duplicated, out of order and corrupt, and the run's cost.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import time
import zlib
from dataclasses import dataclass, field

from siwarp.base.counters import read_counters
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    AccessFlag,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    WCOpcode,
    WROpcode,
    faults,
)

PLAN = "loss=10%,dup=5%,reorder=10%,corrupt=0.1%"
DEPTH, SLOT_OCTETS = 256, 512
#: The seconds without a message after which no further completion is expected.
LULL_S = 0.2
# The number of the message, the length of the data that follows, and the CRC32 of the data.
HEAD = struct.Struct("<QII")


def make_message_body(number: int) -> bytes:
    """Return the data of a message after its header: 0 to 400 octets that depend on its number."""
    seed = (number * 2654435761) & 0xFFFFFFFF
    return seed.to_bytes(4, "little") * (seed % 101)


@dataclass
class ReceiverStatistics:
    """The statistics of a receiver of numbered messages."""

    messages: int = 0
    lost: int = 0
    doubled: int = 0
    misordered: int = 0
    corrupt: int = 0
    next: int = 0
    missing: set[int] = field(default_factory=set)

    def check_and_count(self, data: bytes) -> None:
        """Check and count one received message."""
        number, length, crc = HEAD.unpack_from(data)
        rest = data[HEAD.size :]
        if len(rest) != length or zlib.crc32(rest) != crc or rest != make_message_body(number):
            self.corrupt += 1
            return
        self.messages += 1
        if number == self.next:
            self.next += 1
        elif number > self.next:
            self.missing.update(range(self.next, number))
            self.next = number + 1
        elif number in self.missing:
            self.missing.discard(number)
            self.misordered += 1
        else:
            self.doubled += 1


class StressEnd:
    """A queue pair that sends ``count`` messages to its peer and checks the peer's messages."""

    def __init__(self, ctx: Context, count: int) -> None:
        self.pd = PD(ctx)
        self.scq, self.rcq = CQ(ctx, 2 * DEPTH), CQ(ctx, 2 * DEPTH)
        cap = QPCap(DEPTH, DEPTH, 1, 1)
        self.qp = QP(self.pd, QPInitAttr(QPType.RD, scq=self.scq, rcq=self.rcq, cap=cap))
        self.qp.to_rts(QPAttr(qkey=0x57E55))
        access = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_ATOMIC
        self.out, self.into = (MR(self.pd, DEPTH * SLOT_OCTETS, access) for _ in range(2))
        self.sums, self.old = MR(self.pd, 8, access), MR(self.pd, 8, access)
        self.count = count
        self.begun = self.done = self.adds = 0
        self.found = ReceiverStatistics()
        self.recvs = [
            RecvWR(i, sg=[self.into.sge(i * SLOT_OCTETS, SLOT_OCTETS)]) for i in range(DEPTH)
        ]
        self.qp.post_recv(self.recvs)

    def set_peer(self, peer: StressEnd) -> None:
        """Set the peer, and prepare the work requests."""
        ah = AH(self.pd, peer.qp.addr)
        self.sends = [
            SendWR(i, sg=[self.out.sge(i * SLOT_OCTETS, SLOT_OCTETS)], ah=ah) for i in range(DEPTH)
        ]
        self.add = SendWR(
            DEPTH,
            WROpcode.ATOMIC_FETCH_AND_ADD,
            sg=[self.old.sge(0, 8)],
            ah=ah,
            remote=peer.sums.remote(),
            compare_add=1,
        )
        self.free = list(range(DEPTH - 1))
        self.adding = False

    def post_messages(self) -> None:
        """Post as many messages as there are free slots; with every 64th message post an atomic."""
        while self.free and self.begun < self.count:
            slot = self.free.pop()
            rest = make_message_body(self.begun)
            data = HEAD.pack(self.begun, len(rest), zlib.crc32(rest)) + rest
            self.out.view[slot * SLOT_OCTETS : slot * SLOT_OCTETS + len(data)] = data
            self.sends[slot].sg[0].length = len(data)
            self.qp.post_send(self.sends[slot])
            self.begun += 1
            if self.begun % 64 == 0 and not self.adding:
                self.adding = True
                self.qp.post_send(self.add)

    def poll_and_count(self) -> int:
        """Process completions, and return the number of received messages."""
        for wc in self.scq.poll(64):
            assert wc.ok, wc
            if wc.opcode == WCOpcode.SEND:
                self.free.append(wc.wr_id)
                self.done += 1
            else:
                self.adding = False
                self.adds += 1
        came = self.rcq.poll(64)
        for wc in came:
            assert wc.ok, wc
            at = wc.wr_id * SLOT_OCTETS
            self.found.check_and_count(bytes(self.into.view[at : at + wc.byte_len]))
            self.qp.post_recv(self.recvs[wc.wr_id])
        return len(came)

    def is_finished(self) -> bool:
        """Return whether the peer has acknowledged all of this end's messages."""
        return self.done == self.count and not self.adding


def main(argv: list[str] | None = None) -> int:
    """Run the test; return 0 if all messages arrived exactly once, in order and intact, and the
    sums of the atomics are exact.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plan", default=PLAN)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds")
    args = parser.parse_args(argv)
    ctx = Context("siw_lo")
    half = args.messages // 2
    ends = [StressEnd(ctx, args.messages - half), StressEnd(ctx, half)]
    ends[0].set_peer(ends[1])
    ends[1].set_peer(ends[0])
    started = time.monotonic()
    with faults(f"{args.plan},seed={args.seed}"):
        while not all(end.is_finished() for end in ends):
            for end in ends:
                end.post_messages()
                end.poll_and_count()
            if time.monotonic() - started > args.limit:
                break
        # The last messages have been acknowledged, but may still be in the peer's completion queue.
        quiet = time.monotonic() + LULL_S
        while time.monotonic() < quiet:
            if sum(end.poll_and_count() for end in ends):
                quiet = time.monotonic() + LULL_S
    found = [end.found for end in ends]
    counts = [ends[1].count, ends[0].count]
    for f, count in zip(found, counts, strict=True):
        f.lost = count - f.next + len(f.missing)
    sums = [int.from_bytes(end.sums.read(8), sys.byteorder) for end in ends]
    exact = sums == [ends[1].adds, ends[0].adds]
    result = {
        name: sum(getattr(f, name) for f in found)
        for name in ("messages", "lost", "doubled", "misordered", "corrupt")
    } | {
        "atomics": sum(sums),
        "atomics_exact": exact,
        "sent_again": read_counters(os.getpid())["rd_retransmits"],
    }
    result["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(result))
    bad = any(result[n] for n in ("lost", "doubled", "misordered", "corrupt"))
    return int(bad or not exact or result["messages"] != args.messages)


if __name__ == "__main__":
    sys.exit(main())
