"""Extended queue pairs: every request builder of RC and UD, with checked data."""

import socket
import struct

from common import (
    QKEY,
    End,
    check_call_is_refused,
    data_pattern,
    loopback_address_vector,
    open_device,
    report_success,
)
from pyverbs.addr import AH
from pyverbs.base import inc_rkey
from pyverbs.enums import (
    IBV_ACCESS_REMOTE_WRITE,
    IBV_MW_TYPE_2,
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV,
    IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV,
    IBV_QP_EX_WITH_TSO,
    IBV_QPT_UD,
    IBV_SEND_SIGNALED,
    IBV_WC_WITH_INV,
)
from pyverbs.mr import MW, MWBindInfo
from pyverbs.qp import DataBuffer

SIZE, GRH = 1200, 40
OF_UD = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM
OF_RC = (
    OF_UD
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
)


def build_request_post_and_wait(end, name, *args, sge=None):
    """Build a request with a wr_ function, post the request, and wait for its completion."""
    end.qp.wr_start()
    end.qp.wr_id, end.qp.wr_flags = 31, IBV_SEND_SIGNALED
    getattr(end.qp, name)(*args)
    if sge:
        end.qp.wr_set_sge(sge)
    end.qp.wr_complete()
    assert end.next_completion().wr_id == 31


with open_device() as ctx:
    a, b = End(ctx, ops=OF_RC), End(ctx, ops=OF_RC)
    a.connect(ctx, b)
    b.connect(ctx, a)
    there = b.mr.rkey, b.mr.buf

    def fill_memory(seed):
        """Fill the memory of end a with new data; return the data."""
        data = data_pattern(SIZE, seed)
        a.mr.write(data, SIZE)
        return data

    data = fill_memory(1)
    b.post_receive()
    build_request_post_and_wait(a, "wr_send", sge=a.sge(SIZE))
    assert b.next_completion().byte_len == SIZE and b.mr.read(SIZE, 0) == data
    data = fill_memory(2)
    b.post_receive()
    build_request_post_and_wait(a, "wr_send_imm", socket.htonl(19), sge=a.sge(SIZE))
    assert b.next_completion().imm_data == 19 and b.mr.read(SIZE, 0) == data
    data = fill_memory(3)
    build_request_post_and_wait(a, "wr_rdma_write", *there, sge=a.sge(SIZE))
    assert b.mr.read(SIZE, 0) == data
    data = fill_memory(4)
    b.post_receive()
    build_request_post_and_wait(a, "wr_rdma_write_imm", *there, socket.htonl(20), sge=a.sge(SIZE))
    assert b.next_completion().imm_data == 20 and b.mr.read(SIZE, 0) == data
    a.mr.write(bytes(SIZE), SIZE)
    build_request_post_and_wait(a, "wr_rdma_read", *there, sge=a.sge(SIZE))
    assert a.mr.read(SIZE, 0) == data
    b.mr.write(struct.pack("=Q", 40), 8)
    build_request_post_and_wait(a, "wr_atomic_fetch_add", *there, 2, sge=a.sge(8))
    assert struct.unpack("=Q", a.mr.read(8, 0)) == (40,)
    build_request_post_and_wait(a, "wr_atomic_cmp_swp", *there, 42, 9, sge=a.sge(8))
    assert struct.unpack("=Q", a.mr.read(8, 0)) == (42,)
    assert struct.unpack("=Q", b.mr.read(8, 0)) == (9,)

    # Several requests are posted together: gathered, inline, inline list. Aborted ones are not
    # posted.
    data = fill_memory(5)
    a.qp.wr_start()
    a.qp.wr_id, a.qp.wr_flags = 1, 0
    a.qp.wr_rdma_write(*there)
    a.qp.wr_set_sge_list(2, [a.sge(100), a.sge(SIZE - 100, 100)])
    a.qp.wr_id = 2
    a.qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 2000)
    a.qp.wr_set_inline_data(a.mr.buf + 200, 11)
    a.qp.wr_id, a.qp.wr_flags = 3, IBV_SEND_SIGNALED
    a.qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 3000)
    a.qp.wr_set_inline_data_list(2, [DataBuffer(a.mr.buf, 10), DataBuffer(a.mr.buf + 50, 20)])
    a.qp.wr_complete()
    assert a.next_completion().wr_id == 3
    assert b.mr.read(SIZE, 0) == data and b.mr.read(11, 2000) == data[200:211]
    assert b.mr.read(30, 3000) == data[:10] + data[50:70]
    a.qp.wr_start()
    a.qp.wr_rdma_write(*there)
    a.qp.wr_set_sge(a.sge(SIZE, 2000))
    a.qp.wr_abort()
    assert a.cq.poll(1)[0] == 0 and b.mr.read(SIZE, 0) == data

    # A memory window is bound and used; then the peer or the owner invalidates the window.
    for by_peer in (True, False):
        window = MW(b.pd, IBV_MW_TYPE_2)
        key = inc_rkey(window.rkey)
        info = MWBindInfo(b.mr, b.mr.buf, SIZE, IBV_ACCESS_REMOTE_WRITE)
        build_request_post_and_wait(b, "wr_bind_mw", window, key, info)
        data = fill_memory(6 + by_peer)
        build_request_post_and_wait(a, "wr_rdma_write", key, b.mr.buf, sge=a.sge(SIZE))
        assert b.mr.read(SIZE, 0) == data
        if by_peer:
            b.post_receive()
            build_request_post_and_wait(a, "wr_send_inv", key, sge=a.sge(1))
            assert b.next_completion().wc_flags & IBV_WC_WITH_INV
        else:
            build_request_post_and_wait(b, "wr_local_inv", key)
        window.close()

    a, b = End(ctx, IBV_QPT_UD, ops=OF_UD), End(ctx, IBV_QPT_UD, ops=OF_UD)
    ah = AH(a.pd, attr=loopback_address_vector(ctx))
    for imm in (None, 88):
        data = fill_memory(9)
        b.post_receive()
        a.qp.wr_start()
        a.qp.wr_id, a.qp.wr_flags = 7, IBV_SEND_SIGNALED
        a.qp.wr_send() if imm is None else a.qp.wr_send_imm(socket.htonl(imm))
        a.qp.wr_set_ud_addr(ah, b.qp.qp_num, QKEY)
        a.qp.wr_set_sge(a.sge(SIZE))
        a.qp.wr_complete()
        a.next_completion()
        came = b.next_completion()
        assert came.byte_len == SIZE + GRH and b.mr.read(SIZE, GRH) == data
        assert imm is None or came.imm_data == imm
    check_call_is_refused(End, ctx, IBV_QPT_UD, ops=OF_UD | IBV_QP_EX_WITH_TSO)
    check_call_is_refused(End, ctx, IBV_QPT_UD, ops=OF_RC)
report_success("qp_ex")
