# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks at the end of each program, one after another, on a network without faults.

Without faults it is known what must happen, and when. These checks deliberately create situations
that random programs rarely reach, or that faults would excuse.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from siwarp.sim.workloads.model import End, Host, Message, Request, Target, content, require
from siwarp.sim.workloads.program import set_to
from siwarp.sim.workloads.rc import ENDLESS, RNR_NS
from siwarp.verbs import AccessFlag, QPState, QPType, WCStatus

if TYPE_CHECKING:
    from siwarp.sim.workloads.execution import Execution

__all__ = ["Endings"]

#: Arguments of Execution.greet for a message of 3,000 octets, and for one that fills its slot.
LONG, LONGEST = 21, 5
#: Number of RD Sends before a pause: too many for an 8-bit counter.
MANY = 300
#: Seconds of silence after which an RD peer's record counts as idle and may be evicted.
REST_S = 130
#: Maximum number of pairs of queue pairs that each check uses, by type.
TRIED = 3
#: Seconds for which all packets of one direction are lost: less than any connection time-out.
OUTAGE_S = 0.1
#: Number of Write-Records in flight at a time, and the octets of each: two datagrams.
RECORDS, RECORD = 4, 1500
#: Seconds after which a Write-Record has ended in any case: above SIWARP_RECORD_TIMEOUT_MS.
RECORD_S = 0.2


class Endings:
    """The end of a program.

    Args:
        run: the program.
        access: access rights of peers to targets.

    """

    def __init__(self, run: Execution, access: AccessFlag) -> None:
        self.run = run
        self.access = access
        self.rng = random.Random(run.program.seed)

    def all(self) -> None:
        """Run all checks in a fixed order."""
        self.arrive()
        self.outages()
        self.replies()
        self.count()
        self.records()
        self.starve()
        self.share()
        self.part()
        self.revoke()

    # ---- choice of queue pairs

    def _ready(self, *kinds: QPType) -> list[End]:
        """Return the undisturbed queue pairs of these types in RTS."""
        ends = [e for e in self.run.live() if e.kind in kinds and e.qp.qp_state == QPState.RTS]
        ends = [e for e in ends if not (e.liar or e.send.small or e.disturbance.faults)]
        # A receive that is too short, or whose region is closed, would consume a message.
        return [e for e in ends if not e.short]

    def _pairs(self, kind: QPType) -> list[tuple[End, End]]:
        """Return up to TRIED pairs of queue pairs of a type that can exchange messages."""
        ends = self._ready(kind)
        if kind in (QPType.UD, QPType.RD):
            found = list(zip(ends, ends[1:] + ends[:1], strict=True))
        else:
            found = [(e, e.peer) for e in ends if e.peer is not None and e.peer in ends]
        found = [(a, b) for a, b in found if a.host is not b.host and a.host.up and b.host.up]
        if kind == QPType.RC:
            found = [(a, b) for a, b in found if a.pair is not None and not a.pair.causes]
        self.rng.shuffle(found)
        return found[:TRIED]

    # ---- all types

    def arrive(self) -> None:
        """Send on UD and UC: the network loses nothing now, so each message must arrive."""
        run = self.run
        for kind in (QPType.UD, QPType.UC):
            for end, peer in self._pairs(kind):
                run.receive_everywhere()
                sent = run.greet(end, dest=peer.address)
                message = sent.message if sent is not None else None
                if message is None:
                    continue
                self._arrives(message)
                require(
                    bool(message.taken),
                    f"message {message.number} of {end!r} to {peer!r} did not arrive, and nothing "
                    "is lost any more",
                )

    def outages(self) -> None:
        """Interrupt one direction briefly: requests posted meanwhile must be retransmitted."""
        run = self.run
        for kind in (QPType.RD, QPType.RC):
            for end, peer in self._pairs(kind):
                for source, dest in ((end, peer), (peer, end)):
                    run.receive_everywhere()
                    run.world.partition(source.host.address, dest.host.address, one_way=True)
                    posted = [run.greet(end, dest=peer.address), self.read(end, peer)]
                    run.world.run_for(self.rng.random() * OUTAGE_S)
                    run.world.heal()
                    for request in posted:
                        if request is not None:
                            self._must(request, "the path was interrupted briefly")

    def read(self, end: End, peer: End, length: int = 4096) -> Request | None:
        """Post a Read of a peer's target; None: the target is closed, or posting failed."""
        run = self.run
        if peer.host.target.memory.mr is None:
            return None
        request = run.request(end, "read")
        if request is None:
            return None
        request.dest = peer.address
        return request if run.read(request, peer.host.target, length, 0) else None

    def _must(self, request: Request, why: str) -> None:
        """Raise a Violation unless the request completes with success and its message arrives."""
        what = f"{request.verb} {request.wr_id} of {request.end!r} to {request.dest}"
        require(
            self.done(request, 60) and request.status == WCStatus.SUCCESS,
            f"{what} did not complete, although nothing happened except: {why}",
        )
        message = request.message
        if message is not None:
            self._arrives(message)
            require(
                bool(message.taken),
                f"{what} completed but did not arrive, although nothing happened except: {why}",
            )

    def _arrives(self, message: Message) -> None:
        """Poll until a message has arrived, for up to 5 s, because TCP may retransmit late."""
        run = self.run
        began = run.world.now
        while not message.taken and run.world.now - began < 5:
            run.poll_everything()
            run.world.run_for(0.005)

    def replies(self) -> None:
        """Answer RD messages at once: a Send must complete before the answer arrives."""
        run = self.run
        for end, peer in self._pairs(QPType.RD):
            run.receive_everywhere()
            sent = run.greet(end, dest=peer.address)
            if sent is None or sent.message is None:
                continue
            began = run.world.now
            while not sent.message.taken and run.world.now - began < 60:
                run.poll(peer.host, peer.recv, 1)
                run.world.run_for(0)
            answer = run.greet(peer, dest=end.address)
            if answer is None or answer.message is None:
                continue
            while not answer.message.taken and run.world.now - began < 60:
                run.poll(end.host, end.recv, 1)
                run.world.run_for(0.0001)
            require(
                sent.done or not answer.message.taken,
                f"{end!r} received the answer of {peer!r} before its own Send completed",
            )

    def count(self) -> None:
        """Send over 255 messages on RD, pause until the peers' records are idle, and send again."""
        run = self.run
        for end, peer in self._pairs(QPType.RD)[:1]:
            for number in range(MANY):
                if number % 8 == 0:
                    run.receive_everywhere()
                sent = run.greet(end, dest=peer.address)
                if sent is None:
                    return
                if number % 8 == 7:
                    self._must(sent, "many messages were sent before")
            run.poll_everything()
            run.world.run_for(REST_S)
            run.receive_everywhere()
            sent = run.greet(end, dest=peer.address)
            if sent is not None:
                self._must(sent, "there was a pause")

    # ---- Write-Records of UD

    def records(self) -> None:
        """Lose datagrams of Write-Records: those that arrived in part must be reported."""
        run = self.run
        ends = [e for e in self._ready(QPType.UD) if e.host.up]
        for end, peer in self._pairs(QPType.UD)[:1]:
            target = peer.host.target
            cell = target.cell(end, peer.address, steady=True, record=True)
            if cell is None or target.memory.mr is None or len(ends) < 2:
                continue
            cell.expected[:] = content(1 << 40 | cell.number, cell.length)
            run.world.link(end.host.address, peer.host.address, "loss=40%,seed=7")
            for _ in range(4):
                self._records(end, peer, cell.at)
            run.world.link(end.host.address, peer.host.address, None)

    def _records(self, end: End, peer: End, at: int) -> None:
        run, target = self.run, peer.host.target
        cell = next(c for c in target.cells.values() if c.at == at)
        target.memory.view[at : at + cell.length] = bytes(cell.length)
        before = run.reports
        for number in range(RECORDS):
            run.write_record(end, peer, cell, number * RECORD, RECORD)
            run.world.run_for(0.001)
        began = run.world.now
        while run.world.now - began < RECORD_S:
            run.poll_everything()
            run.world.run_for(0.005)
        octets = target.octets(cell)
        came = sum(any(octets[n * RECORD : (n + 1) * RECORD]) for n in range(RECORDS))
        require(
            run.reports - before == came,
            f"{came} Write-Records of {end!r} arrived at {peer!r} at least in part, but "
            f"{run.reports - before} were reported",
        )

    # ---- missing receives

    def starve(self) -> None:
        """Post two Sends to a new peer that posts one receive: the second must fail in time."""
        run = self.run
        up = [host for host in run.hosts if host.up]
        if "RC" not in run.program.kinds or len(up) < 2:
            return
        rng = random.Random(run.program.seed)
        a, b = (
            run.make_end(host, QPType.RC, by_qpn=True, private=True, plain=True)
            for host in rng.sample(up, 2)
        )
        retry = rng.choice((0, 1, 1, 3, 3))
        run.rc.pair(a, b, rng, (retry, ENDLESS))
        run.world.run_for(0.1)
        self._starve(a, b, retry)

    def _starve(self, end: End, peer: End, retry: int) -> None:
        run = self.run
        while peer.waiting:
            sent = run.greet(end)
            if sent is None or not self.done(sent, 60):
                return
        first, second = run.greet(end), run.greet(end)
        if first is None or second is None:
            return
        run.world.run_for(0.001)
        run.post_receive(peer)
        timer = RNR_NS[peer.min_rnr_timer or 0] / 1e9
        # The second Send's time starts when the first gets its receive. done() polls every 5 ms.
        limit = retry * timer + 0.02
        require(
            self.done(second, limit, end.host),
            f"{second.verb} {second.wr_id} of {end!r} may wait {retry} times {timer} s for its "
            f"receive, but has not ended after {limit} s",
        )

    def share(self) -> None:
        """Let Sends to several queue pairs wait for one shared receive queue, then post receives.

        The network has no faults, so all Sends must get their receives.
        """
        run = self.run
        up = [host for host in run.hosts if host.up and not host.liar]
        if len(up) < 2:
            return
        rng = self.rng
        source, host = rng.sample(up, 2)
        pairs = [*self._sharers(source, host, rng)]
        run.world.run_for(0.1)
        for end, peer in itertools.cycle(pairs):
            if not host.srq_posted:
                break
            sent = run.greet(end, dest=peer.address)
            if sent is None or not self.done(sent, 60):
                return  # another check reports the missing completion
        sends = [run.greet(end, dest=peer.address) for end, peer in pairs]
        waiting = [request for request in sends if request is not None]
        run.world.run_for(0.05)
        run.post_shared(host, len(waiting))
        for request in waiting:
            require(
                self.done(request, 1),
                f"{request.verb} {request.wr_id} of {request.end!r} has a receive in the shared "
                f"queue of {host.address}, but did not complete",
            )

    def _sharers(self, source: Host, host: Host, rng: random.Random) -> Iterator[tuple[End, End]]:
        """Make queue pairs that use a host's shared receive queue, each with a peer."""
        run = self.run
        for _ in range(3):
            if "RC" in run.program.kinds:
                a = run.make_end(source, QPType.RC, by_qpn=True, private=True, plain=True)
                b = run.make_end(
                    host, QPType.RC, by_qpn=True, private=True, plain=True, shares=True
                )
                run.rc.pair(a, b, rng, (7, 7))
                yield a, b
            if "RD" in run.program.kinds:
                yield (
                    run.make_end(source, QPType.RD, plain=True),
                    run.make_end(host, QPType.RD, plain=True, shares=True),
                )

    # ---- orderly end of a connection

    def part(self) -> None:
        """Close one end while both send: messages that completed there must still arrive."""
        if not self.run.program.settings["linger_ms"]:
            return
        self.run.world.faults("delay=2ms,rate=10Mbit")
        for end in self.run.live():
            pair, peer = end.pair, end.peer
            if pair is None or peer is None or pair.causes:
                continue
            if end.qp.qp_state == peer.qp.qp_state == QPState.RTS:
                self._part(end, peer)
                break
        self.run.world.faults("")

    def _part(self, end: End, peer: End) -> None:
        run = self.run
        run.receive_everywhere()
        sent = [run.greet(end, LONG) for _ in range(8)]
        for _ in sent:  # data that arrives at the closed end must not reset the connection
            run.greet(peer, LONG)
        requests = [request for request in sent if request is not None]
        if not all(self.done(request, 60) for request in requests):
            return  # another check reports the missing completions
        messages = [request.message for request in requests if request.message is not None]
        run.destroy(end)
        for _ in range(200):
            run.poll_everything()
            run.world.run_for(0.005)
        for message in messages:
            require(
                bool(message.taken) or message.status != WCStatus.SUCCESS,
                f"message {message.number} of {end!r} completed before the queue pair was "
                f"closed, but did not arrive at {peer!r}",
            )

    # ---- deregistration

    def revoke(self) -> None:
        """Close a region that peers are reading, and overwrite its memory.

        The host's earlier Sends fill its socket buffer, so that read responses are still queued.
        The CRC may be off, so that only the octets can show an error.
        """
        run = self.run
        up = [h for h in run.hosts if h.up and not h.liar and h.target.memory.mr is not None]
        if not {"RC", "RD"} & set(run.program.kinds) or len(up) < 2:
            return
        source, host = self.rng.sample(up, 2)
        pairs = []
        with set_to({"sndbuf": 4096, "crc": self.rng.randrange(2)}):
            if "RC" in run.program.kinds:
                a = run.make_end(source, QPType.RC, by_qpn=True, private=True, plain=True)
                b = run.make_end(host, QPType.RC, by_qpn=True, private=True, plain=True)
                run.rc.pair(a, b, self.rng, (ENDLESS, ENDLESS), depth=16)
                pairs.append((a, b))
            if "RD" in run.program.kinds:
                a = run.make_end(source, QPType.RD, plain=True)
                pairs.append((a, run.make_end(host, QPType.RD, plain=True)))
            run.world.run_for(0.1)
            for end, peer in pairs:
                self._must_greet(end, peer)
        run.world.faults("delay=2ms,rate=10Mbit")
        for end, peer in pairs:
            for _ in range(16 if end.kind == QPType.RC else 2):
                run.greet(peer, LONGEST, dest=end.address)
            # When the region is closed, all later segments of a response fail. So only the last
            # segment sent can contain wrong octets.
            for length in [Target.STATIC - 100] * 2 if self.rng.random() < 0.3 else [8000] * 12:
                self.read(end, peer, length)
        run.world.run_for(0.01 + self.rng.random() * 0.02)
        run.objects.close_target(host)
        began = run.world.now
        while any(end.posted for end, _ in pairs) and run.world.now - began < 60:
            run.poll_everything()
            run.world.run_for(0.005)
        run.world.faults("")

    def _must_greet(self, end: End, peer: End) -> None:
        sent = self.run.greet(end, dest=peer.address)
        if sent is not None:
            self.run.receive_everywhere()
            self._must(sent, "it was the first message")

    def done(self, request: Request, within: float, only: Host | None = None) -> bool:
        """Poll all hosts, or ``only`` one, until a request has completed; return whether it has."""
        run = self.run
        began = run.world.now
        while not request.done and run.world.now - began < within:
            if only is None:
                run.poll_everything()
            else:
                run.poll(only, only.completions[0], 64)
            run.world.run_for(0.005)
        return request.done
