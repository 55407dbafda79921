"""For the pyverbs scripts: the device, and class End, an endpoint with queue pair and memory."""

import errno
import sys

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_MW_BIND,
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QPT_RC,
    IBV_QPT_UD,
    IBV_WC_SUCCESS,
    IBV_WR_SEND,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR

QKEY = 0x11111111
ALL = (
    IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
)


def open_device():
    """Open the device that the command line names."""
    return Context(name=sys.argv[1])


def check_call_is_refused(what, *args, code=errno.EOPNOTSUPP, **more):
    """Check that a call or the creation of an object fails with the errno `code`."""
    try:
        what(*args, **more)
    except PyverbsRDMAError as e:
        assert e.error_code == code, (what, e)
    else:
        raise AssertionError(f"{what} was not refused")


def data_pattern(size, seed=0):
    """Return octets that depend on their position, so that misplaced data is detected."""
    return bytes((i * 7 + (i >> 8) * 5 + seed) & 0xFF for i in range(size))


def loopback_address_vector(ctx, index=0):
    """Return an address vector whose destination is the device itself."""
    gid = ctx.query_gid(port_num=1, index=index)
    return AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=index), is_global=1, port_num=1)


class End:
    """A queue pair with its protection domain, completion queue and memory region."""

    def __init__(self, ctx, qp_type=IBV_QPT_RC, srq=None, pd=None, cq=None, size=4096, ops=0):
        self.pd = pd or PD(ctx)
        self.cq = cq or CQ(ctx, 100)
        self.mr = MR(self.pd, size, ALL | IBV_ACCESS_MW_BIND)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=4, max_inline_data=64)
        self.attr = QPAttr(port_num=1)
        if qp_type == IBV_QPT_UD:
            self.attr.qkey = QKEY
        else:
            self.attr.qp_access_flags = ALL
        # With an attribute, pyverbs moves a new UD queue pair to RTS, and other queue pairs to
        # INIT.
        if ops:
            mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            init = QPInitAttrEx(
                qp_type=qp_type,
                scq=self.cq,
                rcq=self.cq,
                srq=srq,
                cap=cap,
                pd=self.pd,
                comp_mask=mask,
                send_ops_flags=ops,
            )
            self.qp = QPEx(ctx, init, self.attr)
        else:
            init = QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, srq=srq, cap=cap)
            self.qp = QP(self.pd, init, self.attr)

    def connect(self, ctx, other):
        """Connect to the queue pair of another end."""
        self.connect_to_qpn(other.qp.qp_num, loopback_address_vector(ctx))

    def connect_to_qpn(self, number, way):
        """Connect to the queue pair with this `number`, through the address vector `way`."""
        attr = self.attr
        attr.dest_qp_num, attr.ah_attr = number, way
        attr.path_mtu, attr.max_dest_rd_atomic, attr.max_rd_atomic = 3, 8, 8
        # Adapters use only the lower five bits of the two timers and the lower three bits of the
        # two retry counts, and ignore the other bits.
        attr.min_rnr_timer, attr.timeout = 12 | 0x20, 14 | 0xE0
        attr.retry_cnt, attr.rnr_retry = 7 | 0x08, 7 | 0xF8
        self.qp.to_rts(attr)

    def next_completion(self, status=IBV_WC_SUCCESS):
        """Return the next completion, which must have the given status."""
        while True:
            count, found = self.cq.poll(1)
            if count:
                assert found[0].status == status, found[0]
                return found[0]

    def sge(self, size, offset=0):
        """Return a scatter/gather element of this end's memory."""
        return SGE(self.mr.buf + offset, size, self.mr.lkey)

    def post_receive(self, size=2048, offset=0, wr_id=0):
        """Post a receive into the memory of this end."""
        self.qp.post_recv(RecvWR(sg=[self.sge(size, offset)], num_sge=1, wr_id=wr_id))

    def post_request(self, opcode=IBV_WR_SEND, size=1, offset=0, to=None, **more):
        """Post a request; `to`: address and rkey of the other end's memory."""
        sges = [self.sge(size, offset)]
        wr = SendWR(sg=sges, num_sge=1, opcode=opcode, **more)
        if to:
            wr.set_wr_rdma(to[1], to[0])
        self.qp.post_send(wr)


def create_connected_endpoints(ctx, **more):
    """Return two connected RC ends."""
    ends = End(ctx, **more), End(ctx, **more)
    for one, other in (ends, ends[::-1]):
        one.connect(ctx, other)
    return ends


def report_success(name):
    """Print that all checks of a script have passed."""
    print(f"{name}: correct")
