"""RD across a router: the datagram length if the middle link's MTU differs from that of the ends.

tests/sim/test_sim_rd_paths.py covers paths that begin to drop long datagrams silently.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from namespaces.path_harness import V4, V6, RemoteEnd, RoutedPath

WAIT = 60.0 if "SANITIZER" in os.environ else 20.0
TIMEOUT = 2.0


@pytest.fixture
def connected_rd_ends(
    routed_path: RoutedPath, request: pytest.FixtureRequest
) -> Iterator[tuple[RemoteEnd, RemoteEnd]]:
    host = getattr(request, "param", V4)
    a, b = routed_path.start_remote_end("a"), routed_path.start_remote_end("b")
    there, here = (
        b.call("create_queue_pair", "RD", host["b"], TIMEOUT),
        a.call("create_queue_pair", "RD", host["a"], TIMEOUT),
    )
    a.call("connect_to_peer", *there)
    b.call("connect_to_peer", *here)
    yield a, b
    a.close()
    b.close()


for_ipv4_and_ipv6 = pytest.mark.parametrize(
    "connected_rd_ends", [V4, V6], ids=["v4", "v6"], indirect=True
)


def send_and_check_delivery(a: RemoteEnd, b: RemoteEnd, sizes: list[int]) -> None:
    """Send messages from a to b, all of which must arrive."""
    b.call("post_receives", sizes)
    a.start_call("send_and_wait", sizes, WAIT)
    b.start_call("wait_for_messages", len(sizes), WAIT)
    assert b.wait_for_result() == sizes
    assert a.wait_for_result() == ["SUCCESS"] * len(sizes)


def send_empty_message(a: RemoteEnd, b: RemoteEnd) -> None:
    """Send an empty message, which orders all preceding and following memory accesses of both
    ends.
    """
    send_and_check_delivery(a, b, [0])


def measure_mean_packet_length(routed_path: RoutedPath, a: RemoteEnd, b: RemoteEnd) -> float:
    """Return the mean length in octets of the packets of a large message on the middle link."""
    n, octets = routed_path.count_forwarded_packets()
    send_and_check_delivery(a, b, [400_000])
    n_now, octets_now = routed_path.count_forwarded_packets()
    return float(octets_now - octets) / (n_now - n)


def send_until_packet_size(routed_path: RoutedPath, a: RemoteEnd, b: RemoteEnd, mtu: int) -> None:
    """Send until the packets reach this length; only long messages raise the path MTU."""
    end = time.monotonic() + WAIT
    while not mtu - 60 < (mean := measure_mean_packet_length(routed_path, a, b)) <= mtu:
        assert time.monotonic() < end, mean
        time.sleep(0.1)


@for_ipv4_and_ipv6
@pytest.mark.clause("DGRAM-PMTU-1")
def test_all_rd_operations_complete_over_a_path_that_silently_drops_long_datagrams(
    routed_path: RoutedPath, connected_rd_ends: tuple[RemoteEnd, RemoteEnd]
) -> None:
    a, b = connected_rd_ends
    routed_path.set_middle_link_mtu(1280, routers_report=False)
    send_and_check_delivery(a, b, [100_000, 64, 5000])
    # The dropped path MTU probes contained no data segment.
    assert a.call("read_own_counter_values", "rd_mtu_lowered") == [0]
    send_empty_message(a, b)
    assert a.call("send_and_wait", [300_000], WAIT, "RDMA_WRITE") == ["SUCCESS"]
    send_empty_message(a, b)
    assert b.call("read_memory_exposed_to_peer", 299_999, 2) == [300_000 % 251, 0]
    b.call("fill_exposed_memory", 0x5A, 200_000)
    send_empty_message(a, b)
    assert a.call("send_and_wait", [200_000], WAIT, "RDMA_READ") == ["SUCCESS"]
    assert a.call("read_source_buffer", 199_999, 1) == [0x5A]
    send_empty_message(a, b)
    b.call("fill_exposed_memory", 0, 8)
    send_empty_message(a, b)
    assert a.call("send_and_wait", [8], WAIT, "ATOMIC_FETCH_AND_ADD") == ["SUCCESS"]
    send_empty_message(a, b)
    assert b.call("read_memory_exposed_to_peer", 0, 1) == [1]


@for_ipv4_and_ipv6
@pytest.mark.clause("DGRAM-PMTU-2", "DGRAM-PMTU-3")
def test_the_datagram_length_follows_a_path_mtu_that_routers_report(
    routed_path: RoutedPath, connected_rd_ends: tuple[RemoteEnd, RemoteEnd]
) -> None:
    a, b = connected_rd_ends
    send_until_packet_size(routed_path, a, b, 1500)
    routed_path.set_middle_link_mtu(1280)
    send_and_check_delivery(a, b, [100_000])
    assert a.call("read_own_counter_values", "rd_mtu_lowered")[0] >= 1
    send_until_packet_size(routed_path, a, b, 1280)
    routed_path.set_middle_link_mtu(1500)
    # The packet size rises again, although the kernel caches the lower path MTU for minutes.
    send_until_packet_size(routed_path, a, b, 1500)


@pytest.mark.clause("DGRAM-PMTU-4")
def test_a_forged_icmp_path_mtu_has_no_effect_while_no_datagram_is_lost(
    routed_path: RoutedPath, connected_rd_ends: tuple[RemoteEnd, RemoteEnd]
) -> None:
    a, b = connected_rd_ends
    send_until_packet_size(routed_path, a, b, 1500)
    here, there = a.call("queue_pair_address"), b.call("queue_pair_address")
    addresses = socket.inet_aton(V4["a"]) + socket.inet_aton(V4["b"])
    quoted = struct.pack("!BBHHHBBH", 0x45, 0, 1500, 1, 0x4000, 64, 17, 0) + addresses
    quoted += struct.pack("!HHHH", here[1], there[1], 1480, 0)
    routed_path.send_forged_icmp(600, quoted)
    # The kernel has accepted the forged path MTU.
    assert "mtu 600" in routed_path.run_shell("a", f"ip route get {V4['b']}")
    assert measure_mean_packet_length(routed_path, a, b) > 1440
    assert a.call("read_own_counter_values", "rd_mtu_lowered") == [0]


@for_ipv4_and_ipv6
@pytest.mark.clause("DGRAM-RD-22", "DGRAM-RDV-10")
def test_rd_reports_a_peer_behind_a_failed_link_and_reaches_it_again_after_repair(
    routed_path: RoutedPath, connected_rd_ends: tuple[RemoteEnd, RemoteEnd]
) -> None:
    a, b = connected_rd_ends
    send_and_check_delivery(a, b, [64, 5000])
    # The link fails for less than the peer time-out: no message is lost.
    b.call("post_receives", [20_000])
    routed_path.set_link_down()
    a.start_call("send_and_wait", [20_000], WAIT)
    b.call("poll_for_progress", TIMEOUT / 4)
    routed_path.restore_link()
    assert b.call("wait_for_messages", 1, WAIT) == [20_000]
    assert a.wait_for_result() == ["SUCCESS"]
    # The link fails for longer: each request fails, and the queue pair remains usable.
    routed_path.set_link_down()
    began = time.monotonic()
    assert a.call("send_and_wait", [64, 64], WAIT) == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert 0.8 * TIMEOUT <= time.monotonic() - began < 1.2 * TIMEOUT + (WAIT - 20)
    assert a.call("queue_pair_state") == "RTS"
    routed_path.restore_link()
    send_and_check_delivery(a, b, [64, 50_000])
