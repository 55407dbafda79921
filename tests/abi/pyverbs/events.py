"""Asynchronous events: each is delivered, names its object, and is acknowledged."""

from common import ALL, End, create_connected_endpoints, open_device, report_success
from pyverbs.enums import (
    IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_SQ_DRAINED,
    IBV_EVENT_SRQ_LIMIT_REACHED,
    IBV_QP_EN_SQD_ASYNC_NOTIFY,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_SQD,
    IBV_SRQ_LIMIT,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR


def wait_for_async_event(ctx, kind):
    """Wait for the next asynchronous event, which must be of the given kind; acknowledge it."""
    event = ctx.get_async_event()
    assert event.event_type == kind, event
    event.ack()


with open_device() as ctx:
    pd = PD(ctx)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=32)))
    mr = MR(pd, 4096, ALL)
    for i in range(4):
        srq.post_recv(RecvWR(sg=[SGE(mr.buf, 1024, mr.lkey)], num_sge=1, wr_id=i))
    srq.modify(SrqAttr(srq_limit=4), IBV_SRQ_LIMIT)
    a, b = End(ctx), End(ctx, srq=srq, pd=pd)
    a.connect(ctx, b)
    b.connect(ctx, a)
    a.post_request(size=10)
    a.next_completion()
    assert b.next_completion().byte_len == 10
    wait_for_async_event(ctx, IBV_EVENT_SRQ_LIMIT_REACHED)
    b.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    wait_for_async_event(ctx, IBV_EVENT_QP_LAST_WQE_REACHED)

    a, b = create_connected_endpoints(ctx)
    attr = QPAttr(qp_state=IBV_QPS_SQD)
    attr.en_sqd_async_notify = 1
    a.qp.modify(attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY)
    wait_for_async_event(ctx, IBV_EVENT_SQ_DRAINED)
report_success("events")
