"""FetchAdd and CmpSwap through queue pairs: results, order, and reasons for refusal."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Iterator

import pytest
from _siwarp_layers import ffi
from _siwarp_layers import lib as layers
from harness.atomic_harness import (
    ADD,
    SWAP,
    THERE,
    build_atomic_response,
    post_atomic,
    read_memory_uint64,
    receive_atomic_request,
    write_memory_uint64,
)
from harness.peer_harness import connected_plain_peer
from harness.rc_harness import READ, End, ListenerAndConnector
from harness.verbs_harness import ALL_ACCESS, Rig, errno_raised_by, poll, wait_until
from hostile.vanishing import PAGE, RemovableMemory
from hypothesis import given, settings
from hypothesis import strategies as st

from siwarp.cm import ConnParam
from siwarp.inspect import AtomicRequest
from siwarp.verbs import (
    MR,
    PD,
    AccessFlag,
    Error,
    QPAttr,
    QPAttrMask,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
)

MASKED_ADD, MASKED_SWAP = WROpcode.MASKED_ATOMIC_FETCH_AND_ADD, WROpcode.MASKED_ATOMIC_CMP_AND_SWP
ONES = (1 << 64) - 1
words = st.integers(0, ONES)


def masked_add_of_rfc7306(value: int, add: int, mask: int) -> int:
    """Return the masked sum, computed bit by bit as in RFC 7306 section 5.1.1."""
    carry = result = 0
    for bit in range(64):
        total = carry + (value >> bit & 1) + (add >> bit & 1)
        result |= (total & 1) << bit
        carry = total >> 1 if not mask >> bit & 1 else 0
    return result


def masked_swap_of_rfc7306(value: int, swap: int, swap_mask: int, compare: int, mask: int) -> int:
    return value if (compare ^ value) & mask else value & ~swap_mask | swap & swap_mask


@pytest.fixture(scope="module")
def connected_pair() -> Iterator[tuple[End, End]]:
    a, b = Rig(), Rig()
    made = ListenerAndConnector(a, b).connect(max_send_sge=4)
    assert all(end.mem.addr % 8 == 0 for end in made)
    yield made
    a.close()
    b.close()


# ---- results


def test_fetch_add_adds_to_a_word_and_returns_its_previous_value(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    write_memory_uint64(b, 40, 64)
    a.mem.write(b"\xee" * 24)
    for before, add in ((40, 2), (42, ONES), (41, 1 << 63), (41 | 1 << 63, 1 << 63)):
        post_atomic(a, ADD, b.mem.remote(64, 8), 7, offset=8, compare_add=add)
        (done,) = poll(a.scq)
        assert (done.wr_id, done.ok, done.opcode) == (7, True, WCOpcode.FETCH_ADD)
        assert done.byte_len == 8
        assert read_memory_uint64(a, 8) == before
        assert read_memory_uint64(b, 64) == (before + add) & ONES
    assert a.mem.read(8) == a.mem.read(8, 16) == b"\xee" * 8
    assert b.rcq.poll(4) == []


def test_cmp_swap_replaces_only_a_word_that_equals_the_compare_value(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    write_memory_uint64(b, 1000, 8)
    for compare, after in ((999, 1000), (1000, 77), (1000, 77), (77, 5)):
        before = read_memory_uint64(b, 8)
        post_atomic(a, SWAP, b.mem.remote(8, 8), 9, compare_add=compare, swap=after)
        (done,) = poll(a.scq)
        assert (done.wr_id, done.ok, done.opcode) == (9, True, WCOpcode.COMP_SWAP)
        assert (read_memory_uint64(a), read_memory_uint64(b, 8)) == (before, after)


@settings(max_examples=60, deadline=None)
@given(value=words, add=words, mask=words)
def test_masked_fetch_add_computes_the_result_of_rfc_7306(
    connected_pair: tuple[End, End], value: int, add: int, mask: int
) -> None:
    a, b = connected_pair
    write_memory_uint64(b, value)
    post_atomic(a, MASKED_ADD, b.mem.remote(0, 8), compare_add=add, compare_add_mask=mask)
    (done,) = poll(a.scq)
    assert (done.ok, done.opcode) == (True, WCOpcode.FETCH_ADD)
    assert (read_memory_uint64(a), read_memory_uint64(b)) == (
        value,
        masked_add_of_rfc7306(value, add, mask),
    )


@settings(max_examples=60, deadline=None)
@given(value=words, swap=words, swap_mask=words, mask=words, flip=st.integers(0, 63) | st.none())
def test_masked_cmp_swap_computes_the_result_of_rfc_7306(
    connected_pair: tuple[End, End],
    value: int,
    swap: int,
    swap_mask: int,
    mask: int,
    flip: int | None,
) -> None:
    a, b = connected_pair
    write_memory_uint64(b, value)
    compare = value ^ (0 if flip is None else 1 << flip)
    post_atomic(
        a, MASKED_SWAP, b.mem.remote(0, 8),
        compare_add=compare, swap=swap, compare_add_mask=mask, swap_mask=swap_mask,
    )  # fmt: skip
    (done,) = poll(a.scq)
    assert (done.ok, done.opcode) == (True, WCOpcode.COMP_SWAP)
    assert read_memory_uint64(a) == value
    assert read_memory_uint64(b) == masked_swap_of_rfc7306(value, swap, swap_mask, compare, mask)


def test_the_original_value_of_an_atomic_may_be_scattered_over_several_elements(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    write_memory_uint64(b, 0x0102030405060708)
    sg = [a.mem.sge(100, 3), a.mem.sge(200, 0), a.mem.sge(300, 5)]
    a.qp.post_send(SendWR(3, ADD, sg=sg, remote=b.mem.remote(0, 8)))
    assert poll(a.scq)[0].ok
    got = b"".join(a.mem.read(e.length, e.addr - a.mem.addr) for e in sg if e.length)
    assert int.from_bytes(got, sys.byteorder) == 0x0102030405060708


# ---- atomicity


class AddingThreads:
    """Threads that each add 1 to the same word repeatedly, over one connection per thread."""

    def __init__(self, two: ListenerAndConnector, n: int, each: int) -> None:
        self.pairs = [two.connect() for _ in range(n)]
        self.target = self.pairs[0][1].mem
        self.target.write(bytes(8))
        self.each = each
        self.wrong: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._add_one_repeatedly, args=(a,)) for a, _ in self.pairs
        ]

    def _add_one_repeatedly(self, a: End) -> None:
        try:
            for _ in range(self.each // 10):
                for k in range(10):
                    post_atomic(a, ADD, self.target.remote(0, 8), k, offset=8 * k, compare_add=1)
                assert all(done.ok for done in poll(a.scq, 10))
        except BaseException as e:
            self.wrong.append(e)

    def run_and_read_sum(self) -> int:
        """Run all adding threads; return the final value of the word that they add to."""
        for t in self.threads:
            t.start()
        for t in self.threads:
            t.join(60)
        assert not self.wrong and not any(t.is_alive() for t in self.threads)
        (total,) = struct.unpack("=Q", self.target.read(8))
        return int(total)


@pytest.mark.clause("RFC7306-5-01", "RFC7306-5.3-01", "RFC7306-5.4-02")
def test_fetch_adds_from_several_queue_pairs_and_threads_lose_no_update(
    two_device_connector: ListenerAndConnector,
) -> None:
    assert AddingThreads(two_device_connector, 4, 150).run_and_read_sum() == 4 * 150


@pytest.mark.clause("RFC7306-5-02", "RFC7306-5.4-03")
def test_fetch_adds_from_two_devices_and_local_adds_lose_no_update(
    two_device_connector: ListenerAndConnector,
) -> None:
    """No addition is lost when peers of two devices and this process add to the same word."""
    adders = AddingThreads(two_device_connector, 2, 150)
    again = ListenerAndConnector(two_device_connector.active, Rig())
    a, b = again.connect()
    view = (ctypes.c_uint8 * 8).from_address(adders.target.addr)
    there = remote_uint64_in_kept_region(b.rig.reg_mr(view, ALL_ACCESS))

    def fetch_add_from_other_device() -> None:
        for _ in range(150):
            post_atomic(a, ADD, there, compare_add=1)
            assert poll(a.scq)[0].ok

    def add_locally() -> None:
        before = ffi.new("uint64_t *")
        for _ in range(3000):
            layers.siw_guard_fetch_add(before, ffi.cast("uint64_t *", adders.target.addr), 1, 0)

    adders.threads += [
        threading.Thread(target=f) for f in (fetch_add_from_other_device, add_locally, add_locally)
    ]
    assert adders.run_and_read_sum() == 3 * 150 + 2 * 3000
    again.passive.close()


def test_a_lock_made_of_cmp_swap_admits_one_holder_at_a_time(
    two_device_connector: ListenerAndConnector,
) -> None:
    """Increments by a Read and a Write under a lock made of CmpSwap lose no update."""
    pairs = [two_device_connector.connect() for _ in range(2)]
    target = pairs[0][1].mem
    target.write(bytes(16))
    rounds = 30
    wrong: list[BaseException] = []

    def compare_and_swap_word(a: End, compare: int, value: int) -> bool:
        post_atomic(a, SWAP, target.remote(0, 8), compare_add=compare, swap=value)
        assert poll(a.scq)[0].ok
        return read_memory_uint64(a) == compare

    def increment_under_lock(a: End) -> None:
        try:
            for _ in range(rounds):
                wait_until(lambda: compare_and_swap_word(a, 0, 1))
                a.post(READ, offset=8, length=8, remote=target.remote(8, 8))
                assert poll(a.scq)[0].ok
                write_memory_uint64(a, read_memory_uint64(a, 8) + 1, 8)
                a.post(WROpcode.RDMA_WRITE, offset=8, length=8, remote=target.remote(8, 8))
                assert poll(a.scq)[0].ok
                assert compare_and_swap_word(a, 1, 0)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=increment_under_lock, args=(a,)) for a, _ in pairs]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)
    assert struct.unpack("=QQ", target.read(16)) == (0, 2 * rounds)


# ---- errors that the responder reports


def remote_uint64_in_region_of_other_pd(b: End) -> RemoteBuffer:
    return remote_uint64_in_kept_region(MR(PD(b.rig.ctx), bytearray(64), ALL_ACCESS))


#: Memory regions that stay registered after their function returned; the device closes them.
regions: list[MR] = []


def remote_uint64_in_kept_region(mr: MR) -> RemoteBuffer:
    """Keep the region registered, and return its first 8 octets as a remote buffer."""
    regions.append(mr)
    return mr.remote(0, 8)


def remote_uint64_in_deregistered_region(b: End) -> RemoteBuffer:
    mr = b.rig.reg_mr(bytearray(64), ALL_ACCESS)
    remote = mr.remote(0, 8)
    mr.close()
    return remote


def remote_uint64_without_atomic_right(b: End) -> RemoteBuffer:
    return remote_uint64_in_kept_region(
        b.rig.reg_mr(bytearray(64), ALL_ACCESS & ~AccessFlag.REMOTE_ATOMIC)
    )


def remote_uint64_of_qp_denying_atomics(b: End) -> RemoteBuffer:
    rights = AccessFlag.REMOTE_READ | AccessFlag.REMOTE_WRITE
    b.qp.modify(QPAttr(qp_access_flags=rights), QPAttrMask.ACCESS_FLAGS)
    return b.mem.remote(0, 8)


def remote_uint64_at_offset(b: End, offset: int) -> RemoteBuffer:
    return RemoteBuffer(b.mem.addr + offset, 8, b.mem.rkey)


ACCESS, OPERATION = WCStatus.REM_ACCESS_ERR, WCStatus.REM_OP_ERR
REFUSED = {
    "misaligned": (lambda b: remote_uint64_at_offset(b, 4), OPERATION, 0x000207),
    "odd": (lambda b: remote_uint64_at_offset(b, 1), OPERATION, 0x000207),
    "no right": (remote_uint64_without_atomic_right, ACCESS, 0x000102),
    "denied by the queue pair": (remote_uint64_of_qp_denying_atomics, ACCESS, 0x000102),
    "a dead key": (remote_uint64_in_deregistered_region, ACCESS, 0x000100),
    "another domain": (remote_uint64_in_region_of_other_pd, ACCESS, 0x000103),
    "behind the end": (lambda b: remote_uint64_at_offset(b, len(b.mem.view)), ACCESS, 0x000101),
    "over the end": (lambda b: remote_uint64_at_offset(b, len(b.mem.view) - 4), ACCESS, 0x000101),
    "before the start": (lambda b: remote_uint64_at_offset(b, -8), ACCESS, 0x000101),
    "round the end": (lambda b: RemoteBuffer(ONES - 3, 8, b.mem.rkey), ACCESS, 0x000104),
}


@pytest.mark.parametrize("opcode", [ADD, SWAP, MASKED_ADD], ids=["add", "swap", "masked"])
@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_atomic_changes_no_memory_and_terminates_the_connection(
    connector: ListenerAndConnector, why: str, opcode: WROpcode
) -> None:
    where, status, error = REFUSED[why]
    a, b = connector.connect()
    b.mem.view[:] = bytes(len(b.mem.view))
    a.mem.write(b"\xee" * 8)
    post_atomic(a, opcode, where(b), compare_add=0, swap=ONES, compare_add_mask=0)
    (done,) = poll(a.scq)
    assert (done.wr_id, done.status, done.vendor_err) == (5, status, error)
    a.wait_for_error_state()
    b.wait_for_error_state()
    assert b.mem.view == bytes(len(b.mem.view))
    assert a.mem.read(8) == b"\xee" * 8


@pytest.mark.parametrize("how", ["unmapped", "protected", "truncated"])
def test_an_atomic_on_inaccessible_memory_ends_only_the_connection(
    connector: ListenerAndConnector, how: str
) -> None:
    gone = RemovableMemory(PAGE, how)
    a, b = connector.connect()
    mr = b.rig.reg_mr(gone.buffer, ALL_ACCESS)
    gone.remove_pages()
    post_atomic(a, ADD, mr.remote(0, 8), compare_add=1)
    (done,) = poll(a.scq)
    # A Terminate for an error local to its sender quotes no header, so no request can be
    # identified.
    assert (done.status, done.vendor_err) == (WCStatus.WR_FLUSH_ERR, 0xFF)
    b.wait_for_error_state()
    mr.close()
    gone.close()


# ---- errors that the requester detects


@pytest.mark.parametrize("length", [0, 4, 7, 9, 16])
def test_an_atomic_whose_elements_do_not_have_8_octets_is_refused(
    connected_pair: tuple[End, End], length: int
) -> None:
    a, b = connected_pair
    sg = [a.mem.sge(0, length)] if length else []
    with pytest.raises(Error, match="8 octets"):
        a.qp.post_send(SendWR(1, ADD, sg=sg, remote=b.mem.remote(0, 8)))


def test_an_inline_atomic_is_refused(connected_pair: tuple[End, End]) -> None:
    a, b = connected_pair
    with pytest.raises(Error, match="INLINE"):
        post_atomic(a, SWAP, b.mem.remote(0, 8), flags=SendFlag.INLINE | SendFlag.SIGNALED)


def test_an_atomic_is_refused_if_the_peer_accepts_no_rdma_reads(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(ConnParam(initiator_depth=0), ConnParam(responder_resources=0))
    with pytest.raises(Error, match="RDMA Reads"):
        post_atomic(a, ADD, b.mem.remote(0, 8))


def test_a_region_with_remote_atomic_but_without_local_write_access_is_refused(rig: Rig) -> None:
    assert errno_raised_by(rig.reg_mr, bytearray(8), AccessFlag.REMOTE_ATOMIC) == 22


def test_an_atomic_with_a_deregistered_local_key_completes_with_loc_prot_err(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect()
    b.mem.write(bytes(8))
    mr = a.rig.reg_mr(bytearray(8), AccessFlag.LOCAL_WRITE)
    sge = mr.sge(0, 8)
    mr.close()
    a.qp.post_send(SendWR(4, ADD, sg=[sge], remote=b.mem.remote(0, 8), compare_add=1))
    (done,) = poll(a.scq)
    assert (done.wr_id, done.status) == (4, WCStatus.LOC_PROT_ERR)
    b.wait_for_error_state()
    assert read_memory_uint64(b) == 0


def test_an_atomic_with_an_unmapped_result_buffer_completes_with_loc_prot_err(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, gone=True) as (a, peer):
        gone = RemovableMemory(PAGE, "unmapped")
        mr = a.rig.reg_mr(gone.buffer, AccessFlag.LOCAL_WRITE)
        a.qp.post_send(SendWR(6, ADD, sg=[mr.sge(0, 8)], remote=THERE))
        _, octets = peer.receive_segment()
        gone.remove_pages()
        peer.send_segments(build_atomic_response(1, AtomicRequest(octets), 3))
        (done,) = poll(a.scq)
        assert (done.wr_id, done.status) == (6, WCStatus.LOC_PROT_ERR)
        told = peer.receive_terminate()
        assert (told.layer, told.etype, told.code) == (1, 0, 0)


def test_a_region_cannot_be_deregistered_while_an_atomic_awaits_its_response(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector) as (a, peer):
        post_atomic(a, ADD, THERE)
        request = receive_atomic_request(peer)
        assert errno_raised_by(a.mem.close) == 16
        peer.send_segments(build_atomic_response(1, request, 0))
        assert poll(a.scq)[0].ok
        a.mem.close()


def test_a_read_before_an_atomic_returns_the_old_value_and_a_later_read_the_new_one(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    for i in range(20):
        write_memory_uint64(b, i)
        a.post(READ, 1, offset=0, length=8, remote=b.mem.remote(0, 8))
        post_atomic(a, ADD, b.mem.remote(0, 8), 2, offset=8, compare_add=1000)
        a.post(READ, 3, offset=16, length=8, remote=b.mem.remote(0, 8))
        assert [w.wr_id for w in poll(a.scq, 3)] == [1, 2, 3]
        assert (read_memory_uint64(a), read_memory_uint64(a, 8), read_memory_uint64(a, 16)) == (
            i,
            i,
            i + 1000,
        )
