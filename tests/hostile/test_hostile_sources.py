"""Counters per source show which sender causes the drops of a UD queue pair without receives."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from harness.rc_harness import ListenerAndConnector
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    counter_value,
    errno_raised_by,
    poll,
    wait_until,
)
from scapy.packet import Raw

from siwarp.inspect import DDPDatagram, UDDatagram
from siwarp.verbs import QP, QPType, RecvWR, SourceDrops


@pytest.fixture
def verbs_device() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def build_ud_datagram(octets: bytes = b"x", qkey: int = 0) -> bytes:
    return bytes(UDDatagram(segment=DDPDatagram(q_key=qkey) / Raw(octets)))


def flood_queue_pair(qp: QP, source: str, n: int, ports: int = 1) -> None:
    """Send this number of datagrams from one address, and wait until each was dropped."""
    socks = []
    for _ in range(ports):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind((source, 0))
        socks.append(s)
    before = counter_value("drop_no_buffer")
    for i in range(n):
        socks[i % ports].sendto(build_ud_datagram(), qp.addr)
    wait_until(lambda: qp.rcq.poll(1) == [] and counter_value("drop_no_buffer") == before + n)
    for s in socks:
        s.close()


def test_dropped_datagrams_are_counted_by_source_address_and_not_by_port(verbs_device: Rig) -> None:
    qp = verbs_device.create_ud_qp(addr=("127.0.0.1", 0))
    assert qp.drops() == []
    flood_queue_pair(qp, "127.0.0.2", 3)
    flood_queue_pair(qp, "127.0.0.3", 40, ports=4)
    flood_queue_pair(qp, "127.0.0.2", 2)
    assert qp.drops() == [SourceDrops("127.0.0.3", 40, 0), SourceDrops("127.0.0.2", 5, 0)]


def test_delivered_datagrams_and_wrong_q_keys_are_not_counted_against_the_source(
    verbs_device: Rig,
) -> None:
    qp = verbs_device.create_ud_qp(addr=("127.0.0.1", 0), qkey=7)
    mr = verbs_device.reg_mr(bytearray(64))
    qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s,
        assert_counter_grows("drop_qkey", 1),
    ):
        s.sendto(build_ud_datagram(qkey=8), qp.addr)
        s.sendto(build_ud_datagram(qkey=7), qp.addr)
        assert poll(qp.rcq)[0].ok
    assert qp.drops() == []


def test_more_sources_than_table_entries_do_not_hide_the_source_of_a_flood(
    verbs_device: Rig,
) -> None:
    qp = verbs_device.create_ud_qp(addr=("127.0.0.1", 0))
    flood_queue_pair(qp, "127.0.0.99", 100)
    for i in range(60):
        flood_queue_pair(qp, f"127.0.1.{i + 1}", 1)
    found = qp.drops()
    assert len(found) == 32
    assert found[0] == SourceDrops("127.0.0.99", 100, 0)
    assert sum(d.drops for d in found) == 160, (
        "an entry that is reused for another source keeps its count"
    )
    assert all(d.over < d.drops for d in found)


def test_drops_of_ipv6_sources_are_counted(verbs_device: Rig) -> None:
    qp = verbs_device.create_ud_qp(addr=("::1", 0))
    with (
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s,
        assert_counter_grows("drop_no_buffer", 1),
    ):
        s.sendto(build_ud_datagram(), qp.addr)
        wait_until(lambda: qp.rcq.poll(1) == [] and qp.drops())
    assert qp.drops() == [SourceDrops("::1", 1, 0)]


def test_an_rc_queue_pair_has_no_counters_per_source(verbs_device: Rig) -> None:
    a, b = ListenerAndConnector(verbs_device).connect()
    assert a.qp.qp_type == QPType.RC
    assert errno_raised_by(a.qp.drops) == 22
    a.close()
    b.close()
