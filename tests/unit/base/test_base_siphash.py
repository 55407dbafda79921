"""SipHash-2-4 returns the value of its paper (appendix A), and different values for other input."""

from __future__ import annotations

from _siwarp_layers import ffi, lib


def compute_siphash(data: bytes, key: bytes = bytes(range(16))) -> int:
    k = ffi.new("struct siw_sipkey *")
    ffi.buffer(k)[:] = key
    return int(lib.siw_siphash(k, data, len(data)))


def test_siphash_of_the_example_in_its_paper_has_the_published_value() -> None:
    assert compute_siphash(bytes(range(15))) == 0xA129CA6149BE45E5


def test_siphash_of_each_length_and_each_key_is_different() -> None:
    values = {compute_siphash(bytes(n)) for n in range(100)}
    values |= {compute_siphash(bytes(8), bytes([n]) * 16) for n in range(1, 100)}
    assert len(values) == 199


def test_two_new_siphash_keys_differ() -> None:
    keys = [ffi.new("struct siw_sipkey *") for _ in range(2)]
    for k in keys:
        lib.siw_siphash_make_key(k)
    assert bytes(ffi.buffer(keys[0])) != bytes(ffi.buffer(keys[1]))
