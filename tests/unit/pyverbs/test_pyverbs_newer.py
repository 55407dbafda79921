"""Classes and calls of siwarp.pyverbs that newer versions of pyverbs added."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from siwarp.pyverbs.addr import AH, AHAttr, GlobalRoute
from siwarp.pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel
from siwarp.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from siwarp.pyverbs.cq import CQ
from siwarp.pyverbs.device import Context, FdArr, speed_to_str
from siwarp.pyverbs.libibverbs_enums import (
    ibv_access_flags,
    ibv_parent_domain_init_attr_mask,
    ibv_placement_type,
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
    ibv_qp_type,
    ibv_selectivity_level,
    ibv_wr_opcode,
)
from siwarp.pyverbs.librdmacm_enums import RAI_NUMERICHOST, RAI_PASSIVE, rdma_cm_event_type
from siwarp.pyverbs.mr import MR, Buf, BufMR, DMAHandle, DmaHandleInitAttr, MREx
from siwarp.pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from siwarp.pyverbs.qp import (
    QP,
    QPAttachCompCntrAttr,
    QPAttr,
    QPCap,
    QPEx,
    QPInitAttr,
    QPInitAttrEx,
    QPRateLimitAttr,
)
from siwarp.pyverbs.wr import SGE, RecvWR, SendWR

LOCAL = ibv_access_flags.IBV_ACCESS_LOCAL_WRITE


@pytest.fixture(name="ctx")
def open_loopback_context() -> Iterator[Context]:
    with Context(name="siw_lo") as context:
        yield context


@pytest.fixture(name="pd")
def create_protection_domain(ctx: Context) -> PD:
    return PD(ctx)


def check_call_fails_with_errno(number: int, call, *args, **kwargs) -> str:
    with pytest.raises(PyverbsRDMAError) as raised:
        call(*args, **kwargs)
    assert raised.value.error_code == number
    return str(raised.value)


def test_a_region_of_a_buffer_has_its_memory_and_closes_with_it(pd: PD) -> None:
    buf = Buf(pd, 8192)
    first, second = BufMR(pd, buf, 4096, LOCAL), BufMR(pd, buf, 4096, LOCAL, offset=4096)
    both = MREx(pd, 8192, LOCAL, buf=buf)
    assert (first.buf, second.buf, both.buf) == (buf.addr, buf.addr + 4096, buf.addr)
    second.write(b"second", 6)
    assert both.read(6, 4096) == b"second"
    buf.close()
    assert (buf.addr, first.buf, both.buf) == (0, 0, 0)


def test_a_region_outside_its_buffer_is_refused(ctx: Context, pd: PD) -> None:
    buf = Buf(pd, 4096)
    assert "outside this Buf of 4096" in check_call_fails_with_errno(
        errno.EINVAL, BufMR, pd, buf, 4097, LOCAL
    )
    assert "another PD" in check_call_fails_with_errno(
        errno.EINVAL, BufMR, PD(ctx), buf, 4096, LOCAL
    )
    assert "address" in check_call_fails_with_errno(
        errno.EINVAL, MREx, pd, 4096, LOCAL, address=buf.addr, fd=0
    )
    check_call_fails_with_errno(errno.ENODATA, buf.export_dmabuf_fd)
    check_call_fails_with_errno(errno.EINVAL, Buf, pd, 0)


def test_an_extended_region_is_new_memory_existing_memory_or_memory_of_a_descriptor(pd: PD) -> None:
    new = MREx(pd, 4096, LOCAL)
    new.write(b"shared", 6)
    assert MREx(pd, 4096, LOCAL, address=new.buf, iova=0x1000).read(6, 0) == b"shared"
    file = os.memfd_create("of a test")
    os.write(file, bytes(4096) + b"in a file")
    of_file = MREx(pd, 9, LOCAL, fd=file, fd_offset=4096)
    os.close(file)
    assert of_file.read(9, 0) == b"in a file"
    check_call_fails_with_errno(errno.EOPNOTSUPP, MREx, pd, 4096, LOCAL, implicit=True)


@pytest.mark.parametrize("kind", [MR, MREx])
def test_a_region_for_flushes_is_refused_with_the_reason(pd: PD, kind: type[MR]) -> None:
    flags = LOCAL | ibv_access_flags.IBV_ACCESS_FLUSH_GLOBAL
    assert "RFC 7306" in check_call_fails_with_errno(errno.EOPNOTSUPP, kind, pd, 4096, flags)


def test_unsupported_objects_are_refused_with_the_reason(ctx: Context, pd: PD) -> None:
    assert "PCI" in check_call_fails_with_errno(
        errno.EOPNOTSUPP, DMAHandle, ctx, DmaHandleInitAttr(ph=1)
    )
    attr = CompCntrInitAttr(cntr_type=1)
    assert "counted" in check_call_fails_with_errno(errno.EOPNOTSUPP, CompCntr, ctx, attr)
    check_call_fails_with_errno(errno.EOPNOTSUPP, ctx.query_comp_cntr_caps)
    cq = CQ(ctx, 10)
    qp = QP(pd, QPInitAttr(ibv_qp_type.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap()))
    check_call_fails_with_errno(
        errno.EOPNOTSUPP, qp.attach_comp_cntr, None, QPAttachCompCntrAttr(1)
    )


def test_a_flush_is_refused_when_it_is_posted(ctx: Context, pd: PD) -> None:
    cq = CQ(ctx, 10)

    def create_extended_qp(operations: int) -> QPEx:
        mask = ibv_qp_init_attr_mask
        return QPEx(
            ctx,
            QPInitAttrEx(
                ibv_qp_type.IBV_QPT_RC,
                scq=cq,
                rcq=cq,
                pd=pd,
                comp_mask=mask.IBV_QP_INIT_ATTR_PD | mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                send_ops_flags=operations,
            ),
        )

    flags = ibv_qp_create_send_ops_flags
    check_call_fails_with_errno(errno.EOPNOTSUPP, create_extended_qp, flags.IBV_QP_EX_WITH_FLUSH)
    qp = create_extended_qp(flags.IBV_QP_EX_WITH_SEND)
    qp.wr_start()
    qp.wr_flush(1, 2, 3, ibv_placement_type.IBV_FLUSH_GLOBAL, ibv_selectivity_level.IBV_FLUSH_MR)
    assert "flush" in check_call_fails_with_errno(errno.EOPNOTSUPP, qp.wr_complete)


def test_the_rate_of_a_ud_queue_pair_is_limited_by_its_own_call(ctx: Context, pd: PD) -> None:
    cq = CQ(ctx, 10)
    qp = QP(pd, QPInitAttr(ibv_qp_type.IBV_QPT_UD, scq=cq, rcq=cq), QPAttr(port_num=1))
    qp.modify_rate_limit(QPRateLimitAttr(rate_limit=5000))
    assert qp.query(1 << 25)[0].rate_limit == 5000
    check_call_fails_with_errno(
        errno.EOPNOTSUPP, qp.modify_rate_limit, QPRateLimitAttr(1, max_burst_sz=9)
    )
    check_call_fails_with_errno(errno.EINVAL, qp.modify_rate_limit, QPRateLimitAttr(1, comp_mask=1))


def test_requests_return_the_memory_that_they_name(pd: PD) -> None:
    mr = MR(pd, 64, LOCAL)
    wr = SendWR(opcode=ibv_wr_opcode.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)])
    wr.set_wr_rdma(7, 0x1234)
    assert (wr.rdma_rkey, wr.rdma_remote_addr) == (7, 0x1234)
    assert wr.sg_list != 0 and RecvWR(num_sge=1, sg=[SGE(mr.buf, 64, mr.lkey)]).sg_list != 0


def test_the_elements_of_a_request_can_be_changed(ctx: Context, pd: PD) -> None:
    mr = MR(pd, 64, LOCAL)
    mr.write(b"firstsecond", 11)
    cq = CQ(ctx, 10)
    init = QPInitAttr(ibv_qp_type.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(max_send_wr=2))
    qp = QP(pd, init, QPAttr(port_num=1))
    route = GlobalRoute(dgid=ctx.query_gid(1, 0), sgid_index=0)
    ah = AH(pd, AHAttr(gr=route, is_global=1, port_num=1))
    wr = SendWR(num_sge=2, sg=[SGE(mr.buf, 5, mr.lkey), SGE(mr.buf + 5, 6, mr.lkey)])
    wr.set_wr_ud(ah, qp.qp_num, 0x11111111)
    wr.num_sge = 1
    with pytest.raises(PyverbsUserError, match="there are 2 elements"):
        wr.num_sge = 3
    qp.post_send(wr)
    wr.sg_list = SGE(mr.buf + 5, 6, mr.lkey)
    assert wr.num_sge == 1
    qp.post_send(wr)


def test_a_receive_may_have_no_elements(ctx: Context, pd: PD) -> None:
    cq = CQ(ctx, 10)
    qp = QP(pd, QPInitAttr(ibv_qp_type.IBV_QPT_UD, scq=cq, rcq=cq), QPAttr(port_num=1))
    qp.post_recv(RecvWR(wr_id=5))


def test_allocators_of_a_parent_domain_require_their_functions(ctx: Context, pd: PD) -> None:
    masks = ibv_parent_domain_init_attr_mask
    allowed = masks.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC
    attr = ParentDomainInitAttr(pd, comp_mask=allowed)
    assert attr.comp_mask == allowed
    ParentDomain(ctx, attr).close()
    with pytest.raises(PyverbsUserError, match="pd_context"):
        ParentDomainInitAttr(pd, comp_mask=masks.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS)


def test_ports_report_the_index_of_their_p_key_and_their_speed(ctx: Context) -> None:
    assert ctx.get_pkey_index(1, ctx.query_pkey(1, 0)) == 0
    check_call_fails_with_errno(errno.ENOENT, ctx.get_pkey_index, 1, 0x7FFF)
    assert ctx.query_port_speed(1) > 0
    port = ctx.query_port(1)
    assert speed_to_str(port.active_speed, port.active_speed_ex) == speed_to_str(port.active_speed)
    assert speed_to_str(2, 256) == "200.0 Gbps (256)"
    with pytest.raises(PyverbsUserError, match="there are 2 descriptors"):
        FdArr([3, 4], 3)
    assert FdArr([3, 4], 1).arr == [3]


def test_an_id_resolves_address_info_and_reports_it_by_an_event() -> None:
    channel = CMEventChannel()
    cmid = CMID(creator=channel)
    check_call_fails_with_errno(errno.EINVAL, cmid.query_addrinfo)
    cmid.resolve_addrinfo("127.0.0.1", "7174")
    assert CMEvent(channel).event_type == rdma_cm_event_type.RDMA_CM_EVENT_ADDRINFO_RESOLVED
    cmid.resolve_addr(cmid.query_addrinfo())
    assert CMEvent(channel).event_type == rdma_cm_event_type.RDMA_CM_EVENT_ADDR_RESOLVED
    cmid.resolve_addrinfo("not a number", "7174", flags=RAI_NUMERICHOST)
    event = CMEvent(channel)
    assert event.event_str() == "RDMA_CM_EVENT_ADDRINFO_ERROR"
    cmid.close()
    channel.close()


def test_address_info_may_be_resolved_after_its_creation() -> None:
    channel = CMEventChannel()
    cmid = CMID(creator=channel)
    info = AddrInfo()
    check_call_fails_with_errno(errno.EINVAL, cmid.bind_addr, info)
    info.get_addrinfo(src="127.0.0.1", src_service="0", flags=RAI_PASSIVE)
    cmid.bind_addr(info)
    cmid.close()
    channel.close()
