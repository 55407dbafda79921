# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Attributes with a C structure member's value range, and text of objects with such attributes."""

from __future__ import annotations

import operator
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class UInt:
    """An unsigned integer attribute of ``bits`` bits; larger values raise OverflowError."""

    def __init__(self, bits: int, default: int = 0) -> None:
        self._limit = 1 << bits
        self._default = default
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> UInt: ...
    @overload
    def __get__(self, of: object, owner: type) -> int: ...
    def __get__(self, of: object | None, owner: type) -> int | UInt:
        if of is None:
            return self
        value: int = of.__dict__.get(self._name, self._default)
        return value

    def __set__(self, of: object, value: int) -> None:
        # Accept float values such as max_cqe / 2, as Cython does, in which rdma-core's pyverbs is
        # written.
        number = int(value) if isinstance(value, float) else operator.index(value)
        if not 0 <= number < self._limit:
            raise OverflowError(f"{self._name} must be from 0 to {self._limit - 1}, not {number}")
        of.__dict__[self._name] = number


class DelegatedAttribute:
    """An attribute that is stored in another attribute, such as ``max_send_wr`` in ``cap``."""

    def __init__(self, whole: str) -> None:
        self._whole = whole
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> DelegatedAttribute: ...
    @overload
    def __get__(self, of: object, owner: type) -> int: ...
    def __get__(self, of: object | None, owner: type) -> int | DelegatedAttribute:
        if of is None:
            return self
        value: int = getattr(getattr(of, self._whole), self._name)
        return value

    def __set__(self, of: object, value: int) -> None:
        setattr(getattr(of, self._whole), self._name, value)


class ReadOnlyAttribute(Generic[T]):
    """A read-only attribute, whose value only ``set_read_only_attributes`` sets."""

    def __init__(self, default: T) -> None:
        self._default = default
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> ReadOnlyAttribute[T]: ...
    @overload
    def __get__(self, of: object, owner: type) -> T: ...
    def __get__(self, of: object | None, owner: type) -> T | ReadOnlyAttribute[T]:
        if of is None:
            return self
        value: T = of.__dict__.get(self._name, self._default)
        return value

    def __set__(self, of: object, value: T) -> None:
        raise AttributeError(f"{type(of).__name__}.{self._name} cannot be changed")


def set_read_only_attributes(of: object, **values: Any) -> None:
    """Set the values of read-only attributes of an object."""
    of.__dict__.update(values)


def attribute_lines(of: object, *names: str) -> str:
    """Return lines of text with the names and values of an object's attributes."""
    lines = [(name.replace("_", " "), getattr(of, name)) for name in names]
    return "".join(f"{name:<22}: {value!s:<20}\n" for name, value in lines)
