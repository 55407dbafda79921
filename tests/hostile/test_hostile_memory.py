"""Registered memory that is removed: the affected queue pair enters ERR, and the process
survives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.siwarp_process import SiwarpProcess
from harness.verbs_harness import ALL_ACCESS, Pair, Rig, octet_pattern, poll, wait_until
from hostile.peer import accept_raw_initiator, check_that_new_connections_work
from hostile.vanishing import PAGE, RemovableMemory
from pace import run_command

from siwarp._siwarp import ffi, lib
from siwarp.cm import ConnParam
from siwarp.verbs import MR, QPAttr, QPState, RecvWR, SendFlag, SendWR, WCStatus

PROT = WCStatus.LOC_PROT_ERR
FLUSHED = WCStatus.WR_FLUSH_ERR
DDP_LOCAL = 1 << 16  # layer, type and code of the local catastrophic error of DDP
RDMAP_LOCAL = 0xFF
#: Sizes in octets of a message that is staged as a whole, one that is read directly to its
#: destination, and one of many segments.
SIZES = (64, 12_000, 300_000)
GONE = ("unmapped", "protected", "truncated")
FRAMINGS = ("crc", "no crc", "markers")


def connection_params_for_framing(how: str) -> tuple[ConnParam, ConnParam]:
    """Return the connection parameters that both ends request."""
    crc, markers = how != "no crc", how == "markers"
    return ConnParam(crc=crc, markers=markers), ConnParam(crc=crc, markers=markers)


@pytest.fixture(name="two_device_connector")
def listener_and_connector_on_two_devices() -> Iterator[ListenerAndConnector]:
    a, b = Rig(), Rig()
    yield ListenerAndConnector(a, b)
    a.close()
    b.close()


@pytest.fixture(params=[False, True], ids=["fast", "strict"])
def temporary_crc_first_setting(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = next(
        int(lib.siw_setting_value(i))
        for i in range(lib.siw_settings_count())
        if ffi.string(lib.siw_setting_name(i)) == b"crc_first"
    )
    lib.siw_setting_set(b"crc_first", int(request.param))
    yield request.param
    lib.siw_setting_set(b"crc_first", before)


class PartlyRemovedRegion:
    """A registered region of one end, of which all but the first page has been removed."""

    def __init__(self, end: End, how: str) -> None:
        self.memory = RemovableMemory(1 << 19, how)
        self.mr: MR = end.rig.reg_mr(self.memory.buffer, ALL_ACCESS)
        self.memory.remove_pages(PAGE)

    def close(self) -> None:
        self.mr.close()
        self.memory.close()


def check_receive_flushed_with(end: End, code: int) -> None:
    """Assert that an end is in ERR and that its receive 99 was flushed with this error code."""
    end.wait_for_error_state()
    last = poll(end.rcq)[0]
    assert (last.wr_id, last.status, last.vendor_err) == (99, FLUSHED, code)


def check_end_of_connection(
    connector: ListenerAndConnector, a: End, b: End, gone: PartlyRemovedRegion, code: int
) -> None:
    """Assert that both ends are in ERR with this error code, and that others can connect."""
    check_receive_flushed_with(a, code)
    check_receive_flushed_with(b, code)
    gone.close()
    check_that_new_connections_work(connector, a, b)


# ---- destinations of the peer's Writes


@pytest.mark.parametrize("how", [*GONE, "read-only"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_write_to_removed_memory_ends_both_queue_pairs_with_the_same_error(
    temporary_crc_first_setting: bool,
    two_device_connector: ListenerAndConnector,
    how: str,
    size: int,
    framing: str,
) -> None:
    a, b = two_device_connector.connect(*connection_params_for_framing(framing), size=1 << 19)
    gone = PartlyRemovedRegion(b, how)
    a.post_receive(99)
    b.post_receive(99)
    a.post(WRITE, 1, length=size, remote=gone.mr.remote(PAGE, size))
    check_end_of_connection(two_device_connector, a, b, gone, DDP_LOCAL)


@pytest.mark.parametrize("how", [*GONE, "read-only"])
@pytest.mark.parametrize("size", SIZES)
def test_a_receive_into_removed_memory_completes_with_a_protection_error(
    temporary_crc_first_setting: bool,
    two_device_connector: ListenerAndConnector,
    how: str,
    size: int,
) -> None:
    a, b = two_device_connector.connect(size=1 << 19)
    gone = PartlyRemovedRegion(b, how)
    a.post_receive(99)
    b.qp.post_recv(RecvWR(7, sg=[gone.mr.sge(0, 1 << 19)]))
    b.post_receive(99)
    # The first page is present, so the fault occurs in the middle of the message.
    a.post(SEND, 1, length=size + (PAGE if size < PAGE else 0))
    (first,) = poll(b.rcq)
    assert (first.wr_id, first.status) == (7, PROT)
    check_end_of_connection(two_device_connector, a, b, gone, DDP_LOCAL)


@pytest.mark.parametrize("how", [*GONE, "read-only"])
@pytest.mark.parametrize("size", SIZES)
def test_a_read_into_removed_memory_completes_with_a_protection_error(
    temporary_crc_first_setting: bool,
    two_device_connector: ListenerAndConnector,
    how: str,
    size: int,
) -> None:
    a, b = two_device_connector.connect(size=1 << 19)
    gone = PartlyRemovedRegion(a, how)
    a.post_receive(99)
    b.post_receive(99)
    a.qp.post_send(
        [
            SendWR(1, READ, sg=[gone.mr.sge(PAGE, size)], remote=b.mem.remote(0, size)),
            SendWR(2, READ, sg=[a.mem.sge(0, 8)], remote=b.mem.remote(0, 8)),
        ]
    )
    assert [(w.wr_id, w.status) for w in poll(a.scq, 2)] == [(1, PROT), (2, FLUSHED)]
    check_end_of_connection(two_device_connector, a, b, gone, DDP_LOCAL)


# ---- sources of this end's messages


@pytest.mark.parametrize("how", GONE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("opcode", [SEND, WRITE], ids=["send", "write"])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_send_or_write_of_removed_memory_completes_with_a_protection_error(
    two_device_connector: ListenerAndConnector, how: str, size: int, opcode: int, framing: str
) -> None:
    a, b = two_device_connector.connect(*connection_params_for_framing(framing), size=1 << 19)
    gone = PartlyRemovedRegion(a, how)
    b.mem.view[:] = b"\x33" * b.mem.length
    a.post_receive(99)
    b.post_receive(99, 1 << 18)
    remote = None if opcode == SEND else b.mem.remote(0, size)
    a.qp.post_send(
        [
            SendWR(1, opcode, sg=[gone.mr.sge(PAGE, size)], remote=remote),
            SendWR(2, SEND, sg=[a.mem.sge(0, 8)]),
        ]
    )
    assert [(w.wr_id, w.status) for w in poll(a.scq, 2)] == [(1, PROT), (2, FLUSHED)]
    a.wait_for_error_state()
    b.wait_for_error_state()
    assert b.mem.read() == b"\x33" * b.mem.length
    gone.close()
    check_that_new_connections_work(two_device_connector, a, b)


@pytest.mark.parametrize("how", GONE)
def test_a_send_of_partly_removed_memory_completes_with_a_protection_error(
    two_device_connector: ListenerAndConnector, how: str
) -> None:
    a, b = two_device_connector.connect(size=1 << 20, max_send_sge=2)
    gone = PartlyRemovedRegion(a, how)
    a.post_receive(99)
    b.post_receive(99)
    whole = 1 << 19
    a.qp.post_send(SendWR(1, SEND, sg=[a.mem.sge(0, whole), gone.mr.sge(0, whole)]))
    assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(1, PROT)]
    check_end_of_connection(two_device_connector, a, b, gone, RDMAP_LOCAL)


@pytest.mark.parametrize("how", GONE)
@pytest.mark.parametrize("size", SIZES)
def test_a_peer_that_reads_removed_memory_receives_a_terminate_for_a_local_error(
    two_device_connector: ListenerAndConnector, how: str, size: int
) -> None:
    a, b = two_device_connector.connect(size=1 << 19)
    gone = PartlyRemovedRegion(b, how)
    a.post_receive(99)
    b.post_receive(99)
    a.post(READ, 1, length=size, remote=gone.mr.remote(PAGE, size))
    (wc,) = poll(a.scq)
    # The Read Request itself is not in error, so the Terminate quotes no request (RFC 5040 figure
    # 10).
    assert (wc.wr_id, wc.status, wc.vendor_err) == (1, FLUSHED, RDMAP_LOCAL)
    check_end_of_connection(two_device_connector, a, b, gone, RDMAP_LOCAL)


@pytest.mark.parametrize("how", GONE)
def test_memory_removed_while_tcp_is_full_fails_the_request_that_sends_it(
    two_device_connector: ListenerAndConnector, how: str
) -> None:
    """The CRCs of the segments are computed before the memory is removed; only TCP reads the memory
    later.
    """
    peer, b = accept_raw_initiator(two_device_connector, size=4096)
    memory = RemovableMemory(32 << 20, how)
    mr = b.rig.reg_mr(memory.buffer, ALL_ACCESS)
    b.qp.post_send(SendWR(1, WRITE, sg=[mr.sge()], remote=mr.remote()))
    b.qp.post_send(SendWR(2, WRITE, sg=[b.mem.sge(0, 8)], remote=mr.remote()))
    wait_until(lambda: peer.count_unread_octets() > 0)
    assert b.scq.poll(4) == []
    memory.remove_pages()
    peer.discard_until_end()
    assert [(w.wr_id, w.status) for w in poll(b.scq, 2)] == [(1, PROT), (2, FLUSHED)]
    b.wait_for_error_state()
    mr.close()
    memory.close()
    peer.close()
    check_that_new_connections_work(two_device_connector, b)


# ---- datagrams


@pytest.mark.parametrize("how", [*GONE, "read-only"])
@pytest.mark.parametrize("size", [1, 64, 5000, 60_000])
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no crc"])
def test_a_datagram_for_removed_memory_completes_its_receive_with_a_protection_error(
    how: str, size: int, crc: bool
) -> None:
    rig = Rig()
    memory = RemovableMemory(1 << 17, how)
    mr = rig.reg_mr(memory.buffer)
    out = rig.reg_mr(bytearray(octet_pattern(size)))
    qp = rig.create_ud_qp(addr=("127.0.0.1", 0), crc=crc)
    ah = rig.create_ah(qp)
    qp.post_recv(RecvWR(1, sg=[mr.sge(PAGE, 1 << 16)]))
    qp.post_recv(RecvWR(2, sg=[mr.sge(0, PAGE)]))
    memory.remove_pages(PAGE)
    for n in (size, 1):
        qp.post_send(SendWR(9, sg=[out.sge(0, n)], send_flags=0, ah=ah, remote_qpn=qp.qp_num))
    done = poll(qp.rcq, 2)
    assert [(w.wr_id, w.status, w.byte_len) for w in done] == [
        (1, PROT, size),
        (2, WCStatus.SUCCESS, 1),
    ]
    assert mr.read(1) == octet_pattern(size)[:1]
    mr.close()
    rig.close()
    memory.close()


@pytest.mark.parametrize("how", GONE)
@pytest.mark.parametrize("size", [1, 64, 5000, 60_000])
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no crc"])
def test_a_datagram_from_removed_memory_fails_and_later_datagrams_are_transmitted(
    how: str, size: int, crc: bool
) -> None:
    rig = Rig()
    memory = RemovableMemory(1 << 17, how)
    mr = rig.reg_mr(memory.buffer)
    pair = Pair(rig)
    memory.remove_pages()
    gone = SendWR(1, sg=[mr.sge(0, size)], ah=pair.to_b)
    good = SendWR(2, sg=[pair.out.sge(0, 10)], ah=pair.to_b)
    # The failing request is posted alone, and in a batch.
    for requests in ([gone], [good, gone, good]):
        pair.post_receive(5)
        pair.a.post_send(requests)
        done = [(w.wr_id, w.status) for w in poll(pair.scq, len(requests))]
        assert done[-2:] in ([(1, PROT)], [(1, PROT), (2, FLUSHED)])
        assert pair.a.qp_state == QPState.SQE
        pair.a.modify(QPAttr(qp_state=QPState.RTS))
    pair.a.post_send(good)
    assert [(w.wr_id, w.status) for w in poll(pair.scq)] == [(2, WCStatus.SUCCESS)]
    assert [w.byte_len for w in poll(pair.rcq, 2)] == [10, 10]
    mr.close()
    rig.close()
    memory.close()


# ---- signal handlers, siwarp's and others

PROGRAM = """
import ctypes, faulthandler, os, signal, sys, threading
sys.path[:0] = {path!r}
from hostile.vanishing import PAGE, RemovableMemory
from harness.verbs_harness import ALL_ACCESS, Rig, poll, wait_until
from harness.rc_harness import WRITE, ListenerAndConnector
from siwarp.verbs import QPState
{before}
rig = Rig()
{after}
connector = ListenerAndConnector(rig)
a, b = connector.connect()
memory = RemovableMemory(1 << 16, "unmapped")
mr = rig.reg_mr(memory.buffer, ALL_ACCESS)
memory.remove_pages()
a.post(WRITE, 1, length=100, remote=mr.remote(0, 100))
wait_until(
    lambda: [end.scq.poll() for end in (a, b)] and a.qp.qp_state == b.qp.qp_state == QPState.ERR
)
print("alive", flush=True)
{end}
"""

CRASH = "ctypes.string_at(8)"


def run_program_with_removed_memory(
    before: str = "", after: str = "", end: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    path = [p for p in sys.path if p.endswith("tests")]
    code = PROGRAM.format(path=path, before=before, after=after, end=end)
    return run_command(
        [sys.executable, "-c", code],
        seconds=60,
        start=SiwarpProcess,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


@pytest.mark.skipif("SANITIZER" in os.environ, reason="the sanitizer has a handler of its own")
def test_a_segmentation_fault_outside_siwarp_still_kills_the_process() -> None:
    done = run_program_with_removed_memory(end=CRASH)
    assert (done.stdout, done.returncode) == ("alive\n", -signal.SIGSEGV), done.stderr


@pytest.mark.skipif("SANITIZER" in os.environ, reason="the sanitizer has a handler of its own")
@pytest.mark.parametrize("when", ["before", "after"])
def test_pythons_faulthandler_still_reports_a_crash(when: str) -> None:
    # Without the progress thread the main thread makes the access. Python's faulthandler reads the
    # frames of other threads while they run, and may crash itself.
    done = run_program_with_removed_memory(
        **{when: "faulthandler.enable()"}, end=CRASH, SIWARP_PROGRESS_THREAD="0"
    )
    assert (done.stdout, done.returncode) == ("alive\n", -signal.SIGSEGV), done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_a_segmentation_fault_signal_sent_by_kill_reaches_the_programs_handler() -> None:
    handler = """
def handler(sig, frame):
    print("handled", flush=True)
    os._exit(7)
signal.signal(signal.SIGSEGV, handler)
"""
    done = run_program_with_removed_memory(
        before=handler, end="os.kill(os.getpid(), signal.SIGSEGV)\nwhile True: pass"
    )
    assert (done.stdout, done.returncode) == ("alive\nhandled\n", 7), done.stderr


def test_closing_the_last_device_restores_the_signal_handlers() -> None:
    check = """
libc = ctypes.CDLL(None)
def installed(sig):
    action = ctypes.create_string_buffer(256)
    assert libc.sigaction(sig, None, action) == 0
    return action.raw[:8]
"""
    done = run_program_with_removed_memory(
        before=check + "was = [installed(11), installed(7)]",
        after="assert [installed(11), installed(7)] != was",
        end="mr.close(); rig.close(); assert [installed(11), installed(7)] == was; print('same')",
    )
    assert done.stdout == "alive\nsame\n", done.stderr
    assert done.returncode == 0


def test_the_remaining_pages_of_a_region_still_work_after_a_fault_in_the_region(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    gone = PartlyRemovedRegion(b, "protected")
    a.post(WRITE, 1, length=64, remote=gone.mr.remote(PAGE, 64))
    a.wait_for_error_state()
    b.wait_for_error_state()
    a.close()
    b.close()
    c, d = two_device_connector.connect()
    c.mem.write(octet_pattern(64, 4))
    c.post(WRITE, 1, length=64, remote=gone.mr.remote(0, 64))
    c.post(READ, 2, offset=100, length=64, remote=gone.mr.remote(0, 64), flags=SendFlag.SIGNALED)
    assert all(w.ok for w in poll(c.scq, 2))
    assert c.mem.read(64, 100) == octet_pattern(64, 4)
    assert d.qp.qp_state == QPState.RTS
    gone.close()
