"""RC queue pairs between hosts of a world, with exact bounds on its virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from unit.verbs.verbs_harness import ALL_ACCESS, counter

from siwarp.cm import CMID, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.sim import World
from siwarp.verbs import (
    CQ,
    MR,
    PD,
    QP,
    WC,
    AHAttr,
    CompChannel,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WROpcode,
)

SEND, WRITE, READ = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ
MS = 1_000_000
SECOND = 1_000_000_000
#: A device whose program has just polled is served up to nap_us later, 1 ms, and a poll that finds
#: nothing takes up to as long.
NAP = 2 * MS
PORT = 7471
#: Longer than anything that a test waits for.
LONG = 10_000.0
CAP = QPCap(max_send_wr=64, max_recv_wr=64)


@contextlib.contextmanager
def counted(name: str, by: int) -> Iterator[None]:
    """Assert that a counter grows by exactly so much in the block."""
    before = counter(name)
    yield
    assert counter(name) - before == by, f"{name} grew by {counter(name) - before}, not {by}"


class End:
    """An RC queue pair with what it needs, on a device of its own or on ``device``."""

    def __init__(
        self,
        world: World,
        address: str,
        size: int = 1 << 16,
        *,
        device: Context | None = None,
        cap: QPCap = CAP,
        **init: Any,
    ) -> None:
        self.world, self.address = world, address
        self.device = device or world.device(address)
        self.pd = PD(self.device)
        self.cq, self.rcq = (CQ(self.device, 256, channel=CompChannel(self.device)) for _ in "sr")
        self.mr = MR(self.pd, bytearray(size), ALL_ACCESS)
        self.init = QPInitAttr(QPType.RC, scq=self.cq, rcq=self.rcq, cap=cap, **init)
        self.qp = QP(self.pd, self.init)
        self.channel = CMEventChannel(self.device)
        self.id: CMID | None = None
        self.listener: CMID | None = None

    # ---- by address and QPN

    @property
    def name(self) -> tuple[str, int]:
        return self.address, self.qp.qp_num

    def begin(self, receives: int = 8) -> None:
        """Go to INIT, with receives of 1 KiB posted, whose numbers begin with 100."""
        self.qp.to_init()
        for i in range(receives):
            self.recv(100 + i, i << 10, 1 << 10)

    def to_rts(self, peer: tuple[str, int], **attr: Any) -> None:
        where = AHAttr(peer[0], source=self.address)
        self.qp.to_rts(QPAttr(ah_attr=where, dest_qp_num=peer[1], **attr))

    # ---- work

    def recv(self, wr_id: int = 1, offset: int = 0, length: int | None = None) -> None:
        self.qp.post_recv(RecvWR(wr_id, sg=[self.mr.sge(offset, length)]))

    def post(
        self,
        opcode: WROpcode,
        wr_id: int = 1,
        *,
        offset: int = 0,
        length: int = 0,
        remote: RemoteBuffer | None = None,
    ) -> None:
        sg = [self.mr.sge(offset, length)] if length else []
        wr = SendWR(wr_id, opcode, sg=sg, remote=remote, send_flags=SendFlag.SIGNALED)
        self.qp.post_send(wr)

    def send(self, data: bytes, wr_id: int = 1) -> None:
        """Send this, from the upper half of the memory."""
        at = self.mr.length // 2
        self.mr.write(data, len(data), at)
        self.post(SEND, wr_id, offset=at, length=len(data))

    def sent(self, n: int = 1) -> list[WC]:
        """Wait for n completions of the send queue, however long that takes."""
        return _wait(self.cq, n)

    def received(self, n: int = 1) -> list[WC]:
        """Wait for n completions of receives, however long that takes."""
        return _wait(self.rcq, n)

    def event(self) -> CMEvent:
        """Wait for the next connection event, however long that takes."""
        found = self.channel.get_event(LONG)
        assert found is not None, "no connection event will come"
        return found

    @property
    def state(self) -> QPState:
        return self.qp.qp_state

    def close(self) -> None:
        if self.id is not None:
            self.id.close()
        self.qp.close()


def _wait(cq: CQ, n: int) -> list[WC]:
    found: list[WC] = []
    while len(found) < n:
        came = cq.wait(LONG, n - len(found))
        assert came, f"{len(found)} of {n} completions, and no more will come"
        found += came
    return found


def nothing(world: World, duration: float, *queues: CQ) -> None:
    """Assert that nothing completes within so many seconds."""
    world.run_for(duration)
    assert [cq.poll(16) for cq in queues] == [[] for _ in queues]


def listen(b: End) -> None:
    """Listen, unless it does already."""
    if b.listener is None:
        b.listener = CMID(b.channel)
        b.listener.listen((b.address, PORT))


def dial(a: End, b: End, param: ConnParam | None = None) -> None:
    """Start to connect."""
    a.id = CMID(a.channel)
    a.id.bind_qp(a.qp)
    a.id.connect((b.address, PORT), param)


def accept(a: End, b: End, before: Callable[[End], None] | None = None) -> None:
    """Accept a connection of ``a``, and wait until both know of it."""
    request = b.event()
    assert request.type == CMEventType.CONNECT_REQUEST
    b.id = request.id
    b.id.bind_qp(b.qp)
    if before:
        before(b)
    b.id.accept()
    assert a.event().type == b.event().type == CMEventType.ESTABLISHED


def connect(a: End, b: End, before_accept: Callable[[End], None] | None = None) -> None:
    """Connect by rdma_cm's calls, and let both rest."""
    listen(b)
    dial(a, b)
    accept(a, b, before_accept)
    a.world.run_for(1)


def meet(a: End, b: End, **attr: Any) -> None:
    """Bring both to RTS, to connect by address and QPN."""
    a.to_rts(b.name, **attr)
    b.to_rts(a.name, **attr)


def exchange(a: End, b: End) -> None:
    """One Send each way, looked at; receives of ``begin`` are posted."""
    a.send(b"there")
    b.send(b"and back")
    for end, text in ((a, b"and back"), (b, b"there")):
        assert end.sent()[0].ok
        (wc,) = end.received()
        assert wc.ok and end.mr.read(wc.byte_len, (wc.wr_id - 100) << 10) == text
