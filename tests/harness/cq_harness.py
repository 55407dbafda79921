"""For the tests of completion queues: queue pairs with receive events or flushed receives."""

from __future__ import annotations

import select

from harness.verbs_harness import Rig, poll

from siwarp.verbs import CQ, QP, QPAttr, QPState, RecvWR, SendWR


class QPWithReceiveEvents:
    """A UD queue pair that sends to itself, with a completion channel for its receives."""

    def __init__(self, rig: Rig, cqe: int = 64) -> None:
        self.rig = rig
        self.channel = rig.create_channel()
        self.cq = rig.create_cq(cqe, self.channel)
        self.scq = rig.create_cq()
        self.mr, self.into = rig.reg_mr(bytearray(64)), rig.reg_mr(bytearray(64))
        self.qp = rig.create_ud_qp(scq=self.scq, rcq=self.cq, max_send_wr=512)
        self.ah = rig.create_ah(self.qp)

    def post_receives(self, n: int = 1) -> None:
        for i in range(n):
            self.qp.post_recv(RecvWR(i, sg=[self.into.sge()]))

    def post_sends(self, flags: int = 0, n: int = 1) -> None:
        for _ in range(n):
            self.qp.post_send(SendWR(1, sg=[self.mr.sge(0, 4)], ah=self.ah, send_flags=flags))

    def channel_becomes_readable(self, seconds: float) -> bool:
        """Return whether the channel becomes readable while the calling thread does not poll."""
        p = select.poll()
        p.register(self.channel, select.POLLIN)
        return bool(p.poll(seconds * 1000))


def create_qp_with_flushed_receives(rig: Rig, cq: CQ, state: QPState = QPState.ERR) -> QP:
    """Create a queue pair whose receives complete on ``cq`` as soon as they are posted."""
    qp = rig.create_qp(scq=rig.create_cq(), rcq=cq)
    qp.to_init()
    qp.modify(QPAttr(qp_state=state))
    return qp


def poll_wr_ids(cq: CQ, n: int) -> list[int]:
    return [wc.wr_id for wc in poll(cq, n)]
