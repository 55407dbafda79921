"""64 connections in four lanes of a device, to eight processes, some of which are killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading

from harness.descriptors import count_open_descriptors
from harness.heap_harness import heap_octets_in_use
from harness.lanes_harness import LANES, LaneRig
from harness.pair_harness import End, has_connection
from harness.siwarp_process import SiwarpProcess
from harness.verbs_harness import LIMIT, wait_until

from siwarp.verbs import WC, QPState, WCStatus

SANITIZED = "SANITIZER" in os.environ
HOST = "127.0.0.1"
PROCESSES, EACH = 8, 8
#: Indexes of the processes that are killed, and the number of messages of each connection before.
KILLED, EARLY = (2, 5), 20
MESSAGES, SIZE = 40, 200
#: Messages of a connection that have not been answered, and receives of each end.
WINDOW, RECEIVES = 4, 8

#: A process that returns each message to its sender.
ECHO = f"""
import json, sys
from siwarp.verbs import *
ctx = Context("{HOST}")
pd, cq = PD(ctx), CQ(ctx, 1024, channel=CompChannel(ctx))
mr = MR(pd, {EACH * RECEIVES} * 1024)
cap = QPCap(max_send_wr={RECEIVES}, max_recv_wr={RECEIVES})
qps = [QP(pd, QPInitAttr(QPType.RC, scq=cq, rcq=cq, cap=cap, by_qpn=True)) for _ in range({EACH})]
print(json.dumps([qp.qp_num for qp in qps]), flush=True)
sge = lambda slot, n=1024: [mr.sge(slot * 1024, n)]
for number, (qp, peer) in enumerate(zip(qps, json.loads(sys.stdin.readline()))):
    qp.to_init()
    for slot in range(number * {RECEIVES}, (number + 1) * {RECEIVES}):
        qp.post_recv(RecvWR(slot, sg=sge(slot)))
    qp.to_rts(QPAttr(ah_attr=AHAttr("{HOST}", source="{HOST}"), dest_qp_num=peer))
while True:
    for wc in cq.wait(60, 64):
        qp = qps[wc.wr_id // {RECEIVES}]
        if wc.ok and wc.opcode == WCOpcode.RECV:
            wr = SendWR(wc.wr_id, sg=sge(wc.wr_id, wc.byte_len), send_flags=SendFlag.SIGNALED)
            qp.post_send(wr)
        elif wc.ok:
            qp.post_recv(RecvWR(wc.wr_id, sg=sge(wc.wr_id)))
"""


class Connection:
    """The end of a connection that sends numbered messages and checks the answers."""

    def __init__(self, rig: LaneRig, number: int, messages: int) -> None:
        self.number = number
        rig.lane = number % LANES
        self.end = End(rig, HOST)
        self.goal = sys.maxsize if number // EACH in KILLED else messages
        self.posted = self.completed = self.answered = self.flushed = 0

    def connect(self, qpn: int) -> None:
        self.end.to_init_with_receives(RECEIVES)
        self.end.to_rts((HOST, qpn))

    def message(self, number: int) -> bytes:
        return f"{self.number} {number}".encode().ljust(SIZE)

    def poll_and_send_more(self, goal: int) -> bool:
        """Poll, and send further messages; return whether `goal` messages were answered, or the
        connection has ended.
        """
        for wc in self.end.cq.poll(16):
            self._handle_completion(wc)
        # Only a later request detects the end of an idle connection (spec/rc-pairing.md).
        window = WINDOW if has_connection(self.end) else WINDOW + 1
        while self.posted - self.answered < window and self.posted < goal:
            at = self.end.mr.length // 2 + self.posted % (WINDOW + 1) * 1024
            self.end.send(self.message(self.posted), 1, at)
            self.posted += 1
        return self.answered == goal or self.has_ended()

    def _handle_completion(self, wc: WC) -> None:
        if wc.wr_id < 100:
            self.completed += 1
        elif wc.ok:
            at = (wc.wr_id - 100) << 10
            assert self.end.mr.read(wc.byte_len, at) == self.message(self.answered)
            self.answered += 1
            self.end.post_receive(wc.wr_id, at, 1 << 10)
        else:
            assert wc.status == WCStatus.WR_FLUSH_ERR
            self.flushed += 1

    def has_ended(self) -> bool:
        """Return whether the connection has ended and each of its requests has completed once."""
        return (
            self.end.state == QPState.ERR
            and self.completed == self.posted
            and self.flushed == RECEIVES
        )


def exchange_messages_with_all(todo: list[tuple[Connection, int]]) -> None:
    """Exchange messages on each connection, up to its goal."""

    def all_have_exchanged() -> bool:
        todo[:] = [(c, goal) for c, goal in todo if not c.poll_and_send_more(goal)]
        return not todo

    wait_until(all_have_exchanged, 3 * LIMIT)


def exchange_messages_then_kill_peers(
    connections: list[Connection], killed: list[subprocess.Popen[str]]
) -> int:
    """Exchange messages on all connections, with a thread for each lane. When each connection has
    exchanged a few messages, count the open descriptors, and kill the processes; return the count.
    """
    failures: list[BaseException] = []
    early = threading.Barrier(LANES + 1)

    def exchange_messages_of_lane(lane: int) -> None:
        try:
            mine = [c for c in connections if c.number % LANES == lane]
            exchange_messages_with_all([(c, EARLY) for c in mine])
            early.wait()
            exchange_messages_with_all([(c, c.goal) for c in mine])
        except BaseException as e:
            failures.append(e)
            early.abort()

    threads = [threading.Thread(target=exchange_messages_of_lane, args=(i,)) for i in range(LANES)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        early.wait()
    descriptors = count_open_descriptors()
    for process in killed:
        process.kill()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return descriptors


def run_connections_to_many_processes(messages: int) -> None:
    """Connect a device to all processes, kill some of these, and close everything.

    ``messages``: how many messages a connection to a process that is not killed exchanges.
    """
    rig = LaneRig()
    connections = [Connection(rig, i, messages) for i in range(PROCESSES * EACH)]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                SiwarpProcess(
                    [sys.executable, "-c", ECHO],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(PROCESSES)
        ]
        for process in processes:
            stack.callback(process.kill)
        peers = [connections[i * EACH : (i + 1) * EACH] for i in range(PROCESSES)]
        for process, mine in zip(processes, peers, strict=True):
            assert process.stdin and process.stdout
            qpns = json.loads(process.stdout.readline())
            process.stdin.write(json.dumps([c.end.qp.qp_num for c in mine]) + "\n")
            process.stdin.flush()
            for connection, qpn in zip(mine, qpns, strict=True):
                connection.connect(qpn)
        killed = [processes[i] for i in KILLED]
        descriptors = exchange_messages_then_kill_peers(connections, killed)
        for i, mine in enumerate(peers):
            for connection in mine:
                assert connection.has_ended() == (i in KILLED)
                assert i in KILLED or connection.answered == messages
        # The connections to the killed processes have no sockets any more.
        assert count_open_descriptors() == descriptors - len(KILLED) * EACH
        for connection in connections:
            connection.end.close()
    rig.close()


def test_killed_peers_of_several_lanes_do_not_affect_other_connections_and_leave_nothing() -> None:
    run_connections_to_many_processes(EARLY)  # creates the objects that siwarp keeps
    descriptors, octets = count_open_descriptors(), heap_octets_in_use()
    run_connections_to_many_processes(MESSAGES)
    assert count_open_descriptors() == descriptors
    # A leaked connection would need more than 16 KiB. A sanitizer's memory cannot be compared.
    assert SANITIZED or heap_octets_in_use() - octets < len(KILLED) * EACH * 16_384
