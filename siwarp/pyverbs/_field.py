# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Attributes with the value range of a C structure's member, and text of objects with them."""

from __future__ import annotations

import operator
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class UInt:
    """An unsigned integer attribute of ``bits`` bits; OverflowError: the value is out of range."""

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
        # Accept float values as Cython does, in which pyverbs is written: max_cqe / 2 is a float.
        number = int(value) if isinstance(value, float) else operator.index(value)
        if not 0 <= number < self._limit:
            raise OverflowError(f"{self._name} must be from 0 to {self._limit - 1}, not {number}")
        of.__dict__[self._name] = number


class PartOf:
    """An attribute that is stored in another attribute: ``max_send_wr`` in ``cap``."""

    def __init__(self, whole: str) -> None:
        self._whole = whole
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> PartOf: ...
    @overload
    def __get__(self, of: object, owner: type) -> int: ...
    def __get__(self, of: object | None, owner: type) -> int | PartOf:
        if of is None:
            return self
        value: int = getattr(getattr(of, self._whole), self._name)
        return value

    def __set__(self, of: object, value: int) -> None:
        setattr(getattr(of, self._whole), self._name, value)


class Shown(Generic[T]):
    """A read-only attribute, whose value only siwarp sets (``set_read_only_attributes``)."""

    def __init__(self, default: T) -> None:
        self._default = default
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, of: None, owner: type) -> Shown[T]: ...
    @overload
    def __get__(self, of: object, owner: type) -> T: ...
    def __get__(self, of: object | None, owner: type) -> T | Shown[T]:
        if of is None:
            return self
        value: T = of.__dict__.get(self._name, self._default)
        return value

    def __set__(self, of: object, value: T) -> None:
        raise AttributeError(f"{type(of).__name__}.{self._name} cannot be changed")


def set_read_only_attributes(of: object, **values: Any) -> None:
    """Set read-only attributes."""
    of.__dict__.update(values)


def attribute_lines(of: object, *names: str) -> str:
    """Return a line of text for each attribute: its name and its value."""
    lines = [(name.replace("_", " "), getattr(of, name)) for name in names]
    return "".join(f"{name:<22}: {value!s:<20}\n" for name, value in lines)
