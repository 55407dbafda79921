# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Match conditions for flows: ``pyverbs.spec``. Creating a ``Flow`` raises an error."""

from __future__ import annotations

import socket
from typing import NoReturn

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import UInt, attribute_lines
from siwarp.pyverbs.base import PyverbsObject, raise_unsupported
from siwarp.pyverbs.pyverbs_error import PyverbsError

__all__ = ["EthSpec", "Ipv4ExtSpec", "Ipv6Spec", "PyverbsError", "Spec", "TcpUdpSpec"]

U32_MASK = 0xFFFFFFFF


class Spec(PyverbsObject):
    """Match condition for one header; base class of the conditions below."""

    spec_type = UInt(32)
    size = UInt(16)

    def __init__(self) -> None:
        raise NotImplementedError("This class is abstract.")

    @staticmethod
    def type_to_str(spec_type: int) -> str:
        """Return the type of a header as text."""
        inner = "IBV_FLOW_SPEC_INNER " if spec_type & e.IBV_FLOW_SPEC_INNER else ""
        try:
            return inner + e.ibv_flow_spec_type(spec_type & ~e.IBV_FLOW_SPEC_INNER).name
        except ValueError:
            return f"{inner}Unknown ({spec_type})"

    def _init_header(self, spec_type: int, is_inner: int, size: int) -> None:
        self.spec_type = spec_type | (e.IBV_FLOW_SPEC_INNER if is_inner else 0)
        self.size = size

    @staticmethod
    def _value_and_mask(
        default_mask: int, val: int | None, val_mask: int | None
    ) -> tuple[int, int]:
        if val is None:
            return 0, 0
        return val, default_mask if val_mask is None else val_mask

    def _copy_data(self, addr: int) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no flow steering."""
        raise_unsupported(
            "Flow", "flow steering applies to Ethernet frames, which sockets do not provide"
        )

    def __str__(self) -> str:
        names = [name for name in vars(self) if name not in ("spec_type", "size")]
        kind = self.type_to_str(self.spec_type)
        return f"{'Spec type':<22}: {kind:<20}\n" + attribute_lines(self, "size", *names)


class EthSpec(Spec):
    """Match condition for an Ethernet header."""

    MAC_LEN = 6
    MAC_MASK = "ff:ff:ff:ff:ff:ff"
    ZERO_MAC = (0,) * 6

    ether_type = UInt(16)
    ether_type_mask = UInt(16)
    vlan_tag = UInt(16)
    vlan_tag_mask = UInt(16)
    dst_mac = ""
    dst_mac_mask = ""
    src_mac = ""
    src_mac_mask = ""

    def __init__(
        self,
        dst_mac: str | None = None,
        dst_mac_mask: str | None = None,
        src_mac: str | None = None,
        src_mac_mask: str | None = None,
        ether_type: int | None = None,
        ether_type_mask: int | None = None,
        vlan_tag: int | None = None,
        vlan_tag_mask: int | None = None,
        is_inner: int = 0,
    ) -> None:
        self._init_header(e.IBV_FLOW_SPEC_ETH, is_inner, 40)
        self.dst_mac, self.dst_mac_mask = self._fill_in_default_mask(dst_mac, dst_mac_mask)
        self.src_mac, self.src_mac_mask = self._fill_in_default_mask(src_mac, src_mac_mask)
        kind = self._value_and_mask(0xFFFF, ether_type, ether_type_mask)
        self.ether_type, self.ether_type_mask = kind
        self.vlan_tag, self.vlan_tag_mask = self._value_and_mask(0xFFFF, vlan_tag, vlan_tag_mask)

    def _fill_in_default_mask(self, mac: str | None, mask: str | None) -> tuple[str, str]:
        return ("", "") if mac is None else (mac, self.MAC_MASK if mask is None else mask)


class Ipv4ExtSpec(Spec):
    """Match condition for an IPv4 header."""

    proto = UInt(8)
    proto_mask = UInt(8)
    tos = UInt(8)
    tos_mask = UInt(8)
    ttl = UInt(8)
    ttl_mask = UInt(8)
    flags = UInt(8)
    flags_mask = UInt(8)
    dst_ip = "0.0.0.0"
    dst_ip_mask = "0.0.0.0"
    src_ip = "0.0.0.0"
    src_ip_mask = "0.0.0.0"

    def __init__(
        self,
        dst_ip: str | None = None,
        dst_ip_mask: str | None = None,
        src_ip: str | None = None,
        src_ip_mask: str | None = None,
        proto: int | None = None,
        proto_mask: int | None = None,
        tos: int | None = None,
        tos_mask: int | None = None,
        ttl: int | None = None,
        ttl_mask: int | None = None,
        flags: int | None = None,
        flags_mask: int | None = None,
        is_inner: int = 0,
    ) -> None:
        self._init_header(e.IBV_FLOW_SPEC_IPV4_EXT, is_inner, 32)
        self.dst_ip, self.dst_ip_mask = self._fill_default_ip_and_mask(dst_ip, dst_ip_mask)
        self.src_ip, self.src_ip_mask = self._fill_default_ip_and_mask(src_ip, src_ip_mask)
        self.proto, self.proto_mask = self._value_and_mask(0xFF, proto, proto_mask)
        self.tos, self.tos_mask = self._value_and_mask(0xFF, tos, tos_mask)
        self.ttl, self.ttl_mask = self._value_and_mask(0xFF, ttl, ttl_mask)
        self.flags, self.flags_mask = self._value_and_mask(0xFF, flags, flags_mask)

    @staticmethod
    def _fill_default_ip_and_mask(ip: str | None, mask: str | None) -> tuple[str, str]:
        if ip is None:
            return "0.0.0.0", "0.0.0.0"
        socket.inet_pton(socket.AF_INET, ip)
        return ip, "255.255.255.255" if mask is None else mask


class Ipv6Spec(Spec):
    """Match condition for an IPv6 header."""

    EMPTY_IPV6 = "::"
    IPV6_MASK = ":".join(["ffff"] * 8)
    FLOW_LABEL_MASK = 0xFFFFF

    flow_label = UInt(32)
    flow_label_mask = UInt(32)
    next_hdr = UInt(8)
    next_hdr_mask = UInt(8)
    traffic_class = UInt(8)
    traffic_class_mask = UInt(8)
    hop_limit = UInt(8)
    hop_limit_mask = UInt(8)
    dst_ip = "::"
    dst_ip_mask = "::"
    src_ip = "::"
    src_ip_mask = "::"

    def __init__(
        self,
        dst_ip: str | None = None,
        dst_ip_mask: str | None = None,
        src_ip: str | None = None,
        src_ip_mask: str | None = None,
        flow_label: int | None = None,
        flow_label_mask: int | None = None,
        next_hdr: int | None = None,
        next_hdr_mask: int | None = None,
        traffic_class: int | None = None,
        traffic_class_mask: int | None = None,
        hop_limit: int | None = None,
        hop_limit_mask: int | None = None,
        is_inner: int = 0,
    ) -> None:
        self._init_header(e.IBV_FLOW_SPEC_IPV6, is_inner, 80)
        self.dst_ip, self.dst_ip_mask = self._fill_default_ip_and_mask(dst_ip, dst_ip_mask)
        self.src_ip, self.src_ip_mask = self._fill_default_ip_and_mask(src_ip, src_ip_mask)
        label = self._value_and_mask(self.FLOW_LABEL_MASK, flow_label, flow_label_mask)
        self.flow_label, self.flow_label_mask = label
        self.next_hdr, self.next_hdr_mask = self._value_and_mask(0xFF, next_hdr, next_hdr_mask)
        traffic = self._value_and_mask(0xFF, traffic_class, traffic_class_mask)
        self.traffic_class, self.traffic_class_mask = traffic
        hops = self._value_and_mask(0xFF, hop_limit, hop_limit_mask)
        self.hop_limit, self.hop_limit_mask = hops

    def _fill_default_ip_and_mask(self, ip: str | None, mask: str | None) -> tuple[str, str]:
        if ip is None:
            return "::", "::"
        socket.inet_pton(socket.AF_INET6, ip)
        return ip, self.IPV6_MASK if mask is None else mask


class TcpUdpSpec(Spec):
    """Match condition for a TCP or UDP header."""

    dst_port = UInt(16)
    dst_port_mask = UInt(16)
    src_port = UInt(16)
    src_port_mask = UInt(16)

    def __init__(
        self,
        spec_type: int,
        dst_port: int | None = None,
        dst_port_mask: int | None = None,
        src_port: int | None = None,
        src_port_mask: int | None = None,
        is_inner: int = 0,
    ) -> None:
        self._init_header(spec_type, is_inner, 16)
        self.dst_port, self.dst_port_mask = self._value_and_mask(0xFFFF, dst_port, dst_port_mask)
        self.src_port, self.src_port_mask = self._value_and_mask(0xFFFF, src_port, src_port_mask)
