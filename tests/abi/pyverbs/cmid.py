"""Connection ids with events: RC data in both directions, a rejected connection, UD resolution."""

from common import data_pattern, open_device, report_success
from pyverbs.addr import AH
from pyverbs.cm_enums import (
    RAI_PASSIVE,
    RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_MULTICAST_JOIN,
    RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ROUTE_RESOLVED,
    RDMA_CM_JOIN_MC_ATTR_ADDRESS,
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
    RDMA_MC_JOIN_FLAG_FULLMEMBER,
    RDMA_PS_TCP,
    RDMA_PS_UDP,
)
from pyverbs.cmid import (
    CMID,
    AddrInfo,
    CMEvent,
    CMEventChannel,
    ConnParam,
    JoinMCAttrEx,
    UDParam,
)
from pyverbs.enums import IBV_QPT_RC, IBV_QPT_UD, IBV_SEND_SIGNALED, IBV_WC_SUCCESS
from pyverbs.qp import QPCap, QPInitAttr

SIZE, GRH, HOST = 1000, 40, "127.0.0.1"


def next_cm_event_of_kind(channel, kind):
    """Return the next event of a channel, which must be of the given kind."""
    found = CMEvent(channel)
    assert found.event_type == kind, found.event_str()
    return found


def create_listening_id(space, port):
    """Return a listening id, and its event channel."""
    channel = CMEventChannel()
    cmid = CMID(creator=channel, port_space=space)
    cmid.bind_addr(AddrInfo(src=HOST, src_service=port, port_space=space, flags=RAI_PASSIVE))
    cmid.listen()
    return channel, cmid


def create_resolved_id(space, port):
    """Return an id that has resolved the address of a listener, and its event channel."""
    channel = CMEventChannel()
    cmid = CMID(creator=channel, port_space=space)
    cmid.resolve_addr(AddrInfo(src=HOST, dst=HOST, dst_service=port, port_space=space))
    next_cm_event_of_kind(channel, RDMA_CM_EVENT_ADDR_RESOLVED).ack_cm_event()
    cmid.resolve_route()
    next_cm_event_of_kind(channel, RDMA_CM_EVENT_ROUTE_RESOLVED).ack_cm_event()
    return channel, cmid


def create_queue_pair(cmid, kind):
    """Create the queue pair of an id."""
    cmid.create_qp(QPInitAttr(qp_type=kind, cap=QPCap(max_recv_wr=4)))


def make_conn_param(text):
    """Return connection parameters with private data."""
    param = ConnParam(data_len=len(text))
    param.set_private_data(text)
    return param


def request_connection(port, server):
    """Send a connection request; return the event channel of the client, and both ids."""
    mine, active = create_resolved_id(RDMA_PS_TCP, port)
    create_queue_pair(active, IBV_QPT_RC)
    active.connect(make_conn_param(b"who is there"))
    request = next_cm_event_of_kind(server[0], RDMA_CM_EVENT_CONNECT_REQUEST)
    assert request.private_data[:12] == b"who is there"
    passive = CMID(creator=request, listen_id=server[1])
    return mine, active, passive


def check_transfers(active, passive):
    """Transfer data between two ids with a Send, a Write and a Read, and compare the data."""
    data = data_pattern(SIZE)
    here, there = active.reg_msgs(SIZE), passive.reg_msgs(SIZE)
    here.write(data, SIZE)
    passive.post_recv(there)
    active.post_send(here)
    assert active.get_send_comp().status == IBV_WC_SUCCESS
    assert passive.get_recv_comp().byte_len == SIZE and there.read(SIZE, 0) == data
    for reg, post in (("reg_write", "post_write"), ("reg_read", "post_read")):
        target = getattr(passive, reg)(SIZE)
        data = data_pattern(SIZE, 3)
        (here if reg == "reg_write" else target).write(data, SIZE)
        where = target.buf, target.rkey
        getattr(active, post)(here, SIZE, *where, flags=IBV_SEND_SIGNALED)
        assert active.get_send_comp().status == IBV_WC_SUCCESS
        assert here.read(SIZE, 0) == data == target.read(SIZE, 0)


def send_and_check_datagram(cmid, mr, ah, peer, qpn):
    """Send a UD message from one id to another and compare the data."""
    data = data_pattern(SIZE, 8)
    mr.write(data, SIZE)
    theirs = peer.reg_msgs(SIZE + GRH)
    peer.post_recv(theirs)
    cmid.post_ud_send(mr, ah, rqpn=qpn, length=SIZE)
    assert cmid.get_send_comp().status == IBV_WC_SUCCESS
    assert peer.get_recv_comp().byte_len == SIZE + GRH
    assert theirs.read(SIZE, GRH) == data


with open_device() as ctx:
    port = "17471"
    server = create_listening_id(RDMA_PS_TCP, port)
    mine, active, passive = request_connection(port, server)
    create_queue_pair(passive, IBV_QPT_RC)
    passive.accept(make_conn_param(b"it is me"))
    came = next_cm_event_of_kind(mine, RDMA_CM_EVENT_ESTABLISHED)
    assert came.private_data[:8] == b"it is me"
    came.ack_cm_event()
    next_cm_event_of_kind(server[0], RDMA_CM_EVENT_ESTABLISHED).ack_cm_event()
    assert active.qpn and passive.pd and active.context.name == active.dev_name
    check_transfers(active, passive)
    active.disconnect()
    next_cm_event_of_kind(mine, RDMA_CM_EVENT_DISCONNECTED).ack_cm_event()
    next_cm_event_of_kind(server[0], RDMA_CM_EVENT_DISCONNECTED).ack_cm_event()
    passive.close()
    active.close()

    mine, active, passive = request_connection(port, server)
    passive.reject(b"not today")
    refusal = next_cm_event_of_kind(mine, RDMA_CM_EVENT_REJECTED)
    assert refusal.private_data[:9] == b"not today"
    refusal.ack_cm_event()

    port = "17472"
    server = create_listening_id(RDMA_PS_UDP, port)
    mine, active = create_resolved_id(RDMA_PS_UDP, port)
    create_queue_pair(active, IBV_QPT_UD)
    active.connect(ConnParam())
    passive = CMID(
        creator=next_cm_event_of_kind(server[0], RDMA_CM_EVENT_CONNECT_REQUEST), listen_id=server[1]
    )
    create_queue_pair(passive, IBV_QPT_UD)
    passive.accept(ConnParam())
    way = UDParam(next_cm_event_of_kind(mine, RDMA_CM_EVENT_ESTABLISHED))
    assert (way.qp_num, way.qkey) == (passive.qpn, 0x01234567)
    send_and_check_datagram(
        active, active.reg_msgs(SIZE), AH(active.pd, attr=way.ah_attr), passive, way.qp_num
    )

    group = AddrInfo(src="239.192.0.77")
    mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
    active.join_multicast(mc_attr=JoinMCAttrEx(group, mask, RDMA_MC_JOIN_FLAG_FULLMEMBER))
    joined = next_cm_event_of_kind(mine, RDMA_CM_EVENT_MULTICAST_JOIN)
    assert UDParam(joined).qp_num == 0xFFFFFF
    joined.ack_cm_event()
    active.leave_multicast(group)
report_success("cmid")
