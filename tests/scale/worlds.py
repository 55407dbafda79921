"""Simulated worlds of many devices: their cost in time and memory, and the fairness of flows.

``python tests/scale/worlds.py 10 100 1000`` measures each world in a separate process and writes
the rows of the table in docs/background/scale-in-worlds.md. tests/sim/test_sim_scale.py asserts on
the small worlds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from siwarp.sim import World
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    AHAttr,
    CompChannel,
    Context,
    Persona,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
)

#: The octets of a message, which is three datagrams or segments.
SIZE = 4096
#: The number of messages that a sender keeps posted to each peer.
DEPTH = 4
#: The number of peers of each device in the mesh.
PEERS = 16
RECEIVE = 1 << 32
#: The seconds for connections and congestion windows to settle, and the seconds of measurement.
WARM_UP, MEASURED = 1.0, 4.0


@dataclass(frozen=True)
class WorldFigures:
    """The cost of a world, and the messages that each flow delivered during the measurement."""

    world: str
    devices: int
    flows: int
    #: The number of datagrams and segments sent.
    packets: int
    #: The CPU seconds to create the devices and queue pairs, and to run the world.
    made_s: float
    ran_s: float
    #: The octets of resident memory per created device, and per flow while the flow runs.
    device_octets: int
    flow_octets: int
    #: The lowest and the highest throughput of a flow, relative to the mean throughput.
    least: float
    most: float
    mean: float
    trace_hash: int


def resident_octets() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def node_address(i: int) -> str:
    return f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}"


class WorldNode:
    """A device with one or two queue pairs, and memory to send from and to receive into."""

    def __init__(self, device: Context, kind: QPType, peers: int) -> None:
        self.pd = PD(device)
        self.address = device.device.addresses[0]
        depth = 2 * DEPTH * peers
        self.cq = CQ(device, 4 * depth, channel=CompChannel(device))
        self.mr = MR(self.pd, 2 * SIZE)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth)
        if kind == QPType.RC:
            init = QPInitAttr(
                kind, scq=self.cq, rcq=self.cq, cap=cap, by_qpn=True, persona=Persona.ROCE
            )
        else:
            init = QPInitAttr(
                kind, scq=self.cq, rcq=self.cq, cap=cap, addr=(self.address, 0), qkey=7
            )
        self.qps = [QP(self.pd, init) for _ in range(2 if kind == QPType.RC else 1)]
        self.receives = depth
        self.ahs: list[AH] = []

    def post_receive(self, qp: QP) -> None:
        qp.post_recv(RecvWR(RECEIVE, sg=[self.mr.sge(SIZE, SIZE)]))

    def post_send(self, flow: int) -> None:
        ah = self.ahs[flow] if self.ahs else None
        self.qps[0].post_send(
            SendWR(flow, sg=[self.mr.sge(0, SIZE)], ah=ah, send_flags=SendFlag.SIGNALED)
        )

    def keep_queues_full(self, done: dict[int, int], flows: int) -> None:
        """Keep the work queues full, and count the completed sends of each flow in ``done``."""
        for qp in self.qps:
            for _ in range(self.receives):
                self.post_receive(qp)
        for flow in range(flows):
            for _ in range(DEPTH):
                self.post_send(flow)
        by_number = {qp.qp_num: qp for qp in self.qps}
        while True:
            for wc in self.cq.wait():
                wc.check()
                if wc.wr_id == RECEIVE:
                    self.post_receive(by_number[wc.qp_num])
                else:
                    done[wc.wr_id] = done.get(wc.wr_id, 0) + 1
                    self.post_send(wc.wr_id)


def create_devices_at_bottleneck(world: World, n: int) -> Iterator[tuple[WorldNode, int]]:
    """Let all other devices send by RD to one device, whose interface is the bottleneck."""
    rate = f"rx:rate={n}Mbit,limit={max(64, 4 * n)}"
    receiver = WorldNode(world.device(node_address(1), faults=rate), QPType.RD, n)
    receiver.qps[0].to_rts()
    yield receiver, 0
    for i in range(2, n + 1):
        node = WorldNode(world.device(node_address(i)), QPType.RD, 1)
        node.qps[0].to_rts()
        node.ahs = [AH(node.pd, receiver.qps[0].addr)]
        yield node, 1


def create_mesh_of_devices(world: World, n: int) -> Iterator[tuple[WorldNode, int]]:
    """Let each device send by RD to 16 others, or to all others in a small world."""
    peers = min(PEERS, n - 1)
    nodes = [
        WorldNode(world.device(node_address(i), faults="rate=2Mbit,limit=64"), QPType.RD, peers)
        for i in range(1, n + 1)
    ]
    for node in nodes:
        node.qps[0].to_rts()
    for i, node in enumerate(nodes):
        node.ahs = [AH(node.pd, nodes[(i + j) % n].qps[0].addr) for j in range(1, peers + 1)]
        yield node, peers


def create_ring_of_devices(world: World, n: int) -> Iterator[tuple[WorldNode, int]]:
    """Let each device send by RC to the next device of the ring."""
    nodes = [
        WorldNode(world.device(node_address(i), faults="rate=1Mbit,limit=64"), QPType.RC, 1)
        for i in range(1, n + 1)
    ]
    for node in nodes:
        for qp in node.qps:
            qp.to_init()
    for i, node in enumerate(nodes):
        after, before = nodes[(i + 1) % n], nodes[i - 1]
        for qp, peer, number in (
            (node.qps[0], after, after.qps[1].qp_num),
            (node.qps[1], before, before.qps[0].qp_num),
        ):
            qp.to_rts(QPAttr(ah_attr=AHAttr(peer.address), dest_qp_num=number))
        yield node, 1


WORLDS: dict[str, Callable[[World, int], Iterator[tuple[WorldNode, int]]]] = {
    "bottleneck": create_devices_at_bottleneck,
    "mesh": create_mesh_of_devices,
    "ring": create_ring_of_devices,
}


def measure_simulated_world(
    name: str, n: int, seed: int = 7, warm_up: float = WARM_UP, measured: float = MEASURED
) -> WorldFigures:
    """Run a world of n devices, and return its figures."""
    with World(seed, faults="delay=1ms") as world:
        empty, begin = resident_octets(), time.process_time()
        made = list(WORLDS[name](world, n))
        after, made_s = resident_octets(), time.process_time() - begin
        counts: list[dict[int, int]] = [{} for _ in made]
        for (node, flows), done in zip(made, counts, strict=True):
            world.spawn(node.keep_queues_full, done, flows)
        world.run_for(warm_up)
        before = [done.copy() for done in counts]
        world.run_for(measured)
        ran_s, full = time.process_time() - begin - made_s, resident_octets()
        shares = [
            done.get(flow, 0) - was.get(flow, 0)
            for (_, flows), was, done in zip(made, before, counts, strict=True)
            for flow in range(flows)
        ]
        mean = sum(shares) / len(shares)
        return WorldFigures(
            world=name,
            devices=n,
            flows=len(shares),
            packets=world.stats.sent + world.stats.segments,
            made_s=made_s,
            ran_s=ran_s,
            device_octets=(after - empty) // n,
            flow_octets=(full - after) // len(shares),
            least=min(shares) / mean if mean else 0.0,
            most=max(shares) / mean if mean else 0.0,
            mean=mean,
            trace_hash=world.trace_hash,
        )


def format_row(f: WorldFigures) -> str:
    """Return the figures of a world as a row of a Markdown table."""
    return (
        f"| {f.world} | {f.devices} | {f.flows} | {f.packets:,} | {f.made_s:.1f} | {f.ran_s:.1f} | "
        f"{f.packets / f.ran_s:,.0f} | {f.device_octets / 1024:.0f} | {f.flow_octets / 1024:.1f} | "
        f"{f.mean:.1f} | {f.least:.2f} to {f.most:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="+", type=int)
    parser.add_argument("--world", choices=WORLDS, action="append", help="only this; repeatable")
    parser.add_argument("--measured", type=float, default=MEASURED, help="seconds of world time")
    parser.add_argument("--json", action="store_true", help="one world, in this process, as JSON")
    args = parser.parse_args()
    names = args.world or list(WORLDS)
    if args.json:
        print(
            json.dumps(
                asdict(measure_simulated_world(names[0], args.devices[0], measured=args.measured))
            )
        )
        return
    for name in names:
        for n in args.devices:
            command = [sys.executable, __file__, str(n), "--world", name, "--json"]
            command += ["--measured", str(args.measured)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            print(format_row(WorldFigures(**json.loads(done.stdout))), flush=True)


if __name__ == "__main__":
    main()
