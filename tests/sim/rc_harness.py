"""A harness for RC queue pairs between simulated hosts, with exact bounds on the virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from harness import pair_harness
from harness.pair_harness import LONG
from harness.verbs_harness import Rig, counter_value

from siwarp.cm import CMID, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.sim import World
from siwarp.verbs import (
    CQ,
    Context,
    QPCap,
    WROpcode,
)

SEND, WRITE, READ = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ
MS = 1_000_000
SECOND = 1_000_000_000
#: The longest delay before a device is serviced: the setting nap_us (1 ms) after a poll of its
#: program, and another 1 ms, which an unsuccessful poll may take.
NAP = 2 * MS
PORT = 7471
CAP = QPCap(max_send_wr=64, max_recv_wr=64)


@contextlib.contextmanager
def expect_counter_increase(name: str, by: int) -> Iterator[None]:
    """Assert that a counter grows by exactly ``by`` while the block runs."""
    before = counter_value(name)
    yield
    assert counter_value(name) - before == by, (
        f"{name} grew by {counter_value(name) - before}, not {by}"
    )


class End(pair_harness.End):
    """An RC queue pair on its own host, or on ``device``, that can also connect by rdma_cm."""

    def __init__(
        self,
        world: World,
        address: str,
        size: int = 1 << 16,
        *,
        device: Context | None = None,
        cap: QPCap = CAP,
        by_qpn: bool = False,
        **init: Any,
    ) -> None:
        rig = Rig(ctx=device or world.device(address))
        super().__init__(rig, address, size, cap=cap, one_cq=False, by_qpn=by_qpn, **init)
        self.world, self.address = world, address
        self.device, self.pd = rig.ctx, rig.pd
        self.channel = CMEventChannel(self.device)
        self.id: CMID | None = None
        self.listener: CMID | None = None

    def next_event(self) -> CMEvent:
        """Wait for the next connection event without a time-out."""
        found = self.channel.get_event(LONG)
        assert found is not None, "no connection event arrives"
        return found

    def close(self) -> None:
        if self.id is not None:
            self.id.close()
        super().close()


def assert_no_completions(world: World, duration: float, *queues: CQ) -> None:
    """Assert that nothing completes within ``duration`` seconds."""
    world.run_for(duration)
    assert [cq.poll(16) for cq in queues] == [[] for _ in queues]


def start_listener(b: End) -> None:
    """Start a listener of the end ``b`` unless it already has one."""
    if b.listener is None:
        b.listener = CMID(b.channel)
        b.listener.listen((b.address, PORT))


def start_connecting(a: End, b: End, param: ConnParam | None = None) -> None:
    """Start to connect the queue pair of ``a`` to that of ``b`` by rdma_cm."""
    a.id = CMID(a.channel)
    a.id.bind_qp(a.qp)
    a.id.connect((b.address, PORT), param)


def accept_connection(a: End, b: End, before: Callable[[End], None] | None = None) -> None:
    """Accept a connection request of ``a`` at ``b``, and wait until both ends are connected."""
    request = b.next_event()
    assert request.type == CMEventType.CONNECT_REQUEST
    b.id = request.id
    b.id.bind_qp(b.qp)
    if before:
        before(b)
    b.id.accept()
    assert a.next_event().type == b.next_event().type == CMEventType.ESTABLISHED


def connect_by_cm(a: End, b: End, before_accept: Callable[[End], None] | None = None) -> None:
    """Connect ``a`` to ``b`` by rdma_cm calls, and wait until both ends are idle."""
    start_listener(b)
    start_connecting(a, b)
    accept_connection(a, b, before_accept)
    a.world.run_for(1)
