# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""GIDs, address vectors and address handles: ``pyverbs.addr``.

A GID is an IP address, as for RoCE v2; an IPv4 address is mapped to ``::ffff:a.b.c.d``. There are
no LIDs.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from typing import TYPE_CHECKING, Any

from siwarp.pyverbs._field import UInt, attribute_lines
from siwarp.pyverbs.base import PyverbsObject, PyverbsRDMAErrno, Wrapper, convert_errors
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from siwarp.pyverbs.utils import gid_str, gid_str_to_array, gid_text
from siwarp.verbs.ah import AH as NativeAH
from siwarp.verbs.ah import AHAttr as NativeAHAttr

if TYPE_CHECKING:
    from siwarp.pyverbs.cq import WC
    from siwarp.pyverbs.device import Context
    from siwarp.pyverbs.pd import PD

__all__ = [
    "AH",
    "GID",
    "GRH",
    "AHAttr",
    "GlobalRoute",
    "PyverbsRDMAErrno",
    "gid_str",
    "gid_str_to_array",
]

_MAPPED = bytes(10) + b"\xff\xff"
#: Layout of a GRH (InfiniBand 8.3), which is an IPv6 header, or contains an IPv4 header in its
#: second half.
_GRH = struct.Struct("!IHBB16s16s")
GRH_OCTETS = 40
_IPV4_AT = 20
#: The number of the device's only port.
_PORT = 1


def address_to_gid_octets(address: str) -> bytes:
    """Return the 16 octets of the GID for an address of this machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return _MAPPED + ip.packed if ip.version == 4 else ip.packed


def gid_octets_to_address(raw: bytes, netdev: str) -> str:
    """Return the IP address of a GID; ``netdev`` is the interface of a link-local address."""
    group = raw[0] == 0xFF
    mapped = raw[2:12] == _MAPPED[2:] if group else raw[:12] == _MAPPED
    if mapped:
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    text = socket.inet_ntop(socket.AF_INET6, raw)
    of_link = raw[0] == 0xFE and raw[1] & 0xC0 == 0x80
    return f"{text}%{netdev}" if of_link else text


class GID(PyverbsObject):
    """A GID (``union ibv_gid``): 16 octets; as text, eight words of four hexadecimal digits."""

    def __init__(self, val: str | None = None) -> None:
        self._raw = bytes(16)
        if val is not None:
            self.gid = val

    @classmethod
    def _from_octets(cls, raw: bytes) -> GID:
        gid = cls()
        gid._raw = raw
        return gid

    @property
    def gid(self) -> str:
        """The GID as eight words."""
        return gid_text(self._raw)

    @gid.setter
    def gid(self, val: str) -> None:
        self._set_gid(val)

    def _set_gid(self, val: str) -> None:
        self._raw = bytes.fromhex("".join(gid_str_to_array(val)))

    def __str__(self) -> str:
        return self.gid


def _gid_as_octets(gid: GID | None) -> bytes:
    return bytes(16) if gid is None else gid._raw


class GRH(PyverbsObject):
    """The global routing header (``struct ibv_grh``) of a received datagram."""

    version_tclass_flow = UInt(32)
    paylen = UInt(16)
    next_hdr = UInt(8)
    hop_limit = UInt(8, 1)

    def __init__(
        self,
        sgid: GID | None = None,
        dgid: GID | None = None,
        version_tclass_flow: int = 0,
        paylen: int = 0,
        next_hdr: int = 0,
        hop_limit: int = 1,
    ) -> None:
        self._sgid, self._dgid = _gid_as_octets(sgid), _gid_as_octets(dgid)
        self.version_tclass_flow, self.paylen = version_tclass_flow, paylen
        self.next_hdr, self.hop_limit = next_hdr, hop_limit

    @property
    def sgid(self) -> str:
        """GID of the sender."""
        return gid_text(self._sgid)

    @sgid.setter
    def sgid(self, val: GID) -> None:
        self._sgid = val._raw

    @property
    def dgid(self) -> str:
        """GID of the destination."""
        return gid_text(self._dgid)

    @dgid.setter
    def dgid(self, val: GID) -> None:
        self._dgid = val._raw

    def __str__(self) -> str:
        return attribute_lines(
            self, "dgid", "sgid", "version_tclass_flow", "paylen", "next_hdr", "hop_limit"
        )


class GlobalRoute(PyverbsObject):
    """Route of a packet (``struct ibv_global_route``).

    ``dgid`` is the peer's GID, ``sgid_index`` the index of the local GID in the device's GID
    table. The other attributes are stored, but not used.
    """

    flow_label = UInt(32)
    sgid_index = UInt(8)
    hop_limit = UInt(8, 1)
    traffic_class = UInt(8)

    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: int = 0,
        sgid_index: int = 0,
        hop_limit: int = 1,
        traffic_class: int = 0,
    ) -> None:
        self._dgid = _gid_as_octets(dgid)
        self.flow_label, self.sgid_index = flow_label, sgid_index
        self.hop_limit, self.traffic_class = hop_limit, traffic_class

    @property
    def dgid(self) -> str:
        """The peer's GID."""
        return gid_text(self._dgid)

    @dgid.setter
    def dgid(self, val: GID) -> None:
        self._dgid = val._raw

    def _copy(self) -> GlobalRoute:
        return GlobalRoute(
            GID._from_octets(self._dgid),
            self.flow_label,
            self.sgid_index,
            self.hop_limit,
            self.traffic_class,
        )

    def __str__(self) -> str:
        return attribute_lines(
            self, "dgid", "flow_label", "sgid_index", "hop_limit", "traffic_class"
        )


class AHAttr(PyverbsObject):
    """An address vector (``struct ibv_ah_attr``).

    ``is_global`` and a GlobalRoute are required, because there are no LIDs. Without ``is_global``
    the attributes of the route are ``None``.
    """

    port_num = UInt(8, 1)
    sl = UInt(8)
    src_path_bits = UInt(8)
    dlid = UInt(16)
    static_rate = UInt(8)
    is_global = UInt(8)

    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        self.dlid, self.sl, self.src_path_bits = dlid, sl, src_path_bits
        self.static_rate, self.is_global, self.port_num = static_rate, is_global, port_num
        self._gr = gr._copy() if gr is not None and is_global else GlobalRoute()

    def _copy(self) -> AHAttr:
        return AHAttr(
            self.dlid,
            self.sl,
            self.src_path_bits,
            self.static_rate,
            self.is_global,
            self.port_num,
            self._gr,
        )

    def _route_attribute(self, name: str) -> Any:
        return getattr(self._gr, name) if self.is_global else None

    @property
    def dgid(self) -> str | None:
        """The peer's GID; assign a GID object to change it."""
        return gid_text(self._gr._dgid) if self.is_global else None

    @dgid.setter
    def dgid(self, val: GID) -> None:
        self._gr.dgid = val

    @property
    def flow_label(self) -> int | None:
        """Flow label of the route, 20 bits."""
        value: int | None = self._route_attribute("flow_label")
        return value

    @flow_label.setter
    def flow_label(self, val: int) -> None:
        self._gr.flow_label = val

    @property
    def sgid_index(self) -> int | None:
        """Index of the local GID."""
        value: int | None = self._route_attribute("sgid_index")
        return value

    @sgid_index.setter
    def sgid_index(self, val: int) -> None:
        self._gr.sgid_index = val

    @property
    def hop_limit(self) -> int | None:
        """Hop limit of the route."""
        value: int | None = self._route_attribute("hop_limit")
        return value

    @hop_limit.setter
    def hop_limit(self, val: int) -> None:
        self._gr.hop_limit = val

    @property
    def traffic_class(self) -> int | None:
        """Traffic class of the route."""
        value: int | None = self._route_attribute("traffic_class")
        return value

    @traffic_class.setter
    def traffic_class(self, val: int) -> None:
        self._gr.traffic_class = val

    def __str__(self) -> str:
        names = ["port_num", "sl", "src_path_bits", "dlid", "static_rate", "is_global"]
        if self.is_global:
            names += ["dgid", "flow_label", "sgid_index", "hop_limit", "traffic_class"]
        return attribute_lines(self, *names)


def to_native_ah_attr(context: Context, attr: AHAttr, what: str) -> NativeAHAttr:
    """Convert an address vector to the peer's IP address and the local IP address.

    Raises:
        PyverbsRDMAError: the vector has no GID, or its port, GID index or address family does not
            exist on this device (EINVAL).

    """
    own = context._gid_addresses()
    index = attr._gr.sgid_index
    reason = ""
    if not attr.is_global:
        reason = "there are no LIDs: the vector needs is_global=1 and a GlobalRoute"
    elif attr.port_num != _PORT:
        reason = f"the device has one port, {_PORT}"
    elif index >= len(own):
        reason = f"the device has {len(own)} GIDs, so there is no index {index}"
    else:
        dest = gid_octets_to_address(attr._gr._dgid, context._netdev)
        if (":" in dest) == (":" in own[index]):
            return NativeAHAttr(dest, 0, own[index])
        reason = f"GID {index}, {own[index]}, and {dest} are of different address families"
    raise PyverbsRDMAError(f"{what}: {reason}", errno.EINVAL)


def _grh_as_octets(grh: GRH | int) -> bytes:
    if isinstance(grh, GRH):
        word = grh.version_tclass_flow or 6 << 28
        return _GRH.pack(word, grh.paylen, grh.next_hdr, grh.hop_limit, grh._sgid, grh._dgid)
    from siwarp.pyverbs import mem_alloc

    return mem_alloc.read(int(grh), GRH_OCTETS)


def _grh_gids(octets: bytes) -> tuple[bytes, bytes] | None:
    """Return the GIDs of a datagram's sender and destination, or None if there is no header."""
    if octets[0] >> 4 == 6:
        return octets[8:24], octets[24:40]
    ip = octets[_IPV4_AT:]
    if ip[0] >> 4 == 4:
        return _MAPPED + ip[12:16], _MAPPED + ip[16:20]
    return None


def _address_vector_of_wc(context: Context, wc: WC, grh: GRH | int | None, port_num: int) -> AHAttr:
    """Return the address vector for replying to the sender of a datagram."""
    reason, ends = "", None
    if not wc.wc_flags & 1:  # IBV_WC_GRH
        reason = "the completion does not belong to a datagram"
    elif grh is None:
        reason = "pass the address of its receive buffer as grh"
    else:
        ends = _grh_gids(_grh_as_octets(grh))
        reason = "grh does not point to a datagram header"
    if ends is None:
        raise PyverbsRDMAError(f"Failed to create AH of a WC: {reason}", errno.EINVAL)
    source, came_to = ends
    own = [address_to_gid_octets(address) for address in context._gid_addresses()]
    family = [i for i, one in enumerate(own) if (one[:12] == _MAPPED) == (source[:12] == _MAPPED)]
    index = own.index(came_to) if came_to in own else family[0] if family else len(own)
    route = GlobalRoute(GID._from_octets(source), sgid_index=min(index, 255))
    return AHAttr(is_global=1, port_num=port_num, sl=wc.sl, gr=route)


class AH(Wrapper[NativeAH]):
    """An address handle: ``AH(pd, attr=AHAttr(...))``, or ``AH(pd, wc=, grh=, port_num=)``.

    The second form creates a handle for the sender of a datagram; ``grh`` is a GRH, or the address
    of the datagram's receive buffer.
    """

    _RANK = 4

    def __init__(self, pd: PD, attr: AHAttr | None = None, **kwargs: Any) -> None:
        if attr is None:
            wc = kwargs.get("wc")
            if wc is None:
                raise PyverbsUserError("An AH requires attr=AHAttr(...), or wc= and grh=")
            attr = _address_vector_of_wc(
                pd._context, wc, kwargs.get("grh"), kwargs.get("port_num", 0)
            )
        what = "Failed to create AH"
        native = to_native_ah_attr(pd._context, attr, what)
        with convert_errors(what):
            self._h = NativeAH(pd._native(), native)
        self._pd = pd
        self._register_with_parents(pd)
