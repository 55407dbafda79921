"""Networks whose sequence numbers begin just below 2^32: each test here crosses the wrap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.pair_harness import connect_by_qpn
from sim import rc_harness
from sim.test_sim_types import MakeEnd, N, both, receive, send, text

from siwarp.inspect import examine
from siwarp.sim import World
from siwarp.verbs import AH, Persona, QPType, SendWR, WROpcode

FIRST = 0xFFFFFFF0
#: Message sequence numbers of N messages.
AROUND_THE_WRAP = [(FIRST + i) % (1 << 32) for i in range(N)]

#: Offset of the sender's epoch in a HELLO.
EPOCH = 12


@pytest.fixture
def world() -> Iterator[World]:
    with World(seed=7, near_wrap=True) as world:
        yield world


def field(path: Path, name: str, kind: str) -> list[int]:
    """Return a field of all messages of a kind in a capture, in order, without duplicates."""
    found = [int(m.fields[name]) for m in examine(path).messages if m.kind == kind]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("kind", [QPType.UD, QPType.UC, QPType.RD])
@pytest.mark.parametrize("plan", ["", "delay=1ms"])
def test_messages_of_datagram_types_cross_the_wrap(
    world: World, end: MakeEnd, kind: QPType, plan: str, tmp_path: Path
) -> None:
    world.faults(plan)
    a, b = both(world, end, kind)
    with world.capture(tmp_path / "run.pcapng"):
        receiver = world.spawn(receive, b, N)
        world.spawn(send, a, b, kind, N)
        world.run_tasks(within="1min")
    assert receiver.result() == [text(i) for i in range(N)]
    assert field(tmp_path / "run.pcapng", "msn", "SEND") == AROUND_THE_WRAP


def test_rd_repairs_losses_where_its_packet_numbers_wrap(
    world: World, end: MakeEnd, tmp_path: Path
) -> None:
    world.faults("loss=10%,dup=2%,reorder=5%,delay=2ms")
    a, b = both(world, end, QPType.RD)
    with world.capture(tmp_path / "run.pcapng"):
        receiver = world.spawn(receive, b, N)
        world.spawn(send, a, b, QPType.RD, N)
        world.run_tasks(within="10min")
    assert receiver.result() == [text(i) for i in range(N)]
    psns = field(tmp_path / "run.pcapng", "psn", "SEND")
    assert min(psns) < N
    assert max(psns) > FIRST - N


def test_rd_begins_each_incarnation_with_another_epoch(world: World, end: MakeEnd) -> None:
    hellos, device = [], world.device("10.0.0.1")
    for _ in range(3):
        ours = end(device, QPType.RD)
        ours.qp.to_rts()
        with world.udp("10.0.0.9") as stranger, AH(ours.pd, stranger.getsockname()) as ah:
            ours.qp.post_send(SendWR(1, ah=ah))
            hellos.append(stranger.recv(2048))
        world.crash(device)
        device = world.restart("10.0.0.1")
    epochs = {int.from_bytes(hello[EPOCH : EPOCH + 4], "big") for hello in hellos}
    assert len(epochs) == 3
    assert min(epochs) > FIRST - 10


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE])
def test_messages_and_reads_of_a_connection_cross_the_wrap(
    world: World, persona: Persona, tmp_path: Path
) -> None:
    with world.capture(tmp_path / "run.pcapng"):
        a, b = (rc_harness.End(world, f"10.0.0.{i}", by_qpn=True, persona=persona) for i in (1, 2))
        a.init_with_receives(N)
        b.init_with_receives(N)
        connect_by_qpn(a, b)
        for i in range(N):
            a.send(text(i), i)
            a.post(WROpcode.RDMA_READ, i, length=8, remote=b.mr.remote(0, 8))
            assert all(wc.ok for wc in a.wait_for_sends(2))
            (wc,) = b.wait_for_receives()
            assert b.mr.read(wc.check().byte_len, wc.wr_id - 100 << 10) == text(i)
    assert field(tmp_path / "run.pcapng", "msn", "SEND") == AROUND_THE_WRAP
    assert set(AROUND_THE_WRAP) <= set(field(tmp_path / "run.pcapng", "msn", "RDMA_READ_REQUEST"))


def test_sends_that_wait_for_receives_are_counted_across_the_wrap(world: World) -> None:
    a, b = (rc_harness.End(world, f"10.0.0.{i}", by_qpn=True, persona=Persona.ROCE) for i in (1, 2))
    a.init_with_receives(0)
    b.init_with_receives(0)
    connect_by_qpn(a, b)
    for i in range(2 * 16):
        a.send(text(i), i)
        rc_harness.nothing(world, 1e-4, a.cq)
        b.post_receive(i, length=1024)
        assert a.wait_for_sends()[0].ok
        assert b.wait_for_receives()[0].check().wr_id == i
