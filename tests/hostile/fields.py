"""The numeric fields of every scapy layer, and boundary values that are likely to cause errors."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    FieldLenField,
    FlagsField,
    IntField,
    LongField,
    PacketField,
    PacketLenField,
    ShortField,
    StrFixedLenField,
    StrLenField,
    X3BytesField,
)
from scapy.layers.inet6 import IP6Field
from scapy.packet import Packet

import siwarp.inspect

#: Layers that only contain other frames and have no octets of their own.
CONTAINERS = {"MPA"}


@functools.cache
def all_packet_layer_classes() -> dict[str, type[Packet]]:
    """Return every layer of siwarp.inspect that has fields, keyed by the name of the layer."""
    found: dict[str, type[Packet]] = {}
    for module in pkgutil.iter_modules(siwarp.inspect.__path__):
        for thing in vars(importlib.import_module(f"siwarp.inspect.{module.name}")).values():
            if (
                isinstance(thing, type)
                and issubclass(thing, Packet)
                and thing.__module__.startswith("siwarp.inspect")
                and thing.fields_desc
                and thing.__name__ not in CONTAINERS
            ):
                found[thing.__name__] = thing
    return found


def unwrap_conditional_field(field: Any) -> Any:
    return field.fld if isinstance(field, ConditionalField) else field


def field_width_bits(field: Any) -> int | None:
    """Return the width of a numeric field in bits, or ``None`` for a field that holds no number."""
    field = unwrap_conditional_field(field)
    if isinstance(field, (BitField, BitEnumField, FlagsField)):
        return abs(int(field.size))
    for kind, bits in (
        (ByteField, 8),
        (ByteEnumField, 8),
        (ShortField, 16),
        (IntField, 32),
        (LongField, 64),
    ):
        if isinstance(field, kind):
            return bits
    if type(field).__name__ == "XLEIntField":
        return 32
    if isinstance(field, FieldLenField):
        return 8 * int(field.sz)
    if isinstance(field, X3BytesField):
        return 24
    assert isinstance(
        field, (IP6Field, PacketField, PacketLenField, StrFixedLenField, StrLenField)
    ), f"{field.name}: no values are defined for a {type(field).__name__}"
    return None


def boundary_values(field: Any, sound: int = 0) -> Iterator[int]:
    """Yield boundary values of a numeric field: 0, 1, the maximum, the values next to those, and
    the values next to ``sound``. For a field of at most 4 bits, yield all values.
    """
    bits = field_width_bits(field)
    assert bits
    top = (1 << bits) - 1
    if bits <= 4:
        yield from range(top + 1)
        return
    picked = {0, 1, top, top - 1, (sound + 1) & top, (sound - 1) & top}
    if (
        "rs" in unwrap_conditional_field(field).name
        or "res" in unwrap_conditional_field(field).name
        or bits <= 14
    ):
        picked |= {1 << i for i in range(bits)}
    yield from sorted(picked)


def list_numeric_fields_of_layers(*names: str) -> list[tuple[str, str]]:
    """Return (layer, field) for each numeric field of these layers."""
    known = all_packet_layer_classes()
    return [
        (name, unwrap_conditional_field(f).name)
        for name in names
        for f in known[name].fields_desc
        if field_width_bits(f) is not None
    ]


def find_field_of_layer_class(layer: str, name: str) -> Any:
    return next(
        f
        for f in all_packet_layer_classes()[layer].fields_desc
        if unwrap_conditional_field(f).name == name
    )
