"""RD on a kernel-emulated link whose router marks datagrams instead of dropping them (ECN)."""

from __future__ import annotations

import pytest
from namespaces import wan_harness

from lab.wan import flows as wan

pytestmark = pytest.mark.scales


@pytest.mark.clause("DGRAM-CC-7", "DGRAM-CC-8")
def test_ecn_marks_slow_an_rd_flow_as_losses_do_without_retransmissions() -> None:
    wan_harness.skip_without_tun_device()
    plan = "rate=50Mbit,delay=5ms"
    plain = wan.measure_flows(("rd",), 3, plan)
    marked = wan.measure_flows(("rd",), 3, plan + "; tx:mark=60%")
    # Only ECN-capable packets are marked, so the datagrams were transmitted with ECT(0).
    assert marked["line"]["a_to_b"]["marked"] > 10
    assert plain["line"]["a_to_b"]["marked"] == 0
    assert marked["flows"]["rd"]["mbit_s"] < 0.7 * plain["flows"]["rd"]["mbit_s"]
    assert marked["flows"]["rd"]["again"] * 10 < marked["line"]["a_to_b"]["marked"]
