"""Peers of RD queue pairs whose port another process takes, and peers that only begin anew."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from unit.verbs.errq_harness import settings
from unit.verbs.rd_harness import QKEY, Peer
from unit.verbs.rd_stranger import Stranger, stranger
from unit.verbs.verbs_harness import Rig, counter, nothing, pattern, until

from siwarp.inspect.rd import RDType
from siwarp.verbs import (
    AH,
    Error,
    EventType,
    PeerRestart,
    QPAttr,
    QPState,
    SendWR,
    WCStatus,
    faults,
)

FLUSHED = WCStatus.WR_FLUSH_ERR

LISTENER = """
    import sys
    sys.path.insert(0, "tests")
    from unit.verbs.rd_harness import Peer
    from unit.verbs.verbs_harness import Rig
    rig = Rig()
    peer = Peer(rig, port=int(sys.argv[1]))
    for i in range(16):
        peer.recv(i, 64, 64 * i)
    print(peer.qp.addr[1], flush=True)
    for line in sys.stdin:  # so many messages are waited for
        for w in peer.got(int(line)):
            print(peer.into.read(w.byte_len, 64 * w.wr_id).decode(), flush=True)
"""


class Listener:
    """A peer in a process of its own."""

    def __init__(self, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LISTENER), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def got(self, n: int) -> list[str]:
        """Wait for so many messages: their octets."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return [self.process.stdout.readline().strip() for _ in range(n)]

    def kill(self) -> None:
        """End it with no word to anybody."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, and close its pipes."""
        self.kill()
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    """Those that are closed at the end."""
    made: list[Listener] = []
    yield made
    for listener in made:
        listener.close()


@pytest.fixture
def follow() -> Iterator[None]:
    """Requests go to whoever takes a peer's place."""
    with settings(rd_follow=1):
        yield


def restarted(rig: Rig, end: Peer) -> list[PeerRestart]:
    """Take the event, and what it is about."""
    event = rig.ctx.get_async_event(10)
    assert event is not None
    with event:
        assert (event.event_type, event.element) == (EventType.PEER_RESTARTED, end.qp)
    return end.qp.restarts()


def met(a: Peer, s: Stranger, ah: AH) -> None:
    """Exchange a message."""
    a.qp.post_send(SendWR(9, sg=[a.out.sge(0, 4)], ah=ah))
    s.pull()
    assert a.done()[0].ok


def post_while_drained(a: Peer, ah: AH) -> None:
    """Post three requests that are not begun."""
    a.qp.modify(QPAttr(qp_state=QPState.SQD))
    for i in range(3):
        a.qp.post_send(SendWR(i, sg=[a.out.sge(0, 4 + i)], ah=ah))
    nothing(a.scq)


@pytest.mark.clause("DGRAM-INST-3", "DGRAM-INST-4")
@pytest.mark.parametrize("loss", [0, 30])
def test_what_was_posted_for_a_killed_process_does_not_reach_the_next_one(
    rig: Rig, listeners: list[Listener], loss: int
) -> None:
    a = Peer(rig)
    for i in range(16):
        a.out.write(f"n{i:02}".encode(), offset=8 * i)
    first = Listener()
    listeners.append(first)

    def post(i: int) -> None:
        a.qp.post_send(SendWR(i, sg=[a.out.sge(8 * i, 3)], ah=ah))

    with AH(rig.pd, ("127.0.0.1", first.port)) as ah, faults(f"loss={loss}%,seed=4"):
        post(0)
        assert a.done()[0].ok
        assert first.got(1) == ["n00"]
        a.qp.modify(QPAttr(qp_state=QPState.SQD))
        for i in (1, 2, 3):
            post(i)
        first.kill()
        second = Listener(first.port)
        listeners.append(second)
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        old = a.done(3)
        assert [w.wr_id for w in old] == [1, 2, 3]
        assert not any(w.ok for w in old)
        assert {w.source for w in old} == {("127.0.0.1", first.port)}
        for i in (4, 5):
            post(i)
        assert [(w.wr_id, w.ok) for w in a.done(2)] == [(4, True), (5, True)]
        assert second.got(2) == ["n04", "n05"]
        (told,) = restarted(rig, a)
        assert told.peer == ("127.0.0.1", first.port) and told.instance
        assert a.qp.restarts() == []
    assert a.qp.qp_state == QPState.RTS


@pytest.mark.clause("DGRAM-INST-3", "DGRAM-INST-4")
@pytest.mark.parametrize(
    ("begins", "left"), [("peer", False), ("peer", True), ("queue pair", True)]
)
def test_requests_that_were_not_begun_do_not_go_to_another_instance(
    rig: Rig, begins: str, left: bool
) -> None:
    a = Peer(rig)
    with stranger(a, instance=1) as s, AH(rig.pd, s.addr) as ah:
        met(a, s, ah)
        post_while_drained(a, ah)
        if left:
            s.say(RDType.BYE)
            nothing(a.scq)
        s.forget(2)
        if begins == "peer":
            s.meet()
            assert [(w.wr_id, w.status, w.source) for w in a.done(3)] == [
                (i, FLUSHED, s.addr) for i in range(3)
            ]
            a.qp.modify(QPAttr(qp_state=QPState.RTS))
        else:
            a.qp.modify(QPAttr(qp_state=QPState.RTS))
            until(lambda: s.take().type == RDType.HELLO)
            assert [(w.wr_id, w.status) for w in a.done(3)] == [(i, FLUSHED) for i in range(3)]
        assert restarted(rig, a) == [PeerRestart(s.addr, 2)]
        a.qp.post_send(SendWR(7, sg=[a.out.sge(0, 20)], ah=ah))
        head, octets = s.pull()
        assert (head.msn, len(octets)) == (1, 20) and not s.hears_more()
        assert a.done()[0].ok


@pytest.mark.clause("DGRAM-INST-5")
@pytest.mark.parametrize("how", ["lives anew", "left"])
@pytest.mark.parametrize("instance", [0, 5])
def test_requests_move_when_the_pair_begins_anew_with_the_same_instance(
    rig: Rig, how: str, instance: int
) -> None:
    a = Peer(rig)
    before = counter("rd_restarted")
    with stranger(a, instance=instance) as s, AH(rig.pd, s.addr) as ah:
        met(a, s, ah)
        post_while_drained(a, ah)
        if how == "left":
            s.say(RDType.BYE)
            s.forget()
        else:
            s.live_anew()
        nothing(a.scq)
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        got = [s.pull() for _ in range(3)]
        assert [(head.msn, len(octets)) for head, octets in got] == [(1, 4), (2, 5), (3, 6)]
        assert all(w.ok for w in a.done(3))
    assert counter("rd_restarted") == before and a.qp.restarts() == []


@pytest.mark.clause("DGRAM-INST-5")
@pytest.mark.parametrize("begins", ["peer", "queue pair"])
@pytest.mark.usefixtures("follow")
def test_with_rd_follow_they_go_to_another_instance_and_the_event_comes(
    rig: Rig, begins: str
) -> None:
    a = Peer(rig)
    with stranger(a, instance=1) as s, AH(rig.pd, s.addr) as ah:
        met(a, s, ah)
        post_while_drained(a, ah)
        if begins == "peer":
            s.live_anew(2)
        else:
            s.say(RDType.BYE)
            s.forget(2)
        nothing(a.scq)
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        assert [len(s.pull()[1]) for _ in range(3)] == [4, 5, 6]
        assert all(w.ok for w in a.done(3))
        assert restarted(rig, a) == [PeerRestart(s.addr, 2)]


@pytest.mark.clause("DGRAM-INST-2")
@pytest.mark.parametrize(("first", "then", "moves"), [(0, 1, True), (1, 0, False)])
def test_a_peer_that_told_none_is_no_other_and_one_that_tells_none_any_more_is(
    rig: Rig, first: int, then: int, moves: bool
) -> None:
    a = Peer(rig)
    with stranger(a, instance=first) as s, AH(rig.pd, s.addr) as ah:
        met(a, s, ah)
        post_while_drained(a, ah)
        s.live_anew(then)
        if moves:
            nothing(a.scq)
            a.qp.modify(QPAttr(qp_state=QPState.RTS))
            assert [len(s.pull()[1]) for _ in range(3)] == [4, 5, 6]
        else:
            assert restarted(rig, a) == [PeerRestart(s.addr, 0)]
        assert [w.ok for w in a.done(3)] == [moves] * 3


@pytest.mark.clause("DGRAM-INST-4")
def test_the_event_comes_where_nothing_is_in_progress_with_the_peer(rig: Rig) -> None:
    a = Peer(rig)
    with stranger(a, instance=1) as s:
        s.live_anew(2)
        assert restarted(rig, a) == [PeerRestart(s.addr, 2)]
        s.live_anew(2)
        nothing(a.scq)
        assert a.qp.restarts() == []


@pytest.mark.clause("DGRAM-INST-6")
def test_completions_tell_which_instance_sent(rig: Rig) -> None:
    a, b = Peer(rig), Peer(rig)
    with stranger(a, instance=1) as s:
        for instance in (1, 2, 3):
            if instance > 1:
                s.live_anew(instance)
            a.recv()
            s.put(s.untagged(3, b"data"))
            assert [(w.source, w.source_instance) for w in a.got()] == [(s.addr, instance)]
    seen = set()
    for _ in range(2):
        a.recv()
        b.send(a, b"data")
        assert b.done()[0].ok
        seen.add(a.got()[0].source_instance)
    assert len(seen) == 1 and 0 not in seen
    for step in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS):
        b.qp.modify(QPAttr(qp_state=step, qkey=QKEY if step == QPState.INIT else None))
    a.recv()
    b.send(a, b"data")
    assert {a.got()[0].source_instance} == seen  # it is the same queue pair, in the same process
    with stranger(a) as s:
        a.recv()
        s.put(s.untagged(3, b"data"))
        assert a.got()[0].source_instance == 0


@pytest.mark.clause("DGRAM-INST-7")
def test_a_peer_that_is_another_each_time_harms_itself_alone(rig: Rig) -> None:
    a, b = Peer(rig), Peer(rig)
    before = counter("rd_restarted")
    with stranger(a, instance=1) as s:
        for i in range(2, 202):
            s.live_anew(i)
            if i % 20 == 0:
                b.recv()
                a.send(b, pattern(5000, i))
                assert a.done()[0].ok
                assert b.got()[0].byte_len == 5000 and b.into.read(5000) == pattern(5000, i)
        until(lambda: nothing(a.scq, 0.01) or counter("rd_restarted") == before + 200)
        assert restarted(rig, a) == [PeerRestart(s.addr, 201)]
        assert rig.ctx.get_async_event(0) is None


def test_only_rd_tells_of_restarts(rig: Rig) -> None:
    a, ud = Peer(rig), rig.qp()
    assert a.qp.restarts() == []
    with pytest.raises(Error, match="RD"):
        ud.restarts()
