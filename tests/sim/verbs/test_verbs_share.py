"""Several UD queue pairs on one socket: the recipient of a message, and separate properties."""

from __future__ import annotations

import net
import pytest
from harness.share_harness import QKEY, QPsOnOneSocket, send_message
from harness.verbs_harness import Rig, assert_counter_grows, assert_no_completion, poll

from siwarp.inspect import DDPDatagram, UDDatagram, ud_qn


def build_datagram(qn: int, qkey: int) -> bytes:
    return bytes(UDDatagram(segment=DDPDatagram(q_key=qkey, qn=qn) / b"abc"))


@pytest.mark.clause("DGRAM-SHARE-4")
def test_a_datagram_to_an_unused_queue_pair_index_is_dropped_and_counted(rig: Rig) -> None:
    b = QPsOnOneSocket(rig, 2)
    for i in (0, 1):
        b.post_receive(i)
    b.qps[1].close()
    with net.open_udp_socket() as peer:
        for index in (1, 2, 255):
            with assert_counter_grows("drop_qn", 1):
                peer.sendto(build_datagram(ud_qn(0, index), QKEY + index), b.qps[0].addr)
                assert_no_completion(b.cqs[0])
        peer.sendto(build_datagram(ud_qn(0, 0), QKEY), b.qps[0].addr)
        assert poll(b.cqs[0])[0].ok


@pytest.mark.clause("DGRAM-SHARE-6")
def test_each_queue_pair_of_a_shared_socket_checks_its_own_q_key_and_receives(rig: Rig) -> None:
    b = QPsOnOneSocket(rig, 2)
    b.post_receive(0)
    with assert_counter_grows("drop_qkey", 1):
        send_message(rig, b.qps[1], b.qps[0], b"x", QKEY + 1)
        assert_no_completion(b.cqs[0])
    with assert_counter_grows("drop_no_buffer", 1):
        send_message(rig, b.qps[0], b.qps[1], b"x", QKEY + 1)
        assert_no_completion(b.cqs[1])
    assert [d.drops for d in b.qps[1].drops()] == [1]
    assert b.qps[0].drops() == []
    send_message(rig, b.qps[1], b.qps[0], b"x", QKEY)
    assert poll(b.cqs[0])[0].ok
