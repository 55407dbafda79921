"""CRC32C implementations that the CPU can run, compared with crcmod."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

import crcmod.predefined
import pytest
from _siwarp_layers import ffi, lib

ENOENT, ENOSYS = 2, 38
POLY = 0x11EDC6F41

reference_crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

NAMES = [
    ffi.string(p).decode()
    for p in takewhile(lambda p: p != ffi.NULL, map(lib.siw_crc32c_impl_name_for_tests, count()))
]
BEST = ffi.string(lib.siw_crc32c_selected_impl_name()).decode()

OCTETS = random.Random(5044).randbytes(1 << 20)


@pytest.fixture(params=NAMES)
def select_crc32c_implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    rv = lib.siw_crc32c_select_impl_for_tests(request.param.encode())
    if rv == -ENOSYS:
        pytest.skip(f"this CPU cannot run {request.param}")
    assert rv == 0
    assert ffi.string(lib.siw_crc32c_selected_impl_name()).decode() == request.param
    yield request.param
    assert lib.siw_crc32c_select_impl_for_tests(BEST.encode()) == 0


def test_the_crc32c_implementation_in_use_is_the_first_that_the_cpu_can_run() -> None:
    usable = [name for name in NAMES if lib.siw_crc32c_select_impl_for_tests(name.encode()) == 0]
    assert lib.siw_crc32c_select_impl_for_tests(BEST.encode()) == 0
    assert usable[0] == BEST
    assert usable[-1] == "table"


def test_selecting_an_unknown_crc32c_implementation_is_refused() -> None:
    assert lib.siw_crc32c_select_impl_for_tests(b"abacus") == -ENOENT
    assert ffi.string(lib.siw_crc32c_selected_impl_name()).decode() == BEST
    assert lib.siw_crc32c_impl_name_for_tests(len(NAMES)) == ffi.NULL
    assert lib.siw_crc32c_impl_name_for_tests(-1) == ffi.NULL


def test_crc32c_of_published_test_vectors_is_correct(select_crc32c_implementation: str) -> None:
    # The values are the check value of CRC catalogues and the iSCSI test vectors of RFC 3720
    # appendix B.4.
    assert lib.siw_crc32c(0, b"123456789", 9) == 0xE3069283
    assert lib.siw_crc32c(0, bytes(32), 32) == 0x8A9136AA
    assert lib.siw_crc32c(0, b"\xff" * 32, 32) == 0x62A8AB43
    assert lib.siw_crc32c(0, bytes(range(32)), 32) == 0x46DD794E
    assert lib.siw_crc32c(0, bytes(reversed(range(32))), 32) == 0x113FDB5C


def test_crc32c_of_every_length_up_to_600_octets_agrees_with_crcmod(
    select_crc32c_implementation: str,
) -> None:
    buf = ffi.from_buffer(OCTETS)
    for n in range(601):
        assert lib.siw_crc32c(0, buf, n) == reference_crc32c(OCTETS[:n]), n


def test_crc32c_at_every_alignment_agrees_with_crcmod(select_crc32c_implementation: str) -> None:
    raw = ffi.new("uint8_t[]", 4096 + 64)
    base = raw + -int(ffi.cast("uintptr_t", raw)) % 64
    for off in range(64):
        for n in (1, 7, 18, 64, 82, 127, 128, 191, 192, 255, 256, 257, 511, 600, 1008, 1040, 2000):
            ffi.memmove(base + off, OCTETS, n)
            assert lib.siw_crc32c(0, base + off, n) == reference_crc32c(OCTETS[:n]), (off, n)


def test_crc32c_of_large_random_data_agrees_with_crcmod(
    select_crc32c_implementation: str,
) -> None:
    rng = random.Random(1)
    buf = ffi.from_buffer(OCTETS)
    for _ in range(200):
        n = rng.randrange(600, 1 << rng.randrange(10, 20))
        off = rng.randrange(len(OCTETS) - n)
        seed = rng.getrandbits(32)
        assert lib.siw_crc32c(seed, buf + off, n) == reference_crc32c(OCTETS[off : off + n], seed)


def test_crc32c_at_the_lengths_of_mixed_blocks_agrees_with_crcmod(
    select_crc32c_implementation: str,
) -> None:
    """The implementations with carry-less products divide long input into blocks: of 12,032 and
    3,008 octets with VPCLMULQDQ, of 8,704 and 1,088 without.
    """
    buf = ffi.from_buffer(OCTETS)
    wide = (3008, 2 * 3008, 12032, 12032 + 3008, 3 * 12032 + 2 * 3008)
    narrow = (1088, 2 * 1088, 8704, 8704 + 1088, 3 * 8704 + 2 * 1088)
    for blocks in (*wide, *narrow):
        for n in (blocks - 1, blocks, blocks + 1, blocks + 63, blocks + 64, blocks + 128):
            assert lib.siw_crc32c(7, buf + 18, n) == reference_crc32c(OCTETS[18 : 18 + n], 7), n


def test_combined_crcs_are_the_crc_of_the_joined_data(select_crc32c_implementation: str) -> None:
    buf = ffi.from_buffer(OCTETS)
    for cut in (0, 1, 36, 4096):
        for n in (0, 1, 2, 3, 4, 5, 17, 1024, 4114, 65_536, 1 << 19):
            first = lib.siw_crc32c(0, buf, cut)
            second = lib.siw_crc32c(0, buf + cut, n)
            combined = lib.siw_crc32c_combine(first, second, lib.siw_crc32c_shift_factor(n))
            assert combined == reference_crc32c(OCTETS[: cut + n]), (cut, n)


def test_crc32c_can_be_continued_after_any_split_of_the_data(
    select_crc32c_implementation: str,
) -> None:
    data = OCTETS[:700]
    whole = reference_crc32c(data)
    for cut in range(len(data) + 1):
        first = lib.siw_crc32c(0, data[:cut], cut)
        assert first == reference_crc32c(data[:cut])
        assert lib.siw_crc32c(first, data[cut:], len(data) - cut) == whole, cut


def test_crc32c_copy_returns_the_crc_and_copies_exactly_the_octets(
    select_crc32c_implementation: str,
) -> None:
    src = ffi.from_buffer(OCTETS)
    dst = ffi.new("uint8_t[]", 1 << 17)
    view = ffi.buffer(dst)
    rng = random.Random(2)
    lengths = [*range(601), *(rng.randrange(600, 1 << 16) for _ in range(60))]
    for n in lengths:
        off, to, seed = rng.randrange(64), 64 + rng.randrange(64), rng.getrandbits(32)
        view[: n + 256] = b"\xa5" * (n + 256)
        got = lib.siw_crc32c_copy(seed, dst + to, src + off, n)
        assert got == reference_crc32c(OCTETS[off : off + n], seed), n
        assert view[to : to + n] == OCTETS[off : off + n], n
        assert view[:to] == b"\xa5" * to, n
        assert view[to + n : n + 256] == b"\xa5" * (256 - to), n


def test_crc32c_of_an_iovec_equals_the_crc_of_the_joined_pieces(
    select_crc32c_implementation: str,
) -> None:
    rng = random.Random(3)
    for _ in range(100):
        pieces = [rng.randbytes(rng.choice((0, 1, 18, 64, 200, 1500))) for _ in range(7)]
        kept = [ffi.from_buffer(p) for p in pieces]
        iov = ffi.new("struct iovec[]", [(k, len(p)) for k, p in zip(kept, pieces, strict=True)])
        assert lib.siw_crc32c_iov(0, iov, len(pieces)) == reference_crc32c(b"".join(pieces))
        assert lib.siw_crc32c_iov(reference_crc32c(b"x"), iov, 1) == reference_crc32c(
            b"x" + pieces[0]
        )
    assert lib.siw_crc32c_iov(0x1234, ffi.NULL, 0) == 0x1234


def test_crc32c_of_zero_octets_accepts_a_null_pointer(select_crc32c_implementation: str) -> None:
    assert lib.siw_crc32c(0x1234, ffi.NULL, 0) == 0x1234
    assert lib.siw_crc32c_copy(0x1234, ffi.NULL, ffi.NULL, 0) == 0x1234


def test_the_crc32c_folding_constants_have_the_values_that_their_names_denote() -> None:
    source = Path(__file__).parents[3] / "siwarp" / "base" / "crc32c_x86.h"
    text = source.read_text(encoding="utf-8")
    found = re.findall(r"^#define RX(32|64)_(\d+) +0x([0-9a-f]+)ull$", text, re.MULTILINE)
    assert len(found) == text.count("#define RX") == 34
    for width, exponent, value in found:
        residue = 1
        for _ in range(int(exponent)):
            residue <<= 1
            if residue >> 32:
                residue ^= POLY
        reflected = int(f"{residue:0{width}b}"[::-1], 2)
        assert int(value, 16) == reflected, f"RX{width}_{exponent}"
