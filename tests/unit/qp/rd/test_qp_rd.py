"""RD queue pairs: Send, Write, Read and atomics to any number of peers, order and errors.

This file's tests use real sockets; others are in tests/sim/rd/test_verbs_rd.py.
"""

from __future__ import annotations

import pytest
from harness.rd_harness import RDEnd
from harness.verbs_harness import Rig, octet_pattern

from siwarp.verbs import (
    WCOpcode,
    WROpcode,
)

SIZES = [0, 1, 3, 64, 1023, 1024, 1025, 1400, 1500, 4096, 9000, 65507, 65536, 200_000]


# ---- Send


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no_crc"])
def test_rd_messages_of_every_size_arrive_whole_with_their_source(
    rig: Rig, host: str, crc: bool
) -> None:
    a, b = (RDEnd(rig, 1 << 18, host=host, crc=crc) for _ in range(2))
    for i, size in enumerate(SIZES):
        data = octet_pattern(size, i)
        b.into.view[:] = b"\xee" * b.size
        b.post_receive(1000 + i)
        a.send(b, data, 2000 + i)
        (got,) = b.poll_receives()
        assert (got.wr_id, got.ok, got.opcode) == (1000 + i, True, WCOpcode.RECV)
        assert (got.byte_len, got.src_qp) == (size, a.qp.qp_num)
        assert got.source == a.qp.addr
        assert b.into.read(size) == data
        assert set(b.into.read(256, size)) <= {0xEE}
        (sent,) = a.poll_sends()
        assert (sent.wr_id, sent.ok, sent.opcode) == (2000 + i, True, WCOpcode.SEND)


@pytest.mark.clause("DGRAM-RDV-1")
def test_one_rd_queue_pair_sends_to_eight_peers_in_order_per_peer(rig: Rig) -> None:
    a, others = RDEnd(rig, depth=256), [RDEnd(rig) for _ in range(8)]
    for other in others:
        for i in range(16):
            other.post_receive(i, 64, 64 * i)
    for i in range(16):
        for k, other in enumerate(others):
            a.send(other, bytes([k, i]) * 4, 100 * k + i, offset=64 * (16 * k + i))
    done = [w.wr_id for w in a.poll_sends(128)]
    for k in range(8):
        assert [i for i in done if i // 100 == k] == [100 * k + i for i in range(16)]
    for k, other in enumerate(others):
        assert [w.wr_id for w in other.poll_receives(16)] == list(range(16))
        assert [other.into.read(8, 64 * i) for i in range(16)] == [
            bytes([k, i]) * 4 for i in range(16)
        ]


# ---- Write, Read, atomics


@pytest.mark.parametrize("size", [0, 1, 1500, 65536, 1 << 20])
def test_the_data_of_an_rd_write_is_at_the_peer_when_the_write_completes(
    rig: Rig, size: int
) -> None:
    a, b = RDEnd(rig, 1 << 20), RDEnd(rig, 1 << 20)
    a.out.view[:size] = octet_pattern(size)
    a.post_rdma(b, WROpcode.RDMA_WRITE, size)
    (sent,) = a.poll_sends()
    assert (sent.ok, sent.opcode) == (True, WCOpcode.RDMA_WRITE)
    assert b.into.read(size) == octet_pattern(size)


@pytest.mark.parametrize("size", [0, 1, 1500, 65536, 1 << 20])
def test_an_rd_read_returns_the_content_of_the_peers_memory(rig: Rig, size: int) -> None:
    a, b = RDEnd(rig, 1 << 20), RDEnd(rig, 1 << 20)
    b.into.view[:size] = octet_pattern(size)
    a.post_rdma(b, WROpcode.RDMA_READ, size)
    (done,) = a.poll_sends()
    assert (done.ok, done.opcode, done.byte_len) == (True, WCOpcode.RDMA_READ, size)
    assert a.out.read(size) == octet_pattern(size)


def test_fetch_adds_of_several_rd_peers_lose_no_update(rig: Rig) -> None:
    target, peers = RDEnd(rig), [RDEnd(rig) for _ in range(3)]
    for i in range(20):
        for peer in peers:
            peer.post_rdma(target, WROpcode.ATOMIC_FETCH_AND_ADD, 8, i, compare_add=i)
    for peer in peers:
        assert all(w.ok for w in peer.poll_sends(20))
    assert int.from_bytes(target.into.read(8), "little") == 3 * sum(range(20))
    target.into.view[:8] = (5).to_bytes(8, "little")
    peers[0].post_rdma(target, WROpcode.ATOMIC_CMP_AND_SWP, 8, compare_add=5, swap=9)
    assert peers[0].poll_sends()[0].opcode == WCOpcode.COMP_SWAP
    assert int.from_bytes(target.into.read(8), "little") == 9
