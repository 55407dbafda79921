"""The two PSN spaces of reliable datagrams, requests and responses, and their credits."""

from __future__ import annotations

from typing import Any

import net
import pytest
from _siwarp_layers import lib
from unit.rd.rd_kit import REQUESTS, poll_until

from siwarp.inspect.rd import RDType


def allocate_uint64_pointer() -> Any:
    from _siwarp_layers import ffi

    return ffi.new("uint64_t *")


@pytest.mark.clause("DGRAM-RD-20")
def test_segments_beyond_a_reduced_credit_are_not_retransmitted(connected_endpoint):
    e, s = connected_endpoint
    peer = e.get_or_create_peer(s.address)
    s.send_datagram(RDType.ACK, credit=64)
    s.discard_datagrams_until_silent()
    for i in range(8):
        assert e.send(peer, bytes([i]) * 2000) == 1
    lib.siw_rd_flush(peer, allocate_uint64_pointer())
    sent = [s.receive_datagram(RDType.DATA) for _ in range(8)]
    assert [d.psn - s.other for d in sent] == [*range(8)]
    # credit for two segments and for half of the third segment
    s.send_datagram(RDType.ACK, credit=5)
    began, psns = net.now(), set()
    while net.now() - began < 1.5:
        d = s.receive_datagram(seconds=5.0)
        if d.type == RDType.DATA:
            psns.add(d.psn - s.other)
    # One probe of the last datagram may have been in flight.
    assert psns <= {0, 1, 7} and {0, 1} <= psns
    s.send_datagram(RDType.ACK, credit=64, acknowledged=s.other + 8)
    poll_until(lambda: lib.siw_rd_total_accepted_segments(peer, REQUESTS) == 8, e)
