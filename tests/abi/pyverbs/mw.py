"""Memory windows: a peer can write through a window until it is invalidated."""

from common import connected, device, done, pattern
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


def written(a, b, rkey, seed):
    """Write through a window on b's complete memory, and compare the data."""
    data = pattern(SIZE, seed)
    a.mr.write(data, SIZE)
    a.post(IBV_WR_RDMA_WRITE, SIZE, to=(b.mr.buf, rkey))
    a.completion()
    assert b.mr.read(SIZE, 0) == data


def refused_to(a, b, rkey):
    """Check that a Write with an rkey fails with a remote access error."""
    a.post(IBV_WR_RDMA_WRITE, SIZE, to=(b.mr.buf, rkey))
    a.completion(IBV_WC_REM_ACCESS_ERR)


def bound_2(b, window):
    """Bind a type 2 window to b's memory; return its rkey."""
    info = MWBindInfo(b.mr, b.mr.buf, SIZE, IBV_ACCESS_REMOTE_WRITE)
    wr = SendWR(opcode=IBV_WR_BIND_MW)
    wr.set_bind_wr(window, info)
    b.qp.post_send(wr)
    b.completion()
    return wr.rkey


with device() as ctx:
    a, b = connected(ctx)
    with MW(b.pd, IBV_MW_TYPE_1) as window:
        info = MWBindInfo(b.mr, b.mr.buf, SIZE, IBV_ACCESS_REMOTE_WRITE)
        b.qp.bind_mw(window, MWBind(info, IBV_SEND_SIGNALED))
        b.completion()
        written(a, b, window.rkey, 1)
        first = window.rkey
        nothing = MWBindInfo(b.mr, b.mr.buf, 0, 0)
        b.qp.bind_mw(window, MWBind(nothing, IBV_SEND_SIGNALED))
        b.completion()
        refused_to(a, b, first)

    a, b = connected(ctx)
    with MW(b.pd, IBV_MW_TYPE_2) as window:
        key = bound_2(b, window)
        assert key & 0xFF != 0 or key >> 8 == inc_rkey(key) >> 8
        written(a, b, key, 2)
        local = SendWR(opcode=IBV_WR_LOCAL_INV)
        local.imm_data = key
        b.qp.post_send(local)
        b.completion()
        refused_to(a, b, key)

    a, b = connected(ctx)
    with MW(b.pd, IBV_MW_TYPE_2) as window:
        key = bound_2(b, window)
        written(a, b, key, 3)
        b.receive()
        last = SendWR(opcode=IBV_WR_SEND_WITH_INV, sg=[a.sge(10)], num_sge=1)
        last.imm_data = key
        a.qp.post_send(last)
        a.completion()
        assert b.completion().wc_flags & IBV_WC_WITH_INV
        refused_to(a, b, key)
done("mw")
