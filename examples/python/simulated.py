"""A lossy network, a partition and a crash, in virtual time: the same seed gives the same run.

python simulated.py [SEED]
"""

import sys
from contextlib import ExitStack

import siwarp.sim  # import siwarp.sim before siwarp.verbs, to make the process a simulated one
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
)

MESSAGES = 200


class End:
    """A reliable datagram queue pair on a device, with memory."""

    def __init__(self, stack: ExitStack, device: Context) -> None:
        self.pd = stack.enter_context(PD(device))
        channel = stack.enter_context(CompChannel(device))
        self.cq = stack.enter_context(CQ(device, 2 * MESSAGES, channel=channel))
        self.mr = stack.enter_context(MR(self.pd, bytearray(64 * MESSAGES)))
        init = QPInitAttr(QPType.RD, scq=self.cq, addr=(device.device.addresses[0], 0), qkey=7)
        self.qp = stack.enter_context(QP(self.pd, init))
        self.qp.to_rts()


def receive_messages(world: siwarp.sim.World, end: End) -> None:
    for i in range(64):
        end.qp.post_recv(RecvWR(i, sg=[end.mr.sge(64 * i, 64)]))
    for i in range(MESSAGES):
        (wc,) = end.cq.wait(num_entries=1)
        if i % 50 == 0:
            text = end.mr.read(wc.check().byte_len, 64 * wc.wr_id).decode()
            print(f"{world.now:9.6f} s  received {text!r}")
        end.qp.post_recv(RecvWR(wc.wr_id, sg=[end.mr.sge(64 * wc.wr_id, 64)]))


def send_messages(end: End, to: End) -> None:
    with AH(end.pd, to.qp.addr) as ah:
        for i in range(MESSAGES):
            text = f"message {i}".encode()
            end.mr.write(text)
            end.qp.post_send(SendWR(i, sg=[end.mr.sge(0, len(text))], ah=ah))
            end.cq.wait(num_entries=1)[0].check()


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) == 2 else 7
    with siwarp.sim.World(seed=seed, faults="loss=2%,delay=5ms,jitter=1ms") as world:
        with ExitStack() as stack:
            a, b = (End(stack, world.device(f"10.0.0.{i}")) for i in (1, 2))
            receiver = world.spawn(receive_messages, world, b)
            world.spawn(send_messages, a, b)
            world.run_for("500ms")
            print(f"{world.now:9.6f} s  the network is partitioned for two seconds")
            world.partition("10.0.0.1", "10.0.0.2")
            world.run_for("2s")
            world.heal()
            world.run_until(receiver.done, within="10min")
            world.run_tasks()
        stats = world.stats
        print(f"{world.now:9.6f} s  all {MESSAGES} arrived, in order: {stats.sent} datagrams were")
        print(f"             sent and {stats.lost} lost; trace {world.trace_hash:016x}")


if __name__ == "__main__":
    main()
