# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Runs of siwarp-lab-verbs: kinds of measurements that `siwarp bench` does not have.

Each kind measures siwarp only. Some kinds are compared with another run of siwarp, the floor, for
example with the same run without a flood.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.unreliable import cpu_load_warning, spread_warning
from siwarp.bench.plan import Plan, count_datagrams_fitting_receive_buffer
from siwarp.bench.runner import (
    LIMIT_S,
    BenchError,
    Progress,
    Side,
    bench_program_path,
    build_bench_process_arguments,
    cpu_for_client_or_server,
    make_progress_counter,
    run_client_and_server,
    warmup_message_count,
)
from siwarp.bench.trust import minimum_and_maximum

__all__ = [
    "KINDS",
    "MeasurementKind",
    "create_measurement_plan",
    "measure_in_rounds",
    "run_measurement_once",
]


@dataclass(frozen=True)
class MeasurementKind:
    """A kind of measurement that siwarp-lab-verbs makes.

    Attributes:
        iters: messages, or samples, of a run; on a quiet machine a run takes about 0.1 s.
        qp, op, size: as in ``Plan``.
        floor: the run for comparison; empty: none.
        others: further runs of each round.
        sides: the processes of a run.
        settings: the settings of a run, as environment variables, by its name.
        tail: the ratio to the floor is the larger of the ratios of medians and of p99.
    """

    iters: int
    qp: str = "rc"
    op: str = "send"
    size: int = 64
    floor: str = ""
    others: tuple[str, ...] = ()
    sides: tuple[str, ...] = ("server", "client")
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tail: bool = False


#: The kinds of measurements; all results are in microseconds. done: from posting a Write to its
#: completion. answer: half a round trip of Sends whose completions are awaited. watched: a Write,
#: one way, into memory that the target reads while it polls once per Write. connect: time per RC
#: connection that is established and closed, with ``depth`` connections in flight, beside TCP
#: sockets; a run is short because a firewall remembers each connection for two minutes, and drops
#: packets while its table is full. fair: round trips on 200 quiet QPs, one after another, during a
#: flood of messages of ``size`` octets on another QP. crowd: latency with 10,000 idle QPs of the
#: same type. onesided: additional delay until a Write is visible in a process that does not poll.
#: lanes: a Write followed by a Read, of a queue pair whose process polls the CQ of another queue
#: pair, on a device with two lanes and on a device with one. reg: register and deregister a region
#: of ``size`` octets.
KINDS = {
    "done": MeasurementKind(20_000, op="write"),
    "answer": MeasurementKind(20_000),
    "watched": MeasurementKind(5_000, op="write"),
    "connect": MeasurementKind(1_000, floor="polling"),
    "fair": MeasurementKind(2_000, size=4096, floor="quiet"),
    "crowd": MeasurementKind(20_000, qp="ud", floor="alone"),
    "onesided": MeasurementKind(100, op="write", size=8, others=("polling", "idle")),
    "lanes": MeasurementKind(
        10_000,
        op="read",
        floor="one lane",
        settings={"one lane": {"SIWARP_LANES": "1"}, "ours": {"SIWARP_LANES": "2"}},
        tail=True,
    ),
    "reg": MeasurementKind(20_000, size=1 << 30, sides=("client",)),
}


def create_measurement_plan(
    kind: str, qp: str = "", iters: int | None = None, depth: int = 1
) -> Plan:
    """Return the plan for runs of one kind of measurement.

    ``qp`` matters only for the kinds fair (ud or rc) and crowd (ud, rc or rd), ``depth``
    (connections in flight) only for kind connect.
    """
    of = KINDS[kind]
    qp = qp or of.qp
    if kind == "fair":
        depth = (
            max(1, min(64, count_datagrams_fitting_receive_buffer(of.size))) if qp == "ud" else 64
        )
    return Plan(kind, qp, of.op, of.size, iters or of.iters, depth, "poll", "c", 1, 1)


def run_measurement_once(
    plan: Plan, what: str = "ours", env: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Run both processes of a measurement once; return ``value``, ``p99`` (us) and ``n``.

    Raises:
        BenchError: the run failed, or this build has no siwarp-lab-verbs.

    """
    path = bench_program_path().parents[2] / "lab" / "siwarp-lab-verbs"
    if not path.is_file():
        raise BenchError("this build has no siwarp-lab-verbs: run make build in a checkout")
    own = {"run": what, "warmup": warmup_message_count(plan), "limit": LIMIT_S}
    sides = [
        Side(
            side,
            [
                str(path),
                *build_bench_process_arguments(
                    plan, side, cpu=cpu_for_client_or_server(side), **own
                ),
            ],
            {**os.environ, **KINDS[plan.kind].settings.get(what, {}), **(env or {})},
        )
        for side in KINDS[plan.kind].sides
    ]
    return run_client_and_server(f"{plan.kind}, {what}", sides, LIMIT_S)


def _measure_round(plan: Plan, env: Mapping[str, str] | None, turn: int) -> dict[str, float]:
    of = KINDS[plan.kind]
    runs = [("floor", of.floor)] if of.floor else []
    runs.append(("ours", "ours"))
    runs += [(name, name) for name in of.others]
    measured = {
        name: run_measurement_once(plan, what, env)
        for name, what in (runs if turn % 2 else runs[::-1])
    }
    values = {name: each["value"] for name, each in measured.items()}
    if plan.kind == "onesided":
        values["not polling"] = values["ours"]
        values["ours"] -= values["polling"]
    if of.floor:
        values["ratio"] = values["ours"] / values["floor"]
    if of.tail:
        values["p99 ratio"] = measured["ours"]["p99"] / measured["floor"]["p99"]
        values["ratio"] = max(values["ratio"], values["p99 ratio"])
    return values


def measure_in_rounds(
    kind: str,
    qp: str = "",
    *,
    depth: int = 1,
    rounds: int = 7,
    iters: int | None = None,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a kind in rounds, in which siwarp alternates with the run for comparison, if any.

    Returns:
        ``kind``, ``qp``, ``op``, ``size``, ``iters``, ``depth``, ``unit``, ``ours`` and ``floor``
        (medians; None: no floor), ``ratio_median`` and ``spans`` (of the rounds' ratios),
        ``floors`` (empty), ``rounds`` (every round's values by name), ``unreliable``.

    Raises:
        BenchError: a run failed.

    """
    plan = create_measurement_plan(kind, qp, iters, depth)
    step = make_progress_counter(progress, rounds)
    doubt = cpu_load_warning()
    found = []
    for turn in range(rounds):
        found.append(_measure_round(plan, env, turn))
        step()
    ratios = [each["ratio"] for each in found if "ratio" in each]

    def median_of(name: str) -> float | None:
        return statistics.median(each[name] for each in found) if name in found[0] else None

    return {
        **{name: getattr(plan, name) for name in ("kind", "qp", "op", "size", "iters", "depth")},
        "unit": "us",
        "ours": median_of("ours"),
        "floor": median_of("floor"),
        "ratio_median": median_of("ratio"),
        "spans": {"ratio": minimum_and_maximum(ratios)} if ratios else {},
        "floors": {},
        "rounds": found,
        "unreliable": list(
            filter(None, (doubt, spread_warning(ratios or [abs(each["ours"]) for each in found])))
        ),
    }
