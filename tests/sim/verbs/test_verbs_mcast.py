"""Multicast: groups on loopback, their members, and the messages that each member receives."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from harness.mcast_harness import QKEY, MulticastMember, build_datagram, send_from_plain_socket
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    errno_raised_by,
    octet_pattern,
    poll,
)

from siwarp.verbs import (
    QPAttr,
    QPState,
    SendWR,
    WCStatus,
)


@pytest.fixture
def group_address() -> Iterator[str]:
    """A multicast group address of the organization-local scope (RFC 2365)."""
    yield "239.192.7.91"


@pytest.mark.clause("DGRAM-MCAST-1")
def test_every_multicast_member_receives_a_copy_into_its_own_receive(
    rig: Rig, group_address: str
) -> None:
    sender = MulticastMember(rig)
    members = [MulticastMember(rig, group_address) for _ in range(3)]
    ah = rig.create_ah((group_address, 0))
    for n, size in enumerate((0, 1, 1000, 60000)):
        for i, m in enumerate(members):
            m.post_receive(10 * n + i, 70000)
        sender.send(ah, octet_pattern(size, n))
        for i, m in enumerate(members):
            (wc,) = poll(m.cq)
            assert (wc.ok, wc.wr_id, wc.byte_len) == (True, 10 * n + i, size)
            assert (wc.qp_num, wc.src_qp) == (m.qp.qp_num, sender.qp.qp_num)
            assert wc.source == sender.qp.addr
            assert m.mr.read(size) == octet_pattern(size, n)
    assert_no_completion(sender.cq)


@pytest.mark.clause("DGRAM-MCAST-5")
def test_a_multicast_sender_that_is_a_member_receives_its_own_message(
    rig: Rig, group_address: str
) -> None:
    a, b = MulticastMember(rig, group_address), MulticastMember(rig, group_address)
    ah = rig.create_ah((group_address, 0))
    a.post_receive(), b.post_receive()
    a.send(ah, b"to all of us")
    assert (a.receive_octets(), b.receive_octets()) == (
        b"to all of us",
        b"to all of us",
    )
    a.qp.detach_mcast(group_address)
    a.post_receive(), b.post_receive()
    a.send(ah, b"to you")
    assert b.receive_octets() == b"to you"
    assert_no_completion(a.cq)


@pytest.mark.clause("DGRAM-MCAST-3", "DGRAM-MCAST-8")
def test_each_multicast_member_checks_and_drops_messages_separately(
    rig: Rig, group_address: str
) -> None:
    sender = MulticastMember(rig)
    good, other_key, empty = (
        MulticastMember(rig, group_address),
        MulticastMember(rig, group_address, qkey=1),
        MulticastMember(rig, group_address),
    )
    down, short = MulticastMember(rig, group_address), MulticastMember(rig, group_address)
    good.post_receive(), other_key.post_receive(), down.post_receive()
    down.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert poll(down.cq)[0].status == WCStatus.WR_FLUSH_ERR
    short.post_receive(5, 2)
    with (
        assert_counter_grows("drop_qkey", 1),
        assert_counter_grows("drop_no_buffer", 2),
        assert_counter_grows("drop_too_long", 1),
    ):
        sender.send(rig.create_ah((group_address, 0)), b"abc")
        assert good.receive_octets() == b"abc"
        assert [(w.wr_id, w.status) for w in poll(short.cq)] == [(5, WCStatus.LOC_LEN_ERR)]
    assert_no_completion(other_key.cq)
    assert [d.drops for d in empty.qp.drops()] == [1]
    assert good.qp.drops() == []
    # No error is reported for any of the dropped copies, and all queue pairs stay usable.
    assert sender.qp.errors() == []
    assert short.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-MCAST-9")
def test_a_member_attached_twice_receives_one_copy_and_is_detached_by_one_call(
    rig: Rig, group_address: str
) -> None:
    sender, member = MulticastMember(rig), MulticastMember(rig, group_address, group_address)
    member.post_receive(), member.post_receive(2)
    sender.send(rig.create_ah((group_address, 0)), b"once")
    assert member.receive_octets() == b"once"
    assert_no_completion(member.cq)
    member.qp.detach_mcast(group_address)
    sender.send(rig.create_ah((group_address, 0)), b"gone")
    assert_no_completion(member.cq)
    assert errno_raised_by(member.qp.detach_mcast, group_address) == errno.EINVAL


@pytest.mark.clause("DGRAM-MCAST-4")
def test_multicast_groups_are_separate_from_each_other_and_from_unicast(
    rig: Rig, group_address: str
) -> None:
    sender, a = MulticastMember(rig), MulticastMember(rig, group_address)
    b, both = (
        MulticastMember(rig, "239.192.7.92"),
        MulticastMember(rig, group_address, "239.192.7.92"),
    )
    for m in (a, b, both):
        m.post_receive(), m.post_receive(2)
    sender.send(rig.create_ah((group_address, 0)), b"first")
    assert (a.receive_octets(), both.receive_octets()) == (
        b"first",
        b"first",
    )
    assert_no_completion(b.cq)
    sender.send(rig.create_ah(("239.192.7.92", 0)), b"second")
    assert (b.receive_octets(), both.receive_octets()) == (
        b"second",
        b"second",
    )
    assert_no_completion(a.cq)
    sender.send(rig.create_ah(a.qp), b"alone")
    assert a.receive_octets() == b"alone"


@pytest.mark.clause("DGRAM-MCAST-3")
def test_members_with_and_without_crc_may_belong_to_one_group(rig: Rig, group_address: str) -> None:
    with_crc, without = (
        MulticastMember(rig, group_address),
        MulticastMember(rig, group_address, crc=False),
    )
    without.post_receive(), with_crc.post_receive()
    with assert_counter_grows("drop_crc", 1):
        send_from_plain_socket(group_address, build_datagram(b"unchecked", crc=0))
        assert without.receive_octets() == b"unchecked"
    assert_no_completion(with_crc.cq)


def test_lists_of_requests_and_requests_held_in_sqd_reach_the_multicast_group(
    rig: Rig, group_address: str
) -> None:
    sender, member = MulticastMember(rig), MulticastMember(rig, group_address)
    ah = rig.create_ah((group_address, 77))
    mr = rig.reg_mr(bytearray(b"12345678"))
    for i in range(20):
        member.post_receive(i)
    sender.qp.post_send(
        [
            SendWR(i, sg=[mr.sge()], ah=ah, remote_qkey=QKEY, remote_qpn=5 << 16 | 3)
            for i in range(10)
        ]
    )
    assert len(poll(sender.scq, 10)) == len(poll(member.cq, 10)) == 10
    sender.qp.modify(QPAttr(qp_state=QPState.SQD))
    sender.qp.post_send(SendWR(11, sg=[mr.sge()], ah=ah, remote_qkey=QKEY))
    assert_no_completion(member.cq)
    sender.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(sender.scq)[0].ok
    assert poll(member.cq)[0].byte_len == 8
