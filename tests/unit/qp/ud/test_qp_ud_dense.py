"""UD and UC reception of many short messages, which the kernel delivers in batches."""

from __future__ import annotations

import random

import pytest
from harness.uc_harness import connect_qps
from harness.verbs_harness import Rig, assert_counter_grows, octet_pattern, poll

from siwarp.verbs import (
    CQ,
    QP,
    AccessFlag,
    QPAttr,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    WCStatus,
)

RECEIVE_OCTETS = 512  # octets of memory for each receive
LIST = 32


class Flood:
    """Two queue pairs, a sender and a receiver, and memory for many messages."""

    def __init__(self, rig: Rig, kind: QPType, n: int, **cap: int) -> None:
        self.scq, self.rcq = rig.create_cq(4 * LIST), rig.create_cq(n)
        both = {"max_send_wr": 4 * LIST, "max_recv_wr": n, "qp_type": kind, **cap}
        self.a: QP = rig.create_qp(self.scq, **both)
        self.b: QP = rig.create_qp(self.rcq, **both)
        if kind == QPType.UC:
            connect_qps(self.a, self.b)
        else:
            for qp in (self.a, self.b):
                qp.to_rts(QPAttr(qkey=7))
        self.ah = rig.create_ah(self.b) if kind == QPType.UD else None
        self.out = rig.reg_mr(bytearray(LIST * RECEIVE_OCTETS))
        self.into = rig.reg_mr(bytearray(n * RECEIVE_OCTETS), AccessFlag.LOCAL_WRITE)

    def post_receives(self, n: int) -> None:
        for i in range(n):
            self.b.post_recv(RecvWR(i, sg=[self.into.sge(i * RECEIVE_OCTETS, RECEIVE_OCTETS)]))

    def post_sends(self, messages: list[bytes], one_by_one: bool) -> None:
        wrs = []
        for i, m in enumerate(messages):
            self.out.write(m, offset=i * RECEIVE_OCTETS)
            sge = self.out.sge(i * RECEIVE_OCTETS, len(m))
            wrs.append(SendWR(i, sg=[sge], send_flags=SendFlag.SIGNALED, ah=self.ah))
        if one_by_one:
            for wr in wrs:
                self.a.post_send(wr)
        else:
            self.a.post_send(wrs)
        assert all(wc.ok for wc in poll(self.scq, len(messages)))


def poll_received_messages(cq: CQ, n: int) -> list[tuple[int, int]]:
    done = poll(cq, n)
    assert {wc.status for wc in done} == {WCStatus.SUCCESS}
    return [(wc.wr_id, wc.byte_len) for wc in done]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("kind", [QPType.UD, QPType.UC])
def test_every_message_of_dense_traffic_arrives_whole_and_in_order(
    rig: Rig, kind: QPType, one_by_one: bool
) -> None:
    rng = random.Random(7)
    flood = Flood(rig, kind, 8 * LIST)
    for turn in range(8):
        lengths = (
            [64] * LIST
            if turn % 2
            else [rng.choice((0, 64, 64, RECEIVE_OCTETS)) for _ in range(LIST)]
        )
        messages = [octet_pattern(n, turn * LIST + i) for i, n in enumerate(lengths)]
        flood.post_receives(LIST)
        flood.post_sends(messages, one_by_one)
        assert poll_received_messages(flood.rcq, LIST) == list(enumerate(lengths))
        for i, m in enumerate(messages):
            assert flood.into.read(len(m), i * RECEIVE_OCTETS) == m


@pytest.mark.parametrize("kind", [QPType.UD, QPType.UC])
def test_each_message_dropped_for_lack_of_a_receive_is_counted(rig: Rig, kind: QPType) -> None:
    flood = Flood(rig, kind, 4 * LIST)
    messages = [octet_pattern(64, i) for i in range(LIST)]
    for _ in range(4):  # after a few rounds, the kernel delivers datagrams in batches
        flood.post_receives(LIST)
        flood.post_sends(messages, False)
        poll_received_messages(flood.rcq, LIST)
    with assert_counter_grows("drop_no_buffer", LIST - 5):
        flood.post_receives(5)
        flood.post_sends(messages, False)
        assert poll_received_messages(flood.rcq, 5) == [(i, 64) for i in range(5)]
    with assert_counter_grows("drop_no_buffer", 0):
        flood.post_receives(1)  # a dropped message must not consume this receive later
        flood.post_sends([octet_pattern(9, 1)], False)
        assert poll_received_messages(flood.rcq, 1) == [(0, 9)]


def test_each_queue_pair_on_one_socket_receives_its_own_messages_of_a_batch(rig: Rig) -> None:
    cqs = [rig.create_cq(64) for _ in range(3)]
    first = rig.create_qp(cqs[0], max_recv_wr=64)
    qps = [first, *(rig.create_qp(cq, shared_socket_qp=first, max_recv_wr=64) for cq in cqs[1:])]
    scq = rig.create_cq(64)
    sender = rig.create_qp(scq, max_send_wr=64)
    for qp in (*qps, sender):
        qp.to_rts(QPAttr(qkey=7))
    out, into = rig.reg_mr(bytearray(range(48)) * 2), rig.reg_mr(bytearray(3 * 16 * 2))
    ahs = [rig.create_ah(qp) for qp in qps]
    for turn in range(4):
        for q, qp in enumerate(qps):
            for i in range(16):
                qp.post_recv(RecvWR(i, sg=[into.sge((q * 16 + i) * 2, 2)]))
        sender.post_send(
            [
                SendWR(
                    i,
                    sg=[out.sge(i, 2)],
                    ah=ahs[i % 3],
                    remote_qpn=qps[i % 3].qp_num,
                    remote_qkey=7,
                    send_flags=SendFlag.SIGNALED,
                )
                for i in range(48)
            ]
        )
        assert all(wc.ok for wc in poll(scq, 48)), turn
        for q, cq in enumerate(cqs):
            assert poll_received_messages(cq, 16) == [(i, 2) for i in range(16)]
            got = into.read(32, q * 32)
            assert [got[2 * i] for i in range(16)] == [3 * i + q for i in range(16)]
