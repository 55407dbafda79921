"""Drives the RDMAP layer's C code through a plain TCP or UDP socket that can send any octets.

Octets are built by siwarp.inspect and checked with crcmod; the harness shares no code with the C
layer.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from _siwarp_layers import ffi, lib
from unit.ddp.ddp_harness import (
    CANARY,
    PATIENCE,
    PD,
    DdpStackPoller,
    Memory,
    PeerDgram,
    PeerStream,
    Sge,
    StreamError,
    build_fpdu,
    build_tagged_segment,
    build_untagged_segment,
    check_result,
    counter_value,
    crc32c,
    octet_pattern,
    parse_segment,
    recv_exactly,
    sge_array,
    split_fpdus,
    temporary_setting,
    wait_until,
)
from unit.ddp.ddp_harness import Queue as RecvQueue
from unit.mpa.mpa_harness import Stream as MpaStream
from unit.mpa.mpa_harness import open_layer_poller, recv_to_end

from siwarp.inspect import (
    AtomicRequest,
    AtomicResponse,
    DDPDatagram,
    Opcode,
    Queue,
    ReadRequest,
    Terminate,
    UDDatagram,
)

__all__ = [
    "ALL",
    "CANARY",
    "PATIENCE",
    "PD",
    "Dgram",
    "Event",
    "Memory",
    "RdmapPoller",
    "Stream",
    "StreamError",
    "UDDatagram",
    "build_atomic_request",
    "build_atomic_response",
    "build_fpdu",
    "build_read_request",
    "build_read_response",
    "build_send",
    "build_tagged_segment",
    "build_terminate",
    "build_untagged_segment",
    "build_write",
    "check_result",
    "counter_value",
    "crc32c",
    "octet_pattern",
    "open_rdmap_poller",
    "parse_segment",
    "recv_exactly",
    "recv_to_end",
    "split_fpdus",
    "temporary_setting",
    "wait_until",
]

LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = 1, 2, 4, 8  # enum siw_access_flags
ALL = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
KINDS = {
    lib.SIW_RDMAP_STARTED: "STARTED",
    lib.SIW_RDMAP_RECV: "RECV",
    lib.SIW_RDMAP_READ_DONE: "READ_DONE",
    lib.SIW_RDMAP_REQUESTED: "REQUESTED",
    lib.SIW_RDMAP_PROGRESS: "PROGRESS",
    lib.SIW_RDMAP_TERMINATED: "TERMINATED",
    lib.SIW_RDMAP_ERROR: "ERROR",
    lib.SIW_RDMAP_CLOSED: "CLOSED",
    lib.SIW_RDMAP_BAD_RECV: "BAD_RECV",
    lib.SIW_RDMAP_BAD_MSG: "BAD_MSG",
    lib.SIW_RDMAP_PEER_ERR: "PEER_ERR",
    lib.SIW_RDMAP_CONFIRMED: "CONFIRMED",
    lib.SIW_RDMAP_UNEXPECTED: "PARKED",
}


# ---- messages that a peer may send


def build_send(payload: bytes = b"", **fields: Any) -> bytes:
    return build_untagged_segment(payload, **{"opcode": Opcode.SEND, **fields})


def build_write(payload: bytes = b"", **fields: Any) -> bytes:
    return build_tagged_segment(payload, **{"opcode": Opcode.RDMA_WRITE, **fields})


def build_read_request(*, size: int, src_stag: int, src_to: int, **fields: Any) -> bytes:
    head = {
        name: fields.pop(name)
        for name in ("msn", "l", "rv", "dv", "mo", "qn", "opcode")
        if name in fields
    }
    body = bytes(
        ReadRequest(
            **{"sink_stag": 1, "sink_to": 0, **fields}, size=size, src_stag=src_stag, src_to=src_to
        )
    )
    return build_untagged_segment(
        body, **{"opcode": Opcode.RDMA_READ_REQUEST, "qn": Queue.READ_REQUEST, **head}
    )


def build_read_response(payload: bytes = b"", **fields: Any) -> bytes:
    return build_tagged_segment(payload, **{"opcode": Opcode.RDMA_READ_RESPONSE, **fields})


def build_atomic_request(*, stag: int, to: int, **fields: Any) -> bytes:
    head = {
        name: fields.pop(name)
        for name in ("msn", "l", "rv", "dv", "mo", "qn", "opcode", "inv_stag")
        if name in fields
    }
    body = bytes(AtomicRequest(**fields, stag=stag, to=to))
    return build_untagged_segment(
        body, **{"opcode": Opcode.ATOMIC_REQUEST, "qn": Queue.READ_REQUEST, **head}
    )


def build_atomic_response(request: int, original: int = 0, **fields: Any) -> bytes:
    body = bytes(AtomicResponse(request=request, old=original))
    head = {"opcode": Opcode.ATOMIC_RESPONSE, "qn": Queue.ATOMIC_RESPONSE, **fields}
    return build_untagged_segment(body, **head)


def build_terminate(body: bytes | Terminate, **fields: Any) -> bytes:
    return build_untagged_segment(
        bytes(body), **{"opcode": Opcode.TERMINATE, "qn": Queue.TERMINATE, **fields}
    )


def build_operation(opcode: int, elements: Sequence[Sge] = (), **fields: Any) -> tuple[Any, Any]:
    """Return an element list and an operation, to be kept until the operation completes."""
    array = sge_array(elements)
    op = ffi.new(
        "struct siw_rdmap_op *",
        {
            "opcode": opcode,
            "sgl": array,
            "nsge": len(elements),
            "length": sum(e[1] for e in elements),
            **fields,
        },
    )
    return array, op


@dataclass(frozen=True)
class Event:
    """An event of the RDMAP layer (struct siw_rdmap_event)."""

    kind: str
    status: int
    user_data: int
    length: int
    solicited: bool
    invalidated: bool
    ulp_word: int
    src_qpn: int
    msn: int
    err: tuple[int, int, int]
    quoted: bool
    quoted_tagged: bool
    quoted_msn: int
    quoted_qn: int
    source_port: int

    @classmethod
    def from_c(cls, e: Any) -> Event:
        return cls(
            KINDS[e.kind],
            e.status,
            e.user_data,
            e.length,
            e.solicited,
            e.invalidated,
            e.ulp_word,
            e.src_qpn,
            e.msn,
            (e.err.layer, e.err.type, e.err.code),
            e.quoted,
            e.quoted_tagged,
            e.quoted_msn,
            e.quoted_qn,
            socket.ntohs(e.source.port_be),
        )


class Stream(PeerStream):
    """An RDMAP stream (siw_rdmap_stream), with the socket of its peer."""

    def __init__(
        self, handle: Any, ddp: Any, mpa: MpaStream, recvs: RecvQueue, *, crc: bool
    ) -> None:
        super().__init__(handle, mpa, crc=crc)
        self.ddp = ddp
        self.recvs = recvs
        self.stamps: list[Any] = []  # stream positions of the operations transmitted

    def close(self) -> None:
        if self.handle:
            lib.siw_rdmap_close(self.handle)
        self.handle = ffi.NULL

    def start(
        self,
        *,
        initiator: bool,
        ird: int = 4,
        ord: int = 4,
        rtr: int = 0,
        pd: int = PD,
        unexpected_octets: int = 0,
    ) -> None:
        how = ffi.new(
            "struct siw_rdmap_start *",
            {
                "recvs": self.recvs.handle,
                "pd": pd,
                "ird": ird,
                "ord": ord,
                "rtr": rtr,
                "initiator": initiator,
                "unexpected_octets": unexpected_octets,
            },
        )
        check_result(lib.siw_rdmap_start(self.handle, how))

    # ---- what the peer of the stream receives

    def read_sent_message(self) -> tuple[Any, bytes]:
        """Read a message of the stream; return the first header and the complete payload."""
        head, octets = self.read_sent_segment()
        last, parts = head, [octets]
        while not last.l:
            last, octets = self.read_sent_segment()
            parts.append(octets)
        return head, b"".join(parts)

    def read_sent_read_request(self) -> tuple[Any, Any]:
        head, octets = self.read_sent_message()
        assert (head.t, head.opcode, head.qn) == (0, Opcode.RDMA_READ_REQUEST, Queue.READ_REQUEST)
        assert len(octets) == 28
        return head, ReadRequest(octets)

    def read_sent_atomic_request(self) -> tuple[Any, Any]:
        head, octets = self.read_sent_message()
        assert (head.t, head.opcode, head.qn) == (0, Opcode.ATOMIC_REQUEST, Queue.READ_REQUEST)
        assert len(octets) == 52
        return head, AtomicRequest(octets)

    def read_sent_atomic_response(self) -> tuple[Any, Any]:
        head, octets = self.read_sent_message()
        assert (head.t, head.opcode, head.qn) == (0, Opcode.ATOMIC_RESPONSE, Queue.ATOMIC_RESPONSE)
        assert len(octets) == 12
        return head, AtomicResponse(octets)

    def read_sent_terminate(self) -> Any:
        """Read all messages up to a Terminate; assert that no octets follow; return it."""
        head, octets = self.read_sent_message()
        while head.opcode != Opcode.TERMINATE:
            head, octets = self.read_sent_message()
        assert (head.t, head.qn, head.msn, head.mo, head.inv_stag) == (0, Queue.TERMINATE, 1, 0, 0)
        assert recv_to_end(self.sock) == b"", "octets follow the Terminate"
        return Terminate(octets)

    # ---- transmit path of the stream

    def build_operation(self, opcode: int, elements: Sequence[Sge] = (), **fields: Any) -> Any:
        kept = build_operation(opcode, elements, **fields)
        self._kept.append(kept)
        return kept[1]

    def begin_operation(self, opcode: int, elements: Sequence[Sge] = (), **fields: Any) -> None:
        op = self.build_operation(opcode, elements, **fields)
        check_result(lib.siw_rdmap_begin_op(self.handle, op))
        assert op.stamp.begin < op.stamp.end
        assert not self.stamps or self.stamps[-1].end <= op.stamp.begin
        self.stamps.append(op.stamp)

    def request_atomic(self, sink: Sge, rkey: int = 1, remote_to: int = 0, **how: int) -> None:
        """Request an atomic operation; how: kind, data, mask, compare, compare_mask, user_data."""
        user_data = how.pop("user_data", 0)
        asked = ffi.new("struct siw_rdmap_atomic *", how)
        where = {"rkey": rkey, "remote_to": remote_to, "user_data": user_data}
        self.begin_and_flush_operation(Opcode.ATOMIC_REQUEST, [sink], atomic=asked, **where)

    def flush_once(self) -> int:
        accepted = ffi.new("uint64_t *")
        rv = lib.siw_rdmap_flush_tx(self.handle, accepted)
        assert accepted[0] == lib.siw_ddp_tx_accepted_position(self.ddp)
        return check_result(rv)

    def flush(self) -> None:
        wait_until(self.flush_once)

    def begin_and_flush_operation(
        self, opcode: int, elements: Sequence[Sge] = (), **fields: Any
    ) -> None:
        self.begin_operation(opcode, elements, **fields)
        self.flush()

    def send_terminate(self) -> None:
        wait_until(lambda: check_result(lib.siw_rdmap_terminate(self.handle)))
        self.mpa.shutdown()

    @property
    def begun_operation_count(self) -> int:
        return len(self.stamps)

    @property
    def count_operations_accepted_by_tcp(self) -> int:
        """Return how many operations, in the order of posting, TCP has accepted completely."""
        upto = lib.siw_ddp_tx_accepted_position(self.ddp)
        return sum(1 for _ in itertools.takewhile(lambda stamp: stamp.end <= upto, self.stamps))

    @property
    def has_pending_responses(self) -> bool:
        return bool(lib.siw_rdmap_has_responses_to_send(self.handle))

    # ---- receive path of the stream

    def poll_event(self) -> Event | None:
        event = ffi.new("struct siw_rdmap_event *")
        return (
            Event.from_c(event)
            if check_result(lib.siw_rdmap_next_event(self.handle, event))
            else None
        )

    def next_event(self, *, progress: bool = False) -> Event:
        """Return the stream's next event; skip PROGRESS events unless progress is true."""

        def poll_event_ignoring_progress_events() -> Event | None:
            e = self.poll_event()
            return None if e and e.kind == "PROGRESS" and not progress else e

        got = wait_until(poll_event_ignoring_progress_events)
        assert isinstance(got, Event)
        return got

    def receive_until_error(self) -> Event:
        """Receive until the stream itself detects an error; return the ERROR event."""
        while (e := self.next_event()).kind in ("RECV", "REQUESTED", "STARTED", "READ_DONE"):
            pass
        assert e.kind == "ERROR", e
        return e

    def assert_terminates_with(self, error: tuple[int, int, int]) -> Any:
        """Assert that the stream fails with this error; return the Terminate that it sends."""
        assert self.receive_until_error().err == error
        assert self.poll_event() is None
        self.send_terminate()
        t = self.read_sent_terminate()
        assert (t.layer, t.etype, t.code, t.reserved) == (*error, 0)
        return t

    def pop_partial_receive(self) -> int | None:
        user_data = ffi.new("uint64_t *")
        return (
            int(user_data[0])
            if lib.siw_ddp_stream_pop_partial_buffer(self.ddp, 0, user_data)
            else None
        )


class Dgram(PeerDgram):
    """An RDMAP datagram endpoint (siw_rdmap_dgram), with the socket of its peer."""

    def __init__(self, handle: Any, llp: Any, recvs: RecvQueue) -> None:
        super().__init__(handle, llp)
        self.recvs = recvs

    def inject_datagram(self, payload: bytes = b"", **fields: Any) -> None:
        segment = bytes(DDPDatagram(**fields)) + payload
        datagram = segment + crc32c(segment).to_bytes(4, "little")
        self.sock.sendto(datagram, ("127.0.0.1", self.port))

    def transmit(self, elements: Sequence[Sge], **fields: Any) -> None:
        op = ffi.new(
            "struct siw_rdmap_dgram_op *",
            {
                "dest": self.peer,
                "sgl": (array := sge_array(elements)),
                "nsge": len(elements),
                "length": sum(e[1] for e in elements),
                **fields,
            },
        )
        check_result(lib.siw_rdmap_dgram_send(self.handle, op))
        del array

    def poll_event(self) -> Event | None:
        event = ffi.new("struct siw_rdmap_event *")
        return Event.from_c(event) if lib.siw_rdmap_dgram_recv(self.handle, event) else None

    def next_event(self) -> Event:
        got = wait_until(self.poll_event)
        assert isinstance(got, Event)
        return got


class RdmapPoller(DdpStackPoller):
    """A poller, and the objects of the RDMAP layer opened on the poller."""

    def assign_stag_to_memory(self, memory: Memory, rights: int = ALL, *, pd: int = PD) -> int:
        """Assign an STag whose tagged offsets are the memory's addresses."""
        return self.alloc_stag(memory, rights | lib.SIW_MEM_LOCAL_READ, pd=pd, to_base=memory.addr)

    def open_stream(
        self, mpa: MpaStream, *, crc: bool = True, recvs: RecvQueue | None = None
    ) -> Stream:
        """Return an RDMAP stream on an MPA connection in full operation; it is not started."""
        ddp, made = self.open_ddp_stream(mpa), ffi.new("struct siw_rdmap_stream **")
        check_result(lib.siw_rdmap_open(self.mem, ddp, made))
        stream = Stream(made[0], ddp, mpa, recvs or self.create_queue(), crc=crc)
        self._first.append(stream.close)
        return stream

    def create_responder(
        self, *, crc: bool = True, recvs: RecvQueue | None = None, **how: Any
    ) -> Stream:
        """Return a started responder, whose peer must send the first message."""
        stream = self.open_stream(self.mpa.create_receiver(crc=crc), crc=crc, recvs=recvs)
        stream.start(initiator=False, **how)
        return stream

    def create_initiator(
        self,
        *,
        crc: bool = True,
        rcvbuf: int = 0,
        recvs: RecvQueue | None = None,
        start: bool = True,
        **how: Any,
    ) -> Stream:
        """Return an initiator, started by default; once started, both sides may send."""
        stream = self.open_stream(
            self.mpa.create_sender(crc=crc, rcvbuf=rcvbuf), crc=crc, recvs=recvs
        )
        if start:
            stream.start(initiator=True, **how)
        return stream

    def open_rdmap_dgram(self, *, no_crc: bool = False, **how: Any) -> tuple[Any, Any]:
        """Return a siw_rdmap_dgram and the UDP socket below it."""
        llp, out = self.mpa.create_udp_socket(**how), ffi.new("struct siw_rdmap_dgram **")
        ddp = self.open_ddp_dgram(llp, crc=not no_crc)
        check_result(lib.siw_rdmap_dgram_open(ddp, ffi.NULL, ffi.NULL, out))
        handle = out[0]
        self._first.append(lambda: lib.siw_rdmap_dgram_close(handle))
        return handle, llp

    def create_dgram_endpoint(self, *, qkey: int = 0x11, no_crc: bool = False) -> Dgram:
        handle, llp = self.open_rdmap_dgram(no_crc=no_crc)
        dgram = Dgram(handle, llp, self.create_queue())
        lib.siw_rdmap_dgram_configure_receiving(dgram.handle, dgram.recvs.handle, PD, qkey)
        self._last.append(dgram.sock.close)
        return dgram


def open_rdmap_poller() -> AbstractContextManager[RdmapPoller]:
    """Return a context manager that provides an RdmapPoller and closes it at the end."""
    return open_layer_poller(RdmapPoller)
