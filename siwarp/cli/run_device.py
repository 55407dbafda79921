# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The attributes of siwarp's devices, as its ``libibverbs.so.1`` reports them, for files in sysfs.

The library itself is queried, through ctypes, so that files and calls cannot disagree. It is loaded
in a child process, because an open device has threads and a process with threads cannot create a
user namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Device", "Gid", "query_library_devices", "run_in_child_and_read_output"]

_NAME, _PATH = 64, 256


class _Device(ctypes.Structure):
    """The C structure ``struct ibv_device``."""

    _fields_ = [
        ("ops", ctypes.c_void_p * 2),
        ("node_type", ctypes.c_int),
        ("transport_type", ctypes.c_int),
        ("name", ctypes.c_char * _NAME),
        ("dev_name", ctypes.c_char * _NAME),
        ("dev_path", ctypes.c_char * _PATH),
        ("ibdev_path", ctypes.c_char * _PATH),
    ]


class _DeviceAttr(ctypes.Structure):
    """The start of ``struct ibv_device_attr``, then space for the rest."""

    _fields_ = [
        ("fw_ver", ctypes.c_char * 64),
        ("node_guid", ctypes.c_ubyte * 8),
        ("sys_image_guid", ctypes.c_ubyte * 8),
        ("rest", ctypes.c_ubyte * 512),
    ]


class _PortAttr(ctypes.Structure):
    """``struct ibv_port_attr`` in its first version: 48 octets."""

    _fields_ = [
        ("state", ctypes.c_int),
        ("max_mtu", ctypes.c_int),
        ("active_mtu", ctypes.c_int),
        ("gid_tbl_len", ctypes.c_int),
        ("port_cap_flags", ctypes.c_uint32),
        ("max_msg_sz", ctypes.c_uint32),
        ("bad_pkey_cntr", ctypes.c_uint32),
        ("qkey_viol_cntr", ctypes.c_uint32),
        ("pkey_tbl_len", ctypes.c_uint16),
        ("lid", ctypes.c_uint16),
        ("sm_lid", ctypes.c_uint16),
        ("lmc", ctypes.c_uint8),
        ("max_vl_num", ctypes.c_uint8),
        ("sm_sl", ctypes.c_uint8),
        ("subnet_timeout", ctypes.c_uint8),
        ("init_type_reply", ctypes.c_uint8),
        ("active_width", ctypes.c_uint8),
        ("active_speed", ctypes.c_uint8),
        ("phys_state", ctypes.c_uint8),
        ("link_layer", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("room", ctypes.c_ubyte * 64),
    ]


class _GidEntry(ctypes.Structure):
    """The C structure ``struct ibv_gid_entry``."""

    _fields_ = [
        ("gid", ctypes.c_ubyte * 16),
        ("gid_index", ctypes.c_uint32),
        ("port_num", ctypes.c_uint32),
        ("gid_type", ctypes.c_uint32),
        ("ndev_ifindex", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Gid:
    """A device's GID table entry; the GID is 16 octets in hexadecimal, ``ndev`` an ifindex."""

    index: int
    gid: str
    type: int
    ndev: int


@dataclass(frozen=True)
class Device:
    """The results of ``ibv_query_device`` and ``ibv_query_port``; GUIDs in hexadecimal."""

    name: str
    dev_name: str
    node_type: int
    fw_ver: str
    node_guid: str
    sys_image_guid: str
    state: int
    phys_state: int
    lid: int
    sm_lid: int
    lmc: int
    cap_mask: int
    active_width: int
    active_speed: int
    link_layer: int
    gids: list[Gid]


def _query_device(lib: Any, device: Any) -> Device:
    lib.ibv_open_device.restype = ctypes.c_void_p
    context = lib.ibv_open_device(device)
    if not context:
        raise OSError(f"ibv_open_device({device.contents.name.decode()}) failed: run siwarp doctor")
    context = ctypes.c_void_p(context)
    attr, port = _DeviceAttr(), _PortAttr()
    if lib.ibv_query_device(context, ctypes.byref(attr)):
        raise OSError("ibv_query_device failed: run siwarp doctor")
    if lib.ibv_query_port(context, ctypes.c_uint8(1), ctypes.byref(port)):
        raise OSError("ibv_query_port failed: run siwarp doctor")
    entries = (_GidEntry * max(port.gid_tbl_len, 1))()
    lib._ibv_query_gid_table.restype = ctypes.c_ssize_t
    count = lib._ibv_query_gid_table(
        context,
        entries,
        ctypes.c_size_t(port.gid_tbl_len),
        ctypes.c_uint32(0),
        ctypes.c_size_t(ctypes.sizeof(_GidEntry)),
    )
    lib.ibv_close_device(context)
    return Device(
        name=device.contents.name.decode(),
        dev_name=device.contents.dev_name.decode(),
        node_type=device.contents.node_type,
        fw_ver=attr.fw_ver.decode(),
        node_guid=bytes(attr.node_guid).hex(),
        sys_image_guid=bytes(attr.sys_image_guid).hex(),
        state=port.state,
        phys_state=port.phys_state,
        lid=port.lid,
        sm_lid=port.sm_lid,
        lmc=port.lmc,
        cap_mask=port.port_cap_flags,
        active_width=port.active_width,
        active_speed=port.active_speed,
        link_layer=port.link_layer,
        gids=[
            Gid(e.gid_index, bytes(e.gid).hex(), e.gid_type, e.ndev_ifindex)
            for e in entries[: max(count, 0)]
        ],
    )


def _query_devices(library: Path) -> list[Device]:
    lib = ctypes.CDLL(str(library))
    lib.ibv_get_device_list.restype = ctypes.POINTER(ctypes.POINTER(_Device))
    count = ctypes.c_int()
    found = lib.ibv_get_device_list(ctypes.byref(count))
    if not found:
        raise OSError("ibv_get_device_list failed: run siwarp doctor")
    return [_query_device(lib, found[i]) for i in range(count.value)]


def _write_devices_to_pipe(library: Path, pipe: int) -> None:
    """Write the devices, or an error text, to a pipe; have no other visible effect.

    The variables for the capture file, the fault plan and the trace are removed, because they are
    meant for the program.
    """
    for name in ("SIWARP_CAPTURE", "SIWARP_FAULTS", "SIWARP_LOG"):
        os.environ.pop(name, None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        said: Any = [asdict(device) for device in _query_devices(library)]
    except (OSError, AttributeError) as e:
        said = str(e)
    with os.fdopen(pipe, "w") as out:
        json.dump(said, out)


def run_in_child_and_read_output(write_output: Callable[[int], None]) -> str:
    """Call ``write_output`` with a pipe's descriptor in a child process; return what it wrote.

    The child process ends when the function returns or raises an exception.
    """
    sys.stdout.flush()
    mine, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(mine)
            write_output(its)
        finally:
            os._exit(0)
    os.close(its)
    with os.fdopen(mine) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def query_library_devices(library: Path) -> list[Device]:
    """Return the devices of a library; the first one is the programs' default.

    Raises:
        OSError: the library cannot be loaded, or one of its calls failed.

    """
    text = run_in_child_and_read_output(lambda pipe: _write_devices_to_pipe(library, pipe))
    said = json.loads(text) if text else f"{library} ended the process that queried it"
    if isinstance(said, str):
        raise OSError(said)
    return [Device(**{**device, "gids": [Gid(**gid) for gid in device["gids"]]}) for device in said]
