"""SipHash-2-4, by the test vectors in its authors' paper (appendix A) and by hash properties."""

from __future__ import annotations

from _siwarp_layers import ffi, lib


def siphash(data: bytes, key: bytes = bytes(range(16))) -> int:
    k = ffi.new("struct siw_sipkey *")
    ffi.buffer(k)[:] = key
    return int(lib.siw_siphash(k, data, len(data)))


def test_the_example_of_the_paper_gives_the_paper_s_value() -> None:
    assert siphash(bytes(range(15))) == 0xA129CA6149BE45E5


def test_each_length_and_each_key_gives_another_value() -> None:
    values = {siphash(bytes(n)) for n in range(100)}
    values |= {siphash(bytes(8), bytes([n]) * 16) for n in range(1, 100)}
    assert len(values) == 199


def test_two_fresh_keys_differ() -> None:
    keys = [ffi.new("struct siw_sipkey *") for _ in range(2)]
    for k in keys:
        lib.siw_siphash_key(k)
    assert bytes(ffi.buffer(keys[0])) != bytes(ffi.buffer(keys[1]))
