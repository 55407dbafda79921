"""Addresses: GIDs, address vectors, and address handles made from them or from a completion."""

import errno

from common import (
    QKEY,
    End,
    check_call_is_refused,
    data_pattern,
    loopback_address_vector,
    open_device,
    report_success,
)
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.enums import IBV_QPT_UD
from pyverbs.wr import SendWR

SIZE, GRH = 600, 40

with open_device() as ctx:
    for index in range(2):
        gid = ctx.query_gid(1, index)
        assert GID(gid.gid).gid == gid.gid
        a, b = End(ctx, IBV_QPT_UD), End(ctx, IBV_QPT_UD)
        data = data_pattern(SIZE, index)

        def send_datagram(end, ah, peer):
            wr = SendWR(sg=[end.sge(SIZE)], num_sge=1)
            wr.set_wr_ud(ah, peer.qp.qp_num, QKEY)
            end.qp.post_send(wr)
            end.next_completion()

        # Send a message with the address vector, and a reply to the source of the completion.
        a.mr.write(data, SIZE)
        b.post_receive()
        send_datagram(a, AH(a.pd, attr=loopback_address_vector(ctx, index)), b)
        came = b.next_completion()
        assert b.mr.read(SIZE, GRH) == data and came.src_qp == a.qp.qp_num
        back = AH(b.pd, wc=came, grh=b.mr.buf, port_num=1)
        reply = data_pattern(SIZE, 9 + index)
        b.mr.write(reply, SIZE)
        a.post_receive()
        send_datagram(b, back, a)
        assert a.next_completion().src_qp == b.qp.qp_num and a.mr.read(SIZE, GRH) == reply

    attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=1, hop_limit=9), is_global=1, port_num=1)
    assert (attr.dgid, attr.sgid_index, attr.hop_limit) == (gid.gid, 1, 9)
    check_call_is_refused(AH, a.pd, attr=AHAttr(is_global=0, port_num=1, dlid=1), code=errno.EINVAL)
    check_call_is_refused(AH, a.pd, attr=AHAttr(gr=GlobalRoute(dgid=gid), is_global=1, port_num=2),
            code=errno.EINVAL)  # fmt: skip
report_success("addr")
