"""Drives the MPA layer's C streams through a plain TCP socket, which can send any octets.

Octets are built by siwarp.inspect and checked with crcmod; the harness shares no code with the C
layer.
"""

from __future__ import annotations

import bisect
import errno
import os
import random
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import crcmod.predefined
import pytest
from _siwarp_layers import ffi, lib
from pace import limit_exceeded
from scapy.packet import Raw

from siwarp.inspect import FPDU, MPAReply, MPARequest

crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

#: Seconds after which an operation on loopback counts as failed.
PATIENCE = 10.0
#: An FPDU of up to this many octets is delivered as a complete FPDU, with its CRC checked.
WHOLE_OCTETS = 8192
#: The largest ULPDU (RFC 5044 section 3).
MAX_ULPDU = 64768
LLP_LAYER, MPA_TYPE = 2, 0


class StreamError(Exception):
    """A C function of a layer returned -errno."""

    def __init__(self, rv: int) -> None:
        super().__init__(errno.errorcode.get(-rv, str(rv)))
        self.errno = -rv


def check_result(rv: int) -> int:
    """Return the result of a layer function, or raise StreamError if it is negative."""
    if rv < 0:
        raise StreamError(rv)
    return int(rv)


def wait_until(step: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Call step repeatedly until its result is true; return that result."""
    began = time.monotonic()
    while True:
        got = step()
        if got:
            return got
        assert not limit_exceeded(began, patience), f"{step} gave no result in {patience} s"
        time.sleep(0.0001)


def make_mpa_params(**values: Any) -> Any:
    """Return a struct siw_mpa_params; by default revision 2 with CRC requested."""
    pdata = values.pop("pdata", b"")
    p = ffi.new("struct siw_mpa_params *", {"rev": 2, "crc": 1, **values})
    if pdata:
        p.pdata_len = len(pdata)
        ffi.memmove(p.pdata, pdata, len(pdata))
    return p


def make_enhanced_mpa_params(**values: Any) -> Any:
    """Return parameters of an enhanced start-up frame; by default IRD 4 and ORD 5."""
    return make_mpa_params(**{"enhanced": 1, "ird": 4, "ord": 5, **values})


def errno_of_first_failed_call(step: Callable[[], Any]) -> int:
    """Call step repeatedly until it raises StreamError; return the errno."""
    try:
        wait_until(step)
    except StreamError as e:
        return e.errno
    raise AssertionError(f"{step} did not fail")


def private_data_of(p: Any) -> bytes:
    """Return the private data in a struct siw_mpa_params."""
    return bytes(ffi.buffer(p.pdata, p.pdata_len))


def build_fpdu(ulpdu: bytes, **fields: Any) -> bytes:
    """Return an FPDU built by scapy; its CRC, unless given, is computed by crcmod."""
    if len(ulpdu) > 4096:  # large FPDUs are built without scapy, which is slow
        body = len(ulpdu).to_bytes(2, "big") + ulpdu
        body += bytes(-len(body) % 4)
        return body + fields.get("crc", crc32c(body)).to_bytes(4, "little")
    octets = bytes(FPDU(ulpdu=Raw(ulpdu), **fields))
    if "crc" not in fields:
        assert octets[-4:] == crc32c(octets[:-4]).to_bytes(4, "little")
    return octets


def split_fpdus(octets: bytes, *, crc: bool = True) -> list[bytes]:
    """Split complete FPDUs into their ULPDUs, checking length, pad and CRC."""
    # The remaining octets are not copied after each FPDU: with 100,000 small FPDUs the copies would
    # dominate the run time.
    out, at = [], 0
    while at < len(octets):
        length = int.from_bytes(octets[at : at + 2], "big")
        end = at + 2 + length + -(2 + length) % 4
        assert len(octets) >= end + 4, "the last FPDU is not complete"
        pad = octets[at + 2 + length : end]
        assert pad == bytes(len(pad)), "the pad is not zero"
        if crc:
            want = crc32c(octets[at:end]).to_bytes(4, "little")
            assert octets[end : end + 4] == want, "the CRC is wrong"
        out.append(octets[at + 2 : at + 2 + length])
        at = end + 4
    return out


@cache
def _random_octets() -> bytes:
    return random.Random(1).randbytes(1 << 19)


def octet_pattern(n: int, seed: int = 1) -> bytes:
    """Return n octets (at most 262144) in which shifted, lost or repeated pieces are detectable."""
    at = seed * 40_503 % (1 << 18)
    return _random_octets()[at : at + n]


@dataclass
class Iov:
    """An array of struct iovec over Python buffers, which it keeps alive."""

    buffers: Sequence[Any]
    views: list[Any] = field(init=False)
    array: Any = field(init=False)

    def __post_init__(self) -> None:
        self.views = [ffi.from_buffer("char[]", b) for b in self.buffers]
        self.array = ffi.new("struct iovec[]", max(len(self.views), 1))
        for i, view in enumerate(self.views):
            self.array[i].iov_base = view
            self.array[i].iov_len = len(view)

    def __len__(self) -> int:
        return len(self.views)


class Stream:
    """An MPA stream (siw_mpa_stream), with the socket of its peer; errors raise StreamError."""

    def __init__(self, handle: Any, sock: socket.socket) -> None:
        self.handle = handle
        self.sock = sock  # the peer's socket
        self._head = ffi.new("uint8_t **")
        self._head_len = ffi.new("size_t *")
        self._ulpdu_len = ffi.new("size_t *")
        self._whole = ffi.new("bool *")
        self._kept: list[Any] = []
        self.ends: list[int] = []  # stream positions at which the framed FPDUs end

    # Start-up.

    def continue_startup(self) -> tuple[int, Any]:
        peer = ffi.new("struct siw_mpa_params *")
        return check_result(lib.siw_mpa_startup(self.handle, peer)), peer

    def complete_startup(self) -> tuple[int, Any]:
        """Continue start-up until it has a result; return its code and the peer's parameters."""

        def poll_startup_result() -> tuple[int, Any] | None:
            code, peer = self.continue_startup()
            return (code, peer) if code != lib.SIW_MPA_STARTING else None

        return wait_until(poll_startup_result)  # type: ignore[no-any-return]

    def send_reply(self, p: Any) -> None:
        check_result(lib.siw_mpa_send_startup_reply(self.handle, p))

    @property
    def state(self) -> int:
        return int(lib.siw_mpa_startup_state_for_tests(self.handle))

    @property
    def error(self) -> tuple[int, int, int]:
        e = lib.siw_mpa_get_error(self.handle)
        return (e.layer, e.type, e.code)

    # Transmit path.

    def frame_fpdu(self, head: bytes, pieces: Sequence[bytes] = ()) -> int:
        """Frame one FPDU; return 1, or 0 if the batch is full. The pieces are kept alive."""
        iov = Iov(pieces)
        array = iov.array if iov else ffi.NULL
        end = check_result(lib.siw_mpa_tx_fpdu(self.handle, head, len(head), array, len(iov)))
        self._kept.append(iov)
        if end:
            assert end > (self.ends[-1] if self.ends else 0)
            self.ends.append(end)
        return min(end, 1)

    def flush_once(self) -> int:
        accepted = ffi.new("uint64_t *")
        rv = lib.siw_mpa_tx_flush(self.handle, accepted)
        assert accepted[0] == lib.siw_mpa_octets_accepted_by_tcp(self.handle)
        return check_result(rv)

    def flush(self) -> None:
        """Flush the batch; the peer must read meanwhile if the batch exceeds TCP's buffers."""
        wait_until(self.flush_once)

    @property
    def framed_fpdu_count(self) -> int:
        return len(self.ends)

    @property
    def tcp_accepted_fpdu_count(self) -> int:
        """Return the number of FPDUs that have been written to TCP completely."""
        return bisect.bisect_right(self.ends, lib.siw_mpa_octets_accepted_by_tcp(self.handle))

    # Receive path.

    def peek_fpdu(self) -> tuple[bytes, int, bool] | None:
        """Examine the next FPDU once; return (first octets, ULPDU length, complete), or None."""
        rv = check_result(
            lib.siw_mpa_rx_fpdu(
                self.handle, self._head, self._head_len, self._ulpdu_len, self._whole
            )
        )
        if rv == 0:
            return None
        head = bytes(ffi.buffer(self._head[0], self._head_len[0]))
        return head, int(self._ulpdu_len[0]), bool(self._whole[0])

    def staged_ulpdu(self) -> bytes | None:
        """Return the ULPDU of the next FPDU if siwarp has read it completely, or None."""
        if not lib.siw_mpa_rx_peek_already_read_fpdu(self.handle, self._head, self._ulpdu_len):
            return None
        return bytes(ffi.buffer(self._head[0], self._ulpdu_len[0]))

    def try_to_place_payload(self, skip: int, dest: Iov | None) -> int:
        array, n = (dest.array, len(dest)) if dest else (ffi.NULL, 0)
        return check_result(lib.siw_mpa_rx_payload(self.handle, skip, array, n))

    def place_payload(self, skip: int, *buffers: Any) -> None:
        dest = Iov(buffers) if buffers else None
        wait_until(lambda: self.try_to_place_payload(skip, dest))

    def receive_ulpdu(self, skip: int = 14, pieces: int = 1) -> bytes:
        """Receive the next ULPDU: peek at the first `skip` octets, place the rest in buffers."""
        head, length, _ = wait_until(self.peek_fpdu)
        skip = min(skip, length)
        rest = length - skip
        sizes = [rest // pieces] * (pieces - 1)
        sizes.append(rest - sum(sizes))
        buffers = [bytearray(n) for n in sizes]
        self.place_payload(skip, *buffers)
        return bytes(head[:skip] + b"".join(buffers))

    def emss(self) -> int:
        """Return the effective maximum segment size of siwarp's own socket, octets (TCP_MAXSEG)."""
        with duplicate_socket_of_stream(self.sock) as ours:
            return ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)

    def shutdown(self) -> None:
        check_result(lib.siw_mpa_shutdown(self.handle))

    def drain(self) -> int:
        return check_result(lib.siw_mpa_read_and_discard(self.handle))

    def close(self, *, abort: bool = False) -> None:
        if self.handle != ffi.NULL:
            lib.siw_mpa_close(self.handle, abort)
        self.handle = ffi.NULL


def duplicate_socket_of_stream(peer: socket.socket) -> socket.socket:
    """Return a duplicate of the socket, also of this process, to which ``peer`` is connected."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            found = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # the descriptor of the directory listing, closed by now
            continue
        try:
            if found.getpeername() == peer.getsockname():
                return found
        except OSError:  # the socket is not connected
            pass
        found.close()
    raise LookupError("the stream has no socket")


def set_small_send_buffer(peer: socket.socket) -> None:
    """Let TCP store few octets for ``peer``, so that a test needs few messages to fill it."""
    with duplicate_socket_of_stream(peer) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def recv_exactly(sock: socket.socket, n: int) -> bytes:
    """Read n octets from a blocking socket."""
    out = bytearray()
    while len(out) < n:
        got = sock.recv(n - len(out))
        assert got, f"end of stream after {len(out)} of {n} octets"
        out += got
    return bytes(out)


def recv_to_end(sock: socket.socket) -> bytes:
    """Read until the peer closes or resets the connection; return the octets."""
    out = bytearray()
    try:
        while got := sock.recv(65536):
            out += got
    except ConnectionResetError:
        pass
    return bytes(out)


def recv_startup_frame(sock: socket.socket) -> Any:
    """Read a start-up frame from a blocking socket; return it as dissected by scapy."""
    octets = recv_exactly(sock, 20)
    octets += recv_exactly(sock, int.from_bytes(octets[18:20], "big"))
    return (MPARequest if octets.startswith(b"MPA ID Req") else MPAReply)(octets)


class MpaPoller:
    """A poller, and the MPA streams and sockets opened on it; close() closes them all."""

    def __init__(self) -> None:
        out = ffi.new("struct siw_llp_poller **")
        check_result(lib.siw_llp_poller_open(ffi.NULL, out))
        self.poller = out[0]
        self._streams: list[Stream] = []
        self._sockets: list[socket.socket] = []
        self._listener = ffi.NULL

    def make_siw_addr(self, port: int, host: str = "127.0.0.1") -> Any:
        """Return a struct siw_addr."""
        addr = ffi.new("struct siw_addr *")
        check_result(lib.siw_addr_parse(host.encode(), port, addr))
        return addr

    def _add_stream(self, handle: Any, sock: socket.socket) -> Stream:
        sock.settimeout(PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = Stream(handle, sock)
        self._streams.append(stream)
        self._sockets.append(sock)
        return stream

    def create_udp_socket(
        self, host: str = "127.0.0.1", *, fd: int = -1, handler: Any = ffi.NULL
    ) -> Any:
        """Return a UDP socket of llp, bound to this address or adopted from descriptor fd."""
        out = ffi.new("struct siw_llp_sock **")
        if fd >= 0:
            check_result(lib.siw_llp_udp_adopt_program_socket(self.poller, fd, handler, out))
        else:
            check_result(
                lib.siw_llp_udp_open(self.poller, self.make_siw_addr(0, host), handler, out)
            )
        return out[0]

    def _open_listener(self) -> Any:
        if self._listener == ffi.NULL:
            out = ffi.new("struct siw_llp_sock **")
            check_result(
                lib.siw_llp_tcp_listen(self.poller, self.make_siw_addr(0), 64, ffi.NULL, out)
            )
            self._listener = out[0]
        return self._listener

    def create_responder(self, *, rcvbuf: int = 0) -> Stream:
        """Return a stream in responder mode; its peer is a plain socket."""
        local = ffi.new("struct siw_addr *")
        check_result(lib.siw_llp_local_addr(self._open_listener(), local))
        sock = socket.socket()
        if rcvbuf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        sock.connect(("127.0.0.1", socket.ntohs(local.port_be)))
        stream = ffi.new("struct siw_mpa_stream **")

        def try_to_accept() -> bool:
            rv = lib.siw_mpa_accept_connection(self._listener, ffi.NULL, stream)
            return rv != -errno.EAGAIN and check_result(rv) == 0

        wait_until(try_to_accept)
        return self._add_stream(stream[0], sock)

    def create_connected_streams(self, p: Any) -> tuple[Stream, Stream]:
        """Return a responder and an initiator of this process that are connected to each other."""
        out, local = self._open_listener(), ffi.new("struct siw_addr *")
        check_result(lib.siw_llp_local_addr(out, local))
        one, two = ffi.new("struct siw_mpa_stream **"), ffi.new("struct siw_mpa_stream **")
        check_result(lib.siw_mpa_connect(self.poller, local, ffi.NULL, p, ffi.NULL, one))
        wait_until(lambda: lib.siw_mpa_accept_connection(out, ffi.NULL, two) == 0)
        peer = ffi.new("struct siw_mpa_params *")

        def request_has_arrived() -> bool:
            check_result(lib.siw_mpa_startup(one[0], peer))
            return check_result(lib.siw_mpa_startup(two[0], peer)) == lib.SIW_MPA_REQUEST

        wait_until(request_has_arrived)
        check_result(lib.siw_mpa_send_startup_reply(two[0], p))
        wait_until(lambda: check_result(lib.siw_mpa_startup(one[0], peer)) == lib.SIW_MPA_REPLY)
        none = [socket.socket(), socket.socket()]  # each stream's peer is the other stream
        ends = Stream(two[0], none[0]), Stream(one[0], none[1])
        self._streams += ends
        self._sockets += none
        return ends

    def create_initiator(self, p: Any, *, rcvbuf: int = 0, mss: int = 0) -> Stream:
        """Return a stream in initiator mode, with the socket that accepted its connection."""
        with socket.socket() as listener:
            if rcvbuf:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
            if mss:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            out = ffi.new("struct siw_mpa_stream **")
            dest = self.make_siw_addr(listener.getsockname()[1])
            check_result(lib.siw_mpa_connect(self.poller, dest, ffi.NULL, p, ffi.NULL, out))
            listener.settimeout(PATIENCE)
            sock, _ = listener.accept()
        return self._add_stream(out[0], sock)

    def create_responder_with_request(self, request: bytes | Any) -> tuple[Stream, Any]:
        """Return a responder that has delivered this MPA Request, and the Request's parameters."""
        stream = self.create_responder()
        stream.sock.sendall(bytes(request))
        code, peer = stream.complete_startup()
        assert code == lib.SIW_MPA_REQUEST
        return stream, peer

    def create_initiator_with_reply(self, p: Any, reply: bytes | Any) -> tuple[Stream, Any]:
        """Return an initiator that has accepted this MPA Reply, and the Reply's parameters."""
        stream = self.create_initiator_awaiting_reply(p)
        recv_startup_frame(stream.sock)
        stream.sock.sendall(bytes(reply))
        code, peer = stream.complete_startup()
        assert code == lib.SIW_MPA_REPLY
        return stream, peer

    def create_receiver(
        self, *, crc: bool = True, rcvbuf: int = 0, markers: bool = False
    ) -> Stream:
        """Return a responder's stream in full operation; its peer's socket may send FPDUs.

        markers: the responder requests Markers.
        """
        stream = self.create_responder(rcvbuf=rcvbuf)
        stream.sock.sendall(bytes(MPARequest(rev=2, c=int(crc))))
        assert stream.complete_startup()[0] == lib.SIW_MPA_REQUEST
        stream.send_reply(make_mpa_params(crc=0, markers=int(markers)))
        reply = recv_startup_frame(stream.sock)
        assert (reply.r, reply.m) == (0, int(markers))
        return stream

    def create_initiator_awaiting_reply(self, p: Any, *, rcvbuf: int = 0, mss: int = 0) -> Stream:
        """Return an initiator that has sent its MPA Request and awaits the Reply."""
        stream = self.create_initiator(p, rcvbuf=rcvbuf, mss=mss)
        wait_until(lambda: stream.continue_startup() and stream.state == lib.SIW_MPA_ST_AWAIT_REPLY)
        return stream

    def create_sender(
        self, *, crc: bool = True, rcvbuf: int = 0, mss: int = 0, markers: bool = False
    ) -> Stream:
        """Return an initiator's stream in full operation; its peer's socket reads its FPDUs.

        markers: the peer requests Markers.
        """
        stream = self.create_initiator_awaiting_reply(
            make_mpa_params(crc=int(crc)), rcvbuf=rcvbuf, mss=mss
        )
        recv_startup_frame(stream.sock)
        stream.sock.sendall(bytes(MPAReply(rev=2, c=0, m=int(markers))))
        assert stream.complete_startup()[0] == lib.SIW_MPA_REPLY
        return stream

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        for sock in self._sockets:
            sock.close()
        if self._listener != ffi.NULL:
            lib.siw_llp_close(self._listener)
        lib.siw_llp_poller_close(self.poller)


W = TypeVar("W", bound="Closing")


class Closing(Protocol):
    """An object with a close method."""

    def close(self) -> None:
        """Close all resources of the object."""


@contextmanager
def open_layer_poller(make: Callable[[], W]) -> Iterator[W]:
    """Provide the object that make() returns; close the object at the end of the with block."""
    layer_poller = make()
    try:
        yield layer_poller
    finally:
        layer_poller.close()


def make_poller_fixture(make: Callable[[], W]) -> Any:
    """Return the fixture that a directory's conftest.py binds to the name `layer_poller`."""

    @pytest.fixture(name="layer_poller")
    def layer_poller() -> Iterator[W]:
        """Provide a poller on loopback, which is closed after the test with all objects on it."""
        with open_layer_poller(make) as made:
            yield made

    return layer_poller


def open_mpa_poller() -> AbstractContextManager[MpaPoller]:
    """Provide an MpaPoller that is closed at the end of a with block."""
    return open_layer_poller(MpaPoller)


@contextmanager
def temporary_setting(name: str, value: int) -> Iterator[None]:
    """Change a setting of the process within a with block."""
    index = next(
        i
        for i in range(lib.siw_settings_count())
        if ffi.string(lib.siw_setting_name(i)).decode() == name
    )
    before = lib.siw_setting_value(index)
    check_result(lib.siw_setting_set(name.encode(), value))
    try:
        yield
    finally:
        check_result(lib.siw_setting_set(name.encode(), before))
