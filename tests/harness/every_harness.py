"""For the tests of queue pairs that are bound to every local address."""

from __future__ import annotations

import net
from harness.verbs_harness import (
    Rig,
    poll,
)

from siwarp.base.library import ffi, lib
from siwarp.inspect import DDPDatagram, UDDatagram
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    QP,
    AHAttr,
    QPAttr,
    QPType,
    RecvWR,
    SendWR,
)

QKEY = 0x51
HOSTS = [net.HERE, net.HERE_V6]


class UDOnEveryAddress:
    """A UD queue pair bound to every local address, with a CQ for each direction and memory."""

    def __init__(self, rig: Rig, cqe: int = 256, **kwargs: object) -> None:
        self.rig = rig
        self.scq, self.rcq = rig.create_cq(), rig.create_cq(cqe)
        self.mr = rig.reg_mr(bytearray(8192))
        if "shared_socket_qp" not in kwargs:
            kwargs.setdefault("every_addr", True)
        self.qp: QP = rig.create_ud_qp(scq=self.scq, rcq=self.rcq, qkey=QKEY, **kwargs)  # type: ignore[arg-type]
        self.port = self.qp.qp_num & 0xFFFF

    def post_receives(self, n: int = 1) -> None:
        for i in range(n):
            self.qp.post_recv(RecvWR(i, sg=[self.mr.sge(0, 4096)]))

    def send(self, ah: AH, qpn: int = 0, octets: bytes = b"abc") -> None:
        self.mr.write(octets, offset=4096)
        sge = self.mr.sge(4096, len(octets))
        self.qp.post_send(SendWR(sg=[sge], ah=ah, remote_qpn=qpn, remote_qkey=QKEY))
        assert poll(self.scq)[0].ok


def build_datagram(octets: bytes = b"abc") -> bytes:
    return bytes(UDDatagram(segment=DDPDatagram(q_key=QKEY, qn=0) / octets))


def last_error_reason_name() -> str:
    return ffi.string(lib.siw_reason_name()).decode()  # type: ignore[no-any-return]


class UCOnEveryAddress:
    """A UC queue pair in INIT bound to every local address."""

    def __init__(self, rig: Rig, **kwargs: object) -> None:
        kwargs.setdefault("every_addr", True)
        self.rig = rig
        self.cq: CQ = rig.create_cq()
        self.mr: MR = rig.reg_mr(bytearray(70000), 7)
        self.qp: QP = rig.create_qp(self.cq, qp_type=QPType.UC, **kwargs)  # type: ignore[arg-type]
        self.qp.to_init(QPAttr(qkey=QKEY))

    def connect(self, peer: UCOnEveryAddress, host: str, source: str | None) -> None:
        self.qp.to_rtr(QPAttr(ah_attr=AHAttr(host, 0, source), dest_qp_num=peer.qp.qp_num))
        self.qp.to_rts(QPAttr())
