# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Connections in a few lines: ``connect``, ``listen``, then send, recv, write and read.

A ``Connection`` consists of ordinary verbs objects: an RC queue pair with two completion queues,
receives posted in advance, and memory that is registered when needed. These objects are public
attributes, so a program can also use the verbs on them.
"""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Iterator

from siwarp.base import system
from siwarp.base.buffer import Buffer, octets
from siwarp.base.closing import Closing
from siwarp.cm.id import CMID, RTR, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.verbs import (
    CQ,
    MR,
    PD,
    QP,
    WC,
    AccessFlag,
    Address,
    CompChannel,
    Context,
    Error,
    LimitError,
    PeerGone,
    Persona,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    StateError,
    Timeout,
    WCStatus,
    WROpcode,
)
from siwarp.verbs.wanted import address_host_and_port

__all__ = ["Connection", "Listener", "connect", "listen"]

#: Default size in octets of a posted receive, and default number of posted receives.
RECV_SIZE = 64 * 1024
RECV_DEPTH = 16

#: Maximum octets of a message that is copied into the send queue, so that it needs no region and
#: usually completes at once.
INLINE = 512

#: Maximum number of accepted connections that are not established yet. Accepting one more closes
#: the oldest of them.
MOST_STARTING = 128

_ALL_ACCESS = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ


class _SharedDevice:
    """An open device with a CM channel; closed by its last user."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.channel = CMEventChannel(context)
        self._users = 0
        self._lock = system.lock()

    def add_user(self) -> None:
        with self._lock:
            self._users += 1

    def remove_user(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.context.__exit__(None, None, None)

    def __enter__(self) -> None:
        self.add_user()

    def __exit__(self, *_: object) -> None:
        self.remove_user()


class Connection(Closing):
    """A connected RC queue pair with its memory, created by ``connect`` or ``Listener.accept``.

    Messages have up to ``recv_size`` octets; a longer message ends the connection in error.
    Messages are placed in ``recv_depth`` receives posted in advance. Further messages wait until
    ``recv`` is called: up to the setting ``rnr_octets`` at this end, the others at the peer, whose
    ``send`` then blocks longer (``send`` accepts a ``timeout``). The peer's Writes and this end's
    Reads that follow such messages are also delayed. A peer that does not use this module may end
    the connection when a message finds no posted receive there, so the application protocol should
    let the peer answer from time to time. With ``Persona.ROCE`` at this end, the peer has received
    the data when ``send`` or ``write`` returns.

    One thread may send while another receives; ``close`` in a third thread ends their calls.
    """

    def __init__(
        self,
        home: _SharedDevice,
        cm_id: CMID,
        recv_size: int,
        recv_depth: int,
        persona: int = Persona.AUTO,
    ) -> None:
        home.add_user()
        self._home = home
        self._closed = False
        self._parts = contextlib.ExitStack()
        # close() acquires both locks. The locks are reentrant, because a send that times out also
        # closes the connection.
        self._sending = system.rlock()
        self._receiving = system.rlock()
        self.private_data = b""
        self._peer_name = "the peer"
        self.id = cm_id
        self._channels: list[CompChannel] = []
        try:
            self._create_objects(home.context, recv_size, recv_depth, persona)
        except BaseException:
            self.close()
            raise

    def _create_objects(
        self, context: Context, recv_size: int, recv_depth: int, persona: int
    ) -> None:
        part = self._parts.enter_context
        self.pd = part(PD(context))
        self._channels += [part(CompChannel(context)) for _ in range(2)]
        self.scq = part(CQ(context, 64, channel=self._channels[0]))
        self.rcq = part(CQ(context, recv_depth + 1, channel=self._channels[1]))
        cap = QPCap(max_send_wr=32, max_recv_wr=recv_depth, max_inline_data=INLINE)
        init = QPInitAttr(
            QPType.RC,
            scq=self.scq,
            rcq=self.rcq,
            cap=cap,
            persona=persona,
            keep_unexpected=True,
        )
        self.qp = part(QP(self.pd, init))
        self.id.bind_qp(self.qp)
        part(self.id)
        self._inbox = part(MR(self.pd, recv_size * recv_depth))
        self._recvs = [
            RecvWR(i, sg=[self._inbox.sge(i * recv_size, recv_size)]) for i in range(recv_depth)
        ]
        self._recv_size = recv_size
        self.qp.post_recv(self._recvs)
        self._staging = part(MR(self.pd, RECV_SIZE))
        self._send_wr = SendWR(sg=[self._staging.sge()])

    # ---- messages

    def send(self, data: Buffer | MR, timeout: float | None = None) -> None:
        """Send one message from any buffer or an MR; return when the memory may be reused.

        Raises:
            PeerGone: the connection has ended.
            ProtocolError: the peer rejected the message; the error gives the reason.
            Timeout: the message was not sent within ``timeout`` seconds.

        """
        if type(data) is bytes and len(data) <= INLINE:
            with self._sending:
                self._check_open()
                if not self.qp.send_inline(data):
                    self._wait_for_completion(self.scq, timeout, WROpcode.SEND)
            return
        self._check_open()
        if isinstance(data, MR) or len(octets(data)) > RECV_SIZE:
            with self._temporary_mr(data, AccessFlag(0)) as mr:
                self._lock_post_and_wait(SendWR(sg=[mr.sge()]), timeout)
            return
        with self._sending:
            message = octets(data)
            self._staging.view[: len(message)] = message
            self._send_wr.sg[0].length = len(message)
            self._post_and_wait(self._send_wr, timeout)

    def recv(self, timeout: float | None = None) -> bytes:
        """Wait for the next message and return it.

        Raises:
            PeerGone: the peer closed the connection, or the connection was lost.
            ProtocolError: one end violated the protocol; the error describes how.
            Timeout: no message arrived within ``timeout`` seconds.

        """
        with self._receiving:
            wc = self._wait_for_completion(self.rcq, timeout)
            data = self._inbox.read(wc.byte_len, wc.wr_id * self._recv_size)
            # The connection may have ended after this message; the next call of recv() reports the
            # end.
            with contextlib.suppress(StateError):
                self.qp.post_recv(self._recvs[wc.wr_id])
            return data

    # ---- the peer's memory

    def register(self, buffer: Buffer | int, access: int = _ALL_ACCESS) -> MR:
        """Register a buffer, or ``buffer`` octets of new memory, for access by the peer.

        Send ``mr.remote().pack()`` to the peer. The region is closed with the connection.
        """
        mr: MR = self._parts.enter_context(MR(self.pd, buffer, access))
        return mr

    def write(
        self, remote: RemoteBuffer, data: Buffer | MR, offset: int = 0, timeout: float | None = None
    ) -> None:
        """RDMA Write ``data`` (any buffer, or an MR) to the peer's memory at ``offset``.

        Return when TCP has accepted the data, as RFC 5040 defines completion. The peer sees all of
        the data before any message that is sent afterwards.

        Raises:
            LimitError: ``remote`` is too short for the data; nothing is written.

        """
        size = data.length if isinstance(data, MR) else octets(data).nbytes
        check_remote_range(remote, offset, size, "writing")
        with self._temporary_mr(data, AccessFlag(0)) as mr:
            for at, length in _split_into_message_ranges(mr.length, self._max_message_octets):
                there = RemoteBuffer(remote.addr + offset + at, length, remote.rkey)
                wr = SendWR(opcode=WROpcode.RDMA_WRITE, sg=[mr.sge(at, length)], remote=there)
                self._lock_post_and_wait(wr, timeout)

    def read(
        self,
        remote: RemoteBuffer,
        length: int | None = None,
        offset: int = 0,
        timeout: float | None = None,
    ) -> bytes:
        """RDMA Read ``length`` octets (default: all) of the peer's memory from ``offset``.

        Raises:
            LimitError: ``remote`` has fewer octets than requested.

        """
        size = remote.length - offset if length is None else length
        check_remote_range(remote, offset, size, "reading")
        into = bytearray(size)
        self.read_into(remote, into, offset, timeout)
        return bytes(into)

    def read_into(
        self, remote: RemoteBuffer, into: Buffer | MR, offset: int = 0, timeout: float | None = None
    ) -> None:
        """RDMA Read from the peer's memory at ``offset`` until ``into`` is full.

        ``into`` is a writable buffer, or an MR with local write access.
        """
        wanted = into.length if isinstance(into, MR) else octets(into).nbytes
        check_remote_range(remote, offset, wanted, "reading")
        with self._temporary_mr(into, AccessFlag.LOCAL_WRITE) as mr:
            for at, size in _split_into_message_ranges(mr.length, self._max_message_octets):
                there = RemoteBuffer(remote.addr + offset + at, size, remote.rkey)
                wr = SendWR(opcode=WROpcode.RDMA_READ, sg=[mr.sge(at, size)], remote=there)
                self._lock_post_and_wait(wr, timeout)

    # ---- internals

    @property
    def _max_message_octets(self) -> int:
        return min(self._home.context.query_device().max_rc_msg, 1 << 30)

    @contextlib.contextmanager
    def _temporary_mr(self, data: Buffer | MR, access: AccessFlag) -> Iterator[MR]:
        """Yield an MR over ``data`` for one operation."""
        if isinstance(data, MR):
            yield data
            return
        with self._sending:  # close() waits for this lock before it closes the PD
            self._check_open()
            mr = MR(self.pd, data, access)
            try:
                yield mr
            finally:
                try:
                    mr.close()
                except Error:
                    # if the connection is closed, close() closes mr together with the PD
                    if not self._closed:
                        raise

    def _lock_post_and_wait(self, wr: SendWR, timeout: float | None) -> None:
        with self._sending:
            self._post_and_wait(wr, timeout)

    def _post_and_wait(self, wr: SendWR, timeout: float | None) -> None:
        self._check_open()
        self.qp.post_send(wr)
        self._wait_for_completion(self.scq, timeout, wr.opcode)

    def _wait_for_completion(
        self, cq: CQ, timeout: float | None, opcode: WROpcode | None = None
    ) -> WC:
        """Wait for a completion. ``opcode``: that of the posted request; ``None``: a receive."""
        self._check_open()
        deadline = None if timeout is None else system.monotonic() + timeout
        wcs = cq._wait_in_library(deadline, 1)
        while not wcs:
            self._check_open()  # raises StateError if another thread has closed the connection
            left = None if deadline is None else max(0.0, deadline - system.monotonic())
            wcs = cq._wait_for_completions(lambda: self._closed, left, 1)
            if deadline is not None and system.monotonic() >= deadline:
                break
        if not wcs:
            if cq is self.rcq:
                raise Timeout(errno.ETIMEDOUT, f"receiving: no message arrived within {timeout} s")
            # The request is outstanding and may still use the memory, so the connection must be
            # closed.
            what = self._describe_operation(opcode)
            self.close()
            raise Timeout(
                errno.ETIMEDOUT,
                f"{what}: not completed within {timeout} s; the peer may not be receiving: let it "
                "receive, or use a longer timeout. The connection was closed, because the request "
                "would still use its memory",
            )
        wc = wcs[0]
        if wc.status == 0:
            return wc
        if wc.status == WCStatus.WR_FLUSH_ERR and not wc.vendor_err:
            self._check_open()
            raise PeerGone(
                errno.ECONNRESET,
                f"{self._describe_operation(opcode)}: the connection has ended; connect again",
            )
        return wc.check()

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(errno.ENOTCONN, "this connection is closed: connect again")

    def _describe_operation(self, opcode: WROpcode | None) -> str:
        return "receiving" if opcode is None else f"{opcode.name} to {self._peer_name}"

    def _store_peer_name(self) -> None:
        """Store the peer's address for error messages: a lost connection does not have it."""
        with contextlib.suppress(Error):  # lost already
            self._peer_name = "{} port {}".format(*self.qp.peer)

    @property
    def peer(self) -> Address:
        """The address of the connection's other end as (IP address, port)."""
        return self.qp.peer

    @property
    def local(self) -> Address:
        """The address of this end of the connection as (IP address, port)."""
        return self.qp.addr

    def close(self) -> None:
        """Disconnect and free all objects; sent messages still arrive. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        for channel in self._channels:  # waiting calls return and raise StateError
            channel._wake_waiters()
        with contextlib.suppress(Error):
            self.id.disconnect()
        with self._sending, self._receiving:
            try:
                self.id.close()
                if hasattr(self, "qp"):
                    # close the QP before the MRs, because a request may still use their memory
                    self.qp.close()
                self._parts.close()
            finally:
                self._home.remove_user()

    def __repr__(self) -> str:
        return f"<Connection {'closed' if self._closed else 'to ' + self._peer_name}>"


def check_remote_range(remote: RemoteBuffer, offset: int, length: int, what: str) -> None:
    """Refuse an access that the peer would answer by ending the connection.

    Raises:
        LimitError: the octets are not completely inside the peer's memory (EINVAL).

    """
    if offset >= 0 and 0 <= length <= remote.length - offset:
        return
    raise LimitError(
        errno.EINVAL,
        f"{what} {length} octets at offset {offset}: the peer's memory has {remote.length} octets "
        "according to its RemoteBuffer; stay within them, or let the peer register more",
    )


def _split_into_message_ranges(length: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each message that ``length`` octets need: at least one message."""
    yield 0, min(length, most)
    for at in range(most, length, most):
        yield at, min(most, length - at)


def connect(
    address: Address,
    *,
    timeout: float | None = 10.0,
    private_data: bytes = b"",
    recv_size: int = RECV_SIZE,
    recv_depth: int = RECV_DEPTH,
    persona: int = Persona.AUTO,
) -> Connection:
    """Connect to a listener at (host, port) and return the connection.

    Raises:
        PeerGone: no listener at the address, or the peer rejected the request or did not answer.
        Timeout: the connection was not established within ``timeout`` seconds.

    """
    home = _SharedDevice(Context.toward(address))
    conn = Connection(home, CMID(home.channel), recv_size, recv_depth, persona)
    try:
        # Peer-to-peer mode, so that either end may send first (RFC 6581). Otherwise the responder
        # must wait for the initiator's first FPDU (RFC 5044 section 7.1.3).
        rtr = RTR.FPDU | RTR.WRITE | RTR.READ
        conn.id.connect(
            address, ConnParam(private_data=private_data, peer_to_peer=rtr, timeout=timeout)
        )
        # The library itself enforces the timeout; this longer limit matters only if the event is
        # lost.
        event = home.channel.get_event(None if timeout is None else timeout + 1)
        if event is None:
            raise Timeout(
                errno.ETIMEDOUT,
                f"connecting to {address[0]} port {address[1]}: the peer did not answer",
            )
        conn.private_data = event.check().private_data
        conn._store_peer_name()
    except BaseException:
        conn.close()
        raise
    return conn


class Listener(Closing):
    """A listener for connections; iterate over the listener, or call ``accept``, to get
    connections.
    """

    def __init__(
        self, address: Address, recv_size: int, recv_depth: int, persona: int = Persona.AUTO
    ) -> None:
        host = address_host_and_port(address)[0] or "0.0.0.0"
        self._home = _SharedDevice(
            Context(host) if _is_numeric_host(host) else Context.toward((host, 9))
        )
        self._home.add_user()
        self._closed = False
        self._recv = recv_size, recv_depth, persona
        # Accepted connections that are not established yet: the initiator's first message may
        # arrive much later.
        self._starting: dict[CMID, Connection] = {}
        self._accepting = system.rlock()
        try:
            self._id = CMID(self._home.channel)
            self._id.listen(address)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> Address:
        """The listener's address, with the port that was selected if port 0 was given."""
        return self._id.local_addr

    def accept(self, timeout: float | None = None, private_data: bytes = b"") -> Connection:
        """Wait for the next connection and return it.

        All requests that arrive meanwhile are accepted, so a peer with a slow start-up delays no
        other peer. Connections that are established later are returned by the next call.

        Raises:
            Timeout: no connection was established within ``timeout`` seconds.
            StateError: the listener is closed.

        """
        deadline = system.monotonic() + (math.inf if timeout is None else timeout)
        with self._accepting, self._home:
            while True:
                if self._closed:
                    raise StateError(errno.EBADF, "this listener is closed: listen again")
                left = deadline - system.monotonic()
                event = self._home.channel._get_event(
                    None if timeout is None else max(0.0, left), lambda: self._closed
                )
                conn = None if event is None else self._handle_event(event, private_data)
                if conn is not None:
                    return conn
                if system.monotonic() >= deadline:
                    raise Timeout(
                        errno.ETIMEDOUT, f"no connection was established within {timeout} s"
                    )

    def _handle_event(self, event: CMEvent, private_data: bytes) -> Connection | None:
        """Accept a connection request; return the connection if it has become established."""
        if event.type == CMEventType.CONNECT_REQUEST:
            self._accept_request(event, private_data)
            return None
        conn = self._starting.pop(event.id, None)
        if conn is None:
            return None
        if event.type == CMEventType.ESTABLISHED:
            conn._store_peer_name()
            return conn
        conn.close()
        return None

    def _accept_request(self, request: CMEvent, private_data: bytes) -> None:
        if len(self._starting) >= MOST_STARTING:
            self._starting.pop(next(iter(self._starting))).close()
        conn = Connection(self._home, request.id, *self._recv)
        try:
            conn.private_data = request.private_data
            conn.id.accept(ConnParam(private_data=private_data))
        except PeerGone:
            conn.close()  # the peer disconnected during accept
        except BaseException:
            conn.close()
            raise
        else:
            self._starting[conn.id] = conn

    def __iter__(self) -> Iterator[Connection]:
        while True:
            try:
                conn = self.accept()
            except StateError:
                if self._closed:
                    return
                raise
            yield conn

    def close(self) -> None:
        """Stop listening; accepted connections stay open.

        A thread that waits in ``accept`` gets StateError, and iteration in another thread ends.
        """
        if self._closed:
            return
        self._closed = True
        # Wake accept() in another thread, which then finds the listener closed.
        self._home.channel._wake_waiters()
        try:
            with self._accepting:
                for conn in self._starting.values():
                    conn.close()
                self._starting.clear()
                if hasattr(self, "_id"):
                    self._id.close()
        finally:
            self._home.remove_user()

    def __repr__(self) -> str:
        if self._closed:
            return "<Listener closed>"
        return "<Listener at {} port {}>".format(*self.address)


def _is_numeric_host(host: str) -> bool:
    return all(c in "0123456789." for c in host) or ":" in host


def listen(
    address: Address,
    *,
    recv_size: int = RECV_SIZE,
    recv_depth: int = RECV_DEPTH,
    persona: int = Persona.AUTO,
) -> Listener:
    """Listen at (host, port): host ``""`` means every IPv4 address, port 0 selects a free port.

    Raises:
        Error: the address is in use, does not belong to this machine, or needs a privilege.

    """
    return Listener(address, recv_size, recv_depth, persona)
