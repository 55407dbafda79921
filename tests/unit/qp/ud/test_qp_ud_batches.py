"""Batched UD sends: posted as lists, or one by one without a poll between them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import crcmod.predefined
import pytest
from harness.verbs_harness import Pair, Rig, octet_pattern, poll
from pace import scale_limit

from siwarp.inspect import DDPDatagram, UDDatagram
from siwarp.verbs import AH, RecvWR, SendFlag, SendWR, WCStatus

crc32c = crcmod.predefined.mkCrcFun("crc-32c")


@pytest.fixture
def receiving_socket() -> socket.socket:
    """Provide a plain UDP socket that receives the datagrams of a test."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    s.bind(("127.0.0.1", 0))
    s.settimeout(5)
    return s


def receive_datagrams(sink: socket.socket, n: int) -> list[bytes]:
    """Return the next ``n`` datagrams, after checking each CRC with crcmod."""
    found = []
    for _ in range(n):
        octets = sink.recv(65536)
        assert int.from_bytes(octets[-4:], "little") == crc32c(octets[:-4])
        found.append(octets)
    return found


def payload_of(datagram: bytes) -> bytes:
    return datagram[18:-4]


def build_sends(
    rig: Rig,
    ah: AH,
    messages: list[bytes],
    flags: SendFlag,
    others: dict[int, AH] | None = None,
) -> list[SendWR]:
    mr = rig.reg_mr(bytearray(b"".join(messages)))
    made, at = [], 0
    for i, m in enumerate(messages):
        to = (others or {}).get(i, ah)
        made.append(SendWR(i, sg=[mr.sge(at, len(m))], ah=to, send_flags=flags))
        at += len(m)
    return made


@pytest.mark.parametrize(
    "sizes",
    [
        [64] * 100,
        [64] * 31 + [10],
        [10, 64, 64, 9, 9, 9, 200],
        [0, 0, 0],
        [4096] * 40,
        [5000, 5000],
    ],
    ids=["equal", "a shorter last", "mixed", "empty", "large", "too large for a batch"],
)
def test_a_list_of_ud_sends_arrives_as_single_datagrams_in_order(
    rig: Rig, receiving_socket: socket.socket, sizes: list[int]
) -> None:
    cq = rig.create_cq(512)
    qp = rig.create_ud_qp(cq, max_send_wr=256)
    messages = [octet_pattern(n, i) for i, n in enumerate(sizes)]
    qp.post_send(
        build_sends(rig, rig.create_ah(receiving_socket.getsockname()), messages, SendFlag.SIGNALED)
    )
    got = receive_datagrams(receiving_socket, len(sizes))
    assert [payload_of(d) for d in got] == messages
    msns = [UDDatagram(d)[DDPDatagram].msn for d in got]
    assert msns == list(range(msns[0], msns[0] + len(sizes)))
    done = poll(cq, len(sizes))
    assert [w.wr_id for w in done] == list(range(len(sizes)))
    assert all(w.ok for w in done)


def test_each_of_two_peers_receives_its_own_messages_of_a_list_of_sends(
    rig: Rig, receiving_socket: socket.socket
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(5)
        qp = rig.create_ud_qp(max_send_wr=64)
        here, there = (
            rig.create_ah(receiving_socket.getsockname()),
            rig.create_ah(other.getsockname()),
        )
        messages = [octet_pattern(64, i) for i in range(12)]
        elsewhere = dict.fromkeys((3, 4, 9), there)
        qp.post_send(build_sends(rig, here, messages, SendFlag(0), elsewhere))
        assert [payload_of(d) for d in receive_datagrams(other, 3)] == [
            messages[i] for i in (3, 4, 9)
        ]
        rest = [messages[i] for i in range(12) if i not in (3, 4, 9)]
        assert [payload_of(d) for d in receive_datagrams(receiving_socket, 9)] == rest


def test_an_invalid_key_in_a_list_fails_its_send_and_flushes_the_later_sends(
    rig: Rig, receiving_socket: socket.socket
) -> None:
    cq = rig.create_cq()
    qp = rig.create_ud_qp(cq, max_send_wr=64)
    messages = [octet_pattern(64, i) for i in range(6)]
    posted = build_sends(
        rig, rig.create_ah(receiving_socket.getsockname()), messages, SendFlag.SIGNALED
    )
    posted[3].sg[0].lkey ^= 0x5555
    qp.post_send(posted)
    done = poll(cq, 6)
    assert [w.wr_id for w in done] == list(range(6))
    good, bad, flushed = WCStatus.SUCCESS, WCStatus.LOC_PROT_ERR, WCStatus.WR_FLUSH_ERR
    assert [w.status for w in done] == [good, good, good, bad, flushed, flushed]
    assert [payload_of(d) for d in receive_datagrams(receiving_socket, 3)] == messages[:3]
    qp.to_rts()
    qp.post_send(posted[4:])
    assert [payload_of(d) for d in receive_datagrams(receiving_socket, 2)] == messages[4:]


def test_posts_without_a_poll_between_them_are_sent_within_a_second(
    rig: Rig, receiving_socket: socket.socket
) -> None:
    qp = rig.create_ud_qp(max_send_wr=64)
    messages = [octet_pattern(64, i) for i in range(7)]
    posted = build_sends(rig, rig.create_ah(receiving_socket.getsockname()), messages, SendFlag(0))
    # After a recent poll by the program, the progress thread sleeps for nap_us.
    qp.scq.poll(1)
    for wr in posted:
        qp.post_send(wr)
    start = time.monotonic()
    assert [payload_of(d) for d in receive_datagrams(receiving_socket, 7)] == messages
    assert time.monotonic() - start < scale_limit(1)


def test_destroying_a_queue_pair_sends_its_held_back_posts(
    rig: Rig, receiving_socket: socket.socket
) -> None:
    qp = rig.create_ud_qp(max_send_wr=64)
    messages = [octet_pattern(64, i) for i in range(5)]
    posted = build_sends(rig, rig.create_ah(receiving_socket.getsockname()), messages, SendFlag(0))
    qp.scq.poll(1)
    for wr in posted:
        qp.post_send(wr)
    qp.close()
    assert [payload_of(d) for d in receive_datagrams(receiving_socket, 5)] == messages


def test_without_a_progress_thread_each_post_is_sent_immediately(
    receiving_socket: socket.socket,
) -> None:
    code = f"""
from siwarp.verbs import *
with Context() as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, bytearray(64)) as mr:
    with QP(pd, QPInitAttr(QPType.UD, scq=cq)) as qp:
        qp.to_rts()
        cq.poll(1)
        for i in range(5):
            qp.post_send(SendWR(i, sg=[mr.sge()], ah=AH(pd, {receiving_socket.getsockname()!r})))
        print("posted", flush=True)
        input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "SIWARP_PROGRESS_THREAD": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "posted\n"
        assert len(receive_datagrams(receiving_socket, 5)) == 5
        child.communicate("\n", timeout=30)


def test_a_hundred_posts_between_two_queue_pairs_all_arrive(ud_pair: Pair) -> None:
    for i in range(100):
        ud_pair.b.post_recv(RecvWR(i, sg=[ud_pair.into.sge(0, 64)]))
    for i in range(100):
        ud_pair.send(octet_pattern(64, i), wr_id=i)
    assert [w.wr_id for w in poll(ud_pair.rcq, 100)] == list(range(100))
