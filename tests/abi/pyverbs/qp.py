"""Queue pairs: their states and attributes, UC, errors that flush, and types that are refused."""

import errno

from common import (
    End,
    check_call_is_refused,
    create_connected_endpoints,
    data_pattern,
    open_device,
    report_success,
)
from pyverbs.enums import (
    IBV_QP_CAP,
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
    IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
    IBV_QP_INIT_ATTR_PD,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPT_DRIVER,
    IBV_QPT_RAW_PACKET,
    IBV_QPT_RC,
    IBV_QPT_UC,
    IBV_QPT_UD,
    IBV_QPT_XRC_SEND,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
)
from pyverbs.qp import ECE, QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx

SIZE = 3500

with open_device() as ctx:
    a, b = create_connected_endpoints(ctx)
    attr, init = a.qp.query(0xFFFFFF)
    assert (attr.qp_state, attr.cur_qp_state) == (IBV_QPS_RTS, IBV_QPS_RTS)
    assert attr.dest_qp_num == b.qp.qp_num and attr.path_mtu == 3
    assert (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) == (14, 7, 7, 12)
    assert (attr.max_rd_atomic, attr.max_dest_rd_atomic) == (8, 8)
    assert attr.ah_attr.dgid == ctx.query_gid(1, 0).gid
    assert init.cap.max_send_wr >= 16 and init.cap.max_inline_data >= 64
    assert (a.qp.qp_type, a.qp.qp_state) == (IBV_QPT_RC, IBV_QPS_RTS)
    assert not a.qp.query_data_in_order(IBV_WR_RDMA_WRITE)

    # In SQD posted requests wait; in ERR posted requests are flushed.
    b.post_receive(SIZE)
    a.qp.modify(QPAttr(qp_state=IBV_QPS_SQD), IBV_QP_STATE)
    a.post_request(size=100)
    assert a.cq.poll(1)[0] == 0 and b.cq.poll(1)[0] == 0
    a.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    assert b.next_completion().byte_len == 100
    a.next_completion()
    b.post_receive(SIZE, wr_id=77)
    b.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    assert b.next_completion(IBV_WC_WR_FLUSH_ERR).wr_id == 77
    check_call_is_refused(
        b.qp.modify, QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE, code=errno.EINVAL
    )
    b.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    b.qp.to_init(QPAttr(port_num=1))
    assert b.qp.query(IBV_QP_STATE)[0].qp_state == IBV_QPS_INIT

    # UC: only immediate data notifies the peer of a Write.
    a, b = End(ctx, IBV_QPT_UC), End(ctx, IBV_QPT_UC)
    a.connect(ctx, b)
    b.connect(ctx, a)
    data = data_pattern(SIZE)
    a.mr.write(data, SIZE)
    a.post_request(IBV_WR_RDMA_WRITE, SIZE // 2, to=(b.mr.buf, b.mr.rkey))
    b.post_receive()
    a.post_request(
        IBV_WR_RDMA_WRITE_WITH_IMM,
        SIZE - SIZE // 2,
        SIZE // 2,
        to=(b.mr.buf + SIZE // 2, b.mr.rkey),
        imm_data=5,
    )
    assert b.next_completion().imm_data == 5
    assert b.mr.read(SIZE, 0) == data

    # A queue pair accepts the vendor options (ECE) that it reports, but not those of another
    # vendor.
    ece = a.qp.query_ece()
    with QP(a.pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=a.cq, rcq=a.cq, cap=QPCap())) as fresh:
        fresh.set_ece(ece)
        check_call_is_refused(fresh.set_ece, ECE(vendor_id=0x15B3, options=1))
        check_call_is_refused(fresh.modify, QPAttr(), IBV_QP_CAP)

    def create_qp(kind):
        """Create a queue pair of the given type."""
        return QP(a.pd, QPInitAttr(qp_type=kind, scq=a.cq, rcq=a.cq, cap=QPCap()))

    def create_extended_qp(mask, kind=IBV_QPT_UD, **more):
        """Create an extended queue pair with a feature of Ethernet adapters."""
        init = QPInitAttrEx(
            qp_type=kind,
            scq=a.cq,
            rcq=a.cq,
            cap=QPCap(),
            pd=a.pd,
            comp_mask=IBV_QP_INIT_ATTR_PD | mask,
            **more,
        )
        return QPEx(ctx, init)

    for kind in (IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER, IBV_QPT_XRC_SEND):
        check_call_is_refused(create_qp, kind)
        check_call_is_refused(create_extended_qp, 0, kind)
    check_call_is_refused(create_extended_qp, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, max_tso_header=64)
    check_call_is_refused(
        create_extended_qp,
        IBV_QP_INIT_ATTR_CREATE_FLAGS,
        create_flags=IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
    )
report_success("qp")
