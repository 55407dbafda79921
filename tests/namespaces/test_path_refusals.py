"""UD, UC and RD on networks that refuse datagrams, and on links with two different MTUs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from namespaces.path_harness import V4, V6, End, Path3

WAIT = 60.0 if "SANITIZER" in os.environ else 20.0
TIMEOUT = 1.5
Meet = Callable[..., tuple[End, End]]


@pytest.fixture
def meet(path: Path3) -> Iterator[Meet]:
    """Provide a function that creates two ends with connected queue pairs of one kind."""
    made: list[End] = []

    def begin(kind: str, host: dict[str, str] = V4, whole: bool = False) -> tuple[End, End]:
        a, b = path.end("a"), path.end("b")
        made.extend((a, b))
        here = a.do("start", kind, host["a"], TIMEOUT, whole)
        a.do("meet", *b.do("start", kind, host["b"], TIMEOUT))
        b.do("meet", *here)
        return a, b

    yield begin
    for end in made:
        end.close()


def passes(a: End, b: End, sizes: list[int]) -> None:
    b.do("recv", sizes)
    assert a.do("send", sizes, WAIT) == ["SUCCESS"] * len(sizes)
    assert b.do("received", len(sizes), WAIT) == sizes


#: Routes in the router, and the ICMP error that each of them sends to a.
ELSEWHERE = {
    "host": "ip route replace unreachable 203.0.113.1/32",
    "prohibited": "ip route replace prohibit 203.0.113.1/32",
    "silence": "ip route replace blackhole 203.0.113.1/32",
}
#: The same routes in a itself, where sendto() fails.
HERE = {
    "EHOSTUNREACH": "ip route replace unreachable 203.0.113.1/32",
    "EACCES": "ip route replace prohibit 203.0.113.1/32",
    "EINVAL": "ip route replace blackhole 203.0.113.1/32",
    "ENETUNREACH": "ip route del default",
}
MENDED = "ip route del 203.0.113.1/32 2>/dev/null; ip route replace default via 198.51.100.254"


@pytest.mark.clause("DGRAM-UD-18", "DGRAM-UC-21")
def test_what_a_router_refuses_is_lost_for_ud_and_uc_and_they_go_on(
    path: Path3, meet: Meet
) -> None:
    kinds = {kind: meet(kind) for kind in ("UD", "UC")}
    for kind, (a, b) in kinds.items():
        passes(a, b, [64])
        for why, route in ELSEWHERE.items():
            path.sh("r", route)
            assert a.do("send", [100, 3000], WAIT) == ["SUCCESS"] * 2, (kind, why)
            path.sh("r", "ip route del 203.0.113.1/32")
            assert a.do("state") == "RTS"
            passes(a, b, [200])


@pytest.mark.clause("DGRAM-UD-18", "DGRAM-UC-21")
def test_what_this_machine_refuses_to_send_is_a_general_error_and_the_queue_pair_goes_on(
    path: Path3, meet: Meet
) -> None:
    kinds = {kind: meet(kind) for kind in ("UD", "UC")}
    for kind, (a, b) in kinds.items():
        for why, route in HERE.items():
            path.sh("a", route)
            assert a.do("send", [100, 3000], WAIT) == ["GENERAL_ERR"] * 2, (kind, why)
            path.sh("a", MENDED)
            assert a.do("state") == "RTS"
            passes(a, b, [200])
    a, b = kinds["UC"]
    # The peer detects the datagrams that were not sent as a gap in the sequence numbers.
    assert b.do("count", "uc_missing")[0] >= 1


@pytest.mark.clause("DGRAM-RDV-10", "DGRAM-RD-24")
def test_on_rd_a_refusal_is_a_delay_or_in_the_end_a_peer_that_is_gone(
    path: Path3, meet: Meet
) -> None:
    a, b = meet("RD")
    passes(a, b, [64, 3000])
    for where, route in (("a", HERE["EACCES"]), ("a", HERE["EINVAL"]), ("r", ELSEWHERE["host"])):
        path.sh(where, route)
        b.do("recv", [3000])
        a.ask("send", [3000], WAIT)
        b.do("turn", TIMEOUT / 5)
        path.sh(where, "ip route del 203.0.113.1/32")
        assert a.answer() == ["SUCCESS"]
        assert b.do("received", 1, WAIT) == [3000]
    path.sh("a", HERE["ENETUNREACH"])
    began = time.monotonic()
    assert a.do("send", [64, 64], WAIT) == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert time.monotonic() - began >= 0.8 * TIMEOUT
    path.sh("a", MENDED)
    passes(a, b, [64])


@pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.clause("DGRAM-UD-22", "DGRAM-UC-4", "DGRAM-UC-22")
def test_messages_longer_than_the_mtu_cross_links_of_1500_and_of_1280(
    path: Path3, meet: Meet, host: dict[str, str]
) -> None:
    for kind in ("UD", "UC"):
        a, b = meet(kind, host)
        for mtu in (1500, 1280):
            path.sh("a", f"ip link set a0 mtu {mtu}")
            passes(a, b, [1400, 1452, 1600, 20_000])
            assert a.do("state") == "RTS"
        path.sh("a", "ip link set a0 mtu 1500")
        # The middle link has a smaller MTU: the first datagram is lost, and later ones have the
        # length that the router reported.
        path.middle(1280)
        b.do("recv", [1400] * 40)
        for _ in range(40):
            assert a.do("send", [1400], WAIT) == ["SUCCESS"]
            if b.do("received", 1, 0.1) == [1400]:
                break
        else:
            pytest.fail(f"{kind}: nothing passed")
        path.middle(1500)


def fragments(path: Path3) -> int:
    """Return how many IP fragments a has created, IPv4 and IPv6."""
    names, values = (line.split() for line in path.sh("a", "grep ^Ip: /proc/net/snmp").splitlines())
    of_v6 = path.sh("a", "grep ^Ip6FragCreates /proc/net/snmp6").split()[1]
    return int(values[names.index("FragCreates")]) + int(of_v6)


@pytest.mark.parametrize("size", [1400, 20_000], ids=["one", "several"])
@pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.clause("DGRAM-UC-22")
def test_a_uc_datagram_found_too_long_goes_in_fragments_and_the_next_are_shorter(
    path: Path3, meet: Meet, host: dict[str, str], size: int
) -> None:
    a, b = meet("UC", host)
    passes(a, b, [1400])
    before = fragments(path)
    path.sh("a", "ip link set a0 mtu 1280")
    passes(a, b, [size])
    cut = fragments(path)
    assert cut > before
    packets, octets = path.crossed()
    passes(a, b, [1400, 20_000])
    assert fragments(path) == cut
    # Datagrams are shorter by the difference of the MTUs, and no more; a report of 40 octets may be
    # among them.
    now = path.crossed()
    assert (now[1] - octets) / (now[0] - packets) > 1050


@pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.clause("DGRAM-REC-3")
def test_write_records_are_cut_to_the_mtu_of_their_link_and_none_goes_in_fragments(
    path: Path3, meet: Meet, host: dict[str, str]
) -> None:
    for mtu in (1500, 1280):
        path.sh("a", f"ip link set a0 mtu {mtu}")
        a, b = meet("UD", host)
        before, (packets, octets) = fragments(path), path.crossed()
        assert a.do("send", [50_000], WAIT, "RDMA_WRITE_RECORD") == ["SUCCESS"]
        assert b.do("recorded", 1, WAIT) == [[50_000, 50_000]]
        assert fragments(path) == before
        now = path.crossed()
        assert (now[1] - octets) / (now[0] - packets) > mtu - 100
        # Datagrams that exceed a's own MTU are sent in fragments, which the kernel counts.
        assert a.do("send", [3000], WAIT) == ["SUCCESS"]
        assert fragments(path) > before


@pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.clause("DGRAM-UD-10", "DGRAM-UD-16", "DGRAM-UD-22")
def test_a_users_socket_that_cuts_nothing_makes_too_long_a_message_a_length_error(
    path: Path3, meet: Meet, host: dict[str, str]
) -> None:
    path.sh("a", "ip link set a0 mtu 1280")
    a, b = meet("UD", host, True)
    assert a.do("send", [1400], WAIT) == ["LOC_LEN_ERR"]
    assert a.do("state") == "SQE"
    a.do("rts")
    passes(a, b, [1000])


def test_without_a_route_a_uc_queue_pair_does_not_get_to_rtr(path: Path3) -> None:
    a = path.end("a")
    a.do("start", "UC", V4["a"])
    path.sh("a", HERE["ENETUNREACH"])
    assert a.do("connect_error", "203.0.113.1") == "ENETUNREACH"
    path.sh("a", MENDED)
    assert a.do("connect_error", "203.0.113.1") == "nothing"
    a.close()
