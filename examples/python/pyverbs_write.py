"""pyverbs: an RDMA Write between two RC queue pairs, which are connected by GID and number.

python -m siwarp.pyverbs pyverbs_write.py   on siwarp, without changes
siwarp run /usr/bin/python3 pyverbs_write.py   the same on rdma-core's pyverbs
"""

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


class End:
    """A queue pair, with its completion queue and 4096 octets of memory."""

    def __init__(self, ctx, pd):
        self.cq = CQ(ctx, 16)
        self.mr = MR(pd, 4096, RIGHTS)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap())
        self.attr = QPAttr(port_num=1)
        self.attr.qp_access_flags = RIGHTS
        self.qp = QP(pd, init, self.attr)

    def connect(self, ctx, peer):
        """Connect this queue pair to the peer's; both sides must call connect()."""
        route = GlobalRoute(dgid=ctx.query_gid(1, 0), sgid_index=0)
        attr = self.attr
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.dest_qp_num = peer.qp.qp_num
        attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic = e.IBV_MTU_1024, 1, 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        self.qp.to_rts(attr)


with Context(name=get_device_list()[-1].name.decode()) as ctx, PD(ctx) as pd:
    mine, theirs = End(ctx, pd), End(ctx, pd)
    mine.connect(ctx, theirs)
    theirs.connect(ctx, mine)
    text = "written by the other end"
    mine.mr.write(text, len(text))
    wr = SendWR(
        opcode=e.IBV_WR_RDMA_WRITE,
        num_sge=1,
        sg=[SGE(mine.mr.buf, len(text), mine.mr.lkey)],
    )
    wr.set_wr_rdma(theirs.mr.rkey, theirs.mr.buf)
    mine.qp.post_send(wr)
    count = 0
    while not count:
        count, completions = mine.cq.poll(1)
    assert completions[0].status == e.IBV_WC_SUCCESS, completions[0]
    print(theirs.mr.read(len(text), 0).decode())
