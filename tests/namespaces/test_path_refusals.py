"""UD, UC and RD on networks that refuse datagrams, and on links with two different MTUs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from namespaces.path_harness import V4, V6, RemoteEnd, RoutedPath

WAIT = 60.0 if "SANITIZER" in os.environ else 20.0
TIMEOUT = 1.5
ConnectEnds = Callable[..., tuple[RemoteEnd, RemoteEnd]]


@pytest.fixture
def make_connected_ends(routed_path: RoutedPath) -> Iterator[ConnectEnds]:
    """Yield a function that creates two ends with connected queue pairs of one type."""
    made: list[RemoteEnd] = []

    def create_connected_ends(
        kind: str, host: dict[str, str] = V4, whole: bool = False
    ) -> tuple[RemoteEnd, RemoteEnd]:
        a, b = routed_path.start_remote_end("a"), routed_path.start_remote_end("b")
        made.extend((a, b))
        here = a.call("create_queue_pair", kind, host["a"], TIMEOUT, whole)
        a.call("connect_to_peer", *b.call("create_queue_pair", kind, host["b"], TIMEOUT))
        b.call("connect_to_peer", *here)
        return a, b

    yield create_connected_ends
    for end in made:
        end.close()


def send_and_check_delivery(a: RemoteEnd, b: RemoteEnd, sizes: list[int]) -> None:
    b.call("post_receives", sizes)
    assert a.call("send_and_wait", sizes, WAIT) == ["SUCCESS"] * len(sizes)
    assert b.call("wait_for_messages", len(sizes), WAIT) == sizes


#: Routes in the router, and the ICMP error that each route sends to end a.
ROUTER_REFUSALS = {
    "host": "ip route replace unreachable 203.0.113.1/32",
    "prohibited": "ip route replace prohibit 203.0.113.1/32",
    "silence": "ip route replace blackhole 203.0.113.1/32",
}
#: Routes in the sender's own namespace, which make sendto() fail with the errno value of the key.
LOCAL_REFUSALS = {
    "EHOSTUNREACH": "ip route replace unreachable 203.0.113.1/32",
    "EACCES": "ip route replace prohibit 203.0.113.1/32",
    "EINVAL": "ip route replace blackhole 203.0.113.1/32",
    "ENETUNREACH": "ip route del default",
}
RESTORE_ROUTES = (
    "ip route del 203.0.113.1/32 2>/dev/null; ip route replace default via 198.51.100.254"
)


@pytest.mark.clause("DGRAM-UD-18", "DGRAM-UC-21")
def test_ud_and_uc_datagrams_that_a_router_refuses_are_lost_without_an_error(
    routed_path: RoutedPath, make_connected_ends: ConnectEnds
) -> None:
    kinds = {kind: make_connected_ends(kind) for kind in ("UD", "UC")}
    for kind, (a, b) in kinds.items():
        send_and_check_delivery(a, b, [64])
        for why, route in ROUTER_REFUSALS.items():
            routed_path.run_shell("r", route)
            assert a.call("send_and_wait", [100, 3000], WAIT) == ["SUCCESS"] * 2, (kind, why)
            routed_path.run_shell("r", "ip route del 203.0.113.1/32")
            assert a.call("queue_pair_state") == "RTS"
            send_and_check_delivery(a, b, [200])


@pytest.mark.clause("DGRAM-UD-18", "DGRAM-UC-21")
def test_a_send_that_the_kernel_refuses_is_a_general_error_and_the_queue_pair_stays_in_rts(
    routed_path: RoutedPath, make_connected_ends: ConnectEnds
) -> None:
    kinds = {kind: make_connected_ends(kind) for kind in ("UD", "UC")}
    for kind, (a, b) in kinds.items():
        for why, route in LOCAL_REFUSALS.items():
            routed_path.run_shell("a", route)
            assert a.call("send_and_wait", [100, 3000], WAIT) == ["GENERAL_ERR"] * 2, (kind, why)
            routed_path.run_shell("a", RESTORE_ROUTES)
            assert a.call("queue_pair_state") == "RTS"
            send_and_check_delivery(a, b, [200])
    a, b = kinds["UC"]
    # The peer detects the datagrams that were not sent as a gap in the sequence numbers.
    assert b.call("read_own_counter_values", "uc_missing")[0] >= 1


@pytest.mark.clause("DGRAM-RDV-10", "DGRAM-RD-24")
def test_on_rd_a_refused_datagram_is_delayed_and_a_lasting_refusal_fails_the_request(
    routed_path: RoutedPath, make_connected_ends: ConnectEnds
) -> None:
    a, b = make_connected_ends("RD")
    send_and_check_delivery(a, b, [64, 3000])
    for where, route in (
        ("a", LOCAL_REFUSALS["EACCES"]),
        ("a", LOCAL_REFUSALS["EINVAL"]),
        ("r", ROUTER_REFUSALS["host"]),
    ):
        routed_path.run_shell(where, route)
        b.call("post_receives", [3000])
        a.start_call("send_and_wait", [3000], WAIT)
        b.call("poll_for_progress", TIMEOUT / 5)
        routed_path.run_shell(where, "ip route del 203.0.113.1/32")
        assert a.wait_for_result() == ["SUCCESS"]
        assert b.call("wait_for_messages", 1, WAIT) == [3000]
    routed_path.run_shell("a", LOCAL_REFUSALS["ENETUNREACH"])
    began = time.monotonic()
    assert a.call("send_and_wait", [64, 64], WAIT) == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert time.monotonic() - began >= 0.8 * TIMEOUT
    routed_path.run_shell("a", RESTORE_ROUTES)
    send_and_check_delivery(a, b, [64])


@pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.clause("DGRAM-UD-22", "DGRAM-UC-4", "DGRAM-UC-22")
def test_messages_longer_than_the_mtu_arrive_over_links_with_mtu_1500_and_1280(
    routed_path: RoutedPath, make_connected_ends: ConnectEnds, host: dict[str, str]
) -> None:
    for kind in ("UD", "UC"):
        a, b = make_connected_ends(kind, host)
        for mtu in (1500, 1280):
            routed_path.run_shell("a", f"ip link set a0 mtu {mtu}")
            send_and_check_delivery(a, b, [1400, 1452, 1600, 20_000])
            assert a.call("queue_pair_state") == "RTS"
        routed_path.run_shell("a", "ip link set a0 mtu 1500")
        # The middle link has a smaller MTU: the first datagram is lost, and later datagrams have
        # the length that the router reported.
        routed_path.set_middle_link_mtu(1280)
        b.call("post_receives", [1400] * 40)
        for _ in range(40):
            assert a.call("send_and_wait", [1400], WAIT) == ["SUCCESS"]
            if b.call("wait_for_messages", 1, 0.1) == [1400]:
                break
        else:
            pytest.fail(f"{kind}: nothing passed")
        routed_path.set_middle_link_mtu(1500)


def read_created_fragment_count(routed_path: RoutedPath) -> int:
    """Return how many IP fragments namespace a has created, IPv4 and IPv6."""
    names, values = (
        line.split() for line in routed_path.run_shell("a", "grep ^Ip: /proc/net/snmp").splitlines()
    )
    of_v6 = routed_path.run_shell("a", "grep ^Ip6FragCreates /proc/net/snmp6").split()[1]
    return int(values[names.index("FragCreates")]) + int(of_v6)


@pytest.mark.parametrize("size", [1400, 20_000], ids=["one", "several"])
@pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.clause("DGRAM-UC-22")
def test_a_uc_datagram_found_too_long_is_fragmented_and_later_datagrams_are_shorter(
    routed_path: RoutedPath, make_connected_ends: ConnectEnds, host: dict[str, str], size: int
) -> None:
    a, b = make_connected_ends("UC", host)
    send_and_check_delivery(a, b, [1400])
    before = read_created_fragment_count(routed_path)
    routed_path.run_shell("a", "ip link set a0 mtu 1280")
    send_and_check_delivery(a, b, [size])
    cut = read_created_fragment_count(routed_path)
    assert cut > before
    packets, octets = routed_path.count_forwarded_packets()
    send_and_check_delivery(a, b, [1400, 20_000])
    assert read_created_fragment_count(routed_path) == cut
    # The datagrams are shorter by no more than the difference of the MTUs; a report of 40 octets
    # may be among them.
    now = routed_path.count_forwarded_packets()
    assert (now[1] - octets) / (now[0] - packets) > 1050


@pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.clause("DGRAM-REC-3")
def test_write_records_are_segmented_to_the_mtu_of_the_link_and_are_not_fragmented(
    routed_path: RoutedPath, make_connected_ends: ConnectEnds, host: dict[str, str]
) -> None:
    for mtu in (1500, 1280):
        routed_path.run_shell("a", f"ip link set a0 mtu {mtu}")
        a, b = make_connected_ends("UD", host)
        before, (packets, octets) = (
            read_created_fragment_count(routed_path),
            routed_path.count_forwarded_packets(),
        )
        assert a.call("send_and_wait", [50_000], WAIT, "RDMA_WRITE_RECORD") == ["SUCCESS"]
        assert b.call("wait_for_write_records", 1, WAIT) == [[50_000, 50_000]]
        assert read_created_fragment_count(routed_path) == before
        now = routed_path.count_forwarded_packets()
        assert (now[1] - octets) / (now[0] - packets) > mtu - 100
        # Datagrams that exceed the MTU of a's own interface are sent in fragments, which the kernel
        # counts.
        assert a.call("send_and_wait", [3000], WAIT) == ["SUCCESS"]
        assert read_created_fragment_count(routed_path) > before


@pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.clause("DGRAM-UD-10", "DGRAM-UD-16", "DGRAM-UD-22")
def test_on_a_users_socket_without_fragmentation_a_too_long_message_is_a_length_error(
    routed_path: RoutedPath, make_connected_ends: ConnectEnds, host: dict[str, str]
) -> None:
    routed_path.run_shell("a", "ip link set a0 mtu 1280")
    a, b = make_connected_ends("UD", host, True)
    assert a.call("send_and_wait", [1400], WAIT) == ["LOC_LEN_ERR"]
    assert a.call("queue_pair_state") == "SQE"
    a.call("return_to_rts")
    send_and_check_delivery(a, b, [1000])


def test_without_a_route_a_uc_queue_pair_cannot_move_to_rtr(routed_path: RoutedPath) -> None:
    a = routed_path.start_remote_end("a")
    a.call("create_queue_pair", "UC", V4["a"])
    routed_path.run_shell("a", LOCAL_REFUSALS["ENETUNREACH"])
    assert a.call("try_rtr_and_get_errno_name", "203.0.113.1") == "ENETUNREACH"
    routed_path.run_shell("a", RESTORE_ROUTES)
    assert a.call("try_rtr_and_get_errno_name", "203.0.113.1") == "nothing"
    a.close()
