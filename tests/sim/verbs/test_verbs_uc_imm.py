"""Immediate data on UC: with a Send in one message, with a Write in a second message after it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from harness.uc_harness import Peer
from harness.verbs_harness import Rig, counted, nothing, pattern

from siwarp.inspect import DDPUntagged
from siwarp.verbs import WCOpcode

IMM = 0x01020304


@pytest.fixture
def peer(rig: Rig) -> Iterator[Peer]:
    made = Peer(rig, attrs={"path_mtu": 256})
    yield made
    made.close()


def as_it_lies(value: int) -> bytes:
    return struct.pack("=I", value)


def immediate(peer: Peer, first: bool = False, data: bytes | None = None) -> bytes:
    head = DDPUntagged(opcode=8, msn=50)
    octets = as_it_lies(IMM) + bytes(4) if data is None else data
    return peer.datagram(bytes(head) + octets, first=first)


@pytest.mark.clause("DGRAM-UC-20")
@pytest.mark.parametrize("lost", range(4))
def test_immediate_data_behind_a_write_that_lost_a_datagram_is_not_delivered(
    peer: Peer, lost: int
) -> None:
    peer.recv(1)
    cut = [*peer.writes(pattern(300), peer.memory.rkey, peer.memory.addr, 100), immediate(peer)]
    with counted("uc_missing", 1), counted("drop_partial", int(lost < 3)):
        peer.put(*cut[:lost], *cut[lost + 1 :])
        nothing(peer.cq)
        peer.put(*peer.writes(b"x", peer.memory.rkey, peer.memory.addr), immediate(peer))
        (got,) = peer.received()
    assert (got.wr_id, got.opcode, got.byte_len) == (1, WCOpcode.RECV_RDMA_WITH_IMM, 1)


@pytest.mark.clause("DGRAM-UC-20")
def test_immediate_data_behind_a_write_that_was_not_granted_is_not_delivered(peer: Peer) -> None:
    peer.recv(1)
    with counted("drop_access", 1), counted("drop_partial", 1):
        peer.put(*peer.writes(b"x", 1, 0), immediate(peer))
        nothing(peer.cq)
    peer.put(immediate(peer, first=True))
    (got,) = peer.received()
    assert (got.byte_len, got.imm_data) == (0, IMM)


def test_immediate_data_needs_a_receive(peer: Peer) -> None:
    with counted("drop_no_buffer", 1):
        peer.put(immediate(peer, first=True))
        nothing(peer.cq)
    peer.recv(1)
    peer.put(*peer.message(b"good"))
    assert peer.received()[0].byte_len == 4
