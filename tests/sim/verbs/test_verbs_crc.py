"""The CRC of datagrams on each send and receive path: copied, gathered, in batches."""

from __future__ import annotations

import pytest
from harness.errq_harness import QKEY, WHERE, PlainUDPSocket, build_datagram, corrupt_one_bit
from harness.uc_harness import PlainUCPeer
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    octet_pattern,
    poll,
)

from siwarp.verbs import RecvWR


@pytest.mark.clause("DGRAM-LLP-4", "DGRAM-ERR-2")
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("size", [1, 4096, 4097, 60_000])
def test_a_ud_message_with_one_wrong_bit_is_dropped_and_not_placed(
    rig: Rig, where: str, size: int
) -> None:
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, qkey=QKEY)
    mr = rig.reg_mr(bytearray(1 << 16))
    qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    with PlainUDPSocket() as theirs, assert_counter_grows("drop_crc", 1):
        theirs.sendto(corrupt_one_bit(build_datagram(octet_pattern(size)), where), qp.addr)
        assert_no_completion(cq)
        assert bytes(mr.view) == bytes(1 << 16)
        theirs.sendto(build_datagram(octet_pattern(size, 2)), qp.addr)
        assert poll(cq)[0].byte_len == size
        assert mr.read(size) == octet_pattern(size, 2)


@pytest.mark.clause("DGRAM-LLP-4", "DGRAM-UC-13")
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("size", [64, 5000, 30_000])
@pytest.mark.parametrize("what", ["send", "write"])
def test_a_uc_datagram_with_one_wrong_bit_is_dropped_and_not_placed(
    rig: Rig, what: str, size: int, where: str
) -> None:
    peer = PlainUCPeer(rig)
    peer.post_receive(1)
    before = bytes(peer.memory.view)
    with assert_counter_grows("drop_crc", 1):
        if what == "send":
            (good,) = peer.build_send(octet_pattern(size), size=size)
        else:
            (good,) = peer.build_write(octet_pattern(size), peer.memory.rkey, 0, size=size)
        peer.send_datagrams(corrupt_one_bit(good, where))
        assert_no_completion(peer.cq)
        assert bytes(peer.memory.view) == before
    peer.send_datagrams(good)
    if what == "write":
        peer.send_datagrams(*peer.build_send(b"behind it"))
    assert peer.poll_completions()[0].ok
    assert bytes(peer.memory.view) != before
    peer.close()
