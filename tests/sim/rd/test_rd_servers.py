"""RD servers with peers that accept no answers: a good client is serviced within one second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import net
import pytest
from harness.rd_harness import QKEY, RDEnd
from harness.rd_stranger import ScriptedRDPeer
from harness.verbs_harness import Rig
from unit.llp.conftest import temporary_setting

import siwarp.sim
from siwarp import aio
from siwarp.cli.ping_client import ANSWER, MAX_SIZE, MEMORY, REQUEST, PingRequest
from siwarp.cli.ping_server import DatagramServer, Loans
from siwarp.inspect import Opcode
from siwarp.inspect.rd import RDFlag, RDType, make_ack_body
from siwarp.verbs import RemoteBuffer, WROpcode

SERVER, GOOD_CLIENT = "10.0.0.5", "10.0.0.2"
#: Seconds within which a good client receives its answer.
SERVICE_LIMIT_S = 1.0


class Attacker(ScriptedRDPeer):
    """A peer that sends a request but accepts no answer; ``how`` selects its replies, if any."""

    def __init__(self, to: tuple[str, int], source: str, how: str) -> None:
        super().__init__(SimpleNamespace(qp=SimpleNamespace(addr=to)), host=source)  # type: ignore[arg-type]
        self.how = how
        self.connect()

    def send_request(self, octets: bytes) -> None:
        body = self.build_untagged(Opcode.SEND, octets)
        self.send_datagram(RDType.DATA, psn=self.psn[0], body=body, credit=self.credit)
        self.psn[0] += 1

    @property
    def credit(self) -> int:
        return 4096 if self.how == "acknowledges nothing" else 0

    def send_keepalive(self) -> None:
        if self.how == "is not ready":
            not_ready = int(RDFlag.NOT_READY)
            self.send_datagram(
                RDType.ACK, credit=0, rd_flags=not_ready, body=make_ack_body(rnr_timer=0)
            )
        else:
            self.send_datagram(RDType.PROBE, credit=self.credit)


def shared_attacker_address(i: int) -> str:
    return "10.0.0.9"


def good_client_address(i: int) -> str:
    return GOOD_CLIENT


def separate_attacker_address(i: int) -> str:
    return f"10.1.{i // 200}.{1 + i % 200}"


with_each_crowd_size = pytest.mark.parametrize(
    ("n", "where"),
    [(200, shared_attacker_address), (200, good_client_address), (300, separate_attacker_address)],
)
with_each_attack = pytest.mark.parametrize(
    "how", ["grants no credit", "is not ready", "acknowledges nothing"]
)


@pytest.fixture(autouse=True)
def _use_common_qkey() -> Iterator[None]:
    with temporary_setting("qkey", QKEY):
        yield


def start_attack(
    world: siwarp.sim.World, to: tuple[str, int], n: int, where: Callable[[int], str], how: str
) -> None:
    """Let ``n`` attackers send one request each and stay alive forever."""
    crowd = [Attacker(to, where(i), how) for i in range(n)]
    for one in crowd:
        one.send_request(bytes([REQUEST]) + b"uestion")

    def send_keepalives() -> None:
        while True:
            world.sleep(0.2)
            for one in crowd:
                one.send_keepalive()

    world.spawn(send_keepalives)


def start_ping_server(world: siwarp.sim.World) -> DatagramServer:
    """Start the RD server of `siwarp ping` in a task of the world."""
    server = DatagramServer(world.device(SERVER), (SERVER, 0), "rd")

    def handle_completions() -> None:
        wait: float | None = None
        while True:
            wait = server.process_completions(
                server.cq.wait(timeout=wait if wait is not None else 3600.0)
            )

    world.spawn(handle_completions)
    return server


@pytest.mark.clause("DGRAM-FAIR-2", "DGRAM-FAIR-3")
@with_each_crowd_size
@with_each_attack
def test_an_attacked_ping_server_answers_a_good_client(
    world: siwarp.sim.World, n: int, where: Callable[[int], str], how: str
) -> None:
    server = start_ping_server(world)
    there = create_rig(world, GOOD_CLIENT)
    start_attack(world, server.address, n, where, how)
    for i in range(3):
        began = net.now()
        answer = request_answer_as_new_client(there, server, bytes([REQUEST]) + b"%d" % i)
        assert answer == bytes([ANSWER]) + b"%d" % i
        assert net.now() - began < SERVICE_LIMIT_S


def create_rig(world: siwarp.sim.World, address: str) -> Rig:
    """Create a device for a client on a separate host."""
    world.device(address)
    return Rig(address)


def request_answer_as_new_client(rig: Rig, server: DatagramServer, octets: bytes) -> bytes:
    """Send a request from a new client, and return the answer of the server."""
    client = RDEnd(rig, host=GOOD_CLIENT)
    client.post_receive()
    client.send(SimpleNamespace(qp=SimpleNamespace(addr=server.address)), octets)  # type: ignore[arg-type]
    (wc,) = client.poll_receives()
    answer = client.into.read(wc.check().byte_len)
    client.qp.close()
    return answer


@pytest.mark.clause("DGRAM-FAIR-2", "DGRAM-FAIR-3")
@with_each_crowd_size
@with_each_attack
def test_an_attacked_asyncio_server_answers_a_good_client(
    world: siwarp.sim.World, n: int, where: Callable[[int], str], how: str
) -> None:
    to = (SERVER, 7000)

    async def answer_requests() -> None:
        tasks: set[Any] = set()
        async with aio.open_rd(to, qkey=QKEY) as end:
            async for asked in end:
                task = asyncio.ensure_future(end.send(asked.data, asked.source))
                tasks.add(task)
                task.add_done_callback(lambda t: (tasks.discard(t), t.exception()))

    async def ask_questions_and_check_answers() -> None:
        for i in range(3):
            began = net.now()
            async with aio.open_rd((GOOD_CLIENT, 0), qkey=QKEY) as client:
                await client.send(b"question %d" % i, to)
                assert (await client.recv()).data == b"question %d" % i
            assert net.now() - began < SERVICE_LIMIT_S

    device, there = world.device(SERVER), world.device(GOOD_CLIENT)
    world.spawn(world.run, answer_requests(), on=device)
    net.sleep(0.1)
    start_attack(world, to, n, where, how)
    good = world.spawn(world.run, ask_questions_and_check_answers(), on=there)
    world.run_until(good.done, within="1min")
    good.result()


# ---- memory that a ping server lends to clients


def borrow_server_memory(
    rig: Rig, server: DatagramServer, size: int
) -> tuple[RDEnd, RemoteBuffer | None]:
    """Request memory as a new client; return the client and the memory that the client may use."""
    client = RDEnd(rig, size=1 << 12, host=rig.ctx.device.addresses[0])
    client.post_receive()
    client.send(
        SimpleNamespace(qp=SimpleNamespace(addr=server.address)),  # type: ignore[arg-type]
        bytes([MEMORY]) + PingRequest("write", size).pack(),
    )
    (wc,) = client.poll_receives()
    answer = client.into.read(wc.check().byte_len)
    assert client.poll_sends()[0].ok
    return client, RemoteBuffer.unpack(answer[1:]) if len(answer) > 1 else None


def write_borrowed_memory_succeeds(
    client: RDEnd, server: DatagramServer, there: RemoteBuffer, count: int
) -> bool:
    """Write the last octet of the borrowed memory; return whether the Write succeeded."""
    client.out.view[0] = count
    to = SimpleNamespace(qp=SimpleNamespace(addr=server.address))
    last = there.part(there.length - 1, 1)
    client.post_rdma(to, WROpcode.RDMA_WRITE, 1, remote=last)  # type: ignore[arg-type]
    return client.poll_sends()[0].ok


def test_borrowed_memory_in_use_is_never_revoked_and_greedy_sources_leave_a_part(
    world: siwarp.sim.World,
) -> None:
    server = start_ping_server(world)
    good = create_rig(world, GOOD_CLIENT)
    client, loan = borrow_server_memory(good, server, 64)
    assert loan is not None
    for i in range(5):
        greedy = create_rig(world, f"10.0.1.{i + 1}")
        for _ in range(8):
            borrow_server_memory(greedy, server, MAX_SIZE)
            borrow_server_memory(greedy, server, 1 << 20)
        assert write_borrowed_memory_succeeds(client, server, loan, i + 1)
    began = net.now()
    newcomer, other = borrow_server_memory(create_rig(world, "10.0.0.3"), server, 64)
    assert other is not None and write_borrowed_memory_succeeds(newcomer, server, other, 1)
    # A request for too much memory is refused immediately.
    assert borrow_server_memory(create_rig(world, "10.0.0.4"), server, MAX_SIZE)[1] is None
    assert net.now() - began < SERVICE_LIMIT_S
    assert write_borrowed_memory_succeeds(client, server, loan, 9)


def test_borrowed_memory_is_freed_when_it_is_returned_or_remains_unused(
    world: siwarp.sim.World,
) -> None:
    server = start_ping_server(world)
    good = create_rig(world, GOOD_CLIENT)
    client, loan = borrow_server_memory(good, server, MAX_SIZE)
    assert loan is not None
    assert borrow_server_memory(good, server, MAX_SIZE)[1] is not None
    assert borrow_server_memory(good, server, MAX_SIZE)[1] is None, (
        "a source was lent more than half of the memory"
    )
    client.send(SimpleNamespace(qp=SimpleNamespace(addr=server.address)), bytes([MEMORY]))  # type: ignore[arg-type]
    assert client.poll_sends()[0].ok
    client, loan = borrow_server_memory(good, server, MAX_SIZE)
    assert loan is not None, "the returned memory was not lent again"
    for i in range(int(Loans.IDLE) + 2):
        net.sleep(1.0)
        assert write_borrowed_memory_succeeds(client, server, loan, i + 1)
    assert borrow_server_memory(good, server, MAX_SIZE)[1] is not None, (
        "the unused memory was not lent again"
    )
    assert write_borrowed_memory_succeeds(client, server, loan, 99)


def test_a_request_for_zero_octets_of_memory_is_refused_and_the_next_request_succeeds(
    world: siwarp.sim.World,
) -> None:
    server = start_ping_server(world)
    good = create_rig(world, GOOD_CLIENT)
    assert borrow_server_memory(good, server, 0)[1] is None
    assert borrow_server_memory(good, server, 64)[1] is not None
