"""RC queue pairs that connect by GID and QPN: spec/rc-pairing.md.

Tests of times of such connections are in tests/sim/test_sim_rc_pairing.py.
"""

from __future__ import annotations

import errno
import re
from typing import Any

import net
import pytest
from harness.pair_harness import HOST, End, connect_pair_by_qpn, exchange_sends, is_in_state
from harness.verbs_harness import Rig, errno_raised_by, octet_pattern, temporary_settings

from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import QP as QueuePair
from siwarp.verbs import (
    AHAttr,
    EventType,
    Persona,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WROpcode,
)

PERSONAS = [Persona.IWARP, Persona.ROCE]


@pytest.fixture(params=PERSONAS, ids=["iwarp", "roce"])
def unconnected_ends(request: pytest.FixtureRequest, rig: Rig) -> tuple[End, End]:
    """Two ends on one device, in RESET; the first end has the lower QPN."""
    a, b = End(rig, persona=request.param), End(rig, persona=request.param)
    return (a, b) if a.qp.qp_num < b.qp.qp_num else (b, a)


# ---- connecting by GID and QPN


def test_a_queue_pair_in_rtr_receives_messages(unconnected_ends: tuple[End, End]) -> None:
    a, b = unconnected_ends
    b.to_init_with_receives()
    b.qp.to_rtr(QPAttr(ah_attr=AHAttr(HOST), dest_qp_num=a.qp.qp_num))
    a.to_rts(b.host_and_qpn)
    a.send(b"to RTR")
    assert all(wc.ok for wc in a.wait_for_sends(1) + b.wait_for_sends(1))
    assert is_in_state(b, QPState.RTR)
    with b.rig.next_async_event() as event:
        assert (event.event_type, event.element) == (EventType.COMM_EST, b.qp)
    assert errno_raised_by(b.send, b"not yet") == errno.EINVAL
    b.qp.to_rts()
    a.qp.post_recv(_build_receive(a, 0))
    b.send(b"now")
    assert all(wc.ok for wc in a.wait_for_sends(1) + b.wait_for_sends(1))


def test_reads_writes_and_atomics_work_on_a_connection_by_gid_and_qpn(
    unconnected_ends: tuple[End, End],
) -> None:
    a, b = unconnected_ends
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b, max_rd_atomic=4, max_dest_rd_atomic=4)
    data = octet_pattern(20_000)
    b.mr.write(data, len(data), 30_000)
    remote = RemoteBuffer(b.mr.addr + 30_000, len(data), b.mr.rkey)
    flags = SendFlag.SIGNALED
    into = [a.mr.sge(40_000, len(data))]
    read = SendWR(5, WROpcode.RDMA_READ, sg=into, remote=remote, send_flags=flags)
    for _ in range(12):  # three times as many Reads as may be outstanding
        a.qp.post_send(read)
    assert all(wc.ok for wc in a.wait_for_sends(12))
    assert a.mr.read(len(data), 40_000) == data
    a.write(b"here", b, 20_000)
    a.send(b"written", 2)
    assert all(wc.ok for wc in a.wait_for_sends(2) + b.wait_for_sends(1))
    assert b.mr.read(4, 20_000) == b"here"
    b.mr.write((41).to_bytes(8, "little"), 8, 800)
    at = RemoteBuffer(b.mr.addr + 800, 8, b.mr.rkey)
    old = [a.mr.sge(64, 8)]
    a.qp.post_send(SendWR(6, WROpcode.ATOMIC_FETCH_AND_ADD, sg=old, remote=at, compare_add=1))
    assert a.wait_for_sends(1)[0].ok
    assert int.from_bytes(a.mr.read(8, 64), "little") == 41


def test_send_with_immediate_needs_no_setting_on_a_connection_by_gid_and_qpn(
    unconnected_ends: tuple[End, End],
) -> None:
    a, b = unconnected_ends
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    wr = SendWR(3, WROpcode.SEND_WITH_IMM, sg=[a.mr.sge(20_000, 5)], imm_data=0x01020304)
    a.qp.post_send(wr)  # the request may be posted before the connection is established
    assert a.wait_for_sends(1)[0].ok
    (came,) = b.wait_for_sends(1)
    assert (came.ok, came.byte_len, came.imm_data) == (True, 5, 0x01020304)


def test_reads_beyond_the_responder_resources_of_the_peer_wait_without_error(
    unconnected_ends: tuple[End, End],
) -> None:
    """Check that a query returns the limits that the program requested, connected or not."""
    a, b = unconnected_ends
    a.to_init_with_receives(), b.to_init_with_receives()
    b.to_rts(a.host_and_qpn, max_rd_atomic=3, max_dest_rd_atomic=1)
    where = AHAttr(HOST)
    a.qp.to_rtr(QPAttr(ah_attr=where, dest_qp_num=b.qp.qp_num, max_dest_rd_atomic=2))
    b.send(b"the stream is there")
    assert all(wc.ok for wc in a.wait_for_sends(1) + b.wait_for_sends(1))
    a.qp.to_rts(QPAttr(max_rd_atomic=16))
    assert [end.qp.query()[0].max_rd_atomic for end in unconnected_ends] == [16, 3]
    assert [end.qp.query()[0].max_dest_rd_atomic for end in unconnected_ends] == [2, 1]
    remote = RemoteBuffer(b.mr.addr, 100, b.mr.rkey)
    for _ in range(16):
        read = SendWR(5, WROpcode.RDMA_READ, sg=[a.mr.sge(20_000, 100)], remote=remote)
        a.qp.post_send(read)
    assert all(wc.ok for wc in a.wait_for_sends(16))
    a.qp.modify(QPAttr(qp_state=QPState.SQD))
    a.qp.modify(QPAttr(max_rd_atomic=1))
    a.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert a.qp.query()[0].max_rd_atomic == 1
    a.qp.post_send(read)
    assert a.wait_for_sends(1)[0].ok


@pytest.mark.parametrize("persona", PERSONAS)
def test_a_queue_pair_can_connect_to_itself_by_gid_and_qpn(rig: Rig, persona: Persona) -> None:
    a = End(rig, persona=persona)
    a.to_init_with_receives()
    a.to_rts(a.host_and_qpn)
    for turn in range(18):  # 18 Sends use every receive, and some receives twice
        a.send(octet_pattern(900, turn), turn)
        done = sorted(a.wait_for_sends(2), key=lambda wc: wc.wr_id)
        assert [wc.ok for wc in done] == [True, True] and done[0].wr_id == turn
        at = done[1].wr_id - 100
        assert a.mr.read(900, at << 10) == octet_pattern(900, turn)
        a.qp.post_recv(_build_receive(a, at))
    a.write(b"into itself", a, 20_000)
    a.send(b"written", 2, at=40_000)
    assert all(wc.ok for wc in a.wait_for_sends(3))
    assert a.mr.read(11, 20_000) == b"into itself"


def _build_receive(end: End, at: int) -> RecvWR:
    return RecvWR(100 + at, sg=[end.mr.sge(at << 10, 1 << 10)])


def test_queue_pairs_connect_by_gid_and_qpn_over_ipv6(rig: Rig) -> None:
    host = net.HERE_V6
    if host not in rig.ctx.query_info().addresses:
        pytest.skip("this machine's loopback has no IPv6")
    a, b = End(rig, host), End(rig, host)
    a.to_init_with_receives(), b.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    exchange_sends(a, b)
    attr, init = a.qp.query()
    assert attr.ah_attr == AHAttr(host, 0, host) and init.by_qpn


def test_a_queue_pair_can_connect_to_another_peer_after_reset(rig: Rig) -> None:
    a, b, c = End(rig), End(rig), End(rig)
    for end in (a, b, c):
        end.to_init_with_receives()
    connect_pair_by_qpn(a, b)
    exchange_sends(a, b)
    number = a.qp.qp_num
    a.qp.modify(QPAttr(qp_state=QPState.RESET))
    assert a.qp.qp_num == number
    a.to_init_with_receives()
    a.to_rts(c.host_and_qpn)
    c.to_rts(a.host_and_qpn)
    exchange_sends(a, c)
    assert is_in_state(b, QPState.RTS)


# ---- queue pair numbers and ports


def test_settings_bound_the_tcp_ports_of_queue_pairs_by_gid_and_qpn(rig: Rig) -> None:
    cq = rig.create_cq()
    init = QPInitAttr(QPType.RC, scq=cq, rcq=cq, by_qpn=True)
    with End(rig).qp as probe:
        port = probe.qp_num & 0xFFFF  # the port is free again when the queue pair is closed
    with temporary_settings(rc_port_first=port, rc_port_last=port):
        made = [QueuePair(rig.pd, init) for _ in range(255)]
        assert {qp.qp_num & 0xFFFF for qp in made} == {port}
        assert errno_raised_by(QueuePair, rig.pd, init) == errno.EADDRINUSE
        made.pop().close()
        made.append(QueuePair(rig.pd, init))
    for qp in made:
        qp.close()


# ---- refused calls


@pytest.mark.parametrize(
    ("attr", "words"),
    [
        ({"dest_qp_num": 5}, "set ah_attr and dest_qp_num"),
        ({"ah_attr": AHAttr(HOST)}, "set ah_attr and dest_qp_num"),
        ({"ah_attr": AHAttr(HOST), "dest_qp_num": 1 << 16}, "not a valid QPN"),
        ({"ah_attr": AHAttr(HOST), "dest_qp_num": 1 << 24 | 7}, "not a valid QPN"),
        ({"ah_attr": AHAttr(HOST, source="192.0.2.9"), "dest_qp_num": 65543}, "AHAttr(source=...)"),
        ({"ah_attr": AHAttr(HOST, source=net.HERE_V6), "dest_qp_num": 65543}, "is not an address"),
        ({"ah_attr": AHAttr("239.1.2.3"), "dest_qp_num": 65543}, "is a multicast address"),
    ],
)
def test_an_invalid_peer_gid_or_qpn_is_refused(rig: Rig, attr: dict[str, Any], words: str) -> None:
    a = End(rig)
    a.to_init_with_receives()
    with pytest.raises(OSError, match=re.escape(words)):
        a.qp.modify(QPAttr(qp_state=QPState.RTR, **attr))
    assert is_in_state(a, QPState.INIT)


@pytest.mark.parametrize("attr", [{"timeout": 32}, {"timeout": -1}, {"retry_cnt": 8}])
def test_timeout_and_retry_cnt_are_bounded(rig: Rig, attr: dict[str, int]) -> None:
    a, b = End(rig), End(rig)
    a.to_init_with_receives()
    a.qp.to_rtr(QPAttr(ah_attr=AHAttr(HOST), dest_qp_num=b.qp.qp_num))
    assert errno_raised_by(a.qp.to_rts, QPAttr(**attr)) == errno.EINVAL
    a.qp.to_rts(QPAttr(timeout=31, retry_cnt=7))
    found, _ = a.qp.query()
    assert (found.timeout, found.retry_cnt) == (31, 7)
    assert (found.ah_attr, found.dest_qp_num) == (AHAttr(HOST, 0, HOST), b.qp.qp_num)


def test_pairing_by_gid_and_qpn_excludes_connection_managers_and_other_queue_pair_types(
    rig: Rig,
) -> None:
    a = End(rig)
    a.to_init_with_receives()
    a.qp.modify(QPAttr(qp_state=QPState.RTR, ah_attr=AHAttr(HOST), dest_qp_num=a.qp.qp_num))
    channel = CMEventChannel(rig.ctx)
    with CMID(channel) as cm_id, pytest.raises(OSError, match="in RESET or INIT"):
        cm_id.bind_qp(a.qp)
    channel.close()
    cq = rig.create_cq()
    for qp_type in (QPType.UD, QPType.UC, QPType.RD):
        init = QPInitAttr(qp_type, scq=cq, rcq=cq, by_qpn=True)
        assert errno_raised_by(QueuePair, rig.pd, init) == errno.EINVAL
    plain = rig.create_qp(qp_type=QPType.RC)
    plain.to_init()
    attr = QPAttr(qp_state=QPState.RTR, ah_attr=AHAttr(HOST), dest_qp_num=a.qp.qp_num)
    with pytest.raises(OSError, match="connects an RC QP"):
        plain.modify(attr)
