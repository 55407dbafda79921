# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Queue pairs: RC over TCP, UC, UD and RD over UDP."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from siwarp.verbs._ffi import (
    Address,
    Handle,
    addr_from_c,
    addr_to_c,
    check_return_code,
    destroy_objects_of_dropped_handles,
    ffi,
    lib,
)
from siwarp.verbs.ah import AHAttr
from siwarp.verbs.cq import CQ, WC
from siwarp.verbs.enums import (
    AccessFlag,
    ErrorPolicy,
    Persona,
    QPAttrMask,
    QPState,
    QPType,
)
from siwarp.verbs.errors import Error, LimitError, StateError
from siwarp.verbs.events import wait_until_events_acked
from siwarp.verbs.mw import MW, MWBind
from siwarp.verbs.pd import PD
from siwarp.verbs.qkey import default_qkey
from siwarp.verbs.qpattr import QPAttr, QPCap, QPInitAttr
from siwarp.verbs.reason import refusal_error
from siwarp.verbs.reports import (
    ErrorReport,
    PeerRestart,
    ReceiveWait,
    Record,
    SourceDrops,
    error_report_from_c,
)
from siwarp.verbs.srq import SRQ
from siwarp.verbs.wanted import require_instance, type_error
from siwarp.verbs.wr import RecvWR, SendWR, arrays_module, link_requests, posting_array_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from siwarp.verbs.arrays import AHList

__all__ = ["QP"]


_null = ffi.NULL
_STATES = tuple(QPState)
_NO_GROUPS: frozenset[str] = frozenset()
_post_send = lib.siw_post_send
_post_recv = lib.siw_post_recv
_post_send_array = lib.siw_post_send_array
_post_recv_array = lib.siw_post_recv_array
_send_inline = lib.siw_send_inline
_new = ffi.new
_posted = ffi.typeof("size_t *")


class QP(Handle):
    """A queue pair (``siw_create_qp``).

    UD: bound to a port at creation; ``to_rts()`` makes the queue pair ready to receive and send.
    UC: like UD, and ``to_rts(QPAttr(ah_attr=(host, port)))`` specifies the peer. RC: ``siwarp.cm``
    connects the queue pair.

    RD: like UD, and each request names its peer by ``SendWR(ah=...)``: Send, Write (with immediate
    data or recorded), Read and atomics are delivered completely, once and in order for each peer. A
    Send or Write completes when the peer has accepted it, and before the receive of any message
    that the peer sent later. A Send that finds no receive waits for one. The loss of a peer fails
    only the requests to that peer, with RETRY_EXC_ERR and WR_FLUSH_ERR, and ``WC.source`` names the
    peer. RD binds no memory windows; its peers may use windows of type 1 that an RC or UC QP of the
    same PD bound.

    Raises:
        Error: a capability exceeds the device's, or a CQ is missing or belongs to another device
            (EINVAL); the UD address is in use or does not belong to this machine (EADDRINUSE,
            EADDRNOTAVAIL).
        LimitError: the limit of queue pairs is reached on the device (ENOMEM) or on the socket
            (ENOSPC), or the process can open no further socket (EMFILE).

    """

    __slots__ = (
        "_first_qkey",
        "_groups",
        "cap",
        "pd",
        "qp_context",
        "qp_type",
        "rcq",
        "scq",
        "srq",
    )
    _what = "QP"
    _destroy = lib.siw_destroy_qp

    pd: PD
    qp_type: QPType
    scq: CQ
    rcq: CQ
    srq: SRQ | None
    #: The capabilities that were granted, which are at least the requested ones.
    cap: QPCap
    qp_context: Any

    def __init__(self, pd: PD, init_attr: QPInitAttr) -> None:
        destroy_objects_of_dropped_handles()
        require_instance(pd, PD, "a QP is created in a PD, for example QP(pd, QPInitAttr(scq=cq))")
        require_instance(
            init_attr,
            QPInitAttr,
            "a QP is created from a QPInitAttr, for example QPInitAttr(scq=cq)",
        )
        scq = init_attr.scq or init_attr.rcq
        rcq = init_attr.rcq or init_attr.scq
        if scq is None or rcq is None:
            raise Error(errno.EINVAL, "a QP needs a CQ: QPInitAttr(scq=..., rcq=...)")
        c_init = ffi.new("struct siw_qp_init_attr *")
        c_init.send_cq = scq._c_object()
        c_init.recv_cq = rcq._c_object()
        c_init.srq = _null if init_attr.srq is None else init_attr.srq._c_object()
        for name in _CAP_NAMES:
            value = getattr(init_attr.cap, name)
            if not 0 <= value < 1 << 32:
                raise LimitError(
                    errno.EINVAL, f"creating a QP: {name}={value} must be from 0 to 2**32-1"
                )
            setattr(c_init.cap, name, value)
        c_init.qp_type = init_attr.qp_type
        c_init.sq_sig_all = init_attr.sq_sig_all
        c_init.no_crc = not init_attr.crc
        c_init.persona = init_attr.persona
        c_init.keep_unexpected = init_attr.keep_unexpected
        c_init.by_qpn = init_attr.by_qpn
        c_init.grh = init_attr.grh
        c_init.every_addr = init_attr.every_addr
        c_init.private_messages = init_attr.private_messages
        c_init.max_write_records = init_attr.max_write_records
        c_init.error_policy = _error_policy_number(init_attr.error_policy)
        shared = init_attr.shared_socket_qp
        c_init.shared_socket_qp = _null if shared is None else shared._c_object()
        c_init.max_peers = init_attr.max_peers
        c_init.peer_timeout_ms = round(init_attr.peer_timeout * 1000)
        c_init.addr = addr_to_c(init_attr.addr)[0]
        if init_attr.every_addr and init_attr.addr and not init_attr.addr[0]:
            c_init.addr.family = 0  # family 0: only the port is given
        where = f" at {init_attr.addr[0]} port {init_attr.addr[1]}" if init_attr.addr else ""
        c = lib.siw_create_qp(pd._c_object(), c_init)
        if not c:
            raise refusal_error(ffi.errno, f"making a QP{where}")
        self.pd = pd
        self.qp_type = QPType(init_attr.qp_type)
        self.scq = scq
        self.rcq = rcq
        self.srq = init_attr.srq
        self.cap = QPCap(**{name: getattr(c_init.cap, name) for name in _CAP_NAMES})
        self.qp_context = init_attr.qp_context
        #: The Q_Key to set at INIT; None: a Q_Key was set, or the QP type has none.
        self._first_qkey: int | None = None
        if self.qp_type in (QPType.UD, QPType.RD):
            self._first_qkey = (
                default_qkey(pd.context) if init_attr.qkey is None else init_attr.qkey
            )
        self._groups: frozenset[str] = _NO_GROUPS
        self._adopt_c_object(c, pd, *({scq, rcq}), *(() if self.srq is None else (self.srq,)))
        pd.context._by_c[int(ffi.cast("uintptr_t", c))] = self

    # ---- states

    def modify(self, attr: QPAttr, mask: int | None = None) -> None:
        """Change attributes of the queue pair, for example its state (``siw_modify_qp``).

        ``mask`` selects the attributes; the default is those that are not ``None``.

        Raises:
            StateError: the state transition does not exist, or does not accept one of the
                attributes (EINVAL).
            LimitError: a value exceeds the device's or the connection's limits (EINVAL).
            Error: the QP type has no such attribute, or the mask or a value is invalid (EINVAL).
                After any error all attributes are unchanged.

        """
        c_attr = ffi.new("struct siw_qp_attr *")
        mask = int(attr.mask) if mask is None else int(mask)
        begins = attr.qp_state == QPState.INIT and not mask & QPAttrMask.QKEY
        if begins and self._first_qkey is not None:
            attr, mask = replace(attr, qkey=self._first_qkey), mask | QPAttrMask.QKEY
        for name, bit in QPAttr._MASKS.items():
            value = getattr(attr, name)
            if value is None or not mask & bit:
                continue
            if bit == QPAttrMask.AV:
                c_attr.ah_addr = addr_to_c(_ah_destination(value))[0]
                if isinstance(value, AHAttr) and value.source is not None:
                    c_attr.ah_source = addr_to_c((value.source, 0))[0]
                continue
            try:
                setattr(c_attr, name, value.fileno() if isinstance(value, socket.socket) else value)
            except OverflowError:
                raise LimitError(
                    errno.EINVAL, f"modifying {self!r}: {name}={value} is out of range"
                ) from None
        check_return_code(lib.siw_modify_qp(self._c_object(), c_attr, mask), f"modifying {self!r}")
        if mask & QPAttrMask.QKEY:
            self._first_qkey = None
        if isinstance(attr.fd, socket.socket) and mask & QPAttrMask.FD:
            attr.fd.detach()

    def to_init(self, attr: QPAttr | None = None) -> None:
        """Move the queue pair to INIT, where receives can be posted; UD accepts Q_Key and socket
        here.
        """
        self._modify_through_states((QPState.INIT,), attr)

    def to_rtr(self, attr: QPAttr | None = None) -> None:
        """Move the queue pair to RTR (ready to receive), through INIT if necessary.

        Each attribute is applied in the first step that accepts it. UC needs ``ah_attr`` here; RC
        with ``by_qpn`` needs ``ah_attr`` and ``dest_qp_num``.
        """
        fresh = self.qp_state == QPState.RESET
        self._modify_through_states((QPState.INIT, QPState.RTR) if fresh else (QPState.RTR,), attr)

    def to_rts(self, attr: QPAttr | None = None) -> None:
        """Move the queue pair to RTS (ready to send), through INIT and RTR if necessary.

        Each attribute is applied in the first step that accepts it. UC needs ``ah_attr`` on the
        way; RC with ``by_qpn`` needs ``ah_attr`` and ``dest_qp_num``.
        """
        way = (QPState.INIT, QPState.RTR, QPState.RTS)
        state = self.qp_state
        self._modify_through_states(way[state:] if state < QPState.RTS else (QPState.RTS,), attr)

    def _modify_through_states(self, way: Sequence[QPState], attr: QPAttr | None) -> None:
        """Move the queue pair through the states ``way``; each attribute of ``attr`` is used in the
        first step that accepts it.
        """
        left: dict[str, Any] = {}
        if attr is not None:
            left = {name: getattr(attr, name) for name in QPAttr._MASKS}
            left = {n: v for n, v in left.items() if v is not None and n != "qp_state"}
        for state in way[:-1]:
            takes = lib.siw_qp_step_attrs(self.qp_type, self.qp_state, state)
            now = {n: v for n, v in left.items() if takes > 0 and takes & QPAttr._MASKS[n]}
            self.modify(QPAttr(qp_state=state, **now))
            left = {n: v for n, v in left.items() if n not in now}
        self.modify(QPAttr(qp_state=way[-1], **left))

    def drops(self) -> list[SourceDrops]:
        """Return the sources whose datagrams were dropped for lack of a receive, most drops first.

        For UD. At most 32 source addresses are stored, those with the most drops.

        Raises:
            Error: this is not a UD queue pair (EINVAL).

        """
        out = ffi.new("struct siw_source_drops[]", 32)
        n = check_return_code(
            lib.siw_query_drops(self._c_object(), out, 32), f"querying the drops of {self!r}"
        )
        found = [(addr_from_c(d.source), d) for d in out[0:n]]
        return [SourceDrops(a[0], int(d.drops), int(d.over)) for a, d in found if a]

    def waits(self) -> list[ReceiveWait]:
        """Return the peers to or from which a message is waiting for a receive.

        For RD. At most 1,024 are returned.

        Raises:
            Error: this is not an RD queue pair (EINVAL).

        """
        out = ffi.new("struct siw_rd_wait[]", 1024)
        n = check_return_code(
            lib.siw_query_waits(self._c_object(), out, 1024),
            f"querying the waiting messages of {self!r}",
        )
        found = [(addr_from_c(w.peer), w) for w in out[0:n]]
        return [ReceiveWait(a, bool(w.here), int(w.ms) / 1000) for a, w in found if a]

    def restarts(self) -> list[PeerRestart]:
        """Return each peer that has restarted (its instance has changed), once.

        For RD; at most 1,024 per call. ``PEER_RESTARTED`` is the event for it. Requests that were
        posted for the previous instance complete with WR_FLUSH_ERR; with the setting
        ``rd_follow_restart``, requests that were not begun are sent to the new instance.

        Raises:
            Error: this is not an RD queue pair (EINVAL).

        """
        out = ffi.new("struct siw_rd_restart[]", 1024)
        n = check_return_code(
            lib.siw_poll_restarts(self._c_object(), out, 1024),
            f"querying the restarted peers of {self!r}",
        )
        found = [(addr_from_c(r.peer), r) for r in out[0:n]]
        return [PeerRestart(a, int(r.instance)) for a, r in found if a]

    def end_peer(self, address: Address) -> bool:
        """Abandon the peer at (host, port) and notify it; return whether requests were in progress.

        For RD. Requests to the peer complete at a later poll like requests to a lost peer, and the
        next request contacts the peer again. For a server whose send queue is full of messages that
        peers do not accept.

        Raises:
            Error: this is not an RD queue pair (EINVAL).

        """
        addr = addr_to_c(address)
        return bool(
            check_return_code(
                lib.siw_end_peer(self._c_object(), addr), f"ending a peer of {self!r}"
            )
        )

    def poll_errors(self, n: int = 16) -> list[ErrorReport]:
        """Return up to ``n`` errors, oldest first: found in peers' messages, or reported by peers.

        For UD, UC and RD. If there is no error, the call makes one progress round. A peer's report
        has no other effect; ``QP_ERR_QUEUED`` is the event for it.

        Raises:
            Error: this is an RC queue pair (EINVAL).

        """
        out = ffi.new("struct siw_err_entry[]", max(n, 1))
        got = check_return_code(
            lib.siw_poll_err(self._c_object(), n, out), f"reading the errors of {self!r}"
        )
        return [error_report_from_c(e) for e in out[0:got]]

    def errors(self) -> list[ErrorReport]:
        """Return all errors that are queued now, in the form that ``poll_errors`` returns."""
        found = self.poll_errors()
        more = found
        while len(more) == 16 and len(found) < 65536:
            more = self.poll_errors()
            found += more
        return found

    # ---- multicast

    def attach_mcast(self, group: str) -> None:
        """Receive the messages sent to a multicast group on this device (``siw_attach_mcast``).

        For UD. ``group`` is an IPv4 or IPv6 address, of the same family as the queue pair's own.
        Each member uses one of its own receives for each message with its Q_Key; a sender that is a
        member also receives the message. Send to the group with ``AH(pd, (group, 0))``. Closing the
        queue pair detaches it.

        Raises:
            Error: this is not a UD queue pair, or ``group`` is not a multicast address or of the
                other family (EINVAL); another program has bound the port of groups for all
                addresses (EADDRINUSE).
            LimitError: no file descriptor is left for the group's socket (EMFILE).

        """
        self._groups |= {
            self._change_multicast_membership(lib.siw_attach_mcast, group, "attaching")
        }

    def detach_mcast(self, group: str) -> None:
        """Leave a multicast group (``siw_detach_mcast``).

        Raises:
            Error: the queue pair is not a member of the group (EINVAL).

        """
        self._groups -= {
            self._change_multicast_membership(lib.siw_detach_mcast, group, "detaching")
        }

    def _change_multicast_membership(self, call: Any, name: str, doing: str) -> str:
        c_group = addr_to_c(
            (require_instance(name, str, "a group is an IP address, for example '239.1.1.1'"), 0)
        )
        # The group is joined on the device's interface, even if the address has a scope.
        group = (addr_from_c(c_group) or (name, 0))[0].partition("%")[0]
        check_return_code(call(self._c_object(), c_group), f"{doing} {self!r}: group {group}")
        return group

    def record(self, wc: WC) -> Record:
        """Return the Write-Record that a completion of opcode ``RECV_WRITE_RECORD`` reports.

        Raises:
            Error: the record is no longer stored, because ``max_write_records`` / 2 others have
                followed (ENOENT).

        """
        c = ffi.new("struct siw_record *")
        ranges = ffi.new("struct siw_record_range[]", 32)
        n = check_return_code(
            lib.siw_query_record(self._c_object(), wc.wr_id, c, ranges, 32),
            f"querying Write-Record {wc.wr_id} of {self!r}",
        )
        return Record(
            source=addr_from_c(c.source) or ("", 0),
            src_qp=int(c.src_qp),
            message_id=int(c.id),
            addr=int(c.addr),
            rkey=int(c.rkey),
            length=int(c.length),
            valid=int(c.valid),
            ranges=tuple((int(r.start), int(r.end)) for r in ranges[0:n]),
        )

    def query(self) -> tuple[QPAttr, QPInitAttr]:
        """Return the current attributes, and the attributes from creation."""
        attr = ffi.new("struct siw_qp_attr *")
        init = ffi.new("struct siw_qp_init_attr *")
        check_return_code(lib.siw_query_qp(self._c_object(), attr, init), f"querying {self!r}")
        return (
            QPAttr(
                qp_state=QPState(attr.qp_state),
                cur_qp_state=QPState(attr.cur_qp_state),
                en_sqd_async_notify=bool(attr.en_sqd_async_notify),
                sq_draining=bool(attr.sq_draining),
                qkey=attr.qkey,
                qp_access_flags=AccessFlag(attr.qp_access_flags),
                max_rd_atomic=attr.max_rd_atomic,
                max_dest_rd_atomic=attr.max_dest_rd_atomic,
                rnr_retry=attr.rnr_retry,
                min_rnr_timer=attr.min_rnr_timer,
                ah_attr=_peer_ah_attr(attr),
                dest_qp_num=attr.dest_qp_num,
                path_mtu=attr.path_mtu,
                rq_psn=attr.rq_psn,
                sq_psn=attr.sq_psn,
                timeout=attr.timeout,
                retry_cnt=attr.retry_cnt,
                rate_limit=attr.rate_limit,
            ),
            QPInitAttr(
                qp_type=QPType(init.qp_type),
                qp_context=self.qp_context,
                cap=QPCap(**{name: getattr(init.cap, name) for name in _CAP_NAMES}),
                scq=self.scq,
                rcq=self.rcq,
                sq_sig_all=bool(init.sq_sig_all),
                crc=not init.no_crc,
                addr=("", socket.ntohs(init.addr.port_be))
                if init.every_addr
                else addr_from_c(init.addr),
                srq=self.srq,
                persona=Persona(init.persona),
                keep_unexpected=bool(init.keep_unexpected),
                by_qpn=bool(init.by_qpn),
                grh=bool(init.grh),
                every_addr=bool(init.every_addr),
                private_messages=bool(init.private_messages),
                error_policy=ErrorPolicy(init.error_policy),
                max_peers=init.max_peers,
                peer_timeout=init.peer_timeout_ms / 1000,
            ),
        )

    @property
    def qp_state(self) -> QPState:
        """The current state of the queue pair."""
        attr = ffi.new("struct siw_qp_attr *")
        try:
            rc = lib.siw_query_qp(self._c, attr, _null)
        except TypeError:
            self._c_object()
            raise
        if rc < 0:
            check_return_code(rc, "querying the state of a QP")
        return _STATES[int(attr.qp_state)]

    @property
    def qp_num(self) -> int:
        """The queue pair number. UC, UD: the UDP port; UD: bits 16 and up are the index on a shared
        socket.
        """
        return int(lib.siw_qp_num(self._c_object()))

    @property
    def addr(self) -> Address:
        """The address: for UC and UD, the bound address; for RC, this end of the connection.

        Raises:
            StateError: the queue pair is not connected (ENOTCONN).

        """
        return self._local_and_peer_addr()[0]

    @property
    def peer(self) -> Address:
        """RC, UC: the address of the connection's other end."""
        return self._local_and_peer_addr()[1]

    def _local_and_peer_addr(self) -> tuple[Address, Address]:
        local = ffi.new("struct siw_addr *")
        peer = ffi.new("struct siw_addr *")
        check_return_code(
            lib.siw_qp_addr(self._c_object(), local, peer), f"querying the address of {self!r}"
        )
        return addr_from_c(local) or ("", 0), addr_from_c(peer) or ("", 0)

    # ---- posting

    def post_send(self, wr: SendWR | Iterable[SendWR]) -> None:
        """Post one send request, or several in one call of the library, in order.

        Raises:
            LimitError: the send queue is full (ENOMEM).
            StateError: the queue pair has not been in RTS yet (EINVAL).
            Error: a request is invalid (EINVAL). Any error's ``bad_wr`` is the first request that
                was not posted; the requests before it are posted.

        """
        one: Any = wr
        try:
            if one._next is not None:
                one._clear_next()
            rc = _post_send(self._c, one._c, _null)
        except (AttributeError, TypeError):
            self._c_object()
            if isinstance(wr, SendWR):
                raise
            self._post_requests(_post_send, "struct siw_send_wr *", wr, SendWR)
        else:
            if rc:
                raise self._posting_error(rc, one)

    def send_inline(self, data: bytes, wr_id: int = 0) -> bool:
        """Post one Send of at most ``cap.max_inline_data`` octets (``siw_send_inline``).

        For RC and UC. Return whether the Send has completed: then no completion is queued.
        Otherwise the completion queue will report its completion.

        Raises:
            LimitError: the send queue is full (ENOMEM).
            StateError: the queue pair has not been in RTS yet (EINVAL).
            Error: the data is too long, or this is a UD or RD queue pair (EINVAL).

        """
        rc: int = _send_inline(self._c_object(), wr_id, data, len(data))
        if rc < 0:
            raise refusal_error(-rc, f"sending on {self!r}")
        return rc > 0

    def post_send_all(self, wrs: Iterable[SendWR]) -> None:
        """Post all of these send requests, in order, or none of them.

        Raises:
            Error: as in ``post_send``; no request was posted.

        """
        self._post_requests(lib.siw_post_send_all, "struct siw_send_wr *", wrs, SendWR)

    def post_recv(self, wr: RecvWR | Iterable[RecvWR]) -> None:
        """Post one receive request, or several in one call of the library, in order.

        Raises:
            LimitError: the receive queue is full (ENOMEM).
            StateError: the queue pair is in RESET (EINVAL).
            Error: as in ``post_send``.

        """
        one: Any = wr
        try:
            if one._next is not None:
                one._clear_next()
            rc = _post_recv(self._c, one._c, _null)
        except (AttributeError, TypeError):
            self._c_object()
            if isinstance(wr, RecvWR):
                raise
            self._post_requests(_post_recv, "struct siw_recv_wr *", wr, RecvWR)
        else:
            if rc:
                raise self._posting_error(rc, one)

    def post_send_array(self, wrs: NDArray[np.void], ahs: AHList | None = None) -> None:
        """Post the send requests of an array, in order (``siwarp.verbs.arrays.send_array``).

        The requests are copied, so that the array can be changed after the call. ``ahs`` has the
        address handles of UD and RD requests; the field ``ah`` of a request is an index of ``ahs``.

        Raises:
            LimitError: the send queue is full (ENOMEM).
            StateError: the queue pair has not been in RTS yet (EINVAL).
            Error: a request is invalid, or it is a BIND_MW, a masked atomic or INLINE (EINVAL). Any
                error's ``bad_wr`` is the index of the first request that was not posted; the
                requests before it are posted.
            TypeError, ValueError: the array has another dtype, or is not one-dimensional and
                contiguous; no request was posted.

        """
        arrays = arrays_module()
        c_wrs = arrays.convert_send_array_to_c(wrs)
        if ahs is None:
            c_ahs, n_ahs = _null, 0
        elif isinstance(ahs, arrays.AHList):
            c_ahs, n_ahs = ahs._c, len(ahs._c)
        else:
            raise type_error("ahs is a list of address handles, for example AHList([ah])", ahs)
        posted = _new(_posted)
        rc = _post_send_array(self._c_object(), c_wrs, len(c_wrs), c_ahs, n_ahs, posted)
        if rc:
            raise posting_array_error(rc, posted[0], self)

    def post_recv_array(self, wrs: NDArray[np.void]) -> None:
        """Post the receives of an array, in order (``siwarp.verbs.arrays.recv_array``).

        Raises:
            LimitError: the receive queue is full (ENOMEM).
            StateError: the queue pair is in RESET (EINVAL).
            Error: as in ``post_send_array``.
            TypeError, ValueError: as in ``post_send_array``.

        """
        c_wrs = arrays_module().recv_array_to_c(wrs)
        posted = _new(_posted)
        rc = _post_recv_array(self._c_object(), c_wrs, len(c_wrs), posted)
        if rc:
            raise posting_array_error(rc, posted[0], self)

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Post a bind of a window of type 1 (``siw_bind_mw``); ``mw.rkey`` is then the new key.

        A length of 0 only ends the previous binding.

        Raises:
            LimitError: the send queue or the table of keys is full (ENOMEM).
            StateError: the queue pair has not been in RTS yet (EINVAL).
            Error: the bind is invalid (EINVAL).

        """
        c, info = ffi.new("struct siw_mw_bind *"), mw_bind.info
        c.wr_id, c.send_flags = mw_bind.wr_id, int(mw_bind.send_flags)
        c.bind_info.mr = _null if info.mr is None else info.mr._c_object()
        c.bind_info.addr, c.bind_info.length = info.addr, info.length
        c.bind_info.mw_access_flags = int(info.mw_access_flags)
        check_return_code(
            lib.siw_bind_mw(self._c_object(), mw._c_object(), c), f"binding {mw!r} by {self!r}"
        )

    def _post_requests(self, post: Any, pointer: str, many: Any, kind: type) -> None:
        wrs = list(many) if isinstance(many, Iterable) else [many]
        for wr in wrs:
            if not isinstance(wr, kind):
                raise TypeError(f"can post a {kind.__name__} or a list of them, not {wr!r}")
        if not wrs:
            return
        first = link_requests(wrs)
        bad = ffi.new(f"{pointer}*")
        rc = post(self._c_object(), first, bad)
        if rc:
            here = ffi.cast(pointer, first)
            taken = 0
            while here != bad[0] and taken < len(wrs) - 1:
                here = here.next
                taken += 1
            raise self._posting_error(rc, wrs[taken])

    def _posting_error(self, rc: int, wr: SendWR | RecvWR) -> Error:
        """Return the exception for a work request that the library refused to post."""
        error = refusal_error(-rc, f"posting {wr!r} to {self!r}")
        error.bad_wr = wr
        return error

    def _destroy_c_object(self) -> None:
        wait_until_events_acked(self)
        for group in [] if self._pid != os.getpid() else list(self._groups):
            with contextlib.suppress(StateError):  # ESTALE: closing the device has detached the QP
                self.detach_mcast(group)
        super()._destroy_c_object()

    def _destroy_function(self) -> Callable[[Any], int]:
        groups = [addr_to_c((group, 0)) for group in self._groups]

        def detach_and_destroy(c: Any) -> int:
            for group in groups:
                lib.siw_detach_mcast(c, group)
            return int(lib.siw_destroy_qp(c))

        return detach_and_destroy

    def _description_for_repr(self) -> str:
        return f"{self.qp_type.name} {self.qp_num}"


def _error_policy_number(value: int | str) -> int:
    """Return the number of an error policy given by number or name."""
    if not isinstance(value, str):
        return value
    if value.upper() not in ErrorPolicy.__members__:
        raise Error(errno.EINVAL, f"error_policy is one of ErrorPolicy, or its name, not {value!r}")
    return ErrorPolicy[value.upper()]


def _peer_ah_attr(attr: Any) -> AHAttr | None:
    """Return the address of a queue pair's peer, and its own address for that peer."""
    peer, source = addr_from_c(attr.ah_addr), addr_from_c(attr.ah_source)
    return AHAttr(*peer, source[0] if source else None) if peer else None


def _ah_destination(value: AHAttr | Address) -> Address:
    return (value.host, value.port) if isinstance(value, AHAttr) else value


_CAP_NAMES = tuple(f.name for f in fields(QPCap))
