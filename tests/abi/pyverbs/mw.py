"""Memory windows: a peer can write through a window until it is invalidated."""

from common import create_connected_endpoints, data_pattern, open_device, report_success
from pyverbs.base import inc_rkey
from pyverbs.enums import (
    IBV_ACCESS_REMOTE_WRITE,
    IBV_MW_TYPE_1,
    IBV_MW_TYPE_2,
    IBV_SEND_SIGNALED,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_WITH_INV,
    IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND_WITH_INV,
)
from pyverbs.mr import MW, MWBind, MWBindInfo
from pyverbs.wr import SendWR

SIZE = 2000


def check_write_through_memory_window(a, b, rkey, seed):
    """Write through a memory window of end b, and compare the data."""
    data = data_pattern(SIZE, seed)
    a.mr.write(data, SIZE)
    a.post_request(IBV_WR_RDMA_WRITE, SIZE, to=(b.mr.buf, rkey))
    a.next_completion()
    assert b.mr.read(SIZE, 0) == data


def check_write_through_memory_window_refused(a, b, rkey):
    """Check that a Write with an invalidated rkey fails with a remote access error."""
    a.post_request(IBV_WR_RDMA_WRITE, SIZE, to=(b.mr.buf, rkey))
    a.next_completion(IBV_WC_REM_ACCESS_ERR)


def bind_type_2_window(b, window):
    """Bind a type 2 memory window to the memory of end b; return the rkey of the window."""
    info = MWBindInfo(b.mr, b.mr.buf, SIZE, IBV_ACCESS_REMOTE_WRITE)
    wr = SendWR(opcode=IBV_WR_BIND_MW)
    wr.set_bind_wr(window, info)
    b.qp.post_send(wr)
    b.next_completion()
    return wr.rkey


with open_device() as ctx:
    a, b = create_connected_endpoints(ctx)
    with MW(b.pd, IBV_MW_TYPE_1) as window:
        info = MWBindInfo(b.mr, b.mr.buf, SIZE, IBV_ACCESS_REMOTE_WRITE)
        b.qp.bind_mw(window, MWBind(info, IBV_SEND_SIGNALED))
        b.next_completion()
        check_write_through_memory_window(a, b, window.rkey, 1)
        first = window.rkey
        nothing = MWBindInfo(b.mr, b.mr.buf, 0, 0)
        b.qp.bind_mw(window, MWBind(nothing, IBV_SEND_SIGNALED))
        b.next_completion()
        check_write_through_memory_window_refused(a, b, first)

    a, b = create_connected_endpoints(ctx)
    with MW(b.pd, IBV_MW_TYPE_2) as window:
        key = bind_type_2_window(b, window)
        assert key & 0xFF != 0 or key >> 8 == inc_rkey(key) >> 8
        check_write_through_memory_window(a, b, key, 2)
        local = SendWR(opcode=IBV_WR_LOCAL_INV)
        local.imm_data = key
        b.qp.post_send(local)
        b.next_completion()
        check_write_through_memory_window_refused(a, b, key)

    a, b = create_connected_endpoints(ctx)
    with MW(b.pd, IBV_MW_TYPE_2) as window:
        key = bind_type_2_window(b, window)
        check_write_through_memory_window(a, b, key, 3)
        b.post_receive()
        last = SendWR(opcode=IBV_WR_SEND_WITH_INV, sg=[a.sge(10)], num_sge=1)
        last.imm_data = key
        a.qp.post_send(last)
        a.next_completion()
        assert b.next_completion().wc_flags & IBV_WC_WITH_INV
        check_write_through_memory_window_refused(a, b, key)
report_success("mw")
