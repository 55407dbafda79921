"""`siwarp sim`: the programs it generates, the faults it detects, and its reports of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from siwarp.cli import sim as command
from siwarp.cli.app import build_app
from siwarp.sim.workloads import WORKLOADS, Outcome, execution, generate, model, rc, run
from siwarp.verbs import WC, Context, QPAttr, QPState


def siwarp_sim(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "siwarp.cli", "sim", "--jobs", "1", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_knows_all_workloads() -> None:
    assert tuple(WORKLOADS) == command.NAMES


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_program_follows_from_its_seed_and_has_what_makes_it_one(name: str) -> None:
    program = generate(name, 5)
    assert program == generate(name, 5) != generate(name, 6)
    assert len(program.ops) >= 500
    assert {"crash", "overfill", "send"} <= {op.kind for op in program.ops}


def test_a_seed_has_the_same_trace_in_every_process() -> None:
    runs = {siwarp_sim("--workload", "churn", "--seed", "3") for _ in range(2)}
    assert len(runs) == 1
    assert re.search(r"seed 3 of workload churn: trace [0-9a-f]{16}\n", runs.pop())


def fails_with(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> Outcome:
    """Run a program in which an idle period corrupts something."""
    monkeypatch.setattr(execution.Execution, "do_rest", lambda self, op: spoil(self))
    return run(generate("messages", 1))


def test_a_write_outside_of_a_region_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(self: execution.Execution) -> None:
        self.hosts[0].target.memory._all[model.GUARD - 1] ^= 1

    outcome = fails_with(monkeypatch, spoil)
    assert outcome.failure.startswith("a write outside of a region: a guard of the target of")
    assert 0 < outcome.failed_at == outcome.operations < 603


def test_a_message_that_was_altered_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    was = model.content
    monkeypatch.setattr(
        execution, "content", lambda number, n: was(number, n)[:-1] + b"\0" if n else b""
    )
    arrived = execution.Execution._arrived

    def judge(self: Any, *arguments: Any) -> None:
        monkeypatch.setattr(execution, "content", was)
        arrived(self, *arguments)

    monkeypatch.setattr(execution.Execution, "_arrived", judge)
    assert "was altered" in run(generate("messages", 1)).failure


def test_a_completion_that_comes_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = execution.Execution._complete

    def twice(self: Any, *arguments: Any) -> None:
        complete(self, *arguments)
        complete(self, *arguments)

    monkeypatch.setattr(execution.Execution, "_complete", twice)
    assert "completed again, or too late" in run(generate("messages", 1)).failure


def test_a_request_that_never_completes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = execution.Execution._complete

    def most(self: Any, host: Any, completions: Any, wc: Any) -> None:
        if wc.wr_id % 16:
            complete(self, host, completions, wc)

    monkeypatch.setattr(execution.Execution, "_complete", most)
    assert run(generate("rd-many", 2)).failure


def test_a_hole_in_an_rc_stream_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip(self: Any, end: model.End, message: model.Message, what: str) -> None:
        end.last_taken[message.source.number << 16 | message.life, end.number << 16] = 0

    monkeypatch.setattr(rc.Connections, "arrived", skip)
    assert "number 2 of its stream, arrived after number 0" in run(generate("rc", 2)).failure


def test_an_rc_connection_that_ends_without_a_cause_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoil(self: execution.Execution, op: Any) -> None:
        for end in self.live():
            if end.pair and end.qp.qp_state == QPState.RTS:
                end.pair.causes.clear()
                end.qp.modify(QPAttr(qp_state=QPState.ERR))
                return

    monkeypatch.setattr(execution.Execution, "do_rest", spoil)
    assert "nothing went wrong" in run(generate("rc", 1)).failure


def test_a_limit_of_a_shared_queue_without_an_event_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Context, "get_async_event", lambda self, timeout: None)
    assert "raised no event of its limit" in run(generate("rc", 1)).failure


def test_a_window_that_outlives_its_invalidation_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WC, "invalidated_rkey", None)
    failures = "\n".join(run(generate("rc", seed)).failure for seed in range(1, 9))
    assert re.search(r"invalidated None, and not \d+", failures)


class Fake(command.Worker):
    """A worker whose programs fail from their 37th operation on, or that has no crashes."""

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


def test_a_failure_is_printed_with_its_shortest_prefix_and_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "Worker", Fake)
    ran = CliRunner().invoke(
        build_app("sim"), ["sim", "--workload", "churn", "--seed", "9", "--out", str(tmp_path)]
    )
    assert ran.exit_code == 1
    assert "FAILED seed 9 of workload churn: something" in ran.output
    assert "siwarp sim --workload churn --seed 9 --operations 37\n" in ran.output
    assert f"capture: {tmp_path}/churn-9.pcapng" in ran.output


def test_a_run_without_a_crash_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Worker", Fake)
    monkeypatch.setattr(Fake, "fails", False)
    assert CliRunner().invoke(build_app("sim"), ["sim"]).exit_code == 0
    monkeypatch.setattr(Fake, "crashes", 0)
    ran = CliRunner().invoke(build_app("sim"), ["sim"])
    assert ran.exit_code == 1
    assert "no crashes" in ran.output


def test_a_process_that_ends_is_a_failure_and_the_next_seed_has_another() -> None:
    worker = command.Worker()
    try:
        lost = worker.run("no such workload", 1)
        assert lost["failure"] == "its process ended with status 1"
        assert worker.run("messages", 1, 20)["failure"] == ""
    finally:
        worker.close()
