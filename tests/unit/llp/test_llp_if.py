"""The network interfaces of the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from _siwarp_layers import ffi, lib


def interfaces_by_name(most=64):
    out = ffi.new("struct siw_llp_interface[]", most)
    n = lib.siw_llp_list_interfaces(out, most)
    assert 0 <= n <= most
    return {ffi.string(out[i].name).decode(): out[i] for i in range(n)}, out


def test_the_loopback_interface_is_listed_with_its_ipv4_addresses_first(llp_helpers):
    found, keep = interfaces_by_name()
    lo = found["lo"]
    texts = [llp_helpers.address_text(ffi.addressof(lo.addrs, i)) for i in range(lo.n_addrs)]
    assert texts[0] == "127.0.0.1:0"
    assert "[::1]:0" in texts
    families = [lo.addrs[i].family for i in range(lo.n_addrs)]
    assert families == sorted(families)
    assert lo.up == 1
    del keep


def test_the_listed_mtu_of_each_interface_equals_that_in_sysfs(llp_helpers):
    found, keep = interfaces_by_name()
    assert found
    for name, i in found.items():
        assert i.mtu == int(Path(f"/sys/class/net/{name}/mtu").read_text())
        assert 1 <= i.n_addrs <= 16
    del keep


def test_no_more_interfaces_are_returned_than_the_array_can_hold():
    assert list(interfaces_by_name(1)[0]) == list(interfaces_by_name()[0])[:1]


def test_interfaces_without_addresses_are_omitted_and_interfaces_that_are_down_listed(
    run_in_namespace,
):
    run_in_namespace(
        """
ip link set lo up; ip link add v0 type veth peer name v1
ip addr add 10.1.2.3/24 dev v0; ip addr add 10.1.2.4/24 dev v0 label v0:alias
ip addr add fe80::2/64 dev lo nodad
""",
        """
out = ffi.new("struct siw_llp_interface[]", 8)
n = lib.siw_llp_list_interfaces(out, 8)
got = {ffi.string(out[i].name).decode(): out[i] for i in range(n)}
assert list(got) == ["lo", "v0"], list(got)
assert got["lo"].up == 1 and got["v0"].up == 0
v0 = got["v0"]
texts = [address_text(ffi.addressof(v0.addrs, i)) for i in range(v0.n_addrs)]
assert texts == ["10.1.2.3:0", "10.1.2.4:0"], texts
lo = got["lo"]
texts = [address_text(ffi.addressof(lo.addrs, i)) for i in range(lo.n_addrs)]
assert "[fe80::2%lo]:0" in texts, texts
""",
    )


def test_addresses_beyond_the_capacity_of_an_interface_entry_are_omitted(run_in_namespace):
    run_in_namespace(
        "ip link set lo up; for i in $(seq 2 30); do ip addr add 127.0.1.$i/8 dev lo; done",
        """
out = ffi.new("struct siw_llp_interface[]", 8)
assert lib.siw_llp_list_interfaces(out, 8) == 1
assert out[0].n_addrs == 16
assert all(out[0].addrs[i].family == 2 for i in range(16))
""",
    )


@pytest.mark.parametrize("most", [0])
def test_listing_interfaces_with_a_capacity_of_zero_returns_none(most):
    assert lib.siw_llp_list_interfaces(ffi.NULL, most) == 0


@pytest.mark.parametrize(("dest", "source"), [("127.0.0.5", "127.0.0.1:0"), ("::1", "[::1]:0")])
def test_the_source_address_towards_this_host_is_its_loopback_address(llp_helpers, dest, source):
    found = ffi.new("struct siw_addr *")
    assert lib.siw_llp_source_addr_for_dest(llp_helpers.siw_addr(dest, 4791), found) == 0
    assert llp_helpers.address_text(found) == source


def test_the_source_address_follows_the_route(run_in_namespace):
    run_in_namespace(
        """
ip link set lo up; ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up
ip addr add 10.1.2.3/24 dev v0; ip route add 10.9.0.0/16 via 10.1.2.9
""",
        """
source = ffi.new("struct siw_addr *")
assert lib.siw_llp_source_addr_for_dest(siw_addr("10.9.8.7"), source) == 0
assert address_text(source) == "10.1.2.3:0", address_text(source)
import errno
assert lib.siw_llp_source_addr_for_dest(siw_addr("192.0.2.1"), source) == -errno.ENETUNREACH
""",
    )
