"""Drives the DDP layer's C code through a plain TCP or UDP socket, which can send any octets.

Octets are built by siwarp.inspect and checked with crcmod; the harness shares no code with the C
layer.
"""

from __future__ import annotations

import errno
import itertools
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from _siwarp_layers import ffi, lib
from unit.mpa.mpa_harness import (
    PATIENCE,
    MpaPoller,
    StreamError,
    build_fpdu,
    check_result,
    crc32c,
    open_layer_poller,
    recv_exactly,
    split_fpdus,
    temporary_setting,
    wait_until,
)
from unit.mpa.mpa_harness import Stream as MpaStream

from siwarp.inspect import DDP, DDPTagged, DDPUntagged

__all__ = [
    "CANARY",
    "PATIENCE",
    "PD",
    "DdpPoller",
    "Dgram",
    "Memory",
    "Queue",
    "Sge",
    "Stream",
    "StreamError",
    "build_fpdu",
    "build_tagged_segment",
    "build_untagged_segment",
    "check_result",
    "crc32c",
    "octet_pattern",
    "open_ddp_poller",
    "recv_exactly",
    "split_fpdus",
    "temporary_setting",
    "wait_until",
]

#: The value of octets in memory that nothing has written.
CANARY = 0xA5
#: The protection domain used by default.
PD = 7
ALL_RIGHTS = (
    lib.SIW_MEM_LOCAL_READ
    | lib.SIW_MEM_LOCAL_WRITE
    | lib.SIW_MEM_REMOTE_READ
    | lib.SIW_MEM_REMOTE_WRITE
)
Sge = tuple[int, int, int]  # the address, length and key of a scatter/gather element


@cache
def _random_octets(seed: int, octets: int) -> bytes:
    return random.Random(seed).randbytes(octets)


def octet_pattern(n: int, seed: int = 1) -> bytes:
    """Return n octets in which shifted, lost or repeated pieces are detectable."""
    octets = 1 << 16
    while octets < n:
        octets *= 2
    return _random_octets(seed % 64, octets)[:n]


def build_untagged_segment(payload: bytes = b"", **fields: Any) -> bytes:
    """Return an untagged segment built by scapy."""
    head = bytes(DDPUntagged(**fields))
    assert len(head) == 18
    return head + payload


def build_tagged_segment(payload: bytes = b"", **fields: Any) -> bytes:
    """Return a tagged segment built by scapy."""
    head = bytes(DDPTagged(**fields))
    assert len(head) == 14
    return head + payload


def parse_segment(segment: bytes) -> tuple[Any, bytes]:
    """Return a segment's header as dissected by scapy, and its payload."""
    packet = DDP(segment)
    head = packet.copy()
    head.remove_payload()
    return head, segment[len(bytes(head)) :]


def sge_array(elements: Sequence[Sge]) -> Any:
    """Return an array of struct siw_sge."""
    array = ffi.new("struct siw_sge[]", max(len(elements), 1))
    for sge, (addr, length, lkey) in zip(array, elements, strict=False):
        sge.addr, sge.length, sge.lkey = addr, length, lkey
    return array


class Memory:
    """A buffer between two guard areas of canary octets, optionally with an STag."""

    GUARD = 64

    def __init__(self, size: int, content: bytes | None = None) -> None:
        self.size = size
        self._all = ffi.new("uint8_t[]", size + 2 * self.GUARD)
        ffi.buffer(self._all)[:] = bytes([CANARY]) * (size + 2 * self.GUARD)
        if content is not None:
            self[0 : len(content)] = content
        self.stag = 0
        #: The address of the buffer's start in scatter/gather elements: the STag's first offset, or
        #: the memory address if the buffer has no STag.
        self.base = self.addr

    @property
    def addr(self) -> int:
        return int(ffi.cast("uintptr_t", self._all)) + self.GUARD

    def __setitem__(self, where: slice, octets: bytes) -> None:
        start = (where.start or 0) + self.GUARD
        ffi.buffer(self._all)[start : start + len(octets)] = octets

    def octets(self) -> bytes:
        """Return the buffer's content after checking the canaries on both sides."""
        everything = bytes(ffi.buffer(self._all))
        guard = bytes([CANARY]) * self.GUARD
        assert everything[: self.GUARD] == guard, "octets were written before the buffer"
        assert everything[-self.GUARD :] == guard, "octets were written after the buffer"
        return everything[self.GUARD : self.GUARD + self.size]

    def is_untouched(self) -> bool:
        return self.octets() == bytes([CANARY]) * self.size

    def sge(self, at: int = 0, length: int | None = None, key: int | None = None) -> Sge:
        return (
            (self.base if key is None else self.addr) + at,
            self.size - at if length is None else length,
            self.stag if key is None else key,
        )


class Queue:
    """A queue of untagged buffers (siw_mem_buffer_queue)."""

    def __init__(self, *, depth: int, max_sge: int, pd: int, internal: bool) -> None:
        out = ffi.new("struct siw_mem_buffer_queue **")
        attr = ffi.new(
            "struct siw_mem_queue_attr *",
            {"depth": depth, "max_sge": max_sge, "pd": pd, "internal": internal},
        )
        check_result(lib.siw_mem_buffer_queue_create(attr, out))
        self.handle = out[0]

    def post(self, user_data: int, *elements: Sge) -> None:
        check_result(
            lib.siw_mem_buffer_queue_post(
                self.handle, user_data, sge_array(elements), len(elements)
            )
        )

    def resize(self, depth: int) -> None:
        check_result(lib.siw_mem_buffer_queue_resize(self.handle, depth))

    def take_buffer(self) -> int | None:
        user_data = ffi.new("uint64_t *")
        return (
            int(user_data[0])
            if lib.siw_mem_buffer_queue_pop_unfilled(self.handle, user_data)
            else None
        )


class PeerStream:
    """A stream of some layer in full operation, together with its peer's socket."""

    def __init__(self, handle: Any, mpa: MpaStream, *, crc: bool) -> None:
        self.handle = handle
        self.mpa = mpa
        self.sock = mpa.sock
        self.crc = crc
        self._kept: list[Any] = []
        self.ends: list[Any] = []  # stream positions at which the transmitted messages end

    def inject_segments(self, *segments: bytes) -> None:
        """Send segments to the stream, each in an FPDU."""
        fields = {} if self.crc else {"crc": 0}
        self.sock.sendall(b"".join(build_fpdu(s, **fields) for s in segments))

    def read_sent_segment(self) -> tuple[Any, bytes]:
        """Read one FPDU that the stream sent; return its segment's header and payload."""
        length = recv_exactly(self.sock, 2)
        ulpdu = int.from_bytes(length, "big")
        rest = recv_exactly(self.sock, ulpdu + -(2 + ulpdu) % 4 + 4)
        (segment,) = split_fpdus(length + rest, crc=self.crc)
        return parse_segment(segment) if segment else (None, b"")


class Stream(PeerStream):
    """A DDP stream (siw_ddp_stream), with the socket of its peer."""

    # Receive path.

    def poll_segment_header(self) -> Any | None:
        """Return the next segment's header, "empty" for an empty FPDU, or None if none arrived."""
        seg = ffi.new("struct siw_ddp_seg *")
        rv = check_result(lib.siw_ddp_rx_peek_segment(self.handle, seg))
        return {0: None, 1: seg, 2: "empty"}[rv]

    def next_segment_header(self) -> Any:
        return wait_until(self.poll_segment_header)

    def try_to_place_segment(self, seg: Any, right: int) -> tuple[int, int, int] | None:
        delivery = ffi.new("struct siw_ddp_delivery *")
        rv = check_result(lib.siw_ddp_rx_place(self.handle, seg, right, delivery))
        return (rv, int(delivery.user_data), int(delivery.length)) if rv else None

    def place_segment(
        self, seg: Any, right: int = lib.SIW_MEM_REMOTE_WRITE
    ) -> tuple[int, int] | None:
        """Place the segment; return the delivery's (user_data, length), or None in mid-message."""
        rv, user_data, length = wait_until(lambda: self.try_to_place_segment(seg, right))
        return (user_data, length) if rv == 1 else None

    def receive_segment(self, right: int = lib.SIW_MEM_REMOTE_WRITE) -> tuple[int, int] | None:
        return self.place_segment(self.next_segment_header(), right)

    def receive_until_error(self, right: int = lib.SIW_MEM_REMOTE_WRITE) -> tuple[int, int, int]:
        """Receive until the stream fails; return the error's layer, type and code."""
        try:
            for _ in range(1000):
                self.receive_segment(right)
        except StreamError as e:
            assert e.errno in (errno.EPROTO, errno.EACCES, errno.EBADMSG), e
        else:
            raise AssertionError("1000 segments were received without an error")
        return self.error

    @property
    def error(self) -> tuple[int, int, int]:
        e = lib.siw_ddp_last_rx_error(self.handle)
        return (e.layer, e.type, e.code)

    # Transmit path.

    def build_message(self, elements: Sequence[Sge] = (), **fields: Any) -> Any:
        array = sge_array(elements)
        msg = ffi.new(
            "struct siw_ddp_msg *",
            {
                "sgl": array,
                "nsge": len(elements),
                "length": sum(e[1] for e in elements),
                "end": (end := ffi.new("uint64_t *")),
                **fields,
            },
        )
        self._kept.append((array, msg, end))
        return msg

    def begin_message(self, msg: Any) -> int:
        err = ffi.new("struct siw_wire_err *")
        in_place = lib.siw_ddp_tx_get_msg_to_fill(self.handle, False)
        if not in_place:
            return check_result(-errno.EBUSY)
        in_place[0] = msg[0]
        rv = lib.siw_ddp_tx(self.handle, in_place, err)
        self.tx_error = (err.layer, err.type, err.code)
        assert rv < 0 or (msg.end[0] < 2**64 - 1) == bool(rv), (
            "a message has an end position if and only if it is framed"
        )
        if rv >= 0:
            self.ends.append(msg.end)
        return check_result(rv)

    def continue_message(self) -> int:
        err = ffi.new("struct siw_wire_err *")
        rv = lib.siw_ddp_tx_continue_msg(self.handle, err)
        self.tx_error = (err.layer, err.type, err.code)
        return check_result(rv)

    def flush_once(self) -> int:
        accepted = ffi.new("uint64_t *")
        rv = lib.siw_ddp_tx_flush(self.handle, accepted)
        assert accepted[0] == lib.siw_ddp_tx_accepted_position(self.handle)
        return check_result(rv)

    def transmit(self, msg: Any) -> None:
        """Transmit a complete message, which must fit into TCP's buffers."""
        if self.begin_message(msg) == 0:
            wait_until(self.continue_message)
        wait_until(self.flush_once)

    def read_sent_segments(self, octets: int) -> list[tuple[Any, bytes]]:
        """Read FPDUs until this many octets of payload have arrived; return headers, payloads."""
        out = []
        while octets > 0 or not out:
            out.append(self.read_sent_segment())
            octets -= len(out[-1][1])
        return out

    @property
    def begun_message_count(self) -> int:
        return len(self.ends)

    @property
    def tcp_accepted_message_count(self) -> int:
        """Return how many messages, in the order of transmission, TCP has accepted completely."""
        upto = lib.siw_ddp_tx_accepted_position(self.handle)
        return sum(1 for _ in itertools.takewhile(lambda end: end[0] <= upto, self.ends))


class PeerDgram:
    """A datagram endpoint of a layer, and a socket that communicates with it."""

    def __init__(self, handle: Any, llp: Any, family: int = socket.AF_INET) -> None:
        self.handle = handle
        addr = ffi.new("struct siw_addr *")
        check_result(lib.siw_llp_local_addr(llp, addr))
        self.host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self.port = socket.ntohs(addr.port_be)
        self.sock = socket.socket(family, socket.SOCK_DGRAM)
        self.sock.bind((self.host, 0))
        self.sock.settimeout(PATIENCE)
        self.peer = ffi.new("struct siw_addr *")
        peer_port = self.sock.getsockname()[1]
        check_result(lib.siw_addr_parse(self.host.encode(), peer_port, self.peer))


class Dgram(PeerDgram):
    """A DDP datagram endpoint (siw_ddp_dgram), with the socket of its peer."""

    def inject_datagram(self, segment: bytes, *, crc: int | None = None) -> None:
        """Send the endpoint a datagram of the segment and its CRC, or of the segment and `crc`."""
        value = crc32c(segment) if crc is None else crc
        self.sock.sendto(segment + value.to_bytes(4, "little"), (self.host, self.port))

    def poll_datagram(self) -> tuple[Any, Any] | None:
        seg, source = ffi.new("struct siw_ddp_seg *"), ffi.new("struct siw_addr *")
        return (seg, source) if lib.siw_ddp_dgram_rx(self.handle, seg, source) else None

    def receive_datagram(self) -> tuple[Any, Any]:
        got = wait_until(self.poll_datagram)
        assert got is not None
        return got  # type: ignore[no-any-return]

    def place_datagram(
        self, queue: Queue, head: int = 0, grh_from: Any = ffi.NULL
    ) -> tuple[int, int, int]:
        """Place the received datagram; return the result code, the user_data and the length."""
        delivery = ffi.new("struct siw_ddp_delivery *")
        rv = lib.siw_ddp_dgram_place(self.handle, queue.handle, head, grh_from, delivery)
        return rv, int(delivery.user_data), int(delivery.length)

    def transmit(self, elements: Sequence[Sge], **fields: Any) -> None:
        array = sge_array(elements)
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
        check_result(lib.siw_ddp_dgram_tx(self.handle, msg))

    def read_sent_datagram(self) -> bytes:
        return self.sock.recv(1 << 17)


class DdpStackPoller:
    """A poller with an STag table, and the streams and datagram endpoints opened on the poller.

    close() closes streams and datagram endpoints first, then the other objects, each in reverse
    order of opening.
    """

    def __init__(self) -> None:
        self.mpa = MpaPoller()
        mem = ffi.new("struct siw_mem **")
        check_result(lib.siw_mem_stag_table_create(mem))
        self.poller, self.mem = self.mpa.poller, mem[0]
        self._first: list[Callable[[], object]] = []
        self._last: list[Callable[[], object]] = []
        self._memories: list[Memory] = []

    # Memory.

    def alloc_stag(
        self, memory: Memory, rights: int, *, pd: int, to_base: int, stream: Any = ffi.NULL
    ) -> int:
        """Assign an STag to memory, with tagged offsets from to_base on."""
        region = ffi.new(
            "struct siw_mem_region *",
            {
                "addr": ffi.cast("uint8_t *", memory.addr),
                "length": memory.size,
                "to_base": to_base,
                "rights": rights,
                "pd": pd,
                "stream": stream,
            },
        )
        stag = ffi.new("uint32_t *")
        check_result(lib.siw_mem_stag_alloc(self.mem, region, stag))
        memory.stag, memory.base = int(stag[0]), to_base
        return memory.stag

    def assign_stag_to_memory(self, memory: Memory, **how: Any) -> int:
        """Assign an STag to memory."""
        raise NotImplementedError

    def register_new_memory(self, size: int, content: bytes | None = None, **how: Any) -> Memory:
        """Return new memory that has an STag."""
        memory = Memory(size, content)
        self.assign_stag_to_memory(memory, **how)
        # the list keeps the memory alive, because siwarp may write to it until close()
        self._memories.append(memory)
        return memory

    def free_stag(self, stag: int) -> int:
        return int(lib.siw_mem_stag_free(self.mem, stag))

    def create_queue(
        self, *, depth: int = 16, max_sge: int = 16, pd: int = PD, internal: bool = False
    ) -> Queue:
        queue = Queue(depth=depth, max_sge=max_sge, pd=pd, internal=internal)
        self._last.append(lambda: lib.siw_mem_buffer_queue_destroy(queue.handle))
        return queue

    # Streams and datagram endpoints.

    def open_ddp_stream(self, mpa: MpaStream) -> Any:
        """Open a siw_ddp_stream, which the caller closes, on a connection in full operation."""
        made = ffi.new("struct siw_ddp_stream **")
        check_result(lib.siw_ddp_stream_open(self.mem, mpa.handle, made))
        return made[0]

    def open_ddp_dgram(self, llp: Any, *, crc: bool = True) -> Any:
        """Open a siw_ddp_dgram, which the caller closes, on a UDP socket, which close() closes."""
        out = ffi.new("struct siw_ddp_dgram **")
        check_result(lib.siw_ddp_dgram_open(self.poller, self.mem, llp, crc, out))
        self._last.append(lambda: lib.siw_llp_close(llp))
        return out[0]

    def close(self) -> None:
        """Close all streams, endpoints, queues and sockets, the STag table and the poller."""
        for close in [*reversed(self._first), *reversed(self._last)]:
            close()
        lib.siw_mem_stag_table_free(self.mem)
        self.mpa.close()


class DdpPoller(DdpStackPoller):
    """A poller, and the objects of the DDP layer opened on the poller."""

    def assign_stag_to_memory(
        self,
        memory: Memory,
        rights: int = ALL_RIGHTS,
        *,
        pd: int = PD,
        stream: Stream | None = None,
        to_base: int = 0,
    ) -> int:
        """Assign an STag to memory, with tagged offsets from to_base on."""
        owner = stream.handle if stream else ffi.NULL
        return self.alloc_stag(memory, rights, pd=pd, to_base=to_base, stream=owner)

    def look_up_stag(
        self,
        stag: int,
        right: int,
        to: int,
        length: int,
        *,
        pd: int = PD,
        stream: Stream | None = None,
    ) -> list[tuple[int, int]] | tuple[int, int, int]:
        """Look an STag up and release it; return the resolved pieces of memory, or the error."""
        iov, err = ffi.new("struct iovec[16]"), ffi.new("struct siw_wire_err *")
        n = lib.siw_mem_stag_acquire(
            self.mem,
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
            lib.siw_mem_stag_release(self.mem, stag)
        return [(int(ffi.cast("uintptr_t", iov[i].iov_base)), iov[i].iov_len) for i in range(n)]

    def resolve_sgl(
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
        n = check_result(
            lib.siw_mem_sgl_resolve(
                self.mem,
                sge_array(elements),
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

    def _open_stream(self, mpa: MpaStream, crc: bool) -> Stream:
        stream = Stream(self.open_ddp_stream(mpa), mpa, crc=crc)
        lib.siw_ddp_stream_set_pd(stream.handle, PD)
        self._first.append(lambda: lib.siw_ddp_stream_close(stream.handle))
        return stream

    def create_receiver(self, *, crc: bool = True) -> Stream:
        """Return a responder's stream in full operation; its peer's socket may send segments."""
        return self._open_stream(self.mpa.create_receiver(crc=crc), crc)

    def create_sender(self, *, crc: bool = True, rcvbuf: int = 0, mss: int = 0) -> Stream:
        """Return an initiator's stream in full operation; its peer's socket reads its segments."""
        return self._open_stream(self.mpa.create_sender(crc=crc, rcvbuf=rcvbuf, mss=mss), crc)

    def create_dgram_endpoint(
        self, *, family: int = socket.AF_INET, no_crc: bool = False, fd: int = -1
    ) -> Dgram:
        llp = self.mpa.create_udp_socket("::1" if family == socket.AF_INET6 else "127.0.0.1", fd=fd)
        dgram = Dgram(self.open_ddp_dgram(llp, crc=not no_crc), llp, family)
        self._first.append(lambda: lib.siw_ddp_dgram_close(dgram.handle))
        self._last.append(dgram.sock.close)
        return dgram


def counter_value(name: str) -> int:
    """Return the value of a counter of this process."""
    index = next(
        i
        for i in range(lib.siw_counters_count())
        if ffi.string(lib.siw_counter_name(i)).decode() == name
    )
    return int(lib.siw_counter_get(index))


def open_ddp_poller() -> AbstractContextManager[DdpPoller]:
    """Provide a DdpPoller that is closed at the end of a with block."""
    return open_layer_poller(DdpPoller)
