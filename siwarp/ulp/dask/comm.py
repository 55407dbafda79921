# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A comm of dask.distributed: each comm is an RC connection of siwarp.aio.

A message of dask.distributed is a list of frames. A message that fits into a receive is one Send.
For a longer message, the sender registers the large frames where they are and sends an index, which
has the sizes of all frames, the remote buffers of the large ones and the contents of the others.
The receiver reads each large frame by RDMA Read into new memory and then reports that the message
is complete, upon which the sender releases the frames. These frames are not copied, and arrays that
a program unpacks from different ones share no memory.

Messages on the connection begin with a header of 16 octets in network byte order: type (1 octet),
3 octets 0, a number (4), a length (8).

- WHOLE: the number of frames; the length of what follows: the size of each frame (8 octets), and
  the frames.
- INDEX: the number of frames; the length of the index, which follows: the size of each frame, the
  remote buffer of each frame of at least ``LARGE`` octets (20 octets), and the other frames.
- REMOTE_INDEX: as INDEX, but the remote buffer of the index follows instead of the index.
- COMPLETE: everything in the memory of the sender of an INDEX or REMOTE_INDEX has been read.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Comm, CommClosedError, Connector, Listener
from distributed.comm.registry import Backend as CommBackend
from distributed.comm.utils import ensure_concrete_host, from_frames, to_frames
from distributed.system import MEMORY_LIMIT
from distributed.utils import ensure_ip, get_ip, get_ipv6

from siwarp import Error, RemoteBuffer, aio
from siwarp.verbs import MR, AccessFlag

__all__ = ["Backend"]

_HEADER = struct.Struct("!B3xIQ")
_SIZE = struct.Struct("!Q")
_REMOTE = len(RemoteBuffer(0, 0, 0).pack())

#: Size in octets and number of the posted receives of a connection. Pages of this memory to which
#: no message has been written take no physical memory.
RECV_SIZE = 256 * 1024
RECV_DEPTH = 8
#: In a message that does not fit into a receive, frames of at least this size, in octets, are read
#: from where they are.
LARGE = 32 * 1024
#: Maximum number of received messages that wait for ``read``; further ones wait in the connection.
MOST_WAITING = 64
#: A message of more octets is refused, as in dask's own comms.
MOST_OCTETS = max(MEMORY_LIMIT // 2, 1 << 30)


class _Type(enum.IntEnum):
    """Types of messages."""

    WHOLE = 1
    INDEX = 2
    REMOTE_INDEX = 3
    COMPLETE = 4


class _ProtocolError(Exception):
    """The peer does not follow this module's protocol; the text says how."""


def _new_buffer(size: int) -> memoryview:
    """Return writable memory of ``size`` octets, not zeroed if NumPy is installed."""
    try:
        import numpy as np
    except ImportError:
        return memoryview(bytearray(size))
    return np.empty(size, dtype="u1").data


def _as_octets(frame: Any) -> memoryview:
    """Return a view of a frame as octets."""
    view = memoryview(frame)
    return view.cast("B") if view.nbytes else memoryview(b"")


class _SIWComm(Comm):  # type: ignore[misc]
    """A connection between two processes of a Dask cluster."""

    prefix = "siw://"

    def __init__(self, conn: aio.Connection, deserialize: bool) -> None:
        super().__init__(deserialize=deserialize)
        self._conn = conn
        # dask.distributed reads these two attributes of a comm.
        self._local_addr: str = self.prefix + unparse_host_port(*conn.local)
        self._peer_addr: str = self.prefix + unparse_host_port(*conn.peer)
        self._closed = False
        #: Received messages for ``read``, oldest first; None: the connection has ended.
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        #: The memory of each sent message that the peer has not read completely, oldest first.
        self._exposed: deque[list[MR]] = deque()
        self._all_read = asyncio.Event()
        self._all_read.set()
        self._error: BaseException | None = None
        self._receiving = asyncio.create_task(self._receive_until_end())

    @property
    def local_address(self) -> str:
        """The address of this end."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The address of the peer's end."""
        return self._peer_addr

    # ---- receiving

    async def _receive_until_end(self) -> None:
        """Receive until the connection ends: indexes for ``read``, and reports of the peer."""
        try:
            async for data in self._conn:
                if len(data) < _HEADER.size:
                    raise _ProtocolError(
                        f"a message of {len(data)} octets, at least {_HEADER.size} expected"
                    )
                if data[0] == _Type.COMPLETE:
                    self._release_oldest_sent_message()
                else:
                    await self._received.put(data)
        except (Error, _ProtocolError) as error:
            self._error = error
        self._all_read.set()
        await self._received.put(None)

    def _release_oldest_sent_message(self) -> None:
        """Release the memory of the oldest message, which the peer has read."""
        if not self._exposed:
            raise _ProtocolError("the peer must only report messages that were sent")
        for region in self._exposed.popleft():
            region.close()
        if not self._exposed:
            self._all_read.set()

    async def read(self, deserializers: Any = None) -> Any:
        """Return the next message."""
        try:
            frames = await self._read_frames()
        except (Error, _ProtocolError) as error:
            self.abort()
            raise self._make_closed_error(error) from error
        except BaseException:
            # Close the comm, because a part of a message may have been received.
            self.abort()
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as error:
            self.abort()
            raise self._make_closed_error(error) from error

    async def _read_frames(self) -> list[memoryview]:
        if self._closed:
            raise CommClosedError(f"in {self!r}: the comm is closed: connect again")
        data = await self._received.get()
        if data is None:
            self.abort()
            raise self._make_closed_error(self._error)
        kind, count, length = _HEADER.unpack_from(data)
        if length > MOST_OCTETS or count * _SIZE.size > length:
            raise _ProtocolError(f"{length} octets expected for the index of {count} frames")
        rest = memoryview(data)[_HEADER.size :]
        if kind in (_Type.WHOLE, _Type.INDEX):
            index = memoryview(bytearray(rest))
        elif kind == _Type.REMOTE_INDEX:
            index = await self._read_remote(rest, length)
        else:
            raise _ProtocolError(
                f"a message of type {kind}, expected {_Type.WHOLE} to {_Type.COMPLETE}"
            )
        if len(index) != length:
            raise _ProtocolError(f"{len(index)} octets where {length} are expected")
        sizes = struct.unpack_from(f"!{count}Q", index)
        if sum(sizes) > MOST_OCTETS:
            raise _ProtocolError(
                f"a message of {sum(sizes)} octets, at most {MOST_OCTETS}: half of the memory"
            )
        least = MOST_OCTETS + 1 if kind == _Type.WHOLE else LARGE
        large = [size for size in sizes if size >= least]
        remote_at = count * _SIZE.size
        small_at = remote_at + len(large) * _REMOTE
        if small_at + sum(sizes) - sum(large) != length:
            raise _ProtocolError(f"an index of {length} octets, whose parts must have this size")
        frames = []
        for size in sizes:
            if size >= least:
                frames.append(await self._read_remote(index[remote_at:], size))
                remote_at += _REMOTE
            else:
                frames.append(index[small_at : small_at + size])
                small_at += size
        if large or kind == _Type.REMOTE_INDEX:
            await self._conn.send(_HEADER.pack(_Type.COMPLETE, 0, 0))
        return frames

    async def _read_remote(self, packed: memoryview, size: int) -> memoryview:
        """Read the peer's memory that a packed remote buffer describes."""
        if len(packed) < _REMOTE or (remote := RemoteBuffer.unpack(packed)).length != size:
            raise _ProtocolError(f"a remote buffer of {size} octets expected")
        buffer = _new_buffer(size)
        await self._conn.read_into(remote, buffer)
        return buffer

    # ---- sending

    async def write(self, msg: Any, serializers: Any = None, on_error: Any = "message") -> int:
        """Send a message; return its number of octets."""
        if self.closed():
            raise CommClosedError(f"in {self!r}: the comm is closed: connect again")
        context = {
            "sender": self.local_info,
            "recipient": self.remote_info,
            **self.handshake_options,
        }
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context=context,
        )
        try:
            return await self._write_frames([_as_octets(frame) for frame in frames])
        except Error as error:
            self.abort()
            raise self._make_closed_error(error) from error
        except BaseException:
            # Close the comm, because the message may have been sent or not.
            self.abort()
            raise

    async def _write_frames(self, frames: list[memoryview]) -> int:
        sizes = [len(frame) for frame in frames]
        length = len(sizes) * _SIZE.size + sum(sizes)
        if _HEADER.size + length <= RECV_SIZE:
            header = _HEADER.pack(_Type.WHOLE, len(sizes), length)
            sizes_field = struct.pack(f"!{len(sizes)}Q", *sizes)
            await self._conn.send(b"".join([header, sizes_field, *frames]))
            return sum(sizes)
        exposed = [self._register_for_remote_read(frame) for frame in frames if len(frame) >= LARGE]
        index = b"".join(
            [
                struct.pack(f"!{len(sizes)}Q", *sizes),
                *[region.remote().pack() for region in exposed],
                *[frame for frame in frames if len(frame) < LARGE],
            ]
        )
        kind, content = _Type.INDEX, index
        if _HEADER.size + len(index) > RECV_SIZE:
            exposed.append(self._register_for_remote_read(memoryview(index)))
            kind, content = _Type.REMOTE_INDEX, exposed[-1].remote().pack()
        if exposed:
            self._exposed.append(exposed)
            self._all_read.clear()
        await self._conn.send(_HEADER.pack(kind, len(sizes), len(index)) + content)
        return sum(sizes)

    def _register_for_remote_read(self, memory: memoryview) -> MR:
        """Register memory, which the peer may read until it reports that it has read it."""
        return self._conn.register(memory, AccessFlag.REMOTE_READ)

    # ---- close

    def _make_closed_error(self, error: BaseException | None) -> CommClosedError:
        return CommClosedError(f"in {self!r}: {error or 'the peer closed the connection'}")

    def closed(self) -> bool:
        """Return whether the comm is closed, or its peer has closed it and all has been read."""
        return self._closed or (self._receiving.done() and self._received.qsize() <= 1)

    def abort(self) -> None:
        """Close the comm at once; calls that wait raise CommClosedError."""
        if self._closed:
            return
        self._closed = True
        self._conn.close_nowait()
        self._exposed.clear()
        self._receiving.cancel()
        self._all_read.set()
        if self._received.full():
            self._received.get_nowait()
        self._received.put_nowait(None)

    async def close(self) -> None:
        """Close the comm when the peer has received everything that ``write`` has sent.

        A peer that receives nothing delays the close by at most dask's setting
        ``distributed.comm.timeouts.tcp``, counted from its last report that a message was read.
        """
        limit = parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"))
        while not self._all_read.is_set():
            unread = len(self._exposed)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_read.wait(), limit)
            if len(self._exposed) == unread:
                break
        self.abort()


def _refuse_required_encryption(address: str, options: dict[str, Any]) -> None:
    """Raise RuntimeError if the options of a Security object require encryption."""
    if options.get("require_encryption"):
        raise RuntimeError(
            f"{address}: the Security object requires encryption, which siw:// does not have: use "
            "tls://, or Security(require_encryption=False) on a network that is protected, for "
            "example by WireGuard or IPsec"
        )


class _SIWConnector(Connector):  # type: ignore[misc]
    """Connects to addresses of comms."""

    comm_class = _SIWComm

    async def connect(self, address: str, deserialize: bool = True, **options: Any) -> _SIWComm:
        """Connect to an address without its scheme.

        Raises:
            RuntimeError: the options require encryption.
            OSError: there is no listener at the address, or it does not answer.

        """
        _refuse_required_encryption(self.comm_class.prefix + address, options)
        conn = await aio.connect(
            parse_host_port(address), recv_size=RECV_SIZE, recv_depth=RECV_DEPTH
        )
        return self.comm_class(conn, deserialize)


class _SIWListener(Listener):  # type: ignore[misc]
    """Accepts connections, and calls the handler of the scheduler or worker with each comm."""

    comm_class = _SIWComm

    def __init__(
        self,
        address: str,
        handle_comm: Callable[[Comm], Awaitable[None]],
        deserialize: bool = True,
        *,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        _refuse_required_encryption(self.comm_class.prefix + address, options)
        self._wanted = parse_host_port(address, default_port)
        self._handle_comm = handle_comm
        self.deserialize = deserialize
        self._allow_offload = allow_offload
        self._default_host = default_host
        self._listeners: list[aio.Listener] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshaking: set[Comm] = set()

    async def start(self) -> None:
        """Listen; without a host, at all IPv4 and IPv6 addresses of this machine."""
        host, port = self._wanted
        await self._listen(host, port)
        if not host:
            with contextlib.suppress(Error):  # this machine may have no IPv6
                await self._listen("::", self.get_host_port()[1])

    async def _listen(self, host: str, port: int) -> None:
        listener = await aio.listen((host, port), recv_size=RECV_SIZE, recv_depth=RECV_DEPTH)
        self._listeners.append(listener)
        self._start_task(self._accept(listener))

    def stop(self) -> None:
        """Stop listening; established comms stay open."""
        for listener in self._listeners:
            listener.close_nowait()
        self._listeners.clear()

    def _start_task(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: aio.Listener) -> None:
        async for conn in listener:
            if self._listeners:
                self._start_task(self._serve_connection(conn))
            else:
                conn.close_nowait()

    async def _serve_connection(self, conn: aio.Connection) -> None:
        comm = self.comm_class(conn, self.deserialize)
        comm.allow_offload = self._allow_offload
        self._handshaking.add(comm)
        try:
            await self.on_connection(comm)
        except CommClosedError:
            return
        finally:
            self._handshaking.discard(comm)
        await self._handle_comm(comm)

    def abort_handshaking_comms(self) -> None:
        """Abort the comms whose peers have not yet sent their handshake."""
        for comm in [*self._handshaking]:
            comm.abort()

    @property
    def prefix(self) -> str:
        """The scheme and ``://``, with which the addresses begin."""
        return self.comm_class.prefix

    def get_host_port(self) -> tuple[str, int]:
        """Return IP address and port at which this listener listens."""
        if not self._listeners:
            raise ValueError("this listener does not listen: start it first")
        return self._listeners[0].address

    @property
    def listen_address(self) -> str:
        """The address at which this listener listens, which may be that of all interfaces."""
        return self.prefix + str(unparse_host_port(*self.get_host_port()))

    @property
    def contact_address(self) -> str:
        """The address to which other processes connect."""
        host, port = self.get_host_port()
        host = ensure_concrete_host(host, default_host=self._default_host)
        return self.prefix + str(unparse_host_port(host, port))


class Backend(CommBackend):  # type: ignore[misc]
    """The comm backend of ``siw://`` addresses, as dask.distributed loads it."""

    connector_class = _SIWConnector
    listener_class = _SIWListener

    def get_connector(self) -> _SIWConnector:
        """Return an object that connects to addresses."""
        return self.connector_class()

    def get_listener(
        self,
        loc: str,
        handle_comm: Callable[[Comm], Awaitable[None]],
        deserialize: bool,
        **options: Any,
    ) -> _SIWListener:
        """Return a listener, not yet started, for an address without its scheme."""
        return self.listener_class(loc, handle_comm, deserialize, **options)

    def get_address_host(self, loc: str) -> str:
        """Return the host of an address."""
        host: str = parse_host_port(loc)[0]
        return host

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        """Return host and port of an address."""
        host, port = parse_host_port(loc)
        return host, port

    def resolve_address(self, loc: str) -> str:
        """Return an address with the IP address in place of a host name."""
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))

    def get_local_address_for(self, loc: str) -> str:
        """Return the local address from which ``loc`` is reached."""
        host, _ = parse_host_port(loc)
        ip = ensure_ip(host)
        return str(unparse_host_port(get_ipv6(ip) if ":" in ip else get_ip(ip), None))
