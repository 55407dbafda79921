# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""dask.distributed over siwarp compared with its own TCP comm, alternating: ``make lab-dask``.

Each round measures for each of the two comms: round trips of small messages and the bandwidth of
arrays between two processes; and with a cluster of two worker processes, the rate of tasks that do
nothing, and a shuffle, in which half of an array changes its worker. ``--part debian`` runs the
comm tests of Debian's package instead (debian.py).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import typer

from lab import command
from lab.dask import debian
from lab.unreliable import cpu_load_warning
from siwarp.base.show import print_table
from siwarp.bench.cli import show_progress_bar
from siwarp.bench.runner import make_progress_counter
from siwarp.bench.sizes import parse_octet_count

app = command.create_study_application()

COMMS = ("tcp", "siw")
PARTS = ("rates", "debian")
ROUND_TRIPS = 2000
TASKS = 2000
#: Octets of an array, and number of arrays in a measurement.
ARRAYS = {"256 KiB": (256 << 10, 512), "1 MiB": (1 << 20, 512), "64 MiB": (64 << 20, 8)}


def _run_answering_server(comm: str, addresses: Any, ended: Any) -> None:
    """Answer each message with a short one until ``ended`` is set; runs in a process of its own."""
    from distributed.comm import CommClosedError, listen

    async def answer_each_message(connection: Any) -> None:
        try:
            while True:
                await connection.read()
                await connection.write("received")
        except CommClosedError:
            pass

    async def serve_until_ended() -> None:
        async with listen(f"{comm}://127.0.0.1", answer_each_message) as listener:
            addresses.put(listener.contact_address)
            while not ended.is_set():
                await asyncio.sleep(0.1)

    asyncio.run(serve_until_ended())


async def _measure_messages(address: str) -> dict[str, float]:
    import numpy as np
    from distributed.comm import connect
    from distributed.protocol import to_serialize

    connection = await connect(address)

    async def time_round_trips(message: Any, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            await connection.write(message)
            await connection.read()
        return time.perf_counter() - began

    await time_round_trips({"n": 1}, 200)
    found = {"round trips/s": ROUND_TRIPS / await time_round_trips({"n": 1}, ROUND_TRIPS)}
    for name, (size, count) in ARRAYS.items():
        seconds = await time_round_trips([to_serialize(np.ones(size, dtype="u1"))], count)
        found[f"GB/s, {name}"] = size * count / seconds / 1e9
    await connection.close()
    return found


def measure_messages(comm: str) -> dict[str, float]:
    """Return round trips per second and bandwidths of a comm between two processes."""
    context = multiprocessing.get_context("spawn")
    addresses, ended = context.Queue(), context.Event()
    process = context.Process(target=_run_answering_server, args=(comm, addresses, ended))
    process.start()
    try:
        return asyncio.run(_measure_messages(addresses.get(timeout=60)))
    finally:
        ended.set()
        process.join()


def measure_cluster_tasks_and_shuffle(comm: str, octets: int) -> dict[str, float]:
    """Return tasks per second, and the bandwidth of a shuffle of ``octets``, on two workers."""
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    found = {}
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol=comm,
            host="127.0.0.1",
            dashboard_address=None,
            silence_logs="ERROR",
        ) as cluster,
        Client(cluster) as client,
    ):
        client.gather(client.map(abs, range(100), pure=False))
        began = time.perf_counter()
        client.gather(client.map(abs, range(TASKS), pure=False))
        found["tasks/s"] = TASKS / (time.perf_counter() - began)
        edge = int((octets / 8) ** 0.5)
        matrix = client.persist(da.ones((edge, edge), chunks=(edge // 16, edge)))
        wait(matrix)
        began = time.perf_counter()
        wait(client.persist(matrix.rechunk((edge, edge // 16))))
        found["GB/s, shuffle"] = matrix.nbytes / (time.perf_counter() - began) / 1e9
    return found


def measure_rounds(rounds: int, octets: int, step: Callable[[], None]) -> dict[str, Any]:
    """Return the values of all rounds, by figure and comm, and the reasons to doubt them."""
    busy = cpu_load_warning()
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for comm in COMMS if number % 2 == 0 else COMMS[::-1]:
            for name, value in (
                measure_messages(comm) | measure_cluster_tasks_and_shuffle(comm, octets)
            ).items():
                values.setdefault(name, {each: [] for each in COMMS})[comm].append(value)
            step()
    return {"figures": values, "unreliable": [busy] if busy else []}


def print_medians_and_ratios(found: dict[str, Any]) -> None:
    """Print the medians of both comms, and the median and the range of the rounds' ratios."""
    rows = []
    for name, by_comm in found["figures"].items():
        ratios = [siw / tcp for siw, tcp in zip(by_comm["siw"], by_comm["tcp"], strict=True)]
        medians = [f"{statistics.median(by_comm[comm]):.3g}" for comm in ("siw", "tcp")]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        rows.append([name, *medians, f"{statistics.median(ratios):.2f}", spread])
    print_table(["what", "siw", "tcp", "ratio", "range of the rounds"], rows, right=[1, 2, 3])
    for doubt in found["unreliable"]:
        print(f"unreliable: {doubt}")


@app.command()
def main(
    rounds: int = typer.Option(7, "--rounds", min=1, help="Number of rounds."),
    shuffle: str = typer.Option("2G", "--shuffle", help="Octets of the shuffled array."),
    parts: str = typer.Option(
        "rates", "--part", help="rates, or debian: the comm tests of Debian's package."
    ),
    output: str = command.OUTPUT,
    as_json: bool = command.AS_JSON,
) -> None:
    """Rates and bandwidths of dask.distributed over siwarp and over its own TCP comm."""
    try:
        octets = parse_octet_count(shuffle)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--shuffle") from None
    wanted = command.parse_names(parts, PARTS, "--part")
    status = debian.run_comm_tests() if "debian" in wanted else 0
    if "rates" not in wanted:
        raise typer.Exit(status)
    with show_progress_bar("dask") as progress:
        step = make_progress_counter(progress, rounds * len(COMMS))
        found = measure_rounds(rounds, octets, step)
    command.output_results(found, print_medians_and_ratios, as_json=as_json, output=output)
    raise typer.Exit(status)


if __name__ == "__main__":
    command.run_study(app, "dask")
