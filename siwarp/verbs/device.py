# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices, one per network interface with an address, and contexts, which are open devices."""

from __future__ import annotations

import errno
import socket
import weakref
from dataclasses import dataclass
from typing import Any

from siwarp.base import system
from siwarp.verbs._ffi import (
    Address,
    Handle,
    Waitable,
    addr_bytes_to_python,
    addr_to_c,
    check_pointer,
    check_return_code,
    destroy_objects_of_dropped_handles,
    ffi,
    lib,
)
from siwarp.verbs.errors import Error
from siwarp.verbs.events import AsyncEvent
from siwarp.verbs.wanted import address_host_and_port, require_instance

__all__ = ["Context", "Device", "DeviceAttr", "get_device_list", "source_toward"]


@dataclass(frozen=True)
class Device:
    """A device in its present state (``struct siw_device_info``).

    ``addresses`` is also the GID table, IPv4 addresses first. ``mtu`` is the MTU of the interface
    in octets.
    """

    name: str
    netdev: str
    mtu: int
    up: bool
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class DeviceAttr:
    """The limits of an open device (``struct siw_device_attr``); the library enforces them.

    Sizes are in octets.
    """

    max_mr_size: int
    max_qp: int
    max_qp_wr: int
    max_sge: int
    max_inline_data: int
    max_cq: int
    max_cqe: int
    max_mr: int
    max_pd: int
    max_ah: int
    max_srq: int
    max_srq_wr: int
    max_srq_sge: int
    max_qp_rd_atom: int
    max_qp_init_rd_atom: int
    max_ud_msg: int
    max_rc_msg: int
    #: Level of atomicity (``enum siw_atomic_cap``); 2: with respect to all devices and the CPUs.
    atomic_cap: int
    max_mw: int


def _device_from_c(info: Any) -> Device:
    size = ffi.sizeof("struct siw_addr")
    raw = bytes(ffi.buffer(info.addrs))
    found = (addr_bytes_to_python(raw[i * size : (i + 1) * size]) for i in range(info.n_addrs))
    return Device(
        name=ffi.string(info.name).decode(errors="replace"),
        netdev=ffi.string(info.netdev).decode(errors="replace"),
        mtu=info.mtu,
        up=bool(info.up),
        addresses=tuple(address[0] for address in found if address is not None),
    )


class _DeviceList:
    """The C library's device list, valid during a ``with`` block."""

    def __enter__(self) -> list[Any]:
        count = ffi.new("int *")
        self._list = check_pointer(lib.siw_get_device_list(count), "listing the devices")
        return [self._list[i] for i in range(count[0])]

    def __exit__(self, *_: object) -> None:
        lib.siw_free_device_list(self._list)


def get_device_list() -> list[Device]:
    """Return the devices of this machine: interfaces with an address, including loopback."""
    with _DeviceList() as devices:
        return [_device_from_c(lib.siw_device_info(device)) for device in devices]


def _is_numeric_address(text: str) -> bool:
    return bool(lib.siw_addr_parse(text.encode(), 0, ffi.new("struct siw_addr *")) == 0)


def source_toward(peer: Address) -> str:
    """Return the source address that the kernel would use toward ``peer``, without sending.

    Raises:
        Error: the host does not exist, or there is no route to it.

    """
    name, port = address_host_and_port(peer)
    try:
        return system.source_address(name, port or 9)
    except OSError as e:
        number = errno.EHOSTUNREACH if isinstance(e, socket.gaierror) else e.errno
        raise Error(
            number or errno.EHOSTUNREACH,
            f"no route to {name!r}: {e.strerror or e} (correct the name, or check `ip route`)",
        ) from None


#: Index of the setting ``progress_thread`` in the settings table.
_PROGRESS = next(
    i
    for i in range(lib.siw_settings_count())
    if ffi.string(lib.siw_setting_name(i)) == b"progress_thread"
)


class Context(Waitable):
    """An open device.

    ``Context()`` opens the loopback device, ``Context("siw_eth0")`` a device by its name or its
    interface's name, and ``Context("192.0.2.1")`` the device with that address.

    Raises:
        Error: the device does not exist (ENODEV).
        LimitError: memory, descriptors or threads are exhausted.

    """

    __slots__ = ("_by_c", "_threaded", "device")
    _what = "context"
    _destroy = lib.siw_close_device

    #: The device's name, interface and addresses at the time when the device was opened.
    device: Device

    def __init__(self, name: str | None = None) -> None:
        destroy_objects_of_dropped_handles()
        name = require_instance(
            name or "", str, "a device name is a string, for example 'siw_eth0'"
        )
        name = system.device_name(name)
        what = f"opening device {name!r}"
        if _is_numeric_address(name):
            c = lib.siw_open_device_by_addr(addr_to_c((name, 0)))
            c = check_pointer(c, what)
        else:
            c = self._open_by_name(name, what)
        self.device = _device_from_c(lib.siw_context_info(c))
        # The objects that an asynchronous event may concern, by the address of the C object.
        self._by_c: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self._threaded = bool(lib.siw_setting_value(_PROGRESS))
        self._adopt_c_object(c)

    @staticmethod
    def _open_by_name(name: str, what: str) -> Any:
        with _DeviceList() as devices:
            known = []
            for device in devices:
                info = _device_from_c(lib.siw_device_info(device))
                if name in (info.name, info.netdev):
                    c = lib.siw_open_device(device)
                    return check_pointer(c, what)
                known.append(info.name)
        raise Error(
            errno.ENODEV,
            f"{what}: no device has this name; use one of {', '.join(known)}",
        )

    @classmethod
    def toward(cls, peer: Address) -> Context:
        """Open the device through which this machine reaches ``peer`` (host, port)."""
        return cls(source_toward(peer))

    def close(self, *, force: bool = False) -> None:
        """Close the device; a second call does nothing.

        With ``force``, all handles created from the device are closed, too, as at the end of a
        ``with`` block, but even while threads and tasks wait, poll or post: their calls raise
        StateError, and so do later calls on these handles. Completed requests still reach the
        peers, within the setting ``linger_ms``. No thread may create or close objects of the device
        meanwhile (``siw_close_device_forced``).

        Raises:
            StateError: a handle created from the device is still open, without ``force`` (EBUSY).

        """
        if force:
            destroy_objects_of_dropped_handles()
            self._force_close(lib.siw_close_device_forced)
        else:
            super().close()

    @property
    def name(self) -> str:
        """The name of the device, for example ``"siw_eth0"``."""
        return self.device.name

    def query_device(self) -> DeviceAttr:
        """Return the device's limits."""
        attr = ffi.new("struct siw_device_attr *")
        check_return_code(
            lib.siw_query_device(self._c_object(), attr), f"querying the limits of {self!r}"
        )
        return DeviceAttr(**{name: getattr(attr, name) for name in DeviceAttr.__annotations__})

    @property
    def num_comp_vectors(self) -> int:
        """The number of completion vectors: the lanes of the device (setting ``lanes``).

        Threads that poll CQs of different lanes do not wait for each other; see ``CQ``.
        """
        return check_return_code(
            lib.siw_num_comp_vectors(self._c_object()), f"querying the lanes of {self!r}"
        )

    def query_info(self) -> Device:
        """Return the device's current state: whether its interface is up, and its addresses."""
        info = ffi.new("struct siw_device_info *")
        check_return_code(
            lib.siw_query_device_info(self._c_object(), info), f"querying the port of {self!r}"
        )
        return _device_from_c(info)

    # ---- asynchronous events

    def async_fd(self) -> int:
        """Return a descriptor that is readable while an asynchronous event is unread.

        For ``select``, ``poll`` and ``asyncio``; read it only through ``get_async_event``.
        """
        return check_return_code(
            lib.siw_async_fd(self._c_object()), "getting the device's event descriptor"
        )

    fileno = async_fd

    def _has_progress_thread(self) -> bool:
        return self._threaded

    def get_async_event(self, timeout: float | None = None) -> AsyncEvent | None:
        """Wait for an asynchronous event; return ``None`` after the timeout.

        ``timeout`` is in seconds; ``None`` waits without limit, 0 does not wait. During the wait
        other threads run, the device makes progress, and Ctrl-C interrupts within 100 ms.
        Acknowledge every event (``AsyncEvent.ack``, or a ``with`` block).
        """
        c = self._c_object()
        raw: Any = None

        def get_c_async_event(ms: int) -> int:
            nonlocal raw
            raw = ffi.new("struct siw_async_event *")
            return int(lib.siw_get_async_event(c, raw, ms))

        def process_received_event() -> AsyncEvent | None:
            nonlocal raw
            got, raw = raw, None
            event = AsyncEvent(got, self._by_c.get)
            if event.element is not None or event.port_num:
                return event
            event.ack()  # the event's object was deleted
            return None

        def process_event_that_wait_did_not_return() -> None:
            if (
                raw is not None
                and any(ffi.buffer(raw)[:])
                and (event := process_received_event()) is not None
            ):
                event.ack()

        return self._wait_for_event(
            get_c_async_event,
            process_received_event,
            timeout,
            drop=process_event_that_wait_did_not_return,
        )

    def _description_for_repr(self) -> str:
        return self.device.name
