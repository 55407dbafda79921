# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Connection manager objects: event channels, ids and events (``<siwarp/cm.h>``)."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

from siwarp.base import system
from siwarp.verbs._ffi import (
    Address,
    Handle,
    Waitable,
    addr_from_c,
    addr_to_c,
    check_pointer,
    check_return_code,
    destroy_objects_of_dropped_handles,
    ffi,
    lib,
)
from siwarp.verbs.device import Context
from siwarp.verbs.errors import Error, error_from_errno
from siwarp.verbs.qp import QP

__all__ = ["CMID", "RTR", "CMEvent", "CMEventChannel", "CMEventType", "ConnParam"]


class CMEventType(IntEnum):
    """The type of an event of a connection manager id (``enum siw_cm_event_type``)."""

    #: ADDR_RESOLVED, ADDR_ERROR, ROUTE_RESOLVED and ROUTE_ERROR are posted, with ``CMID.tell``, by
    #: the code that resolves addresses.
    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    #: MULTICAST_JOIN and MULTICAST_ERROR are posted, with ``CMID.tell``, by the code that joins
    #: multicast groups.
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13


class RTR(IntFlag):
    """The ready-to-receive messages of peer-to-peer connections (RFC 6581; ``enum siw_cm_rtr``)."""

    NONE = 0
    FPDU = 1
    WRITE = 2
    READ = 4


@dataclass(frozen=True)
class ConnParam:
    """The parameters of one end of a connection (``struct siw_cm_param``).

    Attributes:
        private_data: at most 508 octets with MPA revision 2, 512 with revision 1; for UD at most
            180 in ``connect`` and 136 otherwise.
        initiator_depth: maximum outstanding RDMA Reads of this end (ORD); ``None``: the device's
            limit.
        responder_resources: maximum outstanding RDMA Reads of the peer (IRD); ``None``: the
            device's limit.
        rev: when connecting, the MPA revision: 2 or 1.
        crc: ``False``: use CRC32C only if the peer requests it.
        markers: request MPA Markers from the peer, as the setting markers also does. This end sends
            Markers whenever the peer requests them.
        peer_to_peer: when connecting with revision 2, the message kinds that may open the
            connection.
        timeout: time limit of the start-up in seconds; ``None``: the setting mpa_timeout_ms, or
            for UD sidr_timeout_ms.
        hold: when connecting, report the peer's acceptance as CONNECT_RESPONSE; ``CMID.establish``
            then completes the connection.
        refused: when connecting, the time in seconds during which the connection is retried while
            the destination port has no listener.
        tos: type of service or traffic class of sent packets, 0 to 255.
        rnr_retry: persona roce: ``rnr_retry`` for Sends of the peer to this end, 1 to 7, or -1 for
            no retry; takes precedence over the peer's announced value. 0: the peer's announced
            value, or if there is none, this queue pair's attribute.

    """

    private_data: bytes = b""
    initiator_depth: int | None = None
    responder_resources: int | None = None
    rev: int = 2
    crc: bool = True
    markers: bool = False
    peer_to_peer: int = RTR.NONE
    timeout: float | None = None
    hold: bool = False
    refused: float = 0
    tos: int = 0
    rnr_retry: int = 0

    def _to_c(self) -> tuple[Any, Any]:
        data = ffi.new("uint8_t[]", bytes(self.private_data))
        c = ffi.new("struct siw_cm_param *")
        c.private_data = data
        c.private_data_len = len(self.private_data)
        c.initiator_depth = _ord_or_ird_to_c(self.initiator_depth)
        c.responder_resources = _ord_or_ird_to_c(self.responder_resources)
        c.rev = self.rev
        c.no_crc = not self.crc
        c.markers = self.markers
        c.peer_to_peer = int(self.peer_to_peer)
        c.timeout_ms = 0 if self.timeout is None else max(1, int(self.timeout * 1000))
        c.hold = self.hold
        c.refused_ms = int(self.refused * 1000)
        c.tos = self.tos
        c.rnr_retry = self.rnr_retry
        return c, data


def _ord_or_ird_to_c(value: int | None) -> int:
    """Convert an ORD or IRD to C, where 0 means the device's limit and -1 means none."""
    if value is None:
        return 0
    return -1 if value == 0 else value


@dataclass(frozen=True)
class CMEvent:
    """An event of a connection manager id (``struct siw_cm_event``).

    Attributes:
        type: the type of the event.
        id: the id that the event concerns; of a CONNECT_REQUEST, the new id.
        listen_id: of a CONNECT_REQUEST, the listening id.
        status: 0 or a positive errno value.
        rev, crc, peer_to_peer: the values in the peer's frame, or the negotiated values.
        markers: whether the peer requests Markers in the FPDUs that it receives.
        initiator_depth, responder_resources: ORD and IRD of this end.
        peer_ird, peer_ord: the values in the peer's frame; ``None`` if the frame has none.
        wire_error: of a failure or a disconnection, ``layer << 16 | type << 8 | code`` of the
            Terminate that was received or sent, or 0.
        private_data: the private data in the peer's frame.
        qpn, qkey: of ESTABLISHED for UD, the queue pair that the listener returned; its address is
            the id's ``peer_addr``.

    """

    type: CMEventType
    id: CMID
    listen_id: CMID | None
    status: int
    rev: int
    crc: bool
    markers: bool
    peer_to_peer: RTR
    initiator_depth: int
    responder_resources: int
    peer_ird: int | None
    peer_ord: int | None
    wire_error: int
    private_data: bytes
    qpn: int
    qkey: int

    def check(self) -> CMEvent:
        """Return this event if it reports no failure.

        Raises:
            PeerGone: the peer rejected or refused the connection, or did not answer.
            ProtocolError: the peer violated the protocol.

        """
        if self.status == 0 and self.type not in _FAILURES:
            return self
        number = self.status or errno.ECONNREFUSED
        advice = None
        if self.type == CMEventType.REJECTED and self.rev:
            number = errno.ECONNREFUSED
            said = f" with private data {self.private_data!r}" if self.private_data else ""
            advice = f"the peer rejected the connection{said}"
        elif number == errno.ECONNRESET:
            advice = _RESET
        dest = self.id._dest
        where = "" if dest is None else f" to {dest[0]} port {dest[1]}"
        raise error_from_errno(number, f"connecting{where}: {self.type.name}", advice)


#: Advice in the error that reports a reset of the connection during start-up; a reset does not
#: always mean that the peer has exited.
_RESET = (
    "the peer closed the connection before it answered: if the peer's counter startups_refused "
    "grows, too many connections from this address are waiting to be accepted: let the peer's "
    "program accept them faster, raise its setting SIWARP_SOURCE_SHARE, or connect again later"
)

_FAILURES = (CMEventType.CONNECT_ERROR, CMEventType.UNREACHABLE, CMEventType.REJECTED)


class CMEventChannel(Waitable):
    """The queue of connection events; ``fileno()`` is readable while an event is unread.

    A channel without a context belongs to no device: each of its ids gets a device by
    ``CMID.set_device``.
    """

    __slots__ = ("_ids", "context")
    _what = "CM event channel"
    _destroy = lib.siw_cm_destroy_channel

    context: Context | None

    def __init__(self, context: Context | None = None) -> None:
        destroy_objects_of_dropped_handles()
        c_context = ffi.NULL if context is None else context._c_object()
        where = "without a device" if context is None else f"on {context!r}"
        c = check_pointer(lib.siw_cm_create_channel(c_context), f"creating a CM channel {where}")
        self.context = context
        self._ids: weakref.WeakValueDictionary[int, CMID] = weakref.WeakValueDictionary()
        self._adopt_c_object(c, *(() if context is None else (context,)))

    def fileno(self) -> int:
        """Return the channel's descriptor; read it only through ``get_event``."""
        return check_return_code(
            lib.siw_cm_channel_fd(self._c_object()), "getting the channel's descriptor"
        )

    def _has_progress_thread(self) -> bool:
        return self.context is None or self.context._threaded

    def get_event(self, timeout: float | None = None) -> CMEvent | None:
        """Wait for the next event; return ``None`` after ``timeout`` seconds.

        Other threads run during the wait, and Ctrl-C interrupts it within 100 ms.
        """
        return self._get_event(timeout, None)

    def _get_event(self, timeout: float | None, over: Callable[[], bool] | None) -> CMEvent | None:
        """Wait like ``get_event``; return ``None`` also when ``over``, called after each
        ``_wake_waiters``, returns true.
        """
        destroy_objects_of_dropped_handles()
        c = self._c_object()
        event = ffi.new("struct siw_cm_event *")
        return self._wait_for_event(
            lambda ms: int(lib.siw_cm_get_event(c, event, ms)),
            lambda: self._event_from_c(event),
            timeout,
            over,
        )

    def _event_from_c(self, event: Any) -> CMEvent | None:
        kind = CMEventType(event.event)
        listener: CMID | None = None
        if kind == CMEventType.CONNECT_REQUEST:
            listener = self._find_id(event.listen_id)
            which: CMID | None = CMID._from_c(self, event.id)
            if listener is None:
                return None  # the listener is closed: dropping the new id rejects the request
        else:
            which = self._find_id(event.id)
        if which is None:
            return None
        return CMEvent(
            type=kind,
            id=which,
            listen_id=listener,
            status=-event.status,
            rev=event.rev,
            crc=bool(event.crc),
            markers=bool(event.markers),
            peer_to_peer=RTR(event.peer_to_peer),
            initiator_depth=event.initiator_depth,
            responder_resources=event.responder_resources,
            peer_ird=None if event.peer_ird < 0 else event.peer_ird,
            peer_ord=None if event.peer_ord < 0 else event.peer_ord,
            wire_error=event.wire_error,
            private_data=bytes(ffi.buffer(event.private_data, event.private_data_len)),
            qpn=event.qpn,
            qkey=event.qkey,
        )

    def _find_id(self, c: Any) -> CMID | None:
        return self._ids.get(int(ffi.cast("uintptr_t", c)))


class CMID(Handle):
    """A connection manager id: one connection or one listener (``struct siw_cm_id``).

    Active side: ``bind_qp``, then ``connect``. Passive side: ``listen``; each CONNECT_REQUEST has
    a new id, on which the program calls ``bind_qp`` and ``accept``, or ``reject``. Events on the
    id's channel report the outcome. An id with a queue pair closes before the queue pair does.

    With ``ud`` the id resolves UD queue pairs (spec/cm-udp.md): ``connect`` queries a listener,
    which accepts with a UD queue pair, for that queue pair's number and Q_Key. The ESTABLISHED
    event contains both. No connection exists afterwards, so nothing is disconnected.
    """

    __slots__ = ("_dest", "_using", "channel", "context", "qp")
    _what = "CM id"
    _destroy = lib.siw_cm_destroy_id

    channel: CMEventChannel
    qp: QP | None
    #: Any value chosen by the program.
    context: Any
    #: The destination of ``connect``.
    _dest: Address | None

    def __init__(self, channel: CMEventChannel, context: Any = None, *, ud: bool = False) -> None:
        destroy_objects_of_dropped_handles()
        create = lib.siw_cm_create_ud_id if ud else lib.siw_cm_create_id
        c = check_pointer(create(channel._c_object(), ffi.NULL), "creating a CM id")
        self._init_id(channel, c)
        self.context = context

    @classmethod
    def _from_c(cls, channel: CMEventChannel, c: Any) -> CMID:
        self = cls.__new__(cls)
        self._init_id(channel, c)
        self.context = None
        return self

    def _init_id(self, channel: CMEventChannel, c: Any) -> None:
        self.channel = channel
        self.qp = None
        self._dest = None
        self._using = system.rlock()  # reentrant: a signal handler may also close the id
        self._adopt_c_object(c, channel)
        channel._ids[int(ffi.cast("uintptr_t", c))] = self

    def _on_forced_close(self) -> None:
        self.qp = None

    def _destroy_c_object(self) -> None:
        c = self._c
        if c is not None:
            self.channel._ids.pop(int(ffi.cast("uintptr_t", c)), None)
        with self._prevent_close():
            super()._destroy_c_object()
        self.qp = None

    def _prevent_close(self) -> contextlib.AbstractContextManager[object]:
        """Return a context manager that keeps other threads from closing the id, which would free
        its memory.
        """
        # In a forked child no lock is acquired: a thread of the parent may hold the lock, and no C
        # call is made.
        return self._using if self._pid == os.getpid() else contextlib.nullcontext()

    def _call_library(self, call: Any, *args: Any) -> int:
        with self._prevent_close():
            return int(call(self._c_object(), *args))

    def bind_qp(self, qp: QP) -> None:
        """Bind an RC queue pair to the id and move it to INIT, so that receives can be posted.

        An id for UD takes a UD queue pair; a queue pair in RESET is moved to RTS, with Q_Key
        0x01234567.

        Raises:
            StateError: the id has a queue pair already, or ``qp`` is not an RC queue pair in RESET
                on the id's device (EINVAL).

        """
        rc = self._call_library(lib.siw_cm_bind_qp, qp._c_object())
        check_return_code(rc, f"binding {qp!r} to {self!r}")
        self.qp = qp
        self._parents = (*self._parents, qp)
        qp._children.add(self)

    def set_device(self, context: Context) -> None:
        """Assign a device to an id of a channel without a device. Close the device after the id.

        Raises:
            StateError: the id has another device (EINVAL).

        """
        check_return_code(
            self._call_library(lib.siw_cm_set_device, context._c_object()),
            f"assigning {context!r} to {self!r}",
        )
        self._add_parent(context)

    def _add_parent(self, on: Handle) -> None:
        self._parents = (*self._parents, on)
        on._children.add(self)

    def migrate(self, channel: CMEventChannel) -> None:
        """Move the id to another channel, which must have no device or the same device as the id.

        Unread events move with the id.
        """
        c = self._c_object()
        check_return_code(
            self._call_library(lib.siw_cm_migrate_id, channel._c_object()), f"moving {self!r}"
        )
        key = int(ffi.cast("uintptr_t", c))
        self.channel._ids.pop(key, None)
        self._add_parent(channel)
        self.channel = channel
        channel._ids[key] = self

    def bind_addr(self, address: Address, *, v6only: bool = False) -> None:
        """Reserve an address for listening or connecting; port 0 selects a free port.

        ``local_addr`` returns the address.

        Args:
            address: an address of this host; with an empty host the port is reserved at every
                address.
            v6only: with host ``::``, do not reserve the port for IPv4.

        """
        check_return_code(self._call_library(lib.siw_cm_set_v6only, v6only), f"binding {self!r}")
        check_return_code(
            self._call_library(lib.siw_cm_bind_addr, addr_to_c(address)),
            f"binding to {address[0] or '*'} port {address[1]}",
        )

    def listen_also(self, context: Context, address: Address, backlog: int = 128) -> None:
        """Listen on one more device and address; only for ids of a channel without a device.

        The new id of a CONNECT_REQUEST has the device at which the request arrived.
        """
        check_return_code(
            self._call_library(
                lib.siw_cm_listen_also, context._c_object(), addr_to_c(address), backlog
            ),
            f"listening at {address[0] or '*'} port {address[1]}",
        )
        self._add_parent(context)

    def tell(self, event: CMEventType, status: int = 0) -> None:
        """Post a program-defined event to the id's channel; ``status``: 0 or an errno value."""
        check_return_code(
            self._call_library(lib.siw_cm_tell, int(event), -status),
            f"posting an event to the channel of {self!r}",
        )

    def listen(
        self, address: Address | None = None, backlog: int = 128, *, every_addr: bool = False
    ) -> None:
        """Listen at (host, port); port 0 selects a free port, which ``local_addr`` returns.

        Without an address, listen at the address reserved by ``bind_addr``.

        With ``every_addr`` and the host ``""``, listen on one port at every address of the device,
        also at addresses that it gains later. ``local_addr`` is then the first of them, and the new
        id of a CONNECT_REQUEST has the address at which the request arrived.

        Raises:
            Error: the address is in use, does not belong to this machine, or needs a privilege.

        """
        if address is None:
            check_return_code(
                self._call_library(lib.siw_cm_listen, ffi.NULL, backlog), f"listening with {self!r}"
            )
            return
        c_address = addr_to_c(address)
        if every_addr and not address[0]:
            c_address.family = 0
        check_return_code(
            self._call_library(lib.siw_cm_listen, c_address, backlog),
            f"listening at {address[0] or '*'} port {address[1]}",
        )

    def connect(
        self, dest: Address, param: ConnParam | None = None, source: Address | None = None
    ) -> None:
        """Start to connect; the event ESTABLISHED, REJECTED, UNREACHABLE or CONNECT_ERROR follows.

        Raises:
            StateError: no queue pair is bound to the id, or the id is in use already.

        """
        c_param, _data = (param or ConnParam())._to_c()
        c_source = ffi.NULL if source is None else addr_to_c(source)
        check_return_code(
            self._call_library(lib.siw_cm_connect, addr_to_c(dest), c_source, c_param),
            f"connecting to {dest[0]} port {dest[1]}",
        )
        self._dest = dest

    def accept(self, param: ConnParam | None = None) -> None:
        """Accept a CONNECT_REQUEST with the bound queue pair; the event ESTABLISHED follows."""
        c_param, _data = (param or ConnParam())._to_c()
        check_return_code(self._call_library(lib.siw_cm_accept, c_param), f"accepting {self!r}")

    def establish(self) -> None:
        """Complete a ``hold`` connect after CONNECT_RESPONSE; the event ESTABLISHED follows."""
        check_return_code(self._call_library(lib.siw_cm_establish), f"establishing {self!r}")

    def reject(self, private_data: bytes = b"") -> None:
        """Reject a CONNECT_REQUEST; afterwards the id can only be closed."""
        check_return_code(
            self._call_library(lib.siw_cm_reject, bytes(private_data), len(private_data)),
            f"rejecting {self!r}",
        )

    def disconnect(self) -> None:
        """End the connection; completed requests still reach the peer. The event DISCONNECTED
        follows.
        """
        check_return_code(self._call_library(lib.siw_cm_disconnect), f"disconnecting {self!r}")

    @property
    def local_addr(self) -> Address:
        """The address of this end: of the listener, or of the connection."""
        return self._query_addr(0)

    @property
    def peer_addr(self) -> Address:
        """The address of the connection's other end."""
        return self._query_addr(1)

    def _query_addr(self, which: int) -> Address:
        both = ffi.new("struct siw_addr[2]")
        check_return_code(
            self._call_library(lib.siw_cm_addr, both, both + 1), f"querying the address of {self!r}"
        )
        found = addr_from_c(both[which])
        if found is None:
            raise Error(errno.ENOTCONN, f"{self!r} has no such address: it is not connected")
        return found
