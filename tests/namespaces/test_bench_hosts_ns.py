"""`siwarp bench ADDR` between two network namespaces, which stand for two hosts."""

from __future__ import annotations

import json

import pace
import pytest
from bench.hosts_harness import run_bench_server
from harness.siwarp_process import COMMAND
from namespaces.ns_harness import Namespace


@pytest.mark.parametrize("family", ["v4", "v6"])
@pytest.mark.parametrize("kind", ["lat", "bw"])
def test_bench_measures_every_type_of_queue_pair_between_two_hosts(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str, family: str
) -> None:
    here, there = cabled_namespaces
    address = getattr(there, family)
    with run_bench_server("--addr", address, inside=tuple(there.command_line_inside())) as (
        port,
        _,
    ):
        done = pace.run_command(
            [*COMMAND, "bench", kind, address, "-p", str(port), "--json",
             "--qp", "rc,ud,uc,rd", "-s", "1K", "-n", "60"],
            capture_output=True,
            text=True,
            seconds=60,
            cwd="/",
            start=here.start_program,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["points"]
    assert [point["qp"] for point in found] == ["rc", "ud", "uc", "rd"]
    assert all(point["value"] > 0 and not point["partial"] for point in found), found
