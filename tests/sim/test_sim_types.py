"""UD, RD and UC between tasks in a simulated network, with faults, partitions and crashes."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from sim.conftest import ACCESS, QKEY, End
from sim.rc_harness import expect_counter_increase

from siwarp.sim import World
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    Context,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    StateError,
    WCOpcode,
    WCStatus,
    WROpcode,
)

MESSAGE_COUNT = 50


def make_numbered_message(i: int) -> bytes:
    return f"message {i}".encode()


MakeEnd = Callable[[Context, QPType], End]


def create_ready_pair(world: World, create_rdma_endpoint: MakeEnd, kind: QPType) -> tuple[End, End]:
    a, b = (create_rdma_endpoint(world.device(f"10.0.0.{i}"), kind) for i in (1, 2))
    for here, there in ((a, b), (b, a)):
        here.qp.to_rts(QPAttr(ah_attr=there.qp.addr)) if kind == QPType.UC else here.qp.to_rts()
    # UD and UC drop a message that finds no receive.
    for i in range(MESSAGE_COUNT):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(32768 + i * 64, 64)]))
    return a, b


def receive_messages(end: End, n: int) -> list[bytes]:
    """Wait for ``n`` messages, and return them in the order of their completions."""
    got: list[bytes] = []
    while len(got) < n:
        for wc in end.cq.wait():
            got.append(end.mr.read(wc.byte_len, 32768 + wc.check().wr_id * 64))
    return got


def send_messages(end: End, to: End, kind: QPType, n: int) -> None:
    ah = None if kind == QPType.UC else AH(end.pd, to.qp.addr)
    for i in range(n):
        end.mr.write(make_numbered_message(i))
        end.qp.post_send(SendWR(i, sg=[end.mr.sge(0, len(make_numbered_message(i)))], ah=ah))
        end.cq.wait()[0].check()
    if ah is not None:
        ah.close()


@pytest.mark.parametrize("kind", [QPType.UD, QPType.UC, QPType.RD])
def test_datagram_messages_arrive_in_order_over_a_network_without_loss(
    world: World, create_rdma_endpoint: MakeEnd, kind: QPType
) -> None:
    a, b = create_ready_pair(world, create_rdma_endpoint, kind)
    receiver = world.spawn(receive_messages, b, MESSAGE_COUNT)
    world.spawn(send_messages, a, b, kind, MESSAGE_COUNT)
    world.run_tasks(within="10s")
    assert receiver.result() == [make_numbered_message(i) for i in range(MESSAGE_COUNT)]


def test_rd_messages_arrive_despite_loss_duplication_and_reordering(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    world.faults("loss=10%,dup=2%,reorder=5%,delay=2ms")
    a, b = create_ready_pair(world, create_rdma_endpoint, QPType.RD)
    receiver = world.spawn(receive_messages, b, MESSAGE_COUNT)
    world.spawn(send_messages, a, b, QPType.RD, MESSAGE_COUNT)
    world.run_tasks(within="10min")
    assert receiver.result() == [make_numbered_message(i) for i in range(MESSAGE_COUNT)]
    assert world.stats.lost > 0


def test_the_delay_of_a_link_delays_a_message_by_exactly_that_time(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a, b = create_ready_pair(world, create_rdma_endpoint, QPType.UD)
    world.link(a.device, b.device, "delay=250ms")
    receiver = world.spawn(receive_messages, b, 1)
    world.spawn(send_messages, a, b, QPType.UD, 1)
    world.run_for("249ms")
    assert not receiver.done()
    world.run_for("2ms")
    assert receiver.result() == [make_numbered_message(0)]


def test_an_rd_message_arrives_only_after_a_partition_ends(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a, b = create_ready_pair(world, create_rdma_endpoint, QPType.RD)
    receiver = world.spawn(receive_messages, b, 1)
    world.partition(a.device, b.device)
    world.spawn(send_messages, a, b, QPType.RD, 1)
    world.run_for("1s")
    assert not receiver.done()
    world.heal()
    world.run_until(receiver.done, within="1min")
    assert receiver.result() == [make_numbered_message(0)]


def test_a_crash_raises_estale_on_its_device_and_fails_requests_of_the_peer(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a, b = create_ready_pair(world, create_rdma_endpoint, QPType.RD)
    receiver = world.spawn(receive_messages, b, 2)
    world.spawn(send_messages, a, b, QPType.RD, 1)
    world.run_for("1s")
    address = b.qp.addr
    world.crash(b.device)
    with pytest.raises(StateError) as error:
        world.run_for("1s")  # the receiver waits on a device that has crashed
    assert error.value.errno == errno.ESTALE
    assert receiver.done()
    with pytest.raises(StateError) as error:
        b.cq.poll()
    assert error.value.errno == errno.ESTALE

    statuses: list[int] = []

    def send_to_crashed_peer() -> None:
        with AH(a.pd, address) as ah:
            a.qp.post_send(SendWR(9, sg=[a.mr.sge(0, 8)], ah=ah))
            statuses.extend(wc.status for wc in a.cq.wait())

    world.spawn(send_to_crashed_peer)
    world.run_tasks(within="10min")
    assert statuses == [WCStatus.RETRY_EXC_ERR]

    with world.restart("10.0.0.2") as again:
        assert again.device.addresses == ("10.0.0.2",)
    with Context("10.0.0.2"):
        pass


def test_polling_one_or_many_completions_returns_the_same_values(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a, b = create_ready_pair(world, create_rdma_endpoint, QPType.UD)
    got = []
    for poll in (lambda: b.cq.poll(), lambda: b.cq.poll(8)):
        with AH(a.pd, b.qp.addr) as ah:
            a.qp.post_send(SendWR(sg=[a.mr.sge(0, 42)], ah=ah, send_flags=0))
        world.run_for("1ms")
        (wc,) = poll()
        got.append((wc.status, wc.opcode, wc.byte_len, wc.qp_num, wc.src_qp, wc.source))
        assert poll() == []
    assert got[0] == got[1]
    assert got[0][2:] == (42, b.qp.qp_num, a.qp.qp_num, a.qp.addr)


def test_a_wait_for_a_completion_event_ends_at_its_timeout(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a, _ = create_ready_pair(world, create_rdma_endpoint, QPType.UD)
    assert a.cq.channel is not None
    assert a.cq.channel.get_cq_event(0.2) is None
    assert world.now == pytest.approx(0.2, abs=1e-3)
    assert a.cq.wait(0.2) == []
    assert world.now == pytest.approx(0.4, abs=5e-3)  # unsuccessful polls take up to 1 ms


def test_the_number_of_lost_ud_messages_equals_the_statistics_of_the_world(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    world.faults("tx:loss=10%,seed=5")
    a, b = create_ready_pair(world, create_rdma_endpoint, QPType.UD)
    got = 0
    with AH(a.pd, b.qp.addr) as ah:
        for i in range(400):
            a.qp.post_send(SendWR(i, sg=[a.mr.sge(0, 32)], ah=ah))
            a.cq.wait()[0].check()
            world.run_for("1ms")
            for wc in b.cq.poll():
                got += 1
                b.qp.post_recv(RecvWR(wc.check().wr_id, sg=[b.mr.sge(32768, 64)]))
    assert 10 < world.stats.lost < 80
    assert got == 400 - world.stats.lost


def test_a_device_of_a_crashed_host_can_be_closed_by_force(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a = create_rdma_endpoint(world.device("10.0.0.1"), QPType.RD)
    world.crash(a.device)
    a.device.close(force=True)
    assert a.device.closed
    assert a.qp.closed


def test_a_write_record_can_be_read_after_its_queue_pair_moved_to_err(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a, b = (create_rdma_endpoint(world.device(f"10.0.0.{i}"), QPType.UD) for i in (1, 2))
    pd, cq = PD(b.device), CQ(b.device, 64)
    takes = QP(pd, QPInitAttr(QPType.UD, scq=cq, addr=("10.0.0.2", 0), qkey=7, max_write_records=4))
    takes.to_rts()
    a.qp.to_rts(QPAttr(qkey=7))
    with MR(pd, 64, ACCESS) as mr:
        with AH(a.pd, takes.addr) as ah:
            opcode = WROpcode.RDMA_WRITE_RECORD
            wr = SendWR(1, opcode, sg=[a.mr.sge(0, 8)], ah=ah, remote=mr.remote(0, 8))
            a.qp.post_send(wr)
            a.cq.wait()[0].check()
        world.run_for("1s")
        takes.modify(QPAttr(qp_state=QPState.ERR))
        (wc,) = cq.poll(4)
        assert wc.opcode == WCOpcode.RECV_WRITE_RECORD
        assert takes.record(wc).whole


def test_tasks_that_wait_on_a_crashed_device_fail_at_the_time_of_the_crash(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a = create_rdma_endpoint(world.device("10.0.0.1"), QPType.UD)
    a.qp.to_rts()
    channel = a.cq.channel
    assert channel is not None
    seen: dict[str, int] = {}

    def call_until_error(name: str, call: Callable[[], object]) -> None:
        with pytest.raises(StateError):
            while True:
                call()
        seen[name] = world.now_ns

    for name, call in (
        ("poll", a.cq.poll),
        ("wait", a.cq.wait),
        ("event", channel.get_cq_event),
        ("async", a.device.get_async_event),
    ):
        world.spawn(call_until_error, name, call)
    # At the time of the crash, unsuccessful polls are one millisecond apart.
    world.run_for("5.0005s")
    crashed = world.now_ns
    world.crash(a.device)
    world.run_tasks()
    assert seen == dict.fromkeys(["poll", "wait", "event", "async"], crashed)


def default_qkey(device: Context, kind: QPType) -> int | None:
    with QP(PD(device), QPInitAttr(kind, scq=CQ(device, 16))) as qp:
        qp.to_init()
        return qp.query()[0].qkey


@pytest.mark.parametrize("kind", [QPType.UD, QPType.RD])
def test_each_simulated_device_has_its_own_default_q_key(world: World, kind: QPType) -> None:
    a, b = world.device("10.0.0.1"), world.device("10.0.0.2")
    of_a = default_qkey(a, kind)
    assert default_qkey(a, kind) == default_qkey(Context("10.0.0.1"), kind) == of_a
    assert default_qkey(b, kind) != of_a
    world.crash(a)
    assert default_qkey(world.restart("10.0.0.1"), kind) != of_a


def test_queue_pairs_of_two_devices_with_default_q_keys_cannot_exchange_messages(
    world: World,
) -> None:
    a, b = (
        QP(PD(device), QPInitAttr(QPType.UD, scq=CQ(device, 16), addr=(address, 0)))
        for address in ("10.0.0.1", "10.0.0.2")
        for device in [world.device(address)]
    )
    a.to_rts()
    b.to_rts()
    b.post_recv(RecvWR(1))
    with expect_counter_increase("drop_qkey", 1), AH(a.pd, b.addr) as ah:
        a.post_send(SendWR(1, ah=ah))
        world.run_for("1s")
    assert b.scq.poll(1) == []


def test_a_queue_pair_whose_completion_queue_overflowed_moves_to_err_after_each_reset(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a = create_rdma_endpoint(world.device("10.0.0.1"), QPType.RD)
    a.qp.to_rts()
    device = world.device("10.0.0.2")
    pd, cq, small = PD(device), CQ(device), CQ(device, 1)
    qp = QP(pd, QPInitAttr(QPType.RD, scq=cq, rcq=small, addr=("10.0.0.2", 0), qkey=QKEY))
    mr = MR(pd, bytearray(64))
    for _ in range(2):
        qp.to_rts()
        for i in range(4):
            qp.post_recv(RecvWR(i, sg=[mr.sge()]))
            a.qp.post_send(SendWR(i, sg=[a.mr.sge(0, 8)], ah=AH(a.pd, qp.addr)))
        world.run_for(1)
        assert qp.qp_state == QPState.ERR
        qp.modify(QPAttr(qp_state=QPState.RESET))


def test_a_multicast_member_of_a_crashed_host_can_be_closed(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a = create_rdma_endpoint(world.device("10.0.0.1"), QPType.UD)
    a.qp.attach_mcast("239.1.1.1")
    world.crash(a.device)
    a.qp.close()


def test_write_records_that_are_not_polled_cause_no_work_although_receives_are_posted(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    a = create_rdma_endpoint(world.device("10.0.0.1"), QPType.RD)
    a.qp.to_rts()
    device = world.device("10.0.0.2")
    pd, cq = PD(device), CQ(device, 64)
    attr = QPInitAttr(QPType.RD, scq=cq, addr=("10.0.0.2", 0), qkey=QKEY, max_write_records=1)
    takes = QP(pd, attr)
    takes.to_rts()
    with MR(pd, bytearray(64), ACCESS) as mr, AH(a.pd, takes.addr) as ah:
        takes.post_recv(RecvWR(0, sg=[mr.sge(32, 32)]))
        kept = 0
        while True:
            opcode = WROpcode.RDMA_WRITE_RECORD
            wr = SendWR(kept, opcode, sg=[a.mr.sge(0, 8)], ah=ah, remote=mr.remote(0, 8))
            a.qp.post_send(wr)
            world.run_for("1s")
            if not a.cq.poll(1):
                break
            kept += 1
        before = world.stats.rounds
        world.run_for("1s")
        assert world.stats.rounds - before < 1000
        for _ in range(kept):
            takes.record(cq.poll(1)[0].check())
        world.run_for("1s")
        assert a.cq.poll(1)[0].check().wr_id == kept
