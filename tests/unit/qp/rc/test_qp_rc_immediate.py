"""Write with Immediate and Send with Immediate through queue pairs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from harness.peer_harness import PlainPeer, connected_plain_peer
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import Rig, octet_pattern, poll

from siwarp.inspect import DDPUntagged, ImmediateData, Opcode, Queue
from siwarp.verbs import (
    AccessFlag,
    Error,
    Persona,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)

WRITE_IMM, SEND_IMM = WROpcode.RDMA_WRITE_WITH_IMM, WROpcode.SEND_WITH_IMM
IMM = 0x01C2_83FE
THERE = RemoteBuffer(0x1000, 1 << 20, 0x123456)
SIZES = [0, 1, 64, 4096, 64750, 64768, 65536, (3 << 20) + 5]


def post_with_immediate(
    end: End,
    opcode: WROpcode,
    wr_id: int = 2,
    *,
    imm: int = IMM,
    length: int = 0,
    remote: RemoteBuffer | None = None,
    flags: int = SendFlag.SIGNALED,
) -> None:
    sg = [end.mem.sge(0, length)] if length else []
    end.qp.post_send(SendWR(wr_id, opcode, sg=sg, remote=remote, send_flags=flags, imm_data=imm))


@pytest.fixture(scope="module")
def connected_pair() -> Iterator[tuple[End, End]]:
    """Provide two connected endpoints, each of which knows that its peer is siwarp."""
    a, b = Rig(), Rig()
    made = ListenerAndConnector(a, b).connect(
        size=4 << 20, max_send_sge=16, max_recv_sge=16, max_inline_data=256, max_send_wr=64
    )
    yield made
    a.close()
    b.close()


# ---- Write with Immediate


@pytest.mark.clause("DGRAM-IMM-3", "DGRAM-IMM-4")
@pytest.mark.parametrize("size", SIZES)
def test_a_write_with_immediate_consumes_a_receive_without_writing_to_its_buffer(
    connected_pair: tuple[End, End], size: int
) -> None:
    a, b = connected_pair
    data = octet_pattern(size, size)
    a.mem.write(data)
    b.mem.view[: size + 64] = b"\xee" * (size + 64)
    there = len(b.mem.view) - 64
    b.mem.view[there:] = b"\xdd" * 64
    b.post_receive(wr_id=7, offset=there, length=64)
    post_with_immediate(a, WRITE_IMM, 8, length=size, remote=b.mem.remote(16, size))
    (sent,), (got,) = poll(a.scq), poll(b.rcq)
    assert (sent.wr_id, sent.ok, sent.opcode) == (8, True, WCOpcode.RDMA_WRITE)
    assert (got.wr_id, got.ok, got.opcode) == (7, True, WCOpcode.RECV_RDMA_WITH_IMM)
    assert (got.wc_flags, got.imm_data, got.byte_len) == (WCFlag.WITH_IMM, IMM, size)
    assert got.invalidated_rkey is None and "imm_data=0x1c283fe" in repr(got)
    assert b.mem.read(size, 16) == data
    assert b.mem.read(16) == b"\xee" * 16 and b.mem.read(48, size + 16) == b"\xee" * 48
    assert b.mem.read(64, there) == b"\xdd" * 64


@pytest.mark.clause("DGRAM-IMM-3")
def test_a_write_with_immediate_may_consume_a_receive_without_elements(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    b.qp.post_recv(RecvWR(3))
    post_with_immediate(a, WRITE_IMM, length=100, remote=b.mem.remote(0, 100))
    (got,) = poll(b.rcq)
    assert (got.wr_id, got.opcode, got.byte_len) == (3, WCOpcode.RECV_RDMA_WITH_IMM, 100)
    assert poll(a.scq)[0].ok


def test_a_write_with_immediate_may_be_inline(connected_pair: tuple[End, End]) -> None:
    a, b = connected_pair
    b.qp.post_recv(RecvWR(3))
    a.mem.write(octet_pattern(200))
    flags = SendFlag.INLINE | SendFlag.SIGNALED
    post_with_immediate(a, WRITE_IMM, length=200, remote=b.mem.remote(0, 200), flags=flags)
    a.mem.view[:200] = bytes(200)
    assert poll(b.rcq)[0].byte_len == 200 and poll(a.scq)[0].ok
    assert b.mem.read(200) == octet_pattern(200)


def test_requests_of_all_opcodes_complete_in_posting_order(connected_pair: tuple[End, End]) -> None:
    a, b = connected_pair
    for i in range(6):
        b.post_receive(wr_id=i, offset=1 << 20, length=1000)
    remote = b.mem.remote(0, 1 << 20)
    for i, (opcode, length) in enumerate(
        [
            (SEND, 10),
            (WRITE_IMM, 700_000),
            (WRITE, 5000),
            (WRITE_IMM, 0),
            (SEND_IMM, 20),
            (READ, 30),
            (WRITE_IMM, 40),
            (SEND, 50),
        ]
    ):
        # Reads use a separate memory area, which no other request sends or writes.
        if opcode == READ:
            a.post(READ, i, offset=1 << 21, length=length, remote=b.mem.remote(1 << 21, length))
            continue
        to = None if opcode in (SEND, SEND_IMM) else remote
        post_with_immediate(
            a, opcode, i, length=length, remote=to, imm=0 if opcode in (SEND, WRITE) else i
        )
    got = poll(b.rcq, 6)
    imm, plain = WCOpcode.RECV_RDMA_WITH_IMM, WCOpcode.RECV
    assert [(w.wr_id, w.opcode, w.byte_len) for w in got] == [
        (0, plain, 10),
        (1, imm, 700_000),
        (2, imm, 0),
        (3, plain, 20),
        (4, imm, 40),
        (5, plain, 50),
    ]
    assert [w.imm_data for w in got if w.wc_flags & WCFlag.WITH_IMM] == [1, 3, 4, 6]
    assert [w.wr_id for w in poll(a.scq, 8)] == list(range(8))


@pytest.mark.clause("DGRAM-IMM-1", "DGRAM-IMM-2")
@pytest.mark.parametrize("solicited", [False, True])
def test_a_write_with_immediate_is_sent_as_a_write_followed_by_immediate_data(
    connector: ListenerAndConnector, solicited: bool
) -> None:
    with connected_plain_peer(connector) as (a, peer):
        a.mem.write(octet_pattern(100))
        flags = SendFlag.SIGNALED | (SendFlag.SOLICITED if solicited else 0)
        post_with_immediate(a, SEND, 1, imm=0)
        post_with_immediate(a, WRITE_IMM, 2, length=100, remote=THERE, flags=flags)
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        head, octets = peer.receive_segment()
        assert (head.opcode, head.stag, head.to) == (Opcode.RDMA_WRITE, THERE.rkey, THERE.addr)
        assert octets == octet_pattern(100)
        head, octets = peer.receive_segment()
        opcode = Opcode.IMMEDIATE_SE if solicited else Opcode.IMMEDIATE
        assert (head.opcode, head.qn, head.msn, head.mo) == (opcode, Queue.SEND, 2, 0)
        assert (head.inv_stag, head.l, head.rv) == (0, 1, 1)
        assert octets == IMM.to_bytes(4, sys.byteorder) + bytes(4)
        assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]


def build_immediate_data_segment(peer: PlainPeer, octets: bytes = bytes(8), **fields: Any) -> bytes:
    peer.sends += 1
    head = {"opcode": Opcode.IMMEDIATE, "qn": Queue.SEND, "msn": peer.sends, **fields}
    return bytes(DDPUntagged(**head)) + octets


@pytest.mark.clause("DGRAM-IMM-2", "DGRAM-IMM-4")
def test_immediate_data_without_a_preceding_write_completes_with_length_0(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector) as (a, peer):
        for i in range(6):
            a.post_receive(wr_id=i, length=10)
        octets = bytes(ImmediateData(data=0x41424344, rest=0x45464748))
        write = peer.build_write(octet_pattern(33), a.mem.rkey, a.mem.addr + 100)
        peer.send_segments(
            build_immediate_data_segment(peer, octets),
            write,
            build_immediate_data_segment(peer),
            peer.build_send(b"x"),
            build_immediate_data_segment(peer),
        )
        peer.send_segments(write, peer.build_send(b"between"), build_immediate_data_segment(peer))
        got = poll(a.rcq, 6)
        assert [w.byte_len for w in got] == [0, 33, 1, 0, 7, 0]
        assert got[0].imm_data.to_bytes(4, sys.byteorder) == b"ABCD"


@pytest.mark.parametrize("size", [0, 4, 7, 9, 100])
def test_immediate_data_of_other_than_8_octets_ends_the_connection(
    connector: ListenerAndConnector, size: int
) -> None:
    with connected_plain_peer(connector, gone=True) as (a, peer):
        a.post_receive(wr_id=4, length=200)
        a.mem.view[:200] = bytes(200)
        peer.send_segments(build_immediate_data_segment(peer, b"\xaa" * size))
        told = peer.receive_terminate()
        assert (told.layer, told.etype, told.code) == (0, 2, 0xFF)
        (got,) = poll(a.rcq)
        assert (got.wr_id, got.status) == (4, WCStatus.WR_FLUSH_ERR)
        assert a.mem.read(200) == bytes(200)


def test_a_write_with_immediate_without_a_posted_receive_ends_the_connection(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect()
    post_with_immediate(a, WRITE_IMM, 6, length=10, remote=b.mem.remote(0, 10))
    # With persona iwarp, a Write with Immediate completes once TCP has accepted it, possibly before
    # the Terminate ends the connection.
    (done,) = poll(a.scq)
    assert done.status in (WCStatus.SUCCESS, WCStatus.RNR_RETRY_EXC_ERR)
    b.wait_for_error_state()
    a.wait_for_error_state()


def test_a_refused_write_with_immediate_consumes_no_receive(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(persona=Persona.ROCE)
    mr = b.rig.reg_mr(bytearray(100), AccessFlag.LOCAL_WRITE)
    b.post_receive(wr_id=5)
    post_with_immediate(a, WRITE_IMM, 6, length=10, remote=mr.remote(0, 10))
    (done,) = poll(a.scq)
    assert (done.wr_id, done.status) == (6, WCStatus.REM_ACCESS_ERR)
    assert (poll(b.rcq)[0].status) == WCStatus.WR_FLUSH_ERR


def test_only_a_solicited_write_with_immediate_notifies_a_cq_armed_for_solicited_events(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    for i in range(2):
        b.qp.post_recv(RecvWR(i))
    b.rcq.req_notify(solicited_only=True)
    post_with_immediate(a, WRITE_IMM, 1, remote=b.mem.remote(0, 8))
    assert poll(b.rcq)[0].ok
    assert b.events.get_cq_event(0) is None
    post_with_immediate(a, WRITE_IMM, 2, remote=b.mem.remote(0, 8), flags=SendFlag.SOLICITED)
    assert b.events.get_cq_event(10) is b.rcq
    assert poll(b.rcq)[0].wr_id == 1


# ---- Send with Immediate


@pytest.mark.clause("DGRAM-IMM-5")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("solicited", [False, True])
def test_a_send_with_immediate_delivers_its_payload_and_immediate_data(
    connected_pair: tuple[End, End], size: int, solicited: bool
) -> None:
    a, b = connected_pair
    data = octet_pattern(size, size)
    a.mem.write(data)
    b.mem.view[: size + 64] = b"\xee" * (size + 64)
    b.post_receive(wr_id=7, length=size)
    flags = SendFlag.SIGNALED | (SendFlag.SOLICITED if solicited else 0)
    post_with_immediate(a, SEND_IMM, 8, length=size, flags=flags)
    (sent,), (got,) = poll(a.scq), poll(b.rcq)
    assert (sent.wr_id, sent.ok, sent.opcode) == (8, True, WCOpcode.SEND)
    assert (got.wr_id, got.ok, got.opcode, got.byte_len) == (7, True, WCOpcode.RECV, size)
    assert (got.wc_flags, got.imm_data) == (WCFlag.WITH_IMM, IMM)
    assert b.mem.read(size) == data and b.mem.read(64, size) == b"\xee" * 64


def test_a_send_with_immediate_may_have_16_scatter_gather_elements(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    a.mem.write(octet_pattern(1 << 17))
    size = 3000
    b.qp.post_recv(RecvWR(1, sg=[b.mem.sge(i * size, size) for i in range(16)]))
    pieces = [a.mem.sge(2 * i * size, size) for i in range(16)]
    a.qp.post_send(SendWR(2, SEND_IMM, sg=pieces, imm_data=9))
    (got,) = poll(b.rcq)
    assert (got.ok, got.byte_len, got.imm_data) == (True, 16 * size, 9)
    assert poll(a.scq)[0].ok
    want = b"".join(a.mem.read(size, 2 * i * size) for i in range(16))
    assert b.mem.read(16 * size) == want


def test_a_send_with_immediate_longer_than_its_receive_is_a_length_error(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect()
    b.post_receive(wr_id=1, length=99)
    post_with_immediate(a, SEND_IMM, length=100)
    (got,) = poll(b.rcq)
    assert (got.wr_id, got.status) == (1, WCStatus.LOC_LEN_ERR)
    a.wait_for_error_state()


@pytest.mark.clause("DGRAM-IMM-7")
def test_send_with_immediate_is_refused_if_the_peer_is_not_known_to_be_siwarp(
    connector: ListenerAndConnector,
) -> None:
    with (
        connected_plain_peer(connector) as (a, _),
        pytest.raises(Error, match="private_messages"),
    ):
        post_with_immediate(a, SEND_IMM, length=10)


@pytest.mark.clause("DGRAM-IMM-8")
def test_send_with_immediate_from_a_peer_not_known_to_be_siwarp_is_an_unexpected_opcode(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, gone=True) as (a, peer):
        a.mem.view[:100] = bytes(100)
        a.post_receive(wr_id=4, length=100)
        peer.send_segments(peer.build_send(b"\1\0\0\0IMM!body", opcode=15))
        told = peer.receive_terminate()
        assert (told.layer, told.etype, told.code) == (0, 2, 6)
        assert poll(a.rcq)[0].status == WCStatus.WR_FLUSH_ERR
        assert a.mem.read(100) == bytes(100)


@pytest.mark.clause("DGRAM-IMM-9")
@pytest.mark.parametrize("body", [b"", b"\1\0\0", b"\0" * 8, b"\3" + bytes(20)])
def test_an_undefined_private_message_ends_the_connection(
    connector: ListenerAndConnector, body: bytes
) -> None:
    with connected_plain_peer(connector, gone=True, private_messages=True) as (a, peer):
        a.post_receive(wr_id=4, length=200)
        peer.send_segments(peer.build_send(body, opcode=15))
        told = peer.receive_terminate()
        assert (told.layer, told.etype, told.code) == (0, 2, 6)
        (got,) = poll(a.rcq)
        assert (got.wr_id, got.status) == (4, WCStatus.WR_FLUSH_ERR)


@pytest.mark.clause("DGRAM-IMM-5", "DGRAM-IMM-6")
def test_a_send_with_immediate_is_sent_with_the_private_opcode_and_a_header(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, private_messages=True) as (a, peer):
        a.mem.write(b"payload!")
        for flags, subcode in ((0, 1), (SendFlag.SOLICITED, 2)):
            post_with_immediate(a, SEND_IMM, length=8, flags=flags | SendFlag.SIGNALED)
            head, octets = peer.receive_segment()
            assert (head.opcode, head.qn, head.msn, head.mo) == (15, 0, subcode, 0)
            imm = IMM.to_bytes(4, sys.byteorder)
            assert octets == bytes([subcode, 0, 0, 0]) + imm + b"payload!"
            assert poll(a.scq)[0].ok
        a.post_receive(wr_id=1, length=5)
        first = peer.build_send(b"\1\0\0\0AB", opcode=15, l=0)
        peer.sends -= 1
        peer.send_segments(first, peer.build_send(b"CDhello", opcode=15, mo=6))
        (got,) = poll(a.rcq)
        assert (got.ok, got.byte_len, a.mem.read(5)) == (True, 5, b"hello")
        assert got.imm_data.to_bytes(4, sys.byteorder) == b"ABCD"
