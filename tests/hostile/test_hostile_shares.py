"""Peers that occupy resources: good clients are served meanwhile, from any address.

The attackers are plain sockets, at the address of the good client and at another address. The
targets are `siwarp ping --server`, a server of siwarp.aio, and a listener for UD queue pairs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.cli_harness import run_ping_server
from harness.rd_harness import QKEY
from harness.rd_stranger import ScriptedRDPeer
from harness.verbs_harness import Rig, temporary_settings
from pace import scale_limit
from unit.cm.ud_harness import SidrEndpoints, build_sidr_query, plain_udp_socket

from siwarp import aio
from siwarp.cli.ping_client import Pinger
from siwarp.cm import CMEventType
from siwarp.inspect import Opcode
from siwarp.inspect.rd import RDFlag, RDType, make_ack_body

Address = tuple[str, int]
#: The time limit in seconds for serving a good client.
SERVED = 1.0


class Attacker(ScriptedRDPeer):
    """An attacker at a given source address that has completed the RD handshake with the server."""

    def __init__(self, to: Address, source: str) -> None:
        super().__init__(SimpleNamespace(qp=SimpleNamespace(addr=to)), host=source)  # type: ignore[arg-type]
        self.connect()

    def send_segment(self, octets: bytes, **fields: Any) -> None:
        """Send one segment of a message, and ignore all replies."""
        body = self.build_untagged(Opcode.SEND, octets, **fields)
        self.send_datagram(RDType.DATA, psn=self.psn[0], body=body, credit=max(self.credit, 0))
        self.psn[0] += 1

    def send_keepalive(self) -> None:
        """Send a datagram that shows that the attacker is alive."""
        if self.credit >= 0:
            self.send_datagram(RDType.PROBE, credit=self.credit)
        else:
            self.send_datagram(
                RDType.ACK, credit=0, rd_flags=RDFlag.NOT_READY, body=make_ack_body(rnr_timer=0)
            )

    #: The credit that the attacker grants; -1 stands for the state "not ready", without credit.
    credit = 4096


@contextlib.contextmanager
def connect_attackers(
    n: int, to: Address, source: str, credit: int = 4096
) -> Iterator[list[Attacker]]:
    """Create this number of attackers, and close them at the end of the block."""
    with contextlib.ExitStack() as stack:
        made = []
        for i in range(n):
            at = f"127.0.{1 + i // 200}.{1 + i % 200}" if n == 300 else source
            made.append(Attacker(to, at))
            made[-1].credit = credit
            stack.callback(made[-1].close)
        yield made


def send_without_acknowledging(attackers: list[Attacker]) -> None:
    """Send requests from each attacker, which acknowledges no answers."""
    for one in attackers:
        for _ in range(max(1, 150 // len(attackers))):
            one.send_segment(b"Question")


def send_partial_messages(attackers: list[Attacker]) -> None:
    """Send the beginning of a message from each attacker."""
    for one in attackers:
        one.send_segment(b"Q" + bytes(500), l=0)


def send_segments_after_psn_gap(attackers: list[Attacker]) -> None:
    """Send segments after a segment that is never sent, from each attacker."""
    for one in attackers:
        one.psn[0] += 1
        for _ in range(40):
            one.send_segment(b"Q" + bytes(1000))


#: For each attack: its function, the number of attackers, and the credit that they grant.
ATTACKS: dict[str, tuple[Callable[[list[Attacker]], None], int, int]] = {
    "no credit": (send_without_acknowledging, 1, 0),
    "no acknowledgement": (send_without_acknowledging, 1, 4096),
    "no credit of many": (send_without_acknowledging, 70, 0),
    "no credit for one answer each": (send_without_acknowledging, 200, 0),
    "not ready for one answer each": (send_without_acknowledging, 200, -1),
    "no credit at 300 addresses": (send_without_acknowledging, 300, 0),
    "half a message": (send_partial_messages, 70, 4096),
    "a gap": (send_segments_after_psn_gap, 60, 4096),
}
for_each_source_address = pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.9"])
for_each_attack = pytest.mark.parametrize("attack", ATTACKS)


@contextlib.contextmanager
def run_attack(attack: str, to: Address, source: str) -> Iterator[None]:
    """Run an attack during the block; the attackers send keepalive datagrams, as live peers do."""
    do, n, credit = ATTACKS[attack]
    with connect_attackers(n, to, source, credit) as attackers:
        do(attackers)
        over = threading.Event()

        def send_keepalives() -> None:
            while not over.wait(0.2):
                for one in attackers:
                    one.send_keepalive()

        thread = threading.Thread(target=send_keepalives)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.mark.clause("DGRAM-FAIR-2")
@for_each_source_address
@for_each_attack
def test_a_ping_server_serves_a_good_client_during_each_attack(attack: str, source: str) -> None:
    with (
        temporary_settings(qkey=QKEY),
        run_ping_server("--qp", "rd", "--addr", "127.0.0.1", env={"SIWARP_QKEY": str(QKEY)}) as (
            port,
            _,
        ),
    ):
        to = ("127.0.0.1", port)
        with run_attack(attack, to, source):
            for _ in range(3):
                began = time.monotonic()
                with Pinger(to, "rd", 64) as pinger:
                    assert [pinger.ping(i) for i in range(5)] == [True] * 5
                assert time.monotonic() - began < scale_limit(SERVED)


@pytest.mark.clause("DGRAM-FAIR-2")
@for_each_source_address
@for_each_attack
def test_an_aio_server_serves_a_good_client_during_each_attack(attack: str, source: str) -> None:
    async def serve_echo(end: aio.RDEndpoint) -> None:
        tasks = set()
        async for asked in end:
            task = asyncio.ensure_future(end.send(asked.data, asked.source))
            tasks.add(task)
            task.add_done_callback(lambda t: (tasks.discard(t), t.cancelled() or t.exception()))

    async def run_good_clients() -> None:
        async with aio.open_rd(qkey=QKEY) as end:
            serving = asyncio.ensure_future(serve_echo(end))
            block = run_attack(attack, end.address, source)
            await asyncio.to_thread(block.__enter__)
            try:
                for i in range(3):
                    async with aio.open_rd(qkey=QKEY) as client:
                        asked = b"question %d" % i
                        await asyncio.wait_for(client.send(asked, end.address), scale_limit(SERVED))
                        answer = await asyncio.wait_for(client.recv(), scale_limit(SERVED))
                        assert answer.data == asked
            finally:
                await asyncio.to_thread(block.__exit__, None, None, None)
                serving.cancel()

    asyncio.run(run_good_clients())


@pytest.mark.clause("DGRAM-MEET-7")
def test_closed_clients_do_not_prevent_new_clients_of_the_same_address() -> None:
    env = {"SIWARP_QKEY": str(QKEY), "SIWARP_RD_PEERS": "4"}
    with (
        temporary_settings(qkey=QKEY),
        run_ping_server("--qp", "rd", "--addr", "127.0.0.1", env=env) as (port, _),
    ):
        for i in range(8):
            began = time.monotonic()
            with Pinger(("127.0.0.1", port), "rd", 64) as pinger:
                assert pinger.ping(i)
            assert time.monotonic() - began < scale_limit(SERVED)


def test_unacknowledged_answers_of_many_long_pings_take_little_memory_of_a_ping_server() -> None:
    with (
        temporary_settings(qkey=QKEY),
        run_ping_server("--qp", "rd", "--addr", "127.0.0.1", env={"SIWARP_QKEY": str(QKEY)}) as (
            port,
            process,
        ),
    ):
        to = ("127.0.0.1", port)
        with connect_attackers(2, to, "127.0.0.9") as attackers:
            for one in attackers:
                for _ in range(600):
                    one.send_segment(b"Q" + bytes(1000))
            began = time.monotonic()
            with Pinger(to, "rd", 64) as pinger:
                assert pinger.ping(0)
            took = time.monotonic() - began
        if "SANITIZER" in os.environ:
            return  # a sanitizer build is slower and uses more memory
        assert took < scale_limit(SERVED)
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        assert peak < 300 << 10, f"{peak} KiB"


@pytest.mark.parametrize("rate", [100, 200])
def test_spoofed_ud_queries_to_a_slow_program_delay_no_honest_client(rate: int) -> None:
    rig = Rig()
    ends = SidrEndpoints(rig)
    qp = ends.create_qp()
    over = threading.Event()

    def answer_queries_slowly() -> None:
        while not over.is_set():
            event = ends.answering.get_event(0.05)
            if event is not None:
                time.sleep(0.02)
                ends.accept(event, qp)
                event.id.close()

    def send_spoofed_queries() -> None:
        for number in range(1 << 32, 1 << 33):
            if over.wait(1 / rate):
                return
            with plain_udp_socket(f"127.1.{number >> 8 & 127}.{1 + number % 250}") as sock:
                sock.sendto(build_sidr_query(number), ends.door.local_addr)

    threads = [
        threading.Thread(target=one) for one in (answer_queries_slowly, send_spoofed_queries)
    ]
    for thread in threads:
        thread.start()
    try:
        time.sleep(2.0)
        for _ in range(3):
            began = time.monotonic()
            ends.send_sidr_query()
            assert ends.next_query_result().type == CMEventType.ESTABLISHED
            assert time.monotonic() - began < scale_limit(SERVED)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        rig.close()
