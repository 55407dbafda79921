# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Operations on memory regions, memory windows, multicast groups, queues and limits."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from siwarp.cm import CMEventChannel
from siwarp.sim.workloads.model import (
    End,
    Host,
    LazyText,
    Memory,
    Message,
    Request,
    Target,
    Window,
    make_message_content,
    require,
)
from siwarp.sim.workloads.program import Operation
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    WC,
    AccessFlag,
    CompChannel,
    Error,
    EventType,
    QPInitAttr,
    QPState,
    QPType,
    RemoteBuffer,
    SrqAttr,
    StateError,
    WROpcode,
    inc_rkey,
)

if TYPE_CHECKING:
    from siwarp.sim.workloads.execution import Execution

__all__ = ["Objects"]


class _Closable(Protocol):
    """An object that a program creates and closes."""

    def close(self) -> None: ...


#: Size in octets of a region to which a memory window is bound.
WINDOW_OCTETS = 1024
_WINDOW_ACCESS = AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND


class Objects:
    """The objects of a program other than queue pairs.

    Args:
        run: the program.
        access: access rights of peers to targets.

    """

    def __init__(self, run: Execution, access: AccessFlag) -> None:
        self.run = run
        self.access = access

    # ---- failing allocations

    def do_create_with_failing_allocations(self, op: Operation) -> None:
        """Check that object creation succeeds or fails with ENOMEM if 30% of allocations fail."""
        run = self.run
        host = run.pick_host(op)
        if host is None:
            return
        kind = QPType[run.program.kinds[op.draw_below(2, len(run.program.kinds))]]
        at = None if kind == QPType.RC else (host.address, 0)
        octets = bytearray(100)
        makers: tuple[Callable[[], _Closable], ...] = (
            lambda: PD(host.context),
            lambda: CQ(host.context, 100),
            lambda: CompChannel(host.context),
            lambda: MR(host.pd, octets, self.access),
            lambda: MW(host.pd),
            lambda: AH(host.pd, (host.address, 5000)),
            lambda: SRQ(host.pd, SrqAttr(max_wr=8)),
            lambda: CMEventChannel(host.context),
            lambda: QP(host.pd, QPInitAttr(kind, scq=host.completions[0].cq, addr=at)),
        )
        make = makers[op.draw_below(1, len(makers))]
        run.world.fail_memory(300000)
        try:
            made = make()
        except Error as e:
            run.refusals += 1
            require(e.errno == errno.ENOMEM, f"an object that needs memory could not be made: {e}")
            return
        finally:
            run.world.fail_memory(run.program.memory)
        made.close()

    # ---- regions

    def do_deregister_memory(self, op: Operation) -> None:
        """Close a region to which peers may be writing, or a queue pair's message regions."""
        run = self.run
        host = run.pick_host(op)
        if host is None:
            return
        if op.draw_boolean(1, 50) and host.target.memory.mr is not None:
            if op.draw_boolean(2, 60):
                self._post_large_reads(op, host)
            self.close_target_region(host)
            return
        end = run.pick_queue_pair(op, 2)
        if end is None:
            return
        for slots, users in ((end.sends, end.posted), (end.receives, end.waiting)):
            assert slots.memory.mr is not None
            try:
                slots.memory.mr.close()
            except StateError as e:
                run.refusals += 1
                require(
                    e.errno == errno.EBUSY and bool(users),
                    f"closing {slots.memory.name}, which nothing uses: {e}",
                )
                continue
            if slots is end.receives:
                for request in users.values():
                    # the receive completes with an error if a message consumes the receive
                    request.bad = "closed"
                end.short |= bool(users)
                if end.pair is not None and users:
                    end.pair.causes.add("refused")
            slots.memory.take_snapshot()
            slots.memory.check_and_drop_snapshot()
            run.register_memory(end.host, slots.memory, AccessFlag.LOCAL_WRITE)

    def close_target_region(self, host: Host) -> None:
        """Close the region of a host's target, and overwrite the target's constant part."""
        memory = host.target.memory
        assert memory.mr is not None
        memory.mr.close()
        memory.mr = None
        self._note_target_key_change(host.target, host)
        host.target.poison_constant_memory()
        memory.take_snapshot()
        self.run.frozen.append(memory)

    def _post_large_reads(self, op: Operation, host: Host) -> None:
        """Post large Reads of a host's target, and run the world until the host is responding."""
        run = self.run
        there = [end for end in host.ends if end.kind == QPType.RD]
        for end in run.list_open_queue_pairs():
            if end.kind == QPType.RC and end.knows_limits:
                dest = end.peer
            else:
                dest = there[0] if end.kind == QPType.RD and there else None
            if dest is None or dest.host is not host or end.qp.qp_state != QPState.RTS:
                continue
            request = run.new_send_request(end, "read") if end.large.free else None
            if request is not None:
                request.dest = dest.address
                run.post_rdma_read(request, host.target, Target.STATIC - 100, op.numbers[5])
        run.world.run_for(op.draw_below(4, 2000) / 1e6)

    def _note_target_key_change(self, target: Target, host: Host) -> None:
        """Record that a target's keys have become invalid and later accesses are refused."""
        target.closed_at = self.run.next_serial_number()
        for cell in target.cells.values():
            cell.tainted = True
        for taker in host.ends:
            if taker.pair is not None:
                taker.pair.causes.add("refused")

    def do_register_targets(self, op: Operation) -> None:
        """Register the memory of all deregistered target regions again."""
        del op
        for host in self.run.hosts:
            memory = host.target.memory
            if host.up and memory.mr is None:
                memory.check_and_drop_snapshot()
                host.target.restore_constant_part()
                self.run.frozen.remove(memory)
                self.run.register_memory(host, memory, self.access)

    def do_reregister_target(self, op: Operation) -> None:
        """Reregister a target's memory, which changes the keys, or only its access rights."""
        host = self.run.pick_host(op)
        mr = host.target.memory.mr if host is not None else None
        if host is None or mr is None:
            return
        before = mr.rkey
        if op.draw_boolean(1, 30):
            mr.rereg(access=int(self.access))
            require(mr.rkey == before, f"the key of {host.target.memory.name} has changed")
            return
        mr.rereg(buffer=host.target.memory.view, access=int(self.access))
        require(mr.rkey != before, f"the key of {host.target.memory.name} is the same")
        self._note_target_key_change(host.target, host)

    # ---- windows

    def do_bind_memory_window(self, op: Operation) -> None:
        """Bind an RC queue pair's memory window to a region of the same host."""
        end = self.run.pick_queue_pair(op, 0, QPType.RC)
        if end is None or end.qp.qp_state != QPState.RTS or not end.knows_limits:
            return
        if end.window is None:
            memory = Memory(f"the window of RC {end.number}", WINDOW_OCTETS)
            memory.mr = MR(end.host.pd, memory.view, _WINDOW_ACCESS)
            end.window = Window(memory, MW(end.host.pd))
        window = end.window
        if window.bound or window.binding is not None:
            return
        request = self._new_memory_window_request(end, "bind")
        assert window.memory.mr is not None
        try:
            window.remote = window.mw.bind(end.qp, window.memory.mr, wr_id=request.wr_id)
        except Error as e:
            self._handle_full_send_queue(end, request, e)

    def _new_memory_window_request(self, end: End, verb: str) -> Request:
        """Return a new bind or invalidation request, and record the request as posted."""
        number = self.run.next_serial_number()
        request = Request(number, end, verb, number)
        request.posted_ns = self.run.world.now_ns
        self.run.requests[number] = end.posted[number] = request
        assert end.window is not None
        end.window.binding = number
        return request

    def _handle_full_send_queue(self, end: End, request: Request, e: Error) -> None:
        """Check that a bind or invalidation was refused because the send queue was full."""
        self.run.refusals += 1
        del end.posted[request.wr_id]
        request.done = True
        assert end.window is not None
        end.window.binding = None
        full = len(end.posted) >= end.qp.cap.max_send_wr
        require(e.errno == errno.ENOMEM and full, f"{request.verb} of {end!r}: {e}")

    def note_memory_window_completion(self, request: Request, wc: WC) -> None:
        """Record the completion of a bind or an invalidation of a memory window."""
        end = request.end
        window = end.window if end is not None else None
        if window is None or window.binding != request.wr_id:
            return
        window.binding = None
        if wc.ok and request.verb == "bind" and window.remote is not None:
            window.key, window.bound = window.remote.rkey, True
        elif wc.ok:
            window.bound = False
            window.mw.rkey = inc_rkey(window.mw.rkey)

    def do_write_through_memory_window(self, op: Operation) -> None:
        """Post an RDMA Write through the peer's memory window, sometimes without permission."""
        end = self.run.pick_queue_pair(op, 0, QPType.RC)
        window = end.peer.window if end is not None and end.peer is not None else None
        if end is None or window is None or window.remote is None:
            return
        bad = not window.bound or op.draw_boolean(1, 5)
        if not window.bound and not op.draw_boolean(1, 5):
            return
        # Skip memory windows with a bind or an invalidation in progress.
        if window.binding is not None or (window.bound and window.key is None):
            return
        request = self.run.new_send_request(end, "write", op)
        if request is None:
            return
        assert end.pair is not None and end.peer is not None and request.slots is not None
        request.dest = end.peer.address
        length = 1 + op.draw_below(2, WINDOW_OCTETS)
        at = op.draw_below(3, WINDOW_OCTETS - length + 1)
        if bad:
            request.bad = "remote"
            end.pair.causes.add("refused")
            at = at if window.key is None else WINDOW_OCTETS - length + 1
        request.slots.write(request.slot, make_message_content(request.wr_id, length))
        remote = RemoteBuffer(window.remote.addr + at, length, window.remote.rkey)
        self.run.post_sends(
            end,
            [
                (
                    request,
                    self.run.build_send_wr(request, WROpcode.RDMA_WRITE, length, remote=remote),
                )
            ],
        )

    def do_invalidate_memory_window(self, op: Operation) -> None:
        """Invalidate a queue pair's memory window while the peer may still write through it."""
        end = self.run.pick_queue_pair(op, 0, QPType.RC)
        if end is None or end.window is None or end.window.key is None or end.pair is None:
            return
        if end.qp.qp_state != QPState.RTS or end.window.binding is not None:
            return
        end.window.key = None
        end.pair.causes.add("refused")
        request = self._new_memory_window_request(end, "invalidate")
        try:
            end.window.mw.invalidate(end.qp, wr_id=request.wr_id)
        except Error as e:
            self._handle_full_send_queue(end, request, e)

    def do_send_with_invalidate(self, op: Operation) -> None:
        """Post a Send with Invalidate that invalidates the peer's memory window."""
        end = self.run.pick_queue_pair(op, 0, QPType.RC)
        window = end.peer.window if end is not None and end.peer is not None else None
        if end is None or window is None or window.key is None:
            return
        request = self.run.new_send_request(end, "send", op)
        if request is None:
            return
        assert end.peer is not None and request.slots is not None
        request.dest = end.peer.address
        length = 16 + op.draw_below(2, 200)
        message = self.run.new_message(request, length, imm=False)
        message.inv_key = window.key
        request.slots.write(request.slot, make_message_content(message.number, length))
        wr = self.run.build_send_wr(
            request, WROpcode.SEND_WITH_INV, length, invalidate_rkey=window.key
        )
        if self.run.post_sends(end, [(request, wr)]):
            window.key = None

    def check_invalidated_rkey_in_completion(
        self, end: End, message: Message, wc: WC, what: LazyText
    ) -> None:
        """Check that a receive completion has the invalidated rkey that its message requested."""
        require(
            wc.invalidated_rkey == message.inv_key,
            lambda: f"{what} invalidated {wc.invalidated_rkey}, and not {message.inv_key}",
        )
        if message.inv_key is not None and end.window is not None:
            end.window.bound = False
            end.window.mw.rkey = inc_rkey(end.window.mw.rkey)

    def close_memory_window(self, end: End) -> None:
        """Close the memory window, and its region, of a queue pair that is reset or destroyed."""
        window, end.window = end.window, None
        if window is None:
            return
        window.mw.close()
        assert window.memory.mr is not None
        window.memory.mr.close()
        window.memory.take_snapshot()
        self.run.frozen.append(window.memory)

    # ---- groups

    def multicast_group_address(self, which: int) -> str:
        """Return the address of a multicast group."""
        return f"ff15::{which + 1}" if self.run.program.ipv6 else f"239.1.1.{which + 1}"

    def do_join_group(self, op: Operation) -> None:
        """Attach a UD queue pair to a multicast group."""
        end = self.run.pick_queue_pair(op, 0, QPType.UD)
        if end is not None:
            group = self.multicast_group_address(op.draw_below(1, 2))
            end.groups.add(group)
            end.qp.attach_mcast(group)

    def do_leave_group(self, op: Operation) -> None:
        """Detach a UD queue pair from a multicast group."""
        members = [
            e for e in self.run.list_open_queue_pairs() if e.kind == QPType.UD and e.qp._groups
        ]
        if members:
            end = members[op.draw_below(0, len(members))]
            end.qp.detach_mcast(sorted(end.qp._groups)[0])

    # ---- queues

    def do_resize_cq(self, op: Operation) -> None:
        """Resize a completion queue."""
        host = self.run.pick_host(op)
        if host is None:
            return
        cq = host.completions[0].cq
        size = (1, 4096, 8192, 16384)[op.draw_below(1, 4)]
        pending = cq.pending
        try:
            cq.resize(size)
        except Error as e:
            self.run.refusals += 1
            require(
                e.errno == errno.EINVAL and pending > size,
                f"resizing a queue of {pending} completions to {size}: {e}",
            )
            return
        require(cq.capacity >= size, f"a queue of {size} completions holds {cq.capacity}")
        if size < 4096:  # the queue is too small for all outstanding requests
            cq.resize(8192)

    def do_arm_srq_limit(self, op: Operation) -> None:
        """Arm the limit of a shared receive queue."""
        host = self.run.pick_host(op)
        if host is None or host.srq is None:
            return
        limit = 1 + op.draw_below(1, 16)
        host.srq.modify(SrqAttr(srq_limit=limit))
        host.srq_limit = limit

    def take_events(self, host: Host) -> list[EventType]:
        """Remove all asynchronous events from a host's queue; return their types, oldest first."""
        found = []
        while (event := host.context.get_async_event(0)) is not None:
            found.append(event.event_type)
            event.ack()
        if EventType.SRQ_LIMIT_REACHED in found:
            host.srq_limit = 0
        return found

    def check_srq_limit_event(self, host: Host) -> None:
        """Check that a shared receive queue below its limit has raised SRQ_LIMIT_REACHED."""
        limit, srq = host.srq_limit, host.srq
        if not limit or srq is None or len(host.srq_posted) >= limit:
            return
        self.take_events(host)
        require(
            not host.srq_limit,
            f"the shared queue of {host.address} has {len(host.srq_posted)} receives, and raised "
            f"no event of its limit, {limit}",
        )
