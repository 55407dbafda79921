"""Multicast: groups on loopback, their members, and the messages that each member receives."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from harness.mcast_harness import QKEY, Member, datagram, raw
from harness.verbs_harness import (
    Rig,
    counted,
    nothing,
    pattern,
    poll,
    refused,
)

from siwarp.verbs import (
    QPAttr,
    QPState,
    SendWR,
    WCStatus,
)


@pytest.fixture
def group() -> Iterator[str]:
    """Yield a group address of the organization-local scope (RFC 2365)."""
    yield "239.192.7.91"


@pytest.mark.clause("DGRAM-MCAST-1")
def test_every_member_gets_a_copy_with_its_own_receive(rig: Rig, group: str) -> None:
    sender = Member(rig)
    members = [Member(rig, group) for _ in range(3)]
    ah = rig.ah((group, 0))
    for n, size in enumerate((0, 1, 1000, 60000)):
        for i, m in enumerate(members):
            m.recv(10 * n + i, 70000)
        sender.send(ah, pattern(size, n))
        for i, m in enumerate(members):
            (wc,) = poll(m.cq)
            assert (wc.ok, wc.wr_id, wc.byte_len) == (True, 10 * n + i, size)
            assert (wc.qp_num, wc.src_qp) == (m.qp.qp_num, sender.qp.qp_num)
            assert wc.source == sender.qp.addr
            assert m.mr.read(size) == pattern(size, n)
    nothing(sender.cq)


@pytest.mark.clause("DGRAM-MCAST-5")
def test_a_sender_that_is_a_member_gets_its_own_message_too(rig: Rig, group: str) -> None:
    a, b = Member(rig, group), Member(rig, group)
    ah = rig.ah((group, 0))
    a.recv(), b.recv()
    a.send(ah, b"to all of us")
    assert (a.got(), b.got()) == (b"to all of us", b"to all of us")
    a.qp.detach_mcast(group)
    a.recv(), b.recv()
    a.send(ah, b"to you")
    assert b.got() == b"to you"
    nothing(a.cq)


@pytest.mark.clause("DGRAM-MCAST-3", "DGRAM-MCAST-8")
def test_each_member_judges_and_drops_for_itself(rig: Rig, group: str) -> None:
    sender = Member(rig)
    good, other_key, empty = Member(rig, group), Member(rig, group, qkey=1), Member(rig, group)
    down, short = Member(rig, group), Member(rig, group)
    good.recv(), other_key.recv(), down.recv()
    down.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert poll(down.cq)[0].status == WCStatus.WR_FLUSH_ERR
    short.recv(5, 2)
    with counted("drop_qkey", 1), counted("drop_no_buffer", 2), counted("drop_too_long", 1):
        sender.send(rig.ah((group, 0)), b"abc")
        assert good.got() == b"abc"
        assert [(w.wr_id, w.status) for w in poll(short.cq)] == [(5, WCStatus.LOC_LEN_ERR)]
    nothing(other_key.cq)
    assert [d.drops for d in empty.qp.drops()] == [1]
    assert good.qp.drops() == []
    # No error is reported for any of these, and all queue pairs stay usable.
    assert sender.qp.errors() == []
    assert short.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-MCAST-9")
def test_one_attached_twice_gets_one_copy_and_leaves_at_once(rig: Rig, group: str) -> None:
    sender, member = Member(rig), Member(rig, group, group)
    member.recv(), member.recv(2)
    sender.send(rig.ah((group, 0)), b"once")
    assert member.got() == b"once"
    nothing(member.cq)
    member.qp.detach_mcast(group)
    sender.send(rig.ah((group, 0)), b"gone")
    nothing(member.cq)
    assert refused(member.qp.detach_mcast, group) == errno.EINVAL


@pytest.mark.clause("DGRAM-MCAST-4")
def test_groups_are_apart_from_each_other_and_from_unicast(rig: Rig, group: str) -> None:
    sender, a = Member(rig), Member(rig, group)
    b, both = Member(rig, "239.192.7.92"), Member(rig, group, "239.192.7.92")
    for m in (a, b, both):
        m.recv(), m.recv(2)
    sender.send(rig.ah((group, 0)), b"first")
    assert (a.got(), both.got()) == (b"first", b"first")
    nothing(b.cq)
    sender.send(rig.ah(("239.192.7.92", 0)), b"second")
    assert (b.got(), both.got()) == (b"second", b"second")
    nothing(a.cq)
    sender.send(rig.ah(a.qp), b"alone")
    assert a.got() == b"alone"


@pytest.mark.clause("DGRAM-MCAST-3")
def test_members_with_and_without_crc_are_members_of_one_group(rig: Rig, group: str) -> None:
    with_crc, without = Member(rig, group), Member(rig, group, crc=False)
    without.recv(), with_crc.recv()
    with counted("drop_crc", 1):
        raw(group, datagram(b"unchecked", crc=0))
        assert without.got() == b"unchecked"
    nothing(with_crc.cq)


def test_lists_and_requests_that_waited_in_sqd_reach_the_group(rig: Rig, group: str) -> None:
    sender, member = Member(rig), Member(rig, group)
    ah = rig.ah((group, 77))
    mr = rig.mr(bytearray(b"12345678"))
    for i in range(20):
        member.recv(i)
    sender.qp.post_send(
        [
            SendWR(i, sg=[mr.sge()], ah=ah, remote_qkey=QKEY, remote_qpn=5 << 16 | 3)
            for i in range(10)
        ]
    )
    assert len(poll(sender.scq, 10)) == len(poll(member.cq, 10)) == 10
    sender.qp.modify(QPAttr(qp_state=QPState.SQD))
    sender.qp.post_send(SendWR(11, sg=[mr.sge()], ah=ah, remote_qkey=QKEY))
    nothing(member.cq)
    sender.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(sender.scq)[0].ok
    assert poll(member.cq)[0].byte_len == 8
