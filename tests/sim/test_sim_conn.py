"""siwarp.connect, siwarp.listen and siwarp.cm over simulated TCP, at exact times."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
from harness.verbs_harness import octet_pattern
from sim.rc_harness import counted

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
    """Two hosts with a packet delay of 10 ms."""

    world: World
    a: Context
    b: Context

    def connected(self, **more: int) -> tuple[Connection, Connection]:
        """Return both ends of a connection: a's end, then b's."""
        with siwarp.listen((B, PORT), **more) as listener:
            server = self.world.spawn(listener.accept, on=B)
            client = self.world.spawn(siwarp.connect, (B, PORT), on=A, **more)
            self.world.run_until(lambda: server.done() and client.done())
            return client.result(), server.result()


@pytest.fixture
def hosts(world: World) -> Hosts:
    world.faults("delay=10ms")
    return Hosts(world, world.device(A), world.device(B))


# ---- siwarp.connect and siwarp.listen


def test_a_connection_takes_two_round_trips_and_a_message_half_of_one(
    world: World, hosts: Hosts
) -> None:
    listener = siwarp.listen((B, PORT))

    def serve() -> None:
        with listener.accept(private_data=b"welcome") as conn:
            assert (conn.private_data, conn.peer[0]) == (b"hello", A)
            assert conn.recv() == b"one"
            assert world.now_ns == 50 * MS
            conn.send(b"two")

    def use() -> None:
        with siwarp.connect((B, PORT), private_data=b"hello") as conn:
            assert world.now_ns == 40 * MS
            assert (conn.private_data, conn.local[0], conn.peer) == (b"welcome", A, (B, PORT))
            conn.send(b"one")
            assert conn.recv() == b"two"
            assert world.now_ns == 60 * MS

    world.spawn(serve, on=B)
    world.spawn(use, on=A)
    world.run_tasks(within="1min")
    listener.close()


def test_memory_of_the_peer_is_written_and_read_across_a_bad_network(
    world: World, hosts: Hosts
) -> None:
    world.faults("loss=3%,reorder=3%,delay=5ms,jitter=2ms")
    listener = siwarp.listen((B, PORT))
    octets = bytes(range(256)) * 1024

    def serve() -> bytes:
        with listener.accept() as conn:
            mr = conn.register(len(octets))
            conn.send(mr.remote().pack())
            assert conn.recv() == b"done"
            return bytes(mr.read(len(octets)))

    def use() -> None:
        with siwarp.connect((B, PORT)) as conn:
            remote = RemoteBuffer.unpack(conn.recv())
            conn.write(remote, octets)
            assert conn.read(remote) == octets
            conn.send(b"done")

    server = world.spawn(serve, on=B)
    world.spawn(use, on=A)
    world.run_tasks(within="10min")
    assert server.result() == octets
    assert world.stats.lost > 0
    listener.close()


@pytest.mark.parametrize("silent", ["host", "program"])
def test_a_listener_that_does_not_answer_is_given_up_in_time(
    world: World, hosts: Hosts, silent: str
) -> None:
    door = CMID(CMEventChannel(hosts.b))
    door.listen((B, PORT))  # a listener that never accepts the requests it receives
    if silent == "host":
        world.partition(A, B)
    with counted("startup_timeouts", 1), pytest.raises(PeerGone):
        siwarp.connect((B, PORT), timeout=0.5)
    assert world.now == pytest.approx(0.5, abs=2e-6)


def test_where_nobody_listens_is_known_after_a_round_trip(world: World, hosts: Hosts) -> None:
    with pytest.raises(PeerGone, match=r"connecting to 10\.0\.0\.2 port 7000"):
        siwarp.connect((B, PORT))
    assert world.now_ns == 20 * MS


def test_accepting_ends_at_its_time(world: World, hosts: Hosts) -> None:
    with siwarp.listen((B, PORT)) as listener, pytest.raises(Timeout, match=r"within 0\.25 s"):
        listener.accept(0.25)
    assert world.now == pytest.approx(0.25, abs=3e-6)


# pauses within the time for which a closing end waits, and beyond it
@pytest.mark.parametrize("pause", [0, 3])
def test_a_peer_that_takes_nothing_holds_up_its_sender_and_a_timeout_ends_that(
    world: World, hosts: Hosts, pause: float
) -> None:
    a, b = hosts.connected()

    def send() -> int:
        sent = 0
        with pytest.raises(Timeout, match="the peer may not be receiving"):
            while True:
                began = world.now
                a.send(bytes(65536), 0.5)
                sent += 1
        assert world.now >= began + 0.5
        return sent

    sender = world.spawn(send, on=A)
    world.run_until(sender.done, within="1min")
    sent = sender.result()
    # bounded by the number of receives, the staging memory and TCP's windows
    assert 16 <= sent < 2000
    world.run_for(pause)
    for _ in range(sent):
        assert b.recv(10) == bytes(65536)
    with pytest.raises(PeerGone):
        b.recv(10)
    b.close()


@pytest.mark.parametrize("persona", [Persona.AUTO, Persona.IWARP])
@pytest.mark.parametrize(("count", "size"), [(40, 10), (2000, 1), (200, 65536), (8, 1 << 20)])
def test_what_is_sent_to_a_busy_server_arrives_whole_and_in_order(
    world: World, hosts: Hosts, count: int, size: int, persona: int
) -> None:
    a, b = hosts.connected(recv_size=max(size, 65536), persona=persona)

    def send() -> None:
        for i in range(count):
            a.send(bytes([i & 0xFF]) * size, 30)
        a.close()  # close immediately: all sent messages still arrive

    world.spawn(send, on=A)
    world.run_for("3s")
    for i in range(count):
        assert b.recv(30) == bytes([i & 0xFF]) * size
    with pytest.raises(PeerGone):
        b.recv(30)
    b.close()


# as many messages as there are posted receives, and more
@pytest.mark.parametrize("count", [3, 30])
def test_what_a_peer_sent_before_it_crashed_arrives_first(
    world: World, hosts: Hosts, count: int
) -> None:
    a, b = hosts.connected()

    def send() -> None:
        for i in range(count):
            a.send(i.to_bytes(4, "big") * 10_000)

    sender = world.spawn(send, on=A)
    world.run_until(sender.done)
    world.run_for("1s")
    world.crash(A)
    world.run_for("1s")
    for i in range(count):
        assert b.recv(30) == i.to_bytes(4, "big") * 10_000
    with pytest.raises(PeerGone):
        b.recv(30)
    b.close()


def test_a_peer_that_crashes_ends_the_wait_for_it_after_half_a_round_trip(
    world: World, hosts: Hosts
) -> None:
    _a, b = hosts.connected()
    ended: list[float] = []

    def receive() -> None:
        with pytest.raises(PeerGone):
            b.recv()
        ended.append(world.now)

    world.spawn(receive, on=B)
    world.run_for("1h")
    crashed = world.now
    world.crash(A)
    world.run_for("1s")
    assert ended == [pytest.approx(crashed + 0.01, abs=1e-6)]
    b.close()


def test_a_server_that_restarts_is_connected_to_again(world: World, hosts: Hosts) -> None:
    a, _b = hosts.connected()
    world.crash(B)
    with pytest.raises(PeerGone):
        a.recv()
    a.close()
    with pytest.raises(PeerGone):
        siwarp.connect((B, PORT))
    hosts.b = world.restart(B)
    a, b = hosts.connected()
    a.send(b"again")
    assert b.recv() == b"again"
    a.close()
    b.close()


def test_a_partition_of_an_hour_delays_a_message_and_one_of_a_day_ends_the_connection(
    world: World, hosts: Hosts
) -> None:
    a, b = hosts.connected()
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
    assert 900 < world.now - began < 1000, "Linux's 15 retransmissions"
    world.heal()
    a.close()
    b.close()


def test_a_connection_and_a_listener_that_wait_do_not_run(world: World, hosts: Hosts) -> None:
    a, b = hosts.connected()
    listener = siwarp.listen((B, PORT))
    ended: list[tuple[str, float]] = []

    def wait(what: str, call: Callable[[], object]) -> None:
        with pytest.raises(StateError, match="closed"):
            call()
        ended.append((what, world.now))

    world.spawn(wait, "recv", a.recv, on=A)
    world.spawn(wait, "accept", listener.accept, on=B)
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


# ---- verbs and connection ids


class End:
    """A queue pair with its id and the objects it needs, on a separate event channel."""

    def __init__(self, device: Context, cm_id: CMID | None = None) -> None:
        self.channel = CMEventChannel(device) if cm_id is None else cm_id.channel
        self.id = CMID(self.channel) if cm_id is None else cm_id
        self.pd = PD(device)
        self.cq = CQ(device, channel=CompChannel(device))
        self.mr = MR(self.pd, 4096)
        self.qp = QP(self.pd, QPInitAttr(QPType.RC, scq=self.cq, rcq=self.cq))
        self.id.bind_qp(self.qp)

    def event(self) -> CMEvent:
        event = self.channel.get_event()
        assert event is not None
        return event


def listen(device: Context, port: int = PORT) -> CMID:
    door = CMID(CMEventChannel(device))
    door.listen((device.device.addresses[0], port))
    return door


def request_of(door: CMID) -> CMEvent:
    event = door.channel.get_event()
    assert event is not None and event.type == CMEventType.CONNECT_REQUEST
    return event


def test_the_verbs_connect_talk_and_disconnect(world: World, hosts: Hosts) -> None:
    door = listen(hosts.b)
    a = End(hosts.a)
    rtr = RTR.FPDU | RTR.WRITE | RTR.READ
    a.id.connect((B, PORT), ConnParam(private_data=b"hello", peer_to_peer=rtr))
    request = request_of(door)
    assert world.now_ns == 30 * MS
    assert request.private_data == b"hello"
    b = End(hosts.b, request.id)
    b.qp.post_recv(RecvWR(5, sg=[b.mr.sge(0, 64)]))
    b.id.accept(ConnParam(private_data=b"welcome"))
    told = a.event()
    assert (told.type, told.private_data) == (CMEventType.ESTABLISHED, b"welcome")
    assert world.now_ns == 40 * MS
    assert b.event().type == CMEventType.ESTABLISHED
    assert world.now_ns == 50 * MS, "the RTR of the initiator"
    a.mr.write(b"a message")
    a.qp.post_send(SendWR(1, sg=[a.mr.sge(0, 9)]))
    (wc,) = b.cq.wait()
    assert (wc.check().wr_id, b.mr.read(wc.byte_len)) == (5, b"a message")
    a.id.disconnect()
    assert b.event().type == CMEventType.DISCONNECTED
    assert a.event().type == CMEventType.DISCONNECTED


def test_who_is_rejected_is_told_why_after_two_round_trips(world: World, hosts: Hosts) -> None:
    door = listen(hosts.b)
    a = End(hosts.a)
    a.id.connect((B, PORT))
    request_of(door).id.reject(b"not today")
    told = a.event()
    assert world.now_ns == 40 * MS
    assert (told.type, told.status) == (CMEventType.REJECTED, errno.ECONNREFUSED)
    assert told.private_data == b"not today"
    assert a.qp.qp_state == QPState.INIT


@pytest.mark.parametrize("timeout", [0.05, 0.2, 600.0])
def test_a_silent_listener_is_given_up_in_time(world: World, hosts: Hosts, timeout: float) -> None:
    door = listen(hosts.b)
    a = End(hosts.a)
    with counted("startup_timeouts", 1):
        a.id.connect((B, PORT), ConnParam(timeout=timeout))
        told = a.event()
    assert (told.type, told.status) == (CMEventType.UNREACHABLE, errno.ETIMEDOUT)
    assert world.now == pytest.approx(timeout, abs=2e-6)
    door.close()


@pytest.mark.clause("RFC5044-7.1.2-16", "RFC5044-7.1.2-20")
@pytest.mark.parametrize("said", [b"", b"MPA ID Req", bytes(MPARequest(rev=2))[:19]])
def test_a_silent_client_is_given_up_and_others_are_served_meanwhile(
    world: World, hosts: Hosts, said: bytes
) -> None:
    door = listen(hosts.b)
    silent = world.tcp_connect(C, (B, PORT))
    silent.sendall(said)
    began = world.now
    a = End(hosts.a)
    a.id.connect((B, PORT))
    b = End(hosts.b, request_of(door).id)
    b.id.accept()
    assert a.event().type == CMEventType.ESTABLISHED
    assert b.event().type == CMEventType.ESTABLISHED
    assert world.now == pytest.approx(began + 0.04, abs=1e-3)
    with counted("startup_timeouts", 1):
        assert silent.recv(1) == b""
    # Setting mpa_timeout_ms, counted from the end of TCP's handshake, plus the delay of the FIN.
    assert world.now == pytest.approx(began + 5 + 0.02, abs=1e-3)
    assert door.channel.get_event(0) is None, "nobody is told of a Request that never was whole"


@pytest.mark.clause("RFC5044-7.1.2-16")
def test_an_octet_now_and_then_does_not_prolong_start_up(world: World, hosts: Hosts) -> None:
    listen(hosts.b)
    slow = world.tcp_connect(C, (B, PORT))
    began = world.now

    def drip() -> None:
        for octet in bytes(MPARequest(rev=2))[:10]:
            slow.send(bytes([octet]))
            world.sleep(0.5)

    world.spawn(drip)
    with counted("startup_timeouts", 1):
        assert slow.recv(1) == b""
    assert world.now == pytest.approx(began + 5 + 0.02, abs=1e-3)


def peer_to_peer(world: World, hosts: Hosts) -> tuple[TCPSocket, End]:
    """Return a plain client that still has to send an RTR, and the end that accepted it."""
    door = listen(hosts.b)
    client = world.tcp_connect(C, (B, PORT))
    client.sendall(bytes(MPARequest(rev=2, c=1, s=1, a=1, c_rtr=1, ird=4, ord=4)))
    request = request_of(door)
    assert request.peer_to_peer & RTR.WRITE
    b = End(hosts.b, request.id)
    b.id.accept()
    octets = b""
    while len(octets) < 24:  # RFC 6581's Enhanced Data follows the frame
        octets += client.recv(24 - len(octets))
    reply = MPAReply(octets)
    assert reply.key == MPAReply().key and not reply.r
    return client, b


def test_a_responder_does_not_wait_for_an_rtr_for_ever(world: World, hosts: Hosts) -> None:
    began = world.now
    client, b = peer_to_peer(world, hosts)
    with counted("startup_timeouts", 1):
        told = b.event()
    # The Request took 20 ms with TCP's handshake, and arrived together with its last segment.
    assert world.now == pytest.approx(began + 0.03 + 5, abs=1e-3)
    assert told.type == CMEventType.DISCONNECTED
    assert b.qp.qp_state == QPState.ERR
    assert client.recv(1) == b""


def test_a_connection_that_got_its_rtr_has_all_the_time_there_is(
    world: World, hosts: Hosts
) -> None:
    client, b = peer_to_peer(world, hosts)
    client.sendall(bytes(FPDU(ulpdu=DDPTagged(opcode=Opcode.RDMA_WRITE, l=1, stag=1))))
    assert b.event().type == CMEventType.ESTABLISHED
    with counted("startup_timeouts", 0):
        world.run_for("1h")
    b.qp.post_recv(RecvWR(1, sg=[b.mr.sge(0, 64)]))
    client.sendall(bytes(FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / octet_pattern(64))))
    (wc,) = b.cq.wait()
    assert (wc.check().byte_len, b.mr.read(64)) == (64, octet_pattern(64))
    client.close()
    assert b.event().type == CMEventType.DISCONNECTED
    assert b.qp.qp_state == QPState.ERR


def test_a_client_that_leaves_before_the_answer_costs_nothing(world: World, hosts: Hosts) -> None:
    door = listen(hosts.b)
    a = End(hosts.a)
    a.id.connect((B, PORT))
    request = request_of(door)
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


def test_a_refused_connect_is_tried_again_for_as_long_as_it_says(
    world: World, hosts: Hosts
) -> None:
    a = End(hosts.a)
    a.id.connect((B, PORT), ConnParam(refused=0.2))
    told = a.event()
    assert (told.type, told.status, told.rev) == (CMEventType.REJECTED, errno.ECONNREFUSED, 0)
    assert 0.2 <= world.now < 0.3
    assert a.qp.qp_state == QPState.INIT
    late = End(hosts.a)
    late.id.connect((B, PORT), ConnParam(refused=10.0))
    world.run_for("1s")
    door = listen(hosts.b)
    b = End(hosts.b, request_of(door).id)
    b.id.accept()
    assert late.event().type == CMEventType.ESTABLISHED
    assert late.qp.qp_state == QPState.RTS
    waiting = End(hosts.a)
    waiting.id.connect((B, 9), ConnParam(refused=10.0))
    waiting.id.close()


def test_a_start_up_whose_listener_crashes_is_reset(world: World, hosts: Hosts) -> None:
    door = listen(hosts.b)
    a = End(hosts.a)
    a.id.connect((B, PORT), ConnParam(timeout=60.0))
    request = request_of(door)
    world.crash(B)
    told = a.event()
    assert (told.type, told.status) == (CMEventType.CONNECT_ERROR, errno.ECONNRESET)
    assert world.now_ns == 40 * MS
    with pytest.raises(StateError) as error:
        request.id.accept()
    assert error.value.errno == errno.ESTALE


def test_closing_a_queue_ends_the_wait_of_a_task(world: World, hosts: Hosts) -> None:
    a = End(hosts.a)
    ended: list[float] = []

    def wait() -> None:
        with pytest.raises(StateError, match="closed"):
            a.cq.wait(20)
        ended.append(world.now)

    world.spawn(wait)
    world.run_for("1s")
    a.id.close()
    a.qp.close()
    a.cq.close()
    world.run_for("1ms")
    assert ended == [pytest.approx(1, abs=1e-3)]


# ---- other interfaces to connections


@pytest.mark.parametrize("kind", ["rc", "uc", "ud", "rd"])
def test_the_pairs_of_siwarp_testing_work_on_a_device_of_a_world(
    world: World, hosts: Hosts, kind: Literal["rc", "uc", "ud", "rd"]
) -> None:
    with pair(kind, device=hosts.a) as (a, b):
        a.send(b"hello")
        assert b.recv() == b"hello"


def test_pyverbs_connects_by_cmid(world: World, hosts: Hosts) -> None:
    cap = QPCap(max_recv_wr=1)

    def serve() -> bytes:
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

    def use() -> None:
        there = AddrInfo(src=A, dst=B, dst_service=str(PORT), port_space=ce.RDMA_PS_TCP)
        conn = pyverbs.CMID(creator=there, qp_init_attr=PyverbsInit(cap=cap))
        conn.connect()
        mr = conn.reg_msgs(100)
        mr.write(b"hello", 5)
        conn.post_send(mr)
        conn.get_send_comp()
        world.sleep(1)
        conn.close()

    server = world.spawn(serve, on=B)
    world.spawn(use, on=A)
    world.run_tasks(within="1min")
    assert server.result()[:5] == b"hello"


# ---- addresses of a task's host


@pytest.mark.parametrize(
    ("anywhere", "there"), [("", B), ("0.0.0.0", "10.0.1.2"), ("::", "fd00::2")]
)
def test_a_wildcard_address_is_that_of_the_tasks_host(
    world: World, anywhere: str, there: str
) -> None:
    client, server = world.device(A, "fd00::1"), world.device(B, "10.0.1.2", "fd00::2")

    def serve() -> tuple[str, int]:
        with siwarp.listen((anywhere, PORT)) as listener, listener.accept() as conn:
            assert conn.recv() == b"hello"
            return conn.local

    def use() -> None:
        with siwarp.connect((there, PORT)) as conn:
            conn.send(b"hello")

    serving = world.spawn(serve, on=server)
    world.run_for("1s")
    world.spawn(use, on=client)
    world.run_tasks(within="1min")
    assert serving.result() == (there, PORT)


def test_a_wildcard_address_needs_a_task_of_a_host(world: World, hosts: Hosts) -> None:
    with pytest.raises(Error, match=r"world\.spawn\(\.\.\., on=device\)"):
        siwarp.listen(("", PORT))
    world.spawn(siwarp.listen, ("::", PORT), on=B)
    with pytest.raises(Error, match="no IPv6 address: add one"):
        world.run_tasks()


def test_a_wildcard_address_is_the_only_devices_beside_peers_without_one(world: World) -> None:
    world.device(B)
    peer = world.tcp_listen(A, PORT)
    with siwarp.listen(("", PORT)) as listener:
        other = world.tcp_connect(A, (B, PORT))
        assert listener.address == ("0.0.0.0", PORT)
        other.close()
    peer.close()


def test_one_id_listens_at_several_addresses(world: World) -> None:
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
        assert request_of(every).id.local_addr == (address, PORT)
