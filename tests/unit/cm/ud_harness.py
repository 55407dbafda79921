"""A listener, plain sockets and frames for the tests of UD resolution (spec/cm-udp.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import net
from harness.verbs_harness import LIMIT, Rig

from siwarp.cm import CMID, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import SIDR, SIDRType
from siwarp.verbs import QP

HOST = net.HERE
FRAME = 232


class SidrEndpoints:
    """A UD listener and the event channels of the asking and the answering side, on one device."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.asking, self.answering = CMEventChannel(rig.ctx), CMEventChannel(rig.ctx)
        self.cq = rig.create_cq()
        self.ids: list[CMID] = []
        self.door = CMID(self.answering, ud=True)
        self.door.listen((HOST, 0))

    def create_qp(self) -> QP:
        return self.rig.create_qp(self.cq)

    def send_sidr_query(
        self, data: bytes = b"", *, to: tuple[str, int] | None = None, **more: float
    ) -> CMID:
        id = CMID(self.asking, ud=True)
        param = ConnParam(private_data=data, **more)  # type: ignore[arg-type]
        id.connect(to or self.door.local_addr, param)
        # The reference keeps Python from closing the id.
        self.ids.append(id)
        return id

    def next_connection_request(self, limit: float = LIMIT) -> CMEvent:
        event = self.answering.get_event(limit)
        assert event is not None and event.type == CMEventType.CONNECT_REQUEST
        assert event.listen_id is self.door
        return event

    def next_query_result(self, limit: float = LIMIT) -> CMEvent:
        event = self.asking.get_event(limit)
        assert event is not None, "the query has no result"
        return event

    def accept(self, event: CMEvent, qp: QP, data: bytes = b"") -> None:
        event.id.bind_qp(qp)
        event.id.accept(ConnParam(private_data=data))


@contextlib.contextmanager
def plain_udp_socket(host: str = HOST) -> Iterator[Any]:
    """Provide a plain UDP socket with a receive time-out."""
    with net.open_udp_socket(host) as s:
        s.settimeout(LIMIT)
        yield s


def build_sidr_query(id: int = 1, data: bytes = b"", **fields: object) -> bytes:
    return bytes(SIDR(type=SIDRType.QUESTION, id=id, data=data, **fields))


def parse_sidr_frame(octets: bytes) -> SIDR:
    """Parse a frame sent by siwarp and assert that its CRC is valid and its unused fields are 0."""
    assert len(octets) == FRAME
    frame = SIDR(octets)
    built = frame.copy()
    built.crc = None
    assert bytes(built) == octets and frame.version == 1
    return frame


def assert_no_datagram_arrives(s: Any, seconds: float = 0.2) -> None:
    """Assert that no datagram arrives at the socket ``s`` for ``seconds`` seconds."""
    s.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        raise AssertionError(f"{len(s.recv(2048))} octets were received")
    s.settimeout(LIMIT)
