# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs a prefix of a program in a world, and checks each result against the model."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from siwarp.base.library import ffi, lib
from siwarp.sim.workloads import program as programs
from siwarp.sim.workloads.endings import FinalChecks
from siwarp.sim.workloads.model import (
    BLANK,
    Cell,
    Completions,
    End,
    Guards,
    Host,
    LazyText,
    Memory,
    Message,
    MessageSlots,
    Request,
    Target,
    Violation,
    make_message_content,
    message_number_of,
    require,
)
from siwarp.sim.workloads.objects import Objects
from siwarp.sim.workloads.program import Operation, Program
from siwarp.sim.workloads.rc import RNR_NS, Connections
from siwarp.sim.world import World
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    WC,
    AccessFlag,
    Address,
    CompChannel,
    Error,
    Persona,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    SrqAttr,
    StateError,
    Timeout,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)

__all__ = ["Outcome", "run"]

REMOTE_ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)
#: Operations that create objects of the model. No allocation is made to fail during them.
CREATING_OPERATIONS = frozenset(
    (
        *(
            "create_qp",
            "recover_qp",
            "reset_qp",
            "restart",
            "overflow_cq",
            "register_targets",
            "reregister_target",
        ),
        *("deregister_memory", "bind_memory_window", "join_group", "resize_cq", "arm_srq_limit"),
    )
)
#: Send flags as integers, with which operations are ten times as fast as with the enumeration.
SIGNALED, INLINE_FLAG, SOLICITED, FENCE = map(
    int, (SendFlag.SIGNALED, SendFlag.INLINE, SendFlag.SOLICITED, SendFlag.FENCE)
)
#: Size of a slot in octets, by queue pair type.
SLOT_SIZES = {QPType.UD: 4096, QPType.UC: 16384, QPType.RD: 16384, QPType.RC: 16384}
#: Queue pair types that are connected to one peer.
CONNECTED_TYPES = (QPType.UC, QPType.RC)
#: Queue pair types that support Reads and atomics.
READ_TYPES = (QPType.RD, QPType.RC)
SLOTS = 24
INLINE = 64
QKEY = 0x5EED
RECORDS = 8
#: First datagram number in a program whose numbers start just below the wrap.
BELOW_WRAP = (1 << 32) - 20
#: A number greater than that of the datagrams that a UC queue pair sends between two resets.
PSNS_OF_A_LIFE = 1 << 20
#: Number of messages of 16,000 octets in the burst that verifies that no credit was lost.
BURST_MESSAGES = 6
#: Number of octets of closed regions that are checked after each operation, in rotation.
CLOSED_OCTETS = 256 << 10
#: Seconds within which all requests must complete; an RD handshake with retransmissions takes
#: longest.
COMPLETION_LIMIT_S = 240
LOSS_STATUSES = (WCStatus.RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR)
REFUSAL_STATUSES = (
    WCStatus.REM_ACCESS_ERR,
    WCStatus.REM_INV_REQ_ERR,
    WCStatus.REM_OP_ERR,
    WCStatus.LOC_PROT_ERR,
)


@dataclass(frozen=True)
class Outcome:
    """The result of running a program.

    Attributes:
        hash: hash of the world's trace.
        operations: number of operations executed.
        packets: number of datagrams and TCP segments sent.
        drops: number of packets that were lost, refused, or dropped by a full buffer.
        crashes: number of host crashes.
        refusals: number of calls that were refused as the verbs require.
        stale: number of objects of crashed hosts that remain allocated so that late calls are
            refused, and of their destroyed objects whose memory was kept for later objects;
            depends on the worlds before.
        failure: description of the failure; empty if there was none.
        failed_at: number of operations up to and including the failed one.

    """

    hash: int
    operations: int
    packets: int
    drops: int
    crashes: int
    refusals: int
    stale: int = field(compare=False)
    failure: str = ""
    failed_at: int = 0


def run(
    program: Program, operations: int | None = None, capture: str | os.PathLike[str] | None = None
) -> Outcome:
    """Run the first operations of a program, or all of them, and then its final checks.

    Args:
        program: result of ``generate_program``.
        operations: number of operations to run; None: all.
        capture: path of a pcapng file for all packets sent.

    """
    ops = program.ops[:operations]
    with (
        programs.temporarily_change_settings(program.settings),
        World(program.seed, program.plan, near_wrap=program.near_wrap) as world,
    ):
        with world.capture(capture) if capture else contextlib.nullcontext():
            execution = Execution(world, program)
            failure = ""
            try:
                execution.open_hosts()
                for op in ops:
                    execution.run_operation(op)
                execution.run_final_checks()
            except (Violation, Error, ValueError, AssertionError, KeyError) as e:
                kind = "" if isinstance(e, Violation) else f"{type(e).__name__}: "
                # No cleanup is needed, because closing the world releases all objects.
                failure = f"{kind}{e}" or repr(e)
        stats = world.stats
        return Outcome(
            hash=world.trace_hash,
            operations=execution.steps,
            packets=stats.sent + stats.segments,
            drops=stats.lost + stats.refused + stats.overflowed,
            crashes=execution.crashes,
            refusals=execution.refusals,
            stale=execution.stale,
            failure=failure,
            failed_at=execution.steps if failure else 0,
        )


class Execution:
    """A running program: hosts, queue pairs, and the model of their guarantees."""

    def __init__(self, world: World, program: Program) -> None:
        self.world = world
        self.program = program
        self.ending = False
        self.steps = self.crashes = self.refusals = self.stale = 0
        self.hosts: list[Host] = []
        #: All queue pairs, including destroyed ones.
        self.ends: list[End] = []
        self.at: dict[Address, End] = {}  # the most recent queue pair at each address
        self.requests: dict[int, Request] = {}
        self.messages: dict[int, Message] = {}
        self.frozen: list[Memory] = []
        self._next_frozen = 0
        self._guards = Guards()
        #: Keys of the Write-Records that have completed: target, source and message number.
        self.recorded: set[tuple[int, ...]] = set()
        self.reports = 0  # number of Write-Records for which a completion was polled
        self.plan = program.plan  # fault plan of all links without a plan of their own
        self.link_plans: dict[frozenset[str], str] = {}
        self.duplicates = "dup=" in program.plan
        short = program.settings["peer_timeout_ms"] < 10000
        short |= program.settings["rd_handshake_timeout_ms"] < 60000
        # whether time-outs are so short that RD may fail on a network with high loss or delay
        self.impatient = short
        # whether the network has had high loss or delay at some time
        self.harsh = programs.is_harsh_fault_plan(program.plan)
        self._numbers = 0
        self.rc = Connections(self, REMOTE_ACCESS)
        self.objects = Objects(self, REMOTE_ACCESS)
        self.endings = FinalChecks(self, REMOTE_ACCESS)

    def next_serial_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # ---- start, operations, and the checks after each operation

    def open_hosts(self) -> None:
        """Open the devices of all hosts, and create queue pairs of each type."""
        program = self.program
        for i in range(program.devices):
            address = f"fd00::{i + 1}" if program.ipv6 else f"10.0.0.{i + 1}"
            host = Host(i, address, i >= program.devices - program.liars)
            host.context = self.world.device(address, mtu=program.mtu)
            self.hosts.append(host)
            self._create_host_objects(host)
            if host.mutates_datagrams:
                self.world.mutate(host.context, 20)
        for kind in (QPType[name] for name in program.kinds):
            for a, b in zip(self.hosts, self.hosts[1:], strict=False):
                if kind == QPType.RC or (kind == QPType.UC and a.number % 2 == 0):
                    self._create_connected_pair(kind, a, b, small=False)

    def run_operation(self, op: Operation) -> None:
        """Run one operation, run the world for the operation's pause, and check the invariants."""
        self.steps += 1
        self.world.fail_memory(0 if op.kind in CREATING_OPERATIONS else self.program.memory)
        self._call_operation(op)
        self.world.fail_memory(self.program.memory)
        if op.pause_ns:
            self.world.run_for(op.pause_ns / 1e9)
        self._check_invariants()

    def _call_operation(self, op: Operation) -> None:
        for place in (self, self.rc, self.objects):
            call = getattr(place, f"do_{op.kind}", None)
            if call is not None:
                call(op)
                return
        raise AssertionError(f"there is no operation {op.kind}: add do_{op.kind}()")

    @contextlib.contextmanager
    def without_allocation_failures(self) -> Iterator[None]:
        """Let all allocations succeed while a ``with`` block creates objects of the model."""
        before = self.world.memory_failing
        self.world.fail_memory(0)
        try:
            yield
        finally:
            self.world.fail_memory(before)

    def _check_invariants(self, *, at_all: bool = False) -> None:
        """Check open regions, queue pair states, and some or (``at_all``) all closed regions."""
        for host in self.hosts:
            host.target.check_content(bool(self.program.liars))
        ends = self.list_open_queue_pairs()
        guarded = [host.srq_slots for host in self.hosts if host.srq is not None]
        for end in ends:
            guarded += end.slots
        self._guards.check(guarded)
        octets, n = 0, len(self.frozen)
        while n and (at_all or octets < CLOSED_OCTETS):
            memory = self.frozen[self._next_frozen % len(self.frozen)]
            memory.check_memory_is_unchanged()
            self._next_frozen += 1
            octets, n = octets + len(memory), n - 1
        for end in ends:
            if not end.may_be_in_error:  # if it may be in error, any state is permitted
                state = end.qp.qp_state
                if state in (QPState.ERR, QPState.SQE):
                    raise Violation(f"{end!r} is in {state.name}, and nothing went wrong")

    # ---- creation of objects

    def _create_host_objects(self, host: Host) -> None:
        """Create the program's objects on a host's open device."""
        host.up, host.life = True, host.life + 1
        host.ends, host.completions, host.handles = [], [], {}
        host.pd = PD(host.context)
        host.srq = SRQ(host.pd, SrqAttr(max_wr=32))
        host.srq_posted = {}
        host.srq_slots = MessageSlots(f"the shared receives of {host.address}", 40, 16384)
        self.register_memory(host, host.srq_slots.memory, AccessFlag.LOCAL_WRITE)
        host.srq_limit = 0
        before = host.target.closed_at if host.life > 1 else -1
        host.target = Target(host)
        host.target.closed_at = before  # requests from before the crash may still complete
        self.register_memory(host, host.target.memory, REMOTE_ACCESS)
        self._create_completion_queue(host, 8192)
        for kind in (QPType[name] for name in self.program.kinds):
            if kind not in CONNECTED_TYPES:
                self.create_queue_pair(host, kind)
        if "RC" in self.program.kinds:
            self.rc.listen_on_host(host)

    def register_memory(self, host: Host, memory: Memory, access: AccessFlag) -> None:
        memory.mr = MR(host.pd, memory.view, access)

    def _create_completion_queue(self, host: Host, cqe: int) -> Completions:
        cq = CQ(host.context, cqe, channel=CompChannel(host.context))
        completions = Completions(cq, small=cqe < 100)
        host.completions.append(completions)
        return completions

    def create_queue_pair(
        self,
        host: Host,
        kind: QPType,
        *,
        small: bool = False,
        port: int = 0,
        by_qpn: bool = False,
        private: bool = False,
        plain: bool = False,
        persona: Persona | None = None,
        shares: bool | None = None,
    ) -> End:
        """Create a queue pair, and move a UD or RD queue pair to RTS.

        Args:
            host: host of the queue pair.
            kind: type of the queue pair.
            small: use a small completion queue, which may overflow.
            port: port of the queue pair's address; 0: a free port.
            by_qpn: RC: pair by GID and QPN instead of by the connection manager.
            private: RC: allow immediate data.
            plain: use persona roce, a receive queue of its own, and no RNR retry limit.
            persona: RC: the persona; None: ``plain`` or the queue pair's number decides.
            shares: use the host's shared receive queue; None: the queue pair's number decides.

        """
        number = self.next_serial_number()
        end = End(number, host, kind)
        end.by_qpn, end.private = by_qpn, private
        if persona is None:
            persona = Persona.ROCE if plain or number % 5 < 3 else Persona.IWARP
        end.persona = persona
        completions = self._create_completion_queue(host, 6) if small else host.completions[0]
        end.send = end.recv = completions
        end.may_be_in_error = small or bool(self.program.liars)
        if end.may_be_in_error:
            end.disturbance.record_fault_begin("unreliable")
        if self.program.memory:
            end.may_be_in_error = True
            end.disturbance.record_fault_begin("memory")
        end.shares = host.srq is not None and number % 4 == 0 and not small and not plain
        if shares is not None:
            end.shares = shares
        end.grh = kind == QPType.UD and number % 3 == 0
        end.qp = QP(
            host.pd,
            QPInitAttr(
                kind,
                scq=completions.cq,
                cap=QPCap(16, 16, 2, 2, INLINE),
                srq=host.srq if end.shares else None,
                addr=None if kind == QPType.RC else (host.address, port),
                grh=end.grh,
                qkey=None if kind in CONNECTED_TYPES else QKEY,
                max_write_records=0 if small or kind in CONNECTED_TYPES else RECORDS,
                persona=end.persona if kind == QPType.RC else Persona.AUTO,
                by_qpn=by_qpn,
                private_messages=kind == QPType.RC and end.private,
            ),
        )
        for name, count in (
            ("sends", end.qp.cap.max_send_wr),
            ("receives", end.qp.cap.max_recv_wr),
        ):
            slots = MessageSlots(f"the {name} of {kind.name} {number}", count + 8, SLOT_SIZES[kind])
            self.register_memory(host, slots.memory, AccessFlag.LOCAL_WRITE)
            setattr(end, name, slots)
            end.slots.append(slots)
        if kind in READ_TYPES:
            end.large = MessageSlots(f"the large Reads of {kind.name} {number}", 2, Target.STATIC)
            self.register_memory(host, end.large.memory, AccessFlag.LOCAL_WRITE)
            end.slots.append(end.large)
        end.qp_num = end.qp.qp_num
        end.address = (host.address, end.qp_num) if kind == QPType.RC else end.qp.addr
        if kind == QPType.RD and number % 8 == 1 and not plain:
            end.rnr_retry, end.min_rnr_timer = number // 8 % 4, (1, 20, 26)[number // 32 % 3]
        if kind not in CONNECTED_TYPES:
            self._move_to_rts(end)
        host.ends.append(end)
        self.ends.append(end)
        self.at[end.address] = end
        return end

    def _create_connected_pair(self, kind: QPType, a: Host, b: Host, *, small: bool) -> None:
        rng = random.Random(self.next_serial_number() << 32 | self.program.seed)
        by_qpn = kind == QPType.RC and rng.random() < 0.5
        private = kind == QPType.RC and (by_qpn or rng.random() < 0.5)
        ends = (
            self.create_queue_pair(a, kind, small=small, by_qpn=by_qpn, private=private),
            self.create_queue_pair(b, kind, by_qpn=by_qpn, private=private),
        )
        if kind == QPType.RC:
            self.rc.connect_new_pair(*ends, rng)
            return
        for here, there in (ends, ends[::-1]):
            here.peer = there
            self._move_to_rts(here)

    def _move_to_rts(self, end: End) -> None:
        if end.kind != QPType.UC:
            end.qp.to_rts(
                QPAttr(rnr_retry=end.rnr_retry, min_rnr_timer=end.min_rnr_timer)
                if end.kind == QPType.RD
                else None
            )
            return
        assert end.peer is not None
        # Both ends get the same PSN. A receiver accepts any PSN that is newer than the expected one
        # (DGRAM-UC-7), so the PSNs of each life begin beyond those of the lives before: a delayed
        # datagram from before a reset is then too old.
        first = BELOW_WRAP
        if not self.program.near_wrap:
            first = random.Random(end.number + end.peer.number << 8).getrandbits(32)
        psn = (first + end.life * PSNS_OF_A_LIFE) % (1 << 32)
        access = int(REMOTE_ACCESS)
        end.qp.to_rts(
            QPAttr(ah_attr=end.peer.address, rq_psn=psn, sq_psn=psn, qp_access_flags=access)
        )

    def reset_queue_pair(self, end: End, *, on: bool) -> None:
        """Move a queue pair, and its peer if connected, to RESET and, if ``on``, back to RTS."""
        ends = [end]
        if end.kind in CONNECTED_TYPES and end.peer is not None and not end.peer.gone:
            ends.append(end.peer)
        for one in ends:
            if one.kind == QPType.RC:
                self.rc.close_connection(one, "ended")
            one.qp.modify(QPAttr(qp_state=QPState.RESET))
            self.objects.close_memory_window(one)
            self._forget_posted_requests(one)
            one.may_be_in_error = one.send.small or bool(self.program.liars or self.program.memory)
        end.life = max(one.life for one in ends)
        for one in ends:
            one.life = end.life
        if end.pair is not None:
            if on and len(ends) == 2:
                self.rc.connect_pair(end.pair)
            return
        for one in ends if on else ():
            self._move_to_rts(one)

    def _get_or_create_address_handle(self, end: End, dest: Address) -> AH:
        handles = end.host.handles
        if dest not in handles:
            with self.without_allocation_failures():
                handles[dest] = AH(end.host.pd, dest)
        return handles[dest]

    # ---- selection

    def list_open_queue_pairs(self) -> list[End]:
        return [end for end in self.ends if not end.gone]

    def pick_queue_pair(self, op: Operation, which: int = 0, *kinds: QPType) -> End | None:
        """Return an open queue pair of one of the given types, chosen by the operation."""
        ends = [e for e in self.list_open_queue_pairs() if not kinds or e.kind in kinds]
        return ends[op.draw_below(which, len(ends))] if ends else None

    def _pick_destination(self, op: Operation, end: End, which: int) -> Address:
        """Return the destination of a message, mostly the address of an existing queue pair."""
        if end.kind in CONNECTED_TYPES:
            assert end.peer is not None
            return end.peer.address
        if end.kind == QPType.UD and op.draw_boolean(3, 12):
            return self.objects.multicast_group_address(op.draw_below(which, 2)), 0
        ends = [
            e for e in self.ends if e.kind == end.kind and (not e.gone or op.draw_boolean(5, 5))
        ]
        return ends[op.draw_below(which, len(ends))].address if ends else end.address

    def pick_host(self, op: Operation, which: int = 0, *, up: bool = True) -> Host | None:
        hosts = [host for host in self.hosts if host.up == up]
        return hosts[op.draw_below(which, len(hosts))] if hosts else None

    # ---- sends

    def new_send_request(self, end: End, verb: str, op: Operation | None = None) -> Request | None:
        """Return a new send request with a buffer slot of its own, or None if no slot is free.

        A request without an operation (``op`` None) is signaled.
        """
        if not end.sends.free:
            return None
        signaled = op is None or not op.draw_boolean(4, 10)
        request = Request(self.next_serial_number(), end, verb, self._numbers, signaled=signaled)
        request.slots, request.slot = end.sends, end.sends.free.pop()
        self.requests[request.wr_id] = request
        return request

    def build_send_wr(
        self, request: Request, opcode: WROpcode, length: int, **more: object
    ) -> SendWR:
        end, slots = request.end, request.slots
        assert end is not None and slots is not None and slots.memory.mr is not None
        request.length = length
        flags = SIGNALED if request.signaled else 0
        reads = request.verb in ("read", "atomic")
        if length <= INLINE and request.order % 2 and not reads and not request.bad:
            flags |= INLINE_FLAG
        if request.order % 3 == 0:
            flags |= SOLICITED
        sg = [slots.memory.mr.sge(slots.offset_of(request.slot), length)]
        if length > 200 and request.order % 2:  # two scatter/gather elements
            at, first = (
                slots.offset_of(request.slot),
                (100, length * 2 // 3)[request.order // 2 % 2],
            )
            sg = [slots.memory.mr.sge(at, first), slots.memory.mr.sge(at + first, length - first)]
        if request.order % 7 == 0:
            flags |= FENCE
        ah = None
        if end.kind not in CONNECTED_TYPES:
            assert request.dest is not None
            ah = self._get_or_create_address_handle(end, request.dest)
        return SendWR(request.wr_id, opcode, send_flags=flags, sg=sg, ah=ah, **more)  # type: ignore[arg-type]

    def new_message(
        self, request: Request, length: int, *, imm: bool, wide: bool = False
    ) -> Message:
        end, dest = request.end, request.dest
        assert end is not None and dest is not None
        number = request.wr_id
        index = end.next_index[dest] = end.next_index.get(dest, 0) + 1
        message = Message(number, end, end.life, dest, index, length, number if imm else None, wide)
        self.messages[number] = request.message = message
        return message

    def post_sends(self, end: End, some: list[tuple[Request, SendWR]]) -> bool:
        """Post requests in one call, forget refused ones, and return whether all were accepted."""
        state = end.qp.qp_state
        taken = len(some)
        try:
            end.qp.post_send([wr for _, wr in some] if len(some) > 1 else some[0][1])
        except Error as e:
            taken = [id(wr) for _, wr in some].index(id(e.bad_wr))
            self.refusals += 1
            # An RC queue pair does not know its limits before its connection is established.
            early = state == QPState.ERR and end.kind == QPType.RC and not end.knows_limits
            early &= e.errno == errno.EINVAL
            if state in (QPState.RESET, QPState.INIT, QPState.RTR) or early:
                require(e.errno == errno.EINVAL, f"posting to {end!r} in {state.name}: {e}")
            else:
                full = len(end.posted) + taken >= end.qp.cap.max_send_wr or self.program.memory > 0
                require(
                    e.errno == errno.ENOMEM and full,
                    f"posting to {end!r} with {len(end.posted) + taken} requests: {e}",
                )
        for request, _ in some[:taken]:
            end.posted[request.wr_id] = request
            request.posted_ns = self.world.now_ns
            if end.kind == QPType.RC:
                if request.message is not None:
                    request.message.behind = end.last_write
                if request.cell is not None:
                    end.last_write = request.cell, request.version
                self.rc.note_posted_request(end, request.message)
        for request, _ in reversed(some[taken:]):
            self.forget_request(request)
            if request.message is not None:
                del self.messages[request.message.number]
                assert request.dest is not None
                end.next_index[request.dest] = request.message.index - 1
            if request.cell is not None and not request.cell.steady:
                request.cell.tainted = True
            if request.counter is not None:
                request.counter.unknown -= 1
        visible = sum(request.signaled for request in end.posted.values())
        require(
            visible <= end.qp.cap.max_send_wr,
            lambda: (
                f"{end!r} holds {visible} requests, which is more than {end.qp.cap.max_send_wr}"
            ),
        )
        return taken == len(some)

    def forget_request(self, request: Request) -> None:
        request.done = True
        self._release_slot(request)

    def _release_slot(self, request: Request) -> None:
        if request.slots is not None and request.slot >= 0:
            request.slots.free.append(request.slot)
            request.slot = -1

    def _prepare_send(
        self, op: Operation, end: End, number: int, bad: str = "", dest: Address | None = None
    ) -> tuple[Request, SendWR] | None:
        request = self.new_send_request(end, "send", op)
        if request is None:
            return None
        request.bad = bad
        request.dest = dest or self._pick_destination(op, end, 1)
        assert request.slots is not None
        imm = number % 4 == 0 and (end.kind != QPType.RC or (end.private and end.knows_limits))
        sizes = (0, 1, 16, 40, 3000) if imm else (16, 64, 100, 500, 1400, 3000)
        length = sizes[number // 4 % len(sizes)]
        if number % 29 == 5:
            length = SLOT_SIZES[end.kind] - 40
        message = self.new_message(request, length, imm=imm)
        request.slots.write(request.slot, make_message_content(message.number, length))
        opcode = WROpcode.SEND_WITH_IMM if imm else WROpcode.SEND
        return request, self.build_send_wr(
            request, opcode, length, imm_data=message.number if imm else 0
        )

    def do_send(self, op: Operation) -> None:
        """Post a Send of a random size, with or without immediate data."""
        end = self.pick_queue_pair(op)
        prepared = end and self._prepare_send(op, end, op.numbers[2])
        if end and prepared:
            self.post_sends(end, [prepared])

    def post_plain_send(
        self, end: End, number: int = 1, dest: Address | None = None
    ) -> Request | None:
        """Post a Send, of 16 octets by default; return its request, or None if it was refused.

        The responder of a connection must not send before the initiator's first message arrives.
        """
        op = Operation("send", (0, 0, 1, 0, 99, 0), 0)
        prepared = self._prepare_send(op, end, number, dest=dest)
        if prepared is None or not self.post_sends(end, [prepared]):
            return None
        return prepared[0]

    def do_send_list(self, op: Operation) -> None:
        """Post several Sends in one call."""
        end = self.pick_queue_pair(op)
        if end is None:
            return
        some = [
            self._prepare_send(op, end, op.numbers[2] + i) for i in range(2 + op.draw_below(3, 5))
        ]
        ready = [one for one in some if one is not None]
        if ready:
            self.post_sends(end, ready)

    def do_send_with_invalid_lkey(self, op: Operation) -> None:
        """Post a Send whose buffer has an invalid lkey."""
        end = self.pick_queue_pair(op)
        prepared = end and self._prepare_send(op, end, 1 + op.numbers[2] * 4, "local")
        if end is None or not prepared:
            return
        _, wr = prepared
        wr.sg[0].lkey ^= 0x00FFFF00
        end.may_be_in_error = True
        end.disturbance.record_fault_begin("error")
        if end.pair is not None:
            end.pair.causes.add("local")
        self.post_sends(end, [prepared])

    def do_overfill_queue(self, op: Operation) -> None:
        """Check that a queue accepts exactly as many requests as it can hold."""
        end = self.pick_queue_pair(op)
        if end is None:
            return
        if op.draw_boolean(1, 50) and not end.shares:
            while self._post_receive_of_length(end, SLOT_SIZES[end.kind]):
                pass
            return
        for i in range(end.qp.cap.max_send_wr + 1):
            prepared = self._prepare_send(op, end, op.numbers[2] + i)
            if prepared is None or not self.post_sends(end, [prepared]):
                return

    # ---- one-sided operations

    def _target_region_at_destination(self, request: Request) -> Target | None:
        """Return the target region on a request's destination host; None: not registered."""
        end = self.at.get(request.dest) if request.dest else None
        if end is None or end.gone or not end.host.up or end.host.target.memory.mr is None:
            return None
        return end.host.target

    def _new_request_to_target(
        self, op: Operation, verb: str, *kinds: QPType
    ) -> tuple[Request, Target] | None:
        end = self.pick_queue_pair(op, 0, *kinds)
        request = end and self.new_send_request(end, verb, op)
        if end is None or not request:
            return None
        request.dest = self._pick_destination(op, end, 1)
        target = self._target_region_at_destination(request)
        if target is None:
            self.forget_request(request)
            return None
        return request, target

    def _remote_buffer(self, target: Target, at: int, length: int) -> RemoteBuffer:
        assert target.memory.mr is not None
        return target.memory.mr.remote(at, length)

    def _post_write(self, op: Operation, verb: str, opcode: WROpcode, *kinds: QPType) -> None:
        aimed = self._new_request_to_target(op, verb, *kinds)
        if aimed is None:
            return
        request, target = aimed
        end = request.end
        assert end is not None and request.slots is not None
        assert request.dest is not None
        record = verb == "write_record"
        steady = end.kind not in READ_TYPES or record
        cell = target.find_or_allocate_write_area(end, request.dest, steady=steady, record=record)
        if cell is None:
            self.forget_request(request)
            return
        lengths = (0, 1, 60, 1000, 3000, Target.RECORD) if record else (0, 1, 8, 60, 300, 1000)
        length = min(lengths[op.draw_below(2, 6)], request.slots.size)
        offset = op.draw_below(3, cell.length - length + 1)
        request.cell = cell
        if cell.steady:
            cell.expected[:] = make_message_content(1 << 40 | cell.number, cell.length)
            octets = bytes(cell.expected[offset : offset + length])
        else:
            octets = make_message_content(request.wr_id, length)
            cell.expected[offset : offset + length] = octets
            cell.version += 1
            request.version = cell.version
        request.slots.write(request.slot, octets)
        imm = 0
        if verb == "write_imm":
            message = self.new_message(request, length, imm=True, wide=True)
            message.cell, message.offset, imm = cell, offset, message.number
        wr = self.build_send_wr(
            request,
            opcode,
            length,
            remote=self._remote_buffer(target, cell.at + offset, length),
            imm_data=imm,
        )
        self.post_sends(end, [(request, wr)])

    def post_write_record(self, end: End, peer: End, cell: Cell, at: int, length: int) -> None:
        """Post a Write-Record of ``length`` octets to offset ``at`` of a write area of the peer."""
        request = self.new_send_request(end, "write_record")
        if request is None:
            return
        assert request.slots is not None
        request.dest, request.cell = peer.address, cell
        request.slots.write(request.slot, bytes(cell.expected[at : at + length]))
        remote = self._remote_buffer(peer.host.target, cell.at + at, length)
        wr = self.build_send_wr(request, WROpcode.RDMA_WRITE_RECORD, length, remote=remote)
        self.post_sends(end, [(request, wr)])

    def do_write(self, op: Operation) -> None:
        """Post an RDMA Write to the queue pair's own write area in the target region."""
        self._post_write(op, "write", WROpcode.RDMA_WRITE, *READ_TYPES, QPType.UC)

    def do_write_imm(self, op: Operation) -> None:
        """Post an RDMA Write with immediate data."""
        self._post_write(op, "write_imm", WROpcode.RDMA_WRITE_WITH_IMM, *READ_TYPES, QPType.UC)

    def do_write_record(self, op: Operation) -> None:
        """Post a Write-Record to the queue pair's own write area in the target region."""
        self._post_write(op, "write_record", WROpcode.RDMA_WRITE_RECORD, QPType.RD, QPType.UD)

    def do_read(self, op: Operation) -> None:
        """Post an RDMA Read of the target region's constant part."""
        aimed = self._new_request_to_target(op, "read", *READ_TYPES)
        if aimed is not None:
            length = (0, 1, 64, 1000, 4096, Target.STATIC - 100)[op.draw_below(2, 6)]
            self.post_rdma_read(*aimed, length, op.numbers[3])

    def post_rdma_read(self, request: Request, target: Target, length: int, at: int) -> bool:
        """Post a Read of ``length`` octets of a target region; ``at`` determines the offset.

        Return whether the request was accepted.
        """
        assert request.end is not None
        if length > 4096 and request.end.large.free:
            self._release_slot(request)
            request.slots, request.slot = request.end.large, request.end.large.free.pop()
        length = min(length, request.slots.size if request.slots else 0)
        offset = at % (Target.STATIC - length + 1)
        request.expected = target.static[offset : offset + length]
        wr = self.build_send_wr(
            request, WROpcode.RDMA_READ, length, remote=self._remote_buffer(target, offset, length)
        )
        return self.post_sends(request.end, [(request, wr)])

    def do_fetch_add(self, op: Operation) -> None:
        """Post a fetch-and-add that adds 1 to a counter shared by all peers."""
        aimed = self._new_request_to_target(op, "atomic", *READ_TYPES)
        if aimed is None:
            return
        request, target = aimed
        assert request.end is not None
        counter = request.counter = target.counters[op.draw_below(2, Target.COUNTERS)]
        counter.unknown += 1
        masked = op.draw_boolean(3, 30)
        wr = self.build_send_wr(
            request,
            WROpcode.MASKED_ATOMIC_FETCH_AND_ADD if masked else WROpcode.ATOMIC_FETCH_AND_ADD,
            8,
            remote=self._remote_buffer(target, counter.at, 8),
            compare_add=1,
        )
        self.post_sends(request.end, [(request, wr)])

    def do_compare_swap(self, op: Operation) -> None:
        """Post a compare-and-swap whose compare value differs, so that no memory changes."""
        aimed = self._new_request_to_target(op, "atomic", *READ_TYPES)
        if aimed is None:
            return
        request, target = aimed
        assert request.end is not None
        at = 8 * op.draw_below(2, Target.STATIC // 8)
        request.expected = target.static[at : at + 8]
        other = int.from_bytes(request.expected, "little") ^ 1
        wr = self.build_send_wr(
            request,
            WROpcode.ATOMIC_CMP_AND_SWP,
            8,
            remote=self._remote_buffer(target, at, 8),
            compare_add=other,
            swap=0,
        )
        self.post_sends(request.end, [(request, wr)])

    def do_invalid_remote_access(self, op: Operation) -> None:
        """Post an RDMA Write or Read that must be refused: out of bounds, or with a wrong rkey."""
        aimed = self._new_request_to_target(op, "write", *READ_TYPES, QPType.UC)
        if aimed is None:
            return
        request, target = aimed
        end, mr = request.end, target.memory.mr
        assert end is not None and mr is not None and request.slots is not None
        remote = (
            RemoteBuffer(mr.addr + mr.length - 4, 8, mr.rkey),
            RemoteBuffer(mr.addr - 8, 8, mr.rkey),
            RemoteBuffer(mr.addr, 8, mr.rkey ^ 0x00FFFF00),
        )[op.draw_below(2, 3)]
        request.bad = "remote"
        request.slots.write(request.slot, b"\xbb" * 8)
        reads = op.draw_boolean(3, 30) and end.kind in READ_TYPES
        if reads:
            request.verb = "read"
        if end.pair is not None:
            end.pair.causes.add("refused")
        wr = self.build_send_wr(
            request, WROpcode.RDMA_READ if reads else WROpcode.RDMA_WRITE, 8, remote=remote
        )
        self.post_sends(end, [(request, wr)])

    # ---- receives

    def post_receive(self, end: End) -> bool:
        """Post a receive that is large enough for any message; return whether it was accepted."""
        return self._post_receive_of_length(end, SLOT_SIZES[end.kind])

    def _post_receive_of_length(self, end: End, length: int) -> bool:
        if end.shares:
            posted = self.post_shared_receives(end.host, 1)
            end.offered += posted
            return posted > 0
        if not end.receives.free:
            return False
        request, wr = self._new_receive(end.receives, end, length)
        room = end.qp.cap.max_recv_wr
        try:
            end.qp.post_recv(wr)
        except Error as e:
            self.refusals += 1
            self._release_slot(request)
            if end.qp.qp_state == QPState.RESET:
                require(e.errno == errno.EINVAL, f"a receive for {end!r} in RESET: {e}")
                return False
            require(
                e.errno == errno.ENOMEM and (len(end.waiting) >= room or self.program.memory > 0),
                f"posting a receive to {end!r}, where {len(end.waiting)} are: {e}",
            )
            return False
        self.requests[request.wr_id] = end.waiting[request.wr_id] = request
        end.offered += 1
        require(
            len(end.waiting) <= room,
            lambda: f"{end!r} holds {len(end.waiting)} receives: more than {room}",
        )
        return True

    def _new_receive(
        self, slots: MessageSlots, end: End | None, length: int
    ) -> tuple[Request, RecvWR]:
        """Return a new receive of a length; it is for a shared receive queue if ``end`` is None."""
        request = Request(self.next_serial_number(), end, "receive", self._numbers)
        request.slots, request.slot, request.length = slots, slots.free.pop(), length
        slots.write(request.slot, bytes([BLANK]) * length)
        assert slots.memory.mr is not None
        at, first = slots.offset_of(request.slot), length
        if request.order % 2 and end is not None:  # two scatter/gather elements
            first = length // 5
        parts = ((at, first), (at + first, length - first))
        sg = [slots.memory.mr.sge(*part) for part in parts if part[1]]
        return request, RecvWR(request.wr_id, sg=sg)

    def post_shared_receives(self, host: Host, n: int) -> int:
        """Post up to ``n`` receives to a host's shared receive queue; return the number posted."""
        srq, slots = host.srq, host.srq_slots
        assert srq is not None
        some = [self._new_receive(slots, None, slots.size) for _ in range(min(n, len(slots.free)))]
        taken = len(some)
        try:
            srq.post_recv([wr for _, wr in some])
        except Error as e:
            self.refusals += 1
            taken = [id(wr) for _, wr in some].index(id(e.bad_wr))
            held = len(host.srq_posted) + taken
            require(
                e.errno == errno.ENOMEM and (held >= srq.attr.max_wr or self.program.memory > 0),
                f"posting {len(some)} receives to the shared queue of {host.address}, where "
                f"{held} are: {e}",
            )
        for request, _ in some[:taken]:
            self.requests[request.wr_id] = host.srq_posted[request.wr_id] = request
        for request, _ in reversed(some[taken:]):
            self._release_slot(request)
        return taken

    def do_post_receives(self, op: Operation) -> None:
        """Post up to 6 receives to a queue pair."""
        end = self.pick_queue_pair(op)
        if end is None or end.host.slow:
            return
        n = 1 + op.draw_below(1, 6)
        if end.shares:
            end.offered += self.post_shared_receives(end.host, n)
            return
        for _ in range(n):
            if not self._post_receive_of_length(end, SLOT_SIZES[end.kind]):
                return

    def do_post_short_receive(self, op: Operation) -> None:
        """Post a receive that is too short for most messages."""
        end = self.pick_queue_pair(op)
        if end is not None and not end.shares:
            end.short = True
            if end.pair is not None:
                end.pair.causes.add("refused")
            self._post_receive_of_length(end, 41 + op.draw_below(1, 100))

    # ---- completions

    def do_arm_cq(self, op: Operation) -> None:
        """Arm a completion queue, even if the completion queue is not empty."""
        host = self.pick_host(op)
        if host is None:
            return
        completions = host.completions[op.draw_below(1, len(host.completions))]
        if completions.waiters or completions.overflowed or completions.armed is not None:
            return
        try:
            completions.cq.req_notify()
        except StateError as e:
            self._note_cq_overflow(host, completions, e)
            return
        completions.armed = completions.cq.pending

    def _check_completion_event(self, completions: Completions) -> None:
        """Check that a completion added to an armed completion queue has raised an event."""
        cq, armed = completions.cq, completions.armed
        if armed is None or completions.overflowed or cq.pending <= armed:
            return
        channel = cq.channel
        assert channel is not None
        require(
            channel.get_cq_event(0) is cq,
            f"a completion queue was armed with {armed} completions, has more, and raised no event",
        )
        cq.ack_events(1)
        completions.armed = None

    def poll_completions(self, host: Host, completions: Completions, n: int) -> int:
        """Poll a completion queue for up to ``n`` completions, check them, return their number."""
        if completions.armed is not None:
            self._check_completion_event(completions)
        try:
            wcs = completions.cq.poll(n)
        except StateError as e:
            self._note_cq_overflow(host, completions, e)
            return 0
        if completions.armed is not None:
            completions.armed = max(completions.armed - len(wcs), 0)
        for wc in wcs:
            self._check_completion(host, completions, wc)
        return len(wcs)

    def _note_cq_overflow(self, host: Host, completions: Completions, e: StateError) -> None:
        require(
            e.errno == errno.EOVERFLOW and completions.small,
            f"polling a completion queue of {host.address}: {e}",
        )
        completions.overflowed = True
        for end in host.ends:
            if end.send is completions:
                end.lost = end.may_be_in_error = True
                end.disturbance.record_fault_begin("overflow")

    def do_poll(self, op: Operation) -> None:
        """Poll a completion queue for up to 16 completions."""
        host = self.pick_host(op)
        if host is not None and not host.slow:
            completions = host.completions[op.draw_below(1, len(host.completions))]
            self.poll_completions(host, completions, 1 + op.draw_below(2, 16))
            self.rc.handle_cm_events(host)
            self.objects.check_srq_limit_event(host)

    def do_poll_all(self, op: Operation) -> None:
        """Poll all completion queues until they are empty."""
        del op
        self.poll_all_hosts()

    def do_wait_for_cq(self, op: Operation) -> None:
        """Start a task that waits for completions."""
        host = self.pick_host(op)
        if host is None or host.slow:
            return
        completions = host.completions[op.draw_below(1, len(host.completions))]
        if completions.armed is not None:  # the wait would consume the event
            return
        completions.waiters += 1
        limit = (1 + op.draw_below(2, 200)) / 1000

        def wait_for_completions() -> None:
            try:
                wcs = completions.cq.wait(timeout=limit)
            except Timeout:
                wcs = []
            except StateError as e:
                wcs = []
                if e.errno != errno.ESTALE or host.up:
                    self._note_cq_overflow(host, completions, e)
            finally:
                completions.waiters -= 1
            for wc in wcs:
                self._check_completion(host, completions, wc)

        self.world.spawn(wait_for_completions)

    def do_advance_time(self, op: Operation) -> None:
        """Run the world for 1 to 100 ms."""
        self.world.run_for((1 + op.draw_below(0, 100)) / 1000)

    def _check_completion(self, host: Host, completions: Completions, wc: WC) -> None:
        if wc.ok and wc.opcode == WCOpcode.RECV_WRITE_RECORD:
            self._check_write_record(host, wc)
            return
        request = self.requests.get(wc.wr_id)
        require(
            request is not None,
            lambda: f"a completion on {host.address} for a request that was not posted: {wc!r}",
        )
        assert request is not None
        require(
            not request.done,
            lambda: f"{request.verb} {wc.wr_id} completed again, or too late: {wc!r}",
        )
        request.done, request.status = True, wc.status
        if request.verb == "receive":
            self._check_receive_completion(host, request, wc)
        else:
            self._check_send_completion(request, wc)
        self._release_slot(request)

    def _check_send_completion(self, request: Request, wc: WC) -> None:
        end = request.end
        assert end is not None
        del end.posted[request.wr_id]
        what = LazyText(lambda: f"{request.verb} {request.wr_id} of {end!r} to {request.dest}")
        require(wc.qp_num == end.qp_num, lambda: f"{what} completed with QP {wc.qp_num}")
        key = request.dest if end.kind == QPType.RD else None
        require(
            end.last_done.get(key, 0) < request.order,
            lambda: f"{what} completed after a later request",
        )
        end.last_done[key] = request.order
        # A completion also completes the earlier unsignaled requests.
        for other in [r for r in end.posted.values() if r.order < request.order]:
            if key is not None and other.dest != key:
                continue
            if other.signaled:
                raise Violation(f"{what} completed before {other.verb} {other.wr_id}")
            if wc.ok:
                other.done = True
                del end.posted[other.wr_id]
                self._release_slot(other)
        require(not wc.ok or request.signaled, lambda: f"{what} is unsignaled, but completed")
        self._check_send_status(request, end, wc, what)
        self.objects.note_memory_window_completion(request, wc)
        if request.message is not None:
            request.message.status = wc.status
        if wc.ok:
            self._check_successful_send(request, end, what)
        elif request.cell is not None:
            request.cell.tainted = True
        if request.verb not in ("read", "atomic") and request.slot >= 0:
            # The program may reuse the buffer of a completed request.
            assert request.slots is not None
            request.slots.write(request.slot, b"\xee" * min(64, request.length))

    def _check_send_status(self, request: Request, end: End, wc: WC, what: LazyText) -> None:
        """Check the status of a send request against the faults that may have caused the status."""
        if self.program.liars and (
            end.mutates_datagrams or self._is_address_of_mutating_host(request.dest)
        ):
            return
        status = WCStatus(wc.status)
        if end.kind == QPType.RC:
            self.rc.check_send_status(request, end, wc, what)
        elif request.bad == "local":
            require(
                status in (WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR, *LOSS_STATUSES),
                lambda: f"{what} from no region: {status.name}",
            )
        elif request.bad == "remote" and end.kind == QPType.RD:
            # A Write that completes before the error message arrives keeps its status
            # (DGRAM-RDV-8).
            require(
                not wc.ok or request.verb == "write",
                lambda: f"{what}, from memory that is not granted, succeeded",
            )
            if status not in REFUSAL_STATUSES and not wc.ok:
                self._check_rd_failure(request, end, status, what)
        elif wc.ok:
            return
        elif end.kind == QPType.RD:
            self._check_rd_failure(request, end, status, what)
        elif status == WCStatus.WR_FLUSH_ERR:
            require(end.may_be_in_error, lambda: f"{what} was flushed without a cause")
        else:
            disturbed = end.host.disturbance.last_fault_ns(0) >= 0 or self.program.memory > 0
            require(status == WCStatus.GENERAL_ERR and disturbed, lambda: f"{what}: {status.name}")

    def _is_address_of_mutating_host(self, address: Address | None) -> bool:
        end = self.at.get(address) if address else None
        return end is not None and end.mutates_datagrams

    def _check_rd_failure(
        self, request: Request, end: End, status: WCStatus, what: LazyText
    ) -> None:
        peer = self.at.get(request.dest) if request.dest else None
        if status in REFUSAL_STATUSES:
            target = peer.host.target if peer is not None else None
            closed = target is None or target.closed_at > request.order
            closed |= request.verb == "write_record" and peer is not None and peer.send.small
            short = peer is not None and peer.short and request.message is not None
            require(
                closed or short or end.may_be_in_error,
                lambda: f"{what}: {status.name}, although the request is valid",
            )
            return
        limited = [e for e in (end, peer) if e is not None and e.rnr_retry is not None]
        if status == WCStatus.RNR_RETRY_EXC_ERR:
            require(
                end.rnr_retry is not None,
                lambda: f"{what} has no RNR retry limit, but failed with RNR_RETRY_EXC_ERR",
            )
            self.check_rnr_wait(request, end.rnr_retry or 0, peer, what)
            return
        require(status in LOSS_STATUSES, lambda: f"{what}: {status.name}")
        require(
            (self.impatient and self.harsh)
            or bool(limited)
            or peer is None
            or self._may_rd_pair_fail(end, peer),
            lambda: f"{what}: {status.name}, although neither end was disturbed",
        )

    def _may_rd_pair_fail(self, end: End, peer: End) -> bool:
        """Return whether requests of an RD pair may have failed because of a disturbance.

        A request that was posted after a disturbance and has completed shows that the pair has
        reconnected. The disturbance then no longer excuses a failure.
        """
        now = self.world.now_ns
        if end.gone or peer.gone:
            return True
        happened = [one.disturbance.last_fault_ns(now) for one in (end, peer, end.host, peer.host)]
        # An earlier queue pair at the peer's address may have closed.
        happened += [
            e.disturbance.last_fault_ns(now) for e in self.ends if e.address == peer.address
        ]
        proven = [end.proven_ns.get(peer.address, 0)]
        if end.address in peer.next_index:
            proven.append(peer.proven_ns.get(end.address, 0))
        return max(happened) >= min(proven)

    def check_rnr_wait(
        self, request: Request, retry: int, peer: End | None, what: LazyText
    ) -> None:
        """Check that a Send that failed with RNR_RETRY_EXC_ERR waited as long as configured."""
        timer = peer.min_rnr_timer if peer is not None else None
        least = 0 if timer is None else retry * RNR_NS[timer]
        waited = self.world.now_ns - request.posted_ns
        require(
            waited >= least, lambda: f"{what} waited for its receive {waited} ns, and not {least}"
        )

    def _check_successful_send(self, request: Request, end: End, what: LazyText) -> None:
        if end.kind == QPType.RD and request.dest is not None:
            end.proven_ns[request.dest] = request.posted_ns
        slots = request.slots
        if slots is None:
            return
        honest = not (
            self.program.liars
            and (end.mutates_datagrams or self._is_address_of_mutating_host(request.dest))
        )
        # A host that sends mutated datagrams may overwrite memory that others read (Target.check).
        if request.expected is not None and not request.bad and not self.program.liars:
            got = slots.read(request.slot, len(request.expected))
            require(got == request.expected, lambda: f"{what} returned wrong octets")
        if request.counter is not None:
            request.counter.done += 1
            request.counter.unknown -= 1
            value = int.from_bytes(slots.read(request.slot, 8), "little")
            require(
                value not in request.counter.seen or not honest,
                lambda: f"{what}: two additions got the same value {value}",
            )
            request.counter.seen.add(value)
        cell = request.cell
        if cell is None or cell.steady or cell.tainted or not honest:
            return
        target, dest = self._target_region_at_destination(request), request.dest
        if target is None or dest is None or end.kind not in READ_TYPES:
            return
        if request.version != cell.version:
            return
        require(
            target.cells.get((end.number, dest, False)) is not cell
            or (end.kind == QPType.RC and end.persona != Persona.ROCE)
            or target.content_of_write_area(cell) == cell.expected,
            lambda: f"{what} completed, but its octets are not in the target",
        )

    def _check_receive_completion(self, host: Host, request: Request, wc: WC) -> None:
        if request.end is not None:
            end = request.end
            del end.waiting[request.wr_id]
        else:
            del host.srq_posted[request.wr_id]
            found = [e for e in host.ends if e.qp_num == wc.qp_num and e.shares]
            require(
                bool(found), lambda: f"a shared receive completed for QP {wc.qp_num}: there is none"
            )
            end = found[-1]
        what = LazyText(lambda: f"receive {request.wr_id} of {end!r}")
        require(wc.qp_num == end.qp_num, lambda: f"{what} completed with QP {wc.qp_num}")
        if request.end is not None and end.kind != QPType.RD:
            require(
                end.last_received < request.order, lambda: f"{what} completed after a later request"
            )
            end.last_received = request.order
        status = WCStatus(wc.status)
        if status == WCStatus.WR_FLUSH_ERR:
            require(end.may_be_in_error, lambda: f"{what} was flushed without a cause")
        elif status == WCStatus.LOC_PROT_ERR:
            require(request.bad == "closed", lambda: f"{what} found its memory closed: {wc!r}")
        elif status == WCStatus.LOC_LEN_ERR:
            require(
                request.length < SLOT_SIZES[end.kind] or end.may_be_in_error,
                lambda: f"{what} of {request.length} octets was too short",
            )
        else:
            require(status == WCStatus.SUCCESS, lambda: f"{what}: {status.name}")
            self._check_received_message(end, request, wc, what)

    def _check_received_message(
        self, end: End, request: Request, wc: WC, receive: LazyText
    ) -> None:
        slots = request.slots
        assert slots is not None
        if wc.source is not None and self._is_address_of_mutating_host(wc.source):
            return
        if end.kind == QPType.UC and end.peer is not None and end.peer.mutates_datagrams:
            return
        front = 40 if end.grh else 0
        wide = wc.opcode == WCOpcode.RECV_RDMA_WITH_IMM
        octets = b"" if wide else slots.read(request.slot, wc.byte_len)[front:]
        imm = wc.imm_data if wc.wc_flags & WCFlag.WITH_IMM else None
        number = imm if imm is not None else message_number_of(octets)
        message = self.messages.get(number) if number is not None else None
        require(
            message is not None, lambda: f"{receive} contains a message that was not sent: {wc!r}"
        )
        assert message is not None and number is not None
        what = LazyText(lambda: f"{receive}: message {number} of {message.source!r}")
        require(
            message.imm == imm and message.wide == wide,
            lambda: f"{what} arrived as a different kind of message",
        )
        require(
            wc.byte_len == message.length + front,
            lambda: f"{what} came with {wc.byte_len} octets, not {message.length}",
        )
        require(
            wide or octets == make_message_content(number, message.length),
            lambda: f"{what} was altered",
        )
        to_group = message.dest[0] in end.groups
        require(message.dest == end.address or to_group, lambda: f"{what} was for {message.dest}")
        self.objects.check_invalidated_rkey_in_completion(end, message, wc, what)
        if wc.source is not None:
            require(wc.source == message.source.address, lambda: f"{what} came from {wc.source}")
        if end.kind == QPType.UD:
            rest = slots.read(request.slot, request.length)[wc.byte_len :]
            require(
                not rest.strip(bytes([BLANK])),
                lambda: f"{what}: octets behind the message were overwritten",
            )
        life = end.number << 16 | end.life
        # The network may duplicate a UD message, because UD does not detect duplicates.
        again = (
            sum(message.arrivals.values())
            if end.kind == QPType.RD
            else message.arrivals.get(life, 0)
        )
        may_twice = end.kind == QPType.UD and self.duplicates
        require(not again or may_twice, lambda: f"{what} arrived twice")
        message.arrivals[life] = message.arrivals.get(life, 0) + 1
        if end.kind != QPType.UD:
            key = (message.source.number << 16 | message.life, life)
            last = end.last_taken.get(key, 0)
            require(last < message.index, lambda: f"{what} arrived after a later message")
            require(
                end.kind != QPType.RC or message.index == last + 1,
                lambda: (
                    f"{what}, number {message.index} of its stream, arrived after number {last}"
                ),
            )
            end.last_taken[key] = message.index
        if end.kind == QPType.RC:
            self.rc.check_message_order(end, message, what)
        cell = message.cell
        if wide and cell is not None and cell.steady:
            now = end.host.target.content_of_write_area(cell)
            span = slice(message.offset, message.offset + message.length)
            require(
                now[span] == bytes(cell.expected[span]) or end.host.target.closed_at > 0,
                lambda: f"{what}: its octets are not in the target",
            )

    def _check_write_record(self, host: Host, wc: WC) -> None:
        end = next((e for e in host.ends if e.qp_num == wc.qp_num and not e.gone), None)
        require(
            end is not None, lambda: f"a Write-Record for QP {wc.qp_num} of {host.address}: none"
        )
        assert end is not None
        record = end.qp.record(wc)
        if self._is_address_of_mutating_host(record.source):
            return
        what = LazyText(lambda: f"Write-Record {record.message_id} of {record.source} at {end!r}")
        source = self.at.get(record.source)
        require(source is not None, lambda: f"{what}: no queue pair has that address")
        assert source is not None
        require(
            record.length == wc.byte_len, lambda: f"{what}: {wc.byte_len} octets of {record.length}"
        )
        key = end.number, end.life, source.number, source.life, record.message_id
        require(key not in self.recorded, lambda: f"{what} completed twice")
        self.recorded.add(key)
        self.reports += 1
        octets = sum(last - first for first, last in record.ranges)
        require(
            octets == record.valid, lambda: f"{what}: {record.valid} octets, in ranges of {octets}"
        )
        if end.kind == QPType.RD:
            require(
                record.whole, lambda: f"{what}: only {record.valid} octets of {record.length} came"
            )
        cell = host.target.cells.get((source.number, end.address, True))
        require(cell is not None, lambda: f"{what}: {source!r} posted no Write-Record to this host")
        assert cell is not None
        mr = host.target.memory
        start = record.addr - _memory_address(mr) - cell.at
        require(0 <= start <= cell.length - record.length, lambda: f"{what} is outside of its cell")
        now = host.target.content_of_write_area(cell)
        for first, last in record.ranges:
            span = slice(start + first, start + last)
            require(now[span] == bytes(cell.expected[span]), lambda: f"{what}: wrong octets")

    # ---- lives of queue pairs

    def _forget_posted_requests(self, end: End) -> None:
        """Forget the posted requests of a reset or closed queue pair, which never complete."""
        for request in [*end.posted.values(), *end.waiting.values()]:
            self.forget_request(request)
            if request.cell is not None:
                request.cell.tainted = True
        end.posted.clear()
        end.waiting.clear()
        end.lost = True
        if end.gone:
            end.disturbance.faults.clear()
        end.disturbance.record_fault_end("error", self.world.now_ns)
        end.disturbance.note_instant_fault(self.world.now_ns)
        end.life += 1

    def do_move_to_err(self, op: Operation) -> None:
        """Move a queue pair to ERR, which flushes its posted requests."""
        end = self.pick_queue_pair(op)
        if end is not None:
            self.move_queue_pair_to_err(end)

    def move_queue_pair_to_err(self, end: End) -> None:
        end.may_be_in_error = end.lost = True
        end.disturbance.record_fault_begin("error")
        end.qp.modify(QPAttr(qp_state=QPState.ERR))

    def do_reset_qp(self, op: Operation) -> None:
        """Move a queue pair to RESET and, in 80% of the cases, back to RTS."""
        end = self.pick_queue_pair(op)
        if end is None:
            return
        self.reset_queue_pair(end, on=op.draw_boolean(1, 80))

    def do_recover_qp(self, op: Operation) -> None:
        """Move a queue pair that is not in RTS back to RTS, or destroy it if that is impossible."""
        ends = [end for end in self.list_open_queue_pairs() if end.qp.qp_state != QPState.RTS]
        if not ends:
            return
        end = ends[op.draw_below(0, len(ends))]
        gone = end.kind in CONNECTED_TYPES and (end.peer is None or end.peer.gone)
        if end.send.overflowed or gone:
            self.destroy_queue_pair(end)
            return
        if end.qp.qp_state in (QPState.SQE, QPState.SQD):
            end.qp.to_rts()
        else:
            self.reset_queue_pair(end, on=True)

    def do_move_to_sqd(self, op: Operation) -> None:
        """Move a queue pair to SQD."""
        end = self.pick_queue_pair(op, 0, QPType.UD, QPType.UC, QPType.RC)
        if end is not None and end.qp.qp_state == QPState.RTS:
            end.qp.modify(QPAttr(qp_state=QPState.SQD))

    def do_destroy_qp(self, op: Operation) -> None:
        """Destroy a queue pair."""
        end = self.pick_queue_pair(op)
        if end is not None and not end.send.waiters:
            self.destroy_queue_pair(end)

    def destroy_queue_pair(self, end: End) -> None:
        end.gone = True
        self.rc.close_connection(end, "ended")
        end.qp.close()
        self.objects.close_memory_window(end)
        self._forget_posted_requests(end)
        end.host.ends.remove(end)
        for slots in end.slots:
            assert slots.memory.mr is not None
            slots.memory.mr.close()
            slots.memory.fill_and_take_snapshot()
            self.frozen.append(slots.memory)
        if end.send.small and not end.send.waiters:
            end.host.completions.remove(end.send)
            channel = end.send.cq.channel
            end.send.cq.close()
            assert channel is not None
            channel.close()

    def do_create_qp(self, op: Operation) -> None:
        """Create a queue pair; for connected types, both ends."""
        host, kind = (
            self.pick_host(op),
            QPType[self.program.kinds[op.draw_below(1, len(self.program.kinds))]],
        )
        if host is None or len(host.ends) > 5:
            return
        small = op.draw_boolean(2, 15)
        if kind not in CONNECTED_TYPES:
            gone = [e for e in self.ends if e.gone and e.host is host and e.kind == kind]
            port = (
                gone[op.draw_below(4, len(gone))].address[1]
                if gone and op.draw_boolean(3, 50)
                else 0
            )
            if any(e.address == (host.address, port) for e in self.list_open_queue_pairs()):
                port = 0
            self.create_queue_pair(host, kind, small=small, port=port)
            return
        other = self.pick_host(op, 3)
        if other is not None and other is not host and len(other.ends) <= 5:
            self._create_connected_pair(kind, host, other, small=small)

    def do_overflow_cq(self, op: Operation) -> None:
        """Create a queue pair with a small completion queue, and overflow the completion queue."""
        host = self.pick_host(op)
        if host is None or len(host.ends) > 6:
            return
        kinds = [k for k in (QPType.UD, QPType.RD) if k.name in self.program.kinds]
        if not kinds:
            return
        kind = kinds[0]
        end = self.create_queue_pair(host, kind, small=True)
        for i in range(end.qp.cap.max_send_wr):
            prepared = self._prepare_send(op, end, op.numbers[2] + i)
            if prepared is not None:
                self.post_sends(end, [prepared])

    # ---- the network and its hosts

    def do_change_fault_plan(self, op: Operation) -> None:
        """Change the fault plan of all links that have no plan of their own."""
        plan = programs.draw_fault_plan(random.Random(op.numbers[0]))
        self.duplicates |= "dup=" in plan
        self.harsh |= programs.is_harsh_fault_plan(plan)
        self.plan = plan
        self.rc.note_fault_plan_change()
        self.world.faults(plan)

    def do_change_link_fault_plan(self, op: Operation) -> None:
        """Set or remove the fault plan of one link."""
        a, b = (
            self.hosts[op.draw_below(0, len(self.hosts))],
            self.hosts[op.draw_below(1, len(self.hosts))],
        )
        plan = (
            programs.draw_fault_plan(random.Random(op.numbers[2]))
            if op.draw_boolean(3, 70)
            else None
        )
        self.duplicates |= plan is not None and "dup=" in plan
        self.harsh |= plan is not None and programs.is_harsh_fault_plan(plan)
        ends = frozenset((a.address, b.address))
        if plan is None:
            self.link_plans.pop(ends, None)
        else:
            self.link_plans[ends] = plan
        self.rc.note_fault_plan_change()
        self.world.link(a.address, b.address, plan)

    def do_partition(self, op: Operation) -> None:
        """Partition the hosts into two groups."""
        groups: tuple[list[str], list[str]] = ([], [])
        for i, host in enumerate(self.hosts):
            groups[op.numbers[0] >> i & 1].append(host.address)
        if all(groups):
            for host in self.hosts:
                host.disturbance.record_fault_begin("partition")
            self.world.partition(*groups, one_way=op.draw_boolean(1, 20))

    def do_end_partitions(self, op: Operation | None) -> None:
        """End all partitions."""
        del op
        self.world.heal()
        for host in self.hosts:
            host.disturbance.record_fault_end("partition", self.world.now_ns)

    def do_set_link_down(self, op: Operation) -> None:
        """Set an interface down."""
        host = self.hosts[op.draw_below(0, len(self.hosts))]
        host.disturbance.record_fault_begin("link")
        self.world.link_up(host.address, False)

    def do_set_links_up(self, op: Operation | None) -> None:
        """Set all interfaces up."""
        del op
        for host in self.hosts:
            self.world.link_up(host.address, True)
            host.disturbance.record_fault_end("link", self.world.now_ns)

    def do_change_path_mtu(self, op: Operation) -> None:
        """Change the MTU of the path between two hosts, with or without ICMP messages."""
        a, b = (
            self.hosts[op.draw_below(0, len(self.hosts))],
            self.hosts[op.draw_below(1, len(self.hosts))],
        )
        if a is not b:
            mtu = (0, 1280, 1400)[op.draw_below(2, 3)]
            self._set_path_mtu(a, b, mtu, told=op.draw_boolean(3, 50))

    def _set_path_mtu(self, a: Host, b: Host, mtu: int, *, told: bool) -> None:
        for here, there in ((a, b), (b, a)):
            if mtu:
                here.disturbance.record_fault_begin(f"path to {there.address}")
            else:
                here.disturbance.record_fault_end(f"path to {there.address}", self.world.now_ns)
        self.world.path_mtu(a.address, b.address, mtu, told=told)

    def do_stop_polling(self, op: Operation) -> None:
        """Make a host slow: the host stops polling and posting receives."""
        self.hosts[op.draw_below(0, len(self.hosts))].slow = True

    def do_resume_polling(self, op: Operation) -> None:
        """Make a slow host poll and post receives again."""
        self.hosts[op.draw_below(0, len(self.hosts))].slow = False

    def do_crash(self, op: Operation) -> None:
        """Crash a host, unless it is the last one."""
        host = self.pick_host(op)
        if host is None or sum(h.up for h in self.hosts) < 2:
            return
        self.crashes += 1
        self.stale += len(host.context._list_open_descendants()) + 1
        self.stale += lib.siw_sim_count_freelist_objects(host.context._c_object())
        host.up = False
        host.disturbance.note_instant_fault(self.world.now_ns)
        for end in host.ends:
            if end.pair is not None:  # tasks of the peer may notice the crash immediately
                end.pair.causes.add("lost")
        self.world.crash(host.address)
        for end in host.ends:
            end.gone = True
            end.id = None
            self._forget_posted_requests(end)
        host.channel = host.listener = None
        for memory in list(host.all_memories()):
            if memory not in self.frozen:
                memory.take_snapshot()
                self.frozen.append(memory)
        self.world.run_for(0)  # lets the tasks on the crashed host stop waiting
        host.context.close(force=True)
        for completions in host.completions:
            require(not completions.waiters, f"a wait on {host.address} did not end")

    def do_restart(self, op: Operation) -> None:
        """Restart a host that has crashed."""
        host = self.pick_host(op, up=False)
        if host is not None:
            host.context = self.world.restart(host.address)
            self._create_host_objects(host)
            for end in self.list_open_queue_pairs():
                there = end.peer
                if end.kind in CONNECTED_TYPES and there and there.gone and there.host is host:
                    self.destroy_queue_pair(end)
                    self._create_connected_pair(end.kind, end.host, host, small=False)

    # ---- checks at the end of the program

    def run_final_checks(self) -> None:
        """End all faults; check that requests complete and messages arrive; close all objects."""
        world = self.world
        world.fail_memory(0)
        self.ending = True
        for end in self.ends:
            end.disturbance.record_fault_end("memory", world.now_ns)
        self.do_end_partitions(None)
        self.do_set_links_up(None)
        world.faults("")
        self.plan, self.link_plans = "", {}
        for host in self.hosts:
            host.slow = False
            for other in self.hosts:
                world.link(host.address, other.address, None)
                if other is not host:
                    self._set_path_mtu(host, other, 0, told=True)
        for end in self.list_open_queue_pairs():
            if end.qp.qp_state in (QPState.SQD, QPState.SQE):
                end.qp.to_rts()
            elif end.qp.qp_state == QPState.RESET and not (end.pair and end.id):
                self.reset_queue_pair(end, on=True)  # an RD queue pair in RESET delays its peers
        self._poll_until_idle(
            "complete",
            lambda end: (
                any(r.signaled for r in end.posted.values()) and self.rc.must_requests_complete(end)
            ),
        )
        self._send_beyond_rd_credit()
        self._check_rd_arrivals()
        self.rc.check_message_arrivals(self._poll_and_post_receives)
        self.endings.run_all_checks()
        self._check_invariants(at_all=True)
        self._move_all_to_err_and_check_flush()
        self._check_invariants(at_all=True)
        self._close_all_objects()

    def _poll_until_idle(self, doing: str, busy: Callable[[End], bool]) -> None:
        """Poll and post receives until ``busy`` returns false for all open queue pairs."""
        began, pause = self.world.now, 0.0005
        while True:
            self.poll_all_hosts()
            left = [e for e in self.list_open_queue_pairs() if not e.send.overflowed and busy(e)]
            if not left:
                return
            if self.world.now - began > COMPLETION_LIMIT_S:
                request = next(iter(left[0].posted.values()), None)
                what = f"{request.verb} {request.wr_id} to {request.dest}" if request else "it"
                raise Violation(
                    f"{what} of {left[0]!r} did not {doing} within {COMPLETION_LIMIT_S} s"
                )
            self.post_receives_everywhere()
            self.world.run_for(pause)
            pause = min(pause * 1.3, 2)

    def _poll_and_post_receives(self) -> None:
        self.poll_all_hosts()
        self.post_receives_everywhere()
        self.world.run_for(0.1)

    def post_receives_everywhere(self) -> None:
        for end in self.list_open_queue_pairs():
            if end.qp.qp_state != QPState.RTS:
                continue
            shared = end.host.srq if end.shares else None
            room = shared.attr.max_wr if shared else end.qp.cap.max_recv_wr
            waiting = end.host.srq_posted if shared else end.waiting
            while len(waiting) < room and self.post_receive(end):
                pass

    def poll_all_hosts(self) -> None:
        for host in self.hosts:
            if host.up:
                self.rc.handle_cm_events(host)
                self.objects.check_srq_limit_event(host)
                for completions in list(host.completions):
                    while not completions.overflowed and self.poll_completions(
                        host, completions, 64
                    ):
                        pass

    def _send_beyond_rd_credit(self) -> None:
        """Send more than one credit window between all RD queue pairs: no credit must be lost."""
        for end in self.list_open_queue_pairs():
            if end.kind != QPType.RD or end.send.small or end.qp.qp_state != QPState.RTS:
                continue
            for other in self.list_open_queue_pairs():
                if (
                    other.kind != QPType.RD
                    or other.send.small
                    or other.mutates_datagrams
                    or end.mutates_datagrams
                ):
                    continue
                if other.qp.qp_state == QPState.RTS:
                    self._send_burst(end, other)

    def _send_burst(self, end: End, other: End) -> None:
        for _ in range(BURST_MESSAGES):
            request = Request(self.next_serial_number(), end, "send", self._numbers)
            # unsignaled requests whose completion is never reported may still hold all slots
            if not end.sends.free:
                break
            request.slots, request.slot = end.sends, end.sends.free.pop()
            request.dest = other.address
            self.requests[request.wr_id] = request
            message = self.new_message(request, 16000, imm=False)
            request.slots.write(request.slot, make_message_content(message.number, 16000))
            self.post_sends(end, [(request, self.build_send_wr(request, WROpcode.SEND, 16000))])
        self._poll_until_idle(
            "complete", lambda e: e is end and any(r.signaled for r in e.posted.values())
        )

    def _check_rd_arrivals(self) -> None:
        """Check that each completed RD message arrived, or was lost or refused by its receiver.

        A Send that completes before the error message arrives keeps its status, and the error is
        reported in the sender's error queue (DGRAM-RDV-8).
        """
        for message in self.messages.values():
            source = message.source
            if (
                source.kind != QPType.RD
                or message.status != WCStatus.SUCCESS
                or source.mutates_datagrams
            ):
                continue
            takers = [e for e in self.ends if e.address == message.dest]
            if sum(message.arrivals.values()) or any(
                e.lost or e.gone or e.mutates_datagrams for e in takers
            ):
                continue
            what = f"message {message.number} of {source!r} to {message.dest} completed"
            refused = any(e.short for e in takers)
            if message.wide:  # the region may have been closed before the Write
                refused |= any(e.host.target.closed_at > message.number for e in takers)
            require(refused, f"{what} but did not arrive")
            if not source.gone and not source.lost:
                source.errors += len(source.qp.errors())
                # Without memory the receiver cannot queue the error message.
                require(
                    source.errors > 0 or self.program.memory > 0,
                    f"{what} and was refused, but no error was reported",
                )

    def _move_all_to_err_and_check_flush(self) -> None:
        """Move all queue pairs to ERR, and check that all posted requests are flushed."""
        for end in self.list_open_queue_pairs():
            if end.qp.qp_state != QPState.RESET:
                end.may_be_in_error = end.lost = True
                end.disturbance.record_fault_begin("error")
                end.qp.modify(QPAttr(qp_state=QPState.ERR))
        began = self.world.now
        while self.world.now - began < 1:
            self.world.run_for("10ms")
            self.poll_all_hosts()
        for end in self.list_open_queue_pairs():
            if end.send.overflowed or end.qp.qp_state == QPState.RESET:
                continue
            left = [r for r in end.posted.values() if r.signaled] + list(end.waiting.values())
            require(not left, f"{len(left)} requests of {end!r} were not flushed in ERR")

    def _close_all_objects(self) -> None:
        """Close all objects in the required order, so that no close fails with EBUSY."""
        self.world.run_for("1s")  # tasks that wait for completions reach their time-outs
        for end in self.list_open_queue_pairs():
            self.destroy_queue_pair(end)
        for host in self.hosts:
            if not host.up:
                continue
            if host.listener is not None and host.channel is not None:
                host.listener.close()
                host.channel.close()
            for completions in host.completions:
                channel = completions.cq.channel
                completions.cq.close()
                assert channel is not None
                channel.close()
            assert host.srq is not None
            host.srq.close()
            for memory in (host.srq_slots.memory, host.target.memory):
                if memory.mr is not None:
                    memory.mr.close()
            for handle in host.handles.values():
                handle.close()
            host.pd.close()
            host.context.close()
        for memory in self.frozen:
            memory.check_memory_is_unchanged()


def _memory_address(memory: Memory) -> int:
    """Return the virtual address of a buffer's first octet."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory.view)))
