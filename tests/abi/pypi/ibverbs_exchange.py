"""PyPI's ibverbs, which opens libibverbs.so.1 with dlopen: every operation of RC, and UD.

ibverbs_exchange.py DEVICE [SERVER]

With ENDLESS in the environment both ends repeat RDMA Writes until one of them is killed.
"""

import contextlib
import ctypes
import os

import ibverbs as ib
from common import Control, data_pattern, device_name

SIZE = 100_000
ACCESS = (
    ib.AccessFlags.LOCAL_WRITE
    | ib.AccessFlags.REMOTE_WRITE
    | ib.AccessFlags.REMOTE_READ
    | ib.AccessFlags.REMOTE_ATOMIC
)
QKEY, GRH = 0x1234, 40


def wait_for_completion(cq, channel=None):
    """Return the next completion, which must be successful."""
    while True:
        for wc in cq.poll(1):
            wc.raise_for_status()
            return wc
        if channel:
            cq.req_notify()
            for wc in cq.poll(1):
                wc.raise_for_status()
                return wc
            channel.get_cq_event().ack_events()


control = Control()
found = {str(dev.name): dev for dev in ib.get_device_list()}
with contextlib.ExitStack() as opened:

    def close_at_exit(thing):
        """Return an object that is closed at exit, before the objects from which it was created."""
        return opened.enter_context(thing)

    ctx = close_at_exit(found[device_name()].open())
    pd, channel = (
        close_at_exit(ctx.alloc_pd()),
        close_at_exit(ctx.create_comp_channel()),
    )
    cq = close_at_exit(ctx.create_cq(64, channel))
    memory = ctypes.create_string_buffer(2 * SIZE)
    address = ctypes.addressof(memory)
    mr = close_at_exit(pd.reg_mr(address, 2 * SIZE, ACCESS))
    port, gid = ctx.query_port(1), ctx.query_gid(1, 0)
    assert port.state == ib.PortState.ACTIVE

    def sge(offset, size):
        return ib.SGE(mr, size, offset=offset)

    def post_and_wait(opcode, size=SIZE, **more):
        """Post a request to the other end's memory and wait for its completion."""
        qp.post_send(
            ib.SendWR(
                wr_id=9,
                sg_list=[sge(more.pop("at", 0), size)],
                opcode=opcode,
                send_flags=ib.SendFlags.SIGNALED,
                remote_addr=other["addr"],
                rkey=other["rkey"],
                **more,
            )
        )
        assert wait_for_completion(cq, channel).wr_id == 9

    def post_receive(size=SIZE):
        qp.post_recv(ib.RecvWR(wr_id=5, sg_list=[sge(SIZE, size)]))

    qp = close_at_exit(pd.create_qp(ib.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=ib.QPType.RC)))
    info = ib.local_qp_info(qp, port, gid, port=1, psn=0)
    other = control.exchange_values(qp=info.to_bytes().hex(), addr=address, rkey=mr.rkey)
    peer = ib.QPInfo.from_bytes(bytes.fromhex(other["qp"]))
    ib.connect_rc(qp, peer, port=1, sgid_index=0, access=ACCESS)
    post_receive()
    control.exchange_values(ready=1)
    for _ in range(100_000_000 if "ENDLESS" in os.environ else 0):
        post_and_wait(ib.WROpcode.RDMA_WRITE)

    data = data_pattern(SIZE, 1)
    if control.server:
        came = wait_for_completion(cq, channel)
        assert came.opcode == ib.WCOpcode.RECV and came.byte_len == SIZE
        assert memory.raw[SIZE:] == data, "Send"
        control.exchange_values(sent=1)
        control.exchange_values(written=1)
        assert memory.raw[:SIZE] == data_pattern(SIZE, 2), "RDMA Write"
        ctypes.memmove(address, (40).to_bytes(8, "little"), 8)
        post_receive()
        control.exchange_values(ready=1)
        came = wait_for_completion(cq, channel)
        assert came.opcode == ib.WCOpcode.RECV_RDMA_WITH_IMM and came.byte_len == 0
        assert came.wc_flags & ib.WCFlags.WITH_IMM
        assert int.from_bytes(memory.raw[:8], "little") == 50, "atomics"
    else:
        memory.raw = data + bytes(SIZE)
        post_and_wait(ib.WROpcode.SEND)
        control.exchange_values(sent=1)
        memory.raw = data_pattern(SIZE, 2) + bytes(SIZE)
        post_and_wait(ib.WROpcode.RDMA_WRITE)
        post_and_wait(ib.WROpcode.RDMA_READ, at=SIZE)
        assert memory.raw[SIZE:] == data_pattern(SIZE, 2), "RDMA Read"
        control.exchange_values(written=1)
        control.exchange_values(ready=1)
        post_and_wait(ib.WROpcode.ATOMIC_FETCH_AND_ADD, 8, compare_add=2)
        assert int.from_bytes(memory.raw[:8], "little") == 40
        post_and_wait(ib.WROpcode.ATOMIC_CMP_AND_SWP, 8, compare_add=42, swap=50)
        assert int.from_bytes(memory.raw[:8], "little") == 42
        post_and_wait(ib.WROpcode.RDMA_WRITE_WITH_IMM, 0, imm_data=77)
    control.exchange_values(connected=1)

    # UD: received data follows a GRH of 40 octets.
    qp = close_at_exit(pd.create_qp(ib.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=ib.QPType.UD)))
    qp.to_init(1, qkey=QKEY)
    qp.modify(ib.QPAttrMask.STATE, qp_state=ib.QPState.RTR)
    qp.modify(ib.QPAttrMask.STATE | ib.QPAttrMask.SQ_PSN, qp_state=ib.QPState.RTS, sq_psn=0)
    other = control.exchange_values(qpn=qp.qp_num, gid=gid.raw.hex(), addr=0, rkey=0)
    post_receive(1000 + GRH)
    control.exchange_values(ready=1)
    if control.server:
        came = wait_for_completion(cq, channel)
        assert came.byte_len == 1000 + GRH and came.wc_flags & ib.WCFlags.GRH
        assert memory.raw[SIZE + GRH : SIZE + GRH + 1000] == data_pattern(1000, 3), "UD"
    else:
        memory.raw = data_pattern(1000, 3) + bytes(2 * SIZE - 1000)
        attr = ib.AHAttr(port_num=1, is_global=True, dgid=bytes.fromhex(other["gid"]), sgid_index=0)
        ah = close_at_exit(pd.create_ah(attr))
        post_and_wait(ib.WROpcode.SEND, 1000, ah=ah, remote_qpn=other["qpn"], remote_qkey=QKEY)
    control.exchange_values(done=1)
print("ibverbs: correct")
