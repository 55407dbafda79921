# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Devices and contexts: ``pyverbs.device``."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from siwarp.base import system
from siwarp.pyverbs import enums as e
from siwarp.pyverbs._device_attr import (
    AllocDmAttr,
    CompCntrCaps,
    CQModerationCaps,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    ODPCaps,
    PacketPacingCaps,
    PCIAtomicCaps,
    PortAttr,
    QueryDeviceExInput,
    RSSCaps,
    TMCaps,
    TSOCaps,
    gid_from_octets,
)
from siwarp.pyverbs._device_text import (
    guid_format,
    guid_to_hex,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_event_type,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_node_type,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    translate_transport_type,
    width_to_str,
)
from siwarp.pyverbs._field import ReadOnlyAttribute, attribute_lines, set_read_only_attributes
from siwarp.pyverbs._interfaces import interface_guid, interface_mbps, link_width_and_speed
from siwarp.pyverbs.addr import GID, address_to_gid_octets
from siwarp.pyverbs.base import (
    PyverbsCM,
    PyverbsObject,
    PyverbsRDMAErrno,
    Wrapper,
    convert_errors,
    raise_unsupported,
)
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from siwarp.pyverbs.utils import gid_str
from siwarp.verbs import _ffi
from siwarp.verbs import device as verbs_device
from siwarp.verbs.enums import Persona
from siwarp.verbs.events import AsyncEvent as NativeAsyncEvent

__all__ = [
    "DM",
    "AllocDmAttr",
    "AsyncEvent",
    "CQModerationCaps",
    "CompCntrCaps",
    "Context",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "FdArr",
    "GIDEntry",
    "ODPCaps",
    "PCIAtomicCaps",
    "PacketPacingCaps",
    "PortAttr",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "QueryDeviceExInput",
    "RSSCaps",
    "TMCaps",
    "TSOCaps",
    "get_device_list",
    "gid_str",
    "guid_format",
    "guid_to_hex",
    "phys_state_to_str",
    "port_state_to_str",
    "rdma_get_devices",
    "speed_to_str",
    "str_from_flags",
    "translate_device_caps",
    "translate_event_type",
    "translate_gid_type",
    "translate_link_layer",
    "translate_mtu",
    "translate_node_type",
    "translate_port_cap_flags",
    "translate_port_cap_flags2",
    "translate_transport_type",
    "width_to_str",
]

_PORT = 1
_GIDS = 16
_PKEY = 0xFFFF
#: Physical states of a port (InfiniBand 14.2.5.6).
_LINK_UP, _DISABLED = 5, 3
#: Limit of the counts in ``struct ibv_device_attr``.
_INT_MAX = 0x7FFFFFFF


def device_persona() -> Persona:
    """Return the rule by which all devices complete RC sends (``enum siw_persona``).

    The rule is ROCE unless the setting ``persona`` is iwarp.
    """
    of_setting = int(_ffi.lib.siw_persona_setting())
    return Persona.IWARP if of_setting == Persona.IWARP else Persona.ROCE


class Device(PyverbsObject):
    """A device (``struct ibv_device``); ``name`` is of type bytes."""

    def __init__(
        self, name: bytes, guid: int, node_type: int, transport_type: int, index: int
    ) -> None:
        self._values = (name, guid, node_type, transport_type, index)

    @property
    def name(self) -> bytes:
        """Name of the device, for example ``b"siw_lo"``."""
        return self._values[0]

    @property
    def guid(self) -> int:
        """GUID of the device, in network byte order."""
        return self._values[1]

    @property
    def node_type(self) -> int:
        """Node type, a channel adapter, or an RNIC if the setting ``persona`` is iwarp."""
        return self._values[2]

    @property
    def transport_type(self) -> int:
        """Transport type, consistent with the node type."""
        return self._values[3]

    @property
    def index(self) -> int:
        """Index of the device's network interface."""
        return self._values[4]

    def __str__(self) -> str:
        return (
            f"Device {self.name.decode()}, node type {translate_node_type(self.node_type)}, "
            f"transport type {translate_transport_type(self.transport_type)}, "
            f"guid {guid_format(self.guid)}, index {self.index}"
        )


def get_device_list() -> list[Device]:
    """Return the machine's devices, one per interface with an address, with ``siw_lo`` last.

    Raises:
        PyverbsRDMAError: the interfaces cannot be listed.

    """
    with convert_errors("Failed to get the list of devices"):
        found = verbs_device.get_device_list()
    roce = device_persona() == Persona.ROCE
    node = e.IBV_NODE_CA if roce else e.IBV_NODE_RNIC
    transport = e.IBV_TRANSPORT_IB if roce else e.IBV_TRANSPORT_IWARP
    found.sort(key=lambda one: (one.netdev == "lo", system.interface_index(one.netdev)))
    return [
        Device(
            one.name.encode(),
            interface_guid(one.netdev),
            node,
            transport,
            system.interface_index(one.netdev),
        )
        for one in found
    ]


def rdma_get_devices() -> list[Device]:
    """Return the devices that the connection manager uses, which are all devices."""
    return get_device_list()


class AsyncEvent(PyverbsObject):
    """An asynchronous event (``struct ibv_async_event``), which ``ack()`` acknowledges."""

    def __init__(self, event_type: int = 0) -> None:
        self._type = event_type
        self._native: NativeAsyncEvent | None = None

    @classmethod
    def _from_native(cls, native: NativeAsyncEvent) -> AsyncEvent:
        event = cls(int(native.event_type))
        event._native = native
        return event

    @property
    def event_type(self) -> int:
        """The type of the event, a value of ``ibv_event_type``."""
        return self._type

    def ack(self) -> None:
        """Acknowledge the event; until then the object it concerns cannot be closed."""
        if self._native is not None:
            self._native.ack()

    def __str__(self) -> str:
        return f"{'event type':<22}: {translate_event_type(self._type):<20}\n"


_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def _is_same_open_file(a: int, b: int) -> bool:
    try:
        return os.path.samestat(os.fstat(a), os.fstat(b))
    except OSError:
        return False


class Context(Wrapper[verbs_device.Context]):
    """An open device: ``Context(name="siw_lo")``.

    ``cmid``: the device of a connection id. ``cmd_fd``: an open device of this process, by its
    descriptor.

    Raises:
        PyverbsUserError: there is no name.
        PyverbsRDMAError: there is no such device, or it cannot be opened.

    """

    def __init__(self, **kwargs: Any) -> None:
        self._cmd_fd = -1
        if kwargs.get("cmid") is not None:
            self._use_shared_handle(kwargs["cmid"]._require_device())
        elif kwargs.get("cmd_fd") is not None:
            self._import_by_fd(int(kwargs["cmd_fd"]))
        elif kwargs.get("attr") is not None:
            raise_unsupported("provider-specific open", "there are no vendor attributes")
        elif kwargs.get("name") is None:
            raise PyverbsUserError("Device name must be provided")
        else:
            name = kwargs["name"]
            name = name.decode() if isinstance(name, bytes) else str(name)
            self._open_by_name(name)
        self._name = self._native().name
        self._register_with_parents()
        _contexts.add(self)

    def _open_by_name(self, name: str) -> None:
        with convert_errors("Failed to get the list of devices"):
            known = [one.name for one in verbs_device.get_device_list()]
        if name not in known:
            raise PyverbsRDMAError(
                f"Failed to find the device {name}: the devices are {', '.join(known)}",
                errno.ENODEV,
            )
        with convert_errors(f"Failed to open device {name}"):
            self._h = verbs_device.Context(name)

    def _use_shared_handle(self, native: verbs_device.Context) -> None:
        self._h, self._shared = native, True

    def _import_by_fd(self, fd: int) -> None:
        for other in list(_contexts):
            if (
                not other._is_closed
                and other._cmd_fd >= 0
                and _is_same_open_file(fd, other._cmd_fd)
            ):
                self._use_shared_handle(other._native())
                self._other = other  # a reference that keeps the imported Context open
                self._cmd_fd = fd
                return
        raise PyverbsRDMAError(
            f"Failed to import the device of descriptor {fd}: this process has no such device",
            errno.EINVAL,
        )

    def close(self) -> None:
        """Close the children of the device, then the device; a second call has no effect."""
        super().close()
        fd, self._cmd_fd = self._cmd_fd, -1
        if fd >= 0 and not self._shared:
            with contextlib.suppress(OSError):  # the program may have closed the descriptor
                os.close(fd)

    def __del__(self) -> None:
        fd = getattr(self, "_cmd_fd", -1)
        if fd >= 0 and not self._shared:
            with contextlib.suppress(OSError):
                os.close(fd)

    # ---- attributes

    @property
    def name(self) -> str:
        """The device's name."""
        return self._name

    @property
    def num_comp_vectors(self) -> int:
        """The number of completion vectors: siwarp's setting ``lanes``."""
        return self._native().num_comp_vectors

    @property
    def cmd_fd(self) -> int:
        """A descriptor for ``Context(cmd_fd=...)`` in this process."""
        self._native()
        if self._cmd_fd < 0:
            self._cmd_fd = os.memfd_create("siwarp")
        return self._cmd_fd

    @property
    def context(self) -> int:
        """A unique number of the open device."""
        return id(self._native())

    @property
    def _netdev(self) -> str:
        return self._native().device.netdev

    def _query_info(self) -> verbs_device.Device:
        with convert_errors("Failed to query the port"):
            return self._native().query_info()

    def _gid_addresses(self) -> tuple[str, ...]:
        """Return the IP addresses of the device's GIDs, in the order of the GID table."""
        return self._query_info().addresses[:_GIDS]

    # ---- queries

    def query_device(self) -> DeviceAttr:
        """Return the device's limits."""
        with convert_errors("Failed to query device"):
            limits = self._native().query_device()
        same = set(vars(DeviceAttr)) & set(limits.__dataclass_fields__)
        values = {name: min(getattr(limits, name), _INT_MAX) for name in same}
        values["max_mr_size"] = limits.max_mr_size
        guid, groups = interface_guid(self._netdev), values["max_qp"]
        attr = DeviceAttr()
        set_read_only_attributes(
            attr,
            **values,
            fw_version=version("siwarp"),
            node_guid=guid,
            sys_image_guid=guid,
            max_sge_rd=values["max_sge"],
            max_res_rd_atom=min(limits.max_qp * limits.max_qp_rd_atom, _INT_MAX),
            atomic_caps=limits.atomic_cap,
            max_mcast_grp=groups,
            max_mcast_qp_attach=groups,
        )
        return attr

    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        """Return the device's limits and extended attributes."""
        if ex_input is not None and ex_input.comp_mask:
            raise PyverbsRDMAError(
                "Failed to query extended device attributes: comp_mask must be 0", errno.EINVAL
            )
        attr = DeviceAttrEx()
        set_read_only_attributes(attr, orig_attr=self.query_device())
        return attr

    def _check_port(self, port_num: int, what: str) -> None:
        if port_num != _PORT:
            raise PyverbsRDMAError(
                f"Failed to query {what} {port_num}: the device has one port, {_PORT}",
                errno.EINVAL,
            )

    def query_comp_cntr_caps(self) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no completion counters."""
        raise_unsupported("completion counter", "completions are counted in completion queues")

    def query_port_speed(self, port_num: int) -> int:
        """Return the rate of the port in units of 100 Mbit/s."""
        self._check_port(port_num, "port")
        return interface_mbps(self._netdev) // 100

    def query_port(self, port_num: int) -> PortAttr:
        """Return the state of the port, whose number is 1."""
        self._check_port(port_num, "port")
        info, native = self._query_info(), self._native()
        with convert_errors("Failed to query the port"):
            limits = native.query_device()
        width, speed = link_width_and_speed(info.netdev)
        mtu = max([1, *(n for n in range(1, 6) if 128 << n <= info.mtu)])
        attr = PortAttr()
        set_read_only_attributes(
            attr,
            state=int(e.IBV_PORT_ACTIVE if info.up else e.IBV_PORT_DOWN),
            active_mtu=mtu,
            max_msg_sz=limits.max_rc_msg,
            active_width=width,
            active_speed=speed,
            phys_state=_LINK_UP if info.up else _DISABLED,
        )
        return attr

    def query_gid(self, port_num: int, index: int) -> GID:
        """Return a GID of the port, which is zero for an unused entry."""
        self._check_gid_index(port_num, index)
        own = self._gid_addresses()
        return GID() if index >= len(own) else gid_from_octets(address_to_gid_octets(own[index]))

    def _check_gid_index(self, port_num: int, index: int) -> None:
        self._check_port(port_num, f"GID {index} of port")
        if not 0 <= index < _GIDS:
            raise PyverbsRDMAError(
                f"Failed to query GID {index}: the table has {_GIDS} entries", errno.EINVAL
            )

    def query_gid_type(self, port_num: int, index: int) -> int:
        """Return the type of a GID, RoCE v2, in the numbering of sysfs."""
        self._check_gid_index(port_num, index)
        return e.IBV_GID_TYPE_SYSFS_ROCE_V2

    def _make_gid_entry(self, index: int, address: str) -> GIDEntry:
        prefix, interface = _ffi.ffi.unpack(
            _ffi.ffi.cast("uint64_t *", _ffi.ffi.from_buffer(address_to_gid_octets(address))), 2
        )
        netdev = system.interface_index(self._netdev)
        return GIDEntry(prefix, interface, index, _PORT, e.IBV_GID_TYPE_ROCE_V2, netdev)

    def query_gid_ex(self, port_num: int, gid_index: int, flags: int = 0) -> GIDEntry:
        """Return an entry of the port's GID table.

        Raises:
            PyverbsRDMAError: the entry is unused (ENODATA), or ``flags`` is not 0 (EOPNOTSUPP).

        """
        self._check_gid_index(port_num, gid_index)
        if flags:
            raise_unsupported("flags of query_gid_ex", "none is defined")
        own = self._gid_addresses()
        if gid_index >= len(own):
            raise PyverbsRDMAError(
                f"Failed to query GID {gid_index}: the device has {len(own)} GIDs", errno.ENODATA
            )
        return self._make_gid_entry(gid_index, own[gid_index])

    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:
        """Return the device's GIDs.

        Raises:
            PyverbsRDMAError: there are more than ``max_entries``, or ``flags`` is not 0.
                ``error_code`` is negative, as in pyverbs.

        """
        if flags:
            raise PyverbsRDMAError(
                "Failed to query the table of GIDs: no flag is defined", -errno.EOPNOTSUPP
            )
        own = self._gid_addresses()
        if max_entries < len(own):
            raise PyverbsRDMAError(
                f"Failed to query the table of GIDs: there are {len(own)}", -errno.EINVAL
            )
        return [self._make_gid_entry(index, address) for index, address in enumerate(own)]

    def query_pkey(self, port_num: int, index: int) -> int:
        """Return the only P_Key of the port."""
        self._check_port(port_num, f"P_Key {index} of port")
        if index:
            raise PyverbsRDMAError(
                f"Failed to query P_Key {index}: there is only index 0", errno.EINVAL
            )
        return _PKEY

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """Return the index of a P_Key of the port, whose only P_Key is 0xffff at index 0."""
        self._check_port(port_num, "P_Keys of port")
        if pkey != _PKEY:
            raise PyverbsRDMAError(
                f"Failed to get the index of P_Key {pkey:#x}: there is only {_PKEY:#x}",
                errno.ENOENT,
            )
        return 0

    def query_rt_values_ex(
        self, comp_mask: int = e.IBV_VALUES_MASK_RAW_CLOCK
    ) -> tuple[int, int] | None:
        """Return the time of the time stamp clock, as (0, nanoseconds)."""
        self._native()
        if not comp_mask & e.IBV_VALUES_MASK_RAW_CLOCK:
            return None
        return 0, system.clock_ns(False)

    def get_async_event(self) -> AsyncEvent:
        """Wait for an asynchronous event; Ctrl-C interrupts the wait."""
        while True:
            with convert_errors("Failed to get async event"):
                native = self._native().get_async_event()
            if native is not None and int(native.event_type) in _EVENTS:
                return AsyncEvent._from_native(native)
            if native is not None:  # an event specific to siwarp, for which pyverbs has no number
                native.ack()


_EVENTS = frozenset(int(one) for one in e.ibv_event_type)


class DM(PyverbsCM):
    """Device memory, which siwarp does not support.

    Raises:
        PyverbsUserError: always.

    """

    handle = ReadOnlyAttribute(0)

    def __init__(self, context: Context, dm_attr: AllocDmAttr | None = None, **_: Any) -> None:
        wanted = 0 if dm_attr is None else dm_attr.length
        raise PyverbsUserError(
            f"Requested {wanted} octets of device memory, and the device has none: it is software"
        )

    def copy_to_dm(self, dm_offset: int, data: bytes | str, length: int) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no device memory."""
        raise_unsupported("device memory", "a software device has no memory of its own")

    def copy_from_dm(self, dm_offset: int, length: int) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no device memory."""
        raise_unsupported("device memory", "a software device has no memory of its own")

    def export_dmabuf_fd(self) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no device memory."""
        raise_unsupported("device memory", "a software device has no memory of its own")

    def unimport(self) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no device memory."""
        raise_unsupported("device memory", "a software device has no memory of its own")


class FdArr(PyverbsObject):
    """The first ``count`` descriptors of a list, for attributes of vendors' devices."""

    def __init__(self, arr: Sequence[int] = (), count: int = 0) -> None:
        if not 0 <= count <= len(arr):
            raise PyverbsUserError(f"count is {count}, but there are {len(arr)} descriptors")
        self._arr = list(arr[:count])

    @property
    def arr(self) -> list[int]:
        """The descriptors."""
        return list(self._arr)

    @property
    def count(self) -> int:
        """The number of descriptors."""
        return len(self._arr)

    def close(self) -> None:
        """Do nothing: the descriptors belong to the program."""

    def __str__(self) -> str:
        return attribute_lines(self, "count", "arr")


def __getattr__(name: str) -> Any:
    # pyverbs.device exports these classes as well; imported late, because pyverbs.mr imports this
    # module
    if name in ("DMAHandle", "DMMR"):
        from siwarp.pyverbs import mr

        return getattr(mr, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
