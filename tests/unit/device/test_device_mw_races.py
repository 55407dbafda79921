"""Memory windows that end while the peer uses them or other threads bind and free them."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from harness.mw_harness import bind_new_memory_window, register_region
from harness.peer_harness import connected_plain_peer
from harness.rc_harness import WRITE, End, ListenerAndConnector
from harness.verbs_harness import Rig, counter_value, poll, temporary_settings, wait_until

from siwarp.verbs import (
    MR,
    MW,
    AccessFlag,
    Error,
    MWBindInfo,
    MWType,
    QPState,
    SendWR,
    StateError,
    WCStatus,
    WROpcode,
)

SANITIZED = "SANITIZER" in os.environ
REGION = AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND
RW = AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ


def test_no_octet_changes_after_a_memory_window_ends_and_late_calls_are_harmless(
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
    # The program prints counts: rounds for each window type and way to end a window, terminated
    # peers, posted binds, completed binds, replaced windows and regions, connections, and last the
    # resets, which may be 0.
    assert all(int(n) > 0 for n in done.stdout.split()[:-1]), done.stdout


def connect_and_write(two: ListenerAndConnector) -> tuple[End, End]:
    a, b = two.connect(size=4096)
    a.post(WRITE, 1)
    assert poll(a.scq)[0].ok
    return a, b


def test_a_bind_whose_memory_window_or_region_has_been_closed_is_refused(
    two_device_connector: ListenerAndConnector,
) -> None:
    """Posting a prepared bind of a closed window or region is refused with EINVAL."""
    _, b = connect_and_write(two_device_connector)
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
            raise AssertionError("a bind of a closed window or region was accepted")
    other.close()


def test_a_memory_window_and_its_region_are_closed_while_another_thread_binds_them(
    two_device_connector: ListenerAndConnector,
) -> None:
    _, b = connect_and_write(two_device_connector)
    stop = threading.Event()
    current = [(MW(b.rig.pd, MWType.TYPE_1), MR(b.rig.pd, bytearray(64), REGION))]
    odd: list[BaseException] = []

    def bind_window_until_stopped() -> None:
        while not stop.is_set():
            mw, mr = current[0]
            try:
                mw.bind(b.qp, mr)
            except (StateError, Error):
                # The other thread may have closed the window or the region.
                pass
            except BaseException as e:
                odd.append(e)
                return
            b.scq.poll(16)

    thread = threading.Thread(target=bind_window_until_stopped)
    thread.start()
    try:
        for _ in range(30 if SANITIZED else 150):
            mw, mr = current[0]
            current[0] = (MW(b.rig.pd, MWType.TYPE_1), MR(b.rig.pd, bytearray(64), REGION))
            for handle in (mw, mr):
                wait_until(lambda h=handle: close_unless_busy(h))
    finally:
        stop.set()
        thread.join(20)
    assert not odd


@pytest.mark.parametrize("served_first", ["binder", "reader"])
def test_a_stream_that_the_end_of_a_replaced_binding_resets_may_be_ready_in_the_same_round(
    served_first: str,
) -> None:
    """The end of the binder's connection resets the reader's stream, whose socket the same round
    serves later, or has served before.
    """
    # One lane, and no progress thread: a poll makes one round, which serves both sockets.
    with temporary_settings(lanes=1, progress_thread=0):
        rig = Rig()
    connector = ListenerAndConnector(rig)
    with (
        connected_plain_peer(connector, gone=True) as one,
        connected_plain_peer(connector, gone=True) as other,
    ):
        (binder, ending), (reader, stalled) = (
            (one, other) if served_first == "binder" else (other, one)
        )
        # The response to the Read fills the socket, because the peer does not read from it.
        mr = register_region(binder, 32 << 20)
        mw, old = bind_new_memory_window(binder, mr, MWType.TYPE_1)
        full = counter_value("tx_eagain") + 1
        stalled.send_segments(stalled.build_read_request(32 << 20, old.rkey, old.addr))
        wait_until(lambda: reader.rcq.poll(1) or counter_value("tx_eagain") >= full)
        # No round happens between the second bind and the end of its queue pair.
        mw.bind(binder.qp, mr, wr_id=5)
        ending.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ending.sock.close()
        stalled.send_segments(stalled.build_write(b"late", reader.mem.rkey, reader.mem.addr))
        assert reader.rcq.poll(1) == []
        assert binder.qp.qp_state == reader.qp.qp_state == QPState.ERR
        # The Write is placed unless the stream had been reset before its socket was served.
        assert reader.mem.read(4) == (bytes(4) if served_first == "binder" else b"late")
        # The bind was carried out, and the end of its queue pair has ended the old binding.
        assert [(wc.wr_id, wc.ok) for wc in poll(binder.scq)] == [(5, True)]
        mw.close()
        mr.close()
    rig.close()


def close_unless_busy(handle: MW | MR) -> bool:
    try:
        handle.close()
    except StateError as e:
        assert e.errno == errno.EBUSY
        return False
    return True


def test_both_ends_invalidate_a_memory_window_at_the_same_time(
    two_device_connector: ListenerAndConnector,
) -> None:
    """Exactly one end invalidates the window, and the completions show which one."""
    a, b = connect_and_write(two_device_connector)
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
        # Closing a region must not hang while the queue pair moves to ERR.
        mw_dead = MR(b.rig.pd, bytearray(8))
        mw_dead.close()
        if here.ok and there.ok:
            raise AssertionError("both ends invalidated the same window")
        assert here.ok or here.status in (WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR)
        b.wait_for_error_state()
        a.wait_for_error_state()
        a.next_cm_event()
        b.next_cm_event()
        a.close()
        b.close()
        a, b = connect_and_write(two_device_connector)
    mw.close()
    mr.close()
