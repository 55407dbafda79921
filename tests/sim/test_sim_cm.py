"""siwarp.cm in a simulated network: UD queue pairs found by address and port, at exact times."""

from __future__ import annotations

import contextlib
import errno
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness.verbs_harness import temporary_settings
from scapy.layers.inet import UDP
from scapy.utils import PcapNgReader
from sim.rc_harness import counted

from siwarp.cm import CMID, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import SIDR, SIDRType
from siwarp.sim import World
from siwarp.verbs import CQ, PD, QP, Address, Context, QPInitAttr, QPType, StateError

QKEY = 0x01234567
#: Times in seconds at which a query is retransmitted (spec/cm-udp.md).
TIMETABLE = [0, 0.1, 0.3, 0.7, 1.5, 2.5]
#: 2020-01-01 00:00:00 UTC, the start time of a simulated network.
BEGIN = 1_577_836_800


@dataclass
class Ends:
    """A device that listens for queries about UD queue pairs, and one that sends them."""

    asker: Context
    listener: Context
    asking: CMEventChannel = field(init=False)
    answering: CMEventChannel = field(init=False)
    door: CMID = field(init=False)
    ids: list[CMID] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asking = CMEventChannel(self.asker)
        self.answering = CMEventChannel(self.listener)
        self.door = CMID(self.answering, ud=True)
        self.door.listen((self.listener.device.addresses[0], 7000))

    def qp(self) -> QP:
        address = self.listener.device.addresses[0]
        init = QPInitAttr(QPType.UD, scq=CQ(self.listener), addr=(address, 0))
        return QP(PD(self.listener), init)

    def ask(self, data: bytes = b"", to: Address | None = None, **more: float) -> CMID:
        asked = CMID(self.asking, ud=True)
        param = ConnParam(private_data=data, **more)  # type: ignore[arg-type]
        asked.connect(to or self.door.local_addr, param)
        self.ids.append(asked)
        return asked

    def request(self) -> CMEvent:
        event = self.answering.get_event()
        assert event is not None and event.type == CMEventType.CONNECT_REQUEST
        assert event.listen_id is self.door
        return event

    def result(self) -> CMEvent:
        event = self.asking.get_event()
        assert event is not None
        return event


def accept(event: CMEvent, qp: QP, data: bytes = b"") -> None:
    event.id.bind_qp(qp)
    event.id.accept(ConnParam(private_data=data))


@pytest.fixture
def ends(world: World) -> Ends:
    return Ends(world.device("10.0.0.1", "fd00::1"), world.device("10.0.0.2", "fd00::2"))


def sent(path: Path, port: int) -> list[tuple[float, bytes]]:
    """Return time and octets of each datagram that was sent to a port."""
    found: dict[tuple[float, int, bytes], tuple[float, bytes]] = {}
    with PcapNgReader(str(path)) as packets:
        for packet in packets:
            if UDP in packet and packet[UDP].dport == port:
                at, octets = float(packet.time) - BEGIN, bytes(packet[UDP].payload)
                found[at, packet[UDP].sport, octets] = at, octets
    return list(found.values())


def test_a_question_is_answered_in_one_round_trip(world: World, ends: Ends) -> None:
    world.faults("delay=20ms")
    qp = ends.qp()
    asked = ends.ask(b"who is there")

    def serve() -> None:
        request = ends.request()
        assert world.now_ns == 20_000_000
        assert request.private_data == b"who is there"
        assert request.id.peer_addr[0] == "10.0.0.1"
        assert request.id.local_addr == ("10.0.0.2", 7000)
        accept(request, qp, b"it is me")

    world.spawn(serve)
    told = ends.result()
    assert world.now_ns == 40_000_000
    assert told.type == CMEventType.ESTABLISHED and told.id is asked and told.status == 0
    assert (told.qpn, told.qkey, told.private_data) == (qp.qp_num, QKEY, b"it is me")
    world.run_for("1min")
    assert ends.asking.get_event(0) is None and ends.answering.get_event(0) is None


def test_a_question_that_reaches_nobody_is_repeated_by_the_timetable_until_its_time_is_over(
    world: World, ends: Ends, tmp_path: Path
) -> None:
    world.partition(ends.asker, ends.listener)
    with world.capture(tmp_path / "run.pcapng"):
        ends.ask(timeout=3.0)
        told = ends.result()
    assert world.now == 3.0
    assert (told.type, told.status) == (CMEventType.UNREACHABLE, errno.ETIMEDOUT)
    questions = sent(tmp_path / "run.pcapng", 7000)
    assert [at for at, _ in questions] == pytest.approx(TIMETABLE, abs=2e-6)
    assert len({octets for _, octets in questions}) == 1, "a repeat is the same question"


@pytest.mark.parametrize("family", ["10.0.0.2", "fd00::2"])
@pytest.mark.parametrize(("timeout", "after"), [(10.0, 0.7), (0.25, 0.25)])
def test_where_no_socket_has_the_port_a_listener_has_half_a_second_to_come(
    world: World, ends: Ends, family: str, timeout: float, after: float
) -> None:
    asked = ends.ask(to=(family, 7001), timeout=timeout)
    told = ends.result()
    assert world.now == pytest.approx(after, abs=1e-6)
    assert told.id is asked
    assert (told.type, told.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert told.wire_error == 1, "as of a listener that is closed"
    world.run_for("1min")
    assert ends.asking.get_event(0) is None


def test_a_listener_that_comes_between_two_questions_is_found(world: World, ends: Ends) -> None:
    ends.door.close()
    ends.ask(to=("10.0.0.2", 7000))
    world.run_for("200ms")
    ends.door = CMID(ends.answering, ud=True)
    ends.door.listen(("10.0.0.2", 7000))
    accept(ends.request(), ends.qp())
    assert ends.result().type == CMEventType.ESTABLISHED
    assert world.now == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "plan", ["loss=40%", "dup=50%", "reorder=50%", "corrupt=20%", "delay=10ms,jitter=300ms"]
)
def test_faults_cost_time_and_no_answer_and_the_program_is_asked_once(plan: str, seed: int) -> None:
    with World(seed, plan) as world:
        ends = Ends(world.device("10.0.0.1"), world.device("10.0.0.2"))
        qp = ends.qp()
        seen: list[bytes] = []

        def serve() -> None:
            while True:
                request = ends.request()
                seen.append(request.private_data)
                accept(request, qp, request.private_data)

        world.spawn(serve)
        ids = [ends.ask(bytes([i]), timeout=60.0) for i in range(10)]
        told = {event.id: event for event in (ends.result() for _ in ids)}
        world.run_for("2min")
        assert ends.asking.get_event(0) is None
        assert sorted(seen) == [bytes([i]) for i in range(10)]
        for i, asked in enumerate(ids):
            assert told[asked].type == CMEventType.ESTABLISHED
            assert (told[asked].private_data, told[asked].qpn) == (bytes([i]), qp.qp_num)


def test_a_round_trip_of_a_second_makes_no_second_question(world: World, ends: Ends) -> None:
    world.faults("delay=500ms")
    ends.ask()
    accept(ends.request(), ends.qp())
    assert ends.result().type == CMEventType.ESTABLISHED
    assert world.now == 1.0
    assert ends.answering.get_event(60) is None, "repeats are no new questions"


def test_who_is_rejected_is_told_why(world: World, ends: Ends) -> None:
    ends.ask()
    ends.request().id.reject(b"not today")
    told = ends.result()
    assert (told.type, told.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert (told.wire_error, told.private_data) == (2, b"not today")


def test_a_listener_that_crashes_while_it_thinks_is_known_by_the_next_question(
    world: World, ends: Ends
) -> None:
    ends.ask(timeout=10.0)
    taken = ends.request()
    world.run_for("50ms")
    world.crash(ends.listener)
    with pytest.raises(StateError) as error:
        taken.id.reject()
    assert error.value.errno == errno.ESTALE
    told = ends.result()
    assert (told.type, told.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert world.now == pytest.approx(0.7, abs=1e-6)

    again = Ends(ends.asker, world.restart(ends.listener))
    again.ask()
    accept(again.request(), again.qp())
    assert again.result().type == CMEventType.ESTABLISHED


def test_a_task_that_waits_for_an_event_finds_its_device_crashed(world: World, ends: Ends) -> None:
    waiting = world.spawn(ends.answering.get_event)
    world.run_for("1h")
    world.crash(ends.listener)
    with pytest.raises(StateError) as error:
        world.run_for(0)
    assert error.value.errno == errno.ESTALE
    assert waiting.done() and world.now == 3600


def test_waiting_for_an_event_ends_at_its_time(world: World, ends: Ends) -> None:
    assert ends.asking.get_event(0.2) is None
    assert world.now == pytest.approx(0.2, abs=2e-6)  # a poll that finds nothing takes 1 us
    assert ends.asking.get_event(0) is None
    assert world.now == pytest.approx(0.2, abs=3e-6)


def test_a_task_that_waits_costs_nothing_however_long_it_waits(world: World, ends: Ends) -> None:
    world.spawn(ends.answering.get_event)
    world.run_for("1s")
    before = world.stats
    world.run_for("1000h")
    assert world.stats.switches - before.switches < 10
    assert world.stats.instants - before.instants < 10


# ---- a hand-written peer


def question(number: int, data: bytes = b"", cookie: int = 0) -> bytes:
    return bytes(SIDR(type=SIDRType.QUESTION, id=number, data=data, cookie=cookie))


def test_a_lost_answer_is_asked_for_again_and_the_program_is_asked_once(
    world: World, ends: Ends
) -> None:
    qp, peer = ends.qp(), world.udp("10.0.0.9")
    peer.sendto(question(7, b"x"), ends.door.local_addr)
    asked = ends.request()
    # a query that is repeated before the program has answered
    peer.sendto(question(7, b"x"), ends.door.local_addr)
    world.run_for("1ms")
    assert ends.answering.get_event(0) is None
    accept(asked, qp, b"yes")
    first = peer.recv()
    with counted("sidr_response_retries", 2):
        for _ in range(2):
            peer.sendto(question(7, b"x"), ends.door.local_addr)
            assert peer.recv() == first
    answer = SIDR(first)
    assert (answer.type, answer.id, answer.qpn) == (SIDRType.ANSWER, 7, qp.qp_num)
    assert (answer.q_key, answer.data) == (QKEY, b"yes")
    assert ends.answering.get_event(60) is None


def test_an_answer_is_forgotten_when_nobody_waits_for_it_any_more(world: World, ends: Ends) -> None:
    qp, peer = ends.qp(), world.udp("10.0.0.9")
    peer.sendto(question(7), ends.door.local_addr)
    accept(ends.request(), qp)
    first = peer.recv()
    # longer than the previous waits, but less than setting sidr_timeout_ms, which is 10 s
    world.run_for("9s")
    peer.sendto(question(7), ends.door.local_addr)
    assert peer.recv() == first
    assert ends.answering.get_event(0) is None
    world.run_for("11s")
    peer.sendto(question(7), ends.door.local_addr)
    ends.request()  # the answer has expired, so the query is treated as a new one


def slow_program(world: World, ends: Ends, qp: QP) -> list[str]:
    """Answer each query after 20 ms; return the list of askers in the order of the answers."""
    answered: list[str] = []

    def serve() -> None:
        while True:
            event = ends.request()
            answered.append(event.id.peer_addr[0])
            world.sleep(0.02)
            accept(event, qp)
            event.id.close()

    world.spawn(serve)
    return answered


def flood(world: World, ends: Ends, rate: int, sources: int, listens: bool) -> None:
    """Send queries at the given rate; with ``listens`` use the received cookies."""

    def ask() -> None:
        socks = [world.udp(f"10.2.{i // 200}.{1 + i % 200}") for i in range(sources)]
        for sock in socks:
            sock.setblocking(False)
        number = 1 << 32
        while True:
            world.sleep(1 / rate)
            number += 1
            sock = socks[number % sources]
            sock.sendto(question(number), ends.door.local_addr)
            if not listens:
                continue
            with contextlib.suppress(BlockingIOError):
                while (frame := SIDR(sock.recv())).type == SIDRType.COOKIE:
                    sock.sendto(question(frame.id, cookie=frame.cookie), ends.door.local_addr)

    world.spawn(ask)


@pytest.mark.parametrize(
    ("rate", "sources", "listens"), [(100, 400, False), (200, 400, False), (400, 1, True)]
)
def test_who_floods_a_slow_program_with_questions_delays_no_honest_client(
    world: World, ends: Ends, rate: int, sources: int, listens: bool
) -> None:
    world.faults("delay=5ms")
    qp = ends.qp()
    answered = slow_program(world, ends, qp)
    flood(world, ends, rate, sources, listens)
    world.run_for("4s")
    for _ in range(5):
        began = world.now
        ends.ask()
        told = ends.result()
        assert told.type == CMEventType.ESTABLISHED
        assert world.now - began < 1.0, f"{world.now - began:.3f} s"
        world.run_for("0.3s")
    assert answered.count("10.0.0.1") == 5 and len(answered) > 150


def test_a_question_that_is_not_repeated_is_forgotten(world: World, ends: Ends) -> None:
    once, again = world.udp("10.0.0.8"), world.udp("10.0.0.9")
    once.sendto(question(1), ends.door.local_addr)
    for _ in range(5):
        again.sendto(question(2), ends.door.local_addr)
        world.run_for("1s")
    assert ends.request().id.peer_addr[0] == "10.0.0.9"
    assert ends.answering.get_event(0) is None


def test_sources_take_turns_and_each_one_s_questions_keep_their_order(
    world: World, ends: Ends
) -> None:
    peers = {name: world.udp(f"10.0.0.{20 + i}") for i, name in enumerate("xyz")}
    for i, name in enumerate("xxxyyz"):
        peers[name].sendto(question(i + 1, f"{name}{i}".encode()), ends.door.local_addr)
    world.run_for("1ms")
    order = [ends.request().private_data.decode() for _ in range(4)]
    peers["z"].sendto(question(7, b"z6"), ends.door.local_addr)
    world.run_for("1ms")
    # z was served before x was served twice. The next event was already in the queue.
    order += [ends.request().private_data.decode() for _ in range(3)]
    assert order == ["x0", "y3", "z5", "x1", "y4", "z6", "x2"]


def seconds_to_take(pending: int) -> float:
    """Return the CPU time of taking 50 queries out of ``pending`` ones: the best of five."""
    with temporary_settings(max_requests=60000, source_share=100), World(seed=1) as world:
        ends = Ends(world.device("10.0.0.1"), world.device("10.0.0.2"))
        peer = world.udp("10.0.0.9")
        peer.setblocking(False)
        for i in range(pending):
            peer.sendto(question(i + 1), ends.door.local_addr)
            with contextlib.suppress(BlockingIOError):  # the first few queries need no cookie
                frame = SIDR(peer.recv())
                peer.sendto(question(frame.id, cookie=frame.cookie), ends.door.local_addr)
        best = float("inf")
        for _ in range(5):
            began = time.process_time()
            for _ in range(50):
                ends.request()
            best = min(best, time.process_time() - began)
        return best


def test_taking_a_question_costs_the_same_however_many_are_pending() -> None:
    """An implementation that scans all pending queries has a ratio of 3; the ratio should be 1."""
    assert seconds_to_take(4000) < 2 * seconds_to_take(500)
