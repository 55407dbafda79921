"""Multicast: groups on loopback, their members, and the messages that each receives."""

from __future__ import annotations

import errno
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.descriptors import count_open_descriptors
from harness.mcast_harness import QKEY, MulticastMember, build_datagram, send_from_plain_socket
from harness.verbs_harness import (
    MCAST_PORT,
    Rig,
    assert_counter_grows,
    counter_value,
    errno_raised_by,
    poll,
    wait_until,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from siwarp._siwarp import ffi, lib
from siwarp.inspect import UDDatagram, ud_qn
from siwarp.inspect.pcap import open_capture
from siwarp.verbs import (
    Error,
    LimitError,
    QPAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    StateError,
    capture,
)


@pytest.fixture
def multicast_group_address() -> Iterator[str]:
    """Provide a multicast address of the organization-local scope (RFC 2365)."""
    yield "239.192.7.91"


@pytest.mark.clause("DGRAM-MCAST-2")
def test_multicast_messages_are_sent_to_the_multicast_port_whatever_port_is_given(
    rig: Rig, multicast_group_address: str
) -> None:
    sender, member = MulticastMember(rig), MulticastMember(rig, multicast_group_address)
    # the default multicast port, used unless a setting names another port
    assert lib.SIW_MCAST_PORT == 62607
    for where, remote_qpn in (
        ((multicast_group_address, 0), 0),
        ((multicast_group_address, 9), 0),
        ((multicast_group_address, 9), 0xFFFFFF),
    ):
        member.post_receive()
        ah = rig.create_ah(where)
        sender.send(ah, b"abc", remote_qpn=remote_qpn)
        assert member.receive_octets() == b"abc"
    at = ffi.new("struct siw_addr *")
    assert lib.siw_query_ah(ah._c, at) == 0
    assert socket.ntohs(at.port_be) == MCAST_PORT


def test_unicast_to_the_group_port_is_not_delivered(rig: Rig, multicast_group_address: str) -> None:
    member = MulticastMember(rig, multicast_group_address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", MCAST_PORT))
        s.send(build_datagram(b"x"))
        assert errno_raised_by(s.recv, 1) == errno.ECONNREFUSED
    assert member.cq.poll(1) == []


@pytest.mark.clause("DGRAM-MCAST-8")
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"q_key": QKEY + 1}, "drop_qkey"),
        ({"crc": 0}, "drop_crc"),
        ({"dv": 2}, "drop_version"),
        ({"rv": 0}, "drop_version"),
        ({"opcode": 0}, "drop_opcode"),
        ({"opcode": 7}, "drop_opcode"),
        ({"opcode": 7, "qn": 2}, "drop_qn"),
        ({"qn": 1}, "drop_qn"),
        ({"qn": ud_qn(0, 1)}, "drop_qn"),
        ({"l": 0}, "drop_header"),
        ({"mo": 4}, "drop_header"),
    ],
)
def test_an_invalid_multicast_datagram_is_dropped_and_never_answered(
    rig: Rig, multicast_group_address: str, fields: dict[str, int], name: str
) -> None:
    member = MulticastMember(rig, multicast_group_address)
    member.post_receive()
    sent = counter_value("err_sent") + counter_value("err_limited") + counter_value("err_unsent")
    with assert_counter_grows(name, 1):
        send_from_plain_socket(multicast_group_address, build_datagram(b"bad", **fields))
        send_from_plain_socket(multicast_group_address, build_datagram(b"good"))
        assert member.receive_octets() == b"good"
    assert (
        counter_value("err_sent") + counter_value("err_limited") + counter_value("err_unsent")
        == sent
    )
    assert member.qp.qp_state == QPState.RTS
    assert member.qp.errors() == []


def test_queue_pairs_on_one_socket_and_with_an_srq_may_be_multicast_members(
    rig: Rig, multicast_group_address: str
) -> None:
    srq = rig.create_srq()
    cq = rig.create_cq()
    mr = rig.reg_mr(bytearray(64))
    first = rig.create_qp(cq)
    qps = [
        first,
        rig.create_qp(cq, shared_socket_qp=first),
        rig.create_qp(cq, shared_socket_qp=first, srq=srq),
    ]
    for qp in qps:
        qp.to_rts(QPAttr(qkey=QKEY))
        qp.attach_mcast(multicast_group_address)
    for qp in qps[:2]:
        qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    srq.post_recv(RecvWR(2, sg=[mr.sge()]))
    out = rig.reg_mr(bytearray(b"abc"))
    qps[1].post_send(
        SendWR(
            sg=[out.sge()],
            send_flags=0,
            ah=rig.create_ah((multicast_group_address, 0)),
            remote_qkey=QKEY,
        )
    )
    got = poll(cq, 3)
    assert [(w.ok, w.wr_id, w.qp_num) for w in got] == [
        (True, 1 + (i == 2), qp.qp_num) for i, qp in enumerate(qps)
    ]
    assert {w.src_qp for w in got} == {qps[1].qp_num}


GROUPS = ("239.192.7.93", "239.192.7.94")
STEP = st.tuples(
    st.sampled_from(["attach", "detach", "send"]), st.integers(0, 2), st.integers(0, 1)
)


@pytest.mark.clause("DGRAM-MCAST-1")
@settings(max_examples=15)
@given(steps=st.lists(STEP, max_size=25))
def test_only_current_members_of_a_group_receive_a_message(
    steps: list[tuple[str, int, int]],
) -> None:
    rig = Rig()
    try:
        qps = [MulticastMember(rig) for _ in range(3)]
        ahs = [rig.create_ah((g, 0)) for g in GROUPS]
        members: set[tuple[int, int]] = set()
        for number, (what, q, g) in enumerate(steps):
            if what == "attach":
                qps[q].qp.attach_mcast(GROUPS[g])
                members.add((q, g))
            elif what == "detach":
                expected = None if (q, g) in members else errno.EINVAL
                try:
                    qps[q].qp.detach_mcast(GROUPS[g])
                    assert expected is None
                except Error as e:
                    assert e.errno == expected
                members.discard((q, g))
            else:
                wanted = [i for i in range(3) if (i, g) in members]
                for i in wanted:
                    qps[i].post_receive(number)
                qps[q].send(ahs[g], bytes([number]))
                for i in wanted:
                    assert qps[i].receive_octets() == bytes([number])
                # A queue pair that is not a member has no receive posted, and would count a drop
                # if it received the message.
        assert all(m.qp.drops() == [] for m in qps)
    finally:
        rig.close()


def test_two_devices_of_one_process_may_both_have_members_of_a_group(
    rig: Rig, multicast_group_address: str
) -> None:
    # As with two processes, each device has its own socket for the group.
    there = Rig()
    try:
        a, b, sender = (
            MulticastMember(rig, multicast_group_address),
            MulticastMember(there, multicast_group_address),
            MulticastMember(rig),
        )
        a.post_receive(), b.post_receive()
        sender.send(rig.create_ah((multicast_group_address, 0)), b"both")
        assert (a.receive_octets(), b.receive_octets()) == (
            b"both",
            b"both",
        )
    finally:
        there.close()


@pytest.mark.clause("DGRAM-MCAST-9")
def test_destroying_a_multicast_member_is_refused_and_closing_its_object_detaches_it(
    rig: Rig, multicast_group_address: str
) -> None:
    member = MulticastMember(rig, multicast_group_address)
    assert lib.siw_destroy_qp(member.qp._c) == -errno.EBUSY
    fds = count_open_descriptors()
    member.qp.close()
    # Two descriptors are closed: the queue pair's socket and the group's socket.
    assert count_open_descriptors() == fds - 2
    dropped = MulticastMember(rig, multicast_group_address, "239.192.7.92")
    del dropped.qp
    sender = MulticastMember(rig)
    assert count_open_descriptors() == fds - 2 + 1
    sender.send(rig.create_ah((multicast_group_address, 0)), b"to nobody")


def test_invalid_multicast_attachments_are_refused_with_a_reason(
    rig: Rig, multicast_group_address: str
) -> None:
    qp = rig.create_qp()
    for target, where, words in (
        (rig.create_qp(qp_type=QPType.RC), multicast_group_address, "a group is for UD QPs only"),
        (qp, "127.0.0.1", "is not a multicast address"),
        (qp, "::1", "is not a multicast address"),
        (qp, "ff02::7", "use a group of the same family"),
        (rig.create_qp(addr=("::1", 0)), multicast_group_address, "use a group of the same family"),
    ):
        with pytest.raises(Error, match=words) as e:
            target.attach_mcast(where)
        assert e.value.errno == errno.EINVAL
    with pytest.raises(Error, match="is not a member"):
        qp.detach_mcast(multicast_group_address)
    qp.close()
    with pytest.raises(StateError):
        qp.attach_mcast(multicast_group_address)
    null = ffi.NULL
    assert lib.siw_attach_mcast(null, null) == lib.siw_detach_mcast(null, null) == -errno.EINVAL
    assert lib.siw_attach_mcast(rig.create_qp()._c, null) == -errno.EINVAL


def test_attaching_is_refused_with_a_reason_if_another_program_has_the_multicast_port(
    rig: Rig, multicast_group_address: str
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", MCAST_PORT))
        with pytest.raises(Error, match="another program has bound the multicast port") as e:
            rig.create_qp().attach_mcast(multicast_group_address)
        assert e.value.errno == errno.EADDRINUSE


def test_a_multicast_member_refuses_to_adopt_another_socket(
    rig: Rig, multicast_group_address: str
) -> None:
    qp = rig.create_qp()
    qp.attach_mcast(multicast_group_address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("127.0.0.1", 0))
        with pytest.raises(Error, match="member of a multicast group"):
            qp.to_init(QPAttr(fd=mine))


@pytest.mark.clause("DGRAM-MCAST-2")
def test_a_capture_of_a_multicast_message_has_the_groups_addresses(
    rig: Rig, multicast_group_address: str, tmp_path: Path
) -> None:
    sender, member = MulticastMember(rig), MulticastMember(rig, multicast_group_address)
    file = tmp_path / "group.pcapng"
    with capture(file):
        member.post_receive()
        sender.send(rig.create_ah((multicast_group_address, 0)), b"seen")
        assert member.receive_octets() == b"seen"
    with open_capture(file) as opened:
        frames = [f.octets for f in opened]
    # The frame is captured once when sent and once when received.
    assert len(frames) == 2
    for frame in frames:
        assert frame[:6] == bytes([1, 0, 0x5E, 192 & 0x7F, 7, 91])
        assert socket.inet_ntoa(frame[26:30]) == "127.0.0.1"
        assert socket.inet_ntoa(frame[30:34]) == multicast_group_address
        source, dest = struct.unpack("!HH", frame[34:38])
        assert (source, dest) == (sender.qp.qp_num, MCAST_PORT)
        head = UDDatagram(frame[42:]).segment
        assert (head.q_key, head.queue, head.dest_index, head.source_index) == (QKEY, 0, 0, 0)


def test_attaching_to_a_group_without_a_free_descriptor_is_refused_with_a_reason(
    rig: Rig, multicast_group_address: str
) -> None:
    qp = rig.create_qp()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(p.name) for p in Path("/proc/self/fd").iterdir()) + 1
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
    try:
        while True:
            try:
                held.append(socket.socket())
            except OSError:
                break
        with pytest.raises(LimitError, match="no file descriptor is left"):
            qp.attach_mcast(multicast_group_address)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for s in held:
            s.close()
    wait_until(lambda: qp.qp_state == QPState.RESET)
