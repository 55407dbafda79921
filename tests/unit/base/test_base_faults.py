"""Fault plans parsed from text, and the faults that a plan applies to each packet."""

from __future__ import annotations

import math
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from hypothesis import given
from hypothesis import strategies as st
from table import run_test_for_each_row

TX, RX = 0, 1
PACKET_COUNT = 20000


def parse_fault_plan(text: str, place: int = lib.SIW_FAULTS_PROCESS) -> tuple[int, Any, str]:
    plan, why = ffi.new("struct siw_faults *"), ffi.new("char[192]")
    rv = lib.siw_faults_parse(text.encode(), place, plan, why, 192)
    return rv, plan, ffi.string(why).decode(errors="replace")


def parse_valid_fault_plan(text: str) -> Any:
    rv, plan, why = parse_fault_plan(text)
    assert rv == 0, why
    return plan


def format_fault_plan(plan: Any) -> str:
    out = ffi.new("char[4096]")
    assert lib.siw_faults_format(plan, out, 4096) < 4096
    return ffi.string(out).decode()


def make_siw_addr(text: str, port: int = 4791) -> Any:
    out = ffi.new("struct siw_addr *")
    assert lib.siw_addr_parse(text.encode(), port, out) == 0
    return out


class FaultPath:
    """The packets of one flow in one direction, under a fault plan."""

    def __init__(self, text: str, way: int = TX, flow: int = 0, peer: Any = None) -> None:
        self.plan, self.c = parse_valid_fault_plan(text), ffi.new("struct siw_fault_path *")
        self.peer = peer or make_siw_addr("127.0.0.1")
        lib.siw_fault_path_init(self.c, self.plan, 0, way, flow)

    def decide_fate(
        self, length: int = 100, now: int = 0, packets: int = 0, octets: int = 0
    ) -> Any:
        fate = ffi.new("struct siw_fault_decision *")
        lib.siw_fault_decide_packet_fate(
            self.plan, self.c, self.peer, length, now, packets, octets, fate
        )
        return fate

    def decide_drops(self, n: int = PACKET_COUNT) -> list[bool]:
        return [self.decide_fate().drop >= 0 for _ in range(n)]


def expected_range_of_fault_count(share: float, n: int = PACKET_COUNT) -> tuple[float, float]:
    """Return the range of five standard deviations around the expected number of faults."""
    wide = 5 * math.sqrt(n * share * (1 - share))
    return n * share - wide, n * share + wide


def test_every_fault_of_a_fault_plan_is_parsed_with_its_unit() -> None:
    plan = parse_valid_fault_plan(
        "tx:loss=1%,burst=5,dup=0.5%,reorder=2%,corrupt=0.1%,delay=0.1ms,jitter=50us,rate=50Mbit,"
        "limit=256KB,blackout=2s@10s,seed=7,peer=10.1.0.0/16:4791; rx:reset=1MB,short=10%;"
        "reset=5s,limit=100,peer=[fd00::]/8:80"
    )
    a, b, c = plan.clause[0], plan.clause[1], plan.clause[2]
    assert plan.n == 3
    assert (a.dirs, b.dirs, c.dirs) == (1, 2, 3)
    assert (a.loss, a.dup, a.reorder, a.corrupt) == (10**7, 5 * 10**6, 2 * 10**7, 10**6)
    assert (a.burst, a.delay, a.jitter, a.rate) == (5, 100_000, 50_000, 50_000_000)
    assert (a.limit, a.limit_octets, c.limit, c.limit_octets) == (256_000, True, 100, False)
    assert (a.blackout_for, a.blackout_at, a.seed) == (2 * 10**9, 10**10, 7)
    assert (a.prefix, a.peer.port_be, bytes(a.peer.v4)) == (16, 0xB712, bytes([10, 1, 0, 0]))
    assert (b.reset_after, b.partial, b.seed) == (10**6, 10**8, 1)
    assert (c.has_reset_at, c.reset_at, c.prefix, c.peer.family) == (True, 5 * 10**9, 8, 10)


@run_test_for_each_row(
    ("text", "clause", "character", "words"),
    [
        ("loss=1", 1, 6, "a percentage such as 1%"),
        ("loss=1%;delay=5", 2, 15, "a time such as 2s"),
        ("loss=101%", 1, 6, "exceeds the maximum"),
        ("loss=0.00000001%", 1, 6, "decimal places"),
        ("los=1%", 1, 1, "is not a fault"),
        ("loss", 1, 5, "= and a value"),
        ("loss=1%,loss=2%", 1, 9, "twice"),
        ("loss=1%,dup=2%,dup=3%", 1, 16, "twice"),
        ("delay=1ms,peer=127.0.0.1,peer=::1", 1, 26, "twice"),
        ("loss=1%,,dup=1%", 1, 9, "expected a fault"),
        ("loss=1%;", 2, 9, "expected a fault"),
        ("loss=1% dup=1%", 1, 9, "a comma"),
        ("burst=5", 1, 8, "requires loss="),
        ("burst=0,loss=1%", 1, 7, "a number from 1"),
        ("rate=50M", 1, 6, "a rate such as 50Mbit"),
        ("rate=0bit", 1, 6, "a rate of 0"),
        ("limit=x", 1, 7, "a number of packets"),
        ("blackout=2s", 1, 10, "length@start"),
        ("blackout=2s@x", 1, 13, "a time such as 2s"),
        ("reset=7", 1, 7, "octets such as 1MB"),
        ("peer=host", 1, 6, "a numeric address"),
        ("peer=10.0.0.0/33", 1, 6, "a prefix length up to 32"),
        ("peer=10.0.0.0:0", 1, 6, "a port from 1"),
        ("peer=[::1", 1, 6, "closing bracket"),
        ("seed=x", 1, 6, "a number"),
        ("up:loss=1%", 1, 1, "is not a fault"),
        (";".join(["loss=1%"] * 9), 9, 65, "at most 8 clauses"),
        ("delay=" + "9" * 90, 1, 7, "too long"),
    ],
)
def test_an_invalid_fault_plan_is_refused_with_clause_and_character(
    text: str, clause: int, character: int, words: str
) -> None:
    rv, _, why = parse_fault_plan(text)
    assert rv == -22
    assert why.startswith(f"clause {clause}, character {character}: "), why
    assert words in why


PACKETS = ["loss", "burst", "corrupt", "mark", "delay", "jitter", "rate", "limit", "blackout"]
RULES = {
    "SIW_FAULTS_PROCESS": [*PACKETS, "dup", "reorder", "reset", "short", "peer", "seed"],
    "SIW_FAULTS_RELAY": [*PACKETS, "dup", "reorder", "peer", "seed"],
    "SIW_FAULTS_LINK": [*PACKETS, "dup", "reorder", "reset", "short", "peer", "seed"],
    "SIW_FAULTS_INTERFACE": [*PACKETS, "peer", "seed"],
}
VALUES = {
    **dict.fromkeys(("loss", "corrupt", "mark", "dup", "reorder", "short"), "1%"),
    **dict.fromkeys(("delay", "jitter", "reset"), "1ms"),
    "burst": "2,loss=1%",
    "rate": "1Mbit",
    "limit": "9",
    "blackout": "1s@1s",
    "peer": "::1",
    "seed": "7",
}


@run_test_for_each_row("place", list(RULES))
@run_test_for_each_row("rule", list(VALUES))
def test_a_fault_that_a_place_does_not_support_is_refused_by_name(place: str, rule: str) -> None:
    rv, _, why = parse_fault_plan(f"delay=1ms; {rule}={VALUES[rule]}", getattr(lib, place))
    if rule in RULES[place]:
        assert (rv, why) == (0, "")
    else:
        assert rv == -22
        assert why.startswith("clause 2, character 12: ")
        assert f"{rule}= " in why


def test_an_empty_text_is_a_fault_plan_without_clauses() -> None:
    assert parse_valid_fault_plan("  ").n == 0
    assert format_fault_plan(parse_valid_fault_plan("")) == ""


SHARES = st.integers(1, 10**9).map(lambda n: f"{n // 10**7}.{n % 10**7:07}%")
TIMES = st.builds(
    lambda n, u: f"{n}{u}", st.integers(1, 10**6), st.sampled_from(["ns", "us", "ms"])
)
OCTETS = st.builds(
    lambda n, u: f"{n}{u}", st.integers(1, 4000), st.sampled_from(["B", "KB", "KiB", "MB", "MiB"])
)
V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(str)
PORTS = st.integers(1, 65535)
PEERS = st.one_of(
    V4,
    V6,
    st.builds(lambda a, n: f"{a}/{n}", V4, st.integers(0, 32)),
    st.builds(lambda a, n, p: f"{a}/{n}:{p}", V4, st.integers(0, 32), PORTS),
    st.builds(lambda a, n, p: f"[{a}]/{n}:{p}", V6, st.integers(0, 128), PORTS),
)
CLAUSES = st.builds(
    lambda way, items: way + ",".join(f"{k}={v}" for k, v in items.items()),
    st.sampled_from(["", "tx:", "rx:"]),
    st.fixed_dictionaries(
        {"loss": SHARES},
        optional={
            "burst": st.integers(1, 1000),
            "dup": SHARES,
            "reorder": SHARES,
            "corrupt": SHARES,
            "delay": TIMES,
            "jitter": TIMES,
            "rate": st.builds(
                lambda n, u: f"{n}{u}",
                st.integers(1, 9999),
                st.sampled_from(["bit", "kbit", "Mbit", "Gbit"]),
            ),
            "limit": st.one_of(st.integers(1, 9999).map(str), OCTETS),
            "blackout": st.builds("{}@{}".format, TIMES, TIMES),
            "reset": st.one_of(TIMES, OCTETS),
            "short": SHARES,
            "peer": PEERS,
            "seed": st.integers(0, 2**63 - 1),
        },
    ),
)


@given(st.lists(CLAUSES, max_size=8).map("; ".join))
def test_a_formatted_fault_plan_is_parsed_to_the_same_values(text: str) -> None:
    plan = parse_valid_fault_plan(text)
    again = parse_valid_fault_plan(format_fault_plan(plan))
    assert bytes(ffi.buffer(plan)) == bytes(ffi.buffer(again))
    assert format_fault_plan(again) == format_fault_plan(plan)


@given(st.text(max_size=60) | st.text("=%;,:@[]/.0123456789lostxrdeayMbi ", max_size=60))
def test_any_text_is_a_valid_fault_plan_or_refused_with_a_reason(text: str) -> None:
    rv, _, why = parse_fault_plan(text.replace("\0", ""))
    assert (rv == 0) == (why == "")
    assert rv == 0 or why.startswith("clause ")


def test_a_fault_plan_applies_the_same_faults_exactly_for_the_same_seed() -> None:
    text = "loss=5%,dup=5%,reorder=5%,corrupt=5%,jitter=1ms,seed="

    def fault_decisions_with_seed(seed: int, **kind: int) -> list[tuple[Any, ...]]:
        path = FaultPath(text + str(seed), **kind)
        fates = [path.decide_fate() for _ in range(2000)]
        return [(f.drop, f.dup, f.passes, f.corrupt, f.flip, f.release_ns) for f in fates]

    first = fault_decisions_with_seed(7)
    assert fault_decisions_with_seed(7) == first
    assert fault_decisions_with_seed(8) != first
    assert fault_decisions_with_seed(7, way=RX) != first
    assert fault_decisions_with_seed(7, flow=1) != first


def test_the_faults_of_a_seed_are_the_same_in_all_versions() -> None:
    """A fault plan applies the same faults to the same packets in every later version."""
    path = FaultPath("loss=5%,dup=5%,reorder=5%,corrupt=5%,jitter=1ms,seed=7")
    fates = [path.decide_fate() for _ in range(100)]
    assert [i for i, f in enumerate(fates) if f.drop >= 0] == [26, 35, 61, 72, 98]
    assert [i for i, f in enumerate(fates) if f.dup] == [21, 28, 33, 52]
    assert [(i, f.passes) for i, f in enumerate(fates) if f.passes] == [
        (33, 2),
        (42, 2),
        (49, 2),
        (60, 1),
        (67, 1),
        (76, 3),
        (91, 2),
    ]
    assert [(i, f.flip) for i, f in enumerate(fates) if f.corrupt] == [
        (2, 17375352900443018828),
        (47, 16034822954987232600),
        (79, 14244817736390976453),
        (88, 4677911470275023289),
    ]


def test_adding_a_fault_to_a_plan_does_not_change_which_packets_are_lost() -> None:
    assert (
        FaultPath("loss=5%").decide_drops()
        == FaultPath("loss=5%,jitter=1ms,dup=10%,corrupt=3%").decide_drops()
    )


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5])
def test_losses_duplicates_reorderings_and_corruptions_have_their_percentage(share: float) -> None:
    p = f"{share * 100:g}%"
    least, most = expected_range_of_fault_count(share)
    assert least <= sum(FaultPath(f"loss={p}").decide_drops()) <= most
    path = FaultPath(f"dup={p},reorder={p},corrupt={p}")
    fates = [path.decide_fate() for _ in range(PACKET_COUNT)]
    for count in (
        sum(f.dup for f in fates),
        sum(f.passes > 0 for f in fates),
        sum(f.corrupt for f in fates),
    ):
        assert least <= count <= most
    assert {f.passes for f in fates} <= {0, 1, 2, 3}


def test_losses_of_0_and_100_percent_are_exact() -> None:
    assert not any(FaultPath("loss=0%").decide_drops(1000))
    assert all(FaultPath("loss=100%").decide_drops(1000))
    assert all(FaultPath("loss=100%,burst=7").decide_drops(1000))


@pytest.mark.parametrize(("share", "burst"), [(0.01, 5), (0.1, 10), (0.3, 3)])
def test_bursts_have_their_length_and_losses_keep_their_percentage(
    share: float, burst: int
) -> None:
    drops = FaultPath(f"loss={share * 100:g}%,burst={burst}").decide_drops(5 * PACKET_COUNT)
    runs = [
        len(run) for run in "".join("x" if d else "." for d in drops).strip("x").split(".") if run
    ]
    assert runs
    # Two bursts may follow each other directly.
    assert all(run % burst == 0 for run in runs)
    # The bursts are drawn at random, so their number has the binomial standard deviation.
    n = 5 * PACKET_COUNT / burst
    wide = 5 * math.sqrt(n * share) * burst
    assert abs(sum(drops) - 5 * PACKET_COUNT * share) <= wide


def test_a_fault_clause_applies_only_to_its_direction() -> None:
    assert all(FaultPath("tx:loss=100%", TX).decide_drops(10))
    assert not any(FaultPath("tx:loss=100%", RX).decide_drops(10))
    assert all(FaultPath("rx:loss=100%", RX).decide_drops(10))


@run_test_for_each_row(
    ("peer", "host", "port", "fits"),
    [
        ("10.1.2.3", "10.1.2.3", 5, True),
        ("10.1.2.3", "10.1.2.4", 5, False),
        ("10.1.2.0/23", "10.1.3.4", 5, True),
        ("10.1.2.0/23", "10.1.4.4", 5, False),
        ("0.0.0.0/0", "200.1.4.4", 5, True),
        ("10.1.2.3:5", "10.1.2.3", 5, True),
        ("10.1.2.3:5", "10.1.2.3", 6, False),
        ("fd00::/7", "fc01::1", 5, True),
        ("fd00::1", "fd00::2", 5, False),
        ("[fd00::1]:5", "fd00::1", 6, False),
        ("::/0", "10.1.2.3", 5, False),
    ],
)
def test_a_fault_clause_applies_only_to_its_peer(
    peer: str, host: str, port: int, fits: bool
) -> None:
    path = FaultPath(f"loss=100%,peer={peer}", peer=make_siw_addr(host, port))
    assert path.decide_drops(3) == [fits] * 3


def test_delays_of_all_fault_clauses_add_up_and_jitter_does_not_reorder_packets() -> None:
    path = FaultPath("delay=3ms,jitter=1ms;delay=2ms")
    releases = [path.decide_fate(now=i * 1000).release_ns - i * 1000 for i in range(1000)]
    assert min(releases) >= 5_000_000
    path = FaultPath("delay=3ms,jitter=1ms")
    times = [path.decide_fate(now=i * 1000).release_ns for i in range(1000)]
    assert times == sorted(times)
    assert all(t - i * 1000 >= 3_000_000 for i, t in enumerate(times))
    assert max(t - i * 1000 for i, t in enumerate(times)) <= 4_000_000


def test_a_rate_spaces_datagrams_and_a_limit_drops_excess_datagrams() -> None:
    path = FaultPath("rate=8Mbit,delay=1ms,limit=3")
    fates = [path.decide_fate(1000, now=0, packets=i) for i in range(5)]
    # 1000 octets at 8 Mbit/s take a millisecond.
    assert [f.depart_ns for f in fates[:3]] == [10**6, 2 * 10**6, 3 * 10**6]
    assert [f.release_ns for f in fates[:3]] == [2 * 10**6, 3 * 10**6, 4 * 10**6]
    assert [f.drop for f in fates[3:]] == [counter_index("fault_limit")] * 2
    assert path.decide_fate(1000, now=10**9).release_ns == 10**9 + 2 * 10**6
    octets = FaultPath("rate=8Mbit,limit=2KB")
    assert octets.decide_fate(1000, octets=0).drop == -1
    assert octets.decide_fate(1000, octets=1000).drop == -1
    assert octets.decide_fate(1000, octets=1001).drop == counter_index("fault_limit")


def counter_index(name: str) -> int:
    for i in range(lib.siw_counters_count()):
        if ffi.string(lib.siw_counter_name(i)).decode() == name:
            return i
    raise AssertionError(name)


def test_a_blackout_drops_packets_exactly_in_its_period() -> None:
    path = FaultPath("blackout=2s@10s")
    times = [0, 9_999_999_999, 10**10, 11_999_999_999, 12 * 10**9]
    assert [path.decide_fate(now=t).drop for t in times] == [-1, -1] + [
        counter_index("fault_blackout")
    ] * 2 + [-1]


def make_corrupted_stream(text: str, cuts: list[int]) -> bytes:
    path = FaultPath(text)
    out = b""
    for n in cuts:
        octets = ffi.new("uint8_t[]", n)
        lib.siw_fault_corrupt_stream_octets(path.plan, path.c, path.peer, octets, n)
        out += bytes(ffi.buffer(octets))
    return out


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_corruption_of_a_tcp_stream_is_independent_of_call_sizes(cuts: list[int]) -> None:
    assert make_corrupted_stream("corrupt=30%", cuts) == make_corrupted_stream(
        "corrupt=30%", [sum(cuts)]
    )


def test_a_corrupted_tcp_stream_has_one_changed_bit_in_its_percentage_of_pieces() -> None:
    octets = make_corrupted_stream("corrupt=10%", [1460 * 5000])
    pieces = [octets[i : i + 1460] for i in range(0, len(octets), 1460)]
    bits = [sum(o.bit_count() for o in piece) for piece in pieces]
    assert set(bits) == {0, 1}
    least, most = expected_range_of_fault_count(0.1, 5000)
    assert least <= sum(bits) <= most


def test_short_tcp_calls_have_their_percentage_and_a_reset_follows_its_octets() -> None:
    path = FaultPath("short=20%")
    shares = [
        lib.siw_fault_stream_octets_for_next_call(path.plan, path.c, path.peer, 1000, 0)
        for _ in range(PACKET_COUNT)
    ]
    least, most = expected_range_of_fault_count(0.2)
    assert least <= sum(n < 1000 for n in shares) <= most
    assert min(shares) >= 1
    path = FaultPath("reset=1500B")
    assert lib.siw_fault_stream_octets_for_next_call(path.plan, path.c, path.peer, 1000, 0) == 1000
    path.c.octets = 1000
    assert lib.siw_fault_stream_octets_for_next_call(path.plan, path.c, path.peer, 1000, 0) == 500
    path.c.octets = 1500
    assert lib.siw_fault_stream_octets_for_next_call(path.plan, path.c, path.peer, 1000, 0) == 0
