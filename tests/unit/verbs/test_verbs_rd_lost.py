"""RD queue pairs whose peers go, start anew or fall silent; and a bad network."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from pace import scaled
from unit.verbs.rd_harness import QKEY, Peer
from unit.verbs.rd_stranger import stranger
from unit.verbs.verbs_harness import Rig, counter, nothing, pattern, until

from siwarp.base.counters import read
from siwarp.inspect.rd import RDType
from siwarp.verbs import AH, PeerGone, QPAttr, QPState, SendWR, WCStatus, WROpcode, faults

SEND = 3  # RDMAP's opcode

OTHER = """
    import sys
    sys.path.insert(0, "tests")
    from unit.verbs.rd_harness import Peer
    from unit.verbs.verbs_harness import Rig
    rig = Rig()
    peer = Peer(rig)
    for i in range(int(sys.argv[1])):
        peer.recv(i, 64)
    print(peer.qp.addr[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are killed at the end."""
    made: list[subprocess.Popen[str]] = []
    yield made
    for p in made:
        p.kill()
        p.wait()
        assert p.stdin is not None and p.stdout is not None
        p.stdin.close()
        p.stdout.close()


def start(
    made: list[subprocess.Popen[str]], number: int, code: str = OTHER
) -> tuple[subprocess.Popen[str], int]:
    """Start a peer in a process of its own, with that many receives: it and its port."""
    p = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    made.append(p)
    assert p.stdout is not None
    return p, int(p.stdout.readline())


@pytest.mark.clause("DGRAM-BYE-1")
@pytest.mark.parametrize("size", [4, 5000, 300_000])
def test_what_was_received_before_its_receiver_closed_is_a_success_at_its_sender(
    rig: Rig, size: int
) -> None:
    for _ in range(12):
        a, b = Peer(rig, 1 << 19), Peer(rig, 1 << 19)
        b.recv()
        a.send(b, pattern(size))
        assert b.got()[0].ok
        b.qp.close()
        assert a.done()[0].ok
        a.qp.close()


@pytest.mark.clause("DGRAM-RDV-2", "DGRAM-RDV-10")
def test_a_killed_peer_is_found_and_another_goes_on(
    rig: Rig, other: list[subprocess.Popen[str]]
) -> None:
    p, port = start(other, 1)
    a, b = Peer(rig, peer_timeout=1.0), Peer(rig)
    with AH(rig.pd, ("127.0.0.1", port)) as ah:
        a.qp.post_send(SendWR(1, sg=[a.out.sge(0, 4)], ah=ah))
        assert a.done()[0].ok
        p.kill()
        p.wait()
        began = time.monotonic()
        for i in range(3):
            a.qp.post_send(SendWR(10 + i, sg=[a.out.sge(0, 4)], ah=ah))
        for i in range(20):
            b.recv(i, 64)
            a.send(b, b"on", 100 + i, offset=64)
        found = {w.wr_id: w for w in a.done(23)}
    took = time.monotonic() - began
    assert all(found[100 + i].ok for i in range(20))
    assert [found[10 + i].status for i in range(3)] == [
        WCStatus.RETRY_EXC_ERR,
        WCStatus.WR_FLUSH_ERR,
        WCStatus.WR_FLUSH_ERR,
    ]
    assert {found[10 + i].source for i in range(3)} == {("127.0.0.1", port)}
    assert took < (1.2 if "SANITIZER" not in os.environ else 10) + scaled(1.0)
    assert len(b.got(20)) == 20
    assert a.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-RDV-11")
def test_what_a_peer_that_lives_anew_has_not_acknowledged_is_flushed_and_named(rig: Rig) -> None:
    a, b = Peer(rig), Peer(rig)
    with stranger(a) as s:
        ah = AH(rig.pd, s.addr)
        s.keeps = lambda _head: True
        for i in range(3):
            a.qp.post_send(SendWR(i, sg=[a.out.sge(0, 4)], ah=ah))
        for _ in range(3):
            s.pull()
        nothing(a.scq)
        s.live_anew()
        flushed = WCStatus.WR_FLUSH_ERR
        assert [(w.wr_id, w.status, w.source) for w in a.done(3)] == [
            (i, flushed, s.addr) for i in range(3)
        ]
        a.qp.post_send(SendWR(9, sg=[a.out.sge(0, 4)], ah=ah))
        assert s.pull()[0].msn == 1
        b.recv()
        a.send(b, b"another", 10, offset=64)
        assert sorted(w.wr_id for w in a.done(2) if w.ok) == [9, 10]


@pytest.mark.clause("DGRAM-RDV-1", "DGRAM-RDV-4", "DGRAM-RDV-11")
@pytest.mark.parametrize("how", ["lives anew", "left"])
def test_requests_that_were_not_begun_move_to_the_next_life_of_the_pair(rig: Rig, how: str) -> None:
    a = Peer(rig)
    with stranger(a) as s:
        ah = AH(rig.pd, s.addr)
        a.qp.post_send(SendWR(9, sg=[a.out.sge(0, 4)], ah=ah))
        s.pull()
        assert a.done()[0].ok
        a.qp.modify(QPAttr(qp_state=QPState.SQD))
        for i in range(3):
            a.qp.post_send(SendWR(i, sg=[a.out.sge(0, 4 + i)], ah=ah))
        nothing(a.scq)
        if how == "lives anew":
            s.live_anew()
        else:
            s.say(RDType.BYE)
            s.epoch += 0x1000
            s.psn = [s.epoch, s.epoch]
        nothing(a.scq)
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        got = [s.pull() for _ in range(3)]
        assert [(head.msn, len(octets)) for head, octets in got] == [(1, 4), (2, 5), (3, 6)]
        assert [(w.wr_id, w.ok) for w in a.done(3)] == [(0, True), (1, True), (2, True)]


@pytest.mark.clause("DGRAM-RDV-10")
def test_a_peer_that_starts_anew_at_its_port_is_spoken_to_again(rig: Rig) -> None:
    a, b = Peer(rig), Peer(rig)
    b.recv()
    a.send(b, b"one")
    assert a.done()[0].ok and b.got()[0].ok
    a.send(b, b"in doubt", 7)  # no receive is posted: it waits there
    nothing(a.scq, 0.02)
    for step in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS):
        b.qp.modify(QPAttr(qp_state=step, qkey=QKEY if step == QPState.INIT else None))
    (lost,) = a.done()
    # It said that it ends: that is a peer that is gone.
    assert (lost.wr_id, lost.status, lost.source) == (7, WCStatus.RETRY_EXC_ERR, b.qp.addr)
    b.recv(2)
    a.send(b, b"two", 8)
    assert a.done()[0].ok
    assert b.got()[0].byte_len == 3


@pytest.mark.clause("DGRAM-RDV-6")
def test_a_receive_that_was_half_filled_is_the_first_again(rig: Rig) -> None:
    a, b, c = Peer(rig, 1 << 22), Peer(rig, 1 << 22), Peer(rig)
    b.recv(1)
    b.recv(2)
    with faults("rate=20Mbit"):  # slow enough to stop in the middle
        a.send(b, pattern(1 << 22))
        until(lambda: any(b.into.view[:1024]))
        a.qp.modify(QPAttr(qp_state=QPState.ERR))
        assert not a.done()[0].ok
    c.send(b, b"whole")
    got = b.got()[0]
    assert (got.wr_id, got.byte_len, got.source) == (1, 5, c.qp.addr)
    assert b.into.read(5) == b"whole"


EXITS = """
    import ctypes, sys
    sys.path.insert(0, "tests")
    from unit.verbs.rd_harness import Peer
    from unit.verbs.verbs_harness import Rig
    rig = Rig()
    peer = Peer(rig)
    print(peer.qp.addr[1], flush=True)
    sys.stdin.readline()
    ctypes.CDLL(None).exit(0)  # as a program in C ends: what Python does at its end does not happen
"""


class Elsewhere:
    """The end that a stranger talks to, where another process has it."""

    def __init__(self, port: int) -> None:
        self.qp = SimpleNamespace(addr=("127.0.0.1", port))


@pytest.mark.clause("DGRAM-RD-10")
def test_peers_are_told_when_a_program_ends_without_closing_its_queue_pair(
    other: list[subprocess.Popen[str]],
) -> None:
    p, port = start(other, 0, EXITS)
    with stranger(cast("Peer", Elsewhere(port))) as s:
        assert p.stdin is not None
        p.stdin.write("now\n")
        p.stdin.flush()
        until(lambda: s.take().type == RDType.BYE)


HALF = """
    import sys, time
    sys.path.insert(0, "tests")
    from unit.verbs.rd_harness import Peer
    from unit.verbs.verbs_harness import Rig
    from siwarp.verbs import AH, SendWR, faults
    rig = Rig()
    peer = Peer(rig, 1 << 22)
    peer.out.view[:] = bytes([1]) * (1 << 22)
    ah = AH(rig.pd, ("127.0.0.1", int(sys.argv[1])))
    with faults("rate=40Mbit"):
        peer.qp.post_send(SendWR(1, sg=[peer.out.sge(0, 1 << 22)], ah=ah))
        print(peer.qp.addr[1], flush=True)
        while True:
            peer.scq.poll(1)
            time.sleep(0.0005)
"""


@pytest.mark.clause("DGRAM-RD-34", "DGRAM-RDV-6")
def test_the_receive_of_a_message_whose_sender_was_killed_in_its_middle_serves_the_next(
    rig: Rig, other: list[subprocess.Popen[str]]
) -> None:
    limit = 1.0
    b, c = Peer(rig, 1 << 22, peer_timeout=limit), Peer(rig)
    b.recv(1)
    b.recv(2)
    gone = read(os.getpid())["rd_gone"]
    p, _ = start(other, b.qp.addr[1], HALF)
    looked = [time.monotonic()]
    # The last that is heard of it comes after the look before the one that finds something.
    until(lambda: any(b.into.view[:1024]) or looked.append(time.monotonic()))
    p.kill()
    p.wait()
    began = time.monotonic()
    c.send(b, b"whole")
    assert b.got()[0].wr_id == 2
    # Nothing is sent to the dead one: that it is gone is found out by what it owes.
    until(lambda: nothing(b.rcq, 0.005) or read(os.getpid())["rd_gone"] > gone)
    found = time.monotonic()
    assert found - looked[-1] >= 0.8 * limit
    assert found - began <= 1.2 * limit + scaled(2.0 if "SANITIZER" in os.environ else 0.5)
    c.send(b, b"again")
    assert b.got()[0].wr_id == 1


def test_a_bad_network_changes_nothing_but_the_time(rig: Rig) -> None:
    a, b = Peer(rig, 1 << 20), Peer(rig, 1 << 20)
    with faults("loss=10%,dup=5%,reorder=10%,corrupt=0.1%,seed=5"):
        for i in range(40):
            b.recv(i, 20_000, 20_000 * i)
            a.send(b, pattern(500 * i, i), i, offset=20_000 * i)
        assert [w.wr_id for w in a.done(40)] == list(range(40))
        assert [(w.wr_id, w.byte_len) for w in b.got(40)] == [(i, 500 * i) for i in range(40)]
        a.out.view[:] = pattern(1 << 20, 3)
        a.rdma(b, WROpcode.RDMA_WRITE, 1 << 20)
        assert a.done()[0].ok
        assert b.into.read(1 << 20) == pattern(1 << 20, 3)
        b.into.view[:] = pattern(1 << 20, 4)
        a.rdma(b, WROpcode.RDMA_READ, 1 << 20)
        assert a.done()[0].ok
        assert a.out.read(1 << 20) == pattern(1 << 20, 4)


@pytest.mark.clause("DGRAM-RDV-10")
@pytest.mark.parametrize("amid", ["held", "send", "write", "read"])
def test_a_queue_pair_may_be_closed_amid_a_message_and_its_peer_is_told_and_goes_on(
    rig: Rig, amid: str
) -> None:
    size = 1 << 22
    a, b, c = Peer(rig, size, peer_timeout=0.5), Peer(rig, size), Peer(rig)
    where = b.qp.addr
    with faults("rate=20Mbit"):  # slow enough to stop in the middle, on a busy machine, too
        if amid == "held":
            a.send(b, b"nobody posts a receive")
        elif amid == "send":
            b.recv()
            a.send(b, bytes(size))
        else:
            a.rdma(b, WROpcode.RDMA_WRITE if amid == "write" else WROpcode.RDMA_READ, size)
        nothing(a.scq, 0.05)
        b.qp.close()
        (lost,) = a.done()
    assert (lost.status, lost.source) == (WCStatus.RETRY_EXC_ERR, where)
    with pytest.raises(PeerGone, match="left or did not answer in time"):
        lost.check()
    c.recv()
    a.send(c, b"on")
    assert a.done()[0].ok and c.got()[0].byte_len == 2
    assert a.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-RD-20", "DGRAM-RDV-5")
def test_a_peer_that_fell_silent_without_credit_is_acknowledged_a_few_times_and_no_more(
    rig: Rig,
) -> None:
    a = Peer(rig)
    with stranger(a) as s:
        # Of 71 datagrams the first asks for what its sender gives no credit for, the next is a Send
        # without a receive, and one behind a long gap makes a range of its own in every ACK.
        s.say(RDType.DATA, body=s.read(64), credit=0)
        s.psn[0] += 1
        for i in range(69):
            s.say(RDType.DATA, psn=s.psn[0] + i, body=s.untagged(SEND, b"held"), credit=0)
        s.say(RDType.DATA, psn=s.psn[0] + 4000, body=s.untagged(SEND, b"far"), credit=0)
        before = counter("rd_acks")
        nothing(a.rcq, 2.0)
        assert counter("rd_acks") - before <= 71
        before = counter("rd_acks")
        nothing(a.rcq, 1.0)
        assert counter("rd_acks") == before


@pytest.mark.clause("DGRAM-RD-20")
@pytest.mark.parametrize("what", ["request", "response"])
def test_a_device_sleeps_while_what_it_has_waits_for_a_peers_credit(rig: Rig, what: str) -> None:
    a = Peer(rig)
    with stranger(a) as s:
        s.say(RDType.ACK, credit=0)
        if what == "request":
            a.qp.post_send(SendWR(1, sg=[a.out.sge(0, 4)], ah=AH(rig.pd, s.addr)))
        else:
            s.say(RDType.DATA, body=s.read(64), credit=0)
            s.psn[0] += 1
        nothing(a.scq, 0.1)
        time.sleep(0.1)  # the device's thread takes over from who polled
        used = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - used < 0.15
        s.say(RDType.ACK, credit=64)
        until(lambda: s.take().type == RDType.DATA)
