"""Protection domains: accessible memory, parent domains, import, and memory advice (advise_mr)."""

import errno

from common import (
    ALL,
    End,
    check_call_is_refused,
    create_connected_endpoints,
    data_pattern,
    open_device,
    report_success,
)
from pyverbs.enums import (
    _IBV_ADVISE_MR_ADVICE_PREFETCH,
    _IBV_ADVISE_MR_FLAG_FLUSH,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WR_RDMA_WRITE,
)
from pyverbs.mr import MR
from pyverbs.pd import PD, ParentDomain, ParentDomainContext, ParentDomainInitAttr
from pyverbs.wr import SGE

SIZE = 1500


def unused_allocator(pd, context, size, alignment, resource_type):
    """Allocate memory for a parent domain on behalf of the program; never called."""
    raise AssertionError


def unused_deallocator(pd, context, ptr, resource_type):
    """Free memory of the program's allocator; never called."""
    raise AssertionError


with open_device() as ctx:
    # A region of another protection domain cannot be accessed.
    a, b = create_connected_endpoints(ctx)
    with PD(ctx) as other:
        foreign = MR(other, 4096, ALL)
        a.post_request(IBV_WR_RDMA_WRITE, SIZE, to=(foreign.buf, foreign.rkey))
        a.next_completion(IBV_WC_REM_ACCESS_ERR)

    # Queue pairs of a parent domain can access the memory of the underlying protection domain.
    with PD(ctx) as pd, ParentDomain(ctx, attr=ParentDomainInitAttr(pd=pd)) as parent:
        ends = End(ctx, pd=parent), End(ctx, pd=parent)
        for one, two in (ends, ends[::-1]):
            one.connect(ctx, two)
        mr = MR(pd, 4096, ALL)
        data = data_pattern(SIZE)
        ends[0].mr.write(data, SIZE)
        ends[0].post_request(IBV_WR_RDMA_WRITE, SIZE, to=(mr.buf, mr.rkey))
        ends[0].next_completion()
        assert mr.read(SIZE, 0) == data
        pd.advise_mr(
            _IBV_ADVISE_MR_ADVICE_PREFETCH,
            _IBV_ADVISE_MR_FLAG_FLUSH,
            [SGE(mr.buf, 4096, mr.lkey)],
        )
        imported = PD(ctx, handle=pd.handle)
        assert imported.handle == pd.handle
        imported.unimport()
        check_call_is_refused(PD, ctx, handle=0x7FFFFFFF, code=errno.EINVAL)
        # siwarp allocates the memory of its queues, so a program's allocator is refused.
        context = ParentDomainContext(pd, unused_allocator, unused_deallocator)
        check_call_is_refused(
            ParentDomain, ctx, attr=ParentDomainInitAttr(pd=pd, pd_context=context)
        )
report_success("pd")
