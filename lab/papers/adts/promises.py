# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The promised figures of ADTS: on loopback, on links with delay and loss, and for small files.

Rates are in Mbit/s of file contents; each file has a digest CRC32C. Files are in ``/dev/shm``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.papers.adts.ends import ClientAndServer, EndOptions
from lab.papers.adts.links import Link, LinkShape, Loopback, open_link
from lab.papers.adts.raw_udp import copy_over_raw_udp
from lab.papers.adts.summary import Log, judge_ratio, measure_rounds, summarize_values
from siwarp.bench.runner import run as run_bench

__all__ = [
    "CLEAN",
    "LOSSY",
    "measure_bandwidth_share",
    "measure_file_transfers_over_loopback",
    "measure_put_over_link",
    "measure_small_files",
    "temporary_folder",
    "write_random_file",
]


#: Links with random losses, and the same links without losses.
LOSSY = (LinkShape(50, 13, 0.5), LinkShape(50, 81, 0.1))
CLEAN = (LinkShape(50, 13), LinkShape(50, 81))
#: The link over which small files are copied.
SMALL_FILE_LINK = LinkShape(0, 13)
#: Octets of a small file.
SMALL_FILE = 64 << 10


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder in the memory of this machine, and remove the folder after the block."""
    folder = Path(tempfile.mkdtemp(prefix="siwarp-lab-adts-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_random_file(path: Path, size: int) -> None:
    """Write ``size`` random octets to a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = os.urandom(1 << 20)
    with path.open("wb") as file:
        for at in range(0, size, len(part)):
            file.write(part[: size - at])


def _measure_raw_udp_memory_rate() -> float:
    """Return the rate in Mbit/s of raw UDP with a window, from memory to memory."""
    return float(run_bench("bw", "rd", size=1 << 20, rounds=1, others=False)["floor"]) * 8e3


def measure_file_transfers_over_loopback(size: int, rounds: int, log: Log) -> dict[str, Any]:
    """Measure put and get of one file without delay, over each channel and raw UDP.

    Raises:
        BenchError: a run of the first round failed.

    """
    with temporary_folder() as folder, ClientAndServer(Loopback(), folder) as ends:
        write_random_file(ends.client_folder / "file", size)
        write_random_file(ends.server_folder / "got", size)

        def measure_copy_rate(channel: str, way: str) -> float:
            name = "file" if way == "put" else "got"
            return ends.copy_files(channel, way, [name]).mbit_s

        def measure_raw_udp_copy_rate() -> float:
            return (
                size
                * 8e-6
                / copy_over_raw_udp(ends.client_folder / "file", ends.server_folder / "raw")
            )

        runs: dict[str, Callable[[], float]] = {
            f"{way} {channel}": lambda channel=channel, way=way: measure_copy_rate(channel, way)  # type: ignore[misc]
            for way in ("put", "get")
            for channel in ("tcp", "rc", "rd")
        }
        runs |= {
            "raw UDP, files": measure_raw_udp_copy_rate,
            "raw UDP, memory": _measure_raw_udp_memory_rate,
        }
        found = measure_rounds(runs, rounds, log)
    judged = []
    for way in ("put", "get"):
        tcp, rc, rd = (found[f"{way} {channel}"] for channel in ("tcp", "rc", "rd"))
        judged += [
            judge_ratio(f"{way}: RC to TCP", rc, tcp, 0.8),
            judge_ratio(
                f"{way}: RD to raw UDP with the same files", rd, found["raw UDP, files"], 0.8
            ),
            judge_ratio(f"{way}: RD to raw UDP in memory", rd, found["raw UDP, memory"], 0.8),
            judge_ratio(f"{way}: RD to TCP", rd, tcp, None),
        ]
    return {"line": f"loopback, {size >> 20} MiB", **_summarize_rates(found, judged)}


def _summarize_rates(
    found: dict[str, list[float]], judged: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    rates = {name: summarize_values(values) for name, values in found.items()}
    return {"mbit_s": rates, "ratios": list(judged)}


def measure_put_over_link(
    kind: str, shape: LinkShape, sizes: dict[str, int], rounds: int, log: Log
) -> dict[str, Any]:
    """Measure put of one file over RD, and over TCP with CUBIC and with BBR, on a link.

    ``sizes``: octets of the file for ``rd``, ``cubic`` and ``bbr``.

    Raises:
        BenchError: the link cannot be created, or a run of the first round failed.

    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        link = stack.enter_context(open_link(kind, shape))
        ends = {
            name: stack.enter_context(
                ClientAndServer(link, folder / name, EndOptions(congestion=name))
            )
            for name in ("cubic", "bbr")
        }

        def measure_copy_rate(name: str) -> float:
            pair = ends["cubic" if name == "rd" else name]
            channel = "rd" if name == "rd" else "tcp"
            return pair.copy_files(channel, "put", [f"for-{name}"]).mbit_s

        for name, size in sizes.items():
            write_random_file(
                ends["cubic" if name == "rd" else name].client_folder / f"for-{name}", size
            )
        runs: dict[str, Callable[[], float]] = {
            name: lambda name=name: measure_copy_rate(name)  # type: ignore[misc]
            for name in sizes
        }
        found = measure_rounds(runs, rounds, log)
    rd, cubic = found["rd"], found["cubic"]
    if shape.loss:
        judged = [
            judge_ratio("RD to the rate of the link", rd, [shape.mbit_s] * len(rd), 0.8),
            judge_ratio("RD to TCP with CUBIC", rd, cubic, 3),
        ]
    else:
        judged = [judge_ratio("RD to TCP with CUBIC", rd, cubic, 0.9)]
    if "bbr" in found:
        judged.append(judge_ratio("RD to TCP with BBR", rd, found["bbr"], None))
    return {"line": f"{shape.name} ({kind})", **_summarize_rates(found, judged)}


def measure_bandwidth_share(
    kind: str, shape: LinkShape, seconds: float, rounds: int, log: Log, settle: float = 10
) -> dict[str, Any]:
    """Measure a copy over RD and one over TCP with CUBIC at the same time, on one link.

    The rates are measured for ``seconds`` seconds, after the first ``settle`` seconds.

    Raises:
        BenchError: the link cannot be created, or an end failed.

    """
    found: dict[str, list[float]] = {"rd": [], "cubic": []}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        link = stack.enter_context(open_link(kind, shape))
        pairs = {
            name: stack.enter_context(
                ClientAndServer(link, folder / name, EndOptions(congestion="cubic"))
            )
            for name in found
        }
        for pair in pairs.values():
            write_random_file(
                pair.client_folder / "file", int(shape.mbit_s * 1e6 / 8 * (seconds + settle) * 1.5)
            )
        for turn in range(rounds):
            rates = _measure_simultaneous_rates(pairs, settle, seconds)
            for name, rate in rates.items():
                found[name].append(rate)
                if not rate:
                    log.add_warning(f"round {turn + 1} of {rounds}: nothing was copied over {name}")
            log.print_progress(f"round {turn + 1} of {rounds}: {rates}")
    both = [rd + cubic for rd, cubic in zip(found["rd"], found["cubic"], strict=True)]
    judged = [judge_ratio("share of CUBIC beside RD", found["cubic"], both, 1 / 3)]
    return {
        "line": f"{shape.name} ({kind}), both at the same time",
        **_summarize_rates(found, judged),
    }


def _measure_simultaneous_rates(
    pairs: dict[str, ClientAndServer], settle: float, seconds: float
) -> dict[str, float]:
    for name, pair in pairs.items():
        (pair.server_folder / "file").unlink(missing_ok=True)
        pair.client.send_request(
            "begin",
            address=pair.address,
            channel="rd" if name == "rd" else "tcp",
            way="put",
            files=[(str(pair.client_folder / "file"), "file")],
        )
    time.sleep(settle)
    before = {name: pair.client.send_request("progress") for name, pair in pairs.items()}
    time.sleep(seconds)
    after = {name: pair.client.send_request("progress") for name, pair in pairs.items()}
    for pair in pairs.values():
        pair.client.send_request("stop")
        for path in pair.server_folder.iterdir():
            path.unlink()
    return {
        name: (after[name]["octets"] - before[name]["octets"])
        * 8e-6
        / (after[name]["time"] - before[name]["time"])
        for name in pairs
    }


def measure_small_files(
    files: int, each: int, rounds: int, channels: Sequence[str], log: Log
) -> dict[str, Any]:
    """Measure the copying of many small files in one session, and in a session per file.

    ``each``: the number of files that are copied in a session per file, which takes long.

    Raises:
        BenchError: the link cannot be created, or a run of the first round failed.

    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        link: Link = stack.enter_context(open_link("wan", SMALL_FILE_LINK))
        ends = stack.enter_context(ClientAndServer(link, folder, EndOptions(congestion="cubic")))
        for i in range(files):
            write_random_file(ends.client_folder / "all" / f"{i:05}", SMALL_FILE)
        for i in range(each):
            write_random_file(ends.client_folder / f"{i:05}", SMALL_FILE)
        names = [f"{i:05}" for i in range(each)]

        def copy_in_one_session(channel: str) -> float:
            copied = ends.copy_files(channel, "put", ["all"], recursive=True)
            return files / copied.seconds

        def copy_in_session_per_file(channel: str) -> float:
            return each / ends.copy_files(channel, "put", names, sessions="each").seconds

        runs: dict[str, Callable[[], float]] = {}
        for channel in channels:
            runs[f"{channel}, one session"] = lambda channel=channel: copy_in_one_session(channel)  # type: ignore[misc]
            runs[f"{channel}, a session a file"] = lambda channel=channel: copy_in_session_per_file(
                channel
            )  # type: ignore[misc]
        found = measure_rounds(runs, rounds, log)
    judged = [
        judge_ratio(
            f"{channel.upper()}: one session to a session a file",
            found[f"{channel}, one session"],
            found[f"{channel}, a session a file"],
            5,
        )
        for channel in channels
    ]
    rates = {name: summarize_values(values) for name, values in found.items()}
    return {
        "line": f"{SMALL_FILE_LINK.name} (wan), {files} files of {SMALL_FILE >> 10} KiB "
        f"in one session, {each} with a session each",
        "files_s": rates,
        "ratios": judged,
    }
