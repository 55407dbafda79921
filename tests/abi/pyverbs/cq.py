"""Completion queues, with a channel and extended."""

from common import create_connected_endpoints, open_device, report_success
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, PollCqAttr
from pyverbs.wr import SGE, RecvWR, SendWR

with open_device() as ctx:
    channel = CompChannel(ctx)
    with CQ(ctx, 300, None, channel) as cq:
        assert cq.cqe >= 300
        cq.resize(600)
        assert cq.cqe >= 600
        cq.req_notify()
    with CQEX(ctx, CqInitAttrEx(cqe=64)) as extended:
        assert extended.start_poll(PollCqAttr()) == 2  # ENOENT: the queue is empty
    a, b = create_connected_endpoints(ctx)
    b.qp.post_recv(RecvWR(sg=[SGE(b.mr.buf, 100, b.mr.lkey)], num_sge=1, wr_id=5))
    a.qp.post_send(SendWR(sg=[SGE(a.mr.buf, 100, a.mr.lkey)], num_sge=1, wr_id=6))
    received, sent = b.next_completion(), a.next_completion()
    assert (received.wr_id, received.byte_len, sent.wr_id) == (5, 100, 6)
report_success("cq")
