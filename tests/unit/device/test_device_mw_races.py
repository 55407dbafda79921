"""Windows that end while the peer uses them, and while threads bind, invalidate and free them."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path

from harness.rc_harness import WRITE, End, Wire
from harness.verbs_harness import poll, wait_until

from siwarp.verbs import (
    MR,
    MW,
    AccessFlag,
    Error,
    MWBindInfo,
    MWType,
    SendWR,
    StateError,
    WCStatus,
    WROpcode,
)

SANITIZED = "SANITIZER" in os.environ
REGION = AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND
RW = AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ


def test_no_octet_changes_after_a_windows_end_and_calls_that_come_too_late_do_no_harm(
    build_dir: Path,
) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-windows", "4000" if SANITIZED else "1000"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    # The program prints: rounds of each type and way to end; peers that were terminated; binds
    # posted and done, windows and regions replaced, connections; and resets, of which there may be
    # none.
    assert all(int(n) > 0 for n in done.stdout.split()[:-1]), done.stdout


def opened(two: Wire) -> tuple[End, End]:
    a, b = two.connect(size=4096)
    a.post(WRITE, 1)
    assert poll(a.scq)[0].ok
    return a, b


def test_requests_that_outlive_their_window_or_region_are_refused(two_device_wire: Wire) -> None:
    """Python refuses to post a request that refers to a closed object; C code is tested here."""
    _, b = opened(two_device_wire)
    mr, mw, other = MR(b.rig.pd, bytearray(64), REGION), MW(b.rig.pd), MW(b.rig.pd)
    requests = []
    for window in (mw, other):
        wr = SendWR(1, WROpcode.BIND_MW)
        wr.set_bind_wr(window, MWBindInfo(mr, mr.addr, 64, RW))
        requests.append(wr)
    mw.close()
    mr.close()
    for wr in requests:
        try:
            b.qp.post_send(wr)
        except Error as e:
            assert e.errno == errno.EINVAL and e.bad_wr is wr
        else:
            raise AssertionError("a bind to what is closed was taken")
    other.close()


def test_a_window_and_its_region_are_closed_while_another_thread_binds_them(
    two_device_wire: Wire,
) -> None:
    _, b = opened(two_device_wire)
    stop = threading.Event()
    current = [(MW(b.rig.pd, MWType.TYPE_1), MR(b.rig.pd, bytearray(64), REGION))]
    odd: list[BaseException] = []

    def bind() -> None:
        while not stop.is_set():
            mw, mr = current[0]
            try:
                mw.bind(b.qp, mr)
            except (StateError, Error):
                pass  # the object has been closed meanwhile
            except BaseException as e:
                odd.append(e)
                return
            b.scq.poll(16)

    thread = threading.Thread(target=bind)
    thread.start()
    try:
        for _ in range(30 if SANITIZED else 150):
            mw, mr = current[0]
            current[0] = (MW(b.rig.pd, MWType.TYPE_1), MR(b.rig.pd, bytearray(64), REGION))
            for handle in (mw, mr):
                wait_until(lambda h=handle: closed(h))
    finally:
        stop.set()
        thread.join(20)
    assert not odd


def closed(handle: MW | MR) -> bool:
    try:
        handle.close()
    except StateError as e:
        assert e.errno == errno.EBUSY
        return False
    return True


def test_the_peer_ends_a_window_while_this_end_does(two_device_wire: Wire) -> None:
    """Either side may be first, and each completion shows which was; the window is invalid."""
    a, b = opened(two_device_wire)
    mr, mw = MR(b.rig.pd, bytearray(64), REGION), MW(b.rig.pd)
    for _ in range(10 if SANITIZED else 40):
        b.post_receive(1)
        remote = mw.bind(b.qp, mr)
        assert poll(b.scq)[0].ok
        inv = SendWR(3, WROpcode.SEND_WITH_INV, invalidate_rkey=remote.rkey)
        thread = threading.Thread(target=a.qp.post_send, args=(inv,))
        thread.start()
        mw.invalidate(b.qp)
        here = poll(b.scq)[0]
        thread.join(10)
        there = poll(b.rcq)[0]
        mw_dead = MR(b.rig.pd, bytearray(8))  # must neither hang nor affect the next round
        mw_dead.close()
        if here.ok and there.ok:
            raise AssertionError("both ended one window")
        assert here.ok or here.status in (WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR)
        b.wait_for_error_state()
        a.wait_for_error_state()
        a.next_cm_event()
        b.next_cm_event()
        a.close()
        b.close()
        a, b = opened(two_device_wire)
    mw.close()
    mr.close()
