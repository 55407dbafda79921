"""The CRC of multicast messages and Write-Records, on each send and receive path."""

from __future__ import annotations

import pytest
from harness.errq_harness import QKEY, WHERE, PlainUDPSocket, build_datagram, corrupt_one_bit
from harness.record_harness import WriteRecordTarget
from harness.verbs_harness import (
    MCAST_PORT,
    Rig,
    assert_counter_grows,
    assert_no_completion,
    octet_pattern,
    poll,
)

from siwarp.verbs import RecvWR

GROUP = "239.192.7.93"


@pytest.mark.clause("DGRAM-LLP-4", "DGRAM-MCAST-3")
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("size", [1, 4096, 4097, 60_000])
def test_each_multicast_member_drops_a_message_with_one_wrong_bit(
    rig: Rig, where: str, size: int
) -> None:
    cqs = [rig.create_cq() for _ in range(2)]
    mrs = [rig.reg_mr(bytearray(1 << 16)) for _ in cqs]
    qps = [rig.create_ud_qp(cq, qkey=QKEY) for cq in cqs]
    for qp, mr in zip(qps, mrs, strict=True):
        qp.attach_mcast(GROUP)
        qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    with PlainUDPSocket() as theirs, assert_counter_grows("drop_crc", 2):
        theirs.sendto(
            corrupt_one_bit(build_datagram(octet_pattern(size)), where), (GROUP, MCAST_PORT)
        )
        for cq, mr in zip(cqs, mrs, strict=True):
            assert_no_completion(cq)
            assert bytes(mr.view) == bytes(1 << 16)
        # errors() takes the progress lock, which orders the preceding reads of memory before the
        # placement of the next datagram by the device's thread.
        assert all(qp.errors() == [] for qp in qps)
        theirs.sendto(build_datagram(octet_pattern(size, 2)), (GROUP, MCAST_PORT))
        for cq, mr in zip(cqs, mrs, strict=True):
            assert poll(cq)[0].byte_len == size
            assert mr.read(size) == octet_pattern(size, 2)


@pytest.mark.clause("DGRAM-LLP-4")
@pytest.mark.parametrize("where", [*WHERE, "RDMAP's head"])
@pytest.mark.parametrize("size", [64, 4097, 60_000])
def test_a_write_record_datagram_with_one_wrong_bit_is_dropped_and_not_placed(
    rig: Rig, where: str, size: int
) -> None:
    target, data = WriteRecordTarget(rig), octet_pattern(size)
    (good,) = target.build_message(data, 0, 5, size)
    if where == "RDMAP's head":
        wrong = good[:30] + bytes([good[30] ^ 1]) + good[31:]
    else:
        wrong = corrupt_one_bit(good, where)
    with PlainUDPSocket() as who:
        with assert_counter_grows("drop_crc", 1):
            who.sendto(wrong, target.qp.addr)
            assert_no_completion(target.cq)
        assert bytes(target.memory.view) == bytes(1 << 16)
        assert target.qp.errors() == []  # errors() takes the progress lock
        who.sendto(good, target.qp.addr)
        ((_, record),) = target.poll_write_records()
        assert record.whole and target.memory.read(size) == data
        assert who.has_empty_buffer() and target.qp.errors() == []
