"""The CRC of datagrams on each send and receive path: copied, gathered, in batches."""

from __future__ import annotations

import pytest
from harness.errq_harness import QKEY, WHERE, Stranger, datagram, spoilt
from harness.uc_harness import Peer
from harness.verbs_harness import Rig, counted, nothing, pattern, poll

from siwarp.verbs import RecvWR


@pytest.mark.clause("DGRAM-LLP-4", "DGRAM-ERR-2")
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("size", [1, 4096, 4097, 60_000])
def test_a_message_with_one_wrong_bit_is_dropped_and_nothing_of_it_placed(
    rig: Rig, where: str, size: int
) -> None:
    cq = rig.cq()
    qp = rig.ud(cq, qkey=QKEY)
    mr = rig.mr(bytearray(1 << 16))
    qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    with Stranger() as theirs, counted("drop_crc", 1):
        theirs.sendto(spoilt(datagram(pattern(size)), where), qp.addr)
        nothing(cq)
        assert bytes(mr.view) == bytes(1 << 16)
        theirs.sendto(datagram(pattern(size, 2)), qp.addr)
        assert poll(cq)[0].byte_len == size
        assert mr.read(size) == pattern(size, 2)


@pytest.mark.clause("DGRAM-LLP-4", "DGRAM-UC-13")
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("size", [64, 5000, 30_000])
@pytest.mark.parametrize("what", ["send", "write"])
def test_a_datagram_of_uc_with_one_wrong_bit_is_dropped_and_nothing_of_it_placed(
    rig: Rig, what: str, size: int, where: str
) -> None:
    peer = Peer(rig)
    peer.recv(1)
    before = bytes(peer.memory.view)
    with counted("drop_crc", 1):
        if what == "send":
            (good,) = peer.message(pattern(size), size=size)
        else:
            (good,) = peer.writes(pattern(size), peer.memory.rkey, 0, size=size)
        peer.put(spoilt(good, where))
        nothing(peer.cq)
        assert bytes(peer.memory.view) == before
    peer.put(good)
    if what == "write":
        peer.put(*peer.message(b"behind it"))
    assert peer.received()[0].ok
    assert bytes(peer.memory.view) != before
    peer.close()
