# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The memory that a process needs for its peers, measured by siwarp-bench-memory.

Each number of peers is measured in a new process, so that memory that an allocator kept from a
larger number does not count for a smaller one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from siwarp.bench.runner import BenchError, Progress, bench_program_path

__all__ = ["PEERS", "QPS", "estimate_kernel_memory_of_sockets", "measure_memory_per_peer"]

PEERS = (1, 10, 100, 1_000, 10_000)
QPS = ("ud", "rd", "rc")

#: Time limit in seconds: a little more than the time after which siwarp-bench-memory exits itself.
_LIMIT_S = 130


def _read_slab_sizes() -> dict[str, int]:
    """Return the octets of the kernel's objects per socket, by kind; empty if not readable."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/slabinfo").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words and words[0] in {"UDP", "TCP", "sock_inode_cache", "filp", "dentry"}:
                sizes[words[0]] = int(words[3])
    return sizes


def _socket_object_octets(qp: str, sizes: dict[str, int]) -> int | None:
    """Return the octets that the kernel uses per socket besides queued data; None if unknown."""
    wanted = ["TCP" if qp == "rc" else "UDP", "sock_inode_cache", "filp", "dentry"]
    if any(name not in sizes for name in wanted):
        return None
    return sum(sizes[name] for name in wanted)


def estimate_kernel_memory_of_sockets(udp: int, tcp: int) -> int | None:
    """Return the octets of kernel objects for ``udp`` and ``tcp`` sockets; None if unknown."""
    sizes = _read_slab_sizes()
    of_udp, of_tcp = _socket_object_octets("ud", sizes), _socket_object_octets("rc", sizes)
    return None if of_udp is None or of_tcp is None else udp * of_udp + tcp * of_tcp


def _measure_memory_of_process(qp: str, peers: int) -> dict[str, Any]:
    """Measure one process with ``peers`` peers by siwarp-bench-memory."""
    tool = str(bench_program_path().with_name("siwarp-bench-memory"))
    mine, theirs = socket.socketpair()
    with mine, theirs, contextlib.ExitStack() as stack:
        ends: list[subprocess.Popen[str]] = []
        said: list[str] = []
        for role, ctl in (("measured", mine), ("peers", theirs)):
            end = subprocess.Popen(
                [tool, role, qp, str(peers), str(ctl.fileno())],
                pass_fds=[ctl.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(end.wait)
            stack.callback(end.kill)
            ends.append(end)
        mine.close()
        theirs.close()
        try:
            for end in ends:
                out, why = end.communicate(timeout=_LIMIT_S)
                said.append(out)
                if end.returncode:
                    raise BenchError(f"{qp} with {peers} peers: {why.strip() or end.returncode}")
        except subprocess.TimeoutExpired:
            raise BenchError(
                f"{qp} with {peers} peers did not finish within {_LIMIT_S} s: reduce the load "
                "of the machine"
            ) from None
    return dict(json.loads(said[0]))


def _add_cost_per_peer(points: list[dict[str, Any]], objects: int | None) -> None:
    """Add to each point the cost per peer, from the difference to the point with fewer peers."""
    for before, point in zip([None, *points], points, strict=False):
        point["kernel_objects"] = None if objects is None else objects * point["sockets"]
        if before is None:
            continue
        more = point["peers"] - before["peers"]
        for state in ("idle", "loaded"):
            process = point[state] - before[state]
            kernel = point[f"{state}_kernel"] - before[f"{state}_kernel"]
            if objects is not None:
                kernel += point["kernel_objects"] - before["kernel_objects"]
            point[f"{state}_per_peer"] = round((process + kernel) / more)


def measure_memory_per_peer(
    qps: tuple[str, ...] = QPS, peers: tuple[int, ...] = PEERS, progress: Progress | None = None
) -> dict[str, Any]:
    """Return, for each kind of queue pair, a list with a point for each number of peers.

    A point has, all in octets: ``idle`` and ``loaded`` (the process's own memory, without pages of
    files), ``idle_kernel`` and ``loaded_kernel`` (kernel memory for the data of its sockets),
    ``kernel_objects`` (the sockets themselves; None if /proc/slabinfo is not readable), and from
    the second point on ``idle_per_peer`` and ``loaded_per_peer``: each further peer's part of the
    total.

    Raises:
        BenchError: one of the two processes failed.

    """
    sizes = _read_slab_sizes()
    found: dict[str, Any] = {}
    for i, qp in enumerate(qps):
        points = []
        for k, n in enumerate(sorted(peers)):
            points.append(_measure_memory_of_process(qp, n))
            if progress:
                progress(i * len(peers) + k + 1, len(qps) * len(peers))
        _add_cost_per_peer(points, _socket_object_octets(qp, sizes))
        found[qp] = points
    return found
