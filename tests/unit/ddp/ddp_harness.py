"""The C of DDP with a plain TCP or UDP socket as its peer, which may send it anything.

Octets are built by siwarp.inspect and judged with crcmod; nothing here shares code with the C.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from _siwarp_layers import ffi, lib
from unit.mpa.mpa_harness import (
    PATIENCE,
    StreamError,
    checked,
    crc32c,
    cut,
    fpdu,
    params,
    recv_exactly,
    recv_startup,
    setting,
    until,
)

from siwarp.inspect import DDP, DDPTagged, DDPUntagged, MPAReply, MPARequest

__all__ = [
    "CANARY",
    "PATIENCE",
    "PD",
    "DdpWorld",
    "Dgram",
    "Memory",
    "Queue",
    "Sge",
    "Stream",
    "StreamError",
    "checked",
    "crc32c",
    "cut",
    "ddp_world",
    "fpdu",
    "pattern",
    "recv_exactly",
    "setting",
    "tagged",
    "untagged",
    "until",
]

#: What memory holds that nobody wrote.
CANARY = 0xA5
#: The protection domain of everything, unless said otherwise.
PD = 7
ALL_RIGHTS = (
    lib.SIW_DDP_LOCAL_READ
    | lib.SIW_DDP_LOCAL_WRITE
    | lib.SIW_DDP_REMOTE_READ
    | lib.SIW_DDP_REMOTE_WRITE
)
Sge = tuple[int, int, int]  # address, length, key


@cache
def _noise(seed: int, octets: int) -> bytes:
    return random.Random(seed).randbytes(octets)


def pattern(n: int, seed: int = 1) -> bytes:
    """Return n octets in which a shifted, lost or repeated piece shows."""
    octets = 1 << 16
    while octets < n:
        octets *= 2
    return _noise(seed % 64, octets)[:n]


def untagged(payload: bytes = b"", **fields: Any) -> bytes:
    """Return an untagged segment as scapy builds it."""
    head = bytes(DDPUntagged(**fields))
    assert len(head) == 18
    return head + payload


def tagged(payload: bytes = b"", **fields: Any) -> bytes:
    """Return a tagged segment as scapy builds it."""
    head = bytes(DDPTagged(**fields))
    assert len(head) == 14
    return head + payload


def parsed(segment: bytes) -> tuple[Any, bytes]:
    """Return a segment's header as scapy reads it, and its payload."""
    packet = DDP(segment)
    head = packet.copy()
    head.remove_payload()
    return head, segment[len(bytes(head)) :]


def sgl(elements: Sequence[Sge]) -> Any:
    """Return an array of struct siw_sge."""
    array = ffi.new("struct siw_sge[]", max(len(elements), 1))
    for sge, (addr, length, lkey) in zip(array, elements, strict=False):
        sge.addr, sge.length, sge.lkey = addr, length, lkey
    return array


class Memory:
    """Octets between two stretches of canaries, and perhaps an STag on them."""

    GUARD = 64

    def __init__(self, size: int, content: bytes | None = None) -> None:
        self.size = size
        self._all = ffi.new("uint8_t[]", size + 2 * self.GUARD)
        ffi.buffer(self._all)[:] = bytes([CANARY]) * (size + 2 * self.GUARD)
        if content is not None:
            self[0 : len(content)] = content
        self.stag = 0

    @property
    def addr(self) -> int:
        return int(ffi.cast("uintptr_t", self._all)) + self.GUARD

    def __setitem__(self, where: slice, octets: bytes) -> None:
        start = (where.start or 0) + self.GUARD
        ffi.buffer(self._all)[start : start + len(octets)] = octets

    def octets(self) -> bytes:
        """Return what lies there, after a look at the canaries around it."""
        everything = bytes(ffi.buffer(self._all))
        guard = bytes([CANARY]) * self.GUARD
        assert everything[: self.GUARD] == guard, "octets were written before the buffer"
        assert everything[-self.GUARD :] == guard, "octets were written behind the buffer"
        return everything[self.GUARD : self.GUARD + self.size]

    def untouched(self) -> bool:
        return self.octets() == bytes([CANARY]) * self.size

    def sge(self, at: int = 0, length: int | None = None, key: int | None = None) -> Sge:
        return (
            self.addr + at,
            self.size - at if length is None else length,
            self.stag if key is None else key,
        )


class Queue:
    """A siw_ddp_queue."""

    def __init__(self, port: Any, *, depth: int, max_sge: int, pd: int, internal: bool) -> None:
        out = ffi.new("struct siw_ddp_queue **")
        attr = ffi.new(
            "struct siw_ddp_queue_attr *",
            {"depth": depth, "max_sge": max_sge, "pd": pd, "internal": internal},
        )
        checked(lib.siw_ddp_queue_create(port, attr, out))
        self.handle = out[0]

    def post(self, cookie: int, *elements: Sge) -> None:
        checked(lib.siw_ddp_queue_post(self.handle, cookie, sgl(elements), len(elements)))

    def take(self) -> int | None:
        cookie = ffi.new("uint64_t *")
        return int(cookie[0]) if lib.siw_ddp_queue_take(self.handle, cookie) else None


class Stream:
    """A siw_ddp_stream in full operation and its peer's socket."""

    def __init__(self, handle: Any, sock: socket.socket, *, crc: bool) -> None:
        self.handle = handle
        self.sock = sock
        self.crc = crc
        self._kept: list[Any] = []

    def send(self, *segments: bytes) -> None:
        """Send segments to the stream, each in an FPDU."""
        fields = {} if self.crc else {"crc": 0}
        self.sock.sendall(b"".join(fpdu(s, **fields) for s in segments))

    # in

    def head_once(self) -> Any | None:
        """Return the next segment's header, "empty" for an FPDU without one, None for nothing."""
        seg = ffi.new("struct siw_ddp_seg *")
        rv = checked(lib.siw_ddp_rx_head(self.handle, seg))
        return {0: None, 1: seg, 2: "empty"}[rv]

    def head(self) -> Any:
        return until(self.head_once)

    def place_once(self, seg: Any, right: int) -> tuple[int, int, int] | None:
        delivery = ffi.new("struct siw_ddp_delivery *")
        rv = checked(lib.siw_ddp_rx_place(self.handle, seg, right, delivery))
        return (rv, int(delivery.cookie), int(delivery.length)) if rv else None

    def place(self, seg: Any, right: int = lib.SIW_DDP_REMOTE_WRITE) -> tuple[int, int] | None:
        """Place the segment: the delivery's cookie and length, or None in a message's middle."""
        rv, cookie, length = until(lambda: self.place_once(seg, right))
        return (cookie, length) if rv == 1 else None

    def receive(self, right: int = lib.SIW_DDP_REMOTE_WRITE) -> tuple[int, int] | None:
        return self.place(self.head(), right)

    def fails(self, right: int = lib.SIW_DDP_REMOTE_WRITE) -> tuple[int, int, int]:
        """Receive until the stream fails: the error's layer, type and code."""
        try:
            for _ in range(1000):
                self.receive(right)
        except StreamError as e:
            assert e.errno in (errno.EPROTO, errno.EACCES, errno.EBADMSG), e
        else:
            raise AssertionError("1000 segments were received without an error")
        return self.error

    @property
    def error(self) -> tuple[int, int, int]:
        e = lib.siw_ddp_error(self.handle)
        return (e.layer, e.type, e.code)

    # out

    def message(self, elements: Sequence[Sge] = (), **fields: Any) -> Any:
        array = sgl(elements)
        msg = ffi.new(
            "struct siw_ddp_msg *",
            {
                "sgl": array,
                "nsge": len(elements),
                "length": sum(e[1] for e in elements),
                **fields,
            },
        )
        self._kept.append((array, msg))
        return msg

    def begin(self, msg: Any) -> int:
        err = ffi.new("struct siw_wire_err *")
        rv = lib.siw_ddp_tx(self.handle, msg, err)
        self.tx_error = (err.layer, err.type, err.code)
        return checked(rv)

    def more(self) -> int:
        err = ffi.new("struct siw_wire_err *")
        rv = lib.siw_ddp_tx_more(self.handle, err)
        self.tx_error = (err.layer, err.type, err.code)
        return checked(rv)

    def flush_once(self) -> int:
        return checked(lib.siw_ddp_tx_flush(self.handle))

    def transmit(self, msg: Any) -> None:
        """Send all of a message; what it is has to fit into TCP's buffers."""
        if self.begin(msg) == 0:
            until(self.more)
        until(self.flush_once)

    def sent(self, octets: int) -> list[tuple[Any, bytes]]:
        """Read FPDUs until that many octets of payload came: headers and payloads."""
        out = []
        while octets > 0 or not out:
            length = recv_exactly(self.sock, 2)
            ulpdu = int.from_bytes(length, "big")
            rest = recv_exactly(self.sock, ulpdu + -(2 + ulpdu) % 4 + 4)
            (segment,) = cut(length + rest, crc=self.crc)
            out.append(parsed(segment))
            octets -= len(out[-1][1])
        return out

    @property
    def begun(self) -> int:
        return int(lib.siw_ddp_tx_begun(self.handle))

    @property
    def accepted(self) -> int:
        return int(lib.siw_ddp_tx_accepted(self.handle))


class Dgram:
    """A siw_ddp_dgram and a socket that talks to it."""

    def __init__(self, handle: Any, family: int) -> None:
        self.handle = handle
        addr = ffi.new("struct siw_addr *")
        checked(lib.siw_ddp_dgram_addr(handle, addr))
        self.host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self.port = socket.ntohs(addr.port_be)
        self.sock = socket.socket(family, socket.SOCK_DGRAM)
        self.sock.bind((self.host, 0))
        self.sock.settimeout(PATIENCE)
        self.peer = ffi.new("struct siw_addr *")
        peer_port = self.sock.getsockname()[1]
        checked(lib.siw_addr_parse(self.host.encode(), peer_port, self.peer))

    def send(self, segment: bytes, *, crc: int | None = None) -> None:
        """Send it a datagram: the segment and its CRC, or what is given for that."""
        value = crc32c(segment) if crc is None else crc
        self.sock.sendto(segment + value.to_bytes(4, "little"), (self.host, self.port))

    def receive_once(self) -> tuple[Any, Any] | None:
        seg, source = ffi.new("struct siw_ddp_seg *"), ffi.new("struct siw_addr *")
        return (seg, source) if lib.siw_ddp_dgram_rx(self.handle, seg, source) else None

    def receive(self) -> tuple[Any, Any]:
        got = until(self.receive_once)
        assert got is not None
        return got  # type: ignore[no-any-return]

    def place(self, queue: Queue, head: int = 0) -> tuple[int, int, int]:
        """Return the code, the cookie and the length."""
        delivery = ffi.new("struct siw_ddp_delivery *")
        rv = lib.siw_ddp_dgram_place(self.handle, queue.handle, head, delivery)
        return rv, int(delivery.cookie), int(delivery.length)

    def transmit(self, elements: Sequence[Sge], **fields: Any) -> None:
        array = sgl(elements)
        msg = ffi.new(
            "struct siw_ddp_dgram_msg *",
            {
                "dest": self.peer,
                "sgl": array,
                "nsge": len(elements),
                "length": sum(e[1] for e in elements),
                "pd": PD,
                **fields,
            },
        )
        checked(lib.siw_ddp_dgram_tx(self.handle, msg))

    def sent(self) -> bytes:
        return self.sock.recv(1 << 17)


class DdpWorld:
    """A port, and what was opened on it; everything is closed at its end."""

    def __init__(self) -> None:
        out = ffi.new("struct siw_ddp_port **")
        checked(lib.siw_ddp_port_open(out))
        self.port = out[0]
        self._streams: list[Stream] = []
        self._dgrams: list[Dgram] = []
        self._queues: list[Queue] = []
        self._sockets: list[socket.socket] = []
        self._listener = ffi.NULL

    # memory

    def stag(
        self,
        memory: Memory,
        rights: int = ALL_RIGHTS,
        *,
        pd: int = PD,
        stream: Stream | None = None,
        to_base: int = 0,
    ) -> int:
        """Give memory an STag, with tagged offsets from to_base on."""
        region = ffi.new(
            "struct siw_ddp_region *",
            {
                "addr": ffi.cast("uint8_t *", memory.addr),
                "length": memory.size,
                "to_base": to_base,
                "rights": rights,
                "pd": pd,
                "stream": stream.handle if stream else ffi.NULL,
            },
        )
        stag = ffi.new("uint32_t *")
        checked(lib.siw_ddp_stag_alloc(self.port, region, stag))
        memory.stag = int(stag[0])
        return memory.stag

    def memory(self, size: int, content: bytes | None = None, **how: Any) -> Memory:
        """Return memory with an STag."""
        memory = Memory(size, content)
        self.stag(memory, **how)
        return memory

    def free(self, stag: int) -> int:
        return int(lib.siw_ddp_stag_free(self.port, stag))

    def get(
        self,
        stag: int,
        right: int,
        to: int,
        length: int,
        *,
        pd: int = PD,
        stream: Stream | None = None,
    ) -> list[tuple[int, int]] | tuple[int, int, int]:
        """Look an STag up, and let it go: the pieces of memory, or the error."""
        iov, err = ffi.new("struct iovec[16]"), ffi.new("struct siw_wire_err *")
        n = lib.siw_ddp_stag_get(
            self.port,
            stag,
            pd,
            stream.handle if stream else ffi.NULL,
            right,
            to,
            length,
            iov,
            16,
            err,
        )
        if n < 0:
            assert n == -errno.EACCES
            return (err.layer, err.type, err.code)
        if n:
            lib.siw_ddp_stag_put(self.port, stag)
        return [(int(ffi.cast("uintptr_t", iov[i].iov_base)), iov[i].iov_len) for i in range(n)]

    def resolve(
        self,
        elements: Sequence[Sge],
        *,
        write: bool,
        offset: int = 0,
        length: int | None = None,
        pd: int = PD,
        internal: bool = False,
    ) -> list[tuple[int, int]]:
        iov = ffi.new("struct iovec[16]")
        if length is None:
            length = sum(e[1] for e in elements) - offset
        n = checked(
            lib.siw_ddp_sgl_resolve(
                self.port,
                sgl(elements),
                len(elements),
                internal,
                pd,
                write,
                offset,
                length,
                iov,
                16,
            )
        )
        return [(int(ffi.cast("uintptr_t", iov[i].iov_base)), iov[i].iov_len) for i in range(n)]

    def queue(
        self, *, depth: int = 16, max_sge: int = 16, pd: int = PD, internal: bool = False
    ) -> Queue:
        queue = Queue(self.port, depth=depth, max_sge=max_sge, pd=pd, internal=internal)
        self._queues.append(queue)
        return queue

    # streams

    def _addr(self, port: int) -> Any:
        addr = ffi.new("struct siw_addr *")
        checked(lib.siw_addr_parse(b"127.0.0.1", port, addr))
        return addr

    def _add(self, handle: Any, sock: socket.socket, crc: bool) -> Stream:
        sock.settimeout(PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = Stream(handle, sock, crc=crc)
        lib.siw_ddp_stream_pd(handle, PD)
        self._streams.append(stream)
        self._sockets.append(sock)
        return stream

    def _startup(self, handle: Any, want: int) -> None:
        peer = ffi.new("struct siw_mpa_params *")
        until(lambda: checked(lib.siw_ddp_startup(handle, peer)) == want)

    def receiver(self, *, crc: bool = True) -> Stream:
        """A responder in full operation; its peer's socket may send segments."""
        if self._listener == ffi.NULL:
            out = ffi.new("struct siw_ddp_listener **")
            checked(lib.siw_ddp_listen(self.port, self._addr(0), 64, ffi.NULL, out))
            self._listener = out[0]
        local = ffi.new("struct siw_addr *")
        checked(lib.siw_ddp_listener_addr(self._listener, local))
        sock = socket.create_connection(("127.0.0.1", socket.ntohs(local.port_be)))
        made = ffi.new("struct siw_ddp_stream **")

        def accept() -> bool:
            rv = lib.siw_ddp_accept(self._listener, ffi.NULL, made)
            return rv != -errno.EAGAIN and checked(rv) == 0

        until(accept)
        stream = self._add(made[0], sock, crc)
        sock.sendall(bytes(MPARequest(rev=2, c=int(crc))))
        self._startup(stream.handle, lib.SIW_MPA_REQUEST)
        checked(lib.siw_ddp_reply(stream.handle, params(crc=0)))
        assert recv_startup(sock).r == 0
        return stream

    def sender(self, *, crc: bool = True, rcvbuf: int = 0, mss: int = 0) -> Stream:
        """An initiator in full operation; its peer's socket reads what it sends."""
        made = ffi.new("struct siw_ddp_stream **")
        with socket.socket() as listener:
            if rcvbuf:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
            if mss:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            dest = self._addr(listener.getsockname()[1])
            mine = params(crc=int(crc))
            checked(lib.siw_ddp_connect(self.port, dest, ffi.NULL, mine, ffi.NULL, made))
            listener.settimeout(PATIENCE)
            sock, _ = listener.accept()
        stream = self._add(made[0], sock, crc)
        until(lambda: self._request_is_out(stream))
        sock.sendall(bytes(MPAReply(rev=2, c=0)))
        self._startup(stream.handle, lib.SIW_MPA_REPLY)
        return stream

    def _request_is_out(self, stream: Stream) -> bool:
        peer = ffi.new("struct siw_mpa_params *")
        checked(lib.siw_ddp_startup(stream.handle, peer))
        stream.sock.setblocking(False)
        try:
            recv_startup(stream.sock)
        except BlockingIOError:
            return False
        finally:
            stream.sock.settimeout(PATIENCE)
        return True

    # datagrams

    def dgram(self, *, family: int = socket.AF_INET, no_crc: bool = False, fd: int = -1) -> Dgram:
        attr = ffi.new("struct siw_ddp_dgram_attr *", {"fd": fd, "no_crc": no_crc})
        host = b"::1" if family == socket.AF_INET6 else b"127.0.0.1"
        local = ffi.new("struct siw_addr *")
        checked(lib.siw_addr_parse(host, 0, local))
        attr.local = local[0]
        out = ffi.new("struct siw_ddp_dgram **")
        checked(lib.siw_ddp_dgram_open(self.port, attr, out))
        dgram = Dgram(out[0], family)
        self._dgrams.append(dgram)
        self._sockets.append(dgram.sock)
        return dgram

    def close(self) -> None:
        for stream in self._streams:
            lib.siw_ddp_close(stream.handle, False)
        for dgram in self._dgrams:
            lib.siw_ddp_dgram_close(dgram.handle)
        if self._listener != ffi.NULL:
            lib.siw_ddp_listener_close(self._listener)
        for queue in self._queues:
            lib.siw_ddp_queue_destroy(queue.handle)
        for sock in self._sockets:
            sock.close()
        lib.siw_ddp_port_close(self.port)


def counter(name: str) -> int:
    """Return a counter of this process."""
    index = next(
        i
        for i in range(lib.siw_counters_count())
        if ffi.string(lib.siw_counter_name(i)).decode() == name
    )
    return int(lib.siw_counter_get(index))


@contextmanager
def ddp_world() -> Iterator[DdpWorld]:
    w = DdpWorld()
    try:
        yield w
    finally:
        w.close()
