# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The base classes of the scapy layers, which build a packet in half of scapy's time."""

from __future__ import annotations

from typing import Any

from scapy.base_classes import BasePacket, BasePacketList, Gen
from scapy.packet import Packet
from scapy.volatile import VolatileValue

from siwarp.inspect.crc import crc32c
from siwarp.inspect.wire import CRC_LEN


def _has_several_values(value: Any) -> bool:
    several = isinstance(value, (list, tuple, Gen, BasePacketList, VolatileValue))
    return several and not isinstance(value, BasePacket)


class Layer(Packet):
    """A layer whose packets are built without a copy, unless a field has several values.

    A scapy packet may stand for many packets, for example ``DDPUntagged(msn=[1, 2])``. Before
    scapy builds a packet, it therefore copies the packet with the first value of each field.
    """

    __slots__ = ()

    def do_build(self) -> bytes:
        """Return the octets of the layer and its payload."""
        if self.explicit or any(map(_has_several_values, self.fields.values())):
            return bytes(super().do_build())
        self.explicit = 1
        try:
            return bytes(super().do_build())
        finally:
            self.explicit = 0


class DatagramLayer(Layer):
    """A complete UDP payload whose last field, `crc`, is the CRC32C of all octets before it."""

    __slots__ = ()

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Insert the computed CRC if the field `crc` is None."""
        if self.crc is None:
            pkt = pkt[:-CRC_LEN] + crc32c(pkt[:-CRC_LEN]).to_bytes(CRC_LEN, "little")
        return pkt + pay

    def crc_expected(self) -> int:
        """CRC32C over all octets before it; equal to `crc` in a valid datagram."""
        return crc32c(bytes(self)[:-CRC_LEN])
