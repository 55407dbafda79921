"""RC: Send, immediate data, RDMA Write and Read, atomics."""

import struct

from common import create_connected_endpoints, open_device, report_success
from pyverbs.enums import (
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
)
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 3000

with open_device() as ctx:
    a, b = create_connected_endpoints(ctx)
    data = bytes(i * 7 & 0xFF for i in range(SIZE))

    def post_and_wait(opcode, size=SIZE, imm=0, atomic=None):
        """Post a request on end a; return its completion."""
        wr = SendWR(sg=[SGE(a.mr.buf, size, a.mr.lkey)], num_sge=1, opcode=opcode, imm_data=imm)
        if atomic:
            wr.set_wr_atomic(b.mr.rkey, b.mr.buf, *atomic)
        elif opcode != IBV_WR_SEND:
            wr.set_wr_rdma(b.mr.rkey, b.mr.buf)
        a.qp.post_send(wr)
        return a.next_completion()

    def post_receive():
        """Post a receive on end b."""
        b.qp.post_recv(RecvWR(sg=[SGE(b.mr.buf, 4096, b.mr.lkey)], num_sge=1))

    a.mr.write(data, SIZE)
    post_receive()
    post_and_wait(IBV_WR_SEND)
    assert b.next_completion().byte_len == SIZE
    assert b.mr.read(SIZE, 0) == data

    b.mr.write(bytes(SIZE), SIZE)
    post_and_wait(IBV_WR_RDMA_WRITE)
    assert b.mr.read(SIZE, 0) == data

    post_receive()
    post_and_wait(IBV_WR_RDMA_WRITE_WITH_IMM, imm=77)
    came = b.next_completion()
    assert (came.imm_data, came.byte_len) == (77, SIZE), came

    a.mr.write(bytes(SIZE), SIZE)
    post_and_wait(IBV_WR_RDMA_READ)
    assert a.mr.read(SIZE, 0) == data

    b.mr.write(struct.pack("=Q", 40), 8)
    post_and_wait(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, atomic=(2,))
    assert struct.unpack("=Q", a.mr.read(8, 0)) == (40,)
    post_and_wait(IBV_WR_ATOMIC_CMP_AND_SWP, 8, atomic=(42, 9))
    assert struct.unpack("=Q", a.mr.read(8, 0)) == (42,)
    assert struct.unpack("=Q", b.mr.read(8, 0)) == (9,)
report_success("rc")
