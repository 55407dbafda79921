"""Immediate data on UC: in the message of a Send, and in a second message after a Write."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from harness.uc_harness import PlainUCPeer
from harness.verbs_harness import Rig, assert_counter_grows, assert_no_completion, octet_pattern

from siwarp.inspect import DDPUntagged
from siwarp.verbs import WCOpcode

IMM = 0x01020304


@pytest.fixture
def uc_peer(rig: Rig) -> Iterator[PlainUCPeer]:
    made = PlainUCPeer(rig, attrs={"path_mtu": 256})
    yield made
    made.close()


def encode_native_uint32(value: int) -> bytes:
    return struct.pack("=I", value)


def build_immediate(uc_peer: PlainUCPeer, first: bool = False, data: bytes | None = None) -> bytes:
    head = DDPUntagged(opcode=8, msn=50)
    octets = encode_native_uint32(IMM) + bytes(4) if data is None else data
    return uc_peer.build_datagram(bytes(head) + octets, first=first)


@pytest.mark.clause("DGRAM-UC-20")
@pytest.mark.parametrize("lost", range(4))
def test_immediate_data_after_a_uc_write_that_lost_a_datagram_is_not_delivered(
    uc_peer: PlainUCPeer, lost: int
) -> None:
    uc_peer.post_receive(1)
    cut = [
        *uc_peer.build_write(octet_pattern(300), uc_peer.memory.rkey, uc_peer.memory.addr, 100),
        build_immediate(uc_peer),
    ]
    with assert_counter_grows("uc_missing", 1), assert_counter_grows("drop_partial", int(lost < 3)):
        uc_peer.send_datagrams(*cut[:lost], *cut[lost + 1 :])
        assert_no_completion(uc_peer.cq)
        uc_peer.send_datagrams(
            *uc_peer.build_write(b"x", uc_peer.memory.rkey, uc_peer.memory.addr),
            build_immediate(uc_peer),
        )
        (got,) = uc_peer.poll_completions()
    assert (got.wr_id, got.opcode, got.byte_len) == (1, WCOpcode.RECV_RDMA_WITH_IMM, 1)


@pytest.mark.clause("DGRAM-UC-20")
def test_immediate_data_after_a_refused_uc_write_is_not_delivered(uc_peer: PlainUCPeer) -> None:
    uc_peer.post_receive(1)
    with assert_counter_grows("drop_access", 1), assert_counter_grows("drop_partial", 1):
        uc_peer.send_datagrams(*uc_peer.build_write(b"x", 1, 0), build_immediate(uc_peer))
        assert_no_completion(uc_peer.cq)
    uc_peer.send_datagrams(build_immediate(uc_peer, first=True))
    (got,) = uc_peer.poll_completions()
    assert (got.byte_len, got.imm_data) == (0, IMM)


def test_immediate_data_on_uc_needs_a_receive(uc_peer: PlainUCPeer) -> None:
    with assert_counter_grows("drop_no_buffer", 1):
        uc_peer.send_datagrams(build_immediate(uc_peer, first=True))
        assert_no_completion(uc_peer.cq)
    uc_peer.post_receive(1)
    uc_peer.send_datagrams(*uc_peer.build_send(b"good"))
    assert uc_peer.poll_completions()[0].byte_len == 4
