"""Connections by siwarp.connect, siwarp.listen and siwarp.cm over simulated TCP, at exact times."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
from harness.verbs_harness import octet_pattern
from sim.rc_harness import expect_counter_increase

import siwarp
import siwarp.pyverbs.cm_enums as ce
import siwarp.pyverbs.cmid as pyverbs
from siwarp import PeerGone, Timeout
from siwarp.cm import (
    CMID,
    RTR,
    CMEvent,
    CMEventChannel,
    CMEventType,
    Connection,
    ConnParam,
)
from siwarp.inspect import FPDU, DDPTagged, DDPUntagged, MPAReply, MPARequest, Opcode
from siwarp.pyverbs.cmid import AddrInfo
from siwarp.pyverbs.qp import QPCap
from siwarp.pyverbs.qp import QPInitAttr as PyverbsInit
from siwarp.sim import TCPSocket, World
from siwarp.testing import pair
from siwarp.verbs import (
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    Error,
    Persona,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    StateError,
)

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
PORT = 7000
MS = 1_000_000


@dataclass
class Hosts:
    """A simulated network of two hosts with a packet delay of 10 ms."""

    world: World
    a: Context
    b: Context

    def connect(self, **more: int) -> tuple[Connection, Connection]:
        """Connect `a` to `b`, and return both ends of the connection, first the end of `a`."""
        with siwarp.listen((B, PORT), **more) as listener:
            server = self.world.spawn(listener.accept, on=B)
            client = self.world.spawn(siwarp.connect, (B, PORT), on=A, **more)
            self.world.run_until(lambda: server.done() and client.done())
            return client.result(), server.result()


@pytest.fixture(name="hosts")
def two_simulated_hosts(world: World) -> Hosts:
    world.faults("delay=10ms")
    return Hosts(world, world.device(A), world.device(B))


# ---- siwarp.connect and siwarp.listen


def test_connecting_takes_two_round_trips_and_a_message_half_a_round_trip(
    world: World, hosts: Hosts
) -> None:
    listener = siwarp.listen((B, PORT))

    def accept_and_answer() -> None:
        with listener.accept(private_data=b"welcome") as conn:
            assert (conn.private_data, conn.peer[0]) == (b"hello", A)
            assert conn.recv() == b"one"
            assert world.now_ns == 50 * MS
            conn.send(b"two")

    def connect_and_send() -> None:
        with siwarp.connect((B, PORT), private_data=b"hello") as conn:
            assert world.now_ns == 40 * MS
            assert (conn.private_data, conn.local[0], conn.peer) == (b"welcome", A, (B, PORT))
            conn.send(b"one")
            assert conn.recv() == b"two"
            assert world.now_ns == 60 * MS

    world.spawn(accept_and_answer, on=B)
    world.spawn(connect_and_send, on=A)
    world.run_tasks(within="1min")
    listener.close()


def test_memory_of_the_peer_is_written_and_read_over_an_unreliable_network(
    world: World, hosts: Hosts
) -> None:
    world.faults("loss=3%,reorder=3%,delay=5ms,jitter=2ms")
    listener = siwarp.listen((B, PORT))
    octets = bytes(range(256)) * 1024

    def accept_and_lend_memory() -> bytes:
        with listener.accept() as conn:
            mr = conn.register(len(octets))
            conn.send(mr.remote().pack())
            assert conn.recv() == b"done"
            return bytes(mr.read(len(octets)))

    def write_and_read_memory() -> None:
        with siwarp.connect((B, PORT)) as conn:
            remote = RemoteBuffer.unpack(conn.recv())
            conn.write(remote, octets)
            assert conn.read(remote) == octets
            conn.send(b"done")

    server = world.spawn(accept_and_lend_memory, on=B)
    world.spawn(write_and_read_memory, on=A)
    world.run_tasks(within="10min")
    assert server.result() == octets
    assert world.stats.lost > 0
    listener.close()


@pytest.mark.parametrize("silent", ["host", "program"])
def test_connecting_to_a_silent_host_or_program_fails_at_the_timeout(
    world: World, hosts: Hosts, silent: str
) -> None:
    door = CMID(CMEventChannel(hosts.b))
    door.listen((B, PORT))  # a listener that never accepts the requests it receives
    if silent == "host":
        world.partition(A, B)
    with expect_counter_increase("startup_timeouts", 1), pytest.raises(PeerGone):
        siwarp.connect((B, PORT), timeout=0.5)
    assert world.now == pytest.approx(0.5, abs=2e-6)


def test_connecting_to_a_port_without_listener_fails_after_one_round_trip(
    world: World, hosts: Hosts
) -> None:
    with pytest.raises(PeerGone, match=r"connecting to 10\.0\.0\.2 port 7000"):
        siwarp.connect((B, PORT))
    assert world.now_ns == 20 * MS


def test_waiting_for_a_connection_request_ends_at_the_timeout(world: World, hosts: Hosts) -> None:
    with siwarp.listen((B, PORT)) as listener, pytest.raises(Timeout, match=r"within 0\.25 s"):
        listener.accept(0.25)
    # A wait begins with polls, and an unsuccessful poll takes 1 us, then twice as long each time.
    assert world.now == pytest.approx(0.25, abs=1e-4)


# The receiver pauses for less time and for more time than a closing end lingers.
@pytest.mark.parametrize("pause", [0, 3])
def test_sending_to_a_peer_that_does_not_receive_blocks_until_the_timeout(
    world: World, hosts: Hosts, pause: float
) -> None:
    a, b = hosts.connect()

    def send_until_timeout() -> int:
        sent = 0
        with pytest.raises(Timeout, match="the peer may not be receiving"):
            while True:
                began = world.now
                a.send(bytes(65536), 0.5)
                sent += 1
        assert world.now >= began + 0.5
        return sent

    sender = world.spawn(send_until_timeout, on=A)
    world.run_until(sender.done, within="1min")
    sent = sender.result()
    # The number of sent messages is bounded by the posted receives, the staging memory and the
    # windows of TCP.
    assert 16 <= sent < 2000
    world.run_for(pause)
    for _ in range(sent):
        assert b.recv(10) == bytes(65536)
    with pytest.raises(PeerGone):
        b.recv(10)
    b.close()


@pytest.mark.parametrize("persona", [Persona.AUTO, Persona.IWARP])
@pytest.mark.parametrize(("count", "size"), [(40, 10), (2000, 1), (200, 65536), (8, 1 << 20)])
def test_messages_to_a_busy_server_arrive_complete_and_in_order(
    world: World, hosts: Hosts, count: int, size: int, persona: int
) -> None:
    a, b = hosts.connect(recv_size=max(size, 65536), persona=persona)

    def send_and_close() -> None:
        for i in range(count):
            a.send(bytes([i & 0xFF]) * size, 30)
        a.close()  # close immediately: all sent messages still arrive

    world.spawn(send_and_close, on=A)
    world.run_for("3s")
    for i in range(count):
        assert b.recv(30) == bytes([i & 0xFF]) * size
    with pytest.raises(PeerGone):
        b.recv(30)
    b.close()


# The peer sends as many messages as there are posted receives, and more messages than receives.
@pytest.mark.parametrize("count", [3, 30])
def test_messages_that_a_peer_sent_before_it_crashed_are_received(
    world: World, hosts: Hosts, count: int
) -> None:
    a, b = hosts.connect()

    def send_messages() -> None:
        for i in range(count):
            a.send(i.to_bytes(4, "big") * 10_000)

    sender = world.spawn(send_messages, on=A)
    world.run_until(sender.done)
    world.run_for("1s")
    world.crash(A)
    world.run_for("1s")
    for i in range(count):
        assert b.recv(30) == i.to_bytes(4, "big") * 10_000
    with pytest.raises(PeerGone):
        b.recv(30)
    b.close()


def test_a_crash_of_the_peer_ends_a_receive_after_half_a_round_trip(
    world: World, hosts: Hosts
) -> None:
    _a, b = hosts.connect()
    ended: list[float] = []

    def receive_until_peer_gone() -> None:
        with pytest.raises(PeerGone):
            b.recv()
        ended.append(world.now)

    world.spawn(receive_until_peer_gone, on=B)
    world.run_for("1h")
    crashed = world.now
    world.crash(A)
    world.run_for("1s")
    assert ended == [pytest.approx(crashed + 0.01, abs=1e-6)]
    b.close()


def test_a_client_can_reconnect_to_a_restarted_server(world: World, hosts: Hosts) -> None:
    a, _b = hosts.connect()
    world.crash(B)
    with pytest.raises(PeerGone):
        a.recv()
    a.close()
    with pytest.raises(PeerGone):
        siwarp.connect((B, PORT))
    hosts.b = world.restart(B)
    a, b = hosts.connect()
    a.send(b"again")
    assert b.recv() == b"again"
    a.close()
    b.close()


def test_a_short_partition_delays_a_message_and_a_long_partition_ends_the_connection(
    world: World, hosts: Hosts
) -> None:
    a, b = hosts.connect()
    world.partition(A, B)
    a.send(b"late")
    world.run_for("10min")
    world.heal()
    assert b.recv(300) == b"late"

    world.partition(A, B)
    began = world.now
    b.send(b"lost")
    with pytest.raises(PeerGone):
        b.recv(24 * 3600)
    assert 900 < world.now - began < 1000, (
        "the time differs from that of Linux's 15 retransmissions"
    )
    world.heal()
    a.close()
    b.close()


def test_waiting_connections_and_listeners_use_no_cpu_time(world: World, hosts: Hosts) -> None:
    a, b = hosts.connect()
    listener = siwarp.listen((B, PORT))
    ended: list[tuple[str, float]] = []

    def wait_in_call_until_closed(what: str, call: Callable[[], object]) -> None:
        with pytest.raises(StateError, match="closed"):
            call()
        ended.append((what, world.now))

    world.spawn(wait_in_call_until_closed, "recv", a.recv, on=A)
    world.spawn(wait_in_call_until_closed, "accept", listener.accept, on=B)
    world.run_for("1s")
    before = world.stats
    world.run_for("1000h")
    assert world.stats.switches - before.switches <= 4
    assert world.stats.rounds == before.rounds
    a.close()
    listener.close()
    world.run_for(0)
    assert {what for what, _ in ended} == {"recv", "accept"}
    assert all(at == pytest.approx(world.now, abs=0.1) for _, at in ended)
    b.close()


# ---- verbs and connection identifiers


class End:
    """A queue pair with its connection identifier, memory, completion queue and event channel."""

    def __init__(self, device: Context, cm_id: CMID | None = None) -> None:
        self.channel = CMEventChannel(device) if cm_id is None else cm_id.channel
        self.id = CMID(self.channel) if cm_id is None else cm_id
        self.pd = PD(device)
        self.cq = CQ(device, channel=CompChannel(device))
        self.mr = MR(self.pd, 4096)
        self.qp = QP(self.pd, QPInitAttr(QPType.RC, scq=self.cq, rcq=self.cq))
        self.id.bind_qp(self.qp)

    def next_event(self) -> CMEvent:
        event = self.channel.get_event()
        assert event is not None
        return event


def start_listener(device: Context, port: int = PORT) -> CMID:
    door = CMID(CMEventChannel(device))
    door.listen((device.device.addresses[0], port))
    return door


def next_connect_request(door: CMID) -> CMEvent:
    event = door.channel.get_event()
    assert event is not None and event.type == CMEventType.CONNECT_REQUEST
    return event


def test_verbs_queue_pairs_connect_exchange_a_message_and_disconnect(
    world: World, hosts: Hosts
) -> None:
    door = start_listener(hosts.b)
    a = End(hosts.a)
    rtr = RTR.FPDU | RTR.WRITE | RTR.READ
    a.id.connect((B, PORT), ConnParam(private_data=b"hello", peer_to_peer=rtr))
    request = next_connect_request(door)
    assert world.now_ns == 30 * MS
    assert request.private_data == b"hello"
    b = End(hosts.b, request.id)
    b.qp.post_recv(RecvWR(5, sg=[b.mr.sge(0, 64)]))
    b.id.accept(ConnParam(private_data=b"welcome"))
    told = a.next_event()
    assert (told.type, told.private_data) == (CMEventType.ESTABLISHED, b"welcome")
    assert world.now_ns == 40 * MS
    assert b.next_event().type == CMEventType.ESTABLISHED
    assert world.now_ns == 50 * MS, "the RTR message of the initiator has not arrived in time"
    a.mr.write(b"a message")
    a.qp.post_send(SendWR(1, sg=[a.mr.sge(0, 9)]))
    (wc,) = b.cq.wait()
    assert (wc.check().wr_id, b.mr.read(wc.byte_len)) == (5, b"a message")
    a.id.disconnect()
    assert b.next_event().type == CMEventType.DISCONNECTED
    assert a.next_event().type == CMEventType.DISCONNECTED


def test_a_rejected_connection_request_reports_the_private_data_after_two_round_trips(
    world: World, hosts: Hosts
) -> None:
    door = start_listener(hosts.b)
    a = End(hosts.a)
    a.id.connect((B, PORT))
    next_connect_request(door).id.reject(b"not today")
    told = a.next_event()
    assert world.now_ns == 40 * MS
    assert (told.type, told.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert told.private_data == b"not today"
    assert a.qp.qp_state == QPState.INIT


@pytest.mark.parametrize("timeout", [0.05, 0.2, 600.0])
def test_connecting_to_a_silent_listener_fails_at_the_timeout(
    world: World, hosts: Hosts, timeout: float
) -> None:
    door = start_listener(hosts.b)
    a = End(hosts.a)
    with expect_counter_increase("startup_timeouts", 1):
        a.id.connect((B, PORT), ConnParam(timeout=timeout))
        told = a.next_event()
    assert (told.type, told.status) == (CMEventType.UNREACHABLE, errno.ETIMEDOUT)
    assert world.now == pytest.approx(timeout, abs=2e-6)
    door.close()


@pytest.mark.clause("RFC5044-7.1.2-16", "RFC5044-7.1.2-20")
@pytest.mark.parametrize("said", [b"", b"MPA ID Req", bytes(MPARequest(rev=2))[:19]])
def test_a_silent_client_is_disconnected_and_does_not_delay_other_clients(
    world: World, hosts: Hosts, said: bytes
) -> None:
    door = start_listener(hosts.b)
    silent = world.tcp_connect(C, (B, PORT))
    silent.sendall(said)
    began = world.now
    a = End(hosts.a)
    a.id.connect((B, PORT))
    b = End(hosts.b, next_connect_request(door).id)
    b.id.accept()
    assert a.next_event().type == CMEventType.ESTABLISHED
    assert b.next_event().type == CMEventType.ESTABLISHED
    assert world.now == pytest.approx(began + 0.04, abs=1e-3)
    with expect_counter_increase("startup_timeouts", 1):
        assert silent.recv(1) == b""
    # The listener closes the connection mpa_timeout_ms (a setting) after the end of TCP's
    # handshake, and the FIN arrives one packet delay later.
    assert world.now == pytest.approx(began + 5 + 0.02, abs=1e-3)
    assert door.channel.get_event(0) is None, "an incomplete MPA Request was reported"


@pytest.mark.clause("RFC5044-7.1.2-16")
def test_single_octets_of_an_mpa_request_do_not_prolong_the_start_up_timeout(
    world: World, hosts: Hosts
) -> None:
    start_listener(hosts.b)
    slow = world.tcp_connect(C, (B, PORT))
    began = world.now

    def send_octets_slowly() -> None:
        for octet in bytes(MPARequest(rev=2))[:10]:
            slow.send(bytes([octet]))
            world.sleep(0.5)

    world.spawn(send_octets_slowly)
    with expect_counter_increase("startup_timeouts", 1):
        assert slow.recv(1) == b""
    assert world.now == pytest.approx(began + 5 + 0.02, abs=1e-3)


def accept_peer_to_peer_client(world: World, hosts: Hosts) -> tuple[TCPSocket, End]:
    """Return a plain client that still has to send an RTR, and the end that accepted it."""
    door = start_listener(hosts.b)
    client = world.tcp_connect(C, (B, PORT))
    client.sendall(bytes(MPARequest(rev=2, c=1, s=1, a=1, c_rtr=1, ird=4, ord=4)))
    request = next_connect_request(door)
    assert request.peer_to_peer & RTR.WRITE
    b = End(hosts.b, request.id)
    b.id.accept()
    octets = b""
    while len(octets) < 24:  # RFC 6581's Enhanced Data follows the frame
        octets += client.recv(24 - len(octets))
    reply = MPAReply(octets)
    assert reply.key == MPAReply().key and not reply.r
    return client, b


def test_a_responder_that_receives_no_rtr_disconnects_after_the_start_up_timeout(
    world: World, hosts: Hosts
) -> None:
    began = world.now
    client, b = accept_peer_to_peer_client(world, hosts)
    with expect_counter_increase("startup_timeouts", 1):
        told = b.next_event()
    # The Request took 20 ms with TCP's handshake, and arrived together with the handshake's last
    # segment.
    assert world.now == pytest.approx(began + 0.03 + 5, abs=1e-3)
    assert told.type == CMEventType.DISCONNECTED
    assert b.qp.qp_state == QPState.ERR
    assert client.recv(1) == b""


def test_a_connection_that_received_its_rtr_has_no_timeout(world: World, hosts: Hosts) -> None:
    client, b = accept_peer_to_peer_client(world, hosts)
    client.sendall(bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE, l=1, stag=1))))
    assert b.next_event().type == CMEventType.ESTABLISHED
    with expect_counter_increase("startup_timeouts", 0):
        world.run_for("1h")
    b.qp.post_recv(RecvWR(1, sg=[b.mr.sge(0, 64)]))
    client.sendall(bytes(FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / octet_pattern(64))))
    (wc,) = b.cq.wait()
    assert (wc.check().byte_len, b.mr.read(64)) == (64, octet_pattern(64))
    client.close()
    assert b.next_event().type == CMEventType.DISCONNECTED
    assert b.qp.qp_state == QPState.ERR


def test_a_client_that_closes_before_the_reply_causes_no_further_work(
    world: World, hosts: Hosts
) -> None:
    door = start_listener(hosts.b)
    a = End(hosts.a)
    a.id.connect((B, PORT))
    request = next_connect_request(door)
    a.id.close()
    world.run_for("1s")
    before = world.stats
    world.run_for("1000h")
    assert world.stats.instants - before.instants < 10
    assert world.stats.rounds - before.rounds < 10
    b = End(hosts.b, request.id)
    with pytest.raises(Error) as error:
        b.id.accept()
    assert error.value.errno == errno.ECONNRESET
    assert b.qp.qp_state == QPState.INIT


def test_a_refused_connection_attempt_is_repeated_until_the_time_limit(
    world: World, hosts: Hosts
) -> None:
    a = End(hosts.a)
    a.id.connect((B, PORT), ConnParam(refused=0.2))
    told = a.next_event()
    assert (told.type, told.status, told.rev) == (CMEventType.REJECTED, errno.ECONNREFUSED, 0)
    assert 0.2 <= world.now < 0.3
    assert a.qp.qp_state == QPState.INIT
    late = End(hosts.a)
    late.id.connect((B, PORT), ConnParam(refused=10.0))
    world.run_for("1s")
    door = start_listener(hosts.b)
    b = End(hosts.b, next_connect_request(door).id)
    b.id.accept()
    assert late.next_event().type == CMEventType.ESTABLISHED
    assert late.qp.qp_state == QPState.RTS
    waiting = End(hosts.a)
    waiting.id.connect((B, 9), ConnParam(refused=10.0))
    waiting.id.close()


def test_a_crash_of_the_listener_resets_a_connection_in_start_up(
    world: World, hosts: Hosts
) -> None:
    door = start_listener(hosts.b)
    a = End(hosts.a)
    a.id.connect((B, PORT), ConnParam(timeout=60.0))
    request = next_connect_request(door)
    world.crash(B)
    told = a.next_event()
    assert (told.type, told.status) == (CMEventType.CONNECT_ERROR, errno.ECONNRESET)
    assert world.now_ns == 40 * MS
    with pytest.raises(StateError) as error:
        request.id.accept()
    assert error.value.errno == errno.ESTALE


def test_closing_a_completion_queue_ends_the_wait_of_a_task(world: World, hosts: Hosts) -> None:
    a = End(hosts.a)
    ended: list[float] = []

    def wait_in_call_until_closed() -> None:
        with pytest.raises(StateError, match="closed"):
            a.cq.wait(20)
        ended.append(world.now)

    world.spawn(wait_in_call_until_closed)
    world.run_for("1s")
    a.id.close()
    a.qp.close()
    a.cq.close()
    world.run_for("1ms")
    assert ended == [pytest.approx(1, abs=1e-3)]


# ---- other interfaces to connections


@pytest.mark.parametrize("kind", ["rc", "uc", "ud", "rd"])
def test_siwarp_testing_pairs_work_on_a_simulated_device(
    world: World, hosts: Hosts, kind: Literal["rc", "uc", "ud", "rd"]
) -> None:
    with pair(kind, device=hosts.a) as (a, b):
        a.send(b"hello")
        assert b.recv() == b"hello"


def test_pyverbs_connection_identifiers_connect_and_exchange_a_message(
    world: World, hosts: Hosts
) -> None:
    cap = QPCap(max_recv_wr=1)

    def receive_by_pyverbs() -> bytes:
        here = AddrInfo(
            src=B, src_service=str(PORT), port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE
        )
        door = pyverbs.CMID(creator=here, qp_init_attr=PyverbsInit(cap=cap))
        door.listen()
        conn = door.get_request()
        mr = conn.reg_msgs(100)
        conn.post_recv(mr)
        conn.accept()
        wc = conn.get_recv_comp()
        octets = mr.read(wc.byte_len, 0)
        conn.close()
        door.close()
        return bytes(octets)

    def send_by_pyverbs() -> None:
        there = AddrInfo(src=A, dst=B, dst_service=str(PORT), port_space=ce.RDMA_PS_TCP)
        conn = pyverbs.CMID(creator=there, qp_init_attr=PyverbsInit(cap=cap))
        conn.connect()
        mr = conn.reg_msgs(100)
        mr.write(b"hello", 5)
        conn.post_send(mr)
        conn.get_send_comp()
        world.sleep(1)
        conn.close()

    server = world.spawn(receive_by_pyverbs, on=B)
    world.spawn(send_by_pyverbs, on=A)
    world.run_tasks(within="1min")
    assert server.result()[:5] == b"hello"


# ---- addresses of the host of a task


@pytest.mark.parametrize(
    ("anywhere", "there"), [("", B), ("0.0.0.0", "10.0.1.2"), ("::", "fd00::2")]
)
def test_a_listener_at_a_wildcard_address_uses_the_host_of_its_task(
    world: World, anywhere: str, there: str
) -> None:
    client, server = world.device(A, "fd00::1"), world.device(B, "10.0.1.2", "fd00::2")

    def accept_and_receive() -> tuple[str, int]:
        with siwarp.listen((anywhere, PORT)) as listener, listener.accept() as conn:
            assert conn.recv() == b"hello"
            return conn.local

    def connect_and_send() -> None:
        with siwarp.connect((there, PORT)) as conn:
            conn.send(b"hello")

    serving = world.spawn(accept_and_receive, on=server)
    world.run_for("1s")
    world.spawn(connect_and_send, on=client)
    world.run_tasks(within="1min")
    assert serving.result() == (there, PORT)


def test_a_wildcard_address_is_refused_outside_a_task_of_a_host(world: World, hosts: Hosts) -> None:
    with pytest.raises(Error, match=r"world\.spawn\(\.\.\., on=device\)"):
        siwarp.listen(("", PORT))
    world.spawn(siwarp.listen, ("::", PORT), on=B)
    with pytest.raises(Error, match="no IPv6 address: add one"):
        world.run_tasks()


def test_a_wildcard_address_means_the_only_device_of_a_world(world: World) -> None:
    world.device(B)
    peer = world.tcp_listen(A, PORT)
    with siwarp.listen(("", PORT)) as listener:
        other = world.tcp_connect(A, (B, PORT))
        assert listener.address == ("0.0.0.0", PORT)
        other.close()
    peer.close()


def test_one_connection_identifier_listens_at_several_addresses(world: World) -> None:
    client, server = world.device(A), world.device(B, "10.0.1.2")
    channel = CMEventChannel()
    door = CMID(channel)
    door.bind_addr(("0.0.0.0", 0))
    port = door.local_addr[1]
    for address in (B, "10.0.1.2"):
        door.listen_also(server, (address, port))
    every = CMID(CMEventChannel(server))
    every.listen(("", PORT), every_addr=True)
    for address in (B, "10.0.1.2"):
        a, b = End(client), End(client)
        a.id.connect((address, port))
        request = channel.get_event()
        assert request is not None and request.listen_id is door
        assert request.id.local_addr == (address, port)
        b.id.connect((address, PORT))
        assert next_connect_request(every).id.local_addr == (address, PORT)
