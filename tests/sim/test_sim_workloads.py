"""The command `siwarp sim`: its generated programs, the faults it detects, and its reports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from siwarp.cli import sim as command
from siwarp.cli.app import build_app
from siwarp.sim.workloads import WORKLOADS, Outcome, execution, generate_program, model, rc, run
from siwarp.sim.workloads import __main__ as run_requests
from siwarp.verbs import WC, Context, QPAttr, QPState


def run_siwarp_sim(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "siwarp.cli", "sim", "--jobs", "1", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sim_command_offers_all_workloads() -> None:
    assert tuple(WORKLOADS) == command.NAMES


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_seed_determines_a_generated_program_of_a_workload(name: str) -> None:
    program = generate_program(name, 5)
    assert program == generate_program(name, 5) != generate_program(name, 6)
    assert len(program.ops) >= 500
    assert {"crash", "overfill_queue", "send"} <= {op.kind for op in program.ops}


def test_a_seed_of_a_workload_produces_the_same_trace_in_every_process() -> None:
    program = ("--workload", "churn", "--seed", "3")
    runs = {run_siwarp_sim(*program), run_siwarp_sim(*program, "--once")}
    assert len(runs) == 1
    assert re.search(r"seed 3 of workload churn: trace [0-9a-f]{16}\n", runs.pop())


def test_a_setting_of_the_environment_replaces_the_drawn_value_in_all_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SIWARP_BATCHING", raising=False)
    drawn = generate_program("messages", 1).settings["batching"]
    names = ("auto", "never", "always")
    program = ("--workload", "messages", "--seed", "1")
    auto, never, always = (run_siwarp_sim(*program, SIWARP_BATCHING=name) for name in names)
    assert run_siwarp_sim(*program) == (auto, never, always)[drawn]
    assert never != always


@pytest.mark.parametrize("once", [True, False])
def test_a_program_runs_twice_or_if_requested_once(
    monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    runs = []

    def count_run(*arguments: Any) -> Outcome:
        runs.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(run_requests, "run", count_run)
    assert run_requests.run_program_twice("messages", 1, 20, None, once).failure == ""
    assert len(runs) == (1 if once else 2)


def run_corrupted_program(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> Outcome:
    """Run a program in which the operation "advance_time" calls ``spoil``; return the outcome."""
    monkeypatch.setattr(execution.Execution, "do_advance_time", lambda self, op: spoil(self))
    return run(generate_program("messages", 1))


def test_the_sim_command_detects_a_write_outside_of_a_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def corrupt_guard(self: execution.Execution) -> None:
        self.hosts[0].target.memory._all[model.GUARD - 1] ^= 1

    outcome = run_corrupted_program(monkeypatch, corrupt_guard)
    assert outcome.failure.startswith("a write outside of a region: a guard of the target of")
    assert 0 < outcome.failed_at == outcome.operations < 603


def test_the_sim_command_detects_a_write_past_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt_guard(self: execution.Execution) -> None:
        slots = self.list_open_queue_pairs()[-1].receives
        slots.memory.view[slots.offset_of(1) - 1] ^= 1

    outcome = run_corrupted_program(monkeypatch, corrupt_guard)
    assert outcome.failure.startswith("a write past a slot: a guard within the receives of")


def test_the_sim_command_detects_a_write_to_the_memory_of_a_destroyed_queue_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_to_closed_region(self: execution.Execution) -> None:
        end = self.list_open_queue_pairs()[0]
        self.destroy_queue_pair(end)
        end.receives.memory.view[100] ^= 1

    outcome = run_corrupted_program(monkeypatch, write_to_closed_region)
    assert re.fullmatch("a write to the receives of .*, whose region is closed", outcome.failure)


def test_the_sim_command_detects_octets_in_a_write_area_that_were_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def corrupt_steady_memory_cells(self: execution.Execution) -> None:
        for cell in self.hosts[0].target.cells.values():
            if cell.steady:
                self.hosts[0].target.memory.view[cell.at] = cell.expected[0] ^ 255 or 1

    monkeypatch.setattr(
        execution.Execution,
        "do_advance_time",
        lambda self, op: corrupt_steady_memory_cells(self),
    )
    outcome = run(generate_program("one-sided", 2))
    assert "contains octets that were not written" in outcome.failure


def test_the_sim_command_detects_an_altered_message(monkeypatch: pytest.MonkeyPatch) -> None:
    was = model.make_message_content
    monkeypatch.setattr(
        execution,
        "make_message_content",
        lambda number, n: was(number, n)[:-1] + b"\0" if n else b"",
    )
    arrived = execution.Execution._check_received_message

    def restore_content_and_check_message(self: Any, *arguments: Any) -> None:
        monkeypatch.setattr(execution, "make_message_content", was)
        arrived(self, *arguments)

    monkeypatch.setattr(
        execution.Execution, "_check_received_message", restore_content_and_check_message
    )
    assert "was altered" in run(generate_program("messages", 1)).failure


def test_the_sim_command_detects_a_duplicate_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = execution.Execution._check_completion

    def report_completion_twice(self: Any, *arguments: Any) -> None:
        complete(self, *arguments)
        complete(self, *arguments)

    monkeypatch.setattr(execution.Execution, "_check_completion", report_completion_twice)
    assert "completed again, or too late" in run(generate_program("messages", 1)).failure


def test_the_sim_command_detects_a_missing_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = execution.Execution._check_completion

    def report_all_but_every_16th_completion(
        self: Any, host: Any, completions: Any, wc: Any
    ) -> None:
        if wc.wr_id % 16:
            complete(self, host, completions, wc)

    monkeypatch.setattr(
        execution.Execution, "_check_completion", report_all_but_every_16th_completion
    )
    assert run(generate_program("rd-many", 2)).failure


def test_the_sim_command_detects_a_missing_message_of_an_rc_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def corrupt_last_message_number(
        self: Any, end: model.End, message: model.Message, what: str
    ) -> None:
        end.last_taken[message.source.number << 16 | message.life, end.number << 16] = 0

    monkeypatch.setattr(rc.Connections, "check_message_order", corrupt_last_message_number)
    assert (
        "number 2 of its stream, arrived after number 0" in run(generate_program("rc", 2)).failure
    )


def test_the_sim_command_detects_an_rc_connection_that_ends_without_a_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail_connection_without_cause(self: execution.Execution, op: Any) -> None:
        for end in self.list_open_queue_pairs():
            if end.pair and end.qp.qp_state == QPState.RTS:
                end.pair.causes.clear()
                end.qp.modify(QPAttr(qp_state=QPState.ERR))
                return

    monkeypatch.setattr(execution.Execution, "do_advance_time", fail_connection_without_cause)
    assert "nothing went wrong" in run(generate_program("rc", 1)).failure


def test_the_sim_command_detects_a_missing_limit_event_of_a_shared_receive_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Context, "get_async_event", lambda self, timeout: None)
    assert "raised no event of its limit" in run(generate_program("rc", 1)).failure


def test_the_sim_command_detects_a_window_that_outlives_its_invalidation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WC, "invalidated_rkey", None)
    failures = "\n".join(run(generate_program("rc", seed)).failure for seed in range(1, 9))
    assert re.search(r"invalidated None, and not \d+", failures)


class FakeWorker(command.Worker):
    """A fake worker: its programs fail if they have 37 operations or more and ``fails`` is true."""

    crashes = 1
    fails = True

    def run(
        self, workload: str, seed: int, operations: int | None = None, capture: str | None = None
    ) -> dict[str, Any]:
        bad = self.fails and (operations is None or operations >= 37)
        return {
            "hash": 7,
            "operations": 600,
            "packets": 10,
            "drops": 1,
            "crashes": self.crashes,
            "refusals": 1,
            "failure": "something" if bad else "",
            "failed_at": 410 if bad else 0,
        }


def test_a_failure_is_printed_with_the_shortest_failing_program_and_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "Worker", FakeWorker)
    monkeypatch.setenv("SIWARP_BATCHING", "always")
    ran = CliRunner().invoke(
        build_app("sim"), ["sim", "--workload", "churn", "--seed", "9", "--out", str(tmp_path)]
    )
    assert ran.exit_code == 1
    assert "FAILED seed 9 of workload churn: something" in ran.output
    command_line = "siwarp sim --workload churn --seed 9 --operations 37\n"
    assert re.search(f"reproduce: .*SIWARP_BATCHING=always .*{command_line}", ran.output)
    assert f"capture: {tmp_path}/churn-9.pcapng" in ran.output


def test_the_sim_command_fails_if_no_program_contained_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "fails", False)
    assert CliRunner().invoke(build_app("sim"), ["sim"]).exit_code == 0
    monkeypatch.setattr(FakeWorker, "crashes", 0)
    ran = CliRunner().invoke(build_app("sim"), ["sim"])
    assert ran.exit_code == 1
    assert "no crashes" in ran.output


def test_the_end_of_a_worker_process_is_a_failure_and_the_next_seed_gets_a_new_process() -> None:
    worker = command.Worker()
    try:
        lost = worker.run("no such workload", 1)
        assert lost["failure"] == "its process ended with status 1"
        assert worker.run("messages", 1, 20)["failure"] == ""
    finally:
        worker.close()
