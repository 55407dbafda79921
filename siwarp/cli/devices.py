# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp devices``: the devices and their limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from siwarp.base import show


def devices(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the devices: one per network interface that has an address, loopback included."""
    from siwarp.verbs import Context, Error, get_device_list

    found: list[dict[str, Any]] = []
    for device in get_device_list():
        entry: dict[str, Any] = {**asdict(device), "limits": None}
        try:
            with Context(device.name) as context:
                entry["limits"] = asdict(context.query_device())
        except Error as e:
            entry["error"] = e.strerror
        found.append(entry)
    if as_json:
        show.print_json(found)
        return
    show.print_table(
        ("device", "interface", "state", "MTU", "addresses"),
        [
            (
                entry["name"],
                entry["netdev"],
                "up" if entry["up"] else "down",
                str(entry["mtu"]),
                " ".join(entry["addresses"]),
            )
            for entry in found
        ],
        right=(3,),
    )
    if not found:
        show.print_line(
            "No interface has an address: run `sudo ip link set lo up` to configure loopback."
        )
    limits = next((entry["limits"] for entry in found if entry["limits"]), None)
    if limits:
        show.print_line("limits of each: " + ", ".join(f"{k} {v}" for k, v in limits.items()))
    for entry in found:
        if "error" in entry:
            show.print_finding(f"{entry['name']} cannot be opened: {entry['error']}", good=False)
