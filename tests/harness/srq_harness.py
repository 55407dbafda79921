"""For the tests of shared receive queues: an SRQ, and queue pairs that use it."""

from __future__ import annotations

from typing import Any

from harness.rc_harness import End, ListenerAndConnector
from harness.verbs_harness import (
    Rig,
    poll,
)

from siwarp.verbs import (
    AH,
    CQ,
    EventType,
    RecvWR,
    SendWR,
)

LIMIT_REACHED, LAST_WQE = EventType.SRQ_LIMIT_REACHED, EventType.QP_LAST_WQE_REACHED


class SharedReceiveQueue:
    """An SRQ of a device, memory for its receives, and the CQ of the receives."""

    def __init__(self, rig: Rig, max_wr: int = 16) -> None:
        self.rig = rig
        self.srq = rig.create_srq(max_wr)
        self.mr = rig.reg_mr(1 << 14)
        self.cq: CQ = rig.create_cq(1024)

    def post_receives(self, *wr_ids: int, length: int = 64) -> None:
        self.srq.post_recv([RecvWR(i, sg=[self.mr.sge(64 * (i % 256), length)]) for i in wr_ids])

    def consume_receive(self, rig: Rig) -> int:
        """Send a message to a queue pair that uses the SRQ; return the consumed receive's wr_id."""
        cq = rig.create_cq()
        sender, receiver = rig.create_ud_qp(cq), rig.create_ud_qp(self.cq, srq=self.srq)
        sender.post_send(SendWR(sg=[self.mr.sge(0, 4)], ah=AH(rig.pd, receiver.addr)))
        assert poll(cq)[0].ok
        taken = poll(self.cq)[0].check().wr_id
        receiver.close()
        return taken

    def received_octets(self, wr_id: int, length: int) -> bytes:
        return self.mr.read(length, 64 * wr_id)


def connect_with_srq(
    connector: ListenerAndConnector, shared: SharedReceiveQueue, **kw: Any
) -> tuple[End, End]:
    """Return two connected RC endpoints, of which the passive one uses receives of the SRQ."""
    a = connector.begin_connect(size=4096, **kw)
    request = connector.next_connection_request()
    b = End(connector.passive, request.id, connector.p_channel, srq=shared.srq, **kw)
    b.id.accept()
    a.next_cm_event()
    b.next_cm_event()
    return a, b


def consume_receives(rig: Rig, shared: SharedReceiveQueue, n: int) -> None:
    """Consume ``n`` receives of the SRQ by sending UD messages."""
    qp = rig.create_ud_qp(shared.cq, srq=shared.srq)
    sender = rig.create_ud_qp()
    to = AH(rig.pd, qp.addr)
    for _ in range(n):
        sender.post_send(SendWR(sg=[shared.mr.sge(0, 4)], ah=to))
        poll(shared.cq)
