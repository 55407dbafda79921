"""Classes for packet steering: the objects store their parameters, and flows are refused."""

from common import End, check_call_is_refused, open_device, report_success
from pyverbs.enums import (
    IBV_FLOW_SPEC_TCP,
    IBV_FLOW_SPEC_UDP,
    IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_RX_HASH,
    IBV_QPT_UD,
    IBV_RX_HASH_DST_IPV4,
    IBV_RX_HASH_FUNC_TOEPLITZ,
    IBV_WQ_ATTR_STATE,
    IBV_WQS_RDY,
)
from pyverbs.flow import Flow, FlowAction, FlowAttr
from pyverbs.qp import QP, QPCap, QPInitAttrEx
from pyverbs.spec import EthSpec, Ipv4ExtSpec, Ipv6Spec, TcpUdpSpec
from pyverbs.wq import WQ, RxHashConf, WQAttr, WQInitAttr

specs = [
    EthSpec(dst_mac="02:00:00:00:00:01"),
    Ipv4ExtSpec(dst_ip="192.0.2.1", proto=17),
    Ipv6Spec(dst_ip="2001:db8::1", src_ip="2001:db8::2", next_hdr=17),
    TcpUdpSpec(IBV_FLOW_SPEC_UDP, dst_port=4791),
    TcpUdpSpec(IBV_FLOW_SPEC_TCP, src_port=80),
]
assert specs[1].dst_ip == "192.0.2.1" and specs[1].proto == 17
assert specs[2].next_hdr == 17  # pyverbs can set the IPv6 addresses, but not read them
assert specs[3].dst_port == 4791 and specs[4].src_port == 80

with open_device() as ctx:
    end = End(ctx, IBV_QPT_UD)
    for spec in specs:
        flow = FlowAttr(num_of_specs=1, port=1)
        flow.specs.append(spec)
        check_call_is_refused(Flow, end.qp, flow)
    every = FlowAttr(num_of_specs=len(specs), port=1)
    every.specs.extend(specs)
    check_call_is_refused(Flow, end.qp, every)
    # FlowAction is a base class without calls; only subclasses of vendors create actions.
    assert not [name for name in vars(FlowAction) if name in ("create", "modify")]
    FlowAction()

    # A queue pair with a receive hash distributes packets over several work queues (WQ). Creating
    # such a queue pair or a WQ is refused.
    conf = RxHashConf(IBV_RX_HASH_FUNC_TOEPLITZ, 4, [1, 2, 3, 4], IBV_RX_HASH_DST_IPV4)
    assert conf.rx_hash_key_len == 4 and conf.rx_hash_fields_mask == IBV_RX_HASH_DST_IPV4
    init = QPInitAttrEx(
        qp_type=IBV_QPT_UD,
        scq=end.cq,
        rcq=end.cq,
        cap=QPCap(),
        pd=end.pd,
        hash_conf=conf,
        comp_mask=IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH,
    )
    check_call_is_refused(QP, ctx, init)
    attr = WQAttr(attr_mask=IBV_WQ_ATTR_STATE, wq_state=IBV_WQS_RDY)
    assert attr.attr_mask == IBV_WQ_ATTR_STATE and attr.wq_state == IBV_WQS_RDY
    check_call_is_refused(WQ, ctx, WQInitAttr(wq_pd=end.pd, wq_cq=end.cq))
report_success("packets")
