"""UD queue pairs: completions after a close, header fields, and order of queued messages."""

from __future__ import annotations

import socket
import struct

import pytest
from harness.verbs_harness import (
    Pair,
    Rig,
    poll,
)

from siwarp.verbs import (
    SendWR,
)


def test_closing_one_of_two_queue_pairs_with_the_same_number_keeps_the_others_completions(
    rig: Rig,
) -> None:
    cq = rig.create_cq()
    a = rig.create_ud_qp(cq, addr=("127.0.0.1", 0))
    b = rig.create_ud_qp(cq, addr=("127.0.0.2", a.qp_num))
    assert a.qp_num == b.qp_num
    a.post_send(SendWR(1, ah=rig.create_ah(b)))
    b.post_send(SendWR(2, ah=rig.create_ah(a)))
    a.close()
    assert [w.wr_id for w in poll(cq)] == [2]


def test_a_ud_datagram_has_the_remote_q_key_and_the_queue_pairs_source_address(rig: Rig) -> None:
    qp = rig.create_ud_qp(qkey=3)
    mr = rig.reg_mr(bytearray(b"payload"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
        raw.bind(("127.0.0.1", 0))
        raw.settimeout(5)
        qp.post_send(
            SendWR(1, sg=[mr.sge()], ah=rig.create_ah(raw.getsockname()), remote_qkey=0x01020304)
        )
        octets, source = raw.recvfrom(100)
    assert source == qp.addr
    assert octets[18:25] == b"payload" and len(octets) == 18 + 7 + 4
    assert struct.unpack_from("!I", octets, 2) == (0x01020304,)


@pytest.mark.clause("DGRAM-UD-11")
def test_100_ud_messages_are_received_completely_and_in_order(ud_pair: Pair) -> None:
    for i in range(100):
        ud_pair.post_receive(wr_id=i, length=4, offset=4 * i)
    for i in range(100):
        ud_pair.out.write(struct.pack("!I", i), offset=4 * i)
        ud_pair.a.post_send(
            SendWR(i, sg=[ud_pair.out.sge(4 * i, 4)], ah=ud_pair.to_b, send_flags=0)
        )
    done = poll(ud_pair.rcq, 100)
    assert [w.wr_id for w in done] == list(range(100))
    assert struct.unpack("!100I", ud_pair.into.read(400)) == tuple(range(100))
