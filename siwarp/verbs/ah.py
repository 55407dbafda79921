# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Address handles: the destinations of UD messages and RD requests."""

from __future__ import annotations

import errno
import weakref
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol

from siwarp.verbs._ffi import (
    Address,
    Handle,
    addr_from_c,
    addr_to_c,
    check_pointer,
    destroy_objects_of_dropped_handles,
    ffi,
    lib,
)
from siwarp.verbs.errors import Error
from siwarp.verbs.pd import PD
from siwarp.verbs.wanted import require_instance, type_error

if TYPE_CHECKING:
    from siwarp.verbs.cq import WC

__all__ = ["AH", "AHAttr"]


class _User(Protocol):
    """An object that stores the C objects of address handles: a SendWR or an AHList."""

    def _replace_c_address_handle(self, ah: AH, handle: Any) -> None: ...


@dataclass(frozen=True)
class AHAttr:
    """A destination: an IP address or a host name, and a UDP port.

    The port is used if a work request's ``remote_qpn`` is 0. ``source`` is this end's address, for
    a queue pair with ``by_qpn`` or ``every_addr``; the default is the device's first address of the
    same family.
    """

    host: str
    port: int = 0
    source: str | None = None


def _usable_source_address(came_to: Address | None) -> str | None:
    """Return the host, if it can be a source address: neither a group nor the wildcard address."""
    if came_to is None:
        return None
    ip = ip_address(came_to[0].partition("%")[0])
    return None if ip.is_multicast or ip.is_unspecified else came_to[0]


class AH(Handle):
    """A destination of UD messages or RD requests (``siw_create_ah``).

    ``AH(pd, AHAttr(host, port))``, ``AH(pd, (host, port))``, or ``AH(pd, wc=wc)`` for the sender of
    a received message. With ``wc``, a request whose ``remote_qpn`` is 0 is sent to the queue pair
    that sent the message; without it, to the first of the queue pairs that share the socket.

    ``source`` is the device's address from which messages are sent by queue pairs with
    ``every_addr`` or bound to that address: a host, or (host, port). With ``wc`` the default is the
    address at which the message arrived, unless that was a group, or the queue pair is bound to the
    wildcard address.

    Raises:
        Error: the host does not exist, the completion is not of a UD receive, or the device does
            not have the source address (EINVAL).
        LimitError: the device's limit of address handles is reached (ENOMEM).

    """

    __slots__ = ("_users", "dest", "pd", "qpn", "source")
    _what = "AH"
    _destroy = lib.siw_destroy_ah

    pd: PD
    #: The destination: numeric address and port.
    dest: Address
    #: The QPN for requests with ``remote_qpn`` 0: ``src_qp`` of the completion ``wc``, or 0.
    qpn: int
    #: The numeric source address of messages; ``None``: chosen by the queue pair.
    source: str | None

    def __init__(
        self,
        pd: PD,
        attr: AHAttr | Address | None = None,
        *,
        wc: WC | None = None,
        source: str | Address | None = None,
    ) -> None:
        destroy_objects_of_dropped_handles()
        require_instance(
            pd, PD, "an AH is created in a PD, for example AH(pd, ('127.0.0.1', 4791))"
        )
        dest = (attr.host, attr.port) if isinstance(attr, AHAttr) else attr
        if source is None and isinstance(attr, AHAttr):
            source = attr.source
        elif isinstance(source, tuple):
            source = source[0]
        if source is not None:
            require_instance(
                source, str, "source is an address of the device, for example '127.0.0.1'"
            )
        self.qpn = 0
        if dest is None and wc is not None:
            try:
                dest, self.qpn = wc.source, wc.src_qp
            except AttributeError:
                raise type_error("wc is the completion of a UD receive", wc) from None
            source = _usable_source_address(wc.destination) if source is None else source
        if dest is None:
            raise Error(
                errno.EINVAL,
                "an AH needs a destination: an AHAttr, (host, port), or the completion of a "
                "UD receive",
            )
        c_dest = addr_to_c(dest)
        c_source = addr_to_c(None if source is None else (source, 0))
        c = check_pointer(
            lib.siw_create_ah_from(pd._c_object(), c_dest, c_source), f"making an AH to {dest}"
        )
        self.pd = pd
        self.dest = addr_from_c(c_dest) or dest
        self.source = (addr_from_c(c_source) or (None,))[0]
        self._users: weakref.WeakSet[_User] = weakref.WeakSet()
        self._adopt_c_object(c, pd)

    def _destroy_c_object(self) -> None:
        c = self._c
        self._replace_in_users(ffi.NULL)
        try:
            super()._destroy_c_object()
        except Error:  # the handle is still in use, so it stays open
            self._replace_in_users(c)
            raise

    def _replace_in_users(self, handle: Any) -> None:
        """Store ``handle``, the C object or NULL, in all work requests and lists that use this
        handle.
        """
        for user in list(self._users):
            user._replace_c_address_handle(self, handle)

    def _on_forced_close(self) -> None:
        self._replace_in_users(ffi.NULL)

    def _advice_after_ebusy(self) -> str:
        return (
            "a send to this address handle is still posted on one of "
            f"{self.pd._queue_pair_names()}: poll for its completion, or close that QP, first"
        )

    def _description_for_repr(self) -> str:
        return f"to {self.dest[0]} port {self.dest[1]}"
