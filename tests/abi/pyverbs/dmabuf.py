"""Registration of foreign memory: a dma-buf that the CPU can map, and one that it cannot."""

import os
from pathlib import Path

from common import (
    ALL,
    End,
    check_call_is_refused,
    create_connected_endpoints,
    data_pattern,
    open_device,
    report_success,
)
from pyverbs.device import DM
from pyverbs.dmabuf import DmaBuf
from pyverbs.enums import IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE
from pyverbs.mr import DMMR, DmaBufMR
from pyverbs.pyverbs_error import PyverbsRDMAError

SIZE = 4096

with open_device() as ctx:
    a, b = create_connected_endpoints(ctx)
    # A memfd is mapped like a dma-buf, and contains the data that was written through the region.
    fd = os.memfd_create("dmabuf")
    os.truncate(fd, 3 * SIZE)
    mr = DmaBufMR(b.pd, SIZE, ALL, fd, offset=SIZE)
    assert mr.length == SIZE and mr.offset == SIZE
    a.mr.write(data_pattern(SIZE), SIZE)
    there = (SIZE, mr.rkey)  # pyverbs uses the offset as the address of the region
    a.post_request(IBV_WR_RDMA_WRITE, SIZE, to=there, send_flags=IBV_SEND_SIGNALED)
    a.next_completion()
    a.post_request(IBV_WR_RDMA_READ, SIZE, to=there, send_flags=IBV_SEND_SIGNALED)
    a.next_completion()
    assert os.pread(fd, SIZE, SIZE) == data_pattern(SIZE)
    assert os.pread(fd, SIZE, 0) == os.pread(fd, SIZE, 2 * SIZE) == bytes(SIZE)
    mr.close()

    # A pipe cannot be mapped. The dma-bufs of pyverbs itself need a graphics card.
    end = End(ctx)
    pipes = os.pipe()
    check_call_is_refused(DmaBufMR, end.pd, SIZE, ALL, pipes[0])
    if not Path("/dev/dri").exists():
        for make in (lambda: DmaBuf(SIZE), lambda: DmaBufMR(end.pd, SIZE, ALL, None)):
            try:
                make()
                raise AssertionError("there is a dma-buf without a card")
            except PyverbsRDMAError:
                pass
    # siwarp has no device memory, so the DM object is created without memory.
    check_call_is_refused(DMMR, end.pd, 64, ALL, DM.__new__(DM), 0)
report_success("dmabuf")
