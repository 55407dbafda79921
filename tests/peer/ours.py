"""The siwarp end of the tests with the independent peer, driven by siwarp's public interface."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import net
from peer.link import Address, EmulatedLink

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

#: The wr_ids of send requests are larger than those of receives.
FIRST_REQUEST = 1 << 16

#: The number of messages of a stress run: 0 in the normal test suite, a million for `make stress`.
#: Each test of tests/peer sends a fraction of that number.
MESSAGES = int(os.environ.get("SIWARP_STRESS_MESSAGES", "0"))
SEED = int(os.environ.get("SIWARP_STRESS_SEED", "1"))
ALL = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)


#: The tests have longer time limits in a stress run.
TIMEOUT_S, LIMIT_S = (1800, 900) if MESSAGES else (120, 20)


def stress_round_count(short: int, part: int = 100) -> int:
    """Return a test's number of rounds: a fraction of the messages of a stress run, but at least
    ``short``.
    """
    return max(short, MESSAGES // part)


def seeded_octets(seed: object, length: int) -> bytes:
    """Return ``length`` random octets that are determined by this seed."""
    return random.Random(f"{SEED}/{seed}").randbytes(length)


class SiwarpEnd:
    """A siwarp queue pair, its completion queue, and a memory region with slots for receives."""

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
        # If held is true, completed receives are not posted again.
        self.held = False
        self._free: list[int] = []
        self._lent: dict[int, MR] = {}
        self.sent: list[WC] = []
        self.got: list[tuple[WC, bytes]] = []

    def register_memory(self, length: int) -> MR:
        """Register and return memory that the peer can access."""
        return self._stack.enter_context(MR(self.pd, length, ALL))

    def create_address_handle(self, address: Address) -> AH:
        """Return an address handle for this address."""
        return self._stack.enter_context(AH(self.pd, address))

    def post_receive(self, slot: int) -> None:
        """Post a receive into a slot of the memory region."""
        self.qp.post_recv(RecvWR(slot, sg=[self.memory.sge(slot * self.slot, self.slot)]))

    def post_payload(self, payload: bytes, opcode: int = WROpcode.SEND, **wr: Any) -> None:
        """Post a send request whose payload is in a memory region of its own."""
        self._requests += 1
        wr_id = FIRST_REQUEST + self._requests
        sg = []
        if payload:
            lent = self._lent[wr_id] = MR(self.pd, bytearray(payload))
            sg = [lent.sge()]
        self.qp.post_send(SendWR(wr_id, opcode, sg=sg, **wr))

    def post_request(self, opcode: int, *sg: SGE, **wr: Any) -> None:
        """Post a send request with these scatter/gather elements."""
        self._requests += 1
        self.qp.post_send(SendWR(FIRST_REQUEST + self._requests, opcode, sg=sg, **wr))

    def post_held_receives(self) -> None:
        """Post the receives that were held back while ``held`` was true."""
        self.held = False
        while self._free:
            self.post_receive(self._free.pop(0))

    def poll_completions(self) -> None:
        """Poll completions, store the data of completed receives, and post those receives again."""
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
def open_siwarp_queue_pair(
    qp_type: QPType, *, slots: int = 64, slot: int = 4096, attr: QPAttr | None = None, **init: Any
) -> Iterator[SiwarpEnd]:
    """Yield a siwarp queue pair; with ``attr`` the queue pair is in RTS and all receives are
    posted.
    """
    with ExitStack() as stack:
        ours = SiwarpEnd(stack, qp_type, slots=slots, slot=slot, **init)
        if attr is not None:
            ours.qp.to_rts(attr)
            for i in range(slots):
                ours.post_receive(i)
        yield ours


@contextmanager
def closing_emulated_link(link: EmulatedLink) -> Iterator[EmulatedLink]:
    """Yield an emulated link, and close the link at the end of the block."""
    try:
        yield link
    finally:
        link.close()
