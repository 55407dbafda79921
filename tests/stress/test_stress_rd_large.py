"""The longest messages of RD: 1 GiB with `make stress`, and shorter messages in the suite."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
from harness.verbs_harness import ALL_ACCESS, errno_raised_by

from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    WC,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    WROpcode,
)

GIB = 1 << 30
SIZE = (
    GIB
    if "SIWARP_STRESS_MESSAGES" in os.environ
    else (1 << 20)
    if "SANITIZER" in os.environ
    else (16 << 20)
)
LIMIT = 240.0  # the time limit in seconds for one message


class RdQueuePairs:
    """Two queue pairs with ``SIZE`` octets of memory each; the memory of ``there`` is zeroed."""

    def __init__(self, ctx: Context) -> None:
        self.pd = PD(ctx)
        self.cq = CQ(ctx, 16)
        cap = QPCap(max_send_sge=2)
        init = QPInitAttr(QPType.RD, scq=self.cq, cap=cap)
        self.a, self.b = (QP(self.pd, init) for _ in range(2))
        for qp in (self.a, self.b):
            qp.to_rts(QPAttr(qkey=0x1A26E))
        self.ah = AH(self.pd, self.b.addr)
        self.maps = [mmap.mmap(-1, SIZE) for _ in range(2)]
        self.here, self.there = (MR(self.pd, one, ALL_ACCESS) for one in self.maps)

    def memory_as_array(self, which: int) -> np.ndarray:
        """Return one of the two memories as an array of 64-bit numbers."""
        return np.frombuffer(self.maps[which], np.uint64)

    def post_request(self, opcode: WROpcode) -> None:
        sg = [self.here.sge()]
        self.a.post_send(SendWR(1, opcode, sg=sg, ah=self.ah, remote=self.there.remote()))

    def wait_for_completions(self, n: int) -> list[WC]:
        found: list[WC] = []
        deadline = time.monotonic() + LIMIT
        while len(found) < n:
            found += self.cq.poll(n)
            assert time.monotonic() < deadline, f"{n - len(found)} missing after {LIMIT} s"
        return found


@pytest.fixture
def rd_queue_pairs() -> Iterator[RdQueuePairs]:
    with Context() as ctx:
        yield RdQueuePairs(ctx)


def fill_with_distinct_numbers(numbers: np.ndarray, seed: int) -> None:
    """Fill the array with numbers that are all different."""
    numbers[:] = np.arange(seed, seed + len(numbers), dtype=np.uint64)
    numbers *= np.uint64(0x9E3779B97F4A7C15)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("opcode", [WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_an_rd_message_of_the_maximum_length_arrives_completely(
    rd_queue_pairs: RdQueuePairs, opcode: WROpcode
) -> None:
    if opcode == WROpcode.SEND:
        rd_queue_pairs.b.post_recv(RecvWR(2, sg=[rd_queue_pairs.there.sge()]))
    fill_with_distinct_numbers(
        rd_queue_pairs.memory_as_array(int(opcode == WROpcode.RDMA_READ)), int(opcode)
    )
    rd_queue_pairs.post_request(opcode)
    found = rd_queue_pairs.wait_for_completions(2 if opcode == WROpcode.SEND else 1)
    assert all(wc.ok and wc.byte_len == SIZE for wc in found), found
    assert np.array_equal(rd_queue_pairs.memory_as_array(0), rd_queue_pairs.memory_as_array(1))
    assert rd_queue_pairs.memory_as_array(0)[-1] != 0


def test_an_rd_message_of_one_octet_more_than_1_gib_is_refused(
    rd_queue_pairs: RdQueuePairs,
) -> None:
    for opcode in (WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ):
        sg = [rd_queue_pairs.here.sge(0, 1), rd_queue_pairs.here.sge(0, 1)]
        wr = SendWR(1, opcode, sg=sg, ah=rd_queue_pairs.ah, remote=rd_queue_pairs.there.remote())
        wr.sg[0].length = GIB
        assert errno_raised_by(rd_queue_pairs.a.post_send, wr) == errno.EINVAL
    assert rd_queue_pairs.cq.poll(1) == []
