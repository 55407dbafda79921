"""RD across a router: the datagram length if the MTU in the middle differs from that of the ends.

tests/sim/test_sim_rd_paths.py covers paths that begin to drop long datagrams silently.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from namespaces.path_harness import V4, V6, End, Path3

WAIT = 60.0 if "SANITIZER" in os.environ else 20.0
TIMEOUT = 2.0


@pytest.fixture
def ends(path: Path3, request: pytest.FixtureRequest) -> Iterator[tuple[End, End]]:
    host = getattr(request, "param", V4)
    a, b = path.end("a"), path.end("b")
    there, here = b.do("start", "RD", host["b"], TIMEOUT), a.do("start", "RD", host["a"], TIMEOUT)
    a.do("meet", *there)
    b.do("meet", *here)
    yield a, b
    a.close()
    b.close()


both = pytest.mark.parametrize("ends", [V4, V6], ids=["v4", "v6"], indirect=True)


def deliver(a: End, b: End, sizes: list[int]) -> None:
    """Send messages from a to b, all of which must arrive."""
    b.do("recv", sizes)
    a.ask("send", sizes, WAIT)
    b.ask("received", len(sizes), WAIT)
    assert b.answer() == sizes
    assert a.answer() == ["SUCCESS"] * len(sizes)


def behind(a: End, b: End) -> None:
    """Send an empty message, which orders memory accesses of both ends before and after it."""
    deliver(a, b, [0])


def packets_of(path: Path3, a: End, b: End) -> float:
    """Return the mean length in octets of the packets of a large message on the middle link."""
    n, octets = path.crossed()
    deliver(a, b, [400_000])
    n_now, octets_now = path.crossed()
    return float(octets_now - octets) / (n_now - n)


def wait_for_packet_size(path: Path3, a: End, b: End, mtu: int) -> None:
    """Send until the packets reach this length: only long messages raise the path MTU."""
    end = time.monotonic() + WAIT
    while not mtu - 60 < (mean := packets_of(path, a, b)) <= mtu:
        assert time.monotonic() < end, mean
        time.sleep(0.1)


@both
@pytest.mark.clause("DGRAM-PMTU-1")
def test_everything_crosses_a_path_that_drops_long_datagrams_in_silence(
    path: Path3, ends: tuple[End, End]
) -> None:
    a, b = ends
    path.middle(1280, routers_tell=False)
    deliver(a, b, [100_000, 64, 5000])
    # The dropped path MTU probes contained no data segment.
    assert a.do("count", "rd_mtu_lowered") == [0]
    behind(a, b)
    assert a.do("send", [300_000], WAIT, "RDMA_WRITE") == ["SUCCESS"]
    behind(a, b)
    assert b.do("memory", 299_999, 2) == [300_000 % 251, 0]
    b.do("fill", 0x5A, 200_000)
    behind(a, b)
    assert a.do("send", [200_000], WAIT, "RDMA_READ") == ["SUCCESS"]
    assert a.do("sent", 199_999, 1) == [0x5A]
    behind(a, b)
    b.do("fill", 0, 8)
    behind(a, b)
    assert a.do("send", [8], WAIT, "ATOMIC_FETCH_AND_ADD") == ["SUCCESS"]
    behind(a, b)
    assert b.do("memory", 0, 1) == [1]


@both
@pytest.mark.clause("DGRAM-PMTU-2", "DGRAM-PMTU-3")
def test_datagrams_follow_the_path_down_and_up_again_as_routers_tell(
    path: Path3, ends: tuple[End, End]
) -> None:
    a, b = ends
    wait_for_packet_size(path, a, b, 1500)
    path.middle(1280)
    deliver(a, b, [100_000])
    assert a.do("count", "rd_mtu_lowered")[0] >= 1
    wait_for_packet_size(path, a, b, 1280)
    path.middle(1500)
    wait_for_packet_size(
        path, a, b, 1500
    )  # although the kernel caches the lower path MTU for minutes


@pytest.mark.clause("DGRAM-PMTU-4")
def test_what_a_router_is_said_to_tell_counts_only_when_something_is_missing(
    path: Path3, ends: tuple[End, End]
) -> None:
    a, b = ends
    wait_for_packet_size(path, a, b, 1500)
    here, there = a.do("address"), b.do("address")
    addresses = socket.inet_aton(V4["a"]) + socket.inet_aton(V4["b"])
    quoted = struct.pack("!BBHHHBBH", 0x45, 0, 1500, 1, 0x4000, 64, 17, 0) + addresses
    quoted += struct.pack("!HHHH", here[1], there[1], 1480, 0)
    path.forge(600, quoted)
    # The kernel has accepted the forged path MTU.
    assert "mtu 600" in path.sh("a", f"ip route get {V4['b']}")
    assert packets_of(path, a, b) > 1440
    assert a.do("count", "rd_mtu_lowered") == [0]


@both
@pytest.mark.clause("DGRAM-RD-22", "DGRAM-RDV-10")
def test_a_peer_behind_a_link_that_is_gone_is_found_and_met_again_when_it_is_back(
    path: Path3, ends: tuple[End, End]
) -> None:
    a, b = ends
    deliver(a, b, [64, 5000])
    # Outage shorter than the peer time-out: no message is lost.
    b.do("recv", [20_000])
    path.down()
    a.ask("send", [20_000], WAIT)
    b.do("turn", TIMEOUT / 4)
    path.up()
    assert b.do("received", 1, WAIT) == [20_000]
    assert a.answer() == ["SUCCESS"]
    # Longer outage: each request fails, and the queue pair remains usable.
    path.down()
    began = time.monotonic()
    assert a.do("send", [64, 64], WAIT) == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert 0.8 * TIMEOUT <= time.monotonic() - began < 1.2 * TIMEOUT + (WAIT - 20)
    assert a.do("state") == "RTS"
    path.up()
    deliver(a, b, [64, 50_000])
