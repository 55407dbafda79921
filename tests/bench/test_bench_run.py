"""`siwarp.bench.run`: raw sockets and siwarp are measured in turn, and the result is complete."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from typing import Any

import pytest
from harness.siwarp_process import folder_of_fork_server_clients
from pace import scale_limit

from siwarp import bench
from siwarp.bench import runner
from siwarp.bench.plan import make_bench_plan, make_raw_socket_floor_plan

SMALL: dict[str, dict[str, Any]] = {
    "ud lat": {"kind": "lat", "qp": "ud"},
    "ud lat event": {"kind": "lat", "qp": "ud", "wait": "event"},
    "ud bw": {"kind": "bw", "qp": "ud", "size": 60000},
    "ud bw small": {"kind": "bw", "qp": "ud", "size": 1000, "post_list": 8},
    "ud bw event": {"kind": "bw", "qp": "ud", "size": 4096, "depth": 7, "wait": "event"},
    "ud rate": {"kind": "rate", "qp": "ud", "size": 64},
    "ud rate event": {"kind": "rate", "qp": "ud", "size": 64, "wait": "event"},
    "rc lat send": {"kind": "lat", "qp": "rc"},
    "rc lat send event": {"kind": "lat", "qp": "rc", "wait": "event"},
    "rc lat write": {"kind": "lat", "qp": "rc", "op": "write"},
    "rc lat read": {"kind": "lat", "qp": "rc", "op": "read"},
    "rc bw send": {"kind": "bw", "qp": "rc", "size": 100_000},
    "rc bw write": {"kind": "bw", "qp": "rc", "op": "write", "size": 100_000},
    "rc bw read": {"kind": "bw", "qp": "rc", "op": "read", "size": 100_000},
    "rc bw read event": {"kind": "bw", "qp": "rc", "op": "read", "size": 9000, "wait": "event"},
    "rc rate": {"kind": "rate", "qp": "rc", "size": 64},
    "rc rate event": {"kind": "rate", "qp": "rc", "size": 1, "wait": "event", "post_list": 32},
    "rc rate write": {"kind": "rate", "qp": "rc", "op": "write", "post_list": 7},
    "rc rate read": {"kind": "rate", "qp": "rc", "op": "read", "post_list": 7},
    "uc lat": {"kind": "lat", "qp": "uc"},
    "uc lat write": {"kind": "lat", "qp": "uc", "op": "write"},
    "uc bw write": {"kind": "bw", "qp": "uc", "op": "write", "size": 60000},
    "uc rate write": {"kind": "rate", "qp": "uc", "op": "write", "wait": "event"},
    "uc bw": {"kind": "bw", "qp": "uc", "size": 60000},
    "uc rate": {"kind": "rate", "qp": "uc", "size": 64, "wait": "event"},
    "rd lat": {"kind": "lat", "qp": "rd"},
    "rd lat event": {"kind": "lat", "qp": "rd", "wait": "event"},
    "rd bw": {"kind": "bw", "qp": "rd", "size": 100_000},
    "rd bw write": {"kind": "bw", "qp": "rd", "op": "write", "size": 100_000, "wait": "event"},
    "rd rate": {"kind": "rate", "qp": "rd", "size": 64, "post_list": 3},
    "ud lat python": {"kind": "lat", "qp": "ud", "api": "python"},
    "ud lat python event": {"kind": "lat", "qp": "ud", "api": "python", "wait": "event"},
    "ud rate numpy": {"kind": "rate", "qp": "ud", "api": "numpy", "post_list": 4},
    "rc bw numpy": {"kind": "bw", "qp": "rc", "size": 5000, "api": "numpy"},
    "ud rate python": {"kind": "rate", "qp": "ud", "api": "python", "post_list": 4},
    "rc lat write python": {"kind": "lat", "qp": "rc", "op": "write", "api": "python"},
    "rc lat read python": {"kind": "lat", "qp": "rc", "op": "read", "api": "python"},
    "rc bw send python": {"kind": "bw", "qp": "rc", "size": 5000, "api": "python"},
    "rc bw write python": {"kind": "bw", "qp": "rc", "op": "write", "size": 5000, "api": "python"},
    "rc bw read python": {"kind": "bw", "qp": "rc", "op": "read", "size": 5000, "api": "python"},
}

FLOORS = {
    ("lat", "ud", "poll"): ("unconnected", {"connected", "blocking"}),
    ("lat", "ud", "event"): ("blocking", {"unconnected", "connected"}),
    ("lat", "rc", "poll"): ("polling", {"blocking"}),
    ("lat", "rc", "event"): ("blocking", {"polling"}),
    ("bw", "ud", "poll"): ("unconnected", {"connected", "blocking", "gso"}),
    ("bw", "ud", "event"): ("blocking", {"unconnected", "blocking-gso"}),
    ("bw", "rc", "poll"): ("polling", {"blocking"}),
    ("bw", "rc", "event"): ("blocking", {"polling"}),
    ("rate", "ud", "poll"): ("mmsg", {"single", "connected", "blocking-mmsg", "gso"}),
    ("rate", "ud", "event"): ("blocking-mmsg", {"mmsg", "blocking-gso"}),
    ("rate", "rc", "poll"): ("single", {"blocking", "coalesced"}),
    ("rate", "rc", "event"): ("blocking", {"single", "blocking-coalesced"}),
}


pytestmark = pytest.mark.scales


@pytest.fixture(autouse=True)
def extend_run_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time limit of a run, so that only a run that hangs exceeds it."""
    monkeypatch.setattr(runner, "LIMIT_S", int(scale_limit(runner.LIMIT_S)))


@pytest.fixture(autouse=True)
def use_forking_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(folder_of_fork_server_clients() / "python"))


@pytest.mark.parametrize("asked", SMALL.values(), ids=SMALL.keys())
def test_a_small_run_transfers_every_message_and_measures_every_floor(
    asked: dict[str, Any],
) -> None:
    result = bench.run(**asked, iters=200, rounds=1)

    for name, value in asked.items():
        assert result[name] == value
    # UC and RD use UDP like UD, so they are compared with the same raw-socket programs (floors)
    over = "rc" if asked["qp"] == "rc" else "ud"
    floor, others = FLOORS[asked["kind"], over, asked.get("wait", "poll")]
    if asked.get("api", "c") != "c":
        floor, others = "c", {floor}
    elif asked["qp"] == "rd":
        floor, others = (floor, set()) if asked["kind"] == "bw" else ("ud", {floor})
    if asked.get("size") == 60000:
        others = others - {
            "gso",
            "blocking-gso",
        }  # two GSO segments of this size exceed the largest datagram
    assert result["floor_name"] == floor
    assert set(result["floors"]) == others
    assert len(result["rounds"]) == 1
    for each in result["rounds"]:
        tails = {"p99", "p99.9"} if asked["kind"] == "lat" else set()
        assert set(each) - tails == {"floor", "ours", "ratio", *others}
        assert tails <= set(each)
        assert all(each[name] > 0 for name in set(each) - tails)
        for tail in tails:
            of_round = each[tail]
            assert 0 < each["ours"] <= of_round["ours"]
            ratio = of_round["ours"] / of_round["floor"]
            assert result["tails"][tail] == {
                "ours": of_round["ours"],
                "floor": of_round["floor"],
                "ratio": ratio,
            }
        assert each["ratio"] == pytest.approx(each["ours"] / each["floor"])


def test_the_floor_of_rd_bandwidth_is_as_many_octets_in_60_kb_ud_datagrams() -> None:
    plan = make_bench_plan("bw", "rd", iters=120)
    assert (plan.size, plan.depth) == (1 << 20, 16)
    beside = make_raw_socket_floor_plan(plan)
    assert (beside.qp, beside.op, beside.size) == ("ud", "send", 60000)
    assert beside.depth == make_bench_plan("bw", "ud").depth
    assert beside.iters % beside.messages_per_credit == 0
    assert 0 <= beside.iters - (120 << 20) // 60000 < beside.messages_per_credit


def test_the_floor_of_rd_latency_and_rate_is_the_same_plan_with_ud() -> None:
    for kind in ("lat", "rate"):
        plan = make_bench_plan(kind, "rd", iters=120)
        assert make_raw_socket_floor_plan(plan) == replace(plan, qp="ud")
        assert plan == replace(make_bench_plan(kind, "ud", iters=120), qp="rd")


@pytest.mark.parametrize("api", ["c", "python"])
def test_the_ratio_is_the_median_of_ours_over_the_median_of_the_floor(api: str) -> None:
    result = bench.run("lat", "ud", iters=100, rounds=3, api=api)

    ours = statistics.median(each["ours"] for each in result["rounds"])
    floor = statistics.median(each["floor"] for each in result["rounds"])
    assert (result["ours"], result["floor"]) == (ours, floor)
    assert result["ratio"] == ours / floor
    assert result["ratio_median"] == statistics.median(r["ratio"] for r in result["rounds"])
    # The raw-socket programs other than the floor are measured in every third round only.
    for name, value in result["floors"].items():
        assert [value] == [each[name] for each in result["rounds"] if name in each]


def test_without_a_number_of_messages_a_run_chooses_the_number() -> None:
    result = bench.run("rate", "rc", size=64, rounds=1, others=False)

    assert result["iters"] >= 4000
    assert result["iters"] % (result["depth"] // 2) == 0
    assert result["floors"] == {}


def test_the_number_of_messages_is_rounded_up_to_a_multiple_of_the_credit() -> None:
    result = bench.run("rate", "ud", iters=101, depth=20, rounds=1, others=False)

    assert result["iters"] == 110


def test_progress_is_reported_from_zero_to_the_total() -> None:
    told: list[tuple[int, int]] = []
    bench.run(
        "lat", "ud", iters=20, rounds=2, others=False, progress=lambda *step: told.append(step)
    )

    assert told == [(done, 2) for done in range(3)]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kind": "lat", "qp": "ud", "op": "write"}, "UD supports only send"),
        ({"kind": "lat", "qp": "rc", "op": "write", "wait": "event"}, "no event"),
        ({"kind": "bw", "qp": "ud", "size": 65507}, "at most 65485"),
        ({"kind": "bw", "qp": "ud", "size": 60000, "depth": 4096}, "receive buffer"),
        ({"kind": "bw", "qp": "tcp"}, "qp is one of ud, uc, rd, rc"),
        ({"kind": "bw", "post_list": 33}, "from 1 to 32"),
        ({"kind": "lat", "qp": "rd", "api": "python"}, "RD is measured only in C"),
        ({"kind": "lat", "qp": "ud", "api": "numpy"}, "arrays are measured only with streams"),
        ({"kind": "bw", "qp": "rd", "op": "read"}, "RD is measured with Sends"),
        ({"kind": "lat", "qp": "rd", "op": "write"}, "RD is measured with Sends"),
        ({"kind": "lat", "qp": "rd", "size": 65507}, "at most 65485"),
        ({"kind": "lat", "rounds": 0}, "at least 1"),
    ],
)
def test_an_unsupported_measurement_is_refused_with_the_reason(
    asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(bench.UsageError, match=words):
        bench.run(**asked)


def test_the_largest_ud_message_of_the_bench_is_the_limit_of_the_device() -> None:
    from siwarp.bench.plan import UD_MOST
    from siwarp.verbs import Context

    with Context() as context:
        assert context.query_device().max_ud_msg == UD_MOST
