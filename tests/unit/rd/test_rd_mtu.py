"""The length of reliable datagrams follows the path MTU as it changes."""

from __future__ import annotations

import pytest

KIT = """
import subprocess

from unit.rd.rd_kit import Endpoint, poll_until, send_all_segments
from unit.llp.llp_harness import Counters
def set_loopback_mtu(n):
    subprocess.run(["ip", "link", "set", "lo", "mtu", str(n)], check=True)
LEAST = 1200 - 40


def has_mulpdu(peer, what):
    return lib.siw_rd_mulpdu(peer, lib.SIW_RD_REQUESTS) == what
"""


@pytest.mark.clause("DGRAM-RD-29", "DGRAM-PMTU-1", "DGRAM-PMTU-2")
def test_the_segment_length_grows_to_the_path_mtu_when_long_segments_are_sent(run_in_namespace):
    run_in_namespace(
        "ip link set lo up",
        KIT
        + """
for n in (65536, 9000, 1500, 1280, 600):
    set_loopback_mtu(n)
    a, b, counters = Endpoint(), Endpoint(), Counters()
    peer = a.get_or_create_peer(b.local_addr)
    longest = max(min(n - 28, 65507) - 40, LEAST)
    send_all_segments(a, peer, [b"first"], a, b)  # the ACK grants the credit that limits the length
    # An MTU of 65536 is used without probes, because only the loopback interface has it.
    send_all_segments(a, peer, [b"short"] * 50, a, b)
    assert has_mulpdu(peer, longest if n == 65536 else LEAST), n
    assert counters["rd_probes"] == 0
    send_all_segments(a, peer, [b"x" * LEAST] * 50, a, b)
    poll_until(lambda: has_mulpdu(peer, longest), a, b)
    send_all_segments(a, peer, [b"y" * longest] * 5, a, b)
    long = [b"x" * LEAST] * 50 + [b"y" * longest] * 5
    assert b.received_data() == [b"first"] + [b"short"] * 50 + long
    a.close(), b.close()
""",
    )


@pytest.mark.clause("DGRAM-RD-30")
def test_when_the_path_mtu_shrinks_new_segments_shrink_and_queued_ones_arrive_too(run_in_namespace):
    run_in_namespace(
        "ip link set lo up",
        KIT
        + """
a, b = Endpoint(), Endpoint()
peer = a.get_or_create_peer(b.local_addr)
send_all_segments(a, peer, [b"first"], a, b)
set_loopback_mtu(1500)
counters = Counters()
long = [bytes([i]) * 60000 for i in range(10)]
send_all_segments(a, peer, long, a, b)
assert has_mulpdu(peer, 1500 - 28 - 40) and counters["rd_mtu_lowered"] == 1
send_all_segments(a, peer, [b"last" * 200] * 20, a, b)
assert b.received_data() == [b"first"] + long + [b"last" * 200] * 20
set_loopback_mtu(65536)
for tries in range(200):
    send_all_segments(a, peer, [b"x" * 1440] * 20, a, b)
    if has_mulpdu(peer, 65507 - 40):
        break
    time.sleep(0.05)
assert has_mulpdu(peer, 65507 - 40)
a.close(), b.close()
""",
    )
