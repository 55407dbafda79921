# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Digests of files: CRC32C, which finds accidental changes, and SHA-256.

A digest is over all octets of a file, where a hole counts as zeros, so it does not depend on where
a file system has holes.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import crc32c

from siwarp.ulp.adts.wire import DigestKind

__all__ = ["Digest", "create_empty_digest"]

#: CRC32C's polynomial, reflected.
_POLYNOMIAL = 0x82F63B78
_ZEROS = bytes(1 << 20)


class Digest(Protocol):
    """The digest of octets that are added in order."""

    def update(self, data: memoryview) -> None:
        """Add octets."""

    def add_zeros(self, count: int) -> None:
        """Add zeros."""

    def value(self) -> bytes:
        """Return the digest of the octets so far."""


def create_empty_digest(kind: DigestKind) -> Digest:
    """Return the digest of no octets."""
    return _CRC32C() if kind == DigestKind.CRC32C else _SHA256()


class _CRC32C:
    def __init__(self) -> None:
        self._crc = 0

    def update(self, data: memoryview) -> None:
        # The C function releases the interpreter's lock (GIL) for 32 KiB and more.
        self._crc = crc32c.crc32c(data, self._crc)

    def add_zeros(self, count: int) -> None:
        # A zero octet multiplies the register by x^8, so a hole of any length costs at most 64
        # multiplications.
        register = self._crc ^ 0xFFFFFFFF
        power = 1 << 23  # x^8, reflected
        while count:
            if count & 1:
                register = _multiply_polynomials(power, register)
            power = _multiply_polynomials(power, power)
            count >>= 1
        self._crc = register ^ 0xFFFFFFFF

    def value(self) -> bytes:
        return self._crc.to_bytes(4, "big")


class _SHA256:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, data: memoryview) -> None:
        self._hash.update(data)

    def add_zeros(self, count: int) -> None:
        for _ in range(count // len(_ZEROS)):
            self._hash.update(_ZEROS)
        self._hash.update(_ZEROS[: count % len(_ZEROS)])

    def value(self) -> bytes:
        return self._hash.digest()


def _multiply_polynomials(a: int, b: int) -> int:
    """Return the product of two polynomials modulo CRC32C's, reflected (x^0 is the top bit)."""
    product = 0
    bit = 1 << 31
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product
