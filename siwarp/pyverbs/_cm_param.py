# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Addresses, parameters and events of connections, for ``pyverbs.cmid``."""

from __future__ import annotations

import errno
import socket
import weakref
from typing import TYPE_CHECKING

from siwarp.base import system
from siwarp.cm import id as cm
from siwarp.pyverbs import cm_enums as ce
from siwarp.pyverbs._field import UInt, attribute_lines
from siwarp.pyverbs.addr import AHAttr
from siwarp.pyverbs.base import PyverbsObject, Wrapper, convert_errors
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from siwarp.verbs._ffi import Address

if TYPE_CHECKING:
    from siwarp.pyverbs.cmid import CMID

#: Maximum number of octets of private data in a ``struct rdma_conn_param``.
MAX_PRIVATE_DATA = 255
#: Seconds for which a refused connect is retried, because programs may connect before their peer
#: listens.
_REFUSED_S = 0.5


def _look_up_node_and_service(
    node: str | None, service: str | int | None, flags: int
) -> Address | None:
    if node is None and service is None:
        return None
    hints = socket.AI_NUMERICHOST if flags & ce.RAI_NUMERICHOST else 0
    hints |= socket.AI_PASSIVE if flags & ce.RAI_PASSIVE else 0
    port = service.decode() if isinstance(service, bytes) else service
    try:
        found = system.addresses(node, port, socket.SOCK_STREAM, hints)
    except (OSError, UnicodeError) as error:
        raise PyverbsRDMAError(
            f"Failed to get Address Info of {node or '*'} {port or ''}: {error}", errno.EINVAL
        ) from None
    host, number, *more = found[0][4]
    scope = int(more[1]) if len(more) == 2 else 0
    if scope and "%" not in str(host):
        host = f"{host}%{socket.if_indextoname(scope)}"
    return str(host), int(number)


class AddrInfo(PyverbsObject):
    """The addresses of the local end (``src``) and of the peer (``dst``), resolved from names.

    An AddrInfo without names is empty; ``get_addrinfo`` resolves names later.

    Raises:
        PyverbsRDMAError: a name cannot be resolved (EINVAL).

    """

    def __init__(
        self,
        src: str | None = None,
        dst: str | None = None,
        src_service: str | int | None = None,
        dst_service: str | int | None = None,
        port_space: int = 0,
        flags: int = 0,
    ) -> None:
        self.get_addrinfo(src, dst, src_service, dst_service, port_space, flags)

    def get_addrinfo(
        self,
        src: str | None = None,
        dst: str | None = None,
        src_service: str | int | None = None,
        dst_service: str | int | None = None,
        port_space: int = 0,
        flags: int = 0,
    ) -> None:
        """Resolve names, and replace the previous addresses.

        Raises:
            PyverbsRDMAError: a name cannot be resolved (EINVAL).

        """
        self._flags, self._port_space = int(flags), int(port_space) or int(ce.RDMA_PS_TCP)
        self._src = _look_up_node_and_service(src, src_service, self._flags)
        self._dst = _look_up_node_and_service(dst, dst_service, self._flags)

    def close(self) -> None:
        """Do nothing, because an AddrInfo holds no resources."""


class ConnParam(PyverbsObject):
    """The parameters of one end of a connection (``struct rdma_conn_param``)."""

    resources = UInt(8)
    depth = UInt(8)
    flow_control = UInt(8)
    retry = UInt(8)
    rnr_retry = UInt(8)
    srq = UInt(8)
    qpn = UInt(32)

    def __init__(
        self,
        resources: int = 1,
        depth: int = 1,
        flow_control: int = 0,
        retry: int = 5,
        rnr_retry: int = 5,
        srq: int = 0,
        qp_num: int = 0,
        data_len: int = 0,
    ) -> None:
        self.resources, self.depth, self.flow_control = resources, depth, flow_control
        self.retry, self.rnr_retry, self.srq, self.qpn = retry, rnr_retry, srq, qp_num
        self._data = bytes(data_len)

    @property
    def private_data(self) -> bytes:
        """Private data for the peer's event."""
        return self._data

    def set_private_data(self, data: bytes | str) -> None:
        """Set the private data for the peer's event, of at most 255 octets.

        Raises:
            PyverbsUserError: the data has more than 255 octets.

        """
        octets = data.encode() if isinstance(data, str) else bytes(data)
        if len(octets) > MAX_PRIVATE_DATA:
            raise PyverbsUserError(
                f"{len(octets)} octets of private data exceed the limit of {MAX_PRIVATE_DATA}"
            )
        self._data = octets

    def _to_siwarp_param(self, hold: bool, tos: int, most_ord: int, most_ird: int) -> cm.ConnParam:
        return cm.ConnParam(
            private_data=self._data,
            initiator_depth=min(self.depth, most_ord),
            responder_resources=min(self.resources, most_ird),
            # Either end may send first, as on InfiniBand adapters.
            peer_to_peer=cm.RTR.WRITE | cm.RTR.READ,
            refused=_REFUSED_S,
            hold=hold,
            tos=tos,
        )

    def __str__(self) -> str:
        return "Connection parameters: \n" + attribute_lines(
            self, "resources", "depth", "flow_control", "retry", "rnr_retry", "srq", "qpn"
        )


class JoinMCAttrEx(PyverbsObject):
    """The multicast group to join, and the options of the join."""

    comp_mask = UInt(32)
    join_flags = UInt(32)

    def __init__(self, addr: AddrInfo, comp_mask: int = 0, join_flags: int = 0) -> None:
        self._addr, self.comp_mask, self.join_flags = addr, comp_mask, join_flags


class CMEventChannel(Wrapper[cm.CMEventChannel]):
    """A channel for the events of connection ids."""

    _RANK = 9

    def __init__(self) -> None:
        with convert_errors("Failed to create an Event Channel"):
            self._h = cm.CMEventChannel()
        self._ids: weakref.WeakValueDictionary[int, CMID] = weakref.WeakValueDictionary()
        self._register_with_parents()

    def _register_id(self, native: cm.CMID, cmid: CMID) -> None:
        self._ids[id(native)] = cmid

    def _next_event(self) -> CMEvent:
        """Wait for the next event that the library does not handle itself, and return it."""
        while True:
            with convert_errors("Failed to get CM event"):
                native = self._native().get_event()
            if native is None:
                continue
            of = native.listen_id if native.listen_id is not None else native.id
            cmid = self._ids.get(id(of))
            if cmid is not None and (kind := cmid._handle_event(native)) is not None:
                return CMEvent._from_native(native, cmid, kind)


class CMEvent(PyverbsObject):
    """An event of a connection id; the constructor waits for the next event of a channel."""

    def __init__(self, channel: CMEventChannel) -> None:
        self.__dict__.update(channel._next_event().__dict__)

    @classmethod
    def _from_native(cls, native: cm.CMEvent, cmid: CMID, kind: int) -> CMEvent:
        event = cls.__new__(cls)
        event._native, event._id, event._kind = native, cmid, kind
        event._ud = cmid._ud_destination(native, kind)
        return event

    _native: cm.CMEvent
    _id: CMID
    _kind: int
    #: QPN, Q_Key and address vector of the remote queue pair in an event of a datagram id.
    _ud: tuple[int, int, AHAttr] | None

    @property
    def event_type(self) -> int:
        """The type of the event, a value of ``rdma_cm_event_type``."""
        return self._kind

    @property
    def private_data(self) -> bytes:
        """The private data sent by the peer."""
        return self._native.private_data

    def event_str(self) -> str:
        """Return the name of the event."""
        try:
            return ce.rdma_cm_event_type(self._kind).name
        except ValueError:
            return "UNKNOWN EVENT"

    def ack_cm_event(self) -> None:
        """Do nothing, because no call waits for the acknowledgement of an event."""

    def close(self) -> None:
        """Acknowledge the event."""
        self.ack_cm_event()


class UDParam(PyverbsObject):
    """The remote queue pair in an event of a datagram id: QPN, Q_Key and address vector."""

    def __init__(self, cm_event: CMEvent) -> None:
        if cm_event._ud is None:
            raise PyverbsUserError(f"{cm_event.event_str()} contains no datagram parameters")
        self._qp_num, self._qkey, self._ah = cm_event._ud

    @property
    def qp_num(self) -> int:
        """Number of the queue pair."""
        return self._qp_num

    @property
    def qkey(self) -> int:
        """Q_Key of the queue pair."""
        return self._qkey

    @property
    def ah_attr(self) -> AHAttr:
        """Address vector of the queue pair."""
        return self._ah._copy()
