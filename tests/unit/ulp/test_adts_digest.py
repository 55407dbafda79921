"""Digests of files: holes count as zeros, at a cost that does not depend on their length."""

from __future__ import annotations

import hashlib

import crcmod.predefined
import pytest

from siwarp.ulp.adts.digest import create_empty_digest
from siwarp.ulp.adts.wire import DigestKind


@pytest.mark.parametrize("zeros", [0, 1, 7, 4096, 1_000_003])
def test_a_hole_has_the_digest_of_zeros(zeros: int) -> None:
    octets = b"before" + bytes(zeros) + b"after"
    expected = {
        DigestKind.CRC32C: crcmod.predefined.mkPredefinedCrcFun("crc-32c")(octets).to_bytes(
            4, "big"
        ),
        DigestKind.SHA256: hashlib.sha256(octets).digest(),
    }
    for kind, value in expected.items():
        digest = create_empty_digest(kind)
        digest.update(memoryview(b"before"))
        digest.add_zeros(zeros)
        digest.update(memoryview(b"after"))
        assert digest.value() == value


def test_crc32c_of_a_hole_of_many_tebibytes_is_immediate() -> None:
    whole, parts = create_empty_digest(DigestKind.CRC32C), create_empty_digest(DigestKind.CRC32C)
    for digest in (whole, parts):
        digest.update(memoryview(b"x"))
    whole.add_zeros(1 << 45)
    parts.add_zeros((1 << 45) - 12345)
    parts.add_zeros(12345)
    assert whole.value() == parts.value()
