"""Many RC queue pairs that connect by GID and QPN: in one process and in hundreds of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.pair_harness import HOST
from harness.verbs_harness import Rig, poll

from siwarp.verbs import QP, AHAttr, Persona, QPAttr, QPInitAttr, QPType, RecvWR, SendWR

#: Whether a sanitizer makes the processes several times as large and as slow.
SANITIZED = "SANITIZER" in os.environ


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE])
def test_a_thousand_pairs_of_queue_pairs_connect_by_qpn_at_the_same_time(
    rig: Rig, persona: Persona
) -> None:
    n = 100 if SANITIZED else 1000
    cq = rig.create_cq(8 * n)
    mr = rig.reg_mr(4096)
    init = QPInitAttr(QPType.RC, scq=cq, rcq=cq, by_qpn=True, persona=persona)
    made = [QP(rig.pd, init) for _ in range(2 * n)]
    for qp in made:
        qp.to_init()
        qp.post_recv(RecvWR(1, sg=[mr.sge(0, 100)]))
    for a, b in zip(made[:n], reversed(made[n:]), strict=True):
        for mine, theirs in ((a, b), (b, a)):
            mine.to_rts(QPAttr(ah_attr=AHAttr(HOST), dest_qp_num=theirs.qp_num, timeout=20))
            mine.post_send(SendWR(2, sg=[mr.sge(200, 10)]))
    assert all(wc.ok for wc in poll(cq, 4 * n, 60.0))


RING_PROGRAM = """
import os, select, sys
sys.path.insert(0, sys.argv[2])
n = int(sys.argv[1])
from siwarp.verbs import *
from siwarp.verbs import AHAttr

up = [os.pipe() for _ in range(n)]
down = [os.pipe() for _ in range(n)]

def connect_to_neighbours(i):
    context = Context("127.0.0.1")
    pd = PD(context)
    cq = CQ(context, 64, channel=CompChannel(context))
    mr = MR(pd, 4096)
    left, right = (QP(pd, QPInitAttr(QPType.RC, scq=cq, rcq=cq, by_qpn=True)) for _ in range(2))
    mr.write(b"%08d" % i, 8, 200)
    for qp in (left, right):
        qp.to_init()
        qp.post_recv(RecvWR(1, sg=[mr.sge(0, 100)]))
    os.write(up[i][1], b"%08d%08d" % (left.qp_num, right.qp_num))
    # The right QPN of the left neighbour, and the left QPN of the right neighbour.
    peers = os.read(down[i][0], 16)
    for qp, peer in ((left, peers[:8]), (right, peers[8:])):
        qp.to_rts(QPAttr(ah_attr=AHAttr("127.0.0.1"), dest_qp_num=int(peer), timeout=21))
        qp.post_send(SendWR(2, sg=[mr.sge(200, 8)]))
    done = []
    while len(done) < 4:
        came = cq.wait(60, 4)
        assert came, (i, done)
        done += came
    assert all(wc.ok for wc in done), (i, done)
    os.write(up[i][1], b"done")
    os.read(down[i][0], 1)

pids = []
for i in range(n):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            connect_to_neighbours(i)
            status = 0
        finally:
            os._exit(status)
    pids.append(pid)
numbers = [os.read(up[i][0], 16) for i in range(n)]
for i in range(n):
    os.write(down[i][1], numbers[i - 1][8:] + numbers[(i + 1) % n][:8])
for i in range(n):
    assert os.read(up[i][0], 4) == b"done"
for i in range(n):
    os.write(down[i][1], b".")
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
print("all")
"""


def test_two_hundred_processes_in_a_ring_connect_to_their_neighbours_by_qpn(tmp_path: Path) -> None:
    n = 16 if SANITIZED else 200
    script = tmp_path / "ring.py"
    script.write_text(RING_PROGRAM)
    tests = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, str(n), tests],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr[-3000:]
