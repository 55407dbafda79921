# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The frames that resolve UD queue pairs (spec/cm-udp.md), as a scapy layer.

    SIDR(type=SIDRType.QUESTION, id=1, data=b"hello")

When a frame is built, zeros are appended to the data up to the frame's length.
"""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import (
    ByteEnumField,
    ByteField,
    FieldLenField,
    IP6Field,
    StrFixedLenField,
    StrLenField,
    XIntField,
    XLEIntField,
    XLongField,
)
from scapy.packet import Packet

from siwarp.inspect.crc import crc32c
from siwarp.inspect.layer import Layer
from siwarp.inspect.wire import CRC_LEN, SIDR_DATA_LEN, SIDR_LEN, SIDRType


class SIDR(Layer):
    """A frame of UD resolution; `crc` and the length of `data` are computed if they are None."""

    name = "siwarp UD resolution"
    fields_desc: ClassVar[list[Any]] = [
        StrFixedLenField("magic", b"SIWU", 4),
        ByteField("version", 1),
        ByteEnumField("type", int(SIDRType.QUESTION), {int(t): t.name for t in SIDRType}),
        ByteField("status", 0),
        FieldLenField("data_len", None, length_of="data", fmt="B"),
        XLongField("id", 0),
        XLongField("cookie", 0),
        XIntField("qpn", 0),
        XIntField("q_key", 0),
        IP6Field("gid", "::"),
        StrLenField("data", b"", length_from=lambda frame: min(frame.data_len, SIDR_DATA_LEN)),
        StrLenField("zeros", b"", length_from=lambda frame: max(SIDR_DATA_LEN - frame.data_len, 0)),
        XLEIntField("crc", None),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kwargs: Any) -> type[Packet]:
        """Return this class; Raw for octets that do not have the length of a frame."""
        return conf.raw_layer if _pkt is not None and len(_pkt) != SIDR_LEN else cls

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Append zeros to the data, and compute the CRC."""
        frame = pkt[:-CRC_LEN].ljust(SIDR_LEN - CRC_LEN, b"\0")
        crc = pkt[-CRC_LEN:] if self.crc is not None else crc32c(frame).to_bytes(CRC_LEN, "little")
        return frame + crc + pay
