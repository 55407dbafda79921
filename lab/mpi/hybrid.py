# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A channel that begins with UD and adds RC on demand, compared with UD only and with RC only.

UCX has no such channel, so the channel is implemented in siwarp (mpi_channel.h); no MPI is needed.
The ranks are processes of this machine, on the loopback device.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.mpi.launch import wait_for_json
from lab.mpi.peers import memory_of_one_rank
from lab.mpi.wire import median_and_range
from siwarp.bench.runner import BenchError, Progress
from siwarp.bench.runner import bench_program_path as bench_program

__all__ = ["CHANNELS", "LIMIT", "RANKS", "SIZE", "THRESHOLD", "measure_message_channels"]

CHANNELS = {"ud": "UD only", "rc": "RC only", "hybrid": "UD, then RC"}
RANKS = (2, 4, 8, 16, 32, 64)
SIZE = 64
#: Maximum number of connections of a rank in channel `hybrid`: one for each neighbour.
LIMIT = 4
#: Frames sent over UD to a peer before a rank requests a connection to it.
THRESHOLD = 32
#: Number of messages of all ranks together, minimum number of messages of each rank, and maximum
#: number of octets in total.
_MESSAGES, _LEAST, _OCTETS = 16_000, 400, 1 << 27
_PINGS, _PING_OCTETS = 1000, 1 << 25
#: Milliseconds until a rank reports an error for a peer that acknowledges nothing; seconds until a
#: run is ended.
PATIENCE_MS = 15_000
LIMIT_S = 90
#: Additional seconds after which the program is killed if the program does not end a run by itself.
_GRACE_S = 5


def find_hybrid_channel_program() -> Path:
    """Return the path of siwarp-lab-hybrid, which is built only in a checkout.

    Raises:
        BenchError: the program does not exist.

    """
    path = bench_program().parents[2] / "lab" / "siwarp-lab-hybrid"
    if not path.exists():
        raise BenchError(f"{path} is missing: run make build in a checkout")
    return path


def _run_message_channel(channel: str, ranks: int, size: int, limit: int) -> dict[str, Any]:
    connections = {"ud": 0, "rc": ranks, "hybrid": limit}[channel]
    messages = max(2, min(max(_LEAST, _MESSAGES // ranks), _OCTETS // (size * ranks)))
    numbers = [
        *(ranks, size, messages, connections),
        *(0 if channel == "rc" else THRESHOLD, max(2, min(_PINGS, _PING_OCTETS // size))),
        *(PATIENCE_MS, LIMIT_S),
    ]
    process = subprocess.Popen(
        [str(find_hybrid_channel_program()), *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return dict(wait_for_json(process, f"the channel over {CHANNELS[channel]}", LIMIT_S + _GRACE_S))


def _summarize_rounds_for_one_rank(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one rank over all rounds, with the memory of the median round."""
    middle = sorted(rounds, key=lambda sums: sums["pss"])[len(rounds) // 2]
    ranks = middle["ranks"]
    return {
        **memory_of_one_rank(middle),
        "rate": median_and_range(sums["rate"] for sums in rounds),
        "lat": median_and_range(sums["lat"] for sums in rounds),
        "lat_over_rc": middle["lat_over_rc"],
        "connections": middle["connections"] / ranks,
        "refused": middle["refused"] / ranks,
        "rc_share": middle["by_rc"] / (middle["by_ud"] + middle["by_rc"]),
        "again": statistics.mean(sums["again"] for sums in rounds) / ranks,
    }


def _summarize_message_channels(
    ranks: int, size: int, seen: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"ranks": ranks, "size": size}
    row |= {
        channel: _summarize_rounds_for_one_rank(rounds)
        for channel, rounds in seen.items()
        if rounds
    }
    if "rc" in row:
        row["saving"] = {
            name: 1 - row[name]["whole"] / row["rc"]["whole"]
            for name in ("ud", "hybrid")
            if name in row
        }
    return row


def measure_message_channels(
    ranks: Sequence[int] = RANKS,
    sizes: Sequence[int] = (SIZE,),
    rounds: int = 3,
    limit: int = LIMIT,
    progress: Progress | None = None,
    run: Callable[..., dict[str, Any]] = _run_message_channel,
) -> dict[str, Any]:
    """Measure each channel once a round with each number of ranks, in a different order each time.

    A row has ``ranks`` and ``size``; for each channel its octets per rank, ``rate`` (messages per
    second of all ranks), ``lat`` (us, one way, between two ranks), ``rc_share`` of the frames, and
    a rank's ``connections``, ``refused`` and frames sent ``again``; and ``saving``: how much less
    memory the channel needs than RC only, as a fraction of RC's. A channel that failed with a
    number of ranks has the reason in ``errors``.
    """
    rows: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    names = list(CHANNELS)
    steps = len(ranks) * len(sizes) * rounds * len(names)
    done = 0
    for n, size in ((n, size) for n in sorted(ranks) for size in sizes):
        seen: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for turn in range(rounds):
            shift = turn % len(names)
            for name in [*names[shift:], *names[:shift]]:
                try:
                    seen[name].append(run(name, n, size, limit))
                except BenchError as e:
                    errors[f"{name}, {n} ranks, {size} B"] = str(e)
                done += 1
                if progress:
                    progress(done, steps)
        rows.append(_summarize_message_channels(n, size, seen))
    return {
        "channels": names,
        "limit": limit,
        "threshold": THRESHOLD,
        "rows": rows,
        "errors": errors,
    }
