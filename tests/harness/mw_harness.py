"""Helpers for the tests of memory windows."""

from __future__ import annotations

from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import poll

from siwarp.verbs import (
    MR,
    MW,
    AccessFlag,
    MWType,
    RemoteBuffer,
    WCOpcode,
)

LOCAL, BIND = AccessFlag.LOCAL_WRITE, AccessFlag.MW_BIND
RW = AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ
BOTH = [MWType.TYPE_1, MWType.TYPE_2]
INVALID, NOT_OF_STREAM, BOUNDS = 0x010100, 0x010102, 0x010101
READ_INVALID, NO_RIGHT, CANNOT_INVALIDATE = 0x000100, 0x000102, 0x000109


def connect_and_exchange_send(two: ListenerAndConnector, **kw: object) -> tuple[End, End]:
    """Connect two endpoints, and exchange a Send, after which the passive end, too, can send."""
    a, b = two.connect(**kw)
    wait_until_writes_placed(a, b)
    return a, b


def register_region(b: End, size: int = 4096, access: int = LOCAL | BIND) -> MR:
    return MR(b.rig.pd, bytearray(size), access)


def bind_new_memory_window(
    b: End, mr: MR, kind: MWType = MWType.TYPE_2, **kw: int
) -> tuple[MW, RemoteBuffer]:
    """Bind a new memory window and wait for the completion; return it and its remote buffer."""
    mw = MW(b.rig.pd, kind)
    remote = mw.bind(b.qp, mr, **kw)
    wc = poll(b.scq)[0]
    assert (wc.ok, wc.opcode) == (True, WCOpcode.BIND_MW)
    return mw, remote


def invalidate_memory_window(mw: MW, b: End) -> None:
    """Invalidate a memory window and wait for the completion."""
    mw.invalidate(b.qp)
    wc = poll(b.scq)[0]
    kind = WCOpcode.BIND_MW if mw.type == MWType.TYPE_1 else WCOpcode.LOCAL_INV
    assert (wc.ok, wc.opcode) == (True, kind)


def write_and_wait_for_completion(
    a: End, remote: RemoteBuffer, data: bytes, wr_id: int = 2
) -> None:
    """Write data into a remote buffer, and wait until TCP has accepted the Write."""
    a.mem.write(data)
    a.post(WRITE, wr_id, length=len(data), remote=remote)
    assert poll(a.scq)[0].ok


def wait_until_writes_placed(a: End, b: End) -> None:
    """Exchange a Send, after which earlier Writes have been placed in the memory of the peer."""
    b.post_receive(9)
    a.post(SEND, 9, length=1)
    assert poll(a.scq)[0].ok and poll(b.rcq)[0].ok


def read_remote_buffer(a: End, remote: RemoteBuffer, length: int) -> bytes:
    a.post(READ, 3, offset=1024, length=length, remote=remote)
    assert poll(a.scq)[0].check().opcode == WCOpcode.RDMA_READ
    return a.mem.read(length, 1024)


def assert_terminated(a: End, b: End, vendor_err: int) -> None:
    """Assert that both endpoints are in state ERR, and that `b` reports the given wire error."""
    for end in (a, b):
        end.wait_for_error_state()
    a.next_cm_event()
    assert b.next_cm_event().wire_error == vendor_err
