# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp doctor``: finds properties of this machine that slow siwarp down or stop it."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from siwarp.base import show

#: The default port of ``siwarp ping``, the same as perftest's.
PORT = 18515
#: A UDP socket option: octets of one segment (linux/udp.h). Python has no name for it.
UDP_SEGMENT = 103
#: Socket options without names in Python (asm/socket.h): buffers beyond the limit, for root.
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``state`` is good, fair (siwarp works, but slower) or bad."""

    what: str
    state: str
    advice: str


def _read_sysctl(path: str) -> str | None:
    try:
        return Path("/proc/sys", path).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _check_default_port_is_free() -> Finding:
    taken = []
    for kind, name in ((socket.SOCK_DGRAM, "UDP"), (socket.SOCK_STREAM, "TCP")):
        with socket.socket(socket.AF_INET, kind) as s:
            if (
                kind == socket.SOCK_STREAM
            ):  # as siwarp's listeners do, so connections in TIME-WAIT do not block the port
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", PORT))
            except OSError:
                taken.append(name)
    if taken:
        which = " and ".join(taken)
        return Finding(
            "ports",
            "fair",
            f"{which} port {PORT} is in use: give `siwarp ping` another one with --port",
        )
    span = (_read_sysctl("net/ipv4/ip_local_port_range") or "?").replace("\t", " to ")
    return Finding(
        "ports",
        "good",
        f"{PORT} is free, other ports are selected from {span}; open them in a firewall between "
        "two hosts",
    )


def _measure_granted_socket_buffer(option: int, force: int, octets: int) -> int:
    """Return the buffer size in octets that a UDP socket is granted when siwarp requests
    ``octets``.

    The size is read from the socket: with older kernels, /proc lacks the limits in a container.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.setsockopt(socket.SOL_SOCKET, force, octets)
        except PermissionError:
            s.setsockopt(socket.SOL_SOCKET, option, octets)
        # The kernel doubles the size that was set, and getsockopt() returns the doubled size.
        return s.getsockopt(socket.SOL_SOCKET, option) // 2


def _check_socket_buffers() -> Finding:
    from siwarp.cli.settings import settings

    values = {setting.name: setting.value for setting in settings()}
    low = []
    for name, limit, option, force in (
        ("rcvbuf", "rmem_max", socket.SO_RCVBUF, SO_RCVBUFFORCE),
        ("sndbuf", "wmem_max", socket.SO_SNDBUF, SO_SNDBUFFORCE),
    ):
        if _measure_granted_socket_buffer(option, force, values[name]) < values[name]:
            low.append(f"net.core.{limit}={values[name]}")
    if low:
        where = "" if _read_sysctl("net/core/rmem_max") else "; in a container: on its host"
        return Finding(
            "buffers",
            "fair",
            "the kernel allows smaller buffers than siwarp requests, and bursts of datagrams are "
            "lost: "
            f"sudo sysctl -w {' '.join(low)}{where}",
        )
    return Finding("buffers", "good", f"sockets get the requested {values['rcvbuf']} octets")


def _check_dropped_datagrams() -> Finding:
    from siwarp.base import counters

    lossy = []
    for pid in counters.pids_with_readable_counters():
        try:
            values = counters.read_counters(pid)
        except counters.CountersError:
            continue  # the process has ended
        lost = sum(n for name, n in values.items() if name.startswith("drop_"))
        if lost or values.get("cq_overflow", 0):
            lossy.append(pid)
    if lossy:
        asked = ", ".join(f"`siwarp counters {pid}`" for pid in lossy[:3])
        return Finding(
            "drops", "fair", f"one of your running processes has lost messages: see {asked}"
        )
    return Finding("drops", "good", "none of your running processes has lost a datagram")


def _check_gso() -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1400)
        except OSError as e:
            return Finding(
                "GSO",
                "fair",
                f"the kernel has no UDP segmentation offload ({e.strerror}): lists of small "
                "datagrams are slower: use Linux 4.18 or newer",
            )
    return Finding("GSO", "good", "the kernel splits one long send into datagrams")


def _namespace_remedy() -> str:
    """Return the remedy that would let this user create namespaces, which several settings may
    forbid.
    """
    if os.geteuid() == 0:
        return "root needs CAP_SYS_ADMIN; give a container --privileged"
    for name, value in (
        ("kernel.unprivileged_userns_clone", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "0"),
    ):
        if _read_sysctl(name.replace(".", "/")) not in (None, value):
            return f"run as root, or sudo sysctl -w {name}={value}"
    return "run as root"


def _check_namespace_creation() -> Finding:
    tool = shutil.which("unshare")
    if tool is None:
        return Finding(
            "namespaces",
            "fair",
            "`unshare` is missing, which tests with two hosts need: install util-linux",
        )
    arguments = (
        [tool, "--net"] if os.geteuid() == 0 else [tool, "--user", "--map-root-user", "--net"]
    )
    done = subprocess.run(
        [*arguments, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
    )
    if done.returncode == 0:
        return Finding(
            "namespaces", "good", "network namespaces can be created: two hosts on one machine"
        )
    return Finding(
        "namespaces",
        "fair",
        f"network namespaces cannot be created (only tests need them): {_namespace_remedy()}",
    )


def _check_compiler() -> Finding:
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return Finding(
                "compiler", "good", f"{found}: cc prog.c $(siwarp config --cflags --libs)"
            )
    return Finding("compiler", "fair", "no C compiler (Python needs none): sudo apt install gcc")


def _check_cpu_count() -> Finding:
    usable = len(os.sched_getaffinity(0))
    if usable < 2:
        return Finding(
            "cores",
            "fair",
            "both ends share one core, so polling increases latency: use two "
            "cores, or wait for events",
        )
    return Finding("cores", "good", f"{usable} cores: client and server can poll at the same time")


def _check_siwarp_devices() -> Finding:
    from siwarp.verbs import CQ, PD, QP, Context, Error, QPInitAttr, QPType, get_device_list

    try:
        names = ", ".join(device.name for device in get_device_list())
        with Context() as context, PD(context) as pd, CQ(context) as cq:
            QP(pd, QPInitAttr(QPType.UD, scq=cq)).close()
    except Error as e:
        up = "; is lo up? sudo ip link set lo up" if e.errno == errno.ENODEV else ""
        return Finding("devices", "bad", f"the loopback device does not work: {e.strerror}{up}")
    return Finding("devices", "good", f"{names}; a queue pair can be created on loopback")


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _check_siwarp_devices,
    _check_default_port_is_free,
    _check_socket_buffers,
    _check_dropped_datagrams,
    _check_gso,
    _check_cpu_count,
    _check_namespace_creation,
    _check_compiler,
)


def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Check this machine and print one line of advice on each property that matters."""
    findings = [check() for check in _CHECKS]
    if as_json:
        show.print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            mark, style = {
                "good": ("ok  ", "green"),
                "fair": ("note", "yellow"),
                "bad": ("BAD ", "bold red"),
            }[finding.state]
            show.print_line(
                f"{mark}  {finding.what:<10}  {finding.advice}",
                style if show.is_terminal_output() else "",
            )
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)
