"""failing_calls.py SCENARIO: runs a scenario while one system call after the other fails.

test_device_failing.py runs this program with failing.c preloaded. The scenario is repeated. In the
first run no call fails; in the second run the first system call of the library fails; in the third
run the second call; and so on, until a run ends before the call that should fail. Every run must
end in success, in an error returned to the program, or in a completion that never arrives, and must
leave no file descriptor open.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness.rc_harness import READ, SEND, WRITE, End, Wire
from harness.rd_harness import Peer
from harness.verbs_harness import ALL_ACCESS, Rig

from siwarp.verbs import CQ, AccessFlag, QPAttr, QPType, RecvWR, RemoteBuffer, SendWR

#: A number greater than the number of system calls of any scenario.
BOUND = 5000


class NoCompletionError(Exception):
    """A completion or event did not arrive because a call failed."""


def wait_for_completions(cq: CQ, n: int = 1) -> None:
    """Wait for n completions, for at least a quarter of a second; sleep between polls."""
    for _ in range(1000):
        n -= len(cq.poll(n))
        if n <= 0:
            return
        time.sleep(0.00025)
    raise NoCompletionError


def send_over_ud(rig: Rig) -> None:
    """Send a message between two UD queue pairs, with a channel, an SRQ and a resized CQ."""
    channel = rig.create_channel()
    cq = rig.create_cq(64, channel)
    srq = rig.create_srq(16)
    mem = rig.reg_mr(1 << 14, AccessFlag.LOCAL_WRITE)
    a, b = rig.create_ud_qp(cq), rig.create_ud_qp(cq, srq=srq)
    srq.post_recv([RecvWR(1, sg=[mem.sge(8192, 8192)])])
    cq.resize(128)
    cq.req_notify()
    for size in (4, 6000):
        a.post_send(SendWR(2, sg=[mem.sge(0, size)], ah=rig.create_ah(b)))
        wait_for_completions(cq, 2 if size == 4 else 1)
        srq.post_recv([RecvWR(1, sg=[mem.sge(8192, 8192)])])


def connect_over_rc(rig: Rig) -> None:
    """Connect two RC queue pairs, and complete a Send, a Write and a Read."""
    wire = Wire(rig)
    a = wire.begin_connect(size=1 << 12)
    event = wire.p_channel.get_event(0.25)
    if event is None:
        raise NoCompletionError
    b = End(rig, event.id, wire.p_channel, size=1 << 12)
    b.post_receive(1)
    b.id.accept()
    if wire.a_channel.get_event(0.25) is None:
        raise NoCompletionError
    a.post(SEND, 2, length=100)
    wait_for_completions(b.rcq)
    wait_for_completions(a.scq)
    remote = RemoteBuffer(b.mem.addr, 100, b.mem.rkey)
    for opcode in (WRITE, READ):
        a.post(opcode, 3, length=100, remote=remote)
        wait_for_completions(a.scq)


def exchange_over_rd(rig: Rig) -> None:
    """Send 8000 octets between two RD queue pairs in each direction."""
    a, b = Peer(rig, 1 << 14), Peer(rig, 1 << 14)
    for one, other in ((a, b), (b, a)):
        other.post_receive(1)
        one.send(other, bytes(8000))
        wait_for_completions(one.scq)
        wait_for_completions(other.rcq)


def send_over_uc(rig: Rig) -> None:
    """Send a message between two UC queue pairs."""
    cq = rig.create_cq(64)
    mem = rig.reg_mr(1 << 14, ALL_ACCESS)
    a, b = rig.create_qp(cq, qp_type=QPType.UC), rig.create_qp(cq, qp_type=QPType.UC)
    for one, other in ((a, b), (b, a)):
        one.to_rts(QPAttr(ah_attr=other.addr))
    b.post_recv(RecvWR(1, sg=[mem.sge(8192, 8192)]))
    a.post_send(SendWR(2, sg=[mem.sge(0, 6000)]))
    wait_for_completions(cq, 2)


SCENARIOS: dict[str, Callable[[Rig], None]] = {
    "ud": send_over_ud,
    "rc": connect_over_rc,
    "rd": exchange_over_rd,
    "uc": send_over_uc,
}


def open_descriptor_count() -> int:
    """Return the number of open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def run_scenario(scenario: Callable[[Rig], None]) -> str:
    """Run a scenario with a new device; return "ok" or a description of the failure."""
    try:
        rig = Rig()
    except OSError as e:
        return f"no device: {e}"
    try:
        scenario(rig)
        return "ok"
    except (OSError, MemoryError, NoCompletionError) as e:
        return f"{type(e).__name__}: {e}"
    finally:
        with contextlib.suppress(OSError, MemoryError):
            rig.close()


def main() -> None:
    """Run the scenario repeatedly; in each run the next system call fails."""
    preloaded = ctypes.CDLL(None)
    preloaded.failing_arm.restype = ctypes.c_long
    arm = preloaded.failing_arm
    scenario = SCENARIOS[sys.argv[1]]
    assert run_scenario(scenario) == "ok"
    before = open_descriptor_count()
    failed = 0
    for n in range(1, BOUND):
        arm(n)
        outcome = run_scenario(scenario)
        calls = arm(0)
        failed += outcome != "ok"
        if calls < n:
            break
    else:
        raise AssertionError(f"more than {BOUND} calls")
    assert failed > 10, f"{failed} failures of {n} calls: nothing failed"
    assert run_scenario(scenario) == "ok", "the scenario fails after the failed calls"
    assert open_descriptor_count() <= before, "a file descriptor was not closed"
    print(f"{n} calls, {failed} told")


if __name__ == "__main__":
    main()
