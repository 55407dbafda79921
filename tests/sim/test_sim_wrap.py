"""Simulated networks whose sequence numbers begin just below 2^32 and wrap in each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.pair_harness import connect_pair_by_qpn
from sim import rc_harness
from sim.test_sim_types import (
    MESSAGE_COUNT,
    MakeEnd,
    create_ready_pair,
    make_numbered_message,
    receive_messages,
    send_messages,
)

from siwarp.inspect import examine
from siwarp.sim import World
from siwarp.verbs import AH, Persona, QPType, SendWR, WROpcode

FIRST = 0xFFFFFFF0
#: The message sequence numbers of MESSAGE_COUNT messages.
AROUND_THE_WRAP = [(FIRST + i) % (1 << 32) for i in range(MESSAGE_COUNT)]

#: The offset of the sender's epoch in a HELLO datagram.
EPOCH_OFFSET = 12


@pytest.fixture(name="world")
def world_near_sequence_wrap() -> Iterator[World]:
    with World(seed=7, near_wrap=True) as world:
        yield world


def captured_field_values(path: Path, name: str, kind: str) -> list[int]:
    """Return the distinct values of a field in the messages of a kind in a capture, in order."""
    found = [int(m.fields[name]) for m in examine(path).messages if m.kind == kind]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("kind", [QPType.UD, QPType.UC, QPType.RD])
@pytest.mark.parametrize("plan", ["", "delay=1ms"])
def test_datagram_messages_arrive_across_the_wrap_of_sequence_numbers(
    world: World, create_rdma_endpoint: MakeEnd, kind: QPType, plan: str, tmp_path: Path
) -> None:
    world.faults(plan)
    a, b = create_ready_pair(world, create_rdma_endpoint, kind)
    with world.capture(tmp_path / "run.pcapng"):
        receiver = world.spawn(receive_messages, b, MESSAGE_COUNT)
        world.spawn(send_messages, a, b, kind, MESSAGE_COUNT)
        world.run_tasks(within="1min")
    assert receiver.result() == [make_numbered_message(i) for i in range(MESSAGE_COUNT)]
    assert captured_field_values(tmp_path / "run.pcapng", "msn", "SEND") == AROUND_THE_WRAP


def test_rd_messages_arrive_despite_losses_at_the_wrap_of_packet_numbers(
    world: World, create_rdma_endpoint: MakeEnd, tmp_path: Path
) -> None:
    world.faults("loss=10%,dup=2%,reorder=5%,delay=2ms")
    a, b = create_ready_pair(world, create_rdma_endpoint, QPType.RD)
    with world.capture(tmp_path / "run.pcapng"):
        receiver = world.spawn(receive_messages, b, MESSAGE_COUNT)
        world.spawn(send_messages, a, b, QPType.RD, MESSAGE_COUNT)
        world.run_tasks(within="10min")
    assert receiver.result() == [make_numbered_message(i) for i in range(MESSAGE_COUNT)]
    psns = captured_field_values(tmp_path / "run.pcapng", "psn", "SEND")
    assert min(psns) < MESSAGE_COUNT
    assert max(psns) > FIRST - MESSAGE_COUNT


def test_an_rd_endpoint_uses_another_epoch_in_each_incarnation(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    hellos, device = [], world.device("10.0.0.1")
    for _ in range(3):
        ours = create_rdma_endpoint(device, QPType.RD)
        ours.qp.to_rts()
        with world.udp("10.0.0.9") as stranger, AH(ours.pd, stranger.getsockname()) as ah:
            ours.qp.post_send(SendWR(1, ah=ah))
            hellos.append(stranger.recv(2048))
        world.crash(device)
        device = world.restart("10.0.0.1")
    epochs = {int.from_bytes(hello[EPOCH_OFFSET : EPOCH_OFFSET + 4], "big") for hello in hellos}
    assert len(epochs) == 3
    assert min(epochs) > FIRST - 10


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE])
def test_rc_messages_and_reads_arrive_across_the_wrap_of_sequence_numbers(
    world: World, persona: Persona, tmp_path: Path
) -> None:
    with world.capture(tmp_path / "run.pcapng"):
        a, b = (rc_harness.End(world, f"10.0.0.{i}", by_qpn=True, persona=persona) for i in (1, 2))
        a.to_init_with_receives(MESSAGE_COUNT)
        b.to_init_with_receives(MESSAGE_COUNT)
        connect_pair_by_qpn(a, b)
        for i in range(MESSAGE_COUNT):
            a.send(make_numbered_message(i), i)
            a.post(WROpcode.RDMA_READ, i, length=8, remote=b.mr.remote(0, 8))
            assert all(wc.ok for wc in a.wait_for_sends(2))
            (wc,) = b.wait_for_receives()
            assert b.mr.read(wc.check().byte_len, wc.wr_id - 100 << 10) == make_numbered_message(i)
    assert captured_field_values(tmp_path / "run.pcapng", "msn", "SEND") == AROUND_THE_WRAP
    assert set(AROUND_THE_WRAP) <= set(
        captured_field_values(tmp_path / "run.pcapng", "msn", "RDMA_READ_REQUEST")
    )


def test_delivery_counts_of_waiting_sends_cross_the_wrap(world: World) -> None:
    a, b = (rc_harness.End(world, f"10.0.0.{i}", by_qpn=True, persona=Persona.ROCE) for i in (1, 2))
    a.to_init_with_receives(0)
    b.to_init_with_receives(0)
    connect_pair_by_qpn(a, b)
    for i in range(2 * 16):
        a.send(make_numbered_message(i), i)
        rc_harness.assert_no_completions(world, 1e-4, a.cq)
        b.post_receive(i, length=1024)
        assert a.wait_for_sends()[0].ok
        assert b.wait_for_receives()[0].check().wr_id == i
