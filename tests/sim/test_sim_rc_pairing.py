"""Timing of RC queue pairs that connect by GID and QPN, and of delivery counts."""

from __future__ import annotations

import pytest
from harness.pair_harness import connect_by_qpn, exchange_sends
from harness.verbs_harness import counter_value, octet_pattern, temporary_settings
from sim.rc_harness import MS, NAP, SECOND, WRITE, End, counted, nothing

from siwarp.sim import World
from siwarp.verbs import MR, MW, AccessFlag, Persona, QPAttr, QPState, RecvWR, WCStatus

FLUSHED, GONE = WCStatus.WR_FLUSH_ERR, WCStatus.RETRY_EXC_ERR
DELAY = 5 * MS
#: Minimum time for which posted requests wait for a peer (connect_pair.c).
LEAST_WAIT = 3 * SECOND


@pytest.fixture(params=[Persona.IWARP, Persona.ROCE], ids=["iwarp", "roce"])
def two(request: pytest.FixtureRequest, world: World) -> tuple[End, End]:
    """Two hosts with one end each, in RESET; the first is the one that connects."""
    world.faults("delay=5ms")
    a, b = (End(world, f"10.0.0.{i}", by_qpn=True, persona=request.param) for i in (1, 2))
    return a, b


@pytest.fixture
def roce(world: World) -> tuple[End, End]:
    """Two hosts with one end each, in RESET, with persona roce."""
    world.faults("delay=5ms")
    a, b = (End(world, f"10.0.0.{i}", by_qpn=True, persona=Persona.ROCE) for i in (1, 2))
    return a, b


def failed_at(end: End, began: int, patience: int) -> None:
    """Two requests fail after ``patience`` ns, the second one because the first has failed."""
    nothing(end.world, (patience - 1 * MS - (end.world.now_ns - began)) / SECOND, end.cq)
    assert end.state == QPState.RTS
    done = end.wait_for_sends(2)
    assert [(wc.wr_id, wc.status) for wc in done] == [(1, GONE), (2, FLUSHED)]
    assert patience <= end.world.now_ns - began < patience + NAP
    assert end.state == QPState.ERR


# ---- connecting


@pytest.mark.parametrize("first", ["the one that connects", "the one that listens"])
@pytest.mark.parametrize("pause", [0.0, 0.3, 7.0, 60.0])
def test_either_end_may_come_first(
    world: World, two: tuple[End, End], first: str, pause: float
) -> None:
    early, late = two if first == "the one that connects" else two[::-1]
    retries = counter_value("pair_retries")
    early.init_with_receives()
    early.to_rts(late.host_and_qpn, timeout=24, retry_cnt=7)  # these values allow 550 s to connect
    early.send(b"there")  # the Send waits for the connection
    nothing(world, pause, early.cq, early.rcq)
    came = world.now_ns
    late.init_with_receives()
    late.to_rts(early.host_and_qpn)
    late.send(b"and back")
    for end, text in ((early, b"and back"), (late, b"there")):
        assert end.wait_for_sends()[0].ok
        (wc,) = end.wait_for_receives()
        assert wc.ok and end.mr.read(wc.byte_len, (wc.wr_id - 100) << 10) == text
    # A Request waits at the peer as long as a start-up may take, 5 s, so it is not repeated
    # constantly.
    assert counter_value("pair_retries") - retries <= 4 + pause / 5
    assert world.now_ns - came < 100 * MS


def test_a_loss_when_they_meet_is_a_delay(world: World, two: tuple[End, End]) -> None:
    a, b = two
    world.faults("loss=30%,delay=5ms")
    a.init_with_receives(), b.init_with_receives()
    connect_by_qpn(a, b, timeout=20, retry_cnt=7)
    exchange_sends(a, b)
    assert world.stats.lost > 0


def test_a_long_round_trip(world: World, two: tuple[End, End]) -> None:
    a, b = two
    world.faults("delay=500ms")
    a.init_with_receives(), b.init_with_receives()
    connect_by_qpn(a, b)
    a.send(b"far away")
    (wc,) = b.wait_for_receives()
    assert wc.ok and b.mr.read(8) == b"far away"
    # TCP's round trip, the Request and the Reply, and half a round trip.
    assert 2500 * MS <= world.now_ns < 2500 * MS + NAP


def test_a_peer_that_starts_again_while_they_meet_gets_what_is_posted(
    world: World, two: tuple[End, End]
) -> None:
    """The Reply to the first Request finds a reset end; the posted requests must not fail."""
    a, b = two
    b.init_with_receives()
    b.to_rts(a.host_and_qpn, timeout=0)
    b.send(b"there")
    a.init_with_receives()
    a.to_rts(b.host_and_qpn)
    world.run_for(17 * MS / SECOND)  # the Request arrives after 15 ms, before the reset
    a.qp.modify(QPAttr(qp_state=QPState.RESET))
    nothing(world, 0.1, b.cq)
    assert b.state == QPState.RTS
    a.init_with_receives()
    a.to_rts(b.host_and_qpn)
    assert b.wait_for_sends()[0].ok
    (wc,) = a.wait_for_receives()
    assert wc.ok


def test_an_end_that_fails_while_they_meet_takes_no_further_request(
    world: World, two: tuple[End, End]
) -> None:
    a, b = two
    world.faults("delay=10ms")
    a.init_with_receives(), b.init_with_receives()
    connect_by_qpn(a, b, timeout=20, retry_cnt=7)  # these values allow 34 s to connect
    a.send(b"there")
    a.send(b"there", 2)
    # The Request arrives after 30 ms. The Reply is lost, so the other end sends another Request.
    world.run_for(0.035)
    world.partition(a.device, b.device)
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    world.run_for(4)
    world.heal()
    assert [(wc.wr_id, wc.status) for wc in a.wait_for_sends(2)] == [(1, GONE), (2, FLUSHED)]
    assert [wc.status for wc in b.wait_for_receives(8)] == [FLUSHED] * 8
    before = world.stats.rounds
    nothing(world, 60, a.cq, b.cq, b.rcq)
    assert world.stats.rounds - before < 200
    assert a.state == b.state == QPState.ERR


# ---- loss of a connected peer


def test_an_idle_peer_that_goes_leaves_the_queue_pair_as_it_is(
    world: World, two: tuple[End, End]
) -> None:
    a, b = two
    a.init_with_receives(), b.init_with_receives()
    connect_by_qpn(a, b)
    exchange_sends(a, b)
    b.close()
    nothing(world, 3600, a.cq, a.rcq)
    assert a.state == QPState.RTS
    began = world.now_ns
    a.send(b"anybody?", 1)
    a.send(b"nobody", 2)
    failed_at(a, began, LEAST_WAIT)
    assert [wc.status for wc in a.wait_for_receives(7)] == [FLUSHED] * 7


def test_what_is_open_when_the_peer_goes_has_the_time_of_timeout_and_retry_cnt(
    world: World, roce: tuple[End, End]
) -> None:
    """The peer may exit after it has received everything, before the sender knows that."""
    a, b = roce
    a.init_with_receives(), b.init_with_receives(receives=0)
    connect_by_qpn(a, b)
    a.send(b"it has no receive", 1)
    nothing(world, 0.1, a.cq)
    b.close()
    began = world.now_ns + DELAY
    nothing(world, 1, a.cq)
    a.send(b"nobody", 2)
    failed_at(a, began, LEAST_WAIT)


@pytest.mark.parametrize("how", ["reset", "error", "destroyed"])
def test_what_is_open_ends_with_its_queue_pair(
    world: World, roce: tuple[End, End], how: str
) -> None:
    a, b = roce
    a.init_with_receives(), b.init_with_receives(receives=0)
    connect_by_qpn(a, b)
    a.send(b"it has no receive", 1)
    nothing(world, 0.1, a.cq)
    b.close()
    if how == "destroyed":
        a.close()
    else:
        a.qp.modify(QPAttr(qp_state=QPState.RESET if how == "reset" else QPState.ERR))
    if how != "error":
        nothing(world, 3600, a.cq, a.rcq)
        return
    assert [(wc.wr_id, wc.status) for wc in a.wait_for_sends()] == [(1, FLUSHED)]
    assert [(wc.wr_id, wc.status) for wc in a.wait_for_receives(8)] == [
        (100 + i, FLUSHED) for i in range(8)
    ]


@pytest.mark.parametrize("idle", [True, False])
def test_a_peer_that_is_killed(world: World, roce: tuple[End, End], idle: bool) -> None:
    a, b = roce
    a.init_with_receives(), b.init_with_receives()
    connect_by_qpn(a, b)
    exchange_sends(a, b)
    world.run_for(1)
    if not idle:
        a.send(b"x" * 1000, 1)  # a Send that is in flight when the peer crashes
        a.send(b"x" * 1000, 2)
        world.run_for(0.001)
    world.crash(b.device)
    began = world.now_ns + DELAY
    if idle:
        nothing(world, 1, a.cq)
        began = world.now_ns
        a.send(b"anybody?", 1)
        a.send(b"anybody?", 2)
    failed_at(a, began, LEAST_WAIT)


def test_a_peer_that_is_started_again_is_not_the_one_that_was(
    world: World, roce: tuple[End, End]
) -> None:
    a, b = roce
    a.init_with_receives(), b.init_with_receives()
    connect_by_qpn(a, b)
    exchange_sends(a, b)
    world.crash(b.device)
    again = End(world, b.address, device=world.restart(b.address), by_qpn=True)
    again.init_with_receives()
    a.qp.modify(QPAttr(qp_state=QPState.RESET))
    a.init_with_receives()
    connect_by_qpn(a, again)
    exchange_sends(a, again)


@pytest.mark.parametrize(
    ("timeout", "retry_cnt", "ns"),
    [
        (1, 0, LEAST_WAIT),
        (14, 7, LEAST_WAIT),
        (19, 1, 4096 * 2 << 19),
        (18, 3, 4096 * 4 << 18),
        (27, 7, 4096 * 8 << 27),
    ],
)
def test_without_a_peer_what_is_posted_fails_when_its_time_is_over(
    world: World, two: tuple[End, End], timeout: int, retry_cnt: int, ns: int
) -> None:
    """timeout and retry_cnt determine the time, but it is at least three seconds."""
    for end, peer in (two, two[::-1]):
        nobody = peer.address, peer.qp.qp_num ^ 1 << 17
        end.init_with_receives()
        end.to_rts(nobody, timeout=timeout, retry_cnt=retry_cnt)
    nothing(world, 10, two[0].cq, two[1].cq)
    began = world.now_ns
    for end in two:
        for i in (1, 2):
            end.send(b"hello", i)
    nothing(world, (ns - MS) / SECOND, two[0].cq, two[1].cq)
    for end in two:
        assert [wc.status for wc in end.wait_for_sends(2)] == [GONE, FLUSHED]
        assert ns <= world.now_ns - began < ns + NAP
        assert end.state == QPState.ERR


def test_a_bind_that_has_no_peer_leaves_its_window_free(world: World, two: tuple[End, End]) -> None:
    a, b = two
    memory = MR(a.pd, bytearray(64), AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND)
    window = MW(a.pd)
    a.init_with_receives(0)
    a.to_rts((b.address, b.qp.qp_num ^ 1 << 17), timeout=1, retry_cnt=0)
    window.bind(a.qp, memory)
    assert a.wait_for_sends()[0].status == GONE
    window.close()
    memory.close()


def test_without_work_or_with_timeout_0_nothing_fails(world: World, two: tuple[End, End]) -> None:
    for end, peer, timeout in ((*two, 1), (*two[::-1], 0)):
        end.init_with_receives()
        end.to_rts((peer.address, peer.qp.qp_num ^ 1 << 17), timeout=timeout, retry_cnt=0)
    two[1].send(b"hello")
    nothing(world, 3600, *(cq for end in two for cq in (end.cq, end.rcq)))
    assert [end.state for end in two] == [QPState.RTS] * 2


def test_who_waits_for_a_peer_asks_less_and_less_often(world: World, two: tuple[End, End]) -> None:
    a, b = two
    peer = b.host_and_qpn
    b.close()
    a.init_with_receives()
    a.to_rts(peer, timeout=0)
    nothing(world, 3, a.cq)
    retries = counter_value("pair_retries")
    nothing(world, 60, a.cq)
    assert counter_value("pair_retries") - retries <= 61


def test_a_send_of_persona_roce_waits_for_its_receive(world: World, roce: tuple[End, End]) -> None:
    a, b = roce
    a.init_with_receives(0), b.init_with_receives(0)
    connect_by_qpn(a, b)
    a.send(b"last words")
    nothing(world, 3600, a.cq)
    began = world.now_ns
    b.post_receive(100, 0, 1 << 10)
    assert b.wait_for_receives()[0].ok and b.mr.read(10) == b"last words"
    assert a.wait_for_sends()[0].ok
    assert DELAY <= world.now_ns - began < DELAY + NAP


# ---- delivery counts


def test_a_send_completes_by_a_count_after_a_round_trip(
    world: World, roce: tuple[End, End]
) -> None:
    a, b = roce
    a.init_with_receives(), b.init_with_receives()
    connect_by_qpn(a, b)
    exchange_sends(a, b)
    world.run_for(1)
    for turn in range(5):
        began = world.now_ns
        with counted("confirm_reads", 0):
            a.mr.write(octet_pattern(100, turn))
            a.post(WRITE, turn, length=100, remote=b.mr.remote(40_000, 100))
            assert a.wait_for_sends()[0].ok
        # A count in a separate segment follows the previous one after at least 5 us.
        assert 2 * DELAY <= world.now_ns - began < 2 * DELAY + NAP
        assert b.mr.read(100, 40_000) == octet_pattern(100, turn)


def test_without_delivery_counts_reads_ask(world: World) -> None:
    world.faults("delay=5ms")
    with temporary_settings(delivery_counts=0):
        a, b = (End(world, f"10.0.0.{i}", by_qpn=True, persona=Persona.ROCE) for i in (1, 2))
        a.init_with_receives(), b.init_with_receives()
        connect_by_qpn(a, b)
        exchange_sends(a, b)
        world.run_for(1)
        began = world.now_ns
        with counted("confirm_reads", 1):
            a.post(WRITE, 1, length=100, remote=b.mr.remote(40_000, 100))
            assert a.wait_for_sends()[0].ok
    assert 2 * DELAY <= world.now_ns - began < 2 * DELAY + NAP


def test_a_stopped_peer_completes_nothing_and_goes_on(world: World, roce: tuple[End, End]) -> None:
    a, b = roce
    a.init_with_receives(), b.init_with_receives()
    connect_by_qpn(a, b)
    exchange_sends(a, b)
    world.partition(a.device, b.device)
    a.post(WRITE, 1, length=100, remote=b.mr.remote(40_000, 100))
    nothing(world, 300, a.cq)
    assert a.state == QPState.RTS
    world.heal()
    assert a.wait_for_sends()[0].ok


def test_many_sends_complete_by_few_counts(world: World, roce: tuple[End, End]) -> None:
    a, b = roce
    a.init_with_receives(0), b.init_with_receives(0)
    for i in range(64):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(0, 1 << 10)]))
    connect_by_qpn(a, b)
    world.run_for(1)
    before = world.stats.segments
    for i in range(64):
        a.post(WRITE, i, length=1000, remote=b.mr.remote(40_000, 1000))
    assert [wc.check().wr_id for wc in a.wait_for_sends(64)] == list(range(64))
    segments = world.stats.segments - before
    # 64 KB are about 60 segments and as many acknowledgements, and a few counts with theirs.
    assert 100 < segments < 300, segments
