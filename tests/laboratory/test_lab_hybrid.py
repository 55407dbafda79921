"""python -m lab.mpi --part hybrid: short runs of a message channel over UD, RC, or UD and RC."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pace
import pytest
from laboratory.lab_harness import build_lab_command_line, run_lab_study
from pace import scale_limit

from lab.mpi import hybrid
from siwarp.bench.runner import BenchError

#: More messages than a run can send before a test ends the run.
ENDLESS = 3_000_000


def _message_channel_command(
    ranks: int,
    size: int,
    messages: int,
    limit: int,
    threshold: int = 8,
    patience_s: float = 20,
    limit_s: int = 60,
) -> list[str]:
    tool = str(hybrid.find_hybrid_channel_program())
    pings, patience_ms = 20, round(scale_limit(patience_s) * 1000)
    numbers = (ranks, size, messages, limit, threshold, pings, patience_ms, limit_s)
    return [tool, *map(str, numbers)]


def _run_message_channel(*numbers: int, faults: str = "", threshold: int = 8) -> dict[str, Any]:
    done = pace.run_command(
        _message_channel_command(*numbers, threshold=threshold),
        capture_output=True,
        text=True,
        seconds=90,
        env={**os.environ, **({"SIWARP_FAULTS": faults} if faults else {})},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    # No received frame was invalid.
    assert found["strange"] == 0
    return found


def _descendants(pid: int) -> list[int]:
    """Return the process ids of all descendants of a process."""
    of = Path(f"/proc/{pid}/task/{pid}/children")
    own = [int(child) for child in of.read_text().split()] if of.exists() else []
    return own + [rank for child in own for rank in _descendants(child)]


def _is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_bench_that_receives_sigterm_ends_its_processes() -> None:
    words = ("mpi", "--part", "hybrid", "--ranks", "4", "--rounds", "1000")
    bench = subprocess.Popen(
        build_lab_command_line(*words),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    began = time.monotonic()
    while len(started := _descendants(bench.pid)) < 4:
        assert bench.poll() is None and time.monotonic() - began < scale_limit(30)
        time.sleep(0.01)
    bench.terminate()
    assert bench.wait(scale_limit(10)) == 128 + signal.SIGTERM
    began = time.monotonic()
    while any(map(_is_running, started)):
        assert time.monotonic() - began < scale_limit(10)
        time.sleep(0.01)


def test_each_channel_transfers_checked_messages_and_reports_its_memory() -> None:
    words = ("--part", "hybrid", "--ranks", "2,5", "--rounds", 1, "--limit", 2, "--sizes", 64)
    done = run_lab_study("mpi", "--json", *words, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == {} and found["mpi"] is None
    part = found["hybrid"]
    assert (part["limit"], part["threshold"], part["errors"]) == (2, hybrid.THRESHOLD, {})
    assert [(row["ranks"], row["size"]) for row in part["rows"]] == [(2, 64), (5, 64)]
    for row in part["rows"]:
        ud, rc, both = (row[name] for name in hybrid.CHANNELS)
        for channel in (ud, rc, both):
            assert channel["rate"]["median"] > 0 and channel["lat"]["median"] > 0
            assert channel["process"] > 0
        assert (ud["rc_share"], ud["connections"], ud["sockets"]["tcp"]) == (0, 0, 0)
        assert rc["rc_share"] == 1 and rc["connections"] == row["ranks"] - 1
        # Each rank has one TCP socket for each connection, and one for the listener.
        assert rc["sockets"] == {"udp": rc["sockets"]["udp"], "tcp": row["ranks"]}
        assert 0 < both["rc_share"] < 1 and 0 < both["connections"] <= 2
        assert set(row["saving"]) == {"ud", "hybrid"}
    two, five = part["rows"]
    assert five["ud"]["sockets"] == two["ud"]["sockets"]


def test_memory_of_siwarp_grows_with_connections_but_not_with_peers_over_ud() -> None:
    few, many = _run_message_channel(3, 64, 10, 0), _run_message_channel(12, 64, 10, 0)
    # With a sanitizer, which replaces malloc, the allocated memory is not counted.
    assert (few["held"] > 0) == ("SANITIZER" not in os.environ)
    assert many["held"] / 12 <= 1.2 * few["held"] / 3
    connected = _run_message_channel(12, 64, 10, 12, threshold=0)
    assert connected["held"] >= 3 * many["held"]


def test_a_message_of_several_frames_arrives_complete_over_each_channel() -> None:
    frames = -(-20_001 // 4096)
    for limit, threshold in ((0, 8), (3, 0), (1, 8)):
        found = _run_message_channel(3, 20_001, 30, limit, threshold=threshold)
        assert found["by_ud"] + found["by_rc"] == frames * (3 * 2 + 3 * 30)


def test_frames_that_udp_loses_are_retransmitted() -> None:
    found = _run_message_channel(3, 5000, 60, 0, faults="loss=3%")
    assert found["again"] > 0 and found["by_rc"] == 0


def test_a_pair_switches_to_rc_although_udp_loses_frames() -> None:
    found = _run_message_channel(4, 64, 60, 4, faults="loss=3%")
    assert found["again"] > 0 and found["by_rc"] > 0


def test_no_rank_has_more_connections_than_the_limit() -> None:
    found = _run_message_channel(3, 64, 300, 1)
    # Each rank may have one connection, so two ranks are connected, and the third is refused.
    assert found["connections"] <= 2
    assert found["refused"] > 0
    assert found["tcp"] == 3 + found["connections"]


def _error_output(process: subprocess.Popen[str], within_s: float) -> str:
    try:
        _, why = process.communicate(timeout=scale_limit(within_s))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode not in (0, None)
    return why


def _has_used_cpu(pid: str) -> bool:
    """Return whether a rank has used more CPU time than its start-up needs."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK") > 0.2


def _start_endless_run(*numbers: int, **more: Any) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a run that does not end by itself; return it when all its ranks send messages."""
    process = subprocess.Popen(
        _message_channel_command(*numbers, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + scale_limit(20)
    while len(ranks := children.read_text().split()) < numbers[0] or not all(
        map(_has_used_cpu, ranks)
    ):
        if process.poll() is not None or time.monotonic() > until:
            pytest.fail(f"it has not begun: {_error_output(process, 1)}")
        time.sleep(0.01)
    return process, [int(pid) for pid in ranks]


@pytest.mark.parametrize(("limit", "threshold"), [(0, 8), (4, 0), (4, 8)])
def test_a_killed_rank_ends_the_run_with_an_error_that_names_the_rank(
    limit: int, threshold: int
) -> None:
    process, ranks = _start_endless_run(4, 64, ENDLESS, limit, threshold=threshold)
    os.kill(ranks[2], signal.SIGKILL)
    why = _error_output(process, 20)
    assert "rank 2" in why, why
    for pid in ranks:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(("limit", "threshold"), [(0, 8), (4, 0)])
def test_a_stopped_rank_that_acknowledges_nothing_ends_the_run(limit: int, threshold: int) -> None:
    process, ranks = _start_endless_run(4, 64, ENDLESS, limit, threshold=threshold, patience_s=1)
    os.kill(ranks[1], signal.SIGSTOP)
    why = _error_output(process, 20)
    assert (
        "rank 1 has acknowledged nothing for" in why or "rank 1 no longer accepts messages" in why
    )


def test_a_run_that_exceeds_its_time_limit_is_ended() -> None:
    command = _message_channel_command(2, 64, ENDLESS, 0, limit_s=1)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert _error_output(process, 20) == "rank 0 did not finish within 1 s\n"


def test_ranks_end_with_the_program_that_started_them() -> None:
    process, ranks = _start_endless_run(3, 64, ENDLESS, 0)
    process.kill()
    process.communicate()
    until = time.monotonic() + scale_limit(10)
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_invalid_numbers_of_ranks_and_connections_are_refused() -> None:
    for words in (
        _message_channel_command(1, 64, 1, 0),
        _message_channel_command(257, 64, 1, 0),
        _message_channel_command(2, 64, 1, 0)[:-1],
    ):
        done = pace.run_command(words, capture_output=True, text=True, seconds=20)
        assert done.returncode == 2
        assert "is run by `python -m lab.mpi --part hybrid`" in done.stderr
    done = run_lab_study("mpi", "--part", "hybrid", "--limit", 0, env={"COLUMNS": "200"})
    assert done.returncode == 2 and "0 is not in the range 1<=x<=256" in done.stderr


def _fake_results_of_mpi_channel(channel: str, ranks: int, size: int, limit: int) -> dict[str, Any]:
    """Simulate a run in which RC uses four times as much memory as UD."""
    octets = {"ud": 1000, "rc": 4000, "hybrid": 2000}[channel] * ranks
    memory = {"pss": octets, "held": octets, "udp": 0, "tcp": 0, "kernel": 0}
    figures = {"us": 5, "rate": 10.0, "lat": 4.0, "lat_over_rc": False, "by_ud": 3, "by_rc": 1}
    pairs = {"again": 0, "connections": limit * ranks, "refused": 0}
    return {"ranks": ranks, **memory, **figures, **pairs}


def test_rows_have_spreads_and_saved_memory_and_failed_runs_have_reasons() -> None:
    turns: list[str] = []

    def simulate_run_failing_over_rc(channel: str, *numbers: int) -> dict[str, Any]:
        turns.append(channel)
        if channel == "rc" and numbers[0] == 8:
            raise BenchError("no rain")
        return _fake_results_of_mpi_channel(channel, *numbers)

    steps: list[tuple[int, int]] = []
    found = hybrid.measure_message_channels(
        (8, 2), (64,), 2, 3, lambda *step: steps.append(step), run=simulate_run_failing_over_rc
    )
    two, eight = found["rows"]
    assert turns[:6] == ["ud", "rc", "hybrid", "rc", "hybrid", "ud"]
    assert steps[-1] == (12, 12)
    assert two["saving"] == {"ud": 0.75, "hybrid": 0.5}
    assert two["hybrid"]["connections"] == 3 and two["hybrid"]["rc_share"] == 0.25
    assert two["ud"]["rate"] == {"median": 10.0, "min": 10.0, "max": 10.0}
    assert "rc" not in eight and "saving" not in eight and eight["ud"]["process"] == 1000
    assert found["errors"] == {"rc, 8 ranks, 64 B": "no rain"}


def test_the_table_has_each_channel_and_the_reason_of_each_failed_run(tmp_path: Path) -> None:
    words = ("--part", "hybrid", "--ranks", 2, "--rounds", 1, "--sizes", 64)
    shown = run_lab_study("mpi", *words, timeout=120)
    assert shown.returncode == 0, shown.stderr
    for name in hybrid.CHANNELS.values():
        assert name in shown.stdout
    failed = run_lab_study("mpi", *words, env={"SIWARP_FAULTS": "nonsense"}, timeout=120)
    assert failed.returncode == 1
    assert "ud, 2 ranks, 64 B: NOT SHOWN: the channel over UD only failed:" in failed.stdout
