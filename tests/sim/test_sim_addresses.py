"""Devices with several IP addresses."""

from __future__ import annotations

import pytest

from siwarp.sim import World
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
)


def create_qp_on_all_addresses(device: Context) -> tuple[PD, CQ, QP, MR]:
    pd = PD(device)
    cq = CQ(device, channel=CompChannel(device))
    qp = QP(pd, QPInitAttr(QPType.UD, scq=cq, rcq=cq, every_addr=True, qkey=7))
    qp.to_rts()
    return pd, cq, qp, MR(pd, 64)


@pytest.mark.parametrize(
    ("to", "source"),
    [("10.0.0.2", "10.0.0.7"), ("fd00::2", "fd00::7")],
)
def test_a_message_without_a_source_address_uses_the_first_address_of_the_family(
    world: World, to: str, source: str
) -> None:
    pd, cq, qp, mr = create_qp_on_all_addresses(
        world.device("10.0.0.7", "fd00::7", "10.0.0.1", "fd00::1")
    )
    _, its_cq, its_qp, its_mr = create_qp_on_all_addresses(world.device("10.0.0.2", "fd00::2"))
    its_qp.post_recv(RecvWR(1, sg=[its_mr.sge(0, 64)]))
    with AH(pd, (to, 0)) as ah:
        qp.post_send(SendWR(2, sg=[mr.sge(0, 8)], ah=ah, remote_qpn=its_qp.qp_num))
        cq.wait()[0].check()
    (wc,) = its_cq.wait()
    assert wc.check().source == (source, qp.qp_num)
