# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Connection ids: ``pyverbs.cmid``, the interface of rdma_cm on ``siwarp.cm``.

An id created from an AddrInfo is synchronous: the id has its own event channel, and each call waits
for the event that reports the result of the call.
"""

from __future__ import annotations

import errno

from siwarp.cm import id as cm
from siwarp.pyverbs import cm_enums as ce
from siwarp.pyverbs import enums as e
from siwarp.pyverbs._cm_device import (
    addresses_with_devices,
    device_of_cm_id,
    device_with_address,
    is_wildcard_address,
    shared_pd_of_device,
)
from siwarp.pyverbs._cm_groups import Groups
from siwarp.pyverbs._cm_param import (
    AddrInfo,
    CMEvent,
    CMEventChannel,
    ConnParam,
    JoinMCAttrEx,
    UDParam,
)
from siwarp.pyverbs._cm_post import Posting
from siwarp.pyverbs.addr import GID, AHAttr, GlobalRoute, address_to_gid_octets
from siwarp.pyverbs.base import PyverbsRDMAErrno, convert_errors
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.pd import PD
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from siwarp.pyverbs.qp import ECE, QPN_OF_CM, QPAttr, QPInitAttr, find_open_qp
from siwarp.pyverbs.utils import gid_text
from siwarp.verbs import device as verbs_device
from siwarp.verbs._ffi import Address
from siwarp.verbs.errors import Error
from siwarp.verbs.pd import PD as NativePD
from siwarp.verbs.qpattr import QPAttr as NativeQPAttr

__all__ = [
    "CMID",
    "AddrInfo",
    "CMEvent",
    "CMEventChannel",
    "ConnParam",
    "JoinMCAttrEx",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "UDParam",
]

_DATAGRAMS = (ce.RDMA_PS_UDP, ce.RDMA_PS_IPOIB)
_HOPS = 64
#: RNR retry count and timer: the peer's Sends without a receive are retried without limit, every
#: 655 ms.
_RETRIES, _RNR_TIMER = 7, 0
_ACK_TIMEOUT = 14
_OPTION_TOS, _OPTION_REUSEADDR, _OPTION_AFONLY = 0, 1, 2
_OPTION_ACK_TIMEOUT = ce.RDMA_OPTION_ID_ACK_TIMEOUT
#: The events of ``resolve_addrinfo``, by the event of address resolution that siwarp.cm raises.
_OF_ADDRINFO = {
    int(cm.CMEventType.ADDR_RESOLVED): int(ce.RDMA_CM_EVENT_ADDRINFO_RESOLVED),
    int(cm.CMEventType.ADDR_ERROR): int(ce.RDMA_CM_EVENT_ADDRINFO_ERROR),
}
#: Errors of unreachable addresses: an event reports these errors, no exception is raised.
_OF_NETWORK = (
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ENODEV,
    errno.EACCES,
    errno.EADDRNOTAVAIL,
)
_RIGHTS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
)


class CMID(Posting, Groups):
    """A connection id, used for a connection or as a listener.

    ``creator`` is an AddrInfo (synchronous), a CMEventChannel (asynchronous), or, with
    ``listen_id``, the CMEvent of a connection request.

    Raises:
        PyverbsRDMAError: an address does not belong to this machine, or the peer is not reachable;
            the port space is RDMA_PS_IB (EOPNOTSUPP).

    """

    def __init__(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent | None = None,
        qp_init_attr: QPInitAttr | None = None,
        pd: PD | None = None,
        port_space: int = ce.RDMA_PS_TCP,
        listen_id: CMID | None = None,
    ) -> None:
        self._init_state(pd, qp_init_attr)
        if isinstance(creator, CMEvent):
            if listen_id is None:
                raise PyverbsUserError("The CMID of a request needs listen_id")
            self._adopt_request(creator, listen_id)
        elif isinstance(creator, AddrInfo):
            self._create_id(CMEventChannel(), creator._port_space)
            self._sync = True
            self._init_endpoint(creator, qp_init_attr)
        elif isinstance(creator, CMEventChannel):
            self._create_id(creator, port_space)
        elif listen_id is None:
            raise PyverbsUserError("A CMID requires an AddrInfo, a CMEventChannel or a CMEvent")

    # ---- creation

    def _init_state(self, pd: PD | None, attr: QPInitAttr | None) -> None:
        self._given_pd, self._ep_attr = pd, attr
        self._sync = self._bound = self._any = self._v6only = False
        self._asks = self._listening = self._resolved = self._routed = False
        self._holds = self._accepted = self._established = self._ends = self._over = False
        self._addrinfo: AddrInfo | None = None
        self._addrinfo_events = 0  # events of resolve_addrinfo that the program has not got yet
        self._source: Address | None = None
        self._dest: Address | None = None
        self._device_: verbs_device.Context | None = None
        self._resources = self._depth = self._tos = 0
        self._ack_timeout = _ACK_TIMEOUT
        self._init_posting()
        self._init_groups()

    def _create_id(self, channel: CMEventChannel, port_space: int) -> None:
        if port_space == ce.RDMA_PS_IB:
            raise PyverbsRDMAError("siwarp has no RDMA_PS_IB: there are no LIDs", errno.EOPNOTSUPP)
        self._ps = int(port_space)
        with convert_errors("Failed to create CM ID"):
            self._h = cm.CMID(channel._native(), ud=self._is_ud)
        self._use_channel(channel)

    def _use_channel(self, channel: CMEventChannel) -> None:
        self._channel = channel
        channel._register_id(self._native(), self)
        self._register_with_parents(channel)

    def _adopt_request(self, event: CMEvent, listener: CMID) -> None:
        """Take ownership of the new id in a connection request."""
        native = event._native
        if event._kind != ce.RDMA_CM_EVENT_CONNECT_REQUEST:
            raise PyverbsUserError(f"{event.event_str()} is not a connection request")
        self._h, self._ps, self._tos = native.id, listener._ps, listener._tos
        self._asks = self._bound = True
        self._resources, self._depth = native.responder_resources, native.initiator_depth
        self._use_channel(listener._channel)
        found = device_of_cm_id(self._h)
        if found is not None:
            self._device_ = found
        with convert_errors("Failed to get the address of a request"):
            self._source, self._dest = self._h.local_addr, self._h.peer_addr

    def _init_endpoint(self, info: AddrInfo, attr: QPInitAttr | None) -> None:
        if info._flags & ce.RAI_PASSIVE:
            self.bind_addr(info)
            return
        self.resolve_addr(info)
        self.resolve_route()
        if attr is not None:
            attr.qp_type = self._qp_type
            self.create_qp(attr)

    # ---- attributes

    @property
    def _is_ud(self) -> bool:
        return self._ps in _DATAGRAMS

    @property
    def _qp_type(self) -> int:
        return e.IBV_QPT_UD if self._is_ud else e.IBV_QPT_RC

    def _require_device(self) -> verbs_device.Context:
        if self._device_ is None:
            raise PyverbsRDMAError(
                "This CMID has no device yet: bind it to an address, or resolve one", errno.ENODEV
            )
        return self._device_

    def _native_pd(self) -> NativePD:
        given = self._given_pd
        return shared_pd_of_device(self._require_device()) if given is None else given._native()

    @property
    def pd(self) -> PD:
        """The protection domain of the id, by default the one shared by the device's ids."""
        if self._given_pd is not None:
            return self._given_pd
        if self._own_pd is None:
            self._own_pd = PD(self)
        return self._own_pd

    @property
    def context(self) -> Context:
        """The device context of the id."""
        return self.pd._context

    @property
    def dev_name(self) -> str:
        """The name of the id's device."""
        return self._require_device().name

    @property
    def port_num(self) -> int:
        """The number of the device's port."""
        return 1

    @property
    def event_channel(self) -> CMEventChannel:
        """The event channel of the id."""
        return self._channel

    # ---- events

    def _handle_event(self, event: cm.CMEvent) -> int | None:
        """Update the id's state for an event; return the event number for the program, or None."""
        kind = int(event.type)
        if kind == cm.CMEventType.CONNECT_REQUEST:
            return kind
        if self._addrinfo_events and kind in _OF_ADDRINFO:
            self._addrinfo_events -= 1
            return _OF_ADDRINFO[kind]
        if kind == cm.CMEventType.ESTABLISHED:
            self._established = True
            if self._holds:  # the active side, which called establish(), gets no ESTABLISHED event
                return None
        ended = kind == cm.CMEventType.DISCONNECTED
        if ended and self._accepted and not self._established and not self._ends:
            kind = int(cm.CMEventType.CONNECT_ERROR)
        if kind == cm.CMEventType.REJECTED and self._is_ud:
            kind = int(cm.CMEventType.UNREACHABLE)
        self._over |= kind in (cm.CMEventType.DISCONNECTED, cm.CMEventType.CONNECT_ERROR)
        if kind == cm.CMEventType.MULTICAST_JOIN:
            return self._handle_multicast_join()
        return kind

    def _ud_destination(self, event: cm.CMEvent, kind: int) -> tuple[int, int, AHAttr] | None:
        """Return QPN, Q_Key and address vector of the remote end in an event of a datagram id."""
        if not self._is_ud:
            return None
        if kind in (ce.RDMA_CM_EVENT_MULTICAST_JOIN, ce.RDMA_CM_EVENT_MULTICAST_ERROR):
            return self._destination_of_last_joined_group()
        if kind != ce.RDMA_CM_EVENT_ESTABLISHED:
            return None
        peer = self._native().peer_addr
        return event.qpn, event.qkey, self._address_vector_to(peer[0])

    def _address_vector_to(self, host: str) -> AHAttr:
        """Return an address vector to a host or a multicast group."""
        own = self._require_device().query_info().addresses
        family = [i for i, one in enumerate(own) if (":" in one) == (":" in host)]
        mine = self._source[0] if self._source else None
        index = next((i for i in family if own[i] == mine), family[0] if family else 0)
        dgid = GID(gid_text(address_to_gid_octets(host)))
        route = GlobalRoute(dgid, 0, index, _HOPS, self._tos)
        return AHAttr(is_global=1, port_num=1, gr=route)

    def _wait_if_synchronous(self) -> None:
        """Wait for the event that reports the result of a call, if the id is synchronous."""
        if not self._sync:
            return
        event = self._channel._next_event()
        try:
            event._native.check()
        except Error as error:
            raise PyverbsRDMAError(
                f"{event.event_str()}: {error.strerror}", error.errno or errno.EIO
            ) from error
        if event._native.status:
            raise PyverbsRDMAError(event.event_str(), event._native.status)

    # ---- addresses

    def bind_addr(self, lai: AddrInfo) -> None:
        """Bind the id to the local address ``src``."""
        if lai._src is None or self._bound:
            raise PyverbsRDMAError(
                "Failed to bind ID: no source address, or already bound", errno.EINVAL
            )
        self._bind_address(lai._src)

    def _bind_address(self, source: Address) -> None:
        native = self._native()
        with convert_errors(f"Failed to bind ID to {source[0]} port {source[1]}"):
            if not is_wildcard_address(source[0]):
                self._device_ = device_with_address(source[0])
                native.set_device(self._device_)
            native.bind_addr(source, v6only=self._v6only)
            self._source = native.local_addr
        self._bound, self._any = True, self._device_ is None

    def resolve_addr(self, rai: AddrInfo, timeout_ms: int = 2000) -> None:
        """Find the device and local address for ``dst``, and raise ADDR_RESOLVED immediately."""
        dest = rai._dst
        if (
            dest is None
            or is_wildcard_address(dest[0])
            or self._asks
            or self._listening
            or self._resolved
        ):
            raise PyverbsRDMAError(
                "Failed to resolve address: no destination, or already resolved", errno.EINVAL
            )
        try:
            self._set_source_and_device(rai._src, dest)
        except Error as error:
            if error.errno not in _OF_NETWORK:
                raise PyverbsRDMAError(str(error.strerror), error.errno or errno.EIO) from error
            with convert_errors("Failed to resolve address"):
                self._native().tell(cm.CMEventType.ADDR_ERROR, error.errno)
            self._wait_if_synchronous()
            return
        self._dest, self._resolved = dest, True
        with convert_errors("Failed to resolve address"):
            self._native().tell(cm.CMEventType.ADDR_RESOLVED)
        self._wait_if_synchronous()

    def resolve_addrinfo(
        self,
        node: str | None = None,
        service: str | int | None = None,
        port_space: int = 0,
        flags: int = 0,
    ) -> None:
        """Resolve names as ``AddrInfo`` does, and raise ADDRINFO_RESOLVED, or ADDRINFO_ERROR.

        ``query_addrinfo`` returns the result.
        """
        self._addrinfo, number = None, 0
        try:
            if flags & ce.RAI_PASSIVE:
                self._addrinfo = AddrInfo(node, None, service, None, port_space, flags)
            else:
                self._addrinfo = AddrInfo(None, node, None, service, port_space, flags)
        except PyverbsRDMAError as error:
            number = error.error_code
        self._addrinfo_events += 1
        event = cm.CMEventType.ADDR_ERROR if number else cm.CMEventType.ADDR_RESOLVED
        with convert_errors("Failed to resolve address info"):
            self._native().tell(event, number)
        self._wait_if_synchronous()

    def query_addrinfo(self) -> AddrInfo:
        """Return the result of ``resolve_addrinfo``.

        Raises:
            PyverbsRDMAError: no call has resolved an address (EINVAL).

        """
        if self._addrinfo is None:
            raise PyverbsRDMAError(
                "Failed to query address info: call resolve_addrinfo first", errno.EINVAL
            )
        return self._addrinfo

    def _set_source_and_device(self, source: Address | None, dest: Address) -> None:
        """Bind the id to its source address, by default the one toward ``dest``; set the device."""
        if (
            source is not None
            and not self._bound
            and not (is_wildcard_address(source[0]) and not source[1])
        ):
            self._bind_address(source)
        if self._device_ is not None:
            return
        found = verbs_device.source_toward(dest)
        if not self._bound and not self._is_ud:
            self._bind_address((found, 0))
            return
        self._device_ = device_with_address(found)
        self._native().set_device(self._device_)
        port = self._source[1] if self._bound and self._source else 0
        self._source = found, port

    def resolve_route(self, timeout_ms: int = 2000) -> None:
        """Resolve the route to the peer, and raise ROUTE_RESOLVED immediately."""
        if not self._resolved or self._routed:
            raise PyverbsRDMAError(
                "Failed to resolve route: the address is not resolved, or the route is already "
                "resolved",
                errno.EINVAL,
            )
        with convert_errors("Failed to resolve route"):
            self._native().tell(cm.CMEventType.ROUTE_RESOLVED)
        self._routed = True
        self._wait_if_synchronous()

    # ---- the passive side

    def listen(self, backlog: int = 0) -> None:
        """Listen for connection requests at the bound address, or at all addresses."""
        if self._listening or self._asks or self._qp is not None:
            raise PyverbsRDMAError("Failed to listen: the CMID is already in use", errno.EINVAL)
        if not self._bound:
            self._bind_address(("::", 0))
        native, most = self._native(), backlog if backlog > 0 else 128
        with convert_errors("Failed to listen"):
            if self._any and self._source is not None:
                for device, address in addresses_with_devices():
                    if ":" in address or not self._v6only:
                        self._listen_at(native, device, address, most)
            else:
                native.listen(backlog=most)
        self._listening = True

    def _listen_at(
        self, native: cm.CMID, device: verbs_device.Context, address: str, backlog: int
    ) -> None:
        if self._source is None or (":" in address and ":" not in self._source[0]):
            return
        try:
            native.listen_also(device, (address, self._source[1]), backlog)
        except Error as error:
            # An address that is still in duplicate address detection is skipped.
            if error.errno != errno.EADDRNOTAVAIL:
                raise

    def get_request(self) -> CMID:
        """Wait for the next connection request of a synchronous listener, and return its id.

        Raises:
            PyverbsRDMAError: the id is not synchronous, or does not listen (EINVAL).

        """
        if not self._sync or not self._listening:
            raise PyverbsRDMAError(
                "Failed to get request: the CMID is not a synchronous listener", errno.EINVAL
            )
        event = self._channel._next_event()
        new = CMID(event, pd=self._given_pd, listen_id=self)
        channel = CMEventChannel()
        with convert_errors("Failed to get request"):
            new._native().migrate(channel._native())
        new._sync = True
        new._use_channel(channel)
        self._channel._children_registry().discard(new)
        if self._ep_attr is not None:
            attr = self._ep_attr
            own = QPInitAttr(
                self._qp_type, attr.qp_context, attr.send_cq, attr.recv_cq, attr.srq, attr.cap,
                attr.sq_sig_all,
            )  # fmt: skip
            new.create_qp(own)
        return new

    def accept(self, param: ConnParam | None = None) -> None:
        """Accept the connection request from which the id was created."""
        if not self._asks:
            raise PyverbsRDMAError(
                "Failed to accept: the CMID has no connection request", errno.EINVAL
            )
        if self._qp is None:
            self._bind_program_qp(param)
        if param is None:
            param = ConnParam(min(self._resources, 255), min(self._depth, 255), rnr_retry=7)
        self._set_qp_rnr_retry(param)
        # Set before accept(), because other threads may handle the events that accept() causes.
        self._accepted = True
        try:
            with convert_errors("Failed to accept"):
                self._native().accept(self._native_param(param, hold=False))
        except PyverbsRDMAError:
            self._accepted = False
            raise
        self._asks = False
        if not self._is_ud:  # the passive side of a datagram id gets no event
            self._wait_if_synchronous()

    def reject(self, private_data: bytes | str | None = None) -> None:
        """Reject the connection request from which the id was created."""
        data = private_data.encode() if isinstance(private_data, str) else private_data or b""
        if not self._asks:
            raise PyverbsRDMAError(
                "Failed to reject: the CMID has no connection request", errno.EINVAL
            )
        with convert_errors("Failed to reject"):
            self._native().reject(data)
        self._asks = False

    # ---- the active side, and disconnecting

    def _native_param(self, param: ConnParam, hold: bool) -> cm.ConnParam:
        if self._is_ud:
            return cm.ConnParam(private_data=param.private_data)
        with convert_errors("Failed to query device"):
            limits = self._require_device().query_device()
        most = limits.max_qp_init_rd_atom, limits.max_qp_rd_atom
        return param._to_siwarp_param(hold, self._tos, *most)

    def _bind_program_qp(self, param: ConnParam | None) -> None:
        """Bind the id to the queue pair that the program created and names in ``param.qpn``."""
        qp = find_open_qp(self._require_device(), param.qpn) if param is not None else None
        if qp is None:
            raise PyverbsRDMAError(
                "The CMID has no queue pair: call create_qp, or pass the number of one as "
                "ConnParam(qp_num=)",
                errno.EINVAL,
            )
        with convert_errors("Failed to use the queue pair"):
            self._native().bind_qp(qp._native())

    def _set_qp_rnr_retry(self, param: ConnParam) -> None:
        if self._qp is not None and not self._is_ud:
            retries = min(param.rnr_retry, _RETRIES)
            with convert_errors("Failed to set the retries"):
                self._qp._native().modify(NativeQPAttr(rnr_retry=retries, min_rnr_timer=_RNR_TIMER))

    def connect(self, param: ConnParam | None = None) -> None:
        """Connect to the resolved address; an event such as ESTABLISHED reports the result.

        Raises:
            PyverbsRDMAError: no route has been resolved, or there is no queue pair (EINVAL); for a
                synchronous id also: the peer refused or did not answer.

        """
        if self._dest is None or not self._routed:
            raise PyverbsRDMAError("Failed to connect: resolve the route first", errno.EINVAL)
        self._holds = self._qp is None and not self._is_ud
        if self._holds:
            self._bind_program_qp(param)
        chosen = ConnParam(255, 255, rnr_retry=7) if param is None else param
        self._set_qp_rnr_retry(chosen)
        source = self._source if self._bound else None
        with convert_errors("Failed to connect"):
            self._native().connect(self._dest, self._native_param(chosen, self._holds), source)
        self._wait_if_synchronous()

    def establish(self) -> None:
        """Complete the connection of a queue pair that the program created itself."""
        if not self._holds:
            raise PyverbsRDMAError(
                "Failed to establish: the CMID has its own queue pair and "
                "establishes the connection itself",
                errno.EINVAL,
            )
        with convert_errors("Failed to establish"):
            self._native().establish()

    def disconnect(self) -> None:
        """Disconnect. For datagrams the queue pair moves to ERR, and the peer is not notified."""
        if self._asks or self._listening:
            raise PyverbsRDMAError("Failed to disconnect: the CMID is not connected", errno.EINVAL)
        if self._is_ud:
            if self._qp is not None:
                self._qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
            return
        self._ends = True
        with convert_errors("Failed to disconnect"):
            self._native().disconnect()
        # An id without a connection, or whose connection has ended, gets no event.
        if not self._over and (self._accepted or self._established or self._holds):
            self._wait_if_synchronous()

    # ---- options and attributes

    def set_option(self, level: int, optname: int, optval: int, optlen: int) -> None:
        """Set the type of service, or the time-out that ``init_qp_attr`` returns."""
        known = level == ce.RDMA_OPTION_ID and 0 <= optname <= _OPTION_ACK_TIMEOUT
        if not known or (optname == _OPTION_ACK_TIMEOUT and not 0 <= optval <= 31):
            raise PyverbsRDMAError(f"Failed to set option {optname} to {optval}", errno.EINVAL)
        if optname in (_OPTION_REUSEADDR, _OPTION_AFONLY) and self._bound and not self._resolved:
            raise PyverbsRDMAError("Failed to set an option: the ID is bound", errno.EINVAL)
        if optname == _OPTION_AFONLY:
            self._v6only = bool(optval)
        if optname == _OPTION_TOS:
            self._tos = optval & 0xFF
        if optname == _OPTION_ACK_TIMEOUT:
            self._ack_timeout = optval or _ACK_TIMEOUT

    def init_qp_attr(self, qp_state: int) -> tuple[QPAttr, int]:
        """Return the attributes and mask for a state transition of the program's queue pair."""
        attr = QPAttr(qp_state=qp_state)
        mask = int(e.IBV_QP_STATE)
        if qp_state == e.IBV_QPS_INIT:
            mask |= e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
            mask |= e.IBV_QP_QKEY if self._is_ud else e.IBV_QP_ACCESS_FLAGS
            attr.qkey, attr.qp_access_flags = self._QKEY, 0 if self._is_ud else _RIGHTS
        elif qp_state == e.IBV_QPS_RTR and not self._is_ud:
            peer = self._dest[0] if self._dest else "0.0.0.0"
            attr.ah_attr, attr.dest_qp_num = self._address_vector_to(peer), QPN_OF_CM
            attr.max_dest_rd_atomic, attr.min_rnr_timer = min(self._resources, 255), _RNR_TIMER
            mask |= e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
            mask |= e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
        elif qp_state == e.IBV_QPS_RTS:
            mask |= e.IBV_QP_SQ_PSN
            if not self._is_ud:
                attr.timeout, attr.retry_cnt, attr.rnr_retry = self._ack_timeout, 7, _RETRIES
                attr.max_rd_atomic = min(self._depth, 255)
                mask |= e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY
                mask |= e.IBV_QP_MAX_QP_RD_ATOMIC
        elif qp_state != e.IBV_QPS_RTR:
            raise PyverbsRDMAError(f"Failed to init attributes of state {qp_state}", errno.EINVAL)
        return attr, mask

    def set_local_ece(self, ece: ECE) -> None:
        """Refuse vendor options, because siwarp has none."""
        if ece.vendor_id or ece.options:
            raise PyverbsRDMAError("siwarp has no vendor options", errno.EOPNOTSUPP)

    def get_remote_ece(self) -> ECE:
        """Return empty vendor options of the peer, because MPA frames carry none."""
        return ECE()

    def query_qp(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """Return the attributes and creation parameters of the id's queue pair."""
        return self._require_qp().query(attr_mask)

    def close(self) -> None:
        """Close the id, then its queue pair, its memory regions and its completion queues."""
        super(Posting, self).close()
        self._close_own_objects()
        if self._sync:
            self._channel.close()
