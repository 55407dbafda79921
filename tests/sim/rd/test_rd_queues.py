"""RD: a Send that waits for a receive does not delay responses."""

from __future__ import annotations

import pytest
from harness.rd_harness import RDEnd
from harness.rd_stranger import EPOCH, scripted_peer
from harness.verbs_harness import ALL_ACCESS, Rig, assert_no_completion, octet_pattern
from unit.llp.llp_harness import temporary_setting

from siwarp.inspect import DDPTagged, Opcode, Queue
from siwarp.inspect.rd import RDFlag, RDType
from siwarp.verbs import RecvWR, WROpcode

WAITING_SIZES = {"100 octets": 100, "33 MB": 33_000_000, "more than is stored": 5 << 20}


@pytest.mark.clause("DGRAM-RD-37", "DGRAM-RDV-5", "DGRAM-RDV-17")
@pytest.mark.parametrize("what", WAITING_SIZES)
@pytest.mark.parametrize("asked", ["read", "atomic"])
def test_a_send_without_a_receive_does_not_delay_responses_of_its_sender(
    rig: Rig, what: str, asked: str
) -> None:
    held = WAITING_SIZES[what]
    with temporary_setting(
        "rd_total_window", 4 << 20 if what == "more than is stored" else 64 << 20
    ):
        a, b = RDEnd(rig, max(held, 1 << 16)), RDEnd(rig, 1 << 16)
    data = octet_pattern(held)
    a.send(b, data)
    # Because `b` has no receive, the first part of the Send waits at `b` and the rest waits at `a`.
    assert_no_completion(a.scq, 0.1)
    a.into.view[:4096] = octet_pattern(4096)
    for i in range(3):
        if asked == "read":
            b.post_rdma(a, WROpcode.RDMA_READ, 4096, i)
        else:
            b.post_rdma(a, WROpcode.ATOMIC_FETCH_AND_ADD, 8, i, compare_add=1)
        assert [(w.wr_id, w.ok) for w in b.poll_sends()] == [(i, True)]
    if asked == "read":
        assert b.out.read(4096) == octet_pattern(4096)
    assert_no_completion(a.scq)
    into = rig.reg_mr(held, ALL_ACCESS)
    b.qp.post_recv(RecvWR(1, sg=[into.sge(0, held)]))
    assert a.poll_sends()[0].ok and b.poll_receives()[0].byte_len == held
    assert into.read(held) == data


@pytest.mark.clause("DGRAM-RD-37", "DGRAM-RDV-17")
def test_a_send_without_a_receive_does_not_delay_an_error_message(rig: Rig) -> None:
    a, b = RDEnd(rig), RDEnd(rig)
    a.send(b, b"held")
    assert_no_completion(a.scq, 0.05)
    remote = a.into.remote()
    bad = type(remote)(remote.addr, remote.length, remote.rkey ^ 0x5555)
    b.post_rdma(a, WROpcode.RDMA_READ, 4, 1, remote=bad)
    (failed,) = b.poll_sends()
    assert failed.wr_id == 1 and not failed.ok
    assert_no_completion(a.scq)


WRONG_SPACE_SEGMENTS = {
    "a Send among the responses": (True, {"opcode": Opcode.SEND, "qn": Queue.SEND}),
    "a Read Request among the responses": (
        True,
        {"opcode": Opcode.RDMA_READ_REQUEST, "qn": Queue.READ_REQUEST},
    ),
    "an error message among the requests": (
        False,
        {"opcode": Opcode.TERMINATE, "qn": Queue.TERMINATE},
    ),
}


@pytest.mark.clause("DGRAM-RD-39")
@pytest.mark.parametrize("what", WRONG_SPACE_SEGMENTS)
def test_an_untagged_segment_in_the_wrong_psn_space_is_refused(rig: Rig, what: str) -> None:
    response, head = WRONG_SPACE_SEGMENTS[what]
    a = RDEnd(rig)
    a.post_receive()
    with scripted_peer(a) as s:
        octets = s.build_untagged(octets=b"wrong", **head)
        flags = int(RDFlag.RESPONSE) if response else 0
        s.send_datagram(RDType.DATA, psn=EPOCH, rd_flags=flags, body=octets)
        s.psn[response] += 1
        if head["qn"] != Queue.TERMINATE:  # an error message is not answered with an error message
            told = s.receive_terminate()
            assert (told.layer, told.etype, told.code) == (1, 2, 1)
        s.send_and_wait(s.build_untagged(Opcode.SEND, b"right"))
        assert a.poll_receives()[0].byte_len == 5


@pytest.mark.clause("DGRAM-RD-39")
@pytest.mark.parametrize("opcode", [Opcode.RDMA_WRITE, Opcode.RDMA_READ_RESPONSE, 15])
def test_a_tagged_segment_in_the_wrong_psn_space_is_refused(rig: Rig, opcode: int) -> None:
    a = RDEnd(rig)
    response = opcode != Opcode.RDMA_READ_RESPONSE
    a.into.view[:] = b"\xee" * a.size
    with scripted_peer(a) as s:
        head = DDPTagged(opcode=opcode, stag=a.into.rkey, to=a.into.addr)
        flags = int(RDFlag.RESPONSE) if response else 0
        s.send_datagram(RDType.DATA, psn=EPOCH, rd_flags=flags, body=bytes(head) + b"wrong")
        s.psn[response] += 1
        if response:  # an unexpected response is not answered with an error message
            told = s.receive_terminate()
            assert (told.layer, told.etype, told.code) == (0, 2, 6)
        s.wait_for_acknowledgement()
    assert set(a.into.read(8)) == {0xEE}
