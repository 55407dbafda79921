# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Checks at the end of each random program, on a network without faults.

Without faults the model knows which events must occur, and when. The checks create situations that
random programs rarely reach, or whose failures would be excused by faults.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from siwarp.sim.workloads.model import (
    End,
    Host,
    Memory,
    Message,
    Request,
    Target,
    Violation,
    make_message_content,
    require,
)
from siwarp.sim.workloads.program import temporarily_change_settings
from siwarp.sim.workloads.rc import RNR_NS, UNLIMITED_RETRIES
from siwarp.verbs import (
    AccessFlag,
    Error,
    EventType,
    Persona,
    QPAttr,
    QPState,
    QPType,
    WCStatus,
)

if TYPE_CHECKING:
    from siwarp.sim.workloads.execution import Execution

__all__ = ["FinalChecks"]

#: Values of Execution.post_plain_send's ``number`` for messages of 16 and of 3,000 octets, for a
#: message that fills its slot, and for 3,000 octets with immediate data.
SHORT_SEND, LONG_SEND, LONGEST_SEND, LONG_SEND_WITH_IMMEDIATE = 1, 21, 5, 16
#: Number of RD Sends before a pause, which is above the maximum of an 8-bit counter.
MANY_SENDS = 300
#: Seconds without traffic after which an RD peer's state counts as idle and may be evicted.
REST_S = 130
#: Maximum number of pairs of queue pairs of each type that a check uses.
MAX_PAIRS = 3
#: Duration in seconds of an outage of one direction, less than any connection time-out.
OUTAGE_S = 0.1
#: Number of Write-Records in flight at a time, and length of a Write-Record of two datagrams.
RECORDS_IN_FLIGHT, RECORD_OCTETS = 4, 1500
#: Seconds after which each Write-Record has ended; more than SIWARP_RECORD_TIMEOUT_MS.
RECORD_S = 0.2


class FinalChecks:
    """The checks at the end of a program.

    Args:
        run: the program.
        access: access rights of peers to targets.

    """

    def __init__(self, run: Execution, access: AccessFlag) -> None:
        self.run = run
        self.access = access
        self.rng = random.Random(run.program.seed)

    def run_all_checks(self) -> None:
        """Run all checks in a fixed order."""
        self.check_unreliable_sends()
        self.check_brief_outages()
        self.check_rd_send_completes_before_answer()
        self.check_many_rd_sends()
        self.check_partial_write_records()
        self.check_rnr_retry_limit()
        self.check_shared_receive_queue()
        self.check_ud_order()
        self.check_regions_of_unfinished_requests()
        self.check_orderly_close()
        self.check_deregistration()
        # The partitions of the following checks may also end RC connections.
        self.check_datagrams_from_before_a_reset()
        self.check_destroyed_rd_receiver()
        self.check_retransmission_after_destroy()
        self.check_drain_after_loss_of_peer()

    # ---- selection of queue pairs

    def _undisturbed_queue_pairs(self, *kinds: QPType) -> list[End]:
        """Return the undisturbed queue pairs of the given types that are in RTS."""
        ends = [
            e
            for e in self.run.list_open_queue_pairs()
            if e.kind in kinds and e.qp.qp_state == QPState.RTS
        ]
        ends = [
            e for e in ends if not (e.mutates_datagrams or e.send.small or e.disturbance.faults)
        ]
        # A receive that is too short, or whose region is closed, would consume a message without
        # storing the message.
        return [e for e in ends if not e.short]

    def _pairs_that_can_exchange_messages(self, kind: QPType) -> list[tuple[End, End]]:
        """Return up to MAX_PAIRS pairs of queue pairs of one type that can exchange messages."""
        ends = self._undisturbed_queue_pairs(kind)
        if kind in (QPType.UD, QPType.RD):
            found = list(zip(ends, ends[1:] + ends[:1], strict=True))
        else:
            found = [(e, e.peer) for e in ends if e.peer is not None and e.peer in ends]
        found = [(a, b) for a, b in found if a.host is not b.host and a.host.up and b.host.up]
        if kind == QPType.RC:
            found = [(a, b) for a, b in found if a.pair is not None and not a.pair.causes]
        self.rng.shuffle(found)
        return found[:MAX_PAIRS]

    # ---- checks of all queue pair types

    def check_unreliable_sends(self) -> None:
        """Check that each UD and UC message arrives on a network without loss."""
        run = self.run
        for kind in (QPType.UD, QPType.UC):
            for end, peer in self._pairs_that_can_exchange_messages(kind):
                for number in (SHORT_SEND, LONG_SEND_WITH_IMMEDIATE):
                    run.post_receives_everywhere()
                    sent = run.post_plain_send(end, number, dest=peer.address)
                    message = sent.message if sent is not None else None
                    if message is None:
                        continue
                    self._poll_until_received(message)
                    require(
                        bool(message.arrivals),
                        f"message {message.number} of {end!r} to {peer!r} did not arrive, and "
                        "nothing is lost any more",
                    )

    def check_brief_outages(self) -> None:
        """Check that requests posted during a brief outage of one direction are retransmitted."""
        run = self.run
        for kind in (QPType.RD, QPType.RC):
            for end, peer in self._pairs_that_can_exchange_messages(kind):
                for source, dest in ((end, peer), (peer, end)):
                    run.post_receives_everywhere()
                    run.world.partition(source.host.address, dest.host.address, one_way=True)
                    posted = [
                        run.post_plain_send(end, dest=peer.address),
                        self.post_rdma_read(end, peer),
                    ]
                    run.world.run_for(self.rng.random() * OUTAGE_S)
                    run.world.heal()
                    for request in posted:
                        if request is not None:
                            self._require_success(request, "the path was interrupted briefly")

    def post_rdma_read(self, end: End, peer: End, length: int = 4096) -> Request | None:
        """Post a Read of a peer's target region; return the request, or None if posting failed."""
        run = self.run
        if peer.host.target.memory.mr is None:
            return None
        request = run.new_send_request(end, "read")
        if request is None:
            return None
        request.dest = peer.address
        return request if run.post_rdma_read(request, peer.host.target, length, 0) else None

    def _require_success(self, request: Request, why: str) -> None:
        """Raise a Violation unless a request completes with success and its message arrives."""
        what = f"{request.verb} {request.wr_id} of {request.end!r} to {request.dest}"
        require(
            self.poll_until_request_done(request, 60) and request.status == WCStatus.SUCCESS,
            f"{what} did not complete, although nothing happened except: {why}",
        )
        message = request.message
        if message is not None:
            self._poll_until_received(message)
            require(
                bool(message.arrivals),
                f"{what} completed but did not arrive, although nothing happened except: {why}",
            )

    def _poll_until_received(self, message: Message) -> None:
        """Poll until a message has arrived, for up to 5 s, because TCP may retransmit late."""
        run = self.run
        began = run.world.now
        while not message.arrivals and run.world.now - began < 5:
            run.poll_all_hosts()
            run.world.run_for(0.005)

    def check_rd_send_completes_before_answer(self) -> None:
        """Check that an RD Send completes before an immediate answer to the Send arrives."""
        run = self.run
        for end, peer in self._pairs_that_can_exchange_messages(QPType.RD):
            run.post_receives_everywhere()
            sent = run.post_plain_send(end, dest=peer.address)
            if sent is None or sent.message is None:
                continue
            began = run.world.now
            while not sent.message.arrivals and run.world.now - began < 60:
                run.poll_completions(peer.host, peer.recv, 1)
                run.world.run_for(0)
            answer = run.post_plain_send(peer, dest=end.address)
            if answer is None or answer.message is None:
                continue
            while not answer.message.arrivals and run.world.now - began < 60:
                run.poll_completions(end.host, end.recv, 1)
                run.world.run_for(0.0001)
            require(
                sent.done or not answer.message.arrivals,
                f"{end!r} received the answer of {peer!r} before its own Send completed",
            )

    def check_many_rd_sends(self) -> None:
        """Check that RD works after more than 255 Sends, and after its state was evicted."""
        run = self.run
        for end, peer in self._pairs_that_can_exchange_messages(QPType.RD)[:1]:
            for number in range(MANY_SENDS):
                if number % 8 == 0:
                    run.post_receives_everywhere()
                sent = run.post_plain_send(end, dest=peer.address)
                if sent is None:
                    return
                if number % 8 == 7:
                    self._require_success(sent, "many messages were sent before")
            run.poll_all_hosts()
            run.world.run_for(REST_S)
            run.post_receives_everywhere()
            sent = run.post_plain_send(end, dest=peer.address)
            if sent is not None:
                self._require_success(sent, "there was a pause")

    # ---- Write-Records of UD

    def check_partial_write_records(self) -> None:
        """Check that a UD Write-Record is reported although some of its datagrams were lost."""
        run = self.run
        ends = [e for e in self._undisturbed_queue_pairs(QPType.UD) if e.host.up]
        for end, peer in self._pairs_that_can_exchange_messages(QPType.UD)[:1]:
            target = peer.host.target
            cell = target.find_or_allocate_write_area(end, peer.address, steady=True, record=True)
            if cell is None or target.memory.mr is None or len(ends) < 2:
                continue
            cell.expected[:] = make_message_content(1 << 40 | cell.number, cell.length)
            run.world.link(end.host.address, peer.host.address, "loss=40%,seed=7")
            for _ in range(4):
                self._check_arrived_write_records_reported(end, peer, cell.at)
            run.world.link(end.host.address, peer.host.address, None)

    def _check_arrived_write_records_reported(self, end: End, peer: End, at: int) -> None:
        run, target = self.run, peer.host.target
        cell = next(c for c in target.cells.values() if c.at == at)
        target.memory.view[at : at + cell.length] = bytes(cell.length)
        before = run.reports
        for number in range(RECORDS_IN_FLIGHT):
            run.post_write_record(end, peer, cell, number * RECORD_OCTETS, RECORD_OCTETS)
            run.world.run_for(0.001)
        began = run.world.now
        while run.world.now - began < RECORD_S:
            run.poll_all_hosts()
            run.world.run_for(0.005)
        octets = target.content_of_write_area(cell)
        came = sum(
            any(octets[n * RECORD_OCTETS : (n + 1) * RECORD_OCTETS])
            for n in range(RECORDS_IN_FLIGHT)
        )
        require(
            run.reports - before == came,
            f"{came} Write-Records of {end!r} arrived at {peer!r} at least in part, but "
            f"{run.reports - before} were reported",
        )

    # ---- Sends without receives

    def check_rnr_retry_limit(self) -> None:
        """Check that an RC Send without a receive fails when its RNR retries are exhausted."""
        run = self.run
        up = [host for host in run.hosts if host.up]
        if "RC" not in run.program.kinds or len(up) < 2:
            return
        rng = random.Random(run.program.seed)
        a, b = (
            run.create_queue_pair(host, QPType.RC, by_qpn=True, private=True, plain=True)
            for host in rng.sample(up, 2)
        )
        retry = rng.choice((0, 1, 1, 3, 3))
        run.rc.connect_new_pair(a, b, rng, (retry, UNLIMITED_RETRIES))
        run.world.run_for(0.1)
        self._require_rnr_failure_in_time(a, b, retry)

    def _require_rnr_failure_in_time(self, end: End, peer: End, retry: int) -> None:
        run = self.run
        while peer.waiting:
            sent = run.post_plain_send(end)
            if sent is None or not self.poll_until_request_done(sent, 60):
                return
        first, second = run.post_plain_send(end), run.post_plain_send(end)
        if first is None or second is None:
            return
        run.world.run_for(0.001)
        run.post_receive(peer)
        timer = RNR_NS[peer.min_rnr_timer or 0] / 1e9
        # The second Send starts to wait for a receive when the first Send gets one.
        # poll_until_request_done() polls every 5 ms.
        limit = retry * timer + 0.02
        require(
            self.poll_until_request_done(second, limit, end.host),
            f"{second.verb} {second.wr_id} of {end!r} may wait {retry} times {timer} s for its "
            f"receive, but has not ended after {limit} s",
        )

    def check_shared_receive_queue(self) -> None:
        """Check that Sends that wait for a shared receive queue complete once receives are posted.

        The network has no faults, so all Sends must get their receives.
        """
        run = self.run
        up = [host for host in run.hosts if host.up and not host.mutates_datagrams]
        if len(up) < 2:
            return
        rng = self.rng
        source, host = rng.sample(up, 2)
        pairs = [*self._create_pairs_with_srq(source, host, rng)]
        run.world.run_for(0.1)
        for end, peer in itertools.cycle(pairs):
            if not host.srq_posted:
                break
            sent = run.post_plain_send(end, dest=peer.address)
            if sent is None or not self.poll_until_request_done(sent, 60):
                return  # another check reports the missing completion
        sends = [run.post_plain_send(end, dest=peer.address) for end, peer in pairs]
        waiting = [request for request in sends if request is not None]
        run.world.run_for(0.05)
        run.post_shared_receives(host, len(waiting))
        for request in waiting:
            require(
                self.poll_until_request_done(request, 1),
                f"{request.verb} {request.wr_id} of {request.end!r} has a receive in the shared "
                f"queue of {host.address}, but did not complete",
            )

    def _create_pairs_with_srq(
        self, source: Host, host: Host, rng: random.Random
    ) -> Iterator[tuple[End, End]]:
        """Create queue pairs that use a host's shared receive queue; yield each with its peer."""
        run = self.run
        for _ in range(3):
            if "RC" in run.program.kinds:
                a = run.create_queue_pair(source, QPType.RC, by_qpn=True, private=True, plain=True)
                b = run.create_queue_pair(
                    host, QPType.RC, by_qpn=True, private=True, plain=True, shares=True
                )
                run.rc.connect_new_pair(a, b, rng, (7, 7))
                yield a, b
            if "RD" in run.program.kinds:
                yield (
                    run.create_queue_pair(source, QPType.RD, plain=True),
                    run.create_queue_pair(host, QPType.RD, plain=True, shares=True),
                )

    # ---- full sockets

    def check_ud_order(self) -> None:
        """Check that short UD Sends do not overtake long ones that wait for space in the socket."""
        run = self.run
        with temporarily_change_settings({"sndbuf": 4096}):
            pair = self._create_pair(QPType.UD)
        if pair is None:
            return
        end, peer = pair
        run.world.faults("rate=1Mbit")
        sent = [
            run.post_plain_send(end, number, dest=peer.address)
            for number in (LONG_SEND, LONG_SEND, SHORT_SEND, LONG_SEND, SHORT_SEND)
        ]
        for request in sent:
            if request is not None:
                self.poll_until_request_done(request, 60)
        run.world.faults("")

    # ---- RD: the end of an incarnation

    def check_drain_after_loss_of_peer(self) -> None:
        """Check that an RD queue pair in SQD drains if its peer is lost, and reconnects later."""
        run = self.run
        pair = self._create_pair(QPType.RD)
        if pair is None:
            return
        end, peer = pair
        for _ in range(3):
            self._require_success_of_first_send(end, peer)
        with self._network_partition(end, peer):
            lost = run.post_plain_send(end, dest=peer.address)
            end.qp.modify(QPAttr(qp_state=QPState.SQD, en_sqd_async_notify=True))
            if lost is None or not self.poll_until_request_done(lost, 60):
                return  # another check reports the missing completion
            require(
                EventType.SQ_DRAINED in run.objects.take_events(end.host),
                f"{end!r} has no requests, and raised no event SQ_DRAINED after its peer was lost",
            )
        end.qp.to_rts()
        sent = run.post_plain_send(end, dest=peer.address)
        if sent is not None:
            self._require_success(sent, "the peer was lost before")

    def check_datagrams_from_before_a_reset(self) -> None:
        """Check that RD drops delayed datagrams from before their sender was reset."""
        run = self.run
        pair = self._create_pair(QPType.RD)
        if pair is None:
            return
        end, peer = pair
        run.world.link(end.host.address, peer.host.address, "delay=300ms")
        old = [run.post_plain_send(end, dest=peer.address) for _ in range(3)]
        run.world.run_for(0.01)
        run.world.link(end.host.address, peer.host.address, None)
        run.reset_queue_pair(end, on=True)
        self._require_success_of_first_send(end, peer)
        began = run.world.now
        while run.world.now - began < 0.5:
            run.poll_all_hosts()
            run.world.run_for(0.005)
        for request in old:
            require(
                request is None or request.message is None or not request.message.arrivals,
                f"{peer!r} received a message that {end!r} had sent before it was reset",
            )

    def check_destroyed_rd_receiver(self) -> None:
        """Check that an RD Send succeeds if the receiving queue pair is destroyed before the
        Send is acknowledged.
        """
        run = self.run
        pair = self._create_pair(QPType.RD)
        if pair is None or not run.program.settings["linger_ms"]:
            return
        end, peer = pair
        with self._network_partition(peer, end, one_way=True):
            sent = run.post_plain_send(end, dest=peer.address)
            if sent is None or sent.message is None:
                return
            self._poll_until_received(sent.message)
            if not sent.message.arrivals:
                return
            run.destroy_queue_pair(peer)
        require(
            self.poll_until_request_done(sent, 60) and sent.status == WCStatus.SUCCESS,
            f"{sent.verb} {sent.wr_id} of {end!r} arrived before its receiver was destroyed, but "
            "did not succeed",
        )

    def check_retransmission_after_destroy(self) -> None:
        """Check that a lost RD message is retransmitted after its queue pair was destroyed."""
        run = self.run
        pair = self._create_pair(QPType.RD)
        if pair is None or not run.program.settings["linger_ms"]:
            return
        end, peer = pair
        with self._network_partition(end, peer, one_way=True):
            sent = run.post_plain_send(end, dest=peer.address)
            run.world.run_for(0.001)
            run.destroy_queue_pair(end)
            run.world.run_for(0.3)
        if sent is None or sent.message is None:
            return
        self._poll_until_received(sent.message)
        require(
            bool(sent.message.arrivals),
            f"message {sent.message.number} of {end!r}, which was destroyed, was lost once and did "
            "not arrive",
        )

    def check_regions_of_unfinished_requests(self) -> None:
        """Check that a region is not deregistered while an RD Send or Read is using it."""
        run = self.run
        with temporarily_change_settings({"rd_window": 65536}):
            pair = self._create_pair(QPType.RD)
        if pair is None:
            return
        end, peer = pair
        run.post_receives_everywhere()
        run.world.faults("rate=10Mbit,limit=200")
        # With their headers, four Sends do not fit into the window: the fourth is partly framed.
        sent = [run.post_plain_send(end, LONGEST_SEND, dest=peer.address) for _ in range(4)]
        self._require_region_in_use(end.slots[0].memory, f"a partly framed Send of {end!r}")
        for request in sent:
            if request is not None:
                self._require_success(request, "deregistering its memory was refused")
        read = self.post_rdma_read(end, peer)
        if read is not None:
            assert read.slots is not None
            self._require_region_in_use(read.slots.memory, f"an unfinished Read of {end!r}")
            self._require_success(read, "deregistering its memory was refused")
        run.world.faults("")

    def _require_region_in_use(self, memory: Memory, what: str) -> None:
        assert memory.mr is not None
        try:
            memory.mr.close()
        except Error as e:
            require(e.errno == errno.EBUSY, f"deregistering the memory of {what}: {e}")
        else:
            raise Violation(f"the memory of {what} was deregistered")

    def _create_pair(self, kind: QPType, persona: Persona | None = None) -> tuple[End, End] | None:
        """Create two queue pairs that have exchanged a message; None if there are no two hosts."""
        run = self.run
        up = [host for host in run.hosts if host.up and not host.mutates_datagrams]
        if kind.name not in run.program.kinds or len(up) < 2:
            return None
        hosts, rc = self.rng.sample(up, 2), kind == QPType.RC
        end, peer = (
            run.create_queue_pair(host, kind, by_qpn=rc, private=rc, plain=True, persona=persona)
            for host in hosts
        )
        if rc:
            retries = UNLIMITED_RETRIES, UNLIMITED_RETRIES
            run.rc.connect_new_pair(end, peer, self.rng, retries, depth=16)
            run.world.run_for(0.1)
        self._require_success_of_first_send(end, peer)
        return end, peer

    @contextlib.contextmanager
    def _network_partition(
        self, source: End, dest: End, *, one_way: bool = False
    ) -> Iterator[None]:
        """Lose all packets between two hosts, or from one to the other, while a block runs."""
        hosts = source.host, dest.host
        for host in hosts:
            host.disturbance.record_fault_begin("partition")
        self.run.world.partition(*(host.address for host in hosts), one_way=one_way)
        try:
            yield
        finally:
            self.run.world.heal()
            for host in hosts:
                host.disturbance.record_fault_end("partition", self.run.world.now_ns)

    # ---- orderly close of a connection

    def check_orderly_close(self) -> None:
        """Check that messages that completed before their queue pair was closed still arrive.

        The first transmission of the messages is lost, so the closed connection has to retransmit
        them, although data of the peer arrives meanwhile.
        """
        run = self.run
        # With persona iwarp a Send completes when TCP has accepted its octets.
        pair = self._create_pair(QPType.RC, Persona.IWARP)
        if pair is None or not run.program.settings["linger_ms"]:
            return
        end, peer = pair
        run.post_receives_everywhere()
        run.world.faults("delay=2ms")
        with self._network_partition(end, peer, one_way=True):
            sent = [run.post_plain_send(end, LONG_SEND) for _ in range(4)]
            run.poll_completions(end.host, end.host.completions[0], 64)
            for _ in sent:  # these messages arrive after the close
                run.post_plain_send(peer, LONG_SEND)
            if self.rng.random() < 0.5:
                run.destroy_queue_pair(end)
            else:
                run.move_queue_pair_to_err(end)
            run.world.run_for(0.01)
        for _ in range(300):
            run.poll_all_hosts()
            run.world.run_for(0.005)
        for request in sent:
            message = request.message if request is not None else None
            require(
                message is None or message.status != WCStatus.SUCCESS or bool(message.arrivals),
                f"a message of {end!r} completed before the queue pair was closed, but did not "
                f"arrive at {peer!r}: {message!r}",
            )
        run.world.faults("")

    # ---- deregistration

    def check_deregistration(self) -> None:
        """Check that a peer's Read returns no octets written after the region was closed.

        Earlier Sends of the host fill its socket buffer, so that the read responses are still
        queued. The CRC is disabled in half of the runs, in which only the octets can reveal an
        error.
        """
        run = self.run
        up = [
            h
            for h in run.hosts
            if h.up and not h.mutates_datagrams and h.target.memory.mr is not None
        ]
        if not {"RC", "RD"} & set(run.program.kinds) or len(up) < 2:
            return
        source, host = self.rng.sample(up, 2)
        pairs = []
        with temporarily_change_settings({"sndbuf": 4096, "crc": self.rng.randrange(2)}):
            if "RC" in run.program.kinds:
                a = run.create_queue_pair(source, QPType.RC, by_qpn=True, private=True, plain=True)
                b = run.create_queue_pair(host, QPType.RC, by_qpn=True, private=True, plain=True)
                run.rc.connect_new_pair(
                    a, b, self.rng, (UNLIMITED_RETRIES, UNLIMITED_RETRIES), depth=16
                )
                pairs.append((a, b))
            if "RD" in run.program.kinds:
                a = run.create_queue_pair(source, QPType.RD, plain=True)
                pairs.append((a, run.create_queue_pair(host, QPType.RD, plain=True)))
            run.world.run_for(0.1)
            for end, peer in pairs:
                self._require_success_of_first_send(end, peer)
        run.world.faults("delay=2ms,rate=10Mbit")
        for end, peer in pairs:
            for _ in range(16 if end.kind == QPType.RC else 2):
                run.post_plain_send(peer, LONGEST_SEND, dest=end.address)
            # After the region is closed, all later segments of a response fail, so that only the
            # last segment sent can contain wrong octets.
            for length in [Target.STATIC - 100] * 2 if self.rng.random() < 0.3 else [8000] * 12:
                self.post_rdma_read(end, peer, length)
        run.world.run_for(0.01 + self.rng.random() * 0.02)
        run.objects.close_target_region(host)
        began = run.world.now
        while any(end.posted for end, _ in pairs) and run.world.now - began < 60:
            run.poll_all_hosts()
            run.world.run_for(0.005)
        run.world.faults("")

    def _require_success_of_first_send(self, end: End, peer: End) -> None:
        sent = self.run.post_plain_send(end, dest=peer.address)
        if sent is not None:
            self.run.post_receives_everywhere()
            self._require_success(sent, "it was the first message")

    def poll_until_request_done(
        self, request: Request, within: float, only: Host | None = None
    ) -> bool:
        """Poll all hosts, or only ``only``, until a request completes; return whether it did."""
        run = self.run
        began = run.world.now
        while not request.done and run.world.now - began < within:
            if only is None:
                run.poll_all_hosts()
            else:
                run.poll_completions(only, only.completions[0], 64)
            run.world.run_for(0.005)
        return request.done
