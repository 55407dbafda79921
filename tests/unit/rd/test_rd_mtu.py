"""The length of reliable datagrams follows the path MTU as it changes."""

from __future__ import annotations

import pytest

KIT = """
import subprocess

from unit.rd.rd_kit import Endpoint, poll_until, send_all_segments
from unit.llp.llp_harness import Counters
def mtu(n):
    subprocess.run(["ip", "link", "set", "lo", "mtu", str(n)], check=True)
LEAST = 1200 - 40


def grown(peer, what):
    return lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) == what
"""


@pytest.mark.clause("DGRAM-RD-29", "DGRAM-PMTU-1", "DGRAM-PMTU-2")
def test_segments_grow_to_what_the_route_carries_when_long_ones_are_sent(run_in_namespace):
    run_in_namespace(
        "ip link set lo up",
        KIT
        + """
for n in (65536, 9000, 1500, 1280, 600):
    mtu(n)
    a, b, counters = Endpoint(), Endpoint(), Counters()
    peer = a.get_peer(b.local_addr)
    longest = max(min(n - 28, 65507) - 40, LEAST)
    send_all_segments(a, peer, [b"first"], a, b)  # its credit says how long a segment may be
    # Only the loopback interface has an MTU of 65536, and there is nothing to find out.
    send_all_segments(a, peer, [b"short"] * 50, a, b)
    assert grown(peer, longest if n == 65536 else LEAST), n
    assert counters["rd_probes"] == 0
    send_all_segments(a, peer, [b"x" * LEAST] * 50, a, b)
    poll_until(lambda: grown(peer, longest), a, b)
    send_all_segments(a, peer, [b"y" * longest] * 5, a, b)
    long = [b"x" * LEAST] * 50 + [b"y" * longest] * 5
    assert b.received_data() == [b"first"] + [b"short"] * 50 + long
    a.close(), b.close()
""",
    )


@pytest.mark.clause("DGRAM-RD-30")
def test_when_the_path_takes_less_segments_shrink_and_those_taken_go_in_fragments(run_in_namespace):
    run_in_namespace(
        "ip link set lo up",
        KIT
        + """
a, b = Endpoint(), Endpoint()
peer = a.get_peer(b.local_addr)
send_all_segments(a, peer, [b"first"], a, b)
mtu(1500)
counters = Counters()
long = [bytes([i]) * 60000 for i in range(10)]
send_all_segments(a, peer, long, a, b)
assert grown(peer, 1500 - 28 - 40) and counters["rd_mtu_lowered"] == 1
send_all_segments(a, peer, [b"last" * 200] * 20, a, b)
assert b.received_data() == [b"first"] + long + [b"last" * 200] * 20
mtu(65536)
for tries in range(200):
    send_all_segments(a, peer, [b"x" * 1440] * 20, a, b)
    if grown(peer, 65507 - 40):
        break
    time.sleep(0.05)
assert grown(peer, 65507 - 40)
a.close(), b.close()
""",
    )
