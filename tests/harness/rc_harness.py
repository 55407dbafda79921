"""Two connected RC queue pairs in one process, for the tests of RC and of cm/."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import net
from harness.verbs_harness import ALL_ACCESS, LIMIT, Rig, wait_until
from pace import limit_exceeded

from siwarp.cm import CMID, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.verbs import (
    CQ,
    MR,
    QP,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WROpcode,
)

SEND, WRITE, READ = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ


class End:
    """An RC endpoint: queue pair, CQs (one_cq: one CQ for both), memory and CM id."""

    def __init__(
        self,
        rig: Rig,
        cm_id: CMID,
        channel: CMEventChannel,
        size: int = 0,
        one_cq: bool = False,
        **cap: Any,
    ) -> None:
        self.rig, self.id, self.channel = rig, cm_id, channel
        self.events = rig.create_channel()
        self.scq: CQ = rig.create_cq(1024, self.events)
        self.rcq: CQ = self.scq if one_cq else rig.create_cq(1024, self.events)
        self.qp: QP = rig.create_qp(scq=self.scq, rcq=self.rcq, qp_type=QPType.RC, **cap)
        self.mr: MR | None = rig.reg_mr(size, ALL_ACCESS) if size else None
        cm_id.bind_qp(self.qp)

    @property
    def mem(self) -> MR:
        assert self.mr is not None
        return self.mr

    def post_receive(self, wr_id: int = 1, offset: int = 0, length: int | None = None) -> None:
        self.qp.post_recv(RecvWR(wr_id, sg=[self.mem.sge(offset, length)]))

    def post(
        self,
        opcode: WROpcode,
        wr_id: int = 2,
        *,
        offset: int = 0,
        length: int = 0,
        remote: RemoteBuffer | None = None,
        flags: int = SendFlag.SIGNALED,
    ) -> None:
        sg = [self.mem.sge(offset, length)] if length else []
        self.qp.post_send(SendWR(wr_id, opcode, sg=sg, remote=remote, send_flags=flags))

    def next_cm_event(self, limit: float = LIMIT) -> CMEvent:
        found = self.channel.get_event(limit)
        assert found is not None, f"no connection event within {limit} s"
        return found

    def wait_for_error_state(self, limit: float = LIMIT) -> None:
        """Wait until the queue pair is in state ERR."""
        wait_until(lambda: self.qp.qp_state == QPState.ERR, limit)

    def close(self) -> None:
        self.id.close()
        self.qp.close()


class ListenerAndConnector:
    """A listener on an address of this host, and functions that connect to the listener."""

    def __init__(self, active: Rig, passive: Rig | None = None, host: str = net.HERE) -> None:
        self.active, self.passive = active, passive or active
        self.host = host
        self.a_channel = CMEventChannel(self.active.ctx)
        self.p_channel = CMEventChannel(self.passive.ctx)
        self.listener = CMID(self.p_channel)
        self.listener.listen((host, 0))

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.local_addr

    def begin_connect(self, param: ConnParam | None = None, **end: Any) -> End:
        """Start to connect a new endpoint to the listener; return the endpoint."""
        a = End(self.active, CMID(self.a_channel), self.a_channel, **end)
        a.id.connect(self.address, param)
        return a

    def next_connection_request(self, limit: float = LIMIT) -> CMEvent:
        event = self.p_channel.get_event(limit)
        assert event is not None, "no request came"
        assert event.type == CMEventType.CONNECT_REQUEST and event.listen_id is self.listener
        return event

    def connect(
        self,
        ask: ConnParam | None = None,
        answer: ConnParam | None = None,
        *,
        size: int = 1 << 16,
        before_accept: Callable[[End], None] | None = None,
        **cap: Any,
    ) -> tuple[End, End]:
        """Return two connected endpoints, the active one first."""
        a = self.begin_connect(ask, size=size, **cap)
        request = self.next_connection_request()
        b = End(self.passive, request.id, self.p_channel, size=size, **cap)
        if before_accept:
            before_accept(b)
        b.id.accept(answer)
        assert a.next_cm_event().type == CMEventType.ESTABLISHED
        assert b.next_cm_event().type == CMEventType.ESTABLISHED
        return a, b


def create_plain_listener(host: str = net.HERE) -> Any:
    """Return a listening TCP socket that does not implement MPA."""
    return net.tcp_listen(host, LIMIT)


def connect_plain_socket(address: tuple[str, int]) -> Any:
    return net.tcp_connect(address, limit=LIMIT)


def read_to_end(s: Any, limit: float = LIMIT) -> bytes:
    """Return all octets that a socket receives before the end of the stream or a reset."""
    octets = b""
    began = net.now()
    while not limit_exceeded(began, limit):
        try:
            part = s.recv(65536)
        except OSError as e:
            assert e.errno in (errno.ECONNRESET, errno.EPIPE), e
            return octets
        if not part:
            return octets
        octets += part
    raise AssertionError("no end of stream")


__all__ = [
    "READ",
    "SEND",
    "WRITE",
    "End",
    "ListenerAndConnector",
    "connect_plain_socket",
    "create_plain_listener",
    "read_to_end",
]
