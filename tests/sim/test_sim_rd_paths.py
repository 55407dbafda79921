"""RD peers that become silent, and paths that silently drop long datagrams."""

from __future__ import annotations

import pytest
from sim.conftest import ACCESS, End

from siwarp.base.counters import read_own_counters as counters
from siwarp.sim import World
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    PeerGone,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    WCStatus,
    WROpcode,
)

V4, V6 = "10.0.0.{}", "fd00::{}"
with_ipv4_and_ipv6 = pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
SIZE = 1 << 17
TIMEOUT = 2.0
#: The nanoseconds by which timers may be late in a device that is not polled.
TIMER_DELAY_NS = 1_000_000


def create_rd_pair(
    world: World, host: str, timeout: float = TIMEOUT, *, mtu: int = 1500, hosts: int = 2
) -> tuple[End, End]:
    """Create two RD queue pairs in RTS with a peer timeout of ``timeout`` seconds."""
    devices = [world.device(host.format(i + 1), mtu=mtu) for i in range(hosts)]

    def create_rdma_endpoint(device: Context) -> End:
        address = device.device.addresses[0]
        pd = PD(device)
        cq = CQ(device, 256, channel=CompChannel(device))
        init = QPInitAttr(
            QPType.RD, scq=cq, rcq=cq, addr=(address, 0), qkey=7, peer_timeout=timeout
        )
        end = End(device, pd, cq, QP(pd, init), MR(pd, SIZE, ACCESS))
        end.qp.to_rts()
        return end

    return create_rdma_endpoint(devices[0]), create_rdma_endpoint(devices[-1])


def post_send(a: End, b: End, size: int) -> None:
    with AH(a.pd, b.qp.addr) as ah:
        a.qp.post_send(SendWR(size, sg=[a.mr.sge(0, size)], ah=ah))


def send_and_get_statuses(world: World, a: End, b: End, *sizes: int) -> list[str]:
    """Send messages of the given sizes one after another; return the status of each Send."""
    ended: list[str] = []

    def send_messages_and_save_statuses() -> None:
        for size in sizes:
            post_send(a, b, size)
            ended.extend(WCStatus(wc.status).name for wc in a.cq.wait())

    world.spawn(send_messages_and_save_statuses)
    world.run_tasks(within="1min")
    return ended


def send_messages_and_check_delivery(world: World, a: End, b: End, *sizes: int) -> None:
    """Send messages of the given sizes, and check that all messages arrive."""
    for i, size in enumerate(sizes):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(0, size)]))
    assert send_and_get_statuses(world, a, b, *sizes) == ["SUCCESS"] * len(sizes)
    got = [wc.check().byte_len for wc in b.cq.poll(len(sizes))]
    assert got == list(sizes)


def set_silent_path_mtu(world: World, a: End, b: End, mtu: int) -> None:
    """Make the path silently drop datagrams longer than ``mtu``; 0 drops all datagrams."""
    for one, other in ((a, b), (b, a)):
        world.path_mtu(one.device, other.device, mtu, told=False)


# The smallest allowed timeout, 0.1 s, is less than the time to the first retransmission of a
# handshake.
@pytest.mark.parametrize("timeout", [0.1, 2.0, 10.0])
@pytest.mark.parametrize("met", [True, False], ids=["met", "unmet"])
def test_a_request_to_a_silent_rd_peer_fails_at_the_peer_timeout(
    world: World, timeout: float, met: bool
) -> None:
    world.faults("delay=1ms")
    a, b = create_rd_pair(world, V4, timeout)
    if met:
        send_messages_and_check_delivery(world, a, b, 64)
        world.run_for("50ms")
    world.partition(a.device, b.device)
    began = world.now_ns
    assert send_and_get_statuses(world, a, b, 64) == ["RETRY_EXC_ERR"]
    assert 0 <= world.now_ns - began - round(timeout * 1e9) <= TIMER_DELAY_NS


def test_an_rd_peer_that_becomes_silent_during_a_message_is_gone_after_the_peer_timeout(
    world: World,
) -> None:
    world.faults("delay=1ms,rate=10Mbit")
    a, b = create_rd_pair(world, V4)
    send_messages_and_check_delivery(world, a, b, 64)
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, SIZE)]))
    post_send(a, b, SIZE)  # the message takes 100 ms at the rate of the link
    world.run_for("50ms")
    world.partition(a.device, b.device)
    cut = world.now_ns
    world.run_until(lambda: bool(a.cq.poll()), within="1min")
    # The peer's last packet arrives within a few milliseconds of the partition.
    assert abs(world.now_ns - cut - round(TIMEOUT * 1e9)) <= 10_000_000


@with_ipv4_and_ipv6
def test_an_rd_peer_that_is_silent_for_less_than_the_peer_timeout_loses_no_message(
    world: World, host: str
) -> None:
    world.faults("delay=1ms")
    a, b = create_rd_pair(world, host)
    for met in (False, True):
        before = counters()["rd_gone"]
        world.partition(a.device, b.device)
        b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 64)]))
        post_send(a, b, 64)
        # A handshake is retransmitted after 1 s and after 2 s: only the first retransmission is in
        # time.
        world.run_for(0.9 * TIMEOUT if met else 0.9)
        world.heal()
        world.run_for("1s")
        assert [wc.check().byte_len for wc in b.cq.poll()] == [64]
        assert [WCStatus(wc.status).name for wc in a.cq.poll()] == ["SUCCESS"]
        assert counters()["rd_gone"] == before


@with_ipv4_and_ipv6
@pytest.mark.clause("DGRAM-PMTU-1")
def test_rd_messages_cross_a_path_that_silently_drops_long_datagrams(
    world: World, host: str
) -> None:
    world.faults("delay=1ms")
    a, b = create_rd_pair(world, host)
    set_silent_path_mtu(world, a, b, 1280)
    before = counters()["rd_mtu_lowered"]
    send_messages_and_check_delivery(world, a, b, 100_000, 64, 5000)
    # The counter shows that no segment was in a datagram that was dropped.
    assert counters()["rd_mtu_lowered"] == before


@with_ipv4_and_ipv6
@pytest.mark.clause("DGRAM-RD-30", "DGRAM-PMTU-5")
def test_rd_detects_a_path_that_starts_to_drop_long_datagrams_silently(
    world: World, host: str
) -> None:
    world.faults("delay=1ms")
    a, b = create_rd_pair(world, host)
    for _ in range(20):  # repeat until datagrams have the length of the path's MTU
        send_messages_and_check_delivery(world, a, b, 100_000)
    set_silent_path_mtu(world, a, b, 1280)
    before = counters()["rd_mtu_lowered"]
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 100_000)]))
    # Segments that were built for the higher MTU are retransmitted. Over IPv4 they arrive in
    # fragments; over IPv6, where routers do not fragment, they are lost and the request fails.
    assert send_and_get_statuses(world, a, b, 100_000) == [
        "RETRY_EXC_ERR" if host == V6 else "SUCCESS"
    ]
    assert counters()["rd_mtu_lowered"] > before
    if host == V6:
        assert send_and_get_statuses(world, a, b, 90_000) == ["SUCCESS"]
    assert [wc.check().byte_len for wc in b.cq.poll()] == [90_000 if host == V6 else 100_000]
    send_messages_and_check_delivery(world, a, b, 64, 100_000)


def create_rd_pair_with_peer_in_reset(world: World, met: bool) -> tuple[End, End]:
    """Create two RD queue pairs, and move the second to RESET.

    ``met``: whether they exchange a message before.
    """
    world.faults("delay=1ms")
    a, b = create_rd_pair(world, V4)
    if met:
        send_messages_and_check_delivery(world, a, b, 64)
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    world.run_for("50ms")
    return a, b


@pytest.mark.clause("DGRAM-RDV-21")
@pytest.mark.parametrize("opcode", [WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
@pytest.mark.parametrize("met", [True, False], ids=["met", "unmet"])
def test_a_request_to_an_rd_peer_in_reset_fails_at_the_peer_timeout(
    world: World, opcode: WROpcode, met: bool
) -> None:
    a, b = create_rd_pair_with_peer_in_reset(world, met)
    before, began = world.stats.sent, world.now_ns
    with AH(a.pd, b.qp.addr) as ah:
        remote = None if opcode == WROpcode.SEND else b.mr.remote(0, 64)
        a.qp.post_send(SendWR(1, opcode, sg=[a.mr.sge(0, 64)], ah=ah, remote=remote))
    (wc,) = a.cq.wait()
    assert (wc.status, wc.source) == (WCStatus.RETRY_EXC_ERR, b.qp.addr)
    assert 0 <= world.now_ns - began - round(TIMEOUT * 1e9) <= TIMER_DELAY_NS
    with pytest.raises(PeerGone, match="must not be in RESET"):
        wc.check()
    assert world.stats.sent - before < 20
    b.qp.to_rts()
    send_messages_and_check_delivery(world, a, b, 64)


@pytest.mark.clause("DGRAM-RDV-21")
@pytest.mark.parametrize("met", [True, False], ids=["met", "unmet"])
def test_an_rd_peer_that_leaves_reset_in_time_receives_a_message_sent_before(
    world: World, met: bool
) -> None:
    a, b = create_rd_pair_with_peer_in_reset(world, met)
    post_send(a, b, 64)
    world.run_for(0.4 * TIMEOUT)
    b.qp.to_rts()
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 64)]))
    assert a.cq.wait()[0].ok
    assert [wc.check().byte_len for wc in b.cq.poll()] == [64]


@pytest.mark.clause("DGRAM-RD-30", "DGRAM-PMTU-3")
def test_rd_datagrams_grow_to_the_path_mtu_again_despite_many_short_datagrams(
    world: World,
) -> None:
    world.faults("delay=1ms")
    a, b = create_rd_pair(world, V4)
    for _ in range(2):
        set_silent_path_mtu(world, a, b, 1500)
        for _ in range(20):  # repeat until datagrams have the length of the path's MTU
            send_messages_and_check_delivery(world, a, b, 100_000)
            world.run_for(0.1)
        set_silent_path_mtu(world, a, b, 1280)
        before = counters()["rd_mtu_lowered"]
        send_messages_and_check_delivery(world, a, b, 64, 2000, 64, 5000, *[64] * 40)
        assert counters()["rd_mtu_lowered"] > before


@with_ipv4_and_ipv6
def test_rd_queue_pairs_of_one_host_use_the_mtu_of_the_loopback_interface(
    world: World, host: str
) -> None:
    a, b = create_rd_pair(world, host, hosts=1)
    send_messages_and_check_delivery(world, a, b, 64)
    before = world.stats.sent
    send_messages_and_check_delivery(world, a, b, 60_000)
    # The message takes one datagram of the loopback interface's MTU and an acknowledgement.
    assert world.stats.sent - before <= 3


@with_ipv4_and_ipv6
@pytest.mark.parametrize("mtu", [65535, 65536])
def test_an_interface_with_the_mtu_of_loopback_is_not_treated_as_loopback(
    world: World, host: str, mtu: int
) -> None:
    world.faults("delay=1ms")
    a, b = create_rd_pair(world, host, mtu=mtu)
    set_silent_path_mtu(world, a, b, 1500)
    before = counters()["rd_mtu_lowered"]
    send_messages_and_check_delivery(world, a, b, 64, 60_000)
    assert counters()["rd_mtu_lowered"] == before
