"""UC queue pairs: states and attributes, messages of any length, Writes, errors."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
from collections.abc import Callable, Iterator

import pytest
from harness.uc_harness import QKEY, PlainUCPeer, UCPair, connect_qps, crc32c
from harness.verbs_harness import Rig, assert_counter_grows, errno_raised_by, octet_pattern, poll

from siwarp.inspect import UC_FIRST, DDPTagged, DDPUntagged, Opcode, UCDatagram
from siwarp.verbs import (
    SGE,
    AccessFlag,
    AHAttr,
    Error,
    QPAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    StateError,
    WCOpcode,
    WCStatus,
    WROpcode,
)

#: The largest payload of a datagram on loopback, octets.
MOST = {"127.0.0.1": 65507 - 12 - 18 - 4, "::1": 65536 - 48 - 12 - 18 - 4}
SIZES = [0, 1, 64, 4095, 4096, 4097, 65472, 65473, 65474, 131072]


@pytest.fixture
def uc_peer(rig: Rig) -> Iterator[PlainUCPeer]:
    made = PlainUCPeer(rig)
    yield made
    made.close()


# ---- messages


@pytest.mark.clause("DGRAM-UC-4", "DGRAM-UC-8")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no_crc"])
def test_uc_sends_and_writes_of_every_size_arrive_whole(rig: Rig, host: str, crc: bool) -> None:
    ends = UCPair(rig, host=host, crc=crc)
    assert ends.a.query()[0].path_mtu == MOST[host]
    for i, size in enumerate(SIZES):
        data = octet_pattern(size, i)
        ends.into.view[:] = b"\xee" * ends.size
        ends.post_receive(1000 + i)
        ends.send(data, 2000 + i)
        (sent,) = ends.poll_sends()
        assert (sent.wr_id, sent.ok, sent.opcode) == (2000 + i, True, WCOpcode.SEND)
        (got,) = ends.poll_receives()
        assert (got.wr_id, got.ok, got.opcode, got.byte_len) == (1000 + i, True, 128, size)
        assert (got.qp_num, got.src_qp) == (ends.b.qp_num, ends.a.qp_num)
        assert ends.into.read(size) == data
        assert set(ends.into.read(offset=size)) <= {0xEE}
        # A Write creates no receive completion, but the empty Send that follows does.
        ends.write(data[::-1], wr_id=3000 + i)
        ends.post_receive(7)
        ends.send(b"")
        assert [w.opcode for w in ends.poll_sends(2)] == [WCOpcode.RDMA_WRITE, WCOpcode.SEND]
        assert ends.poll_receives()[0].wr_id == 7
        assert ends.into.read(size) == data[::-1]


def test_a_requested_path_mtu_above_the_paths_limit_is_reduced_to_the_limit(rig: Rig) -> None:
    peer = PlainUCPeer(rig, attrs={"path_mtu": 65535})
    assert peer.qp.query()[0].path_mtu == MOST["127.0.0.1"]
    peer.close()


def test_a_path_whose_mtu_is_too_small_for_headers_and_one_octet_is_refused(
    run_in_namespace: Callable[[str, str], None],
) -> None:
    run_in_namespace(
        "ip link set lo up",
        """
import errno, subprocess
from harness.verbs_harness import Rig
from siwarp.verbs import QPAttr, QPType
rig = Rig()
qp = rig.create_qp(rig.create_cq(), qp_type=QPType.UC, addr=("127.0.0.1", 0))
subprocess.run(["ip", "link", "set", "lo", "mtu", "68"], check=True)
try:
    qp.to_rtr(QPAttr(ah_attr=("127.0.0.1", 9)))
except OSError as e:
    assert e.errno == errno.EMSGSIZE, e
else:
    raise AssertionError("a path MTU of 68 octets was accepted")
""",
    )


@pytest.mark.clause("DGRAM-UC-1", "DGRAM-UC-3", "DGRAM-UC-4")
@pytest.mark.parametrize("path_mtu", [256, 1, 1000, 4, 4097, 0])
def test_a_uc_send_is_segmented_at_the_path_mtu(rig: Rig, path_mtu: int) -> None:
    octets = {1: 256, 4: 2048, 0: MOST["127.0.0.1"]}.get(path_mtu, path_mtu)
    data = octet_pattern(10 * octets + 3 if path_mtu else 3 * octets + 3)
    with_peer = PlainUCPeer(rig, attrs={"path_mtu": path_mtu}, size=len(data))
    with_peer.memory.write(data)
    assert with_peer.qp.query()[0].path_mtu == octets
    with_peer.qp.post_send(SendWR(1, sg=[with_peer.memory.sge(0, len(data))]))
    got = b""
    for i in itertools.count():
        octets_of = with_peer.receive_datagram()
        found = UCDatagram(octets_of)
        head = found.segment
        payload = octets_of[12 + 18 : -4]
        assert (found.type, found.version, found.mark, found.psn) == (1, 1, 2, i)
        assert (found.flags, found.dest_index, found.source_index) == (UC_FIRST * (not i), 0, 0)
        assert (found.q_key, found.crc) == (QKEY, crc32c(octets_of[:-4]))
        assert isinstance(head, DDPUntagged)
        assert (head.opcode, head.rv, head.qn, head.msn, head.mo) == (3, 1, 0, 1, len(got))
        assert (head.inv_stag, head.ddp_rsvd, head.rdmap_rsvd, head.dv) == (0, 0, 0, 1)
        got += payload
        assert head.l == (len(got) == len(data))
        assert len(payload) == octets or head.l
        if head.l:
            break
    assert got == data
    with_peer.close()


@pytest.mark.clause("DGRAM-UC-1", "DGRAM-UC-2", "DGRAM-UC-3")
def test_a_uc_write_is_segmented_at_the_path_mtu_into_tagged_segments(rig: Rig) -> None:
    data = octet_pattern(1000)
    peer = PlainUCPeer(rig, attrs={"path_mtu": 256})
    peer.memory.write(data)
    remote = peer.memory.remote(5, 1000)
    for first in (0, 4):
        wr = SendWR(1, WROpcode.RDMA_WRITE, sg=[peer.memory.sge(0, 1000)], remote=remote)
        peer.qp.post_send(wr)
        for i in range(4):
            octets = peer.receive_datagram()
            found = UCDatagram(octets)
            head = found.segment
            assert isinstance(head, DDPTagged)
            assert (found.psn, found.flags) == (first + i, UC_FIRST * (i == 0))
            assert found.crc == crc32c(octets[:-4])
            assert (head.opcode, head.l, head.stag) == (0, int(i == 3), remote.rkey)
            assert head.to == remote.addr + 256 * i
            assert octets[12 + 14 : -4] == data[256 * i : 256 * i + 256]
    peer.close()


@pytest.mark.clause("DGRAM-UC-2", "DGRAM-UC-16")
def test_small_uc_messages_are_one_datagram_each_with_psns_that_wrap_around(rig: Rig) -> None:
    peer = PlainUCPeer(rig, rq_psn=(1 << 32) - 3, max_send_wr=64)
    peer.memory.write(octet_pattern(64))
    peer.qp.post_send([SendWR(i, sg=[peer.memory.sge(0, i % 5)]) for i in range(40)])
    for i in range(40):
        octets = peer.receive_datagram()
        found = UCDatagram(octets)
        assert found.psn == ((1 << 32) - 3 + i) % (1 << 32)
        assert (found.segment.msn, found.segment.mo, found.segment.l) == (i + 1, 0, 1)
        assert (found.flags, found.crc) == (UC_FIRST, crc32c(octets[:-4]))
        assert octets[30:-4] == octet_pattern(64)[: i % 5]
    assert [w.wr_id for w in peer.poll_completions(40)] == list(range(40))
    peer.close()


def test_only_a_solicited_uc_send_notifies_a_cq_armed_for_solicited_events(rig: Rig) -> None:
    ends = UCPair(rig)
    channel = rig.create_channel()
    cq = rig.create_cq(channel=channel)
    b = rig.create_qp(rcq=cq, scq=ends.idle, qp_type=QPType.UC)
    a = rig.create_qp(ends.scq, qp_type=QPType.UC)
    connect_qps(a, b)
    cq.req_notify(solicited_only=True)
    for flags in (SendFlag.SIGNALED, SendFlag.SIGNALED | SendFlag.SOLICITED):
        b.post_recv(RecvWR(1, sg=[ends.into.sge()]))
        a.post_send(SendWR(2, sg=[ends.out.sge(0, 9)], send_flags=flags))
        poll(ends.scq)
        found = channel.get_cq_event(10 if flags & SendFlag.SOLICITED else 0.05)
        assert (found is cq) == bool(flags & SendFlag.SOLICITED)
    cq.ack_events(1)


# ---- messages that are not delivered


@pytest.mark.clause("DGRAM-UC-8", "DGRAM-UC-9")
def test_a_uc_message_that_lost_a_datagram_is_dropped_and_the_next_uses_its_receive(
    uc_peer: PlainUCPeer,
) -> None:
    for lost in range(3):
        uc_peer.post_receive(lost)
        cut = uc_peer.build_send(octet_pattern(300), 100)
        with assert_counter_grows("uc_missing", 1):
            uc_peer.send_datagrams(*cut[:lost], *cut[lost + 1 :], *uc_peer.build_send(b"whole"))
            (got,) = uc_peer.poll_completions()
        assert (got.wr_id, got.ok, got.byte_len) == (lost, True, 5)
        assert uc_peer.memory.read(5) == b"whole"


@pytest.mark.clause("DGRAM-UC-2", "DGRAM-UC-7")
def test_psns_may_wrap_around_in_the_middle_of_a_uc_message(rig: Rig) -> None:
    peer = PlainUCPeer(rig, psn=(1 << 32) - 2)
    peer.post_receive(1)
    cut = peer.build_send(octet_pattern(500), 100)
    with assert_counter_grows("uc_missing", 0), assert_counter_grows("drop_late", 1):
        peer.send_datagrams(*cut[:3], cut[1], *cut[3:])
        assert peer.poll_completions()[0].byte_len == 500
    assert peer.memory.read(500) == octet_pattern(500)
    peer.close()


@pytest.mark.clause("DGRAM-LLP-8")
def test_undefined_flags_of_a_uc_datagram_are_ignored(uc_peer: PlainUCPeer) -> None:
    uc_peer.post_receive(1)
    uc_peer.send_datagrams(
        uc_peer.build_datagram(bytes(DDPUntagged(opcode=Opcode.SEND, l=1)) + b"good", flags=0xFF)
    )
    assert uc_peer.poll_completions()[0].byte_len == 4


@pytest.mark.clause("DGRAM-UC-5", "DGRAM-UC-13", "DGRAM-LLP-7")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("drop_qkey", {"q_key": QKEY + 1}),
        *(("drop_version", {"type": kind}) for kind in (0, 2, 4, 10, 15)),
        ("drop_version", {"version": 0}),
        ("drop_version", {"mark": 1}),
        ("drop_qn", {"dest_index": 1}),
        ("drop_qn", {"source_index": 1}),
        ("drop_crc", {"crc": 0}),
    ],
)
def test_a_uc_datagram_that_is_not_credible_is_dropped_and_consumes_no_psn(
    uc_peer: PlainUCPeer, name: str, change: dict[str, int]
) -> None:
    uc_peer.post_receive(1)
    segment = bytes(DDPUntagged(opcode=Opcode.SEND)) + b"bad"
    with assert_counter_grows(name, 1), assert_counter_grows("uc_missing", 0):
        uc_peer.send_datagrams(
            uc_peer.build_datagram(segment, first=True, psn=uc_peer.psn, **change)
        )
        uc_peer.send_datagrams(*uc_peer.build_send(b"good"))
        assert uc_peer.poll_completions()[0].byte_len == 4


@pytest.mark.parametrize("octets", [b"", b"\x12", bytes(20), bytes(29)])
def test_a_uc_datagram_shorter_than_its_headers_is_dropped(
    uc_peer: PlainUCPeer, octets: bytes
) -> None:
    with assert_counter_grows("drop_short", 1):
        uc_peer.send_datagrams(octets)
        uc_peer.post_receive(1)
        uc_peer.send_datagrams(*uc_peer.build_send(b"good"))
        assert uc_peer.poll_completions()[0].byte_len == 4


@pytest.mark.clause("DGRAM-UC-12")
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("drop_version", DDPUntagged(rv=0)),
        ("drop_version", DDPUntagged(dv=2)),
        ("drop_qn", DDPUntagged(qn=2)),
        ("drop_qn", DDPUntagged(qn=4)),
        ("drop_opcode", DDPUntagged(opcode=4)),
        ("drop_opcode", DDPUntagged(opcode=0)),
        ("drop_opcode", DDPTagged(opcode=2)),
        ("drop_opcode", DDPTagged(opcode=3)),
        ("drop_header", DDPUntagged(mo=7)),
        ("drop_access", DDPTagged(opcode=0, stag=1)),
    ],
)
def test_an_invalid_uc_segment_is_dropped_without_effect(
    uc_peer: PlainUCPeer, name: str, head: object
) -> None:
    uc_peer.post_receive(1)
    with assert_counter_grows(name, 1):
        uc_peer.send_datagrams(uc_peer.build_datagram(bytes(head) + b"bad", first=True))  # type: ignore[call-overload]
        uc_peer.send_datagrams(*uc_peer.build_send(b"good"))
        (got,) = uc_peer.poll_completions()
    assert (got.wr_id, got.byte_len) == (1, 4)
    assert uc_peer.memory.read(4) == b"good"


@pytest.mark.clause("DGRAM-UC-23")
@pytest.mark.parametrize("policy", ["error", "message"])
def test_protocol_errors_on_uc_are_not_reported(rig: Rig, policy: str) -> None:
    with contextlib.closing(PlainUCPeer(rig, error_policy=policy)) as peer:
        peer.post_receive(1)
        for head in (DDPUntagged(opcode=Opcode.TERMINATE), DDPTagged(opcode=0, stag=1)):
            peer.send_datagrams(peer.build_datagram(bytes(head) + b"bad", first=True))
        peer.send_datagrams(*peer.build_send(b"good"))
        assert peer.poll_completions()[0].byte_len == 4
        peer.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.sock.recv(100)
        assert peer.qp.poll_errors() == []
        assert peer.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-UC-24")
@pytest.mark.parametrize("change", [{"mo": 101}, {"msn": 99}, {"opcode": Opcode.SEND_SE}])
def test_a_uc_segment_out_of_sequence_ends_its_message(
    uc_peer: PlainUCPeer, change: dict[str, int]
) -> None:
    uc_peer.post_receive(1)
    head = {"opcode": Opcode.SEND, "msn": 1, "mo": 100, **change}
    with assert_counter_grows("drop_header", 1):
        uc_peer.send_datagrams(*uc_peer.build_send(octet_pattern(200), 100)[:1])
        uc_peer.psn = 1
        uc_peer.send_datagrams(
            uc_peer.build_datagram(bytes(DDPUntagged(**head)) + octet_pattern(100))
        )
        uc_peer.send_datagrams(*uc_peer.build_send(b"good"))
        (got,) = uc_peer.poll_completions()
    assert (got.wr_id, got.byte_len) == (1, 4)


@pytest.mark.clause("DGRAM-UC-24")
def test_a_uc_message_may_have_any_msn_if_all_its_segments_have_the_same(
    uc_peer: PlainUCPeer,
) -> None:
    for i, msn in enumerate((7, 7, 0, 0xFFFFFFFF)):
        uc_peer.post_receive(i)
        uc_peer.send_datagrams(*uc_peer.build_send(octet_pattern(300), 100, msn=msn))
        (got,) = uc_peer.poll_completions()
        assert (got.wr_id, got.byte_len) == (i, 300)


@pytest.mark.clause("DGRAM-UC-6")
def test_a_uc_datagram_from_another_source_than_the_peer_is_dropped_and_counted(
    uc_peer: PlainUCPeer,
) -> None:
    uc_peer.post_receive(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        with assert_counter_grows("drop_source", 1):
            stranger.sendto(uc_peer.build_send(b"strange")[0], uc_peer.qp.addr)
            uc_peer.psn = 0
            uc_peer.send_datagrams(*uc_peer.build_send(b"good"))
            assert uc_peer.poll_completions()[0].byte_len == 4


@pytest.mark.clause("DGRAM-UC-15")
def test_a_uc_message_longer_than_its_receive_is_a_length_error(uc_peer: PlainUCPeer) -> None:
    uc_peer.post_receive(1, 0, 150)
    uc_peer.post_receive(2, 1000)
    uc_peer.memory.view[:] = b"\xee" * len(uc_peer.memory.view)
    with assert_counter_grows("drop_too_long", 1):
        uc_peer.send_datagrams(
            *uc_peer.build_send(octet_pattern(300), 100), *uc_peer.build_send(b"good")
        )
        assert [(w.wr_id, w.status) for w in uc_peer.poll_completions(2)] == [
            (1, WCStatus.LOC_LEN_ERR),
            (2, WCStatus.SUCCESS),
        ]
    assert set(uc_peer.memory.read(850, 150)) == {0xEE}
    assert uc_peer.memory.read(4, 1000) == b"good"


# ---- Writes


@pytest.mark.clause("DGRAM-UC-10")
def test_received_segments_of_an_incomplete_uc_write_are_placed(uc_peer: PlainUCPeer) -> None:
    data = octet_pattern(400)
    key = uc_peer.memory.rkey
    cut = uc_peer.build_write(data, key, uc_peer.memory.addr + 50, 100)
    uc_peer.post_receive(1, 4096)
    with assert_counter_grows("uc_missing", 1):
        uc_peer.send_datagrams(cut[0], cut[2], cut[3], *uc_peer.build_send(b"then"))
        assert uc_peer.poll_completions()[0].byte_len == 4
    assert uc_peer.memory.read(100, 50) == data[:100]
    assert uc_peer.memory.read(100, 150) == bytes(100)
    assert uc_peer.memory.read(200, 250) == data[200:]


@pytest.mark.clause("DGRAM-UC-11")
@pytest.mark.parametrize("why", ["stag", "beyond", "before", "wrap", "right", "denied"])
def test_a_uc_write_that_fails_the_access_check_is_dropped_and_counted(rig: Rig, why: str) -> None:
    attrs = {"qp_access_flags": AccessFlag(0)} if why == "denied" else {}
    peer = PlainUCPeer(rig, attrs=attrs)
    region = peer.memory if why != "right" else rig.reg_mr(bytearray(100))
    stag = region.rkey ^ (0x100 if why == "stag" else 0)
    at = {"beyond": region.addr + region.length - 1, "before": region.addr - 1}.get(
        why, (1 << 64) - 1 if why == "wrap" else region.addr
    )
    peer.post_receive(1, 4096)
    before = bytes(region.view)
    with assert_counter_grows("drop_access", 1):
        peer.send_datagrams(*peer.build_write(b"\xff\xff", stag, at))
        peer.send_datagrams(*peer.build_send(b""))
        assert peer.poll_completions()[0].byte_len == 0
    assert bytes(region.view) == before
    peer.close()


# ---- local errors, and errors of the network


@pytest.mark.clause("DGRAM-UC-17")
def test_an_invalid_key_moves_a_uc_queue_pair_to_sqe_until_it_is_set_to_rts(rig: Rig) -> None:
    ends = UCPair(rig)
    bad = SGE(ends.out.addr, 8, ends.out.lkey ^ 0x55)
    good = ends.out.sge(0, 8)
    ends.post_receive(1)
    ends.post_receive(2)
    ends.a.post_send([SendWR(1, sg=[good]), SendWR(2, sg=[bad]), SendWR(3, sg=[good])])
    assert [(w.wr_id, w.status) for w in ends.poll_sends(3)] == [
        (1, WCStatus.SUCCESS),
        (2, WCStatus.LOC_PROT_ERR),
        (3, WCStatus.WR_FLUSH_ERR),
    ]
    assert ends.a.qp_state == QPState.SQE
    ends.a.post_send(SendWR(4, sg=[good]))
    assert ends.poll_sends()[0].status == WCStatus.WR_FLUSH_ERR
    ends.a.to_rts()
    ends.send(b"again")
    assert ends.poll_sends()[0].ok
    assert [w.byte_len for w in ends.poll_receives(2)] == [8, 5]


@pytest.mark.clause("DGRAM-UC-17")
def test_a_uc_message_with_an_invalid_key_in_its_middle_is_not_delivered(rig: Rig) -> None:
    ends = UCPair(rig, attrs={"path_mtu": 1024})
    bad = SGE(ends.out.addr, 5000, ends.out.lkey ^ 0x55)
    ends.post_receive(1)
    two = UCPair(rig, attrs={"path_mtu": 1024}, max_send_sge=2)
    two.post_receive(1)
    two.a.post_send(SendWR(2, sg=[two.out.sge(0, 5000), bad]))
    assert two.poll_sends()[0].status == WCStatus.LOC_PROT_ERR
    two.a.to_rts()
    two.send(b"good")
    assert two.poll_sends()[0].ok
    (got,) = two.poll_receives()
    assert (got.wr_id, got.byte_len) == (1, 4)


@pytest.mark.clause("DGRAM-UC-16")
def test_uc_sends_to_a_closed_port_complete_without_error(rig: Rig) -> None:
    peer = PlainUCPeer(rig)
    peer.close()
    for i in range(3):
        peer.qp.post_send(SendWR(i, sg=[peer.memory.sge(0, 9)]))
        assert peer.poll_completions()[0].ok
    assert peer.qp.qp_state == QPState.RTS


# ---- attributes


@pytest.mark.clause("DGRAM-UC-18")
def test_the_transition_of_a_uc_queue_pair_to_rtr_requires_the_peers_address(rig: Rig) -> None:
    qp = rig.create_qp(qp_type=QPType.UC)
    qp.to_init()
    with pytest.raises(Error, match="set ah_attr"):
        qp.to_rtr()
    with pytest.raises(Error, match="contains a port"):
        qp.to_rtr(QPAttr(ah_attr=("127.0.0.1", 0)))
    with pytest.raises(Error, match="path_mtu=255"):
        qp.to_rtr(QPAttr(ah_attr=("127.0.0.1", 9), path_mtu=255))
    assert errno_raised_by(qp.to_rtr, QPAttr(ah_attr=("::1", 9))) == errno.EAFNOSUPPORT
    assert qp.qp_state == QPState.INIT
    qp.to_rts(QPAttr(ah_attr=AHAttr("127.0.0.1", 9), dest_qp_num=7, rq_psn=5, sq_psn=6))
    now = qp.query()[0]
    assert (now.ah_attr, now.dest_qp_num) == (AHAttr("127.0.0.1", 7), 7)
    assert (now.rq_psn, now.sq_psn) == (5, 6)
    assert qp.peer == ("127.0.0.1", 7)


def test_requests_that_uc_does_not_support_are_refused_with_the_reason(rig: Rig) -> None:
    ends = UCPair(rig)
    for opcode in (WROpcode.RDMA_READ, WROpcode.SEND_WITH_INV):
        with pytest.raises(Error, match="UC QP supports only SEND"):
            ends.a.post_send(SendWR(opcode=opcode, sg=[ends.out.sge(0, 1)]))
    waiting = rig.create_qp(qp_type=QPType.UC)
    with pytest.raises(StateError, match="to_rts"):
        waiting.post_send(SendWR())


def test_a_uc_queue_pair_adopts_a_socket_of_the_program(rig: Rig) -> None:
    ends = UCPair(rig, connected=False)
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind(("127.0.0.1", 0))
    port = own.getsockname()[1]
    ends.b.to_init(QPAttr(fd=own))
    assert ends.b.qp_num == port
    connect_qps(ends.a, ends.b)
    ends.post_receive()
    ends.send(b"hello")
    assert ends.poll_receives()[0].byte_len == 5


def test_a_uc_queue_pair_can_receive_from_a_shared_receive_queue(rig: Rig) -> None:
    srq = rig.create_srq()
    ends = UCPair(rig)
    b = rig.create_qp(scq=ends.idle, rcq=ends.rcq, qp_type=QPType.UC, srq=srq)
    a = rig.create_qp(ends.scq, qp_type=QPType.UC)
    connect_qps(a, b)
    srq.post_recv(RecvWR(5, sg=[ends.into.sge()]))
    a.post_send(SendWR(6, sg=[ends.out.sge(0, 70000)]))
    assert [(w.wr_id, w.byte_len) for w in ends.poll_receives()] == [(5, 70000)]
