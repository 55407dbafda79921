# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices of connection ids, which are opened at their first use and stay open."""

from __future__ import annotations

import errno
import ipaddress
import os

from siwarp.cm.id import CMID as NativeCMID
from siwarp.pyverbs.device import get_device_list
from siwarp.verbs import device as verbs_device
from siwarp.verbs._ffi import ffi, lib
from siwarp.verbs.errors import Error
from siwarp.verbs.pd import PD as NativePD

_open: dict[str, tuple[verbs_device.Context, NativePD]] = {}
# A child of fork() cannot use the parent's open devices.
os.register_at_fork(after_in_child=_open.clear)


def _parse_ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host.partition("%")[0])


def is_wildcard_address(host: str) -> bool:
    """Return whether the address is a wildcard address."""
    return _parse_ip_address(host).is_unspecified


def is_multicast_address(host: str) -> bool:
    """Return whether the address is a multicast address."""
    return _parse_ip_address(host).is_multicast


def _open_shared_device(name: str) -> verbs_device.Context:
    found = _open.get(name)
    if found is None or found[0].closed:
        context = verbs_device.Context(name)
        found = _open[name] = context, NativePD(context)
    return found[0]


def shared_pd_of_device(context: verbs_device.Context) -> NativePD:
    """Return the protection domain that the connection ids of a device share."""
    return next(pd for mine, pd in _open.values() if mine is context)


def device_with_address(host: str) -> verbs_device.Context:
    """Return the device of an address or, as rdma_cm does, the first device for loopback.

    Raises:
        Error: there is no such device (ENODEV).

    """
    names = [one.name.decode() for one in get_device_list()]
    if not names:
        raise Error(errno.ENODEV, "there is no device: no interface has an address")
    if _parse_ip_address(host).is_loopback:
        return _open_shared_device(names[0])
    for one in verbs_device.get_device_list():
        if host.partition("%")[0] in (address.partition("%")[0] for address in one.addresses):
            return _open_shared_device(one.name)
    raise Error(errno.ENODEV, f"no device has the address {host}")


def device_of_cm_id(native: NativeCMID) -> verbs_device.Context | None:
    """Return the device of a connection id, or None if the id has no device yet."""
    c = lib.siw_cm_device(native._c_object())
    if c == ffi.NULL:
        return None
    return next((mine for mine, _ in _open.values() if mine._c == c), None)


def addresses_with_devices() -> list[tuple[verbs_device.Context, str]]:
    """Return all addresses of this machine, each with its device."""
    found = verbs_device.get_device_list()
    return [(device_with_address(address), address) for one in found for address in one.addresses]
