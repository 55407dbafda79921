# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The files under /sys/class that RDMA programs read, made from the library's device attributes.

Their format is that of Linux's ib_core and ib_uverbs, as far as it applies to a software device
(Linux: Documentation/ABI/stable/sysfs-class-infiniband).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from siwarp.cli.run_device import Device, Gid

__all__ = [
    "sysfs_infiniband_files_of_device",
    "sysfs_rdma_cm_file_contents",
    "sysfs_verbs_file_contents",
]

#: Names that ib_core prints for enum ibv_node_type, enum ibv_port_state, the physical states of a
#: port, and link layers.
_NODES = {
    1: "CA",
    2: "switch",
    3: "router",
    4: "RNIC",
    5: "usNIC",
    6: "usNIC UDP",
    7: "unspecified",
}
_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYSICAL = (
    "<unknown>",
    "Sleep",
    "Polling",
    "Disabled",
    "PortConfigurationTraining",
    "LinkUp",
    "LinkErrorRecovery",
    "Phy Test",
)
_LINK_LAYERS = ("Unspecified", "InfiniBand", "Ethernet")
#: For each width code in struct ibv_port_attr, the number of lanes; for each speed code, a lane's
#: speed in tenths of Gb/s, and its name.
_WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_SPEEDS = {
    1: (25, " SDR"),
    2: (50, " DDR"),
    4: (100, " QDR"),
    8: (100, " FDR10"),
    16: (140, " FDR"),
    32: (250, " EDR"),
    64: (500, " HDR"),
    128: (1000, " NDR"),
}
#: enum ibv_gid_type (1: IB or RoCE v1; 2: RoCE v2), with the numbers that sysfs uses.
_ROCE_V2 = 2
#: ABI versions that Linux reports and that programs with rdma-core 44 and later accept. The
#: system's librdmacm, whose rsockets run on siwarp, uses no device if the version of rdma_cm is
#: above 4.
_UVERBS_ABI, _DEVICE_ABI, _RDMA_CM_ABI = 6, 1, 4


def _format_named_number(number: int, names: dict[int, str]) -> str:
    return f"{number}: {names.get(number, '<unknown>')}"


def _format_guid(octets: str) -> str:
    return ":".join(octets[i : i + 4] for i in range(0, len(octets), 4))


def _format_rate(width: int, speed: int) -> str:
    lanes = _WIDTHS.get(width, 1)
    tenths, name = _SPEEDS.get(speed, _SPEEDS[1])
    whole, rest = divmod(lanes * tenths, 10)
    return f"{whole}{f'.{rest}' if rest else ''} Gb/sec ({lanes}X{name})"


def _interface_of_gids(gids: list[Gid]) -> str | None:
    for gid in gids:
        if gid.ndev:
            try:
                return socket.if_indextoname(gid.ndev)
            except OSError:
                return None
    return None


def _numa_node(interface: str | None) -> int:
    """Return the NUMA node of the adapter behind an interface; -1 if there is none, as in sysfs."""
    if interface is None:
        return -1
    place = Path("/sys/class/net", interface, "device").resolve()
    for folder in (place, *place.parents):
        try:
            return int((folder / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return -1


def _list_sysfs_port_files(device: Device) -> Iterator[tuple[str, str]]:
    yield "state", _format_named_number(device.state, dict(enumerate(_STATES)))
    yield "phys_state", _format_named_number(device.phys_state, dict(enumerate(_PHYSICAL)))
    yield "link_layer", dict(enumerate(_LINK_LAYERS)).get(device.link_layer, "Unspecified")
    yield "rate", _format_rate(device.active_width, device.active_speed)
    yield "lid", f"{device.lid:#x}"
    yield "sm_lid", f"{device.sm_lid:#x}"
    yield "sm_sl", "0"
    yield "lid_mask_count", str(device.lmc)
    yield "cap_mask", f"{device.cap_mask:#010x}"
    yield "pkeys/0", "0xffff"
    for gid in device.gids:
        yield f"gids/{gid.index}", _format_guid(gid.gid)
        yield f"gid_attrs/types/{gid.index}", "RoCE v2" if gid.type == _ROCE_V2 else "IB/RoCE v1"
        ndev = _interface_of_gids([gid])
        if ndev:
            yield f"gid_attrs/ndevs/{gid.index}", ndev


def sysfs_infiniband_files_of_device(device: Device) -> dict[str, str]:
    """Return the files of /sys/class/infiniband/DEVICE: relative path and line of text."""
    interface = _interface_of_gids(device.gids)
    return {
        "node_type": _format_named_number(device.node_type, _NODES),
        "node_guid": _format_guid(device.node_guid),
        "sys_image_guid": _format_guid(device.sys_image_guid),
        "node_desc": f"siwarp {device.name}",
        "fw_ver": device.fw_ver,
        "hca_type": "siwarp",
        "device/numa_node": str(_numa_node(interface)),
        **{f"ports/1/{name}": line for name, line in _list_sysfs_port_files(device)},
    }


def sysfs_verbs_file_contents(device: Device) -> dict[str, str]:
    """Return the files of /sys/class/infiniband_verbs/UVERBS; the device number is /dev/null's."""
    return {"ibdev": device.name, "abi_version": str(_DEVICE_ABI), "dev": "1:3"}


def sysfs_rdma_cm_file_contents() -> dict[str, str]:
    """Return the files of /sys/class/misc/rdma_cm."""
    return {"abi_version": str(_RDMA_CM_ABI)}


def sysfs_uverbs_abi_file_contents() -> dict[str, str]:
    """Return the files directly in /sys/class/infiniband_verbs."""
    return {"abi_version": str(_UVERBS_ABI)}
