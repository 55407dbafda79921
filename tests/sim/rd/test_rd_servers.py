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
from siwarp.cli.ping_client import ANSWER, REQUEST
from siwarp.cli.ping_server import serve_pings
from siwarp.inspect import Opcode
from siwarp.inspect.rd import RDFlag, RDType, make_ack_body

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


def same_address_for_attackers(i: int) -> str:
    return "10.0.0.9"


def good_client_address(i: int) -> str:
    return GOOD_CLIENT


def separate_attacker_address(i: int) -> str:
    return f"10.1.{i // 200}.{1 + i % 200}"


with_each_crowd_size = pytest.mark.parametrize(
    ("n", "where"),
    [
        (200, same_address_for_attackers),
        (200, good_client_address),
        (300, separate_attacker_address),
    ],
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
        one.send_request(REQUEST + b"uestion")

    def send_keepalives() -> None:
        while True:
            world.sleep(0.2)
            for one in crowd:
                one.send_keepalive()

    world.spawn(send_keepalives)


def start_ping_server(world: siwarp.sim.World) -> tuple[str, int]:
    """Start the RD server of `siwarp ping` in a task of the world, and return its address."""
    bound: list[tuple[str, int]] = []

    def record_address(address: tuple[str, int], qkey: int) -> None:
        bound.append(address)

    serving = serve_pings("rd", (SERVER, 0), record_address)
    world.spawn(world.run, serving, on=world.device(SERVER))
    world.run_until(lambda: bool(bound), within="1min")
    return bound[0]


@pytest.mark.clause("DGRAM-FAIR-2", "DGRAM-FAIR-3")
@with_each_crowd_size
@with_each_attack
def test_an_attacked_ping_server_answers_a_good_client(
    world: siwarp.sim.World, n: int, where: Callable[[int], str], how: str
) -> None:
    server = start_ping_server(world)
    there = create_rig(world, GOOD_CLIENT)
    start_attack(world, server, n, where, how)
    for i in range(3):
        began = net.now()
        answer = request_answer_as_new_client(there, server, REQUEST + b"%d" % i)
        assert answer == ANSWER + b"%d" % i
        assert net.now() - began < SERVICE_LIMIT_S


def create_rig(world: siwarp.sim.World, address: str) -> Rig:
    """Create a device for a client on a separate host."""
    world.device(address)
    return Rig(address)


def request_answer_as_new_client(rig: Rig, server: tuple[str, int], octets: bytes) -> bytes:
    """Send a request from a new client, and return the answer of the server."""
    client = RDEnd(rig, host=GOOD_CLIENT)
    client.post_receive()
    client.send(SimpleNamespace(qp=SimpleNamespace(addr=server)), octets)  # type: ignore[arg-type]
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
