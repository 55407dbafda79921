"""Addresses parsed from text and formatted as text."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from hypothesis import example, given
from hypothesis import strategies as st
from table import run_test_for_each_row

PORTS = st.integers(0, 65535)


def parse_addr(text: str, port: int = 0) -> Any:
    a = ffi.new("struct siw_addr *")
    rv = lib.siw_addr_parse(text.encode(), port, a)
    return a if rv == 0 else rv


def format_addr(a: Any, size: int = 64) -> str:
    out = ffi.new("char[]", max(size, 1))
    assert lib.siw_addr_format(a, out, size) == out
    return ffi.string(out).decode()


@given(ip=st.ip_addresses(v=4), port=PORTS)
def test_an_ipv4_address_is_parsed_and_formatted(ip: ipaddress.IPv4Address, port: int) -> None:
    a = parse_addr(str(ip), port)
    assert (a.family, socket.ntohs(a.port_be)) == (socket.AF_INET, port)
    assert bytes(a.v4) == ip.packed
    assert bytes(a.v6) == bytes(16)
    assert format_addr(a) == f"{ip}:{port}"


@given(ip=st.ip_addresses(v=6), port=PORTS)
@example(ip=ipaddress.IPv6Address("::ffff:1.2.3.4"), port=1)
@example(ip=ipaddress.IPv6Address("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), port=65535)
def test_an_ipv6_address_is_parsed_and_formatted(ip: ipaddress.IPv6Address, port: int) -> None:
    a = parse_addr(str(ip), port)
    assert (a.family, socket.ntohs(a.port_be)) == (socket.AF_INET6, port)
    assert bytes(a.v6) == ip.packed
    assert bytes(a.v4) == bytes(4), "the flow label is not 0"
    assert a.scope == 0
    number, _, tail = format_addr(a).rpartition(":")
    assert ipaddress.IPv6Address(number[1:-1]) == ip
    assert (number[0], number[-1], tail) == ("[", "]", str(port))


@pytest.mark.parametrize("scope", ["lo", str(socket.if_nametoindex("lo"))])
def test_the_scope_of_an_ipv6_address_is_the_name_or_number_of_an_interface(scope: str) -> None:
    a = parse_addr(f"fe80::1%{scope}", 7)
    assert a.scope == socket.if_nametoindex("lo")
    assert format_addr(a) == "[fe80::1%lo]:7"


def test_an_ipv6_scope_without_an_interface_is_formatted_as_a_number() -> None:
    a = parse_addr("fe80::1%4000000000", 7)
    assert a.scope == 4000000000
    assert format_addr(a) == "[fe80::1%4000000000]:7"


@run_test_for_each_row(
    "text",
    [
        "",
        " ",
        "localhost",
        "1.2.3",
        "1.2.3.4.5",
        "1.2.3.256",
        "1.2.3.4 ",
        "1.2.3.4:5",
        "[::1]",
        "::1::",
        ":::",
        "fe80::1%",
        "fe80::1%no-such-if",
        "fe80::1%0",
        "fe80::1%1x",
        "fe80::1%4294967296",
        "fe80::1%99999999999999999999",
        "1.2.3.4%lo",
        "%lo",
        "0" * 500,
        "::1%" + "x" * 500,
    ],
)
def test_parsing_an_invalid_address_is_refused_and_does_not_change_the_output(text: str) -> None:
    a = ffi.new("struct siw_addr *")
    ffi.memmove(a, b"\xa5" * ffi.sizeof(a[0]), ffi.sizeof(a[0]))
    assert lib.siw_addr_parse(text.encode(), 1, a) == -errno.EINVAL
    assert bytes(ffi.buffer(a)) == b"\xa5" * ffi.sizeof(a[0])


def test_the_longest_formatted_address_needs_64_octets() -> None:
    a = parse_addr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295", 65535)
    text = format_addr(a)
    # An interface name has at most 15 characters, a scope number at most 10.
    assert len(text) + 5 + 1 == 64


def test_a_small_buffer_truncates_the_formatted_address_and_an_empty_one_is_unchanged() -> None:
    a = parse_addr("127.0.0.1", 80)
    assert format_addr(a, 5) == "127."
    out = ffi.new("char[4]", b"abc")
    lib.siw_addr_format(a, out, 0)
    assert ffi.string(out) == b"abc"


def test_an_unset_address_is_formatted_as_none() -> None:
    assert format_addr(ffi.new("struct siw_addr *")) == "(none)"
