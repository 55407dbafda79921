"""The other end of these tests: siwarp through its public interface, in a few lines."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import net
from peer.line import Address, Line

from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SGE,
    WC,
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
)

#: The wr_ids of requests start above those of receives.
FIRST_REQUEST = 1 << 16

#: 0 in the normal test suite; `make stress` sets a million messages, and each test here sends a
#: fraction.
MESSAGES = int(os.environ.get("SIWARP_STRESS_MESSAGES", "0"))
SEED = int(os.environ.get("SIWARP_STRESS_SEED", "1"))
ALL = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)


#: A stress run has longer time limits than the normal tests.
TIMEOUT_S, LIMIT_S = (1800, 900) if MESSAGES else (120, 20)


def stress_rounds(short: int, part: int = 100) -> int:
    """Return a test's number of rounds: a fraction of a stress run's messages, or ``short``."""
    return max(short, MESSAGES // part)


def seeded_octets(seed: object, length: int) -> bytes:
    """Return ``length`` octets determined by this seed."""
    return random.Random(f"{SEED}/{seed}").randbytes(length)


class Siwarp:
    """A siwarp queue pair, its completion queue, and a region with slots for receives."""

    def __init__(self, stack: ExitStack, qp_type: QPType, *, slots: int, slot: int, **init: Any):
        self._stack = stack
        self.slot = slot
        context = stack.enter_context(Context(net.HERE))
        self.pd = stack.enter_context(PD(context))
        self.cq = stack.enter_context(CQ(context, 4096))
        self.memory = stack.enter_context(MR(self.pd, slots * slot, ALL))
        cap = QPCap(max_send_wr=512, max_recv_wr=slots)
        self.qp = stack.enter_context(
            QP(self.pd, QPInitAttr(qp_type, scq=self.cq, cap=cap, **init))
        )
        self._requests = 0
        self.held = False  # if true, completed receives are not posted again
        self._free: list[int] = []
        self._lent: dict[int, MR] = {}
        self.sent: list[WC] = []
        self.got: list[tuple[WC, bytes]] = []

    def register_memory(self, length: int) -> MR:
        """Return memory that the peer can access."""
        return self._stack.enter_context(MR(self.pd, length, ALL))

    def address_handle(self, address: Address) -> AH:
        """Return an address handle for a peer."""
        return self._stack.enter_context(AH(self.pd, address))

    def post_receive(self, slot: int) -> None:
        """Post a receive into a slot of the memory."""
        self.qp.post_recv(RecvWR(slot, sg=[self.memory.sge(slot * self.slot, self.slot)]))

    def post_payload(self, payload: bytes, opcode: int = WROpcode.SEND, **wr: Any) -> None:
        """Post a request whose payload is in a separate region."""
        self._requests += 1
        wr_id = FIRST_REQUEST + self._requests
        sg = []
        if payload:
            lent = self._lent[wr_id] = MR(self.pd, bytearray(payload))
            sg = [lent.sge()]
        self.qp.post_send(SendWR(wr_id, opcode, sg=sg, **wr))

    def post_request(self, opcode: int, *sg: SGE, **wr: Any) -> None:
        """Post a request with the given scatter/gather elements."""
        self._requests += 1
        self.qp.post_send(SendWR(FIRST_REQUEST + self._requests, opcode, sg=sg, **wr))

    def post_held_receives(self) -> None:
        """Post the receives that were held back."""
        self.held = False
        while self._free:
            self.post_receive(self._free.pop(0))

    def poll_completions(self) -> None:
        """Poll completions; store the data of receives and post them again."""
        for wc in self.cq.poll(64):
            if wc.wr_id > FIRST_REQUEST:
                self.sent.append(wc)
                if wc.wr_id in self._lent:
                    self._lent.pop(wc.wr_id).close()
                continue
            data = b""
            if wc.ok and wc.opcode == WCOpcode.RECV:
                data = self.memory.read(wc.byte_len, wc.wr_id * self.slot)
            self.got.append((wc, data))
            if not wc.ok or wc.opcode != WCOpcode.RECV_WRITE_RECORD:
                if self.held:
                    self._free.append(wc.wr_id)
                else:
                    self.post_receive(wc.wr_id)


@contextmanager
def siwarp_queue_pair(
    qp_type: QPType, *, slots: int = 64, slot: int = 4096, attr: QPAttr | None = None, **init: Any
) -> Iterator[Siwarp]:
    """Yield a queue pair with all receives posted that, if given attributes, can send."""
    with ExitStack() as stack:
        ours = Siwarp(stack, qp_type, slots=slots, slot=slot, **init)
        if attr is not None:
            ours.qp.to_rts(attr)
            for i in range(slots):
                ours.post_receive(i)
        yield ours


@contextmanager
def closed_after(line: Line) -> Iterator[Line]:
    """Yield a line, and close it."""
    try:
        yield line
    finally:
        line.close()
