"""RD peers that fall silent, and paths that silently drop long datagrams."""

from __future__ import annotations

import pytest
from sim.conftest import ACCESS, End

from siwarp.base.counters import own as counters
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
both = pytest.mark.parametrize("host", [V4, V6], ids=["v4", "v6"])
SIZE = 1 << 17
TIMEOUT = 2.0
#: Nanoseconds by which timers are late in a device that is not polled.
SERVED = 1_000_000


def pair(
    world: World, host: str, timeout: float = TIMEOUT, *, mtu: int = 1500, hosts: int = 2
) -> tuple[End, End]:
    """Create two RD queue pairs in RTS with a peer time-out of ``timeout`` seconds."""
    devices = [world.device(host.format(i + 1), mtu=mtu) for i in range(hosts)]

    def make(device: Context) -> End:
        address = device.device.addresses[0]
        pd = PD(device)
        cq = CQ(device, 256, channel=CompChannel(device))
        init = QPInitAttr(
            QPType.RD, scq=cq, rcq=cq, addr=(address, 0), qkey=7, peer_timeout=timeout
        )
        end = End(device, pd, cq, QP(pd, init), MR(pd, SIZE, ACCESS))
        end.qp.to_rts()
        return end

    return make(devices[0]), make(devices[-1])


def post(a: End, b: End, size: int) -> None:
    with AH(a.pd, b.qp.addr) as ah:
        a.qp.post_send(SendWR(size, sg=[a.mr.sge(0, size)], ah=ah))


def send(world: World, a: End, b: End, *sizes: int) -> list[str]:
    """Send messages of these sizes one after another; return the status of each."""
    ended: list[str] = []

    def run() -> None:
        for size in sizes:
            post(a, b, size)
            ended.extend(WCStatus(wc.status).name for wc in a.cq.wait())

    world.spawn(run)
    world.run_tasks(within="1min")
    return ended


def deliver(world: World, a: End, b: End, *sizes: int) -> None:
    """Send messages of these sizes, all of which must arrive."""
    for i, size in enumerate(sizes):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(0, size)]))
    assert send(world, a, b, *sizes) == ["SUCCESS"] * len(sizes)
    got = [wc.check().byte_len for wc in b.cq.poll(len(sizes))]
    assert got == list(sizes)


def drop_long_datagrams(world: World, a: End, b: End, mtu: int) -> None:
    """Make the path between two ends silently drop longer datagrams; 0: all datagrams."""
    for one, other in ((a, b), (b, a)):
        world.path_mtu(one.device, other.device, mtu, told=False)


# 0.1 is the smallest allowed time-out, less than the time to the first retransmission of a
# handshake.
@pytest.mark.parametrize("timeout", [0.1, 2.0, 10.0])
@pytest.mark.parametrize("met", [True, False], ids=["met", "unmet"])
def test_a_request_to_a_silent_peer_ends_when_the_time_out_is_over(
    world: World, timeout: float, met: bool
) -> None:
    world.faults("delay=1ms")
    a, b = pair(world, V4, timeout)
    if met:
        deliver(world, a, b, 64)
        world.run_for("50ms")
    world.partition(a.device, b.device)
    began = world.now_ns
    assert send(world, a, b, 64) == ["RETRY_EXC_ERR"]
    assert 0 <= world.now_ns - began - round(timeout * 1e9) <= SERVED


def test_a_peer_that_goes_silent_in_the_middle_is_lost_a_time_out_after_its_last_word(
    world: World,
) -> None:
    world.faults("delay=1ms,rate=10Mbit")
    a, b = pair(world, V4)
    deliver(world, a, b, 64)
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, SIZE)]))
    post(a, b, SIZE)  # the message takes 100 ms at the rate of the link
    world.run_for("50ms")
    world.partition(a.device, b.device)
    cut = world.now_ns
    world.run_until(lambda: bool(a.cq.poll()), within="1min")
    # Acknowledgements arrived every few milliseconds, and packets in flight still arrive.
    assert abs(world.now_ns - cut - round(TIMEOUT * 1e9)) <= 10_000_000


@both
def test_a_peer_that_is_silent_for_less_than_the_time_out_loses_nothing(
    world: World, host: str
) -> None:
    world.faults("delay=1ms")
    a, b = pair(world, host)
    for met in (False, True):
        before = counters()["rd_gone"]
        world.partition(a.device, b.device)
        b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 64)]))
        post(a, b, 64)
        # A handshake is retransmitted after 1 s and again after 2 s: only the first one is in time.
        world.run_for(0.9 * TIMEOUT if met else 0.9)
        world.heal()
        world.run_for("1s")
        assert [wc.check().byte_len for wc in b.cq.poll()] == [64]
        assert [WCStatus(wc.status).name for wc in a.cq.poll()] == ["SUCCESS"]
        assert counters()["rd_gone"] == before


@both
@pytest.mark.clause("DGRAM-PMTU-1")
def test_everything_crosses_a_path_that_drops_long_datagrams_in_silence(
    world: World, host: str
) -> None:
    world.faults("delay=1ms")
    a, b = pair(world, host)
    drop_long_datagrams(world, a, b, 1280)
    before = counters()["rd_mtu_lowered"]
    deliver(world, a, b, 100_000, 64, 5000)
    # No segment was in a datagram that was dropped.
    assert counters()["rd_mtu_lowered"] == before


@both
@pytest.mark.clause("DGRAM-RD-30", "DGRAM-PMTU-5")
def test_a_path_that_begins_to_drop_long_datagrams_in_silence_is_found_out_in_time(
    world: World, host: str
) -> None:
    world.faults("delay=1ms")
    a, b = pair(world, host)
    for _ in range(20):  # repeat until datagrams have the length of the path's MTU
        deliver(world, a, b, 100_000)
    drop_long_datagrams(world, a, b, 1280)
    before = counters()["rd_mtu_lowered"]
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 100_000)]))
    # Over IPv4, segments already built are sent in fragments; IPv6 routers do not fragment.
    assert send(world, a, b, 100_000) == ["RETRY_EXC_ERR" if host == V6 else "SUCCESS"]
    assert counters()["rd_mtu_lowered"] > before
    if host == V6:
        assert send(world, a, b, 90_000) == ["SUCCESS"]
    assert [wc.check().byte_len for wc in b.cq.poll()] == [90_000 if host == V6 else 100_000]
    deliver(world, a, b, 64, 100_000)


@pytest.mark.clause("DGRAM-RDV-21")
@pytest.mark.parametrize("opcode", [WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
@pytest.mark.parametrize("met", [True, False], ids=["met", "unmet"])
def test_a_peer_in_reset_is_lost_as_one_that_is_not_there(
    world: World, opcode: WROpcode, met: bool
) -> None:
    world.faults("delay=1ms")
    a, b = pair(world, V4)
    if met:
        deliver(world, a, b, 64)
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    world.run_for("50ms")
    before, began = world.stats.sent, world.now_ns
    with AH(a.pd, b.qp.addr) as ah:
        remote = None if opcode == WROpcode.SEND else b.mr.remote(0, 64)
        a.qp.post_send(SendWR(1, opcode, sg=[a.mr.sge(0, 64)], ah=ah, remote=remote))
    (wc,) = a.cq.wait()
    assert (wc.status, wc.source) == (WCStatus.RETRY_EXC_ERR, b.qp.addr)
    assert 0 <= world.now_ns - began - round(TIMEOUT * 1e9) <= SERVED
    with pytest.raises(PeerGone, match="must not be in RESET"):
        wc.check()
    assert world.stats.sent - before < 20
    b.qp.to_rts()
    deliver(world, a, b, 64)


@pytest.mark.clause("DGRAM-RDV-21")
@pytest.mark.parametrize("met", [True, False], ids=["met", "unmet"])
def test_a_peer_that_leaves_reset_in_time_gets_what_was_sent_meanwhile(
    world: World, met: bool
) -> None:
    world.faults("delay=1ms")
    a, b = pair(world, V4)
    if met:
        deliver(world, a, b, 64)
    b.qp.modify(QPAttr(qp_state=QPState.RESET))
    world.run_for("50ms")
    post(a, b, 64)
    world.run_for(0.4 * TIMEOUT)
    b.qp.to_rts()
    b.qp.post_recv(RecvWR(0, sg=[b.mr.sge(0, 64)]))
    assert a.cq.wait()[0].ok
    assert [wc.check().byte_len for wc in b.cq.poll()] == [64]


@pytest.mark.clause("DGRAM-RD-30", "DGRAM-PMTU-3")
def test_datagrams_grow_again_and_short_ones_that_pass_say_nothing_about_long_ones(
    world: World,
) -> None:
    world.faults("delay=1ms")
    a, b = pair(world, V4)
    for _ in range(2):
        drop_long_datagrams(world, a, b, 1500)
        for _ in range(20):  # repeat until datagrams have the length of the path's MTU
            deliver(world, a, b, 100_000)
            world.run_for(0.1)
        drop_long_datagrams(world, a, b, 1280)
        before = counters()["rd_mtu_lowered"]
        deliver(world, a, b, 64, 2000, 64, 5000, *[64] * 40)
        assert counters()["rd_mtu_lowered"] > before


@both
def test_two_queue_pairs_of_one_host_have_no_path_between_them(world: World, host: str) -> None:
    a, b = pair(world, host, hosts=1)
    deliver(world, a, b, 64)
    before = world.stats.sent
    deliver(world, a, b, 60_000)
    # A datagram of the loopback interface's MTU, and its acknowledgement.
    assert world.stats.sent - before <= 3


@both
@pytest.mark.parametrize("mtu", [65535, 65536])
def test_an_interface_with_the_mtu_of_loopback_leads_to_a_path_nevertheless(
    world: World, host: str, mtu: int
) -> None:
    world.faults("delay=1ms")
    a, b = pair(world, host, mtu=mtu)
    drop_long_datagrams(world, a, b, 1500)
    before = counters()["rd_mtu_lowered"]
    deliver(world, a, b, 64, 60_000)
    assert counters()["rd_mtu_lowered"] == before
