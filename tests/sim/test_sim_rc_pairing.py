"""Timing of RC queue pairs that connect by GID and QPN, and of delivery counts."""

from __future__ import annotations

import pytest
from harness.pair_harness import connect_pair_by_qpn, exchange_sends
from harness.verbs_harness import counter_value, octet_pattern, temporary_settings
from sim.rc_harness import (
    MS,
    NAP,
    SECOND,
    WRITE,
    End,
    assert_no_completions,
    expect_counter_increase,
)

from siwarp.sim import World
from siwarp.verbs import MR, MW, AccessFlag, Persona, QPAttr, QPState, RecvWR, WCStatus

FLUSHED, GONE = WCStatus.WR_FLUSH_ERR, WCStatus.RETRY_EXC_ERR
DELAY = 5 * MS
#: The minimum time for which posted requests wait for a peer (connect_pair.c).
MIN_PEER_WAIT = 3 * SECOND


@pytest.fixture(params=[Persona.IWARP, Persona.ROCE], ids=["iwarp", "roce"])
def unconnected_ends(request: pytest.FixtureRequest, world: World) -> tuple[End, End]:
    """Two hosts with one end each, in RESET; the first end is the connecting end."""
    world.faults("delay=5ms")
    a, b = (End(world, f"10.0.0.{i}", by_qpn=True, persona=request.param) for i in (1, 2))
    return a, b


@pytest.fixture
def unconnected_roce_ends(world: World) -> tuple[End, End]:
    """Two hosts with one end of persona roce each, in RESET."""
    world.faults("delay=5ms")
    a, b = (End(world, f"10.0.0.{i}", by_qpn=True, persona=Persona.ROCE) for i in (1, 2))
    return a, b


def check_two_requests_fail(end: End, began: int, patience: int) -> None:
    """Check that two requests fail after ``patience`` ns, the second because of the first."""
    assert_no_completions(
        end.world, (patience - 1 * MS - (end.world.now_ns - began)) / SECOND, end.cq
    )
    assert end.state == QPState.RTS
    done = end.wait_for_sends(2)
    assert [(wc.wr_id, wc.status) for wc in done] == [(1, GONE), (2, FLUSHED)]
    assert patience <= end.world.now_ns - began < patience + NAP
    assert end.state == QPState.ERR


# ---- connecting by GID and QPN


@pytest.mark.parametrize("first", ["the one that connects", "the one that listens"])
@pytest.mark.parametrize("pause", [0.0, 0.3, 7.0, 60.0])
def test_either_end_may_be_moved_to_rts_first(
    world: World, unconnected_ends: tuple[End, End], first: str, pause: float
) -> None:
    early, late = unconnected_ends if first == "the one that connects" else unconnected_ends[::-1]
    retries = counter_value("pair_retries")
    early.to_init_with_receives()
    early.to_rts(late.host_and_qpn, timeout=24, retry_cnt=7)  # these values allow 550 s to connect
    early.send(b"there")  # the Send waits for the connection
    assert_no_completions(world, pause, early.cq, early.rcq)
    came = world.now_ns
    late.to_init_with_receives()
    late.to_rts(early.host_and_qpn)
    late.send(b"and back")
    for end, text in ((early, b"and back"), (late, b"there")):
        assert end.wait_for_sends()[0].ok
        (wc,) = end.wait_for_receives()
        assert wc.ok and end.mr.read(wc.byte_len, (wc.wr_id - 100) << 10) == text
    # A Request waits at the peer for the start-up time limit of 5 s, so it is not repeated
    # constantly.
    assert counter_value("pair_retries") - retries <= 4 + pause / 5
    assert world.now_ns - came < 100 * MS


def test_packet_loss_while_two_queue_pairs_connect_is_only_a_delay(
    world: World, unconnected_ends: tuple[End, End]
) -> None:
    a, b = unconnected_ends
    world.faults("loss=30%,delay=5ms")
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b, timeout=20, retry_cnt=7)
    exchange_sends(a, b)
    assert world.stats.lost > 0


def test_two_queue_pairs_connect_over_a_long_round_trip(
    world: World, unconnected_ends: tuple[End, End]
) -> None:
    a, b = unconnected_ends
    world.faults("delay=500ms")
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    a.send(b"far away")
    (wc,) = b.wait_for_receives()
    assert wc.ok and b.mr.read(8) == b"far away"
    # Connecting and sending take TCP's round trip, the round trip of the Request and the Reply, and
    # half a round trip.
    assert 2500 * MS <= world.now_ns < 2500 * MS + NAP


def test_requests_posted_to_a_peer_that_is_reset_during_connecting_do_not_fail(
    world: World, unconnected_ends: tuple[End, End]
) -> None:
    """Check that no request fails if the end that sent a Request is reset before the Reply."""
    a, b = unconnected_ends
    b.to_init_with_receives()
    b.to_rts(a.host_and_qpn, timeout=0)
    b.send(b"there")
    a.to_init_with_receives()
    a.to_rts(b.host_and_qpn)
    world.run_for(17 * MS / SECOND)  # the Request arrives after 15 ms, before the reset
    a.qp.modify(QPAttr(qp_state=QPState.RESET))
    assert_no_completions(world, 0.1, b.cq)
    assert b.state == QPState.RTS
    a.to_init_with_receives()
    a.to_rts(b.host_and_qpn)
    assert b.wait_for_sends()[0].ok
    (wc,) = a.wait_for_receives()
    assert wc.ok


def test_an_end_in_err_accepts_no_connection_from_its_peer(
    world: World, unconnected_ends: tuple[End, End]
) -> None:
    a, b = unconnected_ends
    world.faults("delay=10ms")
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b, timeout=20, retry_cnt=7)  # these values allow 34 s to connect
    a.send(b"there")
    a.send(b"there", 2)
    # The Request arrives after 30 ms, and the Reply is lost, so the other end sends another
    # Request.
    world.run_for(0.035)
    world.partition(a.device, b.device)
    b.qp.modify(QPAttr(qp_state=QPState.ERR))
    world.run_for(4)
    world.heal()
    assert [(wc.wr_id, wc.status) for wc in a.wait_for_sends(2)] == [(1, GONE), (2, FLUSHED)]
    assert [wc.status for wc in b.wait_for_receives(8)] == [FLUSHED] * 8
    before = world.stats.rounds
    assert_no_completions(world, 60, a.cq, b.cq, b.rcq)
    assert world.stats.rounds - before < 200
    assert a.state == b.state == QPState.ERR


# ---- loss of a connected peer


def test_an_idle_queue_pair_stays_in_rts_when_its_peer_closes(
    world: World, unconnected_ends: tuple[End, End]
) -> None:
    a, b = unconnected_ends
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    exchange_sends(a, b)
    b.close()
    assert_no_completions(world, 3600, a.cq, a.rcq)
    assert a.state == QPState.RTS
    began = world.now_ns
    a.send(b"anybody?", 1)
    a.send(b"nobody", 2)
    check_two_requests_fail(a, began, MIN_PEER_WAIT)
    assert [wc.status for wc in a.wait_for_receives(7)] == [FLUSHED] * 7


def test_open_requests_wait_for_timeout_and_retry_cnt_after_the_peer_closed(
    world: World, unconnected_roce_ends: tuple[End, End]
) -> None:
    """Check that the sender waits, because its peer may exit after it has received everything."""
    a, b = unconnected_roce_ends
    a.to_init_with_receives(), b.to_init_with_receives(receives=0)
    connect_pair_by_qpn(a, b)
    a.send(b"it has no receive", 1)
    assert_no_completions(world, 0.1, a.cq)
    b.close()
    began = world.now_ns + DELAY
    assert_no_completions(world, 1, a.cq)
    a.send(b"nobody", 2)
    check_two_requests_fail(a, began, MIN_PEER_WAIT)


@pytest.mark.parametrize("how", ["reset", "error", "destroyed"])
def test_open_requests_end_with_their_queue_pair(
    world: World, unconnected_roce_ends: tuple[End, End], how: str
) -> None:
    a, b = unconnected_roce_ends
    a.to_init_with_receives(), b.to_init_with_receives(receives=0)
    connect_pair_by_qpn(a, b)
    a.send(b"it has no receive", 1)
    assert_no_completions(world, 0.1, a.cq)
    b.close()
    if how == "destroyed":
        a.close()
    else:
        a.qp.modify(QPAttr(qp_state=QPState.RESET if how == "reset" else QPState.ERR))
    if how != "error":
        assert_no_completions(world, 3600, a.cq, a.rcq)
        return
    assert [(wc.wr_id, wc.status) for wc in a.wait_for_sends()] == [(1, FLUSHED)]
    assert [(wc.wr_id, wc.status) for wc in a.wait_for_receives(8)] == [
        (100 + i, FLUSHED) for i in range(8)
    ]


@pytest.mark.parametrize("idle", [True, False])
def test_requests_to_a_killed_peer_fail_after_the_minimum_wait(
    world: World, unconnected_roce_ends: tuple[End, End], idle: bool
) -> None:
    a, b = unconnected_roce_ends
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    exchange_sends(a, b)
    world.run_for(1)
    if not idle:
        a.send(b"x" * 1000, 1)  # a Send that is in flight when the peer crashes
        a.send(b"x" * 1000, 2)
        world.run_for(0.001)
    world.crash(b.device)
    began = world.now_ns + DELAY
    if idle:
        assert_no_completions(world, 1, a.cq)
        began = world.now_ns
        a.send(b"anybody?", 1)
        a.send(b"anybody?", 2)
    check_two_requests_fail(a, began, MIN_PEER_WAIT)


def test_a_reset_queue_pair_connects_to_a_restarted_peer(
    world: World, unconnected_roce_ends: tuple[End, End]
) -> None:
    a, b = unconnected_roce_ends
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    exchange_sends(a, b)
    world.crash(b.device)
    again = End(world, b.address, device=world.restart(b.address), by_qpn=True)
    again.to_init_with_receives()
    a.qp.modify(QPAttr(qp_state=QPState.RESET))
    a.to_init_with_receives()
    connect_pair_by_qpn(a, again)
    exchange_sends(a, again)


@pytest.mark.parametrize(
    ("timeout", "retry_cnt", "ns"),
    [
        (1, 0, MIN_PEER_WAIT),
        (14, 7, MIN_PEER_WAIT),
        (19, 1, 4096 * 2 << 19),
        (18, 3, 4096 * 4 << 18),
        (27, 7, 4096 * 8 << 27),
    ],
)
def test_requests_without_a_peer_fail_after_timeout_and_retry_cnt(
    world: World, unconnected_ends: tuple[End, End], timeout: int, retry_cnt: int, ns: int
) -> None:
    """Check the time that timeout and retry_cnt determine, which is at least three seconds."""
    for end, peer in (unconnected_ends, unconnected_ends[::-1]):
        nobody = peer.address, peer.qp.qp_num ^ 1 << 17
        end.to_init_with_receives()
        end.to_rts(nobody, timeout=timeout, retry_cnt=retry_cnt)
    assert_no_completions(world, 10, unconnected_ends[0].cq, unconnected_ends[1].cq)
    began = world.now_ns
    for end in unconnected_ends:
        for i in (1, 2):
            end.send(b"hello", i)
    assert_no_completions(world, (ns - MS) / SECOND, unconnected_ends[0].cq, unconnected_ends[1].cq)
    for end in unconnected_ends:
        assert [wc.status for wc in end.wait_for_sends(2)] == [GONE, FLUSHED]
        assert ns <= world.now_ns - began < ns + NAP
        assert end.state == QPState.ERR


def test_a_window_whose_bind_failed_without_a_peer_can_be_closed(
    world: World, unconnected_ends: tuple[End, End]
) -> None:
    a, b = unconnected_ends
    memory = MR(a.pd, bytearray(64), AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND)
    window = MW(a.pd)
    a.to_init_with_receives(0)
    a.to_rts((b.address, b.qp.qp_num ^ 1 << 17), timeout=1, retry_cnt=0)
    window.bind(a.qp, memory)
    assert a.wait_for_sends()[0].status == GONE
    window.close()
    memory.close()


def test_a_queue_pair_without_requests_or_with_timeout_0_waits_for_its_peer_without_limit(
    world: World, unconnected_ends: tuple[End, End]
) -> None:
    for end, peer, timeout in ((*unconnected_ends, 1), (*unconnected_ends[::-1], 0)):
        end.to_init_with_receives()
        end.to_rts((peer.address, peer.qp.qp_num ^ 1 << 17), timeout=timeout, retry_cnt=0)
    unconnected_ends[1].send(b"hello")
    assert_no_completions(
        world, 3600, *(cq for end in unconnected_ends for cq in (end.cq, end.rcq))
    )
    assert [end.state for end in unconnected_ends] == [QPState.RTS] * 2


def test_connection_attempts_to_an_absent_peer_become_less_frequent(
    world: World, unconnected_ends: tuple[End, End]
) -> None:
    a, b = unconnected_ends
    peer = b.host_and_qpn
    b.close()
    a.to_init_with_receives()
    a.to_rts(peer, timeout=0)
    assert_no_completions(world, 3, a.cq)
    retries = counter_value("pair_retries")
    assert_no_completions(world, 60, a.cq)
    assert counter_value("pair_retries") - retries <= 61


def test_a_send_of_persona_roce_by_gid_and_qpn_waits_for_a_receive(
    world: World, unconnected_roce_ends: tuple[End, End]
) -> None:
    a, b = unconnected_roce_ends
    a.to_init_with_receives(0), b.to_init_with_receives(0)
    connect_pair_by_qpn(a, b)
    a.send(b"last words")
    assert_no_completions(world, 3600, a.cq)
    began = world.now_ns
    b.post_receive(100, 0, 1 << 10)
    assert b.wait_for_receives()[0].ok and b.mr.read(10) == b"last words"
    assert a.wait_for_sends()[0].ok
    assert DELAY <= world.now_ns - began < DELAY + NAP


# ---- delivery counts


def test_a_write_completes_by_a_delivery_count_after_a_round_trip(
    world: World, unconnected_roce_ends: tuple[End, End]
) -> None:
    a, b = unconnected_roce_ends
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    exchange_sends(a, b)
    world.run_for(1)
    for turn in range(5):
        began = world.now_ns
        with expect_counter_increase("confirm_reads", 0):
            a.mr.write(octet_pattern(100, turn))
            a.post(WRITE, turn, length=100, remote=b.mr.remote(40_000, 100))
            assert a.wait_for_sends()[0].ok
        # A delivery count in a separate segment follows the previous count after at least 5 us.
        assert 2 * DELAY <= world.now_ns - began < 2 * DELAY + NAP
        assert b.mr.read(100, 40_000) == octet_pattern(100, turn)


def test_without_delivery_counts_a_write_is_confirmed_by_a_read(world: World) -> None:
    world.faults("delay=5ms")
    with temporary_settings(delivery_counts=0):
        a, b = (End(world, f"10.0.0.{i}", by_qpn=True, persona=Persona.ROCE) for i in (1, 2))
        a.to_init_with_receives(), b.to_init_with_receives()
        connect_pair_by_qpn(a, b)
        exchange_sends(a, b)
        world.run_for(1)
        began = world.now_ns
        with expect_counter_increase("confirm_reads", 1):
            a.post(WRITE, 1, length=100, remote=b.mr.remote(40_000, 100))
            assert a.wait_for_sends()[0].ok
    assert 2 * DELAY <= world.now_ns - began < 2 * DELAY + NAP


def test_requests_to_an_unreachable_peer_complete_when_the_network_is_repaired(
    world: World, unconnected_roce_ends: tuple[End, End]
) -> None:
    a, b = unconnected_roce_ends
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    exchange_sends(a, b)
    world.partition(a.device, b.device)
    a.post(WRITE, 1, length=100, remote=b.mr.remote(40_000, 100))
    assert_no_completions(world, 300, a.cq)
    assert a.state == QPState.RTS
    world.heal()
    assert a.wait_for_sends()[0].ok


def test_many_writes_complete_by_few_delivery_counts(
    world: World, unconnected_roce_ends: tuple[End, End]
) -> None:
    a, b = unconnected_roce_ends
    a.to_init_with_receives(0), b.to_init_with_receives(0)
    for i in range(64):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(0, 1 << 10)]))
    connect_pair_by_qpn(a, b)
    world.run_for(1)
    before = world.stats.segments
    for i in range(64):
        a.post(WRITE, i, length=1000, remote=b.mr.remote(40_000, 1000))
    assert [wc.check().wr_id for wc in a.wait_for_sends(64)] == list(range(64))
    segments = world.stats.segments - before
    # The traffic of 64 KB is about 60 segments with acknowledgements, and a few delivery counts.
    assert 100 < segments < 300, segments
