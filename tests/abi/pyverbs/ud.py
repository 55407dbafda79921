"""UD: address handles, and the GRH before received data."""

import socket

from common import QKEY, End, loopback_address_vector, open_device, report_success
from pyverbs.addr import AH
from pyverbs.enums import IBV_QPT_UD, IBV_WC_GRH
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE, GRH = 900, 40

with open_device() as ctx:
    a, b = End(ctx, IBV_QPT_UD), End(ctx, IBV_QPT_UD)
    data = bytes(i * 5 & 0xFF for i in range(SIZE))
    a.mr.write(data, SIZE)
    b.qp.post_recv(RecvWR(sg=[SGE(b.mr.buf, 2000, b.mr.lkey)], num_sge=1))
    ah = AH(a.pd, attr=loopback_address_vector(ctx))
    wr = SendWR(sg=[SGE(a.mr.buf, SIZE, a.mr.lkey)], num_sge=1)
    wr.set_wr_ud(ah, b.qp.qp_num, QKEY)
    a.qp.post_send(wr)
    a.next_completion()
    came = b.next_completion()
    assert came.byte_len == SIZE + GRH and came.wc_flags & IBV_WC_GRH
    assert came.src_qp == a.qp.qp_num
    assert b.mr.read(SIZE, GRH) == data
    address = str(ctx.query_gid(1, 0))
    own = socket.inet_pton(socket.AF_INET6, address)[12:]
    header = b.mr.read(GRH, 0)
    assert header[20] == 0x45 and header[32:36] == header[36:40] == own, header
report_success("ud")
