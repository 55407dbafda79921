"""A UD queue pair with its resources, for the tests of the Python verbs."""

from __future__ import annotations

from siwarp.verbs import CQ, MR, PD, QP, CompChannel, Context, QPCap, QPInitAttr, QPType


class UDResources:
    """A UD queue pair in RTS with a completion channel and memory, which can send to itself."""

    SIZE = 4096

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.ctx = Context(host)
        self.pd = PD(self.ctx)
        self.channel = CompChannel(self.ctx)
        self.cq = CQ(self.ctx, channel=self.channel)
        self.mr = MR(self.pd, bytearray(self.SIZE))
        cap = QPCap(max_send_sge=4, max_recv_sge=4, max_inline_data=64)
        self.qp = QP(self.pd, QPInitAttr(QPType.UD, scq=self.cq, cap=cap, addr=(host, 0)))
        self.qp.to_rts()

    def close(self) -> None:
        with self.ctx:
            pass
