"""How long reliable datagrams are: what the path carries, as it changes."""

from __future__ import annotations

import pytest

KIT = """
import subprocess

from unit.llp.rd_kit import Endpoint, pump, run
from unit.llp.conftest import Counters
def mtu(n):
    subprocess.run(["ip", "link", "set", "lo", "mtu", str(n)], check=True)
"""


@pytest.mark.clause("DGRAM-RD-29")
def test_segments_are_as_long_as_the_route_carries(namespace):
    namespace(
        "ip link set lo up",
        KIT
        + """
a, b = Endpoint(), Endpoint()
for n in (65536, 9000, 1500, 1280):
    mtu(n)
    e = Endpoint()
    assert lib.siw_llp_rd_mulpdu(e.peer(b.local)) == min(n - 28, 65507) - 32, n
    e.close()
mtu(600)
e = Endpoint()
assert lib.siw_llp_rd_mulpdu(e.peer(b.local)) == 1200 - 32
pump(e, e.peer(b.local), [b"x" * 1168] * 5, e, b)
assert b.data() == [b"x" * 1168] * 5
e.close(), a.close(), b.close()
""",
    )


@pytest.mark.clause("DGRAM-RD-30")
def test_when_the_path_takes_less_segments_shrink_and_those_taken_go_in_fragments(namespace):
    namespace(
        "ip link set lo up",
        KIT
        + """
a, b = Endpoint(), Endpoint()
peer = a.peer(b.local)
pump(a, peer, [b"first"], a, b)
mtu(1500)
counters = Counters()
long = [bytes([i]) * 60000 for i in range(10)]
pump(a, peer, long, a, b)
assert lib.siw_llp_rd_mulpdu(peer) < 60000 and counters["rd_mtu_lowered"] >= 1
pump(a, peer, [b"last" * 200] * 20, a, b)
assert b.data() == [b"first"] + long + [b"last" * 200] * 20
a.close(), b.close()
""",
    )
