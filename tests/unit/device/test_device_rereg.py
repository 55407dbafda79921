"""Re-registered memory regions: new keys, invalid old keys, and failed re-registrations."""

from __future__ import annotations

import errno
import itertools
import mmap
from typing import Any

import pytest
from harness.rc_harness import READ, SEND, WRITE, ListenerAndConnector
from harness.verbs_harness import ALL_ACCESS, Pair, Rig, errno_raised_by, poll, wait_until

from siwarp._siwarp import ffi, lib
from siwarp.verbs import (
    MR,
    PD,
    SGE,
    AccessFlag,
    Error,
    QPAttr,
    QPState,
    RemoteBuffer,
    SendWR,
    StateError,
    WCStatus,
    faults,
)

TRANSLATION, NEW_PD, ACCESS = 1, 2, 4
INPUT, CMD = -1, -4


def send_succeeds(pair: Pair, key: int, address: int) -> bool:
    """Return whether a send from ``address`` with the local key ``key`` succeeds."""
    pair.a.post_send(SendWR(1, sg=[SGE(address, 4, key)], ah=pair.to_b))
    status = poll(pair.scq)[0].status
    pair.a.to_rts()
    assert status in (WCStatus.SUCCESS, WCStatus.LOC_PROT_ERR)
    return bool(status == WCStatus.SUCCESS)


def test_reregistration_of_new_memory_changes_the_key_and_invalidates_the_old_key(
    rig: Rig, ud_pair: Pair
) -> None:
    first, second = bytearray(b"first..."), bytearray(b"second..")
    mr = rig.reg_mr(first)
    old = mr.lkey, mr.addr
    mr.rereg(buffer=second)
    assert mr.lkey == mr.rkey != old[0] and mr.addr != old[1] and mr.length == 8
    assert mr.read() == b"second.."
    assert send_succeeds(ud_pair, mr.lkey, mr.addr)
    assert not send_succeeds(ud_pair, *old)
    assert not send_succeeds(ud_pair, old[0], mr.addr)
    assert not send_succeeds(ud_pair, mr.lkey, old[1])
    # After the re-registration, the program owns the old memory again.
    first.append(0)
    with pytest.raises(BufferError):
        second.append(0)


def test_keys_of_repeated_reregistrations_are_unpredictable(rig: Rig) -> None:
    mr = rig.reg_mr(bytearray(8))
    keys = [mr.lkey]
    for _ in range(300):
        mr.rereg(pd=rig.pd)
        keys.append(mr.lkey)
    steps = {(b - a) & 0xFFFFFFFF for a, b in itertools.pairwise(keys)}
    assert len(set(keys)) == 301 and len(steps) > 290


def test_a_region_moved_to_another_protection_domain_is_valid_only_there(
    rig: Rig, ud_pair: Pair
) -> None:
    mr = rig.reg_mr(bytearray(8))
    other = PD(rig.ctx)
    mr.rereg(pd=other)
    assert mr.pd is other
    assert not send_succeeds(ud_pair, mr.lkey, mr.addr)
    assert errno_raised_by(other.close) == errno.EBUSY
    assert lib.siw_dealloc_pd(other._c_object()) == -errno.EBUSY
    mr.rereg(pd=rig.pd)
    assert send_succeeds(ud_pair, mr.lkey, mr.addr)
    other.close()


def test_reregistration_of_access_alone_keeps_the_keys_of_the_region(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    known = b.mem.remote(0, 8)
    a.mem.write(b"12345678")
    b.mem.rereg(access=AccessFlag.LOCAL_WRITE)
    assert (b.mem.rkey, b.mem.lkey) == (known.rkey, known.rkey)
    b.mem.rereg(access=AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE)
    b.post_receive()
    a.post(WRITE, 1, length=8, remote=known)
    a.post(SEND, 2)
    assert poll(b.rcq)[0].ok and b.mem.read(8) == b"12345678"
    assert all(wc.ok for wc in poll(a.scq, 2))
    b.mem.rereg(access=AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ)
    a.post(READ, 2, length=8, offset=8, remote=known)
    assert poll(a.scq)[0].ok and a.mem.read(8, 8) == b"12345678"
    assert b.mem.rkey == known.rkey


def test_a_posted_receive_fails_after_the_region_has_lost_local_write_access(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    b.post_receive(7)
    b.mem.rereg(access=0)
    a.mem.write(b"12345678")
    a.post(SEND, 1, length=8)
    assert (wc := poll(b.rcq)[0]).wr_id == 7 and wc.status == WCStatus.LOC_PROT_ERR
    assert b.mem.read(8) == bytes(8)


@pytest.mark.parametrize("start", [0, 1 << 22])
def test_no_octet_of_a_write_is_placed_after_remote_write_access_is_removed(
    two_device_connector: ListenerAndConnector, start: int
) -> None:
    size = 1 << 25
    a, b = two_device_connector.connect(size=size)
    place = b.mem.view
    a.mem.view[:] = b"\xa5" * size
    # The limited rate makes the transfer last until the region has been re-registered.
    with faults("tx:rate=400Mbit"):
        a.post(WRITE, 1, length=size, remote=b.mem.remote())
        wait_until(lambda: b.rcq.poll(1) or place[start] or place[start + 7])
        b.mem.rereg(access=AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ)
    still = bytes(place)
    assert not any(still[-8:]), (
        "the whole Write was placed before the re-registration, so nothing is tested"
    )
    a.wait_for_error_state()
    b.wait_for_error_state()
    assert bytes(place) == still


def test_no_octet_of_a_read_is_sent_after_remote_read_access_is_removed(
    two_device_connector: ListenerAndConnector,
) -> None:
    """A Read larger than both socket buffers is being answered when the access is removed."""
    size = 1 << 25
    a, b = two_device_connector.connect(size=size)
    b.mem.view[:] = b"\xa5" * size
    with faults("tx:rate=400Mbit"):
        a.post(READ, 1, length=size, remote=b.mem.remote())
        wait_until(lambda: a.scq.poll(1) or a.mem.view[1 << 20])
        b.mem.rereg(access=AccessFlag.LOCAL_WRITE)
    b.mem.view[:] = b"\x5a" * size
    a.wait_for_error_state()
    assert b"\x5a" not in bytes(a.mem.view)


def test_a_write_of_the_peer_is_refused_as_soon_as_write_access_is_removed(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    b.mem.rereg(access=AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ)
    a.post(READ, 1, length=8, remote=b.mem.remote(0, 8))
    assert poll(a.scq)[0].ok
    a.post(WRITE, 2, length=8, remote=b.mem.remote(0, 8))
    a.wait_for_error_state()
    assert b.mem.read(8) == bytes(8)


def test_a_write_with_the_key_before_a_reregistration_is_refused(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    before = b.mem.remote()
    first = b.mem.view.obj
    assert isinstance(first, mmap.mmap)
    b.mem.rereg(buffer=bytearray(4096), access=ALL_ACCESS)
    a.mem.write(b"\xff" * 64)
    a.post(WRITE, 1, length=64, remote=before.part(0, 64))
    a.wait_for_error_state()
    assert set(b.mem.read()) == {0}
    assert first[:64] == bytes(64)


@pytest.mark.parametrize("start", [0, 1 << 22])
def test_no_octet_of_a_write_is_placed_in_the_old_memory_after_a_reregistration(
    two_device_connector: ListenerAndConnector, start: int
) -> None:
    """A Write larger than both socket buffers is in progress when its target is replaced."""
    size = 1 << 25
    a, b = two_device_connector.connect(size=size)
    old = bytearray(size)
    b.mem.rereg(buffer=old, access=ALL_ACCESS)
    a.mem.view[:] = b"\xa5" * size
    # The limited rate makes the transfer last until the region has been re-registered.
    with faults("tx:rate=400Mbit"):
        a.post(WRITE, 1, length=size, remote=b.mem.remote())
        # The test reads single octets, because the device writes to the memory concurrently.
        wait_until(lambda: b.rcq.poll(1) or old[start] or old[start + 7])
        b.mem.rereg(buffer=bytearray(16))
    still = bytes(old)
    assert not any(still[-8:]), (
        "the whole Write was placed before the re-registration, so nothing is tested"
    )
    a.wait_for_error_state()
    b.wait_for_error_state()
    assert old == still


def call_siw_rereg_mr(mr: Any, flags: int, pd: Any, address: int, length: int, access: int) -> int:
    return int(lib.siw_rereg_mr(mr, flags, pd, ffi.cast("void *", address), length, access))


def test_an_invalid_reregistration_leaves_the_region_unchanged(rig: Rig, ud_pair: Pair) -> None:
    memory = ffi.new("char[64]")
    here = int(ffi.cast("uintptr_t", memory))
    pd = rig.pd._c_object()
    mr = lib.siw_reg_mr(pd, memory, 64, AccessFlag.LOCAL_WRITE)
    key = mr.lkey
    elsewhere = Rig()
    most = rig.ctx.query_device().max_mr_size
    gone = mmap.PAGESIZE  # an address that is never mapped
    for flags, new_pd, address, length, access, number in [
        (0, pd, here, 64, 0, errno.EINVAL),
        (8, pd, here, 64, 0, errno.EINVAL),
        (TRANSLATION | 8, pd, here, 64, 0, errno.EINVAL),
        (NEW_PD, ffi.NULL, here, 64, 0, errno.EINVAL),
        (NEW_PD, elsewhere.pd._c_object(), here, 64, 0, errno.EINVAL),
        (TRANSLATION, pd, gone, 64, 0, errno.EFAULT),
        (TRANSLATION, pd, here, most + 1, 0, errno.EINVAL),
        (TRANSLATION, pd, here, 2**64 - 1, 0, errno.EINVAL),
        (ACCESS, pd, here, 64, AccessFlag.REMOTE_WRITE, errno.EINVAL),
        (ACCESS, pd, here, 64, 64, errno.EINVAL),
    ]:
        assert call_siw_rereg_mr(mr, flags, new_pd, address, length, access) == INPUT, (
            flags,
            number,
        )
        assert ffi.errno == number, flags
        assert (mr.lkey, mr.rkey, mr.length, mr.pd) == (key, key, 64, pd)
        assert send_succeeds(ud_pair, key, here)
    # Parameters that no flag selects are not examined.
    assert call_siw_rereg_mr(mr, ACCESS, ffi.NULL, gone, 2**64 - 1, 0) == 0
    assert mr.lkey == key and mr.length == 64
    assert lib.siw_dereg_mr(mr) == 0
    elsewhere.close()


def test_adding_write_access_to_a_region_of_read_only_memory_is_refused(
    rig: Rig,
) -> None:
    mr = rig.reg_mr(b"constant", 0)
    key = mr.lkey
    with pytest.raises(Error, match="read-only bytes") as caught:
        mr.rereg(access=AccessFlag.LOCAL_WRITE)
    assert caught.value.errno == errno.EFAULT
    assert (mr.lkey, mr.access) == (key, 0)
    mr.rereg(buffer=bytearray(8), access=AccessFlag.LOCAL_WRITE)
    assert mr.access == AccessFlag.LOCAL_WRITE


def test_reregistration_without_a_change_is_refused(rig: Rig) -> None:
    mr = rig.reg_mr(8)
    with pytest.raises(Error, match="use pd=, buffer= or access=") as caught:
        mr.rereg()
    assert caught.value.errno == errno.EINVAL


def test_a_hundred_reregistrations_leak_no_region(rig: Rig) -> None:
    mr: MR = rig.reg_mr(bytearray(64))
    for i in range(100):
        mr.rereg(buffer=bytearray(64 + i), access=ALL_ACCESS if i % 2 else 1)
        assert mr.length == 64 + i
    there: RemoteBuffer = mr.remote(0, 8)
    assert there.rkey == mr.rkey
    mr.close()
    rig.pd.close()


def test_a_reregistered_region_of_one_queue_pair_stays_restricted_to_it(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    c, d = two_device_connector.connect()
    mr = MR(b.rig.pd, bytearray(64), ALL_ACCESS, qp=b.qp)
    assert errno_raised_by(mr.rereg, pd=PD(b.rig.ctx)) == errno.EINVAL
    mr.rereg(buffer=bytearray(128))
    a.post(WRITE, 1, length=128, remote=mr.remote())
    a.post(READ, 2, length=8, remote=mr.remote(0, 8))
    assert [w.status for w in poll(a.scq, 2)] == [WCStatus.SUCCESS] * 2
    c.post(WRITE, 1, length=8, remote=mr.remote(0, 8))
    c.wait_for_error_state()
    d.wait_for_error_state()


def test_reregistration_of_a_region_that_a_queued_send_uses_is_refused(ud_pair: Pair) -> None:
    key = ud_pair.out.lkey
    ud_pair.a.modify(QPAttr(qp_state=QPState.SQD))
    ud_pair.send(b"held")
    with pytest.raises(StateError, match="poll for its completion") as caught:
        ud_pair.out.rereg(buffer=bytearray(64))
    assert caught.value.errno == errno.EBUSY and ud_pair.out.lkey == key
    ud_pair.post_receive()
    ud_pair.a.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(ud_pair.scq)[0].ok and poll(ud_pair.rcq)[0].byte_len == 4
    ud_pair.out.rereg(buffer=bytearray(64))
