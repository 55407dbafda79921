"""For the tests of RD queue pairs: peers, each with a queue pair, memory and CQs."""

from __future__ import annotations

from typing import Any

from harness.verbs_harness import ALL_ACCESS, Rig, octet_pattern, poll
from net import HERE

from siwarp.verbs import (
    AH,
    CQ,
    QP,
    SRQ,
    WC,
    CompChannel,
    ErrorPolicy,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    WROpcode,
)

QKEY = 0x51A5


class RDEnd:
    """An RD queue pair in RTS with CQs, and memory to send from and to receive into.

    Requests send from the region ``out``; receives are posted into the region ``into``.
    """

    def __init__(
        self,
        rig: Rig,
        size: int = 1 << 16,
        *,
        host: str = HERE,
        port: int = 0,
        attr: QPAttr | None = None,
        sig_all: bool = False,
        crc: bool = True,
        srq: SRQ | None = None,
        policy: int | str = ErrorPolicy.MESSAGE,
        peer_timeout: float = 0.0,
        max_peers: int = 0,
        ready: bool = True,
        access: int = ALL_ACCESS,
        depth: int = 64,
        inline: int = 64,
        channel: CompChannel | None = None,
        cq: CQ | None = None,
        max_write_records: int = 0,
    ) -> None:
        self.rig = rig
        self.size = size
        self.scq = cq or rig.create_cq(4 * depth)
        self.rcq = cq or rig.create_cq(4 * depth, channel)
        self.qp = QP(
            rig.pd,
            QPInitAttr(
                QPType.RD,
                scq=self.scq,
                rcq=self.rcq,
                cap=QPCap(depth, depth, 4, 4, inline),
                sq_sig_all=sig_all,
                crc=crc,
                addr=(host, port),
                srq=srq,
                error_policy=policy,
                peer_timeout=peer_timeout,
                max_peers=max_peers,
                max_write_records=max_write_records,
            ),
        )
        if ready:
            self.qp.to_rts(attr or QPAttr(qkey=QKEY))
        self.out, self.into = rig.reg_mr(size, access), rig.reg_mr(size, access)
        self._ah: dict[Any, AH] = {}

    def address_handle(self, to: RDEnd) -> AH:
        """Return an address handle for the queue pair of a peer."""
        where = to.qp.addr
        if where not in self._ah:
            self._ah[where] = AH(self.rig.pd, where)
        return self._ah[where]

    def post_receive(self, wr_id: int = 1, size: int | None = None, offset: int = 0) -> None:
        """Post a receive into the region ``into``."""
        length = self.size - offset if size is None else size
        self.qp.post_recv(RecvWR(wr_id, sg=[self.into.sge(offset, length)]))

    def send(
        self,
        to: RDEnd,
        data: bytes = b"",
        wr_id: int = 2,
        *,
        offset: int = 0,
        flags: int = SendFlag.SIGNALED,
        opcode: WROpcode = WROpcode.SEND,
        invalidate: int = 0,
        imm_data: int = 0,
    ) -> None:
        """Send ``data`` from ``offset`` of the region ``out``.

        Memory that already contains the data is not rewritten, because an earlier request may still
        read from it.
        """
        if self.out.view[offset : offset + len(data)] != data:
            self.out.view[offset : offset + len(data)] = data
        self.qp.post_send(
            SendWR(
                wr_id,
                opcode,
                send_flags=flags,
                sg=[self.out.sge(offset, len(data))],
                ah=self.address_handle(to),
                invalidate_rkey=invalidate,
                imm_data=imm_data,
            )
        )

    def post_rdma(
        self,
        to: RDEnd,
        opcode: WROpcode,
        length: int,
        wr_id: int = 3,
        *,
        offset: int = 0,
        remote: Any = None,
        flags: int = SendFlag.SIGNALED,
        **more: int,
    ) -> None:
        """Post a Write from ``out``, or a Read or atomic operation with the result in ``out``."""
        self.qp.post_send(
            SendWR(
                wr_id,
                opcode,
                send_flags=flags,
                sg=[self.out.sge(offset, length)],
                ah=self.address_handle(to),
                remote=to.into.remote(offset) if remote is None else remote,
                **more,
            )
        )

    def poll_sends(self, n: int = 1) -> list[WC]:
        """Return the next ``n`` completions of the send CQ."""
        return poll(self.scq, n)

    def poll_receives(self, n: int = 1) -> list[WC]:
        """Return the next ``n`` completions of the receive CQ."""
        return poll(self.rcq, n)


def check_send_to_receiver_that_closes(rig: Rig, size: int, memory: int) -> None:
    """Check that a Send succeeds although its receiver closes as soon as it has received the Send.

    Args:
        rig: the device of both ends.
        size: the octets of the Send.
        memory: the octets of each region of the ends.

    """
    a, b = RDEnd(rig, memory), RDEnd(rig, memory)
    b.post_receive()
    a.send(b, octet_pattern(size))
    assert b.poll_receives()[0].ok
    b.qp.close()
    assert a.poll_sends()[0].ok
    a.qp.close()
