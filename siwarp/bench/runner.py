# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Measures raw sockets (the floor) and siwarp alternately, each with two processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siwarp.bench.plan import (
    Floors,
    Plan,
    PlanOptions,
    comparison_runs_of_plan,
    make_bench_plan,
    make_raw_socket_floor_plan,
    remove_losses_from_fault_plan,
)
from siwarp.bench.trust import floor_spread_warning, minimum_and_maximum

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "FIRST_PROBE_MESSAGES",
    "ITERS",
    "BenchError",
    "LostError",
    "Progress",
    "Side",
    "SlowError",
    "Variant",
    "bench_program_path",
    "build_bench_process_arguments",
    "cpu_for_client_or_server",
    "make_progress_counter",
    "process_exit_reason",
    "raise_if_process_failed",
    "run",
    "run_client_and_server",
    "run_variant",
    "seconds_per_message",
    "warmup_message_count",
]

#: Seconds after which the processes of a run exit by themselves, and additional seconds until they
#: are killed.
LIMIT_S = 20
GRACE_S = 5
#: Planned duration in seconds of the measured part of a run.
TARGET_S = 0.15
#: Messages of the first probe, and the maximum duration of the second probe in seconds. The second
#: probe has the number of messages in ITERS.
FIRST_PROBE_MESSAGES, PROBE_S = 16, 1.0
#: The second probe is left out if it would take more than 1/PROBES of the remaining time.
PROBES = 20
#: Maximum planned duration of a run in seconds, less than LIMIT_S, as the machine may become busy.
LONGEST_S = 4
#: Maximum number of times that a run, after exceeding its time limit, is repeated with an eighth
#: of its messages.
SHORTER = 2
#: The exit status of siwarp-bench and end.py if messages were lost.
EXIT_LOST = 3
#: The message of a process whose peer process has failed. The peer itself reports the reason.
PEER_ENDED = "the peer process has ended"

#: The advice in the message about a run that exceeded its time limit.
_SLOW_RUN_ADVICE = "reduce the load of the machine, or --size and --depth"

#: The percentiles of single samples that a run of kind lat reports.
TAILS = ("p99", "p99.9")

#: For each kind: iterations of the first, short run, and minimum and maximum of a real run.
ITERS = {
    "lat": (500, 500, 50_000),
    "bw": (64, 64, 200_000),
    "rate": (4_000, 4_000, 1_000_000),
}

Progress = Callable[[int, int], None]


def make_progress_counter(progress: Progress | None, total: int) -> Callable[[], None]:
    """Return a function to call after each of ``total`` steps, which reports the count to
    ``progress``.
    """
    done = 0

    def report_completed_step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    if progress is not None:
        progress(0, total)
    return report_completed_step


class BenchError(RuntimeError):
    """A run of a measurement failed; the message contains the reason."""


class LostError(BenchError):
    """Messages were lost, so the run's figure would be meaningless."""


class SlowError(BenchError):
    """A run of a measurement exceeded its time limit."""


@dataclass(frozen=True)
class Variant:
    """A variant of a measurement: its name in the result, its program, and its settings.

    beside: the variant is a floor, which uses the floors' plan and no fault plan. arrays: Python
    with requests and completions in NumPy arrays. faults: replaces the fault plan in the
    environment; None keeps that plan.
    """

    name: str
    what: str
    beside: bool = False
    python: bool = False
    arrays: bool = False
    markers: bool = False
    faults: str | None = None


def bench_program_path() -> Path:
    """Return the path of the program siwarp-bench of this installation.

    Raises:
        FileNotFoundError: the installation has none.

    """
    from siwarp import _siwarp

    assert _siwarp.__file__ is not None
    beside = Path(_siwarp.__file__).resolve().parent
    # A wheel installs the program in the package; an editable installation uses the build folder.
    for found in ("bench/bin/siwarp-bench", "siwarp/bench/siwarp-bench"):
        if (beside / found).is_file():
            return beside / found
    raise FileNotFoundError(f"no siwarp-bench next to {_siwarp.__file__}: install siwarp again")


def cpu_for_client_or_server(side: str) -> int | None:
    """Return the CPU for the client or the server; None if the process may use only one CPU."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[side == "server"] if len(allowed) > 1 else None


# ---- a single run


def warmup_message_count(plan: Plan) -> int:
    """Return the number of warm-up messages, which precede the measured messages."""
    warmup = max(plan.iters // 10, 1)
    return warmup + -warmup % plan.messages_per_credit


def build_bench_process_arguments(plan: Plan, side: str, **more: object) -> list[str]:
    """Return the arguments of a client or server; values in ``more`` that are None are omitted."""
    options: dict[str, object] = {
        "kind": plan.kind,
        "side": side,
        "qp": plan.qp,
        "op": plan.op,
        "wait": plan.wait,
        "size": plan.size,
        "iters": plan.iters,
        "depth": plan.depth,
        "batch": plan.post_list,
        **more,
    }
    given = [(name, value) for name, value in options.items() if value is not None]
    return [word for name, value in given for word in (f"--{name}", str(value))]


@dataclass(frozen=True)
class Side:
    """A process of a run: ``client`` or ``server``, its command, and its environment."""

    name: str
    command: list[str]
    env: Mapping[str, str]


def process_exit_reason(code: int, stderr: str, limit: float | None = None) -> str:
    """Return the reason why a process of a run exited with status ``code``.

    ``stderr``: the output of the process on standard error. ``limit``: the time limit of the run in
    seconds; None: LIMIT_S.
    """
    if code == -signal.SIGALRM:
        return f"it did not finish within {limit or LIMIT_S} s: {_SLOW_RUN_ADVICE}"
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return stderr.strip().splitlines()[-1] if stderr.strip() else f"exit status {code}"


def raise_if_process_failed(name: str, ends: Iterable[tuple[str, int, str]]) -> None:
    """Raise an error if a process of the run failed. ``ends``: (side, exit status, reason)."""
    failed = [end for end in ends if end[1]]
    if not failed:
        return
    # A process that reports only the exit of its peer does not know the reason.
    knowing = [end for end in failed if end[2] != PEER_ENDED] or failed[:1]
    if slow := [why for _, code, why in failed if code == -signal.SIGALRM]:
        raise SlowError(f"the run {name!r} failed: {slow[0]}")
    # A process whose peer has failed may report another reason, so the message has both reasons.
    reasons = "; ".join(dict.fromkeys(f"{side}: {why}" for side, _, why in knowing))
    text = reasons if len(knowing) > 1 else knowing[0][2]
    kind = LostError if all(code == EXIT_LOST for _, code, _ in knowing) else BenchError
    raise kind(f"the run {name!r} failed: {text}")


def _make_process_environment(env: Mapping[str, str], side: str, run: Variant) -> dict[str, str]:
    """Return a process's environment: a common Q_Key, and a fault plan for siwarp's client."""
    everything = {**os.environ, **env, "SIWARP_MARKERS": str(int(run.markers))}
    if run.python:
        # Each Python process would choose its own Q_Key; the program in C has a constant.
        from siwarp.verbs.qkey import qkey_environment

        everything.update(qkey_environment())
    if side == "server" or run.beside:
        everything.pop("SIWARP_FAULTS", None)
    elif run.faults is not None:
        everything["SIWARP_FAULTS"] = run.faults
    return everything


def run_client_and_server(
    what: str, sides: list[Side], limit: int, until: float = math.inf
) -> dict[str, float]:
    """Run the processes of a run and return the client's output.

    Its ``cpu_ns`` and ``cycles`` are the sums of all processes.

    Args:
        what: the name of the run, for messages.
        sides: the client last. Two processes have a socket pair; each gets its end as ``--ctl``.
        limit: seconds after which the processes exit by themselves.
        until: time (time.monotonic) at which they are killed, if ``limit`` has not ended them.

    Raises:
        BenchError: a process failed; LostError: messages were lost; SlowError: it took too long.

    """
    deadline = min(time.monotonic() + limit + GRACE_S, until)
    started: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(ctl) for ctl in socket.socketpair()]
        ctls = pair if len(sides) > 1 else [None]
        try:
            for side, ctl in zip(sides, ctls, strict=True):
                process = subprocess.Popen(
                    side.command if ctl is None else [*side.command, "--ctl", str(ctl.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    pass_fds=() if ctl is None else (ctl.fileno(),),
                    env=side.env,
                )
                started.append(process)
            # Now only the processes have the sockets open, so each detects the other's exit.
            for ctl in pair:
                ctl.close()
            said = [
                process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                for process in reversed(started)
            ]
        except subprocess.TimeoutExpired:
            raise SlowError(
                f"the run {what!r} did not finish within {limit} s: {_SLOW_RUN_ADVICE}"
            ) from None
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.wait()
    codes = [process.returncode for process in reversed(started)]
    reasons = [
        process_exit_reason(code, err, limit) for code, (_, err) in zip(codes, said, strict=True)
    ]
    raise_if_process_failed(
        what, zip((side.name for side in reversed(sides)), codes, reasons, strict=True)
    )
    results: list[dict[str, float]] = [json.loads(out) for out, _ in said if out]
    for cost in ("cpu_ns", "cycles"):
        results[0][cost] = sum(result.get(cost, 0) for result in results)
    return results[0]


def run_variant(
    plan: Plan, run: Variant, env: Mapping[str, str], until: float = math.inf
) -> dict[str, float]:
    """Run one variant of a measurement once and return the client's output.

    Raises:
        SlowError: the run exceeded LIMIT_S, or ``until`` (time.monotonic).

    """
    if run.beside:
        plan = make_raw_socket_floor_plan(plan)
    left = until - time.monotonic()
    if left <= 0:
        raise SlowError(f"no time is left for the run {run.name!r}: {_SLOW_RUN_ADVICE}")
    # Whole seconds, at most half of the remaining time, so that a shorter run can follow.
    limit = math.ceil(min(left / 2, LIMIT_S))
    start = (
        [sys.executable, "-m", "siwarp.bench.end"] if run.python else [str(bench_program_path())]
    )
    own = {"run": run.what, "warmup": warmup_message_count(plan), "limit": limit}
    sides = [
        Side(
            side,
            [
                *start,
                *build_bench_process_arguments(
                    plan, side, cpu=cpu_for_client_or_server(side), **own
                ),
                *(["--arrays"] if run.arrays else []),
            ],
            _make_process_environment(env, side, run),
        )
        for side in ("server", "client")
    ]
    return run_client_and_server(run.name, sides, limit, until)


# ---- rounds of runs

#: Variants of siwarp whose results are compared with siwarp's ordinary figure by a ratio.
_WITH_RATIO = ("markers", "lossless")


def _variants_of_round(plan: Plan, floors: Floors, faults: str = "") -> list[Variant]:
    """Return the runs of a round: the floor (raw sockets), siwarp, its variants, other floors."""
    what = "ours" if floors.floor in ("c", "ud") else floors.floor
    floor = Variant("floor", what, beside=floors.floor != "c")
    ours = Variant("ours", "ours", python=plan.api != "c", arrays=plan.api == "numpy")
    runs = [floor, ours]
    if plan.markers:
        runs.append(replace(ours, name="markers", markers=True))
    if plan.qp == "rd" and (lossless := remove_losses_from_fault_plan(faults)) is not None:
        runs.append(replace(ours, name="lossless", faults=lossless))
    return runs + [Variant(name, name, beside=True) for name in floors.others]


def seconds_per_message(plan: Plan, value: float) -> float:
    """Return the seconds per message that correspond to a measured value."""
    return {
        "us": 2e-6 * value,
        "GB/s": plan.size / (value * 1e9 or 1),
        "msg/s": 1 / (value or 1),
    }[plan.unit]


def _probe_seconds_per_message(
    plan: Plan, run: Variant, env: Mapping[str, str], until: float
) -> float:
    """Return the seconds per message, measured by short runs."""

    def time_probe_run(iters: int) -> float:
        short = replace(plan, iters=iters + -iters % plan.messages_per_credit)
        return seconds_per_message(plan, run_variant(short, run, env, until)["value"])

    each, short = time_probe_run(FIRST_PROBE_MESSAGES), ITERS[plan.kind][0]
    if each * short > min(PROBE_S, (until - time.monotonic()) / PROBES):
        return each
    # Use the shortest of three probes, because another process may have used the CPU.
    return min(time_probe_run(short) for _ in range(3))


def _choose_iterations(
    plan: Plan, runs: list[Variant], env: Mapping[str, str], until: float = math.inf
) -> tuple[Plan, str]:
    """Return the plan with a number of iterations that fits in the time, and a remark.

    Short runs of the floor determine the number, or of siwarp with a fault plan, which makes it by
    far the slowest. The remark says why the number is less than requested. All rounds together are
    planned for half the time until ``until``, because runs on a busy machine take longer than
    planned.
    """
    slowest = next(run for run in runs if run.name == "ours") if "SIWARP_FAULTS" in env else runs[0]
    short, least, most = ITERS[plan.kind]
    iters, partial = plan.iters or least, ""
    if least < most and not 0 < plan.iters <= short:
        each = _probe_seconds_per_message(plan, slowest, env, until)
        share = (until - time.monotonic()) / (2 * plan.rounds * len(runs))
        longest = min(LONGEST_S, share)
        room = max(plan.messages_per_credit, int(longest / each))
        iters = min(room, plan.iters or max(least, min(most, int(TARGET_S / each))))
        if iters < plan.iters:
            partial = (
                f"a run had {iters} of {plan.iters} messages, because more take over "
                f"{longest:.3g} s"
            )
    return replace(plan, iters=iters + -iters % plan.messages_per_credit), partial


def _measure_round(
    plan: Plan,
    runs: list[Variant],
    env: Mapping[str, str],
    turn: int,
    until: float,
) -> dict[str, Any]:
    # In every second round siwarp is measured before the floor. The other floors, which have no
    # ratio, run in every third round.
    order = [runs[1], runs[0]] if turn % 2 else runs[:2]
    order = order + [run for run in runs[2:] if turn % 3 == 0 or run.name in _WITH_RATIO]
    values: dict[str, float] = {}
    tails: dict[str, dict[str, float]] = {}
    for one in order:
        result = run_variant(plan, one, env, until)
        values[one.name] = result["value"]
        for tail in TAILS:
            if result.get(tail):
                tails.setdefault(tail, {})[one.name] = result[tail]
    return {**values, "ratio": values["ours"] / values["floor"], **tails}


def _measure_rounds(
    plan: Plan, one: Callable[[Plan, int], dict[str, Any]], until: float = math.inf
) -> tuple[Plan, list[dict[str, Any]], str]:
    """Do the rounds, with fewer messages if a round takes too long; no round starts after
    ``until``.

    Returns:
        The plan of the last round, the rounds' values, and why there are fewer than requested.

    Raises:
        BenchError: not even one round was done.

    """
    rounds: list[dict[str, Any]] = []
    why, shorter = "", 0
    while len(rounds) < plan.rounds:
        if rounds and time.monotonic() >= until:
            return (
                plan,
                rounds,
                f"{len(rounds)} of {plan.rounds} rounds: the time limit was reached",
            )
        try:
            rounds.append(one(plan, len(rounds)))
        except BenchError as e:
            fewer = max(1, plan.iters // 8 // plan.messages_per_credit) * plan.messages_per_credit
            is_long = plan.iters > ITERS[plan.kind][0]
            if isinstance(e, SlowError) and is_long and shorter < SHORTER:
                shorter += 1
                plan = replace(plan, iters=fewer)
                why = f"{fewer} messages a run: {e}"
            elif rounds:
                return plan, rounds, f"{len(rounds)} of {plan.rounds} rounds: {e}"
            else:
                raise
    return plan, rounds, why


def run(
    kind: str,
    qp: str = "ud",
    op: str = "send",
    *,
    others: bool = True,
    within: float = math.inf,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[PlanOptions],
) -> dict[str, Any]:
    """Measure one figure together with its floor, the raw-socket run for comparison.

    Args:
        kind: ``lat`` (one way, us; Read: round trip), ``bw`` (GB/s of 10^9 octets), ``rate``
            (messages per second).
        qp, op: ``ud``, ``uc``, ``rd`` or ``rc``; ``send``, ``write`` or ``read``. The floor of rd's
            latency and rate is ud, of its bandwidth raw UDP in large datagrams.
        options: PlanOptions.
        others: measure the other raw runs too, not only the floor.
        within: time limit in seconds; if it is short, runs are shorter, and rounds fewer.
        env: additional environment for the measuring processes; SIWARP_FAULTS applies to siwarp's
            client. If that plan has losses, RD is also measured without them, to show the part of
            its rate that it keeps.
        progress: called with the number of rounds that are done, and the total.

    Returns:
        The plan's values, and ``unit``, ``ours`` and ``floor`` (medians), ``ratio`` (ours /
        floor), ``ratio_median`` (the median of the rounds' ratios), ``tails`` (of kind ``lat``: p99
        and p99.9, each with the medians ``ours`` and ``floor`` and with ``ratio``, the median of
        the rounds' ratios; otherwise empty), ``floor_name``, ``floors`` (medians of the others by
        name), ``with_markers`` (ours with Markers, its median),
        ``markers_ratio`` (the median of the rounds' ratios to ours without), ``lossless`` (RD
        without the plan's losses, its median) and ``lossless_ratio`` (the median of the rounds'
        ratios of ours to that), ``rounds`` (every round's values by name), ``spans``
        (the least and the largest of the rounds' ratios, by the ratio's name), ``partial`` (why
        there are fewer messages or rounds than requested), ``unreliable`` (why the figures may
        reflect the state of the machine: floor_spread_warning).

    Raises:
        UsageError: there is no such measurement.
        BenchError: a run failed; LostError: it lost messages; SlowError: not even one round was
            done in time.

    """
    until = time.monotonic() + within
    plan = make_bench_plan(kind, qp, op, **options)
    floors = comparison_runs_of_plan(plan)
    if not others:
        floors = Floors(floors.floor)
    env = env or {}
    runs = _variants_of_round(plan, floors, env.get("SIWARP_FAULTS", ""))
    report_completed_round = make_progress_counter(progress, plan.rounds)
    plan, partial = _choose_iterations(plan, runs, env, until)

    def measure_round(plan: Plan, turn: int) -> dict[str, Any]:
        found = _measure_round(plan, runs, env, turn, until)
        report_completed_round()
        return found

    plan, rounds, why = _measure_rounds(plan, measure_round, until)
    partial = "; ".join(filter(None, (partial, why)))
    summary = _summarize_rounds(plan, floors, runs, rounds)
    doubt = floor_spread_warning([each["floor"] for each in rounds])
    return {**summary, "partial": partial, "unreliable": [doubt] if doubt else []}


def _summarize_rounds(
    plan: Plan, floors: Floors, runs: list[Variant], rounds: list[dict[str, Any]]
) -> dict[str, Any]:
    def median(name: str) -> float:
        return float(statistics.median(each[name] for each in rounds if name in each))

    def per_round_ratios(of: str, to: str) -> list[float]:
        return [each[of] / each[to] for each in rounds if of in each and to in each]

    every = {
        "ratio": per_round_ratios("ours", "floor"),
        "markers_ratio": per_round_ratios("markers", "ours"),
        "lossless_ratio": per_round_ratios("ours", "lossless"),
    }
    ours = median("ours")
    floor = median("floor")
    tails = {
        tail: {
            "ours": statistics.median(each["ours"] for each in found),
            "floor": statistics.median(each["floor"] for each in found),
            "ratio": statistics.median(each["ours"] / each["floor"] for each in found),
        }
        for tail in TAILS
        if (found := [each[tail] for each in rounds if tail in each])
    }
    has_lossless = any(one.name == "lossless" for one in runs)
    asked = {name: value for name, value in asdict(plan).items() if name != "rounds"}
    return {
        **asked,
        "unit": plan.unit,
        "less_is_better": plan.less_is_better,
        "cpus": [
            cpu
            for side in ("client", "server")
            if (cpu := cpu_for_client_or_server(side)) is not None
        ],
        "ours": ours,
        "floor": floor,
        "floor_name": floors.floor,
        "ratio": ours / floor,
        "ratio_median": median("ratio"),
        "tails": tails,
        "floors": {one.name: median(one.name) for one in runs[2:] if one.name not in _WITH_RATIO},
        "with_markers": median("markers") if plan.markers else None,
        "lossless": median("lossless") if has_lossless else None,
        **{
            name: statistics.median(of_rounds) if of_rounds else None
            for name, of_rounds in every.items()
            if name != "ratio"
        },
        "spans": {
            name: minimum_and_maximum(of_rounds) for name, of_rounds in every.items() if of_rounds
        },
        "rounds": rounds,
    }
