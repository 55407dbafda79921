# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""RC queue pairs of random programs: connection, disconnection, and the valid completions."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from siwarp.cm import CMID, RTR, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.sim.workloads.model import (
    End,
    Host,
    LazyText,
    Message,
    Pair,
    Request,
    Violation,
    require,
)
from siwarp.sim.workloads.program import Operation
from siwarp.verbs import (
    WC,
    AccessFlag,
    AHAttr,
    Error,
    Persona,
    QPAttr,
    QPState,
    QPType,
    StateError,
    WCStatus,
)

if TYPE_CHECKING:
    from siwarp.sim.workloads.execution import Execution

__all__ = ["RNR_NS", "UNLIMITED_RETRIES", "Connections"]

PORT = 7471
#: Private data of a connection request: the connecting queue pair's ``number`` and ``life``.
_QUEUE_PAIR_LIFE = struct.Struct("!II")
#: The time in ns that each of InfiniBand's min_rnr_timer codes means; the index is the code.
RNR_NS = tuple(
    10_000 * n
    for n in (
        *(65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768),
        *(1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152),
    )
)
UNLIMITED_RETRIES = 7
_REFUSED = (WCStatus.REM_ACCESS_ERR, WCStatus.REM_INV_REQ_ERR, WCStatus.REM_OP_ERR)


class Connections:
    """The connected pairs of RC queue pairs of a program.

    Args:
        run: the program.
        access: access rights of peers.

    """

    def __init__(self, run: Execution, access: AccessFlag) -> None:
        self.run = run
        self.access = access

    # ---- pairs

    def listen_on_host(self, host: Host) -> None:
        """Create a host's event channel, and listen for connection requests."""
        host.channel = CMEventChannel(host.context)
        host.listener = CMID(host.channel)
        host.listener.listen((host.address, PORT))

    def connect_new_pair(
        self,
        a: End,
        b: End,
        rng: random.Random,
        retries: tuple[int, ...] | None = None,
        depth: int = 0,
    ) -> None:
        """Make a pair of two queue pairs in RESET, and connect them.

        Args:
            a: a queue pair; the initiator, if the connection manager connects the pair.
            b: peer of ``a``.
            rng: source of the pair's random properties.
            retries: rnr_retry of each end; None: random values.
            depth: maximum number of outstanding Reads; 0: a random number.

        """
        pair = Pair(
            a,
            b,
            by_qpn=a.by_qpn,
            depth=depth or rng.choice((1, 2, 16)),
            timeout=rng.choice((0, 0, 1, 19)),
            rtr=rng.choice((RTR.NONE, RTR.WRITE | RTR.READ, RTR.FPDU)),
        )
        for here, there in ((a, b), (b, a)):
            here.peer, here.pair = there, pair
            here.rnr_retry = rng.choice((None, 7, 7, 0, 1, 3, 6))
            here.min_rnr_timer = rng.choice((1, 12, 20, 26, 28))
        if retries:
            a.rnr_retry, b.rnr_retry = retries
        self.connect_pair(pair)

    def connect_pair(self, pair: Pair) -> None:
        """Connect a pair whose queue pairs are both in RESET."""
        pair.causes.clear()
        pair.established.clear()
        for end in (pair.a, pair.b):
            end.failed, end.waits, end.offered, end.promised = False, False, 0, 0
            end.last_write = None
            end.next_index.clear()
            if end.send.small:
                pair.causes.add("local")
            self._update_expected_write_areas(end)
        self._note_corrupting_fault_plan(pair)
        if pair.timeout or not pair.by_qpn:
            pair.causes.add("meeting")
        if self.run.program.memory and not self.run.ending:
            pair.causes.add("memory")
        if not pair.by_qpn:
            self._connect_by_cm(pair)
            return
        for end in (pair.a, pair.b):
            end.qp.to_init(QPAttr(qp_access_flags=int(self.access)))
            self._post_first_receives(end)
            self.move_to_rts(end)

    def _update_expected_write_areas(self, end: End) -> None:
        """Set the expected content of a queue pair's write areas to their current content."""
        assert end.peer is not None
        target = end.peer.host.target
        for (writer, dest, _), cell in target.cells.items():
            if writer == end.number and dest == end.peer.address:
                cell.expected[:] = target.content_of_write_area(cell)
                cell.tainted = target.memory.mr is None

    def note_fault_plan_change(self) -> None:
        """Record that fault plans of links have changed."""
        for end in self.run.ends:
            if end.pair is not None and end is end.pair.a and not end.gone:
                self._note_corrupting_fault_plan(end.pair)

    def _note_corrupting_fault_plan(self, pair: Pair) -> None:
        link = frozenset((pair.a.host.address, pair.b.host.address))
        if "corrupt" in self.run.link_plans.get(link, self.run.plan):
            pair.causes.add("corrupt")  # a CRC error ends the connection

    def move_to_rts(self, end: End) -> None:
        """Move a queue pair that is paired by GID and QPN from INIT to RTS."""
        pair, peer = end.pair, end.peer
        assert pair is not None and peer is not None
        end.qp.to_rts(
            QPAttr(
                ah_attr=AHAttr(peer.host.address, source=end.host.address),
                dest_qp_num=peer.qp_num,
                rnr_retry=end.rnr_retry,
                min_rnr_timer=end.min_rnr_timer,
                max_rd_atomic=pair.depth,
                max_dest_rd_atomic=pair.depth,
                timeout=pair.timeout,
                retry_cnt=1,
            )
        )

    def _post_first_receives(self, end: End) -> None:
        """Post 4 receives to a queue pair before its connection is established."""
        for _ in range(4):
            self.run.post_receive(end)

    def _connect_by_cm(self, pair: Pair) -> None:
        a = pair.a
        assert a.host.channel is not None
        a.id = CMID(a.host.channel)
        self._bind_queue_pair(a)
        param = ConnParam(
            _QUEUE_PAIR_LIFE.pack(a.number, a.life),
            initiator_depth=pair.depth,
            responder_resources=pair.depth,
            peer_to_peer=pair.rtr,
            timeout=60,
        )
        a.id.connect((pair.b.host.address, PORT), param, (a.host.address, 0))

    def _bind_queue_pair(self, end: End) -> None:
        pair = end.pair
        assert end.id is not None and pair is not None
        end.id.bind_qp(end.qp)
        end.qp.modify(
            QPAttr(
                rnr_retry=end.rnr_retry,
                min_rnr_timer=end.min_rnr_timer,
                qp_access_flags=int(self.access),
            )
        )
        self._post_first_receives(end)

    def close_connection(self, end: End, cause: str) -> None:
        """Record why a queue pair leaves its connected pair, and close its connection."""
        if end.pair is not None:
            end.pair.causes.add(cause)
        if end.id is not None:
            end.id.close()
            end.id = None

    # ---- connection manager events

    def handle_cm_events(self, host: Host) -> None:
        """Handle the pending events of a host's event channel."""
        while host.up and host.channel is not None:
            event = host.channel.get_event(0)
            if event is None:
                return
            with self.run.without_allocation_failures():
                self._handle_cm_event(host, event)

    def _handle_cm_event(self, host: Host, event: CMEvent) -> None:
        if event.type == CMEventType.CONNECT_REQUEST:
            self._handle_connect_request(host, event)
            return
        end = next((e for e in host.ends if e.id is event.id), None)
        if end is None or end.pair is None:
            return
        pair = end.pair
        if event.type == CMEventType.ESTABLISHED:
            pair.established.add(end.number)
            if len(pair.established) == 2:
                pair.causes.discard("meeting")
            if end is pair.a and not pair.rtr:
                self.run.post_plain_send(end)
        elif event.type == CMEventType.DISCONNECTED:
            require(
                bool(pair.causes), f"{end!r} was disconnected, and nothing went wrong: {event!r}"
            )
            pair.causes.add("ended")
        else:
            require(bool(pair.causes), f"{end!r} did not connect: {event!r}")
            pair.causes.add("ended")

    def _handle_connect_request(self, host: Host, event: CMEvent) -> None:
        number, life = _QUEUE_PAIR_LIFE.unpack(event.private_data[: _QUEUE_PAIR_LIFE.size])
        a = next((e for e in self.run.ends if e.number == number), None)
        b = a.peer if a is not None else None
        ready = a is not None and b is not None and b.pair is a.pair and not a.gone and not b.gone
        if not ready or a is None or b is None or a.life != life or b.host is not host or b.id:
            event.id.reject()
            event.id.close()
            return
        if b.qp.qp_state != QPState.RESET:  # the queue pair is in ERR
            event.id.reject()
            event.id.close()
            return
        assert b.pair is not None
        b.id = event.id
        self._bind_queue_pair(b)
        depth = b.pair.depth
        try:
            b.id.accept(ConnParam(initiator_depth=depth, responder_resources=depth))
        except Error:  # the peer has closed the connection
            b.pair.causes.add("ended")

    def do_disconnect(self, op: Operation) -> None:
        """Disconnect a connection of the connection manager."""
        ends = [
            e for e in self.run.list_open_queue_pairs() if e.id is not None and e.pair is not None
        ]
        if not ends:
            return
        end = ends[op.draw_below(0, len(ends))]
        assert end.id is not None and end.pair is not None
        end.pair.causes.add("ended")
        try:
            end.id.disconnect()
        except StateError as e:  # the queue pair is not connected
            self.run.refusals += 1
            require(end.qp.qp_state != QPState.RTS, f"disconnecting {end!r}: {e}")

    # ---- results of requests

    def note_posted_request(self, end: End, message: Message | None) -> None:
        """Record a posted message, and whether the peer has posted a receive for the message."""
        pair, peer = end.pair, end.peer
        assert pair is not None and peer is not None
        if message is None:
            return
        end.promised += 1
        if end.promised <= peer.offered and not peer.shares:
            return
        end.waits = True
        if peer.persona == Persona.IWARP or min(self._rnr_retry_limits(end)) < UNLIMITED_RETRIES:
            pair.causes.add("rnr")

    def _rnr_retry_limits(self, end: End) -> list[int]:
        """Return the RNR retry limits that apply to the Sends of ``end``."""
        peer = end.peer
        assert peer is not None
        told = end.by_qpn and end.persona == Persona.ROCE
        ends = [end] if told else [end, peer]
        return [UNLIMITED_RETRIES if one.rnr_retry is None else one.rnr_retry for one in ends]

    def check_send_status(self, request: Request, end: End, wc: WC, what: LazyText) -> None:
        """Check the status of a request against the possible causes of failure of its pair."""
        pair, status = end.pair, WCStatus(wc.status)
        assert pair is not None
        if wc.ok:
            # Requests after a Send that waits for a receive continue, and may complete before the
            # Send fails. A bind takes effect immediately, before earlier requests complete.
            local = request.verb in ("bind", "invalidate")
            passed = local or (end.waits and request.message is None)
            require(not end.failed or passed, lambda: f"{what} succeeded after a failed request")
            require(request.bad != "local", lambda: f"{what} from unregistered memory succeeded")
            # With persona iwarp a Write completes when TCP has accepted its octets.
            early = request.verb == "write" and end.persona == Persona.IWARP
            require(
                request.bad != "remote" or early,
                lambda: f"{what} succeeded without permission for the memory",
            )
            return
        causes = pair.causes
        require(
            bool(causes), lambda: f"{what}: {status.name}, and nothing went wrong with its pair"
        )
        if status == WCStatus.WR_FLUSH_ERR and request.verb in ("read", "atomic"):
            # If the peer refuses a request after a Read, the Read's response does not arrive,
            # although the requests between the Read and the refused request have arrived.
            return
        first, end.failed = not end.failed, True
        if status == WCStatus.WR_FLUSH_ERR:
            return
        # A request that needs no receive may fail while earlier requests wait for receives.
        first |= request.bad == "local" or end.waits
        require(first, lambda: f"{what}: {status.name} after a failed request, not a flush")
        if status == WCStatus.RNR_RETRY_EXC_ERR:
            require(
                "rnr" in causes, lambda: f"{what}: {status.name}, although receives were posted"
            )
            peer = end.peer
            assert peer is not None
            if peer.persona == Persona.ROCE:
                retry = min(self._rnr_retry_limits(end))
                require(
                    retry < UNLIMITED_RETRIES, lambda: f"{what} has no RNR retry limit, but failed"
                )
                self.run.check_rnr_wait(request, retry, peer, what)
        elif status in _REFUSED:
            refusing = causes & {"refused", "local", "corrupt", "memory"}
            require(bool(refusing), lambda: f"{what}: {status.name}, although the request is valid")
        elif status == WCStatus.LOC_PROT_ERR:
            require("local" in causes, lambda: f"{what}: {status.name}")
        else:
            require(
                status == WCStatus.RETRY_EXC_ERR and pair.by_qpn,
                lambda: f"{what} failed: {status.name}",
            )

    def check_message_order(self, end: End, message: Message, what: LazyText) -> None:
        """Check that a message arrived after the Write that was posted before the message."""
        require(message.life == end.life, lambda: f"{what} is of an earlier connection")
        if end.pair is not None and end.pair.by_qpn:
            end.pair.causes.discard("meeting")  # the connection is established
        if message.behind is not None:
            cell, version = message.behind
            if version == cell.version and not cell.tainted:
                require(
                    end.host.target.content_of_write_area(cell) == cell.expected,
                    lambda: f"{what} arrived before the Write in front of it",
                )

    def must_requests_complete(self, end: End) -> bool:
        """Return whether all posted requests of a queue pair are certain to complete."""
        pair = end.pair
        if pair is None or not pair.causes:
            return True
        # A corrupted FPDU length makes the receiver wait for octets that are never sent.
        if pair.causes & {"lost", "corrupt"}:
            return False
        return not pair.by_qpn or pair.timeout > 0

    def required_messages_with_arrival(self) -> Iterator[tuple[Message, bool]]:
        """Yield each message that must arrive, and whether the message has arrived."""
        for message in self.run.messages.values():
            source, taker = message.source, message.source.peer
            if source.kind != QPType.RC or message.status != WCStatus.SUCCESS or taker is None:
                continue
            if taker.gone or taker.send.overflowed or message.life != taker.life:
                continue
            # With persona roce completed messages have arrived. With persona iwarp they have
            # arrived only if the connection has not ended.
            if source.persona == Persona.ROCE or (source.pair and not source.pair.causes):
                yield message, bool(sum(message.arrivals.values()))

    def check_message_arrivals(self, settle: Callable[[], None]) -> None:
        """Raise a Violation if a required message has not arrived after 200 ``settle`` calls."""
        for _ in range(200):
            if all(there for _, there in self.required_messages_with_arrival()):
                return
            settle()
        for message, there in self.required_messages_with_arrival():
            if not there:
                raise Violation(
                    f"message {message.number} of {message.source!r} completed, and did not arrive"
                )
