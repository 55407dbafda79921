"""A Send without a receive: what each persona makes of it."""

from __future__ import annotations

import errno
import select
import socket
import struct
import time

import pytest
from hostile.vanishing import PAGE, Vanishing
from unit.verbs.peer_harness import answering
from unit.verbs.rc_harness import READ, SEND, WRITE, End, Wire
from unit.verbs.verbs_harness import ALL_ACCESS, Rig, counted, nothing, pattern, poll

from siwarp.cm import CMEventType
from siwarp.verbs import SRQ, Persona, QPAttr, QPType, RecvWR, SrqAttr, WCStatus

FLUSHED = WCStatus.WR_FLUSH_ERR
NO_BUFFER = 1 << 16 | 2 << 8 | 2


def roce(wire: Wire, retry: int | None = None, timer: int = 14, **kw: object) -> tuple[End, End]:
    """Connect, the passive end waiting ``retry`` times ``timer`` (14 is 1.28 ms)."""

    def patience(b: End) -> None:
        if retry is not None:
            b.qp.modify(QPAttr(rnr_retry=retry, min_rnr_timer=timer))

    return wire.connect(persona=Persona.ROCE, before_accept=patience, **kw)  # type: ignore[arg-type]


def test_the_two_attributes_are_kept_and_bounded(rig: Rig) -> None:
    qp = rig.qp(qp_type=QPType.RC)
    attr, _ = qp.query()
    assert (attr.rnr_retry, attr.min_rnr_timer) == (7, 12)
    qp.modify(QPAttr(rnr_retry=3, min_rnr_timer=31))
    attr, _ = qp.query()
    assert (attr.rnr_retry, attr.min_rnr_timer) == (3, 31)
    for bad in (QPAttr(rnr_retry=8), QPAttr(rnr_retry=-1), QPAttr(min_rnr_timer=32)):
        with pytest.raises(OSError, match="is not from 0 to"):
            qp.modify(bad)
    assert qp.query()[0].rnr_retry == 3


def test_with_persona_iwarp_it_is_terminated_at_once(two: Wire) -> None:
    a, _ = two.connect(persona=Persona.IWARP)
    with counted("rnr_unexpected", 0):
        a.post(SEND, 1, length=8)
        a.is_over()
    event = a.event()
    assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, NO_BUFFER)


def test_it_completes_at_both_ends_when_the_receive_is_posted(two: Wire) -> None:
    a, b = roce(two)
    a.mem.view[:1000] = pattern(1000)
    with counted("rnr_unexpected", 1):
        a.post(SEND, 1, length=1000)
        nothing(a.scq)
        nothing(b.rcq)
    b.recv(wr_id=9)
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.ok, wc.byte_len) == (9, True, 1000)
    assert b.mem.read(1000) == pattern(1000)
    assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(1, WCStatus.SUCCESS)]


def test_a_receive_is_noticed_though_nobody_polls_there(two: Wire) -> None:
    a, b = roce(two)
    a.post(SEND, 1, length=8)
    nothing(a.scq)
    b.recv()
    assert poll(a.scq)[0].ok


def test_a_write_and_a_read_behind_it_are_done_while_it_waits(two: Wire) -> None:
    # The active end does not ask whether its Sends are there, so its Reads wait for nothing.
    a = two.dial(size=1 << 16, persona=Persona.IWARP)
    b = End(two.passive, two.request().id, two.p_channel, size=1 << 16, persona=Persona.ROCE)
    b.id.accept()
    assert a.event().type == b.event().type == CMEventType.ESTABLISHED
    a.mem.view[:64] = pattern(64)
    a.post(SEND, 1, length=64)
    a.post(WRITE, 2, length=64, remote=b.mem.remote(1024, 64))
    a.post(READ, 3, offset=512, length=64, remote=b.mem.remote(1024, 64))
    assert [w.wr_id for w in poll(a.scq, 3)] == [1, 2, 3]
    assert a.mem.read(64, 512) == b.mem.read(64, 1024) == pattern(64)
    nothing(b.rcq)
    b.recv()
    assert poll(b.rcq)[0].ok


@pytest.mark.parametrize("size", [0, 100, 100_000])
def test_many_come_out_in_the_order_in_which_they_went_in(two: Wire, size: int) -> None:
    a, b = roce(two, size=4 << 20, max_send_wr=64, max_recv_wr=64)
    for i in range(40):
        a.mem.write(pattern(size, i), offset=i * size)
        a.post(SEND, i, offset=i * size, length=size)
    nothing(a.scq)
    for i in range(40):
        b.recv(wr_id=i, length=size + 1)
        (wc,) = poll(b.rcq)
        assert (wc.wr_id, wc.byte_len) == (i, size)
        assert b.mem.read(size) == pattern(size, i)
    assert [w.wr_id for w in poll(a.scq, 40)] == list(range(40))


def test_a_receive_whose_memory_is_gone_ends_the_queue_pair_and_not_the_process(two: Wire) -> None:
    a, b = roce(two)
    memory = Vanishing(2 * PAGE, "unmapped")
    mr = b.rig.mr(memory.buffer, ALL_ACCESS)
    memory.vanish(PAGE)
    with counted("rnr_unexpected", 1):
        a.post(SEND, 1, length=PAGE + 1)
        nothing(a.scq)
    b.qp.post_recv(RecvWR(7, sg=[mr.sge()]))
    (wc,) = poll(b.rcq)
    assert (wc.wr_id, wc.status) == (7, WCStatus.LOC_PROT_ERR)
    b.is_over()
    a.is_over()
    mr.close()
    memory.close()


@pytest.mark.parametrize(("retry", "timer", "ms"), [(0, 0, 0), (1, 0, 655), (3, 25, 184)])
def test_after_retry_times_timer_the_sender_is_told_that_the_receiver_was_not_ready(
    two: Wire, retry: int, timer: int, ms: float
) -> None:
    a, b = roce(two, retry, timer)
    a.recv(5)
    with counted("rnr_expired", 1):
        start = time.monotonic()
        for i in range(2):
            a.post(SEND, i, length=8)
        done = poll(a.scq, 2)
        took = (time.monotonic() - start) * 1000
    assert [(w.status, w.vendor_err) for w in done] == [
        (WCStatus.RNR_RETRY_EXC_ERR, NO_BUFFER),
        (FLUSHED, NO_BUFFER),
    ]
    assert took >= ms
    assert [w.status for w in poll(a.rcq)] == [FLUSHED]
    for end in (a, b):
        end.is_over()
        assert end.event().wire_error == NO_BUFFER


@pytest.mark.parametrize(("retry", "timer", "ms"), [(1, 26, 82), (2, 24, 82), (6, 22, 123)])
def test_the_sender_is_told_no_later_than_half_as_long_again(
    two: Wire, retry: int, timer: int, ms: float
) -> None:
    took = []
    for _ in range(8):
        a, b = roce(two, retry, timer)
        start = time.monotonic()
        a.post(SEND, 1, length=8)
        assert poll(a.scq)[0].status == WCStatus.RNR_RETRY_EXC_ERR
        took.append((time.monotonic() - start) * 1000)
        b.is_over()
        a.close()
        b.close()
        if took[-1] < ms * 1.5:  # a busy machine only ever adds: the least of them is the timer's
            break
    assert ms <= min(took) < ms * 1.5


def test_each_send_has_its_own_time(two: Wire) -> None:
    a, b = roce(two, 2, 27)  # 246 ms
    for i in range(3):
        a.post(SEND, i, length=8)
    for i in range(3):
        nothing(b.rcq, 0.14)
        b.recv(wr_id=i)
        assert poll(b.rcq)[0].wr_id == i
    assert [w.status for w in poll(a.scq, 3)] == [0, 0, 0]


def test_seven_waits_for_ever_and_may_be_changed_while_one_waits(two: Wire) -> None:
    a, b = roce(two, 7, 1)
    a.post(SEND, 1, length=8)
    nothing(a.scq, 0.3)
    b.qp.modify(QPAttr(rnr_retry=1))
    assert poll(a.scq)[0].status == WCStatus.RNR_RETRY_EXC_ERR


def test_a_full_staging_stops_the_peer_and_loses_nothing(two: Wire) -> None:
    size, n = 300_000, 12  # more than is kept
    a, b = roce(two, size=1 << 20, max_send_wr=64, max_recv_wr=64)
    a.mem.view[:size] = pattern(size)
    for i in range(n):
        a.post(SEND, i, length=size)
    nothing(a.scq, 0.1)
    for i in range(n):
        b.mem.view[:size] = bytes(size)
        b.recv(wr_id=i, length=size)
        (wc,) = poll(b.rcq)
        assert (wc.wr_id, wc.byte_len) == (i, size)
        assert bytes(b.mem.view[:size]) == pattern(size)
    assert [w.wr_id for w in poll(a.scq, n)] == list(range(n))


def test_a_stopped_stream_costs_no_processor_time(two: Wire) -> None:
    size = 300_000
    a, b = roce(two, size=1 << 20, max_send_wr=64)
    for i in range(12):
        a.post(SEND, i, length=size)
    time.sleep(0.1)
    start = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - start < 0.25
    b.recv(length=size)
    assert poll(b.rcq)[0].ok


def test_a_peer_that_dies_while_nobody_reads_it_is_noticed(wire: Wire) -> None:
    with answering(wire, gone=True, persona=Persona.ROCE) as (a, peer):
        peer.sock.setblocking(False)
        octets, sent = b"", 0
        while select.select([], [peer.sock], [], 0.3)[1]:  # then nobody reads any more
            octets = octets or peer.segment(peer.send(bytes(60_000)))
            n = peer.sock.send(octets)
            octets, sent = octets[n:], sent + n
        assert sent > 1 << 20
        a.post(SEND, 1, length=8)
        nothing(a.scq)
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sock.close()
        assert poll(a.scq)[0].status == FLUSHED
        a.is_over()


def test_shared_receives_are_noticed_too(two: Wire) -> None:
    srq = SRQ(two.passive.pd, SrqAttr(16))
    a = two.dial(size=4096, persona=Persona.ROCE)
    b = End(two.passive, two.request().id, two.p_channel, size=4096, persona=Persona.ROCE, srq=srq)
    b.id.accept()
    assert a.event().type == b.event().type == CMEventType.ESTABLISHED
    a.post(SEND, 1, length=8)
    nothing(a.scq)
    srq.post_recv(RecvWR(7, sg=[b.mem.sge(0, 64)]))
    assert poll(b.rcq)[0].wr_id == 7
    assert poll(a.scq)[0].ok


@pytest.mark.parametrize("who", ["sender", "receiver"])
@pytest.mark.parametrize("how", ["destroy", "disconnect"])
def test_an_end_while_messages_wait_flushes_them(two: Wire, who: str, how: str) -> None:
    a, b = roce(two)
    for i in range(5):
        a.post(SEND, i, length=1000)
    nothing(b.rcq)
    one = a if who == "sender" else b
    if how == "destroy":
        one.close()
    else:
        one.id.disconnect()
    other = b if who == "sender" else a
    other.is_over()
    if not (who == "sender" and how == "destroy"):
        assert [w.status for w in poll(a.scq, 5)] == [FLUSHED] * 5


def test_a_plain_peer_is_answered_while_its_send_waits(wire: Wire) -> None:
    with answering(wire, persona=Persona.ROCE) as (a, peer):
        rkey, addr = a.mem.rkey, a.mem.addr
        peer.put(
            peer.send(b"early"),
            peer.write(b"written!", rkey, addr),
            peer.read(8, rkey, addr),
            peer.read(0, 1, 0),
        )
        _, octets = peer.pull()
        assert octets == b"written!"
        assert peer.is_silent()
        a.recv(1, 64, 64)
        assert poll(a.rcq)[0].byte_len == 5
        _, octets = peer.pull()
        assert octets == b""
        assert a.mem.read(5, 64) == b"early"


# ---- Sends that are kept whatever the persona


def test_kept_sends_are_received_though_the_peer_has_ended_and_its_end_comes_last(
    wire: Wire,
) -> None:
    with answering(wire, keep_unexpected=True) as (a, peer):
        assert a.qp.query()[1].keep_unexpected
        messages = [pattern(n, n) for n in (100, 0, 30_000)]
        with counted("rnr_unexpected", 3):
            peer.put(*(peer.send(m) for m in messages))
            peer.sock.shutdown(socket.SHUT_WR)
            nothing(a.rcq, 0.1)
        assert a.channel.get_event(0) is None
        for n, message in enumerate(messages):
            a.recv(n)
            (wc,) = poll(a.rcq)
            assert (wc.wr_id, wc.byte_len) == (n, len(message))
            assert a.mem.read(wc.byte_len) == message
        event = a.event()
        assert (event.type, event.status) == (CMEventType.DISCONNECTED, 0)


@pytest.mark.parametrize("where", ["placed", "kept", "written"])
def test_an_end_in_the_middle_of_a_message_is_no_orderly_end(wire: Wire, where: str) -> None:
    with answering(wire, keep_unexpected=True) as (a, peer):
        if where == "written":
            peer.put(peer.write(b"a part", a.mem.rkey, a.mem.addr, l=0))
        else:
            peer.put(peer.send(b"whole"), peer.send(b"a part", l=0))
        if where == "placed":
            a.recv(1), a.recv(2)
        peer.sock.shutdown(socket.SHUT_WR)
        if where == "kept":
            nothing(a.rcq, 0.1)
            a.recv(1), a.recv(2)
        if where != "written":
            assert [(wc.wr_id, wc.status) for wc in poll(a.rcq, 2)] == [(1, 0), (2, FLUSHED)]
        event = a.event()
        assert (event.type, event.status) == (CMEventType.DISCONNECTED, errno.ECONNRESET)
