"""RD queue pairs whose peers exit without closing, or grant no credit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from harness.rd_harness import RDEnd
from harness.rd_stranger import scripted_peer
from harness.verbs_harness import Rig, assert_no_completion, wait_until

from siwarp.inspect.rd import RDType
from siwarp.verbs import AH, SendWR


@pytest.fixture
def processes_killed_after_test() -> Iterator[list[subprocess.Popen[str]]]:
    """Provide a list to which a test adds processes, which are killed at the end of the test."""
    made: list[subprocess.Popen[str]] = []
    yield made
    for p in made:
        p.kill()
        p.wait()
        assert p.stdin is not None and p.stdout is not None
        p.stdin.close()
        p.stdout.close()


def start_peer_process(
    made: list[subprocess.Popen[str]], number: int, code: str
) -> tuple[subprocess.Popen[str], int]:
    """Run code with this argument in a process; return the process and its RD peer's port."""
    p = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    made.append(p)
    assert p.stdout is not None
    return p, int(p.stdout.readline())


EXITS = """
    import ctypes, sys
    sys.path.insert(0, "tests")
    from harness.rd_harness import RDEnd
    from harness.verbs_harness import Rig
    rig = Rig()
    peer = RDEnd(rig)
    print(peer.qp.addr[1], flush=True)
    sys.stdin.readline()
    ctypes.CDLL(None).exit(0)  # exits as a C program does, without Python's cleanup
"""


class RemoteEndpoint:
    """The address of an RD endpoint in another process, in the form that scripted_peer() needs."""

    def __init__(self, port: int) -> None:
        self.qp = SimpleNamespace(addr=("127.0.0.1", port))


@pytest.mark.clause("DGRAM-RD-10")
def test_peers_receive_a_bye_when_a_program_exits_without_closing_its_queue_pair(
    processes_killed_after_test: list[subprocess.Popen[str]],
) -> None:
    p, port = start_peer_process(processes_killed_after_test, 0, EXITS)
    with scripted_peer(cast("RDEnd", RemoteEndpoint(port))) as s:
        assert p.stdin is not None
        p.stdin.write("now\n")
        p.stdin.flush()
        wait_until(lambda: s.receive_and_answer_datagram().type == RDType.BYE)


@pytest.mark.clause("DGRAM-RD-20")
@pytest.mark.parametrize("what", ["request", "response"])
def test_a_device_sleeps_while_queued_messages_wait_for_a_peers_credit(rig: Rig, what: str) -> None:
    a = RDEnd(rig)
    with scripted_peer(a) as s:
        s.send_datagram(RDType.ACK, credit=0)
        if what == "request":
            a.qp.post_send(SendWR(1, sg=[a.out.sge(0, 4)], ah=AH(rig.pd, s.addr)))
        else:
            s.send_datagram(RDType.DATA, body=s.build_read_request(64), credit=0)
            s.psn[0] += 1
        assert_no_completion(a.scq, 0.1)
        time.sleep(0.1)  # time for the progress thread to take over from the polling thread
        used = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - used < 0.15
        s.send_datagram(RDType.ACK, credit=64)
        wait_until(lambda: s.receive_and_answer_datagram().type == RDType.DATA)
