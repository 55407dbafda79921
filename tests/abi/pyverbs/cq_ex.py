"""Extended completion queues: every read function, both clocks, and unsupported options."""

import errno
import time

from common import End, check_call_is_refused, data_pattern, open_device, report_success
from pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.enums import (
    IBV_CQ_INIT_ATTR_MASK_FLAGS,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_EX_WITH_CVLAN,
    IBV_WC_EX_WITH_FLOW_TAG,
    IBV_WC_EX_WITH_TM_INFO,
    IBV_WC_RECV,
    IBV_WC_SEND,
    IBV_WC_STANDARD_FLAGS,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WR_SEND_WITH_IMM,
)

SIZE, COUNT, EMPTY = 700, 5, 2  # ENOENT
STAMPS = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK


def create_extended_cq(ctx, **more):
    """Return an extended completion queue that reports all standard fields of completions."""
    return CQEX(ctx, CqInitAttrEx(cqe=64, **{"wc_flags": IBV_WC_STANDARD_FLAGS, **more}))


def wait_for_completion(cq):
    """Wait until an extended completion queue has a completion, which becomes current."""
    while (result := cq.start_poll(PollCqAttr())) == EMPTY:
        pass
    assert result == 0


with open_device() as ctx:
    mine = create_extended_cq(ctx, wc_flags=IBV_WC_STANDARD_FLAGS | STAMPS[0])
    theirs = create_extended_cq(ctx, wc_flags=IBV_WC_STANDARD_FLAGS | STAMPS[1])
    assert mine.start_poll(PollCqAttr()) == EMPTY
    a, b = End(ctx, cq=mine), End(ctx, cq=theirs)
    a.connect(ctx, b)
    b.connect(ctx, a)
    data = data_pattern(SIZE)
    a.mr.write(data, SIZE)
    for i in range(COUNT):
        b.post_receive(SIZE, wr_id=100 + i)
    before = time.clock_gettime_ns(time.CLOCK_REALTIME)
    for i in range(COUNT):
        a.post_request(IBV_WR_SEND_WITH_IMM, SIZE, wr_id=i, imm_data=0x1000 + i)
    last = 0
    for i in range(COUNT):
        wait_for_completion(mine)
        assert (mine.wr_id, mine.status, mine.read_opcode()) == (i, IBV_WC_SUCCESS, IBV_WC_SEND)
        assert mine.read_qp_num() == a.qp.qp_num and mine.read_vendor_err() == 0
        assert mine.read_timestamp() >= last
        last = mine.read_timestamp()
        mine.end_poll()
    # One polling batch reads all available completions.
    taken = 0
    while taken < COUNT:
        wait_for_completion(theirs)
        while True:
            assert (theirs.wr_id, theirs.status) == (100 + taken, IBV_WC_SUCCESS)
            assert (theirs.read_opcode(), theirs.read_byte_len()) == (IBV_WC_RECV, SIZE)
            assert theirs.read_wc_flags() & IBV_WC_WITH_IMM
            assert theirs.read_imm_data() == 0x1000 + taken
            assert theirs.read_qp_num() == b.qp.qp_num
            assert before <= theirs.read_completion_wallclock_ns() <= time.time_ns()
            taken += 1
            if theirs.poll_next() == EMPTY:
                break
        theirs.end_poll()
    assert b.mr.read(SIZE, 0) == data

    single = create_extended_cq(
        ctx, comp_mask=IBV_CQ_INIT_ATTR_MASK_FLAGS, flags=IBV_CREATE_CQ_ATTR_SINGLE_THREADED
    )
    assert single.start_poll(PollCqAttr()) == EMPTY
    for reader in (IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_TM_INFO):
        check_call_is_refused(create_extended_cq, ctx, wc_flags=reader)
    check_call_is_refused(
        create_extended_cq,
        ctx,
        comp_mask=IBV_CQ_INIT_ATTR_MASK_FLAGS,
        flags=IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    )
    check_call_is_refused(CQEX, ctx, CqInitAttrEx(cqe=1 << 30), code=errno.EINVAL)
report_success("cq_ex")
