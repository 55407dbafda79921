"""`python -m lab.wan`: reliable datagrams and kernel TCP that share a link with faults."""

from __future__ import annotations

import json

import pytest
from laboratory.lab_harness import run_lab_study
from namespaces import wan_harness

from lab.wan import flows as wan
from siwarp.bench.runner import BenchError

pytestmark = pytest.mark.scales


@pytest.fixture(autouse=True)
def skip_without_link_with_faults() -> None:
    """Skip the tests on a machine where the link with faults cannot be created."""
    wan_harness.skip_without_tun_device()


def test_both_flows_transfer_octets_at_the_same_time_and_their_shares_add_up_to_1() -> None:
    done = run_lab_study("wan", "--seconds", "3", "--json", "--faults", "rate=20Mbit,delay=5ms")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rd, tcp = found["flows"]["rd"], found["flows"]["tcp"]
    assert rd["share"] + tcp["share"] == pytest.approx(1)
    # The octets that the link has passed include the octets of both flows.
    both = rd["octets"] + tcp["octets"]
    assert 0 < both < found["line"]["a_to_b"]["octets"]
    assert 1 < rd["mbit_s"] + tcp["mbit_s"] < 20
    for flow in (rd, tcp):
        assert flow["octets"] == sum(flow["steps"]) > 0
        assert flow["mbit_s"] == pytest.approx(flow["octets"] * 8e-6 / flow["seconds"])


def test_the_output_has_the_plan_the_congestion_control_and_a_chart_of_each_flow() -> None:
    done = run_lab_study("wan", "--seconds", "1", "--flows", "tcp", "--tcp", "reno")
    lines = done.stdout.splitlines()
    assert lines[0] == "rate=50Mbit,delay=20ms, 1 s; the kernel's TCP has reno"
    assert lines[1].split()[0] == "tcp"
    assert "\N{FULL BLOCK}" in lines[1]


def test_a_link_that_drops_every_packet_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIWARP_PEER_TIMEOUT_MS", "1000")
    with pytest.raises(BenchError, match="did not reach its sink"):
        wan.measure_flows(("rd",), 1, "loss=100%")


@pytest.mark.parametrize("flows", ["udp", "rd,rd", ""])
def test_unknown_repeated_or_missing_flows_are_refused(flows: str) -> None:
    done = run_lab_study("wan", "--flows", flows)
    assert done.returncode == 2
    assert "rd, tcp, or rd,tcp" in done.stderr


@pytest.mark.parametrize(
    ("plan", "words"),
    [("loss=lots", "clause 1, character 6"), ("reset=5s", "reset= and short= apply only to")],
)
def test_an_invalid_fault_plan_is_refused_with_the_reason(plan: str, words: str) -> None:
    done = run_lab_study("wan", "--seconds", "1", "--faults", plan)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
