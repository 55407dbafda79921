"""The CRC of multicast datagrams and of Write-Records on every transmit and receive path."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest
from harness.errq_harness import PlainUDPSocket
from harness.verbs_harness import MCAST_PORT, Rig, octet_pattern, poll
from unit.qp.test_qp_crc import CRC, HEAD, SIZES, build_gathered_sends, expected_crc

from siwarp.verbs import SendFlag, SendWR, WROpcode

GROUP = "239.192.7.93"
#: Octets of the LLP, tagged DDP and RDMAP headers of a Write-Record segment.
RECORD_HEAD = 12 + 14 + 20


@pytest.fixture
def mcast_member_socket() -> Iterator[socket.socket]:
    """Provide a plain UDP socket that is a member of the multicast group GROUP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        s.bind((GROUP, MCAST_PORT))
        member = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        s.settimeout(10)
        yield s


@pytest.mark.clause("DGRAM-LLP-2", "DGRAM-LLP-3")
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no_crc"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("n", [1, 5], ids=["alone", "in a list"])
def test_a_multicast_datagram_has_the_crc_of_all_its_octets(
    rig: Rig, mcast_member_socket: socket.socket, n: int, pieces: int, size: int, crc: bool
) -> None:
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, crc=crc, max_send_wr=8, max_send_sge=4)
    mr, ah = rig.reg_mr(bytearray(octet_pattern(n * size or 1))), rig.create_ah((GROUP, 0))
    qp.post_send(build_gathered_sends(mr, ah, n, size, pieces))
    for i in range(n):
        octets = mcast_member_socket.recv(1 << 16)
        assert octets[HEAD:-CRC] == octet_pattern(n * size)[i * size : (i + 1) * size]
        assert octets[-CRC:] == expected_crc(octets, crc)
    assert all(wc.ok for wc in poll(cq, n))


# ---- Write-Record


@pytest.mark.clause("DGRAM-LLP-2", "DGRAM-LLP-3")
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no_crc"])
@pytest.mark.parametrize("size", [*SIZES, 200_000])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("n", [1, 5], ids=["alone", "in a list"])
def test_each_datagram_of_a_write_record_has_the_crc_of_all_its_octets(
    rig: Rig, n: int, pieces: int, size: int, crc: bool
) -> None:
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, crc=crc, max_send_wr=8, max_send_sge=4)
    mr, data = rig.reg_mr(bytearray(octet_pattern(size or 1))), octet_pattern(size)
    cuts = [size * k // pieces for k in range(pieces + 1)]
    sg = [mr.sge(a, b - a) for a, b in pairwise(cuts)]
    with PlainUDPSocket() as sink:
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        ah, remote = rig.create_ah(sink.getsockname()), mr.remote(0, size)
        record = WROpcode.RDMA_WRITE_RECORD
        qp.post_send(
            [
                SendWR(
                    i, record, sg=sg, ah=ah, remote=remote, send_flags=SendFlag.SIGNALED
                )
                for i in range(n)
            ]
        )  # fmt: skip
        for _ in range(n):
            got = b""
            while True:
                octets = sink.recv(1 << 16)
                assert octets[-CRC:] == expected_crc(octets, crc)
                got += octets[RECORD_HEAD:-CRC]
                if octets[12] & 0x40:  # the L bit: the last segment of a message
                    break
            assert got == data
    assert all(wc.ok for wc in poll(cq, n))
