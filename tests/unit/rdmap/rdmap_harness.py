"""The C of RDMAP with a plain TCP or UDP socket as its peer, which may send it anything.

Octets are built by siwarp.inspect and judged with crcmod; nothing here shares code with the C.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from _siwarp_layers import ffi, lib
from unit.ddp.ddp_harness import (
    CANARY,
    PATIENCE,
    PD,
    Memory,
    Sge,
    StreamError,
    checked,
    counter,
    crc32c,
    cut,
    fpdu,
    parsed,
    pattern,
    recv_exactly,
    setting,
    sgl,
    tagged,
    untagged,
    until,
)
from unit.mpa.mpa_harness import params, recv_startup, recv_to_end

from siwarp.inspect import (
    AtomicRequest,
    AtomicResponse,
    DDPDatagram,
    MPAReply,
    MPARequest,
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
    "RdmapWorld",
    "Stream",
    "StreamError",
    "UDDatagram",
    "atomic_request",
    "atomic_response",
    "checked",
    "counter",
    "crc32c",
    "fpdu",
    "parsed",
    "pattern",
    "rdmap_world",
    "read_request",
    "read_response",
    "recv_exactly",
    "recv_to_end",
    "send",
    "setting",
    "tagged",
    "terminate",
    "untagged",
    "until",
    "write",
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
    lib.SIW_RDMAP_PARKED: "PARKED",
}


# ---- what a peer may say


def send(payload: bytes = b"", **fields: Any) -> bytes:
    return untagged(payload, **{"opcode": Opcode.SEND, **fields})


def write(payload: bytes = b"", **fields: Any) -> bytes:
    return tagged(payload, **{"opcode": Opcode.RDMA_WRITE, **fields})


def read_request(*, size: int, src_stag: int, src_to: int, **fields: Any) -> bytes:
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
    return untagged(body, **{"opcode": Opcode.RDMA_READ_REQUEST, "qn": Queue.READ_REQUEST, **head})


def read_response(payload: bytes = b"", **fields: Any) -> bytes:
    return tagged(payload, **{"opcode": Opcode.RDMA_READ_RESPONSE, **fields})


def atomic_request(*, stag: int, to: int, **fields: Any) -> bytes:
    head = {
        name: fields.pop(name)
        for name in ("msn", "l", "rv", "dv", "mo", "qn", "opcode", "inv_stag")
        if name in fields
    }
    body = bytes(AtomicRequest(**fields, stag=stag, to=to))
    return untagged(body, **{"opcode": Opcode.ATOMIC_REQUEST, "qn": Queue.READ_REQUEST, **head})


def atomic_response(request: int, original: int = 0, **fields: Any) -> bytes:
    body = bytes(AtomicResponse(request=request, old=original))
    head = {"opcode": Opcode.ATOMIC_RESPONSE, "qn": Queue.ATOMIC_RESPONSE, **fields}
    return untagged(body, **head)


def terminate(body: bytes | Terminate, **fields: Any) -> bytes:
    return untagged(bytes(body), **{"opcode": Opcode.TERMINATE, "qn": Queue.TERMINATE, **fields})


@dataclass(frozen=True)
class Event:
    """A struct siw_rdmap_event."""

    kind: str
    status: int
    cookie: int
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
    def of(cls, e: Any) -> Event:
        return cls(
            KINDS[e.kind],
            e.status,
            e.cookie,
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


class RecvQueue:
    """A siw_rdmap_queue."""

    def __init__(self, port: Any, depth: int, pd: int) -> None:
        out = ffi.new("struct siw_rdmap_queue **")
        checked(lib.siw_rdmap_queue_create(port, depth, 16, pd, out))
        self.handle = out[0]

    def post(self, cookie: int, *elements: Sge) -> None:
        checked(lib.siw_rdmap_queue_post(self.handle, cookie, sgl(elements), len(elements)))

    def take(self) -> int | None:
        cookie = ffi.new("uint64_t *")
        return int(cookie[0]) if lib.siw_rdmap_queue_take(self.handle, cookie) else None


class Stream:
    """A siw_rdmap_stream and its peer's socket."""

    def __init__(self, handle: Any, sock: socket.socket, recvs: RecvQueue, *, crc: bool) -> None:
        self.handle = handle
        self.sock = sock
        self.recvs = recvs
        self.crc = crc
        self._kept: list[Any] = []

    def start(
        self,
        *,
        initiator: bool,
        ird: int = 4,
        ord: int = 4,
        rtr: int = 0,
        pd: int = PD,
        park: int = 0,
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
                "park": park,
            },
        )
        checked(lib.siw_rdmap_start(self.handle, how))

    # the peer's side

    def put(self, *segments: bytes) -> None:
        """Send segments to the stream, each in an FPDU."""
        fields = {} if self.crc else {"crc": 0}
        self.sock.sendall(b"".join(fpdu(s, **fields) for s in segments))

    def pull(self) -> tuple[Any, bytes]:
        """Read one FPDU that the stream sent: its segment's header and payload."""
        length = recv_exactly(self.sock, 2)
        ulpdu = int.from_bytes(length, "big")
        rest = recv_exactly(self.sock, ulpdu + -(2 + ulpdu) % 4 + 4)
        (segment,) = cut(length + rest, crc=self.crc)
        return parsed(segment) if segment else (None, b"")

    def pull_message(self) -> tuple[Any, bytes]:
        """Read segments up to a last one: the first one's header and all payload."""
        head, octets = self.pull()
        last, parts = head, [octets]
        while not last.l:
            last, octets = self.pull()
            parts.append(octets)
        return head, b"".join(parts)

    def pull_read_request(self) -> tuple[Any, Any]:
        head, octets = self.pull_message()
        assert (head.t, head.opcode, head.qn) == (0, Opcode.RDMA_READ_REQUEST, Queue.READ_REQUEST)
        assert len(octets) == 28
        return head, ReadRequest(octets)

    def pull_atomic_request(self) -> tuple[Any, Any]:
        head, octets = self.pull_message()
        assert (head.t, head.opcode, head.qn) == (0, Opcode.ATOMIC_REQUEST, Queue.READ_REQUEST)
        assert len(octets) == 52
        return head, AtomicRequest(octets)

    def pull_atomic_response(self) -> tuple[Any, Any]:
        head, octets = self.pull_message()
        assert (head.t, head.opcode, head.qn) == (0, Opcode.ATOMIC_RESPONSE, Queue.ATOMIC_RESPONSE)
        assert len(octets) == 12
        return head, AtomicResponse(octets)

    def pull_terminate(self) -> Any:
        """Read up to the Terminate, and see that nothing follows it."""
        head, octets = self.pull_message()
        while head.opcode != Opcode.TERMINATE:
            head, octets = self.pull_message()
        assert (head.t, head.qn, head.msn, head.mo, head.inv_stag) == (0, Queue.TERMINATE, 1, 0, 0)
        assert recv_to_end(self.sock) == b"", "something follows the Terminate"
        return Terminate(octets)

    # the stream's side: out

    def op(self, opcode: int, elements: Sequence[Sge] = (), **fields: Any) -> Any:
        array = sgl(elements)
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
        self._kept.append((array, op))
        return op

    def begin(self, opcode: int, elements: Sequence[Sge] = (), **fields: Any) -> None:
        checked(lib.siw_rdmap_send(self.handle, self.op(opcode, elements, **fields)))

    def atomic(self, sink: Sge, rkey: int = 1, remote_to: int = 0, **how: int) -> None:
        """Ask for an atomic operation; how: kind, data, mask, compare, compare_mask, cookie."""
        cookie = how.pop("cookie", 0)
        asked = ffi.new("struct siw_rdmap_atomic *", how)
        where = {"rkey": rkey, "remote_to": remote_to, "cookie": cookie}
        self.do(Opcode.ATOMIC_REQUEST, [sink], atomic=asked, **where)

    def flush_once(self) -> int:
        return checked(lib.siw_rdmap_flush(self.handle))

    def flush(self) -> None:
        until(self.flush_once)

    def do(self, opcode: int, elements: Sequence[Sge] = (), **fields: Any) -> None:
        self.begin(opcode, elements, **fields)
        self.flush()

    def terminate(self) -> None:
        until(lambda: checked(lib.siw_rdmap_terminate(self.handle)))

    @property
    def begun(self) -> int:
        return int(lib.siw_rdmap_begun(self.handle))

    @property
    def accepted(self) -> int:
        return int(lib.siw_rdmap_accepted(self.handle))

    @property
    def owes(self) -> bool:
        return bool(lib.siw_rdmap_owes(self.handle))

    # ... in

    def event_once(self) -> Event | None:
        event = ffi.new("struct siw_rdmap_event *")
        return Event.of(event) if checked(lib.siw_rdmap_recv(self.handle, event)) else None

    def event(self, *, progress: bool = False) -> Event:
        """Return the next event; PROGRESS is passed over unless it is asked for."""

        def step() -> Event | None:
            e = self.event_once()
            return None if e and e.kind == "PROGRESS" and not progress else e

        got = until(step)
        assert isinstance(got, Event)
        return got

    def fails(self) -> Event:
        """Receive until the stream ends in an error that this end found."""
        while (e := self.event()).kind in ("RECV", "REQUESTED", "STARTED", "READ_DONE"):
            pass
        assert e.kind == "ERROR", e
        return e

    def terminates(self, error: tuple[int, int, int]) -> Any:
        """See the stream fail so and send its Terminate; return that."""
        assert self.fails().err == error
        assert self.event_once() is None
        self.terminate()
        t = self.pull_terminate()
        assert (t.layer, t.etype, t.code, t.reserved) == (*error, 0)
        return t

    def take_read(self) -> int | None:
        cookie = ffi.new("uint64_t *")
        return int(cookie[0]) if lib.siw_rdmap_take_read(self.handle, cookie) else None

    def take_recv(self) -> int | None:
        cookie = ffi.new("uint64_t *")
        return int(cookie[0]) if lib.siw_rdmap_take_recv(self.handle, cookie) else None


class Dgram:
    """A siw_rdmap_dgram and a socket that talks to it."""

    def __init__(self, handle: Any, recvs: RecvQueue) -> None:
        self.handle = handle
        self.recvs = recvs
        addr = ffi.new("struct siw_addr *")
        checked(lib.siw_rdmap_dgram_addr(handle, addr))
        self.port = socket.ntohs(addr.port_be)
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.settimeout(PATIENCE)
        self.peer = ffi.new("struct siw_addr *")
        checked(lib.siw_addr_parse(b"127.0.0.1", self.sock.getsockname()[1], self.peer))

    def put(self, payload: bytes = b"", **fields: Any) -> None:
        segment = bytes(DDPDatagram(**fields)) + payload
        datagram = segment + crc32c(segment).to_bytes(4, "little")
        self.sock.sendto(datagram, ("127.0.0.1", self.port))

    def transmit(self, elements: Sequence[Sge], **fields: Any) -> None:
        op = ffi.new(
            "struct siw_rdmap_dgram_op *",
            {
                "dest": self.peer,
                "sgl": (array := sgl(elements)),
                "nsge": len(elements),
                "length": sum(e[1] for e in elements),
                **fields,
            },
        )
        checked(lib.siw_rdmap_dgram_send(self.handle, op))
        del array

    def event_once(self) -> Event | None:
        event = ffi.new("struct siw_rdmap_event *")
        return Event.of(event) if lib.siw_rdmap_dgram_recv(self.handle, event) else None

    def event(self) -> Event:
        got = until(self.event_once)
        assert isinstance(got, Event)
        return got


class RdmapWorld:
    """A port, and what was opened on it; everything is closed at its end."""

    def __init__(self) -> None:
        out = ffi.new("struct siw_rdmap_port **")
        checked(lib.siw_rdmap_port_open(out))
        self.port = out[0]
        self._closers: list[Callable[[], object]] = []
        self._memories: list[Memory] = []
        self._listener = ffi.NULL

    # memory

    def stag(self, memory: Memory, rights: int = ALL, *, pd: int = PD) -> int:
        region = ffi.new(
            "struct siw_rdmap_region *",
            {
                "addr": ffi.cast("void *", memory.addr),
                "length": memory.size,
                "rights": rights,
                "pd": pd,
            },
        )
        stag = ffi.new("uint32_t *")
        checked(lib.siw_rdmap_stag_alloc(self.port, region, stag))
        memory.stag = int(stag[0])
        return memory.stag

    def memory(self, size: int, content: bytes | None = None, **how: Any) -> Memory:
        memory = Memory(size, content)
        self.stag(memory, **how)
        self._memories.append(memory)  # what ours may write to stays as long as ours does
        return memory

    def free(self, stag: int) -> int:
        return int(lib.siw_rdmap_stag_free(self.port, stag))

    def recv_queue(self, *, depth: int = 16, pd: int = PD) -> RecvQueue:
        queue = RecvQueue(self.port, depth, pd)
        self._closers.append(lambda: lib.siw_rdmap_queue_destroy(queue.handle))
        return queue

    # streams

    def _addr(self, port: int) -> Any:
        addr = ffi.new("struct siw_addr *")
        checked(lib.siw_addr_parse(b"127.0.0.1", port, addr))
        return addr

    def _add(
        self, handle: Any, sock: socket.socket, *, crc: bool, recvs: RecvQueue | None
    ) -> Stream:
        sock.settimeout(PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = Stream(handle, sock, recvs or self.recv_queue(), crc=crc)
        self._closers.append(sock.close)
        self._closers.append(lambda: lib.siw_rdmap_close(handle, False))
        return stream

    def _startup(self, handle: Any, want: int) -> None:
        peer = ffi.new("struct siw_mpa_params *")
        until(lambda: checked(lib.siw_rdmap_startup(handle, peer)) == want)

    def responder(self, *, crc: bool = True, recvs: RecvQueue | None = None, **how: Any) -> Stream:
        """A started responder. Its peer speaks first."""
        if self._listener == ffi.NULL:
            out = ffi.new("struct siw_rdmap_listener **")
            checked(lib.siw_rdmap_listen(self.port, self._addr(0), 64, ffi.NULL, out))
            self._listener = out[0]
        local = ffi.new("struct siw_addr *")
        checked(lib.siw_rdmap_listener_addr(self._listener, local))
        sock = socket.create_connection(("127.0.0.1", socket.ntohs(local.port_be)))
        made = ffi.new("struct siw_rdmap_stream **")

        def accept() -> bool:
            rv = lib.siw_rdmap_accept(self._listener, ffi.NULL, made)
            return rv != -errno.EAGAIN and checked(rv) == 0

        until(accept)
        stream = self._add(made[0], sock, crc=crc, recvs=recvs)
        sock.sendall(bytes(MPARequest(rev=2, c=int(crc))))
        self._startup(stream.handle, lib.SIW_MPA_REQUEST)
        checked(lib.siw_rdmap_reply(stream.handle, params(crc=0)))
        assert recv_startup(sock).r == 0
        stream.start(initiator=False, **how)
        return stream

    def initiator(
        self,
        *,
        crc: bool = True,
        rcvbuf: int = 0,
        recvs: RecvQueue | None = None,
        start: bool = True,
        **how: Any,
    ) -> Stream:
        """An initiator, started unless said otherwise: both ends may speak."""
        made = ffi.new("struct siw_rdmap_stream **")
        with socket.socket() as listener:
            if rcvbuf:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            dest = self._addr(listener.getsockname()[1])
            mine = params(crc=int(crc))
            checked(lib.siw_rdmap_connect(self.port, dest, ffi.NULL, mine, ffi.NULL, made))
            listener.settimeout(PATIENCE)
            sock, _ = listener.accept()
        stream = self._add(made[0], sock, crc=crc, recvs=recvs)
        until(lambda: self._request_is_out(stream))
        sock.sendall(bytes(MPAReply(rev=2, c=0)))
        self._startup(stream.handle, lib.SIW_MPA_REPLY)
        if start:
            stream.start(initiator=True, **how)
        return stream

    def _request_is_out(self, stream: Stream) -> bool:
        peer = ffi.new("struct siw_mpa_params *")
        checked(lib.siw_rdmap_startup(stream.handle, peer))
        stream.sock.setblocking(False)
        try:
            recv_startup(stream.sock)
        except BlockingIOError:
            return False
        finally:
            stream.sock.settimeout(PATIENCE)
        return True

    # datagrams

    def dgram(self, *, qkey: int = 0x11, no_crc: bool = False) -> Dgram:
        attr = ffi.new("struct siw_rdmap_dgram_attr *", {"fd": -1, "no_crc": no_crc})
        attr.local = self._addr(0)[0]
        out = ffi.new("struct siw_rdmap_dgram **")
        checked(lib.siw_rdmap_dgram_open(self.port, attr, out))
        handle = out[0]
        dgram = Dgram(handle, self.recv_queue())
        lib.siw_rdmap_dgram_start(handle, dgram.recvs.handle, PD, qkey)
        self._closers.append(dgram.sock.close)
        self._closers.append(lambda: lib.siw_rdmap_dgram_close(handle))
        return dgram

    def close(self) -> None:
        for closer in reversed(self._closers):
            closer()
        if self._listener != ffi.NULL:
            lib.siw_rdmap_listener_close(self._listener)
        lib.siw_rdmap_port_close(self.port)


@contextmanager
def rdmap_world() -> Iterator[RdmapWorld]:
    w = RdmapWorld()
    try:
        yield w
    finally:
        w.close()
