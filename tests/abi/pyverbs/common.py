"""What the scripts share: a device, and two queue pairs of it that talk to each other."""

import sys

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QPT_RC,
    IBV_QPT_UD,
    IBV_WC_SUCCESS,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

QKEY = 0x11111111
ALL = (
    IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
)


def device():
    """The device that the command line names, open."""
    return Context(name=sys.argv[1])


def route(ctx, index=0):
    """The address vector of this device itself."""
    gid = ctx.query_gid(port_num=1, index=index)
    return AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=index), is_global=1, port_num=1)


class End:
    """A protection domain, a completion queue, a region and a queue pair."""

    def __init__(self, ctx, qp_type=IBV_QPT_RC, srq=None, pd=None, size=4096):
        self.pd = pd or PD(ctx)
        self.cq = CQ(ctx, 100)
        self.mr = MR(self.pd, size, ALL)
        cap = QPCap(max_send_wr=16, max_recv_wr=16)
        init = QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, srq=srq, cap=cap)
        self.attr = QPAttr(port_num=1)
        if qp_type == IBV_QPT_UD:
            self.attr.qkey = QKEY
        else:
            self.attr.qp_access_flags = ALL
        # Of UD that goes on to RTS at once, of RC to INIT.
        self.qp = QP(self.pd, init, self.attr)

    def connect(self, ctx, other):
        """Take the queue pair of another end as the peer."""
        attr = self.attr
        attr.dest_qp_num = other.qp.qp_num
        attr.ah_attr = route(ctx)
        attr.path_mtu, attr.max_dest_rd_atomic, attr.max_rd_atomic = 3, 8, 8
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        self.qp.to_rts(attr)

    def completion(self):
        """The next completion; it must be a success."""
        while True:
            count, found = self.cq.poll(1)
            if count:
                assert found[0].status == IBV_WC_SUCCESS, found[0]
                return found[0]


def connected(ctx, **more):
    """Two ends of RC, connected."""
    ends = End(ctx, **more), End(ctx, **more)
    for one, other in (ends, ends[::-1]):
        one.connect(ctx, other)
    return ends


def done(name):
    """Say that all of a script's checks held."""
    print(f"{name}: correct")
