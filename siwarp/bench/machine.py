# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Describes properties of this machine that influence measured figures."""

from __future__ import annotations

import gzip
import os
import platform
import re
from pathlib import Path

__all__ = ["describe_machine", "siwarp_environment_variables"]

#: Files whose content is a property: kernel limits of buffers, congestion control, and others.
_FILES = {
    "net.core.rmem_max": "/proc/sys/net/core/rmem_max",
    "net.core.wmem_max": "/proc/sys/net/core/wmem_max",
    "TCP congestion control": "/proc/sys/net/ipv4/tcp_congestion_control",
    "clock source": "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "frequency governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "kernel.perf_event_paranoid": "/proc/sys/kernel/perf_event_paranoid",
}


def _read_file_or_empty(path: str | Path) -> str:
    """Return the content of a file, or nothing if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _kernel_timer_hz() -> str:
    """Return the frequency of the kernel's timer interrupt, which user space can only look up."""
    try:
        config = gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
    except OSError:
        config = _read_file_or_empty(f"/boot/config-{platform.release()}")
    found = re.search(r"(?m)^CONFIG_HZ=(\d+)$", config)
    return found[1] if found else "unknown: the kernel's configuration is not readable"


def describe_machine() -> dict[str, str]:
    """Return properties of the machine, of its kernel and of this siwarp, by name."""
    from siwarp import __version__

    cpuinfo = _read_file_or_empty("/proc/cpuinfo")
    model = re.search(r"(?m)^model name\s*: (.*)$", cpuinfo)
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count()
    facts = {
        "siwarp": __version__,
        "CPU": model[1] if model else platform.processor() or platform.machine(),
        "CPUs": f"{usable} usable of {present}",
        "virtual machine": "yes" if re.search(r"(?m)^flags.* hypervisor\b", cpuinfo) else "no",
        "kernel": f"{platform.system()} {platform.release()}",
        "HZ": _kernel_timer_hz(),
        "C library": " ".join(platform.libc_ver()).strip() or "unknown",
        "Python": platform.python_version(),
    }
    return facts | {
        name: text for name, path in _FILES.items() if (text := _read_file_or_empty(path))
    }


def siwarp_environment_variables() -> dict[str, str]:
    """Return the variables SIWARP_... of this process's environment, with their values."""
    return {name: value for name, value in os.environ.items() if name.startswith("SIWARP_")}
