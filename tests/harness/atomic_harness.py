"""For the tests of atomic operations: post them, or respond to them with a peer on plain TCP."""

from __future__ import annotations

import sys

from harness.peer_harness import PlainPeer
from harness.rc_harness import End

from siwarp.inspect import AtomicRequest, AtomicResponse, DDPUntagged, Opcode, Queue
from siwarp.verbs import (
    RemoteBuffer,
    SendFlag,
    SendWR,
    WROpcode,
)

ADD, SWAP = WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.ATOMIC_CMP_AND_SWP
THERE = RemoteBuffer(0x1000, 8, 0x123456)


def post_atomic(
    end: End,
    opcode: WROpcode,
    remote: RemoteBuffer,
    wr_id: int = 5,
    *,
    offset: int = 0,
    flags: int = SendFlag.SIGNALED,
    **operands: int,
) -> None:
    sg = [end.mem.sge(offset, 8)]
    wr = SendWR(wr_id, opcode, sg=sg, remote=remote, send_flags=flags, **operands)  # type: ignore[arg-type]
    end.qp.post_send(wr)


def read_memory_uint64(end: End, offset: int = 0) -> int:
    """Return the 64-bit integer at an offset of an end's memory, in the native byte order."""
    return int.from_bytes(end.mem.read(8, offset), sys.byteorder)


def write_memory_uint64(end: End, value: int, offset: int = 0) -> None:
    end.mem.write(value.to_bytes(8, sys.byteorder), offset=offset)


def build_atomic_response(msn: int, request: AtomicRequest, original: int) -> bytes:
    head = DDPUntagged(opcode=Opcode.ATOMIC_RESPONSE, qn=Queue.ATOMIC_RESPONSE, msn=msn)
    return bytes(head) + bytes(AtomicResponse(request=request.request, old=original))


def receive_atomic_request(peer: PlainPeer) -> AtomicRequest:
    head, octets = peer.receive_segment()
    assert head.opcode == Opcode.ATOMIC_REQUEST
    return AtomicRequest(octets)
