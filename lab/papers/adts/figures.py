# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The figures of the paper, repeated with ADTS: seconds or rates by size, delay and unit.

Each function returns ``line`` (what was measured, in words), ``axis``, ``unit``, ``curves`` (for
each curve its points: x and the summary of the rounds) and ``ratios``, which is empty.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lab.papers.adts.ends import ClientAndServer, CopyResult, EndOptions
from lab.papers.adts.links import LinkShape, Loopback, open_link
from lab.papers.adts.promises import temporary_folder, write_random_file
from lab.papers.adts.summary import Log, measure_rounds, summarize_values
from siwarp.ulp.adts import handshake

__all__ = [
    "CHANNELS",
    "measure_basic_and_optimized_sessions",
    "measure_copy_seconds_by_file_size",
    "measure_copying_of_trace_files",
    "measure_cpu_time_by_file_size",
    "measure_put_rate_by_unit_size",
    "measure_rates_by_link_delay",
    "zipf_file_sizes",
]

MIB = 1 << 20

#: All channels of ADTS; UD is the paper's FTP-UDP. UD is far slower than the others, so its files
#: have at most MAX_MIB_OVER_UD MiB.
CHANNELS = tuple(handshake.CHANNELS)
MAX_MIB_OVER_UD = 16
#: Delays of one direction in ms: those of the paper, except 10 us, because the relay that emulates
#: the link takes longer than 10 us itself.
DELAYS = (0.0, 0.1, 1.0, 10.0)
#: Sizes in MiB of the file that put or get copies.
SIZES = (1, 4, 16, 64, 256)
#: Sizes of a unit in octets.
UNITS = (2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 4 << 20)
#: The exponent of the Zipf trace, and its number of files.
ALPHA, TRACE_FILES = 1.2, 32


def _make_figure_result(
    line: str, axis: str, unit: str, points: Sequence[tuple[float, dict[str, list[float]]]]
) -> dict[str, Any]:
    """Return the results of a figure, whose curves have a point for each x."""
    curves: dict[str, list[Any]] = {}
    for x, found in points:
        for name, values in found.items():
            curves.setdefault(name, []).append([x, summarize_values(values)])
    return {"line": line, "axis": axis, "unit": unit, "curves": curves, "ratios": []}


def _make_measurement_per_name(
    measure: Callable[[str], float], names: Iterable[str]
) -> dict[str, Callable[[], float]]:
    """Return, for each name, a function without parameters that calls ``measure`` with the name."""
    return {name: functools.partial(measure, name) for name in names}


@contextlib.contextmanager
def _client_and_server_over_wan(shape: LinkShape, options: EndOptions) -> Iterator[ClientAndServer]:
    """Provide a client and a server over a link of siwarp wan."""
    with (
        temporary_folder() as folder,
        open_link("wan", shape) as link,
        ClientAndServer(link, folder, options) as ends,
    ):
        yield ends


def _file_copy_functions_by_channel(
    ends: ClientAndServer,
    name: str,
    way: str,
    property_of: Callable[[CopyResult], float],
    channels: Sequence[str],
) -> dict[str, Callable[[], float]]:
    """Return functions that copy a file, one per channel, and return a property of the result."""

    def copy_file(channel: str) -> float:
        return property_of(ends.copy_files(channel, way, [name]))

    return _make_measurement_per_name(copy_file, channels)


def _channels_practical_for_size(size: int) -> list[str]:
    """Return the channels that need only seconds to copy a file of ``size`` MiB."""
    return [channel for channel in CHANNELS if channel != "ud" or size <= MAX_MIB_OVER_UD]


def measure_copy_seconds_by_file_size(
    way: str, rounds: int, scale: float, log: Log
) -> dict[str, Any]:
    """Measure the seconds of put or get by the size of the file, without delay."""
    points = []
    with temporary_folder() as folder, ClientAndServer(Loopback(), folder) as ends:
        for size in SIZES:
            write_random_file(
                (ends.client_folder if way == "put" else ends.server_folder) / "file",
                int(size * MIB * scale),
            )
            runs = _file_copy_functions_by_channel(
                ends,
                "file",
                way,
                lambda copied: copied.transferring,
                _channels_practical_for_size(size),
            )
            points.append((float(size), measure_rounds(runs, rounds, log)))
    return _make_figure_result(f"{way} of one file on loopback", "MiB", "s", points)


def measure_rates_by_link_delay(size: int, rounds: int, scale: float, log: Log) -> dict[str, Any]:
    """Measure the rate of get by the delay of the link, for files of ``size`` MiB."""
    points = []
    for delay in DELAYS:
        # A link with a rate needs a relay, so with this rate, which is higher than any relay
        # reaches, the packets pass a relay also in the measurement without delay.
        shape = LinkShape(10_000, delay)
        with _client_and_server_over_wan(shape, EndOptions(congestion="cubic")) as ends:
            write_random_file(ends.server_folder / "file", int(size * MIB * scale))
            write_random_file(ends.server_folder / "small", int(MAX_MIB_OVER_UD * MIB * scale))

            def measure_get_rate(channel: str, ends: ClientAndServer = ends) -> float:
                return ends.copy_files(
                    channel, "get", ["small" if channel == "ud" else "file"]
                ).mbit_s

            runs = _make_measurement_per_name(measure_get_rate, CHANNELS)
            # The chart's axis is logarithmic: no delay is shown as 10 us.
            points.append((delay or 0.01, measure_rounds(runs, rounds, log)))
    return _make_figure_result(
        f"get of one file of {size} MiB (UD: {MAX_MIB_OVER_UD} MiB) over the relay of siwarp wan",
        "ms each way",
        "Mbit/s",
        points,
    )


def measure_put_rate_by_unit_size(
    delay: float, rounds: int, scale: float, log: Log
) -> dict[str, Any]:
    """Measure the rate of put by the octets of a unit; each session has 8 MiB for units."""
    points = []
    for unit in UNITS:
        shape = LinkShape(10_000, delay) if delay else LinkShape()
        window = min(256, max(4, 8 * MIB // unit))
        options = EndOptions(congestion="cubic", unit=unit, window=window)
        with _client_and_server_over_wan(shape, options) as ends:
            # Transfers in small units are slow, so a smaller file is enough for a measurement.
            write_random_file(ends.client_folder / "file", int(min(64 * MIB, 4096 * unit) * scale))
            runs = _file_copy_functions_by_channel(
                ends, "file", "put", lambda copied: copied.mbit_s, ("rd", "rc")
            )
            points.append((unit / 1024, measure_rounds(runs, rounds, log)))
    words = f"{delay:g} ms each way" if delay else "loopback"
    return _make_figure_result(f"put of one file, {words}", "KiB", "Mbit/s", points)


def measure_basic_and_optimized_sessions(rounds: int, scale: float, log: Log) -> dict[str, Any]:
    """Measure the seconds for connecting and for data by the number of files of 1 MiB.

    Basic: a session for each file, no disk thread, and the smallest window, four units. Optimized:
    one session, a disk thread, and a window of eight units. The link delays each direction by 1 ms.
    """
    points = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        link = stack.enter_context(open_link("wan", LinkShape(10_000, 1)))
        basic = EndOptions(window=4, disk_thread=False)
        pairs = {
            "basic": stack.enter_context(ClientAndServer(link, folder / "basic", basic)),
            "optimized": stack.enter_context(ClientAndServer(link, folder / "optimized")),
        }
        for count in (1, 2, 4, 8, 16):
            for pair in pairs.values():
                for i in range(count):
                    write_random_file(pair.client_folder / str(count) / str(i), int(MIB * scale))
            copied: dict[str, list[CopyResult]] = {name: [] for name in pairs}

            def copy_and_measure_seconds(
                name: str, count: int = count, copied: Any = copied
            ) -> float:
                pair = pairs[name]
                if name == "basic":
                    names = [f"{count}/{i}" for i in range(count)]
                    (pair.server_folder / str(count)).mkdir(exist_ok=True)
                    done = pair.copy_files("rd", "put", names, sessions="each")
                else:
                    done = pair.copy_files("rd", "put", [str(count)], recursive=True)
                copied[name].append(done)
                return done.seconds

            measure_rounds(_make_measurement_per_name(copy_and_measure_seconds, pairs), rounds, log)
            found = {}
            for name, every in copied.items():
                found[f"{name}, connecting"] = [done.connecting for done in every]
                found[f"{name}, data"] = [done.transferring for done in every]
            points.append((float(count), found))
    return _make_figure_result("put of files of 1 MiB over RD, 1 ms each way", "files", "s", points)


def zipf_file_sizes(total: int, files: int = TRACE_FILES, alpha: float = ALPHA) -> list[int]:
    """Return file sizes proportional to 1 / i ** alpha, for i from 1, with the given total."""
    weights = [1 / (i + 1) ** alpha for i in range(files)]
    return [max(1, int(total * weight / sum(weights))) for weight in weights]


def measure_copying_of_trace_files(
    total: int, rounds: int, scale: float, log: Log
) -> dict[str, Any]:
    """Measure the seconds for replicating the files of a Zipf trace by the delay of the link."""
    points = []
    for delay in DELAYS:
        shape = LinkShape(10_000, delay)
        with _client_and_server_over_wan(shape, EndOptions(congestion="cubic")) as ends:
            for i, size in enumerate(zipf_file_sizes(int(total * scale))):
                write_random_file(ends.client_folder / "trace" / str(i), size)

            def measure_file_copy_seconds(channel: str, ends: ClientAndServer = ends) -> float:
                return ends.copy_files(channel, "put", ["trace"], recursive=True).seconds

            runs = _make_measurement_per_name(
                measure_file_copy_seconds, _channels_practical_for_size(total // MIB)
            )
            points.append((delay or 0.01, measure_rounds(runs, rounds, log)))
    return _make_figure_result(
        f"put of {TRACE_FILES} files with {total // MIB} MiB, sizes by Zipf's law (alpha {ALPHA})",
        "ms each way",
        "s",
        points,
    )


def measure_cpu_time_by_file_size(rounds: int, scale: float, log: Log) -> dict[str, Any]:
    """Measure the CPU time for each MiB of put, client and server, by the size of the file."""
    points = []
    with temporary_folder() as folder, ClientAndServer(Loopback(), folder) as ends:
        for size in (MAX_MIB_OVER_UD, 128, 256, 512):
            write_random_file(ends.client_folder / "file", int(size * MIB * scale))
            copied: dict[str, list[CopyResult]] = {
                channel: [] for channel in _channels_practical_for_size(size)
            }

            def copy_and_measure_seconds(channel: str, copied: Any = copied) -> float:
                copied[channel].append(ends.copy_files(channel, "put", ["file"]))
                return float(copied[channel][-1].transferring)

            measure_rounds(
                _make_measurement_per_name(copy_and_measure_seconds, copied), rounds, log
            )
            found = {}
            for channel, every in copied.items():
                for end in ("client", "server"):
                    found[f"{channel}, {end}"] = [
                        1e3 * getattr(done, f"{end}_cpu") * MIB / done.octets for done in every
                    ]
            points.append((float(size), found))
    return _make_figure_result(
        "put of one file on loopback", "MiB", "ms of CPU time for each MiB", points
    )
