"""Both congestion controllers at a modelled bottleneck: utilization, losses, and fairness."""

from __future__ import annotations

import pytest
from unit.rd.cc_sim import MSS, Bottleneck, capacity_share, loss_fraction


@pytest.mark.clause("DGRAM-CC-1")
@pytest.mark.parametrize("kind", ["bbr", "cubic"])
@pytest.mark.parametrize(
    ("mbit_s", "queue", "rtt_ms"),
    [(20, 15_000, 4), (20, 60_000, 4), (20, 20_000, 40), (100, 15_000, 4), (50, 60_000, 20)],
)
def test_one_flow_uses_most_of_a_bottlenecks_capacity_and_loses_little(kind, mbit_s, queue, rtt_ms):
    line = Bottleneck(mbit_s, queue)
    flow = line.add_flow(rtt_ms, kind)
    line.run(3)
    used = capacity_share(flow, line)
    assert used >= (0.9 if kind == "bbr" else 0.8)
    assert loss_fraction(flow) <= 0.04


@pytest.mark.clause("DGRAM-CC-3")
@pytest.mark.parametrize("rtt_ms", [0.2, 4])
def test_bbr_loses_little_at_a_bottleneck_with_a_queue_of_two_packets(rtt_ms):
    line = Bottleneck(20, 3000)
    flow = line.add_flow(rtt_ms)
    line.run(2)
    assert capacity_share(flow, line) >= 0.8
    assert loss_fraction(flow) <= 0.1


@pytest.mark.clause("DGRAM-CC-3")
@pytest.mark.parametrize("mbit_s", [20, 100])
def test_bbr_does_not_mistake_the_burst_of_a_token_bucket_for_its_rate(mbit_s):
    line = Bottleneck(mbit_s, MSS, bucket=2 * MSS)
    flow = line.add_flow(0.2)
    line.run(2)
    assert capacity_share(flow, line) >= 0.8
    assert loss_fraction(flow) <= 0.1


@pytest.mark.clause("DGRAM-CC-4")
def test_bbr_keeps_its_rate_at_one_percent_of_random_loss():
    line = Bottleneck(50, 250_000, loss=0.01)
    flow = line.add_flow(20)
    line.run(4)
    assert capacity_share(flow, line) >= 0.9


@pytest.mark.clause("DGRAM-CC-6")
@pytest.mark.parametrize(
    ("mbit_s", "queue", "rtt_ms"), [(20, 15_000, 4), (20, 60_000, 4), (100, 50_000, 4)]
)
def test_two_bbr_flows_share_a_bottleneck_fairly(mbit_s, queue, rtt_ms):
    line = Bottleneck(mbit_s, queue)
    one, other = line.add_flow(rtt_ms), line.add_flow(rtt_ms)
    line.run(5)
    assert capacity_share(one, line) + capacity_share(other, line) >= 0.9
    assert 0.6 <= one.delivered / other.delivered <= 1.7


@pytest.mark.clause("DGRAM-CC-5")
@pytest.mark.parametrize(
    ("mbit_s", "queue", "rtt_ms"), [(20, 15_000, 4), (20, 60_000, 4), (100, 50_000, 4)]
)
def test_a_cubic_flow_beside_bbr_keeps_a_third_of_its_rate_beside_cubic(mbit_s, queue, rtt_ms):
    line = Bottleneck(mbit_s, queue)
    usual = [line.add_flow(rtt_ms, "cubic"), line.add_flow(rtt_ms, "cubic")]
    line.run(3)
    beside = Bottleneck(mbit_s, queue)
    cubic, _ = beside.add_flow(rtt_ms, "cubic"), beside.add_flow(rtt_ms, "bbr")
    beside.run(3)
    assert cubic.delivered * 3 >= sum(f.delivered for f in usual) / 2


@pytest.mark.clause("DGRAM-CC-8")
@pytest.mark.parametrize("kind", ["bbr", "cubic"])
def test_ce_marks_keep_the_queue_short_without_losses(kind):
    line = Bottleneck(50, 500_000, mark_at=30_000)
    flow = line.add_flow(10, kind)
    line.run(3)
    assert line.marks > 0
    assert flow.lost == 0
    assert capacity_share(flow, line) >= 0.85
    bdp = 50e6 / 8 * 0.010
    assert flow.cc.cwnd < bdp + 100_000
