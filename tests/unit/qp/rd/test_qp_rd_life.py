"""RD peers that are killed and whose port another process then uses."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from harness.rd_harness import RDEnd
from harness.siwarp_process import SiwarpProcess
from harness.verbs_harness import Rig

from siwarp.verbs import (
    AH,
    EventType,
    PeerRestart,
    QPAttr,
    QPState,
    SendWR,
    faults,
)

LISTENER = """
    import sys
    sys.path.insert(0, "tests")
    from harness.rd_harness import RDEnd
    from harness.verbs_harness import Rig
    rig = Rig()
    peer = RDEnd(rig, port=int(sys.argv[1]))
    for i in range(16):
        peer.post_receive(i, 64, 64 * i)
    print(peer.qp.addr[1], flush=True)
    for line in sys.stdin:  # each line is the number of messages to wait for
        for w in peer.poll_receives(int(line)):
            print(peer.into.read(w.byte_len, 64 * w.wr_id).decode(), flush=True)
"""


class RdPeerProcess:
    """An RD peer that runs in its own process."""

    def __init__(self, port: int = 0) -> None:
        self.process = SiwarpProcess(
            [sys.executable, "-c", textwrap.dedent(LISTENER), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def wait_for_messages(self, n: int) -> list[str]:
        """Wait until the process has received `n` messages; return their octets."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return [self.process.stdout.readline().strip() for _ in range(n)]

    def kill(self) -> None:
        """Kill the process without a message to its RD peers."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self.kill()
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def peer_processes_closed_after_test() -> Iterator[list[RdPeerProcess]]:
    """Provide a list to which a test adds peer processes, which are closed when the test ends."""
    made: list[RdPeerProcess] = []
    yield made
    for listener in made:
        listener.close()


def wait_for_peer_restart(rig: Rig, end: RDEnd) -> list[PeerRestart]:
    """Wait for the PEER_RESTARTED event; return the restarts that the queue pair reports."""
    event = rig.ctx.get_async_event(10)
    assert event is not None
    with event:
        assert (event.event_type, event.element) == (EventType.PEER_RESTARTED, end.qp)
    return end.qp.restarts()


@pytest.mark.clause("DGRAM-INST-3", "DGRAM-INST-4")
@pytest.mark.parametrize("loss", [0, 30])
def test_messages_posted_for_a_killed_process_do_not_reach_its_successor_on_the_port(
    rig: Rig, peer_processes_closed_after_test: list[RdPeerProcess], loss: int
) -> None:
    a = RDEnd(rig)
    for i in range(16):
        a.out.write(f"n{i:02}".encode(), offset=8 * i)
    first = RdPeerProcess()
    peer_processes_closed_after_test.append(first)

    def post_numbered_send(i: int) -> None:
        a.qp.post_send(SendWR(i, sg=[a.out.sge(8 * i, 3)], ah=ah))

    with AH(rig.pd, ("127.0.0.1", first.port)) as ah, faults(f"loss={loss}%,seed=4"):
        post_numbered_send(0)
        assert a.poll_sends()[0].ok
        assert first.wait_for_messages(1) == ["n00"]
        a.qp.modify(QPAttr(qp_state=QPState.SQD))
        for i in (1, 2, 3):
            post_numbered_send(i)
        first.kill()
        second = RdPeerProcess(first.port)
        peer_processes_closed_after_test.append(second)
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        old = a.poll_sends(3)
        assert [w.wr_id for w in old] == [1, 2, 3]
        assert not any(w.ok for w in old)
        assert {w.source for w in old} == {("127.0.0.1", first.port)}
        for i in (4, 5):
            post_numbered_send(i)
        assert [(w.wr_id, w.ok) for w in a.poll_sends(2)] == [(4, True), (5, True)]
        assert second.wait_for_messages(2) == ["n04", "n05"]
        (told,) = wait_for_peer_restart(rig, a)
        assert told.peer == ("127.0.0.1", first.port) and told.instance
        assert a.qp.restarts() == []
    assert a.qp.qp_state == QPState.RTS
