"""Regions whose tagged offsets start at a value chosen by the program (``siw_reg_mr_iova``)."""

from __future__ import annotations

import errno
import struct

import pytest
from harness.mw_harness import BOTH, RW, bind_new_memory_window, write_and_wait_for_completion
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import ALL_ACCESS, Rig, errno_raised_by, octet_pattern, poll

from siwarp.verbs import (
    MR,
    SGE,
    AccessFlag,
    MWType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
)

SIZE = 8192
#: None stands for a region that is zero-based by its access flag.
BASES = [0, 1, 0x1000, 1 << 63, (1 << 64) - SIZE - 1, None]


def register_region(rig: Rig, base: int | None, size: int = SIZE, access: int = ALL_ACCESS) -> MR:
    if base is None:
        return MR(rig.pd, size, access | AccessFlag.ZERO_BASED)
    return MR(rig.pd, size, access, iova=base)


@pytest.fixture(params=BASES, ids=lambda b: "zero-based" if b is None else hex(b))
def connected_endpoints(
    two_device_connector: ListenerAndConnector, request: pytest.FixtureRequest
) -> tuple[End, End]:
    """Two connected endpoints whose memory regions start at the tagged offset of the parameter."""
    a, b = two_device_connector.connect(max_inline_data=64)
    for end in (a, b):
        end.mr = register_region(end.rig, request.param)
        assert end.mem.iova == (request.param or 0) != end.mem.addr
    return a, b


def test_offsets_of_every_operation_count_from_the_base_of_the_region(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    last = SIZE - 8
    for n, (here, there, length) in enumerate([(0, 0, SIZE), (9, 100, 1), (SIZE - 1, last, 1)]):
        data = octet_pattern(length, n)
        a.mem.write(data, offset=here)
        a.post(WRITE, offset=here, length=length, remote=b.mem.remote(there, length))
        assert poll(a.scq)[0].ok
        a.mem.write(bytes(length), offset=here)
        a.post(READ, offset=here, length=length, remote=b.mem.remote(there, length))
        assert poll(a.scq)[0].ok
        assert a.mem.read(length, here) == b.mem.read(length, there) == data
        b.post_receive(offset=there, length=length)
        a.mem.write(data[::-1], offset=here)
        a.post(SEND, offset=here, length=length)
        assert poll(a.scq)[0].ok and poll(b.rcq)[0].ok
        assert b.mem.read(length, there) == data[::-1]


def test_offsets_of_an_atomic_count_from_the_base_at_both_ends(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    # The memory address of an atomic must be a multiple of 8; its tagged offset need not be.
    at = 16
    b.mem.write(struct.pack("=Q", 40), offset=at)
    a.qp.post_send(
        SendWR(
            1,
            WROpcode.ATOMIC_FETCH_AND_ADD,
            sg=[a.mem.sge(24, 8)],
            remote=b.mem.remote(at, 8),
            compare_add=2,
        )
    )
    assert poll(a.scq)[0].ok
    assert struct.unpack("=Q", a.mem.read(8, 24)) == (40,)
    assert struct.unpack("=Q", b.mem.read(8, at)) == (42,)


def test_an_inline_send_reads_the_address_without_regard_to_the_base(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    a.mem.write(b"inline", offset=3)
    b.post_receive(offset=50, length=10)
    a.post(SEND, offset=3, length=6, flags=SendFlag.SIGNALED | SendFlag.INLINE)
    assert poll(a.scq)[0].ok and poll(b.rcq)[0].byte_len == 6
    assert b.mem.read(6, 50) == b"inline"


def test_a_write_to_the_address_of_a_region_with_another_base_is_refused(
    connected_endpoints: tuple[End, End],
) -> None:
    a, b = connected_endpoints
    a.post(WRITE, length=8, remote=RemoteBuffer(b.mem.addr, 8, b.mem.rkey))
    b.wait_for_error_state()
    assert b.mem.read() == bytes(SIZE)


@pytest.mark.parametrize("shift", [-1, SIZE - 7])
def test_offsets_outside_the_region_are_refused_at_both_ends(
    two_device_connector: ListenerAndConnector, shift: int
) -> None:
    a, b = two_device_connector.connect(size=64)
    mr = register_region(b.rig, 0x10000)
    into = register_region(a.rig, 0x10000)
    a.post(WRITE, length=8, remote=RemoteBuffer(mr.iova + shift, 8, mr.rkey))
    b.wait_for_error_state()
    assert mr.read() == bytes(SIZE)
    lone = a.rig.create_ud_qp()
    lone.post_send(SendWR(7, sg=[SGE(into.iova + shift, 8, into.lkey)], ah=a.rig.create_ah(lone)))
    assert poll(lone.scq)[0].status == WCStatus.LOC_PROT_ERR


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("zero", [False, True], ids=["offsets", "zero-based window"])
@pytest.mark.parametrize("base", [0, 0x5000, None])
def test_a_memory_window_is_bound_by_the_offsets_of_its_region(
    two_device_connector: ListenerAndConnector, kind: MWType, zero: bool, base: int | None
) -> None:
    a, b = two_device_connector.connect(size=64)
    mr = register_region(b.rig, base, access=AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND)
    access = RW | (AccessFlag.ZERO_BASED if zero else 0)
    _mw, remote = bind_new_memory_window(b, mr, kind, offset=100, length=50, access=access)
    assert remote.addr == (0 if zero else (base or 0) + 100)
    write_and_wait_for_completion(a, remote.part(10, 5), b"there")
    a.post(READ, offset=20, length=5, remote=remote.part(10, 5))
    assert poll(a.scq)[0].ok
    assert a.mem.read(5, 20) == mr.read(5, 110) == b"there"
    assert mr.read(100) == bytes(100) and mr.read(20, 120) == bytes(20)


def test_offsets_of_ud_and_write_record_count_from_the_base_of_the_region(rig: Rig) -> None:
    cq = rig.create_cq()
    a, b = rig.create_ud_qp(cq), rig.create_ud_qp(cq, max_write_records=4)
    out, into = register_region(rig, 0x100), register_region(rig, 1 << 40)
    out.write(octet_pattern(SIZE))
    b.post_recv(RecvWR(1, sg=[into.sge(0, 100)]))
    to = rig.create_ah(b)
    a.post_send(SendWR(2, sg=[out.sge(10, 100)], ah=to))
    assert all(wc.ok for wc in poll(cq, 2))
    assert into.read(100) == out.read(100, 10)
    a.post_send(
        SendWR(
            3,
            WROpcode.RDMA_WRITE_RECORD,
            sg=[out.sge(0, 4000)],
            ah=to,
            remote=into.remote(4000, 4000),
        )
    )
    (record,) = [wc for wc in poll(cq, 2) if wc.opcode == WCOpcode.RECV_WRITE_RECORD]
    assert into.read(4000, 4000) == out.read(4000)
    assert b.record(record).addr == into.iova + 4000


def test_reregistration_keeps_the_base_until_the_memory_changes(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(size=64)
    mr = register_region(b.rig, 0x7000)
    mr.rereg(access=AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE)
    assert mr.iova == 0x7000
    write_and_wait_for_completion(a, RemoteBuffer(0x7000, 3, mr.rkey), b"one")
    assert send_message_after_write(a, b) and mr.read(3) == b"one"
    mr.rereg(buffer=bytearray(100))
    assert mr.iova == mr.addr
    write_and_wait_for_completion(a, RemoteBuffer(mr.addr, 3, mr.rkey), b"two")
    assert send_message_after_write(a, b) and mr.read(3) == b"two"
    mr.rereg(access=mr.access | AccessFlag.ZERO_BASED)
    assert mr.iova == 0
    write_and_wait_for_completion(a, RemoteBuffer(50, 3, mr.rkey), b"six")
    assert send_message_after_write(a, b) and mr.read(3, 50) == b"six"
    mr.rereg(access=mr.access & ~AccessFlag.ZERO_BASED)
    write_and_wait_for_completion(a, RemoteBuffer(mr.addr + 60, 3, mr.rkey), b"ten")
    assert send_message_after_write(a, b) and mr.read(3, 60) == b"ten"


def send_message_after_write(a: End, b: End) -> bool:
    """Send a message after a Write; when ``b`` has received the message, the Write is placed."""
    b.post_receive(9, 0, 1)
    a.post(SEND, length=1)
    return poll(b.rcq)[0].ok and poll(a.scq)[0].ok


def test_a_base_that_overflows_or_contradicts_the_zero_based_flag_is_refused(rig: Rig) -> None:
    for base in ((1 << 64) - SIZE, (1 << 64) - 1):
        assert errno_raised_by(register_region, rig, base) == errno.EINVAL
    zero = ALL_ACCESS | AccessFlag.ZERO_BASED
    assert errno_raised_by(register_region, rig, 1, access=zero) == errno.EINVAL
    with register_region(rig, 0, access=zero) as mr:
        assert mr.iova == 0
