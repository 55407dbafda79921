"""Multicast: groups on loopback, their members, and what each gets."""

from __future__ import annotations

import errno
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.verbs.verbs_harness import (
    MCAST_PORT,
    Rig,
    counted,
    counter,
    nothing,
    pattern,
    poll,
    refused,
    until,
)

from siwarp._siwarp import ffi, lib
from siwarp.inspect import DDPDatagram, UDDatagram, ud_qn
from siwarp.inspect.pcap import open_capture
from siwarp.verbs import (
    AH,
    CQ,
    QP,
    Error,
    LimitError,
    QPAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    StateError,
    WCStatus,
    capture,
)

QKEY = 0x77


@pytest.fixture
def group() -> Iterator[str]:
    """An address of the range that an organization may use as it likes (RFC 2365)."""
    yield "239.192.7.91"


class Member:
    """A queue pair in RTS, with a CQ and memory."""

    def __init__(self, rig: Rig, *groups: str, qkey: int = QKEY, **kwargs: object) -> None:
        self.rig = rig
        self.cq: CQ = rig.cq()
        self.scq: CQ = rig.cq()
        self.mr = rig.mr(bytearray(70000))
        self.qp: QP = rig.ud(scq=self.scq, rcq=self.cq, qkey=qkey, **kwargs)  # type: ignore[arg-type]
        for g in groups:
            self.qp.attach_mcast(g)

    def recv(self, wr_id: int = 1, length: int = 1000) -> None:
        self.qp.post_recv(RecvWR(wr_id, sg=[self.mr.sge(0, length)]))

    def send(self, ah: AH, octets: bytes, qkey: int = QKEY, remote_qpn: int = 0) -> None:
        mr = self.rig.mr(bytearray(octets))
        self.qp.post_send(SendWR(sg=[mr.sge()], ah=ah, remote_qpn=remote_qpn, remote_qkey=qkey))
        assert poll(self.scq)[0].ok  # it is out, and does not wait for company

    def got(self) -> bytes:
        (wc,) = poll(self.cq)
        assert (wc.ok, wc.qp_num) == (True, self.qp.qp_num)
        return self.mr.read(wc.byte_len)


def raw(group: str, payload: bytes, port: int = MCAST_PORT) -> None:
    """Send a datagram to a group on loopback by a socket of the test's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.sendto(payload, (group, port))


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


@pytest.mark.clause("DGRAM-MCAST-2")
def test_messages_go_to_the_one_port_of_groups_whatever_else_is_said(rig: Rig, group: str) -> None:
    sender, member = Member(rig), Member(rig, group)
    assert lib.SIW_MCAST_PORT == 62607  # unless the setting says another one
    for where, remote_qpn in (((group, 0), 0), ((group, 9), 0), ((group, 9), 0xFFFFFF)):
        member.recv()
        ah = rig.ah(where)
        sender.send(ah, b"abc", remote_qpn=remote_qpn)
        assert member.got() == b"abc"
    at = ffi.new("struct siw_addr *")
    assert lib.siw_query_ah(ah._c, at) == 0
    assert socket.ntohs(at.port_be) == MCAST_PORT


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
    # Nobody is told of any of this, and all go on.
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
    # The group's socket is bound to the group: what goes to the port at an address is nobody's.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", MCAST_PORT))
        s.send(datagram(b"x"))
        assert refused(s.recv, 1) == errno.ECONNREFUSED


def datagram(payload: bytes, **fields: int) -> bytes:
    crc = fields.pop("crc", None)
    built = UDDatagram(
        segment=DDPDatagram(**{"q_key": QKEY, **fields}) / payload,
        **({} if crc is None else {"crc": crc}),
    )
    return bytes(built)


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
def test_what_breaks_a_rule_is_dropped_and_never_answered(
    rig: Rig, group: str, fields: dict[str, int], name: str
) -> None:
    member = Member(rig, group)
    member.recv()
    sent = counter("err_sent") + counter("err_limited") + counter("err_unsent")
    with counted(name, 1):
        raw(group, datagram(b"bad", **fields))
        raw(group, datagram(b"good"))
        assert member.got() == b"good"
    assert counter("err_sent") + counter("err_limited") + counter("err_unsent") == sent
    assert member.qp.qp_state == QPState.RTS
    assert member.qp.errors() == []


@pytest.mark.clause("DGRAM-MCAST-3")
def test_members_with_and_without_crc_are_members_of_one_group(rig: Rig, group: str) -> None:
    with_crc, without = Member(rig, group), Member(rig, group, crc=False)
    without.recv(), with_crc.recv()
    with counted("drop_crc", 1):
        raw(group, datagram(b"unchecked", crc=0))
        assert without.got() == b"unchecked"
    nothing(with_crc.cq)


def test_several_on_one_socket_and_a_shared_receive_queue_are_members_too(
    rig: Rig, group: str
) -> None:
    srq = rig.srq()
    cq = rig.cq()
    mr = rig.mr(bytearray(64))
    first = rig.qp(cq)
    qps = [first, rig.qp(cq, shared_socket_qp=first), rig.qp(cq, shared_socket_qp=first, srq=srq)]
    for qp in qps:
        qp.to_rts(QPAttr(qkey=QKEY))
        qp.attach_mcast(group)
    for qp in qps[:2]:
        qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    srq.post_recv(RecvWR(2, sg=[mr.sge()]))
    out = rig.mr(bytearray(b"abc"))
    qps[1].post_send(SendWR(sg=[out.sge()], send_flags=0, ah=rig.ah((group, 0)), remote_qkey=QKEY))
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
def test_whoever_is_a_member_at_the_time_gets_it_and_nobody_else(
    steps: list[tuple[str, int, int]],
) -> None:
    rig = Rig()
    try:
        qps = [Member(rig) for _ in range(3)]
        ahs = [rig.ah((g, 0)) for g in GROUPS]
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
                    qps[i].recv(number)
                qps[q].send(ahs[g], bytes([number]))
                for i in wanted:
                    assert qps[i].got() == bytes([number])
                # One that is none would have had no receive, and have counted that.
        assert all(m.qp.drops() == [] for m in qps)
    finally:
        rig.close()


def test_two_devices_in_one_process_both_have_members(rig: Rig, group: str) -> None:
    # As two processes do: each has a socket of its own for the group.
    there = Rig()
    try:
        a, b, sender = Member(rig, group), Member(there, group), Member(rig)
        a.recv(), b.recv()
        sender.send(rig.ah((group, 0)), b"both")
        assert (a.got(), b.got()) == (b"both", b"both")
    finally:
        there.close()


@pytest.mark.clause("DGRAM-MCAST-9")
def test_a_member_cannot_be_destroyed_and_its_handle_detaches_it(rig: Rig, group: str) -> None:
    member = Member(rig, group)
    assert lib.siw_destroy_qp(member.qp._c) == -errno.EBUSY
    fds = len(list(Path("/proc/self/fd").iterdir()))
    member.qp.close()
    # Its socket and that of the group.
    assert len(list(Path("/proc/self/fd").iterdir())) == fds - 2
    dropped = Member(rig, group, "239.192.7.92")
    del dropped.qp
    sender = Member(rig)
    assert len(list(Path("/proc/self/fd").iterdir())) == fds - 2 + 1
    sender.send(rig.ah((group, 0)), b"to nobody")


def test_what_cannot_be_a_member_is_refused_in_words(rig: Rig, group: str) -> None:
    qp = rig.qp()
    for target, where, words in (
        (rig.qp(qp_type=QPType.RC), group, "only UD QPs receive from groups"),
        (qp, "127.0.0.1", "it is no multicast address"),
        (qp, "::1", "it is no multicast address"),
        (qp, "ff02::7", "a group has to be of the same family"),
        (rig.qp(addr=("::1", 0)), group, "a group has to be of the same family"),
    ):
        with pytest.raises(Error, match=words) as e:
            target.attach_mcast(where)
        assert e.value.errno == errno.EINVAL
    with pytest.raises(Error, match="it is no member"):
        qp.detach_mcast(group)
    qp.close()
    with pytest.raises(StateError):
        qp.attach_mcast(group)
    null = ffi.NULL
    assert lib.siw_attach_mcast(null, null) == lib.siw_detach_mcast(null, null) == -errno.EINVAL
    assert lib.siw_attach_mcast(rig.qp()._c, null) == -errno.EINVAL


def test_a_socket_of_another_program_on_every_address_is_told_in_words(
    rig: Rig, group: str
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", MCAST_PORT))
        with pytest.raises(Error, match="another program has the port of all groups") as e:
            rig.qp().attach_mcast(group)
        assert e.value.errno == errno.EADDRINUSE


def test_a_member_keeps_its_socket(rig: Rig, group: str) -> None:
    qp = rig.qp()
    qp.attach_mcast(group)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("127.0.0.1", 0))
        with pytest.raises(Error, match="member of a multicast group"):
            qp.to_init(QPAttr(fd=mine))


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


@pytest.mark.clause("DGRAM-MCAST-2")
def test_a_capture_has_the_groups_addresses(rig: Rig, group: str, tmp_path: Path) -> None:
    sender, member = Member(rig), Member(rig, group)
    file = tmp_path / "group.pcapng"
    with capture(file):
        member.recv()
        sender.send(rig.ah((group, 0)), b"seen")
        assert member.got() == b"seen"
    with open_capture(file) as opened:
        frames = [f.octets for f in opened]
    # Sent once and received once.
    assert len(frames) == 2
    for frame in frames:
        assert frame[:6] == bytes([1, 0, 0x5E, 192 & 0x7F, 7, 91])
        assert socket.inet_ntoa(frame[26:30]) == "127.0.0.1"
        assert socket.inet_ntoa(frame[30:34]) == group
        source, dest = struct.unpack("!HH", frame[34:38])
        assert (source, dest) == (sender.qp.qp_num, MCAST_PORT)
        head = UDDatagram(frame[42:]).segment
        assert (head.q_key, head.queue, head.dest_index, head.source_index) == (QKEY, 0, 0, 0)


def test_without_a_descriptor_it_says_so(rig: Rig, group: str) -> None:
    qp = rig.qp()
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
        with pytest.raises(LimitError, match="no file descriptors are left"):
            qp.attach_mcast(group)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for s in held:
            s.close()
    until(lambda: qp.qp_state == QPState.RESET)
