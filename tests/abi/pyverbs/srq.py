"""A shared receive queue used by two queue pairs."""

from common import ALL, End, open_device, report_success
from pyverbs.enums import IBV_SRQ_LIMIT
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

with open_device() as ctx:
    pd = PD(ctx)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=32)))
    mr = MR(pd, 4096, ALL)
    for i in range(4):
        srq.post_recv(RecvWR(sg=[SGE(mr.buf + i * 1024, 1024, mr.lkey)], num_sge=1, wr_id=i))
    pairs = []
    for _ in range(2):
        a, b = End(ctx), End(ctx, srq=srq, pd=pd)
        a.connect(ctx, b)
        b.connect(ctx, a)
        pairs.append((a, b))
    for number, (a, b) in enumerate(pairs):
        text = f"from {number}"
        a.mr.write(text, len(text))
        a.qp.post_send(SendWR(sg=[SGE(a.mr.buf, len(text), a.mr.lkey)], num_sge=1))
        a.next_completion()
        came = b.next_completion()
        assert mr.read(came.byte_len, came.wr_id * 1024) == text.encode()
    srq.modify(SrqAttr(srq_limit=1), IBV_SRQ_LIMIT)
    assert srq.query().srq_limit == 1
report_success("srq")
