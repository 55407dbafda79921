"""Helpers for the tests of multicast groups: members, and datagrams from a plain socket."""

from __future__ import annotations

import net
from harness.verbs_harness import (
    MCAST_PORT,
    Rig,
    poll,
)

from siwarp.inspect import DDPDatagram, UDDatagram
from siwarp.verbs import (
    AH,
    CQ,
    QP,
    RecvWR,
    SendWR,
)

QKEY = 0x77


class MulticastMember:
    """A UD queue pair in RTS that is attached to multicast groups, with CQs and memory."""

    def __init__(self, rig: Rig, *groups: str, qkey: int = QKEY, **kwargs: object) -> None:
        self.rig = rig
        self.cq: CQ = rig.create_cq()
        self.scq: CQ = rig.create_cq()
        self.mr = rig.reg_mr(bytearray(70000))
        self.qp: QP = rig.create_ud_qp(scq=self.scq, rcq=self.cq, qkey=qkey, **kwargs)  # type: ignore[arg-type]
        for g in groups:
            self.qp.attach_mcast(g)

    def post_receive(self, wr_id: int = 1, length: int = 1000) -> None:
        self.qp.post_recv(RecvWR(wr_id, sg=[self.mr.sge(0, length)]))

    def send(self, ah: AH, octets: bytes, qkey: int = QKEY, remote_qpn: int = 0) -> None:
        mr = self.rig.reg_mr(bytearray(octets))
        self.qp.post_send(SendWR(sg=[mr.sge()], ah=ah, remote_qpn=remote_qpn, remote_qkey=qkey))
        assert poll(self.scq)[
            0
        ].ok  # the datagram has been transmitted and does not wait for a batch

    def receive_octets(self) -> bytes:
        (wc,) = poll(self.cq)
        assert (wc.ok, wc.qp_num) == (True, self.qp.qp_num)
        return self.mr.read(wc.byte_len)


def send_from_plain_socket(group: str, payload: bytes, port: int = MCAST_PORT) -> None:
    """Send a datagram to a multicast group on loopback with a plain UDP socket."""
    with net.open_udp_socket() as s:
        s.sendto(payload, (group, port))


def build_datagram(payload: bytes, **fields: int) -> bytes:
    crc = fields.pop("crc", None)
    built = UDDatagram(
        segment=DDPDatagram(**{"q_key": QKEY, **fields}) / payload,
        **({} if crc is None else {"crc": crc}),
    )
    return bytes(built)
