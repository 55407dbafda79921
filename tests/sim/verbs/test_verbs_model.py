"""Queue pairs compared with a model after each of many random calls."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

import pytest
from harness.verbs_harness import Rig, assert_no_completion, poll

from siwarp.verbs import (
    SGE,
    QPAttr,
    QPState,
    RecvWR,
    SendFlag,
    SendWR,
    WCStatus,
)

RESET, INIT, RTR, RTS, SQD, SQE, ERR = QPState
OK, BAD_KEY, FLUSHED = WCStatus.SUCCESS, WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR

ALLOWED_TRANSITIONS = {
    RESET: {RESET, INIT, ERR},
    INIT: {RESET, INIT, RTR, ERR},
    RTR: {RESET, RTS, ERR},
    RTS: {RESET, RTS, SQD, ERR},
    SQD: {RESET, RTS, SQD, ERR},
    SQE: {RESET, RTS, ERR},
    ERR: {RESET, ERR},
}

Request = tuple[int, bool, bool]  # a request: wr_id, signaled or not, with a valid key or not


class QPModel:
    """The behaviour of a queue pair according to the verbs, in its simplest form."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.state = RESET
        self.held: list[Request] = []
        self.receives: list[int] = []
        self.sends_taken = self.receives_taken = 0  # used slots of the send and the receive queue
        #: Completions to be polled: wr_id, status, and the number of send slots that they free.
        self.sent: list[tuple[int, WCStatus, int]] = []
        self.received: list[tuple[int, WCStatus]] = []
        self.silent = 0  # unsignaled requests completed since the last completion

    def modify(self, target: QPState) -> int:
        if target not in ALLOWED_TRANSITIONS[self.state]:
            return errno.EINVAL
        before, self.state = self.state, target
        if target == RESET:
            self.held, self.receives = [], []
            self.sends_taken = self.receives_taken = self.silent = 0
            self.sent, self.received = [], []
        elif target == ERR and before != ERR:
            self.flush_requests()
        elif target == RTS:
            self.process_deferred_requests()
        return 0

    def flush_requests(self) -> None:
        for wr_id, _, _ in self.held:
            self.complete_request(wr_id, FLUSHED, True)
        self.held = []
        self.received += [(wr_id, FLUSHED) for wr_id in self.receives]
        self.receives = []

    def complete_request(self, wr_id: int, status: WCStatus, tells: bool) -> None:
        if tells:
            self.sent.append((wr_id, status, self.silent + 1))
            self.silent = 0
        else:
            self.silent += 1

    def process_deferred_requests(self) -> None:
        while self.held:
            wr_id, signalled, good = self.held.pop(0)
            if self.state == SQE:
                self.complete_request(wr_id, FLUSHED, True)
            elif good:
                self.complete_request(wr_id, OK, signalled)
            else:
                self.state = SQE
                self.complete_request(wr_id, BAD_KEY, True)

    def post_send(self, request: Request) -> int:
        if self.state in (RESET, INIT, RTR):
            return errno.EINVAL
        if self.sends_taken == self.room:
            return errno.ENOMEM
        self.sends_taken += 1
        if self.state == ERR:
            self.complete_request(request[0], FLUSHED, True)
            return 0
        self.held.append(request)
        if self.state != SQD:
            self.process_deferred_requests()
        return 0

    def post_recv(self, wr_id: int) -> int:
        if self.state == RESET:
            return errno.EINVAL
        if self.receives_taken == self.room:
            return errno.ENOMEM
        self.receives_taken += 1
        if self.state == ERR:
            self.received.append((wr_id, FLUSHED))
        else:
            self.receives.append(wr_id)
        return 0

    def poll_all(self) -> None:
        self.sends_taken -= sum(slots for _, _, slots in self.sent)
        self.receives_taken -= len(self.received)
        self.sent, self.received = [], []


def errno_of_call(call: Callable[[], object]) -> int:
    try:
        call()
    except OSError as e:
        return e.errno or 0
    return 0


SEEDS = 20 if "SANITIZER" in os.environ else 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_calls_have_the_results_of_the_queue_pair_model(rig: Rig, seed: int) -> None:
    rng = random.Random(seed)
    scq, rcq, idle = rig.create_cq(1024), rig.create_cq(1024), rig.create_cq(1)
    qp = rig.create_qp(scq=scq, rcq=rcq, max_send_wr=8, max_recv_wr=8)
    target, mr = rig.create_ah(rig.create_ud_qp()), rig.reg_mr(64)
    model = QPModel(8)
    likely = [INIT, RTR, RTS, RTS, RTS, RTS, SQD, SQD, SQD, ERR, RESET]
    for number in range(120):
        kind = rng.choice("mmmssssssssrrrp")
        idle.poll(1)  # a poll prevents batching, which would delay the changes of states
        if kind == "m":
            state = rng.choice(likely)
            got = errno_of_call(lambda s=state: qp.modify(QPAttr(qp_state=s)))
            assert got == model.modify(state), (number, state)
        elif kind == "s":
            request = (number, rng.random() < 0.4, rng.random() < 0.8)
            key = mr.lkey if request[2] else 0xBAD
            flags = SendFlag.SIGNALED if request[1] else 0
            wr = SendWR(number, sg=[SGE(mr.addr, 8, key)], ah=target, send_flags=flags)
            assert errno_of_call(lambda w=wr: qp.post_send(w)) == model.post_send(request), number
        elif kind == "r":
            got = errno_of_call(lambda i=number: qp.post_recv(RecvWR(i, sg=[mr.sge()])))
            assert got == model.post_recv(number), number
        else:
            check_completions(scq, rcq, model)
        assert qp.qp_state == model.state, number
    check_completions(scq, rcq, model)
    assert_no_completion(scq, 0.001)
    assert_no_completion(rcq, 0.001)
    qp.close()


def check_completions(scq: object, rcq: object, model: QPModel) -> None:
    sent = poll(scq, len(model.sent)) if model.sent else []  # type: ignore[arg-type]
    assert [(w.wr_id, w.status) for w in sent] == [(i, s) for i, s, _ in model.sent]
    received = poll(rcq, len(model.received)) if model.received else []  # type: ignore[arg-type]
    assert [(w.wr_id, w.status) for w in received] == model.received
    model.poll_all()
