"""For the tests of several queue pairs that share one socket."""

from __future__ import annotations

import net
from harness.verbs_harness import Rig

from siwarp.verbs import (
    QP,
    QPAttr,
    RecvWR,
    SendFlag,
    SendWR,
)

QKEY = 0x1234


class QPsOnOneSocket:
    """Several UD queue pairs in RTS that share one socket, each with a CQ and memory."""

    def __init__(self, rig: Rig, n: int, host: str = net.HERE, **cap: int) -> None:
        self.rig = rig
        self.cqs = [rig.create_cq() for _ in range(n)]
        self.mrs = [rig.reg_mr(bytearray(256)) for _ in range(n)]
        first = rig.create_qp(self.cqs[0], addr=(host, 0), **cap)
        self.qps = [
            first,
            *(rig.create_qp(cq, shared_socket_qp=first, **cap) for cq in self.cqs[1:]),
        ]
        for i, qp in enumerate(self.qps):
            qp.to_rts(QPAttr(qkey=QKEY + i))

    def post_receive(self, i: int, wr_id: int = 0) -> None:
        self.qps[i].post_recv(RecvWR(wr_id or i, sg=[self.mrs[i].sge()]))


def send_message(rig: Rig, source: QP, target: QP, octets: bytes, qkey: int) -> None:
    mr = rig.reg_mr(bytearray(octets))
    source.post_send(
        SendWR(
            sg=[mr.sge()],
            send_flags=SendFlag(0),
            ah=rig.create_ah(target),
            remote_qpn=target.qp_num,
            remote_qkey=qkey,
        )
    )
