"""Classes of pyverbs for features that siwarp lacks: creating an object fails with EOPNOTSUPP."""

import os
import tempfile

from common import End, check_call_is_refused, open_device, report_success
from pyverbs.device import DM, AllocDmAttr
from pyverbs.enums import (
    IBV_QPT_UC,
    IBV_QPT_UD,
    IBV_SRQ_INIT_ATTR_CQ,
    IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TM,
    IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQT_TM,
    IBV_SRQT_XRC,
    IBV_WR_TAG_ADD,
    IBV_WR_TAG_SYNC,
    IBV_XRCD_INIT_ATTR_FD,
    IBV_XRCD_INIT_ATTR_OFLAGS,
)
from pyverbs.pyverbs_error import PyverbsUserError
from pyverbs.srq import SRQ, OpsWr, SrqAttr, SrqInitAttr, SrqInitAttrEx
from pyverbs.wq import RwqIndTable, RwqIndTableInitAttr
from pyverbs.xrcd import XRCD, XRCDInitAttr


def make_srq_init_attr(kind, more=0):
    """Return the attributes of a shared receive queue of the given type."""
    attr = SrqInitAttrEx(max_wr=10)
    attr.srq_type, attr.pd, attr.cq = kind, end.pd, end.cq
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | more
    return attr


with open_device() as ctx:
    caps = ctx.query_device_ex()
    assert caps.max_dm_size == 0 and caps.tm_caps.max_num_tags == 0
    assert caps.rss_caps.supported_qpts == 0 and caps.tso_caps.max_tso == 0
    assert caps.max_wq_type_rq == 0 and caps.raw_packet_caps == 0
    pacing = caps.packet_pacing_caps
    assert pacing.supported_qpts == 1 << IBV_QPT_UD | 1 << IBV_QPT_UC
    assert (pacing.qp_rate_limit_min, pacing.qp_rate_limit_max) == (1, 0xFFFFFFFF)
    assert caps.cq_mod_caps.max_cq_count == 0

    end = End(ctx, IBV_QPT_UD)
    # pyverbs itself refuses to allocate device memory on a device without such memory.
    try:
        DM(ctx, AllocDmAttr(length=64))
        raise AssertionError("there is memory on the device")
    except PyverbsUserError:
        pass
    with tempfile.NamedTemporaryFile() as file:
        mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS
        check_call_is_refused(XRCD, ctx, XRCDInitAttr(mask, os.O_CREAT, file.fileno()))
    check_call_is_refused(SRQ, ctx, make_srq_init_attr(IBV_SRQT_XRC))
    tags = make_srq_init_attr(IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_TM)
    tags.max_num_tags = tags.max_ops = 4
    check_call_is_refused(SRQ, ctx, tags)
    with SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=10))) as srq:
        check_call_is_refused(
            srq.post_srq_ops, OpsWr(wr_id=1, opcode=IBV_WR_TAG_ADD, tag=1, mask=1)
        )
        check_call_is_refused(srq.post_srq_ops, OpsWr(wr_id=1, opcode=IBV_WR_TAG_SYNC))
    check_call_is_refused(RwqIndTable, ctx, RwqIndTableInitAttr(1, []))
report_success("refused")
