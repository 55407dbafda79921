"""RD with the independent peer over real sockets; tests/sim/peer has the other tests of RD."""

from __future__ import annotations

import pytest
from peer.link import CLEAN
from peer.ours import TIMEOUT_S
from peer.rd_ends import check_messages_both_ways


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.clause("DGRAM-RD-12", "DGRAM-RDV-1", "DGRAM-RDV-3")
def test_rd_messages_arrive_complete_exactly_once_and_in_order() -> None:
    check_messages_both_ways(CLEAN, "peer")
