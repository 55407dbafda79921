"""Send with Immediate on UD: one datagram whose payload begins with a header of 8 octets."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import crcmod.predefined
import pytest
from harness.errq_harness import (
    OPCODE,
    QKEY,
    TOO_LONG,
    PlainUDPSocket,
    build_datagram,
    parse_error_message,
)
from harness.verbs_harness import (
    Pair,
    Rig,
    assert_counter_grows,
    errno_raised_by,
    octet_pattern,
    poll,
    wait_until,
)

from siwarp.inspect import DDPDatagram, Opcode, PrivateHead, UDDatagram, dissect
from siwarp.verbs import (
    QP,
    ErrorPolicy,
    QPAttr,
    QPState,
    RecvWR,
    SendFlag,
    SendWR,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
    capture,
)

crc32c = crcmod.predefined.mkCrcFun("crc-32c")
IMM = 0x01020304
SIGNALED, SOLICITED, INLINE = SendFlag.SIGNALED, SendFlag.SOLICITED, SendFlag.INLINE
WITH_IMM = WROpcode.SEND_WITH_IMM


def make_immediate_header(subcode: int = 1, imm: int = IMM) -> bytes:
    """Return the 8-octet header of a Send with Immediate (figure 10.2 of the specification)."""
    return bytes([subcode, 0, 0, 0]) + struct.pack("=I", imm)


def check_send_with_immediate_datagram(
    octets: bytes, payload: bytes, msn: int, subcode: int = 1
) -> None:
    """Assert that a datagram is a Send with Immediate of this payload, MSN and subcode."""
    assert int.from_bytes(octets[-4:], "little") == crc32c(octets[:-4])
    seg = UDDatagram(octets).segment
    assert (seg.t, seg.l, seg.dv, seg.rv, seg.opcode) == (0, 1, 1, 1, Opcode.PRIVATE)
    assert (seg.q_key, seg.qn, seg.msn, seg.mo) == (QKEY, 0, msn, 0)
    assert seg[PrivateHead].subcode == subcode
    assert octets[18:-4] == make_immediate_header(subcode) + payload


def qp_and_plain_peer(rig: Rig, host: str, **kwargs: int) -> tuple[QP, PlainUDPSocket]:
    qp = rig.create_ud_qp(qkey=QKEY, addr=(host, 0), max_inline_data=300, **kwargs)
    return qp, PlainUDPSocket(host)


@pytest.mark.clause("DGRAM-UD-19")
@pytest.mark.parametrize("flags", [SIGNALED, SIGNALED | SOLICITED, SIGNALED | INLINE])
@pytest.mark.parametrize("size", [0, 1, 64, 300, 4080, 4088, 4089, 9000])
def test_a_ud_send_with_immediate_is_one_datagram_that_begins_with_a_header(
    rig: Rig, size: int, flags: SendFlag
) -> None:
    if flags & INLINE and size > 300:
        size = 299
    qp, who = qp_and_plain_peer(rig, "127.0.0.1")
    mr = rig.reg_mr(bytearray(octet_pattern(size + 1)))
    with who:
        wr = SendWR(
            1, WITH_IMM, sg=[mr.sge(0, size)], send_flags=flags, imm_data=IMM,
            ah=rig.create_ah(who.getsockname()),
        )  # fmt: skip
        qp.post_send(wr)
        (done,) = poll(qp.scq)
        assert (done.wr_id, done.status, done.opcode) == (1, WCStatus.SUCCESS, WCOpcode.SEND)
        check_send_with_immediate_datagram(
            who.recv(1 << 16), octet_pattern(size), 1, 2 if flags & SOLICITED else 1
        )


@pytest.mark.clause("DGRAM-UD-19")
def test_the_completion_of_a_ud_send_with_immediate_has_immediate_data_and_length(rig: Rig) -> None:
    ends = Pair(rig)
    for i, size in enumerate([0, 1, 64, 5000, 65_477]):
        data = octet_pattern(size, i)
        ends.post_receive(i)
        ends.send(data, opcode=WITH_IMM, imm_data=IMM + i)
        assert poll(ends.scq)[0].ok
        (wc,) = poll(ends.rcq)
        assert (wc.wr_id, wc.opcode, wc.byte_len) == (i, WCOpcode.RECV, size)
        assert (wc.wc_flags, wc.imm_data) == (WCFlag.WITH_IMM, IMM + i)
        assert (wc.source, wc.src_qp) == (ends.a.addr, ends.a.qp_num)
        assert ends.into.read(size) == data
        ends.post_receive(9)
        ends.send(data[:100])
        (wc,) = poll(ends.rcq)
        assert (wc.byte_len, wc.wc_flags, wc.imm_data) == (len(data[:100]), 0, 0)
        assert poll(ends.scq)[0].ok


@pytest.mark.clause("DGRAM-UD-20")
@pytest.mark.parametrize(("host", "most"), [("127.0.0.1", 65_477), ("::1", 65_497)])
def test_the_maximum_ud_send_with_immediate_is_8_octets_shorter_than_a_send(
    rig: Rig, host: str, most: int
) -> None:
    ends = Pair(rig, host=host)
    ends.post_receive()
    ends.send(octet_pattern(most), opcode=WITH_IMM, imm_data=IMM)
    assert poll(ends.scq)[0].ok
    assert (poll(ends.rcq)[0].byte_len, ends.into.read(most)) == (most, octet_pattern(most))
    ends.send(octet_pattern(most + 1), opcode=WITH_IMM, imm_data=IMM)
    assert poll(ends.scq)[0].status == WCStatus.LOC_LEN_ERR
    ends.a.to_rts()
    ends.post_receive()
    ends.send(octet_pattern(most + 1))
    assert (poll(ends.scq)[0].status, poll(ends.rcq)[0].byte_len) == (WCStatus.SUCCESS, most + 1)


@pytest.mark.clause("DGRAM-UD-2")
@pytest.mark.parametrize("subcode", [1, 2])
def test_only_a_solicited_ud_send_with_immediate_notifies_a_cq_armed_for_solicited_events(
    rig: Rig, subcode: int
) -> None:
    channel = rig.create_channel()
    cq = rig.create_cq(channel=channel)
    qp = rig.create_ud_qp(cq, qkey=QKEY)
    qp.post_recv([RecvWR(1), RecvWR(2)])
    cq.req_notify(solicited_only=True)
    with PlainUDPSocket() as who:
        who.sendto(build_datagram(make_immediate_header(subcode), opcode=Opcode.PRIVATE), qp.addr)
        if subcode == 1:
            wait_until(lambda: cq.poll(1))
            assert channel.get_cq_event(0) is None
            who.sendto(build_datagram(make_immediate_header(2), opcode=Opcode.PRIVATE), qp.addr)
        assert channel.get_cq_event(10) is cq
        cq.ack_events(1)
        (wc,) = poll(cq)
        assert (wc.wr_id, wc.imm_data) == (3 - subcode, IMM)


@pytest.mark.parametrize("inline", [False, True])
def test_batches_may_mix_sends_with_and_without_immediate(rig: Rig, inline: bool) -> None:
    qp, who = qp_and_plain_peer(rig, "127.0.0.1", max_send_wr=128)
    data = octet_pattern(200)
    mr = rig.reg_mr(bytearray(data))
    flags = SIGNALED | (INLINE if inline else 0)
    with who:
        ah = rig.create_ah(who.getsockname())
        # Messages of equal size on the wire, with or without the header; then other sizes.
        sizes = [64, 72] * 20 + [64, 64, 200, 0, 5]
        wrs = [
            SendWR(
                i, WITH_IMM if i % 2 == 0 else WROpcode.SEND, sg=[mr.sge(0, size)],
                send_flags=flags, imm_data=IMM if i % 2 == 0 else 0, ah=ah,
            )
            for i, size in enumerate(sizes)
        ]  # fmt: skip
        qp.post_send(wrs)
        assert [w.wr_id for w in poll(qp.scq, len(wrs)) if w.ok] == list(range(len(wrs)))
        for i, size in enumerate(sizes):
            octets = who.recv(1 << 16)
            if i % 2 == 0:
                check_send_with_immediate_datagram(octets, data[:size], i + 1)
            else:
                assert DDPDatagram(octets).opcode == Opcode.SEND
                assert octets[18:-4] == data[:size]


@pytest.mark.clause("DGRAM-UD-21", "DGRAM-ERR-1")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        make_immediate_header()[:7],
        make_immediate_header(0),
        make_immediate_header(3),
        make_immediate_header(0xFF),
        make_immediate_header(4) + b"more",
    ],
)
def test_an_undefined_private_message_on_ud_is_an_unexpected_opcode(
    rig: Rig, payload: bytes
) -> None:
    qp = rig.create_ud_qp(qkey=QKEY, error_policy=ErrorPolicy.MESSAGE)
    qp.post_recv(RecvWR(1))
    with PlainUDPSocket() as who, assert_counter_grows("drop_opcode", 1):
        who.sendto(build_datagram(payload, opcode=Opcode.PRIVATE, msn=5), qp.addr)
        (found,) = wait_until(qp.errors)
        _, told = parse_error_message(who.recv(1 << 16))
        assert (told.layer, told.etype, told.code) == OPCODE
        assert (found.layer, found.type, found.code, found.msn) == (*OPCODE, 5)
        assert qp.rcq.poll(1) == []


def test_a_ud_send_with_immediate_longer_than_its_receive_is_a_length_error(rig: Rig) -> None:
    qp = rig.create_ud_qp(qkey=QKEY)
    mr = rig.reg_mr(bytearray(b"." * 20))
    qp.post_recv([RecvWR(1, sg=[mr.sge(0, 10)]), RecvWR(2, sg=[mr.sge(10, 10)])])
    with PlainUDPSocket() as who, assert_counter_grows("drop_too_long", 1):
        who.sendto(
            build_datagram(make_immediate_header() + b"x" * 10, opcode=Opcode.PRIVATE), qp.addr
        )
        who.sendto(
            build_datagram(make_immediate_header() + b"y" * 11, opcode=Opcode.PRIVATE), qp.addr
        )
        good, bad = poll(qp.rcq, 2)
        assert (good.status, good.byte_len, good.imm_data) == (WCStatus.SUCCESS, 10, IMM)
        assert (bad.status, bad.byte_len, bad.wc_flags) == (WCStatus.LOC_LEN_ERR, 11, 0)
        assert mr.read(20) == b"x" * 10 + b"." * 10
        _, told = parse_error_message(who.recv(1 << 16))
        assert (told.layer, told.etype, told.code) == TOO_LONG


def test_each_queue_pair_on_one_socket_receives_its_own_immediate_data(rig: Rig) -> None:
    first = rig.create_ud_qp(qkey=QKEY)
    second = rig.create_ud_qp(qkey=QKEY, shared_socket_qp=first)
    sender = rig.create_ud_qp(qkey=QKEY, shared_socket_qp=first)
    ah = rig.create_ah(first)
    for n, qp in enumerate((first, second)):
        qp.post_recv(RecvWR(7))
        wr = SendWR(1, WITH_IMM, ah=ah, remote_qpn=qp.qp_num, imm_data=IMM + n)
        sender.post_send(wr)
        (wc,) = poll(qp.rcq)
        assert (wc.wr_id, wc.imm_data, wc.src_qp) == (7, IMM + n, sender.qp_num)


@pytest.mark.clause("DGRAM-MCAST-10")
def test_every_multicast_member_receives_the_immediate_data(rig: Rig) -> None:
    group = "239.192.7.92"
    members = [rig.create_ud_qp(qkey=QKEY) for _ in range(3)]
    mr = rig.reg_mr(bytearray(16 * 3))
    for i, qp in enumerate(members):
        qp.attach_mcast(group)
        qp.post_recv(RecvWR(i, sg=[mr.sge(16 * i, 16)]))
    sender = rig.create_ud_qp(qkey=QKEY)
    out = rig.reg_mr(bytearray(b"all of you"))
    sender.post_send(
        SendWR(1, WITH_IMM, sg=[out.sge()], ah=rig.create_ah((group, 0)), imm_data=IMM)
    )
    for i, qp in enumerate(members):
        (wc,) = poll(qp.rcq)
        assert (wc.wr_id, wc.byte_len, wc.wc_flags, wc.imm_data) == (i, 10, WCFlag.WITH_IMM, IMM)
        assert mr.read(10, 16 * i) == b"all of you"


def test_a_send_with_immediate_posted_in_sqd_keeps_its_immediate_data(rig: Rig) -> None:
    qp, who = qp_and_plain_peer(rig, "127.0.0.1")
    out = rig.reg_mr(bytearray(b"later"))
    with who:
        qp.modify(QPAttr(qp_state=QPState.SQD))
        wr = SendWR(1, WITH_IMM, sg=[out.sge()], ah=rig.create_ah(who.getsockname()), imm_data=IMM)
        qp.post_send(wr)
        assert qp.scq.poll(1) == []
        qp.to_rts()
        assert poll(qp.scq)[0].ok
        check_send_with_immediate_datagram(who.recv(1 << 16), b"later", 1)


def test_posting_opcodes_that_ud_does_not_support_is_refused(rig: Rig) -> None:
    qp, who = qp_and_plain_peer(rig, "127.0.0.1")
    with who:
        ah = rig.create_ah(who.getsockname())
        for opcode in (WROpcode.RDMA_WRITE_WITH_IMM, WROpcode.SEND_WITH_INV, WROpcode.RDMA_READ):
            assert errno_raised_by(qp.post_send, SendWR(1, opcode, ah=ah)) == errno.EINVAL
        assert who.has_empty_buffer()


def test_a_capture_shows_immediate_data_without_errors(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "imm.pcapng"
    ends = Pair(rig)
    with capture(file):
        ends.post_receive()
        ends.send(b"seen", opcode=WITH_IMM, imm_data=IMM)
        poll(ends.rcq)
        poll(ends.scq)
    found = [m for m in dissect(file) if m.source.endswith(f":{ends.a.addr[1]}")]
    assert found
    for message in found:
        assert (message.kind, message.error, message.length) == ("PRIVATE", None, 12)
        assert message.fields["subcode"] == 1
        assert message.fields["data"] == int.from_bytes(struct.pack("=I", IMM), "big")
