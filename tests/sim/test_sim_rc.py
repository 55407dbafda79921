"""RC and the connection manager on the simulated TCP: loss, long paths, crashes, partitions."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.verbs_harness import octet_pattern
from scapy.layers.inet import TCP
from scapy.utils import PcapNgReader
from sim.rc_harness import (
    MS,
    NAP,
    READ,
    SECOND,
    SEND,
    WRITE,
    End,
    accept_connection,
    assert_no_completions,
    connect_by_cm,
    start_connecting,
    start_listener,
)

import siwarp
from siwarp.cm import CMEventType, ConnParam
from siwarp.sim import World
from siwarp.verbs import Error, Persona, QPState, StateError, WCStatus

FLUSHED = WCStatus.WR_FLUSH_ERR
#: The minimum of Linux's retransmission timeout, to which the round-trip time is added
#: (sim/sim_tcp.c).
MIN_RTO = 200 * MS
#: The time after which TCP ends a connection whose peer does not answer (sim/sim.h).
TCP_GIVE_UP_TIME = 924_600 * MS

ConnectPair = Callable[..., tuple[End, End]]


@pytest.fixture
def connect_pair(world: World) -> ConnectPair:
    """Return a function that creates two hosts with one queue pair each and connects them."""

    def create_and_connect(faults: str = "", **init: object) -> tuple[End, End]:
        world.faults(faults)
        a, b = (End(world, f"10.0.0.{i}", **init) for i in (1, 2))  # type: ignore[arg-type]
        connect_by_cm(a, b)
        return a, b

    return create_and_connect


# ---- effects of the network on messages


def test_messages_arrive_intact_and_in_order_over_a_lossy_link(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair(
        "loss=5%,burst=3,dup=2%,reorder=2%,delay=5ms,jitter=1ms", persona=Persona.ROCE
    )
    sizes = [1 + i * i * 37 % 20_000 for i in range(60)]

    def receive_all() -> list[int]:
        got = []
        for i, size in enumerate(sizes):
            b.post_receive(i, 0, 20_000)
            (wc,) = b.wait_for_receives()
            assert b.mr.read(wc.check().byte_len) == octet_pattern(size, i)
            got.append(wc.wr_id)
        return got

    def send_all() -> None:
        for i, size in enumerate(sizes):
            a.mr.write(octet_pattern(size, i))
            a.post(SEND, i, length=size)
            assert a.wait_for_sends()[0].ok

    receiver = world.spawn(receive_all)
    world.spawn(send_all)
    world.run_tasks()
    assert receiver.result() == list(range(60))
    assert world.stats.lost > 10


def test_a_lost_segment_is_retransmitted_after_a_timeout_and_delays_later_messages(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=10ms")
    for i in range(4):
        b.post_receive(i, i << 10, 1 << 10)
    a.send(b"before", 0)
    b.wait_for_receives()
    world.run_for(1)
    rto = MIN_RTO + 20 * MS
    world.partition(a.device, b.device)
    began = world.now_ns
    a.send(b"lost", 1)
    world.run_for(0.001)
    world.heal()
    # The message arrives before the retransmission after the timeout, and the acknowledgement of
    # the message arrives after the retransmission.
    world.run_for((rto - 6 * MS) / SECOND)
    a.send(b"after", 2)
    assert_no_completions(world, 0.014, b.rcq)
    assert [wc.check().wr_id for wc in b.wait_for_receives(2)] == [1, 2]
    assert rto + 10 * MS <= world.now_ns - began < rto + 10 * MS + NAP


def test_a_segment_that_later_segments_overtook_is_retransmitted_within_a_round_trip(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=10ms")
    for i in range(5):
        b.post_receive(i, i << 10, 1 << 10)
    world.partition(a.device, b.device)
    began = world.now_ns
    a.send(b"lost", 0)
    world.run_for(0.001)
    world.heal()
    for i in range(1, 5):
        a.send(b"after", i)
    assert [wc.check().wr_id for wc in b.wait_for_receives(5)] == list(range(5))
    # The third duplicate acknowledgement triggers the retransmission after one round trip.
    assert world.now_ns - began == 31 * MS


def test_the_seed_splits_the_tcp_stream_into_segments_at_any_octet(
    world: World, connect_pair: ConnectPair, tmp_path: Path
) -> None:
    a, b = connect_pair("delay=1ms")
    with world.capture(tmp_path / "run.pcapng"):
        for i in range(20):
            a.post(WRITE, i, length=8000, remote=b.mr.remote(0, 8000))
        assert all(wc.ok for wc in a.wait_for_sends(20))
        world.run_for(1)
    with PcapNgReader(str(tmp_path / "run.pcapng")) as packets:
        lengths = [len(packet[TCP].payload) for packet in packets if packet[TCP].dport != 0]
    # The length of an FPDU is a multiple of four, so these segments do not end where FPDUs end.
    assert {length % 4 for length in lengths if length} == {0, 1, 2, 3}
    assert min(length for length in lengths if length) < 100
    assert max(lengths) == 1500 - 52


# ---- times of operations


def test_connecting_a_send_and_a_read_take_the_expected_round_trips(world: World) -> None:
    world.faults("delay=300ms")
    a, b = (End(world, f"10.0.0.{i}") for i in (1, 2))
    start_listener(b)
    start_connecting(a, b)
    accept_connection(a, b)
    # TCP needs one round trip, and the MPA Request and Reply need another round trip.
    assert world.now_ns == 1200 * MS
    world.run_for(1)
    b.post_receive()
    began = world.now_ns
    a.post(SEND, 1, length=100)
    assert b.wait_for_receives()[0].ok
    assert world.now_ns - began == 300 * MS
    world.run_for(1)
    began = world.now_ns
    a.post(READ, 2, length=100, remote=b.mr.remote(0, 100))
    assert [wc.wr_id for wc in a.wait_for_sends(2)] == [1, 2]
    assert world.now_ns - began == 600 * MS


@pytest.mark.parametrize(("persona", "ms"), [(Persona.IWARP, 0), (Persona.ROCE, 600)])
def test_the_persona_determines_when_a_send_completes(
    world: World, connect_pair: ConnectPair, persona: Persona, ms: int
) -> None:
    """Check that a Send completes when TCP has accepted it (iWARP) or the peer has it (RoCE)."""
    a, b = connect_pair("delay=300ms", persona=persona)
    b.post_receive()
    began = world.now_ns
    a.post(SEND, 1, length=100)
    assert a.wait_for_sends()[0].ok
    assert world.now_ns - began == ms * MS


def test_programs_with_blocking_calls_run_as_tasks_of_a_world(world: World) -> None:
    world.faults("delay=5ms,loss=1%")
    for i in (1, 2):
        world.device(f"10.0.0.{i}")

    def answer_one_question() -> bytes:
        with siwarp.listen(("10.0.0.2", 7000)) as listener, listener.accept() as conn:
            got = bytes(conn.recv())
            conn.send(got.upper())
            return got

    def send_question_and_return_answer() -> bytes:
        world.sleep("10ms")
        with siwarp.connect(("10.0.0.2", 7000)) as conn:
            conn.send(b"a question")
            return bytes(conn.recv())

    server = world.spawn(answer_one_question)
    client = world.spawn(send_question_and_return_answer, on="10.0.0.1")
    world.run_tasks(within="1min")
    assert (server.result(), client.result()) == (b"a question", b"A QUESTION")


# ---- connecting


def test_a_refused_rc_connection_attempt_is_reported_after_a_round_trip(world: World) -> None:
    world.faults("delay=10ms")
    a, b = (End(world, f"10.0.0.{i}") for i in (1, 2))
    start_connecting(a, b)
    event = a.next_event()
    assert (event.type, event.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert world.now_ns == 20 * MS


@pytest.mark.parametrize(("cut_s", "then_s"), [(0.5, 1), (2, 3), (6, 7)])
def test_a_lost_syn_is_retransmitted_after_1_3_and_7_s(
    world: World, cut_s: float, then_s: int
) -> None:
    world.faults("delay=10ms")
    a, b = (End(world, f"10.0.0.{i}") for i in (1, 2))
    start_listener(b)
    world.partition(a.device, b.device)
    start_connecting(a, b, ConnParam(timeout=60))
    world.run_for(cut_s)
    world.heal()
    accept_connection(a, b)
    assert world.now_ns == then_s * SECOND + 40 * MS


# ---- partitions


def test_a_partition_of_a_minute_delays_rc_requests(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=1ms")
    world.partition(a.device, b.device)
    a.post(WRITE, 1, length=4096, remote=b.mr.remote(0, 4096))
    a.post(READ, 2, offset=8192, length=4096, remote=b.mr.remote(0, 4096))
    assert_no_completions(world, 60, b.rcq)
    assert a.state == b.state == QPState.RTS
    world.heal()
    assert [wc.check().wr_id for wc in a.wait_for_sends(2)] == [1, 2]
    # Retransmission timeouts double, so the next one expires at most a minute after the outage.
    assert 60 * SECOND < world.now_ns < 121 * SECOND


def test_a_permanent_partition_ends_a_request_when_tcp_gives_up(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=1ms")
    world.partition(a.device, b.device)
    a.post(READ, 1, length=8, remote=b.mr.remote(0, 8))
    began = world.now_ns
    assert_no_completions(world, 924, a.cq)
    (wc,) = a.wait_for_sends()
    assert not wc.ok
    assert TCP_GIVE_UP_TIME <= world.now_ns - began < TCP_GIVE_UP_TIME + 120 * SECOND
    event = a.next_event()
    assert (event.type, event.status) == (CMEventType.DISCONNECTED, errno.ETIMEDOUT)
    # No packet of `b` was in flight, so `b` cannot notice the partition.
    assert b.state == QPState.RTS


# ---- ends of connections


@pytest.mark.parametrize("unread", [False, True])
def test_the_peer_of_a_killed_process_is_disconnected_after_one_path_delay(
    world: World, connect_pair: ConnectPair, unread: bool
) -> None:
    """Check that the killed process sends a FIN, or a reset if it had unread data."""
    a, b = connect_pair("delay=10ms")
    a.post_receive(7)
    if unread:
        a.post(WRITE, 1, length=4096, remote=b.mr.remote(0, 4096))
        a.wait_for_sends()
        world.run_for(0.005)
    began = world.now_ns
    world.crash(b.device)
    (wc,) = a.wait_for_receives()
    assert (wc.wr_id, wc.status) == (7, FLUSHED)
    event = a.next_event()
    assert event.type == CMEventType.DISCONNECTED
    assert a.state == QPState.ERR
    assert 10 * MS <= world.now_ns - began < 10 * MS + NAP
    with pytest.raises(StateError) as error:
        b.cq.poll()
    assert error.value.errno == errno.ESTALE


def test_reads_whose_responses_were_sent_before_a_crash_succeed(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=10ms,rate=10Mbit")
    for i in range(8):
        a.post(READ, i, offset=4096 * i, length=4096, remote=b.mr.remote(0, 4096))
    world.run_for(0.02)
    world.crash(b.device)
    for i in range(8, 16):
        a.post(READ, i, length=4096, remote=b.mr.remote(0, 4096))
    done = a.wait_for_sends(16)
    assert [wc.wr_id for wc in done] == list(range(16))
    good = [wc.ok for wc in done]
    assert good == sorted(good, reverse=True)
    assert 1 <= sum(good) <= 8


def test_a_new_queue_pair_connects_to_a_restarted_host(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=10ms")
    world.crash(b.device)
    world.run_for(1)
    again = End(world, b.address, device=world.restart(b.address))
    other = End(world, a.address, device=a.device)
    connect_by_cm(other, again)
    again.post_receive(3)
    other.post(SEND, 1, length=10)
    assert again.wait_for_receives()[0].wr_id == 3


def test_messages_posted_before_a_disconnect_arrive(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=20ms,loss=3%,rate=5Mbit", size=1 << 17)
    for i in range(20):
        b.post_receive(i, 0, 4096)
    a.post_receive(50, 0, 1 << 16)
    for i in range(16):
        a.post(SEND, i, offset=i << 12, length=4000)
    b.post(SEND, 40, length=60_000)  # the disconnect of `a` does not close the direction from `b`
    assert a.id is not None
    world.run_for(0.01)
    a.id.disconnect()
    done = b.wait_for_receives(20)
    assert [(wc.wr_id, wc.ok) for wc in done] == [(i, i < 16) for i in range(20)]
    assert {wc.status for wc in done[16:]} == {FLUSHED}
    assert a.next_event().type == b.next_event().type == CMEventType.DISCONNECTED
    assert world.stats.lost > 0


def test_a_reset_by_a_fault_plan_disconnects_both_ends(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=1ms,reset=100KB,short=20%")
    n = 0
    while True:
        a.post(WRITE, n, length=4096, remote=b.mr.remote(0, 4096))
        (wc,) = a.wait_for_sends()
        if not wc.ok:
            break
        n += 1
    assert 10 <= n <= 100_000 // 4096
    assert a.next_event().type == b.next_event().type == CMEventType.DISCONNECTED


def test_a_reduced_path_mtu_makes_tcp_use_smaller_segments(
    world: World, connect_pair: ConnectPair
) -> None:
    a, b = connect_pair("delay=1ms")
    world.path_mtu(a.device, b.device, 1280)
    for i in range(8):
        a.post(WRITE, i, length=8192, remote=b.mr.remote(0, 8192))
    a.post(READ, 8, length=8, remote=b.mr.remote(0, 8))
    assert all(wc.ok for wc in a.wait_for_sends(9))
    assert world.stats.lost > 0


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_seed_determines_the_run_of_an_rc_test(seed: int) -> None:
    def run_lossy_rc_exchange(seed: int) -> tuple[int, int]:
        with World(seed, "loss=5%,delay=3ms,jitter=2ms") as world:
            a, b = (End(world, f"10.0.0.{i}", persona=Persona.ROCE) for i in (1, 2))
            connect_by_cm(a, b)
            for i in range(30):
                b.post_receive(i)
                a.post(SEND, i, length=1000 + i)
            a.wait_for_sends(30)
            return world.trace_hash, world.now_ns

    assert (
        run_lossy_rc_exchange(seed)
        == run_lossy_rc_exchange(seed)
        != run_lossy_rc_exchange(seed + 100)
    )


def test_connecting_to_an_unknown_host_name_is_refused(world: World) -> None:
    a = End(world, "10.0.0.1")
    with pytest.raises(Error) as error:
        siwarp.connect(("nowhere", 1))
    assert error.value.errno == errno.EHOSTUNREACH
    assert a.state == QPState.RESET
