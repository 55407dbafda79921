"""Immediate data on UC is sent in the message of a Send, or in a second message after a Write."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from harness.uc_harness import QKEY, PlainUCPeer, UCPair, crc32c
from harness.verbs_harness import Rig, assert_counter_grows, octet_pattern

from siwarp.inspect import UC_FIRST, DDPTagged, DDPUntagged, Opcode, UCDatagram
from siwarp.verbs import SendFlag, SendWR, WCFlag, WCOpcode, WROpcode

PRIVATE = 15
IMM = 0x01020304
SIZES = [0, 1, 64, 5000, 65465, 65466, 100000]


@pytest.fixture
def uc_peer(rig: Rig) -> Iterator[PlainUCPeer]:
    made = PlainUCPeer(rig, attrs={"path_mtu": 256})
    yield made
    made.close()


def encode_native_uint32(value: int) -> bytes:
    return struct.pack("=I", value)


@pytest.mark.clause("DGRAM-UC-19", "DGRAM-UC-20")
def test_immediate_data_arrives_with_uc_messages_of_every_size(rig: Rig) -> None:
    ends = UCPair(rig)
    for i, size in enumerate(SIZES):
        data = octet_pattern(size, i)
        ends.post_receive(1)
        ends.send(data, 2, opcode=WROpcode.SEND_WITH_IMM, imm_data=IMM + i)
        assert ends.poll_sends()[0].opcode == WCOpcode.SEND
        (got,) = ends.poll_receives()
        assert (got.opcode, got.byte_len, got.wc_flags) == (WCOpcode.RECV, size, WCFlag.WITH_IMM)
        assert got.imm_data == IMM + i
        assert ends.into.read(size) == data
        ends.post_receive(3, 0)
        remote = ends.into.remote(0, size)
        ends.send(
            data[::-1], 4, opcode=WROpcode.RDMA_WRITE_WITH_IMM, remote=remote, imm_data=IMM - i
        )
        assert ends.poll_sends()[0].opcode == WCOpcode.RDMA_WRITE
        (got,) = ends.poll_receives()
        assert (got.wr_id, got.opcode, got.byte_len) == (3, WCOpcode.RECV_RDMA_WITH_IMM, size)
        assert (got.wc_flags, got.imm_data) == (WCFlag.WITH_IMM, IMM - i)
        assert ends.into.read(size) == data[::-1]


@pytest.mark.clause("DGRAM-UC-19")
@pytest.mark.clause("DGRAM-UC-20")
def test_immediate_data_follows_a_uc_write_sent_in_several_rounds(rig: Rig) -> None:
    size = 400_000  # UC sends two datagrams of almost 64 KiB per round
    ends = UCPair(rig, size=size)
    data = octet_pattern(size)
    ends.post_receive(1, 0)
    remote = ends.into.remote(0, size)
    ends.send(data, opcode=WROpcode.RDMA_WRITE_WITH_IMM, remote=remote, imm_data=IMM)
    (got,) = ends.poll_receives()
    assert (got.wr_id, got.opcode, got.byte_len) == (1, WCOpcode.RECV_RDMA_WITH_IMM, size)
    assert ends.into.read(size) == data
    assert ends.poll_sends()[0].ok


@pytest.mark.parametrize("solicited", [False, True])
def test_a_uc_send_with_immediate_begins_with_a_header_of_8_octets(
    uc_peer: PlainUCPeer, solicited: bool
) -> None:
    data = octet_pattern(300)
    uc_peer.memory.write(data)
    flags = SendFlag.SIGNALED | (SendFlag.SOLICITED if solicited else 0)
    wr = SendWR(
        1, WROpcode.SEND_WITH_IMM, sg=[uc_peer.memory.sge(0, 300)], send_flags=flags, imm_data=IMM
    )
    uc_peer.qp.post_send(wr)
    head = bytes([2 if solicited else 1, 0, 0, 0]) + encode_native_uint32(IMM)
    for mo, octets in ((0, head + data[:248]), (256, data[248:])):
        got = uc_peer.receive_datagram()
        found = UCDatagram(got)
        assert found.crc == crc32c(got[:-4])
        assert (found.psn, found.flags) == (int(mo > 0), UC_FIRST * (mo == 0))
        assert (found.segment.opcode, found.segment.mo, found.segment.l) == (PRIVATE, mo, mo > 0)
        assert got[30:-4] == octets


@pytest.mark.clause("DGRAM-UC-20")
@pytest.mark.parametrize("solicited", [False, True])
def test_a_uc_write_with_immediate_is_one_operation_of_two_messages(
    uc_peer: PlainUCPeer, solicited: bool
) -> None:
    flags = SendFlag.SIGNALED | (SendFlag.SOLICITED if solicited else 0)
    wr = SendWR(
        1,
        WROpcode.RDMA_WRITE_WITH_IMM,
        sg=[uc_peer.memory.sge(0, 300)],
        remote=uc_peer.memory.remote(),
        send_flags=flags,
        imm_data=IMM,
    )
    uc_peer.qp.post_send(wr)
    for i in range(2):
        found = UCDatagram(uc_peer.receive_datagram())
        assert isinstance(found.segment, DDPTagged)
        assert (found.psn, found.flags) == (i, UC_FIRST * (i == 0))
        assert (found.segment.opcode, found.segment.l) == (Opcode.RDMA_WRITE, i)
    got = uc_peer.receive_datagram()
    found = UCDatagram(got)
    assert (found.psn, found.flags, found.q_key) == (2, 0, QKEY)
    assert found.segment.opcode == (9 if solicited else 8)
    assert (found.segment.qn, found.segment.mo, found.segment.l) == (0, 0, 1)
    assert got[30:-4] == encode_native_uint32(IMM) + bytes(4)


def build_immediate_data_datagram(
    peer: PlainUCPeer, first: bool = False, data: bytes | None = None
) -> bytes:
    head = DDPUntagged(opcode=8, msn=50)
    octets = encode_native_uint32(IMM) + bytes(4) if data is None else data
    return peer.build_datagram(bytes(head) + octets, first=first)


@pytest.mark.parametrize("octets", [b"", bytes(7), bytes(9)])
def test_uc_immediate_data_of_other_than_8_octets_is_dropped(
    uc_peer: PlainUCPeer, octets: bytes
) -> None:
    uc_peer.post_receive(1)
    with assert_counter_grows("drop_header", 1):
        uc_peer.send_datagrams(
            build_immediate_data_datagram(uc_peer, first=True, data=octets),
            *uc_peer.build_send(b"good"),
        )
        assert uc_peer.poll_completions()[0].byte_len == 4


@pytest.mark.parametrize("octets", [b"", bytes(7), b"\x09" + bytes(7), b"\x03" + bytes(19)])
def test_an_undefined_private_message_on_uc_is_dropped(uc_peer: PlainUCPeer, octets: bytes) -> None:
    uc_peer.post_receive(1)
    with assert_counter_grows("drop_opcode", 1):
        uc_peer.send_datagrams(
            uc_peer.build_datagram(bytes(DDPUntagged(opcode=PRIVATE)) + octets, first=True)
        )
        uc_peer.send_datagrams(*uc_peer.build_send(b"good"))
        assert uc_peer.poll_completions()[0].byte_len == 4
