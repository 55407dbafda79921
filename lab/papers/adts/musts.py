# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The promised figures of ADTS: without delay, on lines with delay and loss, and for small files.

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

from lab.papers.adts.ends import EndOptions, Ends
from lab.papers.adts.lines import Line, LineShape, Loopback, open_line
from lab.papers.adts.raw import copy_over_raw_udp
from lab.papers.adts.summary import Log, judge_ratio, measure_rounds, summarize_values
from siwarp.bench.runner import run as run_bench

__all__ = [
    "CLEAN",
    "LOSSY",
    "fill",
    "measure_lan",
    "measure_line",
    "measure_share",
    "measure_small",
    "open_folder",
]


#: The lines with random losses, and the same lines without.
LOSSY = (LineShape(50, 13, 0.5), LineShape(50, 81, 0.1))
CLEAN = (LineShape(50, 13), LineShape(50, 81))
#: The line of the small files.
SMALL_LINE = LineShape(0, 13)
#: Octets of a small file.
SMALL = 64 << 10


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Create a folder in the memory of this machine; remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="siwarp-lab-adts-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(path: Path, size: int) -> None:
    """Write a file of random octets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = os.urandom(1 << 20)
    with path.open("wb") as file:
        for at in range(0, size, len(part)):
            file.write(part[: size - at])


def _raw_udp_mbit_s() -> float:
    """Return the rate of raw UDP with a window, from memory to memory."""
    return float(run_bench("bw", "rd", size=1 << 20, rounds=1, others=False)["floor"]) * 8e3


def measure_lan(size: int, rounds: int, log: Log) -> dict[str, Any]:
    """Measure put and get of one file without delay, over each channel and raw UDP.

    Raises:
        BenchError: a run of the first round failed.

    """
    with open_folder() as folder, Ends(Loopback(), folder) as ends:
        fill(ends.here / "file", size)
        fill(ends.there / "got", size)

        def copy(channel: str, way: str) -> float:
            name = "file" if way == "put" else "got"
            return ends.copy(channel, way, [name]).mbit_s

        def copy_raw() -> float:
            return size * 8e-6 / copy_over_raw_udp(ends.here / "file", ends.there / "raw")

        runs: dict[str, Callable[[], float]] = {
            f"{way} {channel}": lambda channel=channel, way=way: copy(channel, way)  # type: ignore[misc]
            for way in ("put", "get")
            for channel in ("tcp", "rc", "rd")
        }
        runs |= {"raw UDP, files": copy_raw, "raw UDP, memory": _raw_udp_mbit_s}
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
    return {"line": f"loopback, {size >> 20} MiB", **_result(found, judged)}


def _result(found: dict[str, list[float]], judged: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rates = {name: summarize_values(values) for name, values in found.items()}
    return {"mbit_s": rates, "ratios": list(judged)}


def measure_line(
    kind: str, shape: LineShape, sizes: dict[str, int], rounds: int, log: Log
) -> dict[str, Any]:
    """Measure put of one file over RD, and over TCP with CUBIC and with BBR, on a line.

    ``sizes``: octets of the file for ``rd``, ``cubic`` and ``bbr``.

    Raises:
        BenchError: the line cannot be created, or a run of the first round failed.

    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(open_folder())
        line = stack.enter_context(open_line(kind, shape))
        ends = {
            name: stack.enter_context(Ends(line, folder / name, EndOptions(congestion=name)))
            for name in ("cubic", "bbr")
        }

        def copy(name: str) -> float:
            pair = ends["cubic" if name == "rd" else name]
            channel = "rd" if name == "rd" else "tcp"
            return pair.copy(channel, "put", [f"for-{name}"]).mbit_s

        for name, size in sizes.items():
            fill(ends["cubic" if name == "rd" else name].here / f"for-{name}", size)
        runs: dict[str, Callable[[], float]] = {
            name: lambda name=name: copy(name)  # type: ignore[misc]
            for name in sizes
        }
        found = measure_rounds(runs, rounds, log)
    rd, cubic = found["rd"], found["cubic"]
    if shape.loss:
        judged = [
            judge_ratio("RD to the line's rate", rd, [shape.mbit_s] * len(rd), 0.8),
            judge_ratio("RD to TCP with CUBIC", rd, cubic, 3),
        ]
    else:
        judged = [judge_ratio("RD to TCP with CUBIC", rd, cubic, 0.9)]
    if "bbr" in found:
        judged.append(judge_ratio("RD to TCP with BBR", rd, found["bbr"], None))
    return {"line": f"{shape.name} ({kind})", **_result(found, judged)}


def measure_share(
    kind: str, shape: LineShape, seconds: float, rounds: int, log: Log, settle: float = 10
) -> dict[str, Any]:
    """Measure a copy over RD and one over TCP with CUBIC at the same time, on one line.

    The rates are those of ``seconds`` after the first ``settle`` seconds.

    Raises:
        BenchError: the line cannot be created, or an end failed.

    """
    found: dict[str, list[float]] = {"rd": [], "cubic": []}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(open_folder())
        line = stack.enter_context(open_line(kind, shape))
        pairs = {
            name: stack.enter_context(Ends(line, folder / name, EndOptions(congestion="cubic")))
            for name in found
        }
        for pair in pairs.values():
            fill(pair.here / "file", int(shape.mbit_s * 1e6 / 8 * (seconds + settle) * 1.5))
        for turn in range(rounds):
            rates = _share_once(pairs, settle, seconds)
            for name, rate in rates.items():
                found[name].append(rate)
                if not rate:
                    log.doubt(f"round {turn + 1} of {rounds}: nothing was copied over {name}")
            log.tell(f"round {turn + 1} of {rounds}: {rates}")
    both = [rd + cubic for rd, cubic in zip(found["rd"], found["cubic"], strict=True)]
    judged = [judge_ratio("share of CUBIC beside RD", found["cubic"], both, 1 / 3)]
    return {"line": f"{shape.name} ({kind}), both at the same time", **_result(found, judged)}


def _share_once(pairs: dict[str, Ends], settle: float, seconds: float) -> dict[str, float]:
    for name, pair in pairs.items():
        (pair.there / "file").unlink(missing_ok=True)
        pair.client.ask(
            "begin",
            address=pair.address,
            channel="rd" if name == "rd" else "tcp",
            way="put",
            files=[(str(pair.here / "file"), "file")],
        )
    time.sleep(settle)
    before = {name: pair.client.ask("progress") for name, pair in pairs.items()}
    time.sleep(seconds)
    after = {name: pair.client.ask("progress") for name, pair in pairs.items()}
    for pair in pairs.values():
        pair.client.ask("stop")
        for path in pair.there.iterdir():
            path.unlink()
    return {
        name: (after[name]["octets"] - before[name]["octets"])
        * 8e-6
        / (after[name]["time"] - before[name]["time"])
        for name in pairs
    }


def measure_small(
    files: int, each: int, rounds: int, channels: Sequence[str], log: Log
) -> dict[str, Any]:
    """Measure many small files on a line with delay: in one session, and with a session a file.

    ``each``: the number of files that are copied with a session for each, because they take long.

    Raises:
        BenchError: the line cannot be created, or a run of the first round failed.

    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(open_folder())
        line: Line = stack.enter_context(open_line("wan", SMALL_LINE))
        ends = stack.enter_context(Ends(line, folder, EndOptions(congestion="cubic")))
        for i in range(files):
            fill(ends.here / "all" / f"{i:05}", SMALL)
        for i in range(each):
            fill(ends.here / f"{i:05}", SMALL)
        names = [f"{i:05}" for i in range(each)]

        def keep_session(channel: str) -> float:
            copied = ends.copy(channel, "put", ["all"], recursive=True)
            return files / copied.seconds

        def open_session_a_file(channel: str) -> float:
            return each / ends.copy(channel, "put", names, sessions="each").seconds

        runs: dict[str, Callable[[], float]] = {}
        for channel in channels:
            runs[f"{channel}, one session"] = lambda channel=channel: keep_session(channel)  # type: ignore[misc]
            runs[f"{channel}, a session a file"] = lambda channel=channel: open_session_a_file(
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
        "line": f"{SMALL_LINE.name} (wan), {files} files of {SMALL >> 10} KiB in one session, "
        f"{each} with a session each",
        "files_s": rates,
        "ratios": judged,
    }
