"""failing_calls.py SCENARIO: runs a scenario repeatedly; in each run, the next system call fails.

test_device_failing.py runs this program with failing.c preloaded. In the
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

from harness.descriptors import count_open_descriptors
from harness.pair_harness import End as PairEnd
from harness.pair_harness import connect_pair_by_qpn
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.rd_harness import RDEnd
from harness.verbs_harness import ALL_ACCESS, Rig
from unit.cm.ud_harness import SidrEndpoints

from siwarp.cm import CMID, CMEvent, CMEventChannel, ConnParam
from siwarp.verbs import CQ, AccessFlag, QPAttr, QPType, RecvWR, RemoteBuffer, SendWR

#: A number greater than the number of system calls of any scenario.
BOUND = 5000


class NoCompletionError(Exception):
    """A completion or event did not arrive because a call failed."""


class WaitLimits:
    """How long a run waits for an event or completion, in seconds.

    The runs in which a call fails are many, and some of them wait in vain. A run in which no call
    fails must succeed on a busy machine.
    """

    seconds = 20.0


def wait_for_completions(cq: CQ, n: int = 1) -> None:
    """Wait for n completions; sleep between polls, longer if the completions take long."""
    left, pause = WaitLimits.seconds, 0.00025
    while left > 0:
        n -= len(cq.poll(n))
        if n <= 0:
            return
        time.sleep(pause)
        left -= pause
        pause = min(pause * 1.25, 0.002)
    raise NoCompletionError


def wait_for_event(channel: CMEventChannel) -> CMEvent:
    """Wait for the next event of a channel."""
    event = channel.get_event(WaitLimits.seconds)
    if event is None:
        raise NoCompletionError
    return event


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
    connector = ListenerAndConnector(rig)
    a = connector.begin_connect(size=1 << 12)
    event = wait_for_event(connector.p_channel)
    b = End(rig, event.id, connector.p_channel, size=1 << 12)
    b.post_receive(1)
    b.id.accept()
    wait_for_event(connector.a_channel)
    a.post(SEND, 2, length=100)
    wait_for_completions(b.rcq)
    wait_for_completions(a.scq)
    remote = RemoteBuffer(b.mem.addr, 100, b.mem.rkey)
    for opcode in (WRITE, READ):
        a.post(opcode, 3, length=100, remote=remote)
        wait_for_completions(a.scq)


def exchange_over_rd(rig: Rig) -> None:
    """Send 8000 octets between two RD queue pairs in each direction."""
    a, b = RDEnd(rig, 1 << 14), RDEnd(rig, 1 << 14)
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


def resolve_ud_queue_pair_by_port(rig: Rig) -> None:
    """Find a UD queue pair by address and port, once with a query that is rejected."""
    ends = SidrEndpoints(rig)
    qp = ends.create_qp()
    for accepts in (True, False):
        ends.send_sidr_query(b"data")
        asked = wait_for_event(ends.answering)
        if accepts:
            ends.accept(asked, qp)
        else:
            asked.id.reject(b"no")
        wait_for_event(ends.asking)


def connect_before_listening(rig: Rig) -> None:
    """Connect to a port that has no listener at first; the attempt is repeated until it has one."""
    connector = ListenerAndConnector(rig)
    to = connector.listener.local_addr
    connector.listener.close()
    id = CMID(connector.a_channel)
    End(rig, id, connector.a_channel, size=1 << 12)
    id.connect(to, ConnParam(refused=5, tos=32))
    if connector.a_channel.get_event(0.05) is not None:
        raise NoCompletionError
    listener = CMID(connector.p_channel)
    listener.listen(to)
    event = wait_for_event(connector.p_channel)
    event.id.reject(b"no")
    wait_for_event(connector.a_channel)


def connect_by_gid_and_qpn(rig: Rig) -> None:
    """Connect two RC queue pairs by GID and QPN, and complete a Send."""
    a, b = PairEnd(rig, size=1 << 13), PairEnd(rig, size=1 << 13)
    b.to_init_with_receives(1)
    connect_pair_by_qpn(a, b)
    a.send(b"data")
    wait_for_completions(a.cq)
    wait_for_completions(b.cq)


SCENARIOS: dict[str, Callable[[Rig], None]] = {
    "ud": send_over_ud,
    "rc": connect_over_rc,
    "rd": exchange_over_rd,
    "uc": send_over_uc,
    "resolution": resolve_ud_queue_pair_by_port,
    "refused": connect_before_listening,
    "pairing": connect_by_gid_and_qpn,
}


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
    preloaded.fail_nth_call.restype = ctypes.c_long
    arm = preloaded.fail_nth_call
    scenario = SCENARIOS[sys.argv[1]]
    assert run_scenario(scenario) == "ok"
    before = count_open_descriptors()
    failed = 0
    for n in range(1, BOUND):
        WaitLimits.seconds = 0.25
        arm(n)
        outcome = run_scenario(scenario)
        calls = arm(0)
        failed += outcome != "ok"
        if calls < n:
            break
    else:
        raise AssertionError(f"more than {BOUND} calls")
    WaitLimits.seconds = 20.0
    assert failed > 10, f"{failed} failures of {n} calls: nothing failed"
    assert run_scenario(scenario) == "ok", "the scenario fails after the failed calls"
    assert count_open_descriptors() <= before, "a file descriptor was not closed"
    print(f"{n} calls, {failed} told")


if __name__ == "__main__":
    main()
