"""The CRC of datagrams on every transmit and receive path: copied, gathered, batched."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest
from harness.errq_harness import CRC, HEAD, QKEY, PlainUDPSocket, crc32c
from harness.uc_harness import PlainUCPeer, UCPair
from harness.verbs_harness import Rig, assert_counter_grows, octet_pattern, poll

from siwarp.inspect import DDPDatagram, UDDatagram
from siwarp.verbs import AH, MR, RecvWR, SendFlag, SendWR, WROpcode

#: Payloads of up to 4,096 octets are copied after their header; longer ones are sent from the
#: application's memory.
SIZES = [0, 1, 4095, 4096, 4097, 20_000, 60_000]


@pytest.fixture
def receiving_socket() -> Iterator[PlainUDPSocket]:
    s = PlainUDPSocket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    yield s
    s.close()


def build_gathered_sends(mr: MR, ah: AH, n: int, size: int, pieces: int) -> list[SendWR]:
    """Return n Sends of consecutive parts of a region, each gathered from this many pieces."""
    cuts = [size * k // pieces for k in range(pieces + 1)]
    lists = [[mr.sge(i * size + a, b - a) for a, b in pairwise(cuts)] for i in range(n)]
    return [SendWR(i, sg=sg, ah=ah, send_flags=SendFlag.SIGNALED) for i, sg in enumerate(lists)]


def expected_crc(octets: bytes, on: bool) -> bytes:
    """Return the CRC field that a datagram of these octets must have, zero if the CRC is off."""
    return crc32c(octets[:-CRC]).to_bytes(CRC, "little") if on else bytes(CRC)


@pytest.mark.clause("DGRAM-LLP-2", "DGRAM-LLP-3")
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no_crc"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("n", [1, 5], ids=["alone", "in a list"])
def test_a_ud_send_has_the_crc_of_all_its_octets(
    rig: Rig, receiving_socket: PlainUDPSocket, n: int, pieces: int, size: int, crc: bool
) -> None:
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, crc=crc, max_send_wr=8, max_send_sge=4)
    mr, ah = (
        rig.reg_mr(bytearray(octet_pattern(n * size or 1))),
        rig.create_ah(receiving_socket.getsockname()),
    )
    qp.post_send(build_gathered_sends(mr, ah, n, size, pieces))
    for i in range(n):
        octets = receiving_socket.recv(1 << 16)
        assert octets[HEAD:-CRC] == octet_pattern(n * size)[i * size : (i + 1) * size]
        assert octets[-CRC:] == expected_crc(octets, crc)
    assert all(wc.ok for wc in poll(cq, n))


@pytest.mark.clause("DGRAM-LLP-2")
@pytest.mark.parametrize("size", [0, 1, 64])
def test_an_inline_ud_send_has_the_crc_of_all_its_octets(
    rig: Rig, receiving_socket: PlainUDPSocket, size: int
) -> None:
    qp = rig.create_ud_qp(max_inline_data=64)
    data = octet_pattern(64)[:size]
    sg = [rig.reg_mr(bytearray(data or b"-")).sge(0, size)]
    qp.post_send(
        SendWR(
            1, sg=sg, ah=rig.create_ah(receiving_socket.getsockname()), send_flags=SendFlag.INLINE
        )
    )
    octets = receiving_socket.recv(1 << 16)
    assert octets[HEAD:-CRC] == data
    assert octets[-CRC:] == expected_crc(octets, True)


@pytest.mark.clause("DGRAM-LLP-3")
@pytest.mark.parametrize("size", [1, 4097, 60_000])
def test_a_queue_pair_without_crc_ignores_the_crc_field(rig: Rig, size: int) -> None:
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, qkey=QKEY, crc=False)
    mr = rig.reg_mr(bytearray(1 << 16))
    qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    segment = DDPDatagram(q_key=QKEY) / octet_pattern(size)
    with PlainUDPSocket() as theirs, assert_counter_grows("drop_crc", 0):
        theirs.sendto(bytes(UDDatagram(segment=segment, crc=0x12345678)), qp.addr)
        assert poll(cq)[0].byte_len == size


# ---- UC


@pytest.mark.clause("DGRAM-LLP-2", "DGRAM-LLP-3")
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no_crc"])
@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 20_000, 100_000])
@pytest.mark.parametrize("what", ["send", "write"])
def test_each_uc_datagram_has_the_crc_of_all_its_octets(
    rig: Rig, what: str, size: int, crc: bool
) -> None:
    peer = PlainUCPeer(rig, crc=crc, size=1 << 17)
    peer.memory.write(octet_pattern(size))
    sg = [peer.memory.sge(0, size)] if size else []
    if what == "send":
        peer.qp.post_send(SendWR(1, sg=sg))
    else:
        remote = peer.memory.remote(0, size)
        peer.qp.post_send(SendWR(1, WROpcode.RDMA_WRITE, sg=sg, remote=remote))
    got = 0
    while True:
        octets = peer.receive_datagram()
        assert octets[-CRC:] == expected_crc(octets, crc)
        head = 12 + (18 if what == "send" else 14)
        got += len(octets) - head - CRC
        if octets[12] & 0x40:  # the L bit: the last segment of a message
            break
    assert got == size
    peer.close()


def test_uc_sends_posted_as_a_list_arrive_whole(rig: Rig) -> None:
    ends = UCPair(rig, max_send_wr=64, max_recv_wr=64)
    sizes = [100] * 10 + [4096, 4097, 50_000]
    for i, size in enumerate(sizes):
        ends.post_receive(i, size, 0)
    ends.out.write(octet_pattern(50_000))
    with assert_counter_grows("drop_crc", 0):
        ends.a.post_send([SendWR(i, sg=[ends.out.sge(0, n)]) for i, n in enumerate(sizes)])
        assert [wc.byte_len for wc in ends.poll_receives(len(sizes))] == sizes
