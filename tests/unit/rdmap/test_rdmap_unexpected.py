"""Sends that arrive before their receives: kept within bounds, later messages are processed."""

from __future__ import annotations

import errno
import random

import pytest
from _siwarp_layers import ffi, lib
from unit.rdmap.rdmap_harness import (
    CANARY,
    LOCAL_WRITE,
    RdmapWorld,
    Stream,
    StreamError,
    fpdu,
    pattern,
    read_request,
    read_response,
    send,
    terminate,
    until,
    write,
)

from siwarp.inspect import Opcode

ROOM = 128 << 10
NO_BUFFER, TOO_LONG = (1, 2, 2), (1, 2, 5)


def waiting_send_msn(stream: Stream) -> int | None:
    """Return the MSN of the Send that waits for a receive, or None."""
    msn = ffi.new("uint32_t *")
    return int(msn[0]) if lib.siw_rdmap_send_waits(stream.handle, msn) else None


def is_quiet(stream: Stream) -> bool:
    """Return whether no event comes except PROGRESS."""
    seen = [stream.event_once() for _ in range(50)]
    return all(e is None or e.kind == "PROGRESS" for e in seen)


def answers(stream: Stream) -> list[int]:
    """Return the sizes of the Read Responses sent so far."""
    stream.flush()
    stream.sock.settimeout(0.02)
    sizes = []
    try:
        while True:
            head, octets = stream.pull()
            assert head.opcode == Opcode.RDMA_READ_RESPONSE
            sizes.append(len(octets))
    except TimeoutError:
        return sizes
    finally:
        stream.sock.settimeout(10)


def test_an_unexpected_send_is_received_when_a_receive_is_posted(w: RdmapWorld) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    stream.put(send(pattern(100), opcode=Opcode.SEND_SE))
    assert stream.event().kind == "PARKED"
    assert is_quiet(stream) and waiting_send_msn(stream) == 1
    m = w.memory(100)
    stream.recvs.post(17, m.sge())
    e = stream.event()
    assert (e.kind, e.user_data, e.length, e.msn, e.solicited) == ("RECV", 17, 100, 1, True)
    assert m.octets() == pattern(100)
    assert is_quiet(stream) and waiting_send_msn(stream) is None


def test_writes_reads_and_a_terminate_behind_an_unexpected_send_go_on(w: RdmapWorld) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    m = w.memory(64)
    stream.put(
        send(b"early"),
        write(b"written!", stag=m.stag, to=m.addr),
        read_request(size=8, src_stag=m.stag, src_to=m.addr),
    )
    assert [stream.event(progress=True).kind for _ in range(3)] == [
        "PARKED",
        "PROGRESS",
        "REQUESTED",
    ]
    assert m.octets()[:8] == b"written!"
    stream.flush()
    assert stream.pull()[1] == b"written!"
    assert waiting_send_msn(stream) == 1
    stream.put(terminate(b"\x00\x00\x00\x00"))
    assert stream.event().kind == "TERMINATED"


def test_sends_are_received_in_their_order_each_by_the_next_receive(w: RdmapWorld) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    m = w.memory(1000)
    for i in range(1, 6):
        stream.put(send(pattern(i * 10, i), msn=i))
    assert stream.event().kind == "PARKED"
    for i in range(1, 6):
        assert is_quiet(stream) and waiting_send_msn(stream) == i
        stream.recvs.post(i, m.sge((i - 1) * 100, 100))
        e = stream.event()
        assert (e.kind, e.user_data, e.length, e.msn) == ("RECV", i, i * 10, i)
        assert m.octets()[(i - 1) * 100 :][: i * 10] == pattern(i * 10, i)
    stream.recvs.post(6, m.sge())
    stream.put(send(b"direct", msn=6))
    assert (stream.event().user_data, m.octets()[:6]) == (6, b"direct")


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_message_of_which_a_part_is_kept_goes_on_where_its_receive_is(
    w: RdmapWorld, cut: int
) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    data = pattern(400)
    pieces = [send(data[i * 100 :][:100], mo=i * 100, l=int(i == 3)) for i in range(4)]
    m = w.memory(400)
    stream.put(*pieces[:cut])
    assert stream.event().kind == "PARKED"
    assert is_quiet(stream)
    stream.recvs.post(1, m.sge())
    stream.put(*pieces[cut:], send(b"next", msn=2))
    stream.recvs.post(2, m.sge(0, 4))
    e = stream.event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 400)
    assert m.octets() == data
    assert (stream.event().user_data, m.octets()[:4]) == (2, b"next")


@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_an_unexpected_segment_may_come_octet_by_octet(w: RdmapWorld, size: int) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    m = w.memory(max(size, 1))
    octets = fpdu(send(pattern(size)))
    step = max(1, len(octets) // 40)
    for at in range(0, len(octets) - step, step):
        stream.sock.sendall(octets[at : at + step])
        assert stream.event_once() is None
    stream.sock.sendall(octets[(len(octets) - step - 1) // step * step + step :])
    assert stream.event().kind == "PARKED"
    stream.recvs.post(1, m.sge())
    assert stream.event().length == size
    assert m.octets()[:size] == pattern(size)


def test_a_read_of_nothing_is_answered_after_the_send_before_it_was_received(
    w: RdmapWorld,
) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    m = w.memory(64)
    stream.put(
        read_request(size=0, src_stag=1, src_to=0),
        send(b"one"),
        read_request(size=8, src_stag=m.stag, src_to=m.addr, msn=2),
        read_request(size=0, src_stag=1, src_to=0, msn=3),
        send(b"two", msn=2),
        read_request(size=4, src_stag=m.stag, src_to=m.addr, msn=4),
    )
    while stream.event_once():
        pass
    until(lambda: stream.event_once() is None)
    seen = answers(stream)
    while len(seen) < 2:
        stream.event_once()
        seen += answers(stream)
    assert seen == [0, 8]
    stream.recvs.post(1, m.sge())
    assert stream.event().kind == "RECV"
    assert stream.event().kind == "REQUESTED"
    # the Read Response is sent although the second Send still waits for a receive
    assert answers(stream) == [0, 4]
    assert waiting_send_msn(stream) == 2


def test_a_full_staging_stops_reading_and_loses_nothing(w: RdmapWorld) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    sizes = [random.Random(5).randrange(0, 4000) for _ in range(300)]
    octets = b"".join(fpdu(send(pattern(n, i), msn=i + 1)) for i, n in enumerate(sizes))
    stream.sock.settimeout(0.05)
    put = 0

    def pump() -> None:
        nonlocal put
        try:
            while put < len(octets):
                put += stream.sock.send(octets[put : put + 65536])
        except (TimeoutError, BlockingIOError):
            pass

    pump()
    while stream.event_once():
        pass
    assert waiting_send_msn(stream) == 1
    m = w.memory(4000)
    for i, n in enumerate(sizes):
        stream.recvs.post(i, m.sge())
        stream.sock.setblocking(False)
        pump()
        e = stream.event()
        assert (e.kind, e.user_data, e.length) == ("RECV", i, n)
        assert m.octets()[:n] == pattern(n, i)


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_a_peer_that_sends_without_end_costs_no_more_than_the_limit(
    w: RdmapWorld, size: int
) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    rounds, each = 60, 40
    stream.sock.setblocking(False)
    sent = 0
    for i in range(rounds):
        octets = b"".join(fpdu(send(pattern(size), msn=i * each + j + 1)) for j in range(each))
        try:
            while octets:
                n = stream.sock.send(octets)
                octets, sent = octets[n:], sent + n
        except BlockingIOError:
            break
        while stream.event_once():
            pass
    kept = int(lib.siw_ddp_rx_unexpected(stream.ddp))
    assert ROOM - 2048 < kept <= ROOM
    assert is_quiet(stream)


@pytest.mark.parametrize(
    ("fields", "code"), [({"msn": 1}, 3), ({"msn": 3}, 3), ({"msn": 2, "mo": 4}, 4)]
)
def test_numbers_are_judged_behind_an_unexpected_send(
    w: RdmapWorld, fields: dict[str, int], code: int
) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    stream.put(send(b"early"), send(b"bad", **fields))
    assert stream.event().kind == "PARKED"
    assert stream.terminates((1, 2, code)).quoted_ddp.msn == fields["msn"]


def test_an_unexpected_send_longer_than_its_receive_is_an_error_naming_it(
    w: RdmapWorld,
) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    m = w.memory(64)
    stream.put(send(b"8 octets", msn=1), send(b"9 octets!", msn=2))
    assert stream.event().kind == "PARKED"
    assert is_quiet(stream)
    stream.recvs.post(1, m.sge(0, 8))
    stream.recvs.post(2, m.sge(8, 8))
    t = stream.terminates(TOO_LONG)
    assert (t.quoted_ddp.msn, t.ddp_seg_len) == (2, 18 + 9)
    assert m.octets()[:8] == b"8 octets"
    assert m.octets()[8:] == bytes([CANARY]) * 56
    assert stream.take_recv() == 2


def test_a_receive_whose_key_died_is_an_error_of_this_end(w: RdmapWorld) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    m = w.memory(8, rights=LOCAL_WRITE)
    stream.put(send(b"8 octets"))
    assert stream.event().kind == "PARKED"
    w.free(m.stag)
    stream.recvs.post(1, m.sge())
    stream.terminates((1, 0, 0))
    assert m.untouched()


def test_the_terminate_after_the_rnr_time_names_the_send(w: RdmapWorld) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    m = w.memory(64)
    for i in range(1, 4):
        stream.put(send(pattern(10), msn=i))
    assert stream.event().kind == "PARKED"
    until(lambda: is_quiet(stream) and lib.siw_ddp_rx_unexpected(stream.ddp) > 200)
    stream.recvs.post(1, m.sge())
    # expire has no effect: a receive has been posted, so the Send need not wait
    lib.siw_rdmap_expire(stream.handle)
    assert stream.event().kind == "RECV"
    assert is_quiet(stream)
    lib.siw_rdmap_expire(stream.handle)
    assert stream.terminates(NO_BUFFER).quoted_ddp.msn == 2


@pytest.mark.clause("RFC5040-7.1-03")
def test_a_wait_that_ends_behind_an_error_of_ours_does_not_change_what_is_told(
    w: RdmapWorld,
) -> None:
    stream = w.initiator(unexpected_octets=ROOM)
    stream.put(send(b"early"))
    assert stream.event().kind == "PARKED"
    until(lambda: is_quiet(stream) and waiting_send_msn(stream) == 1)
    m = w.memory(4 << 20)
    stream.begin(lib.SIW_RDMAP_SEND, [m.sge()])
    w.free(m.stag)
    with pytest.raises(StreamError, match="EACCES"):
        stream.flush_once()
    lib.siw_rdmap_expire(stream.handle)
    e = stream.event()
    assert (e.kind, e.err, e.quoted) == ("ERROR", (0, 0, 0), False)


def test_without_parking_a_send_without_receive_is_an_error(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.put(send(b"early"))
    assert stream.terminates(NO_BUFFER).quoted_ddp.msn == 1


def test_a_confirmation_counts_as_a_read_of_the_ord_and_says_what_is_there(w: RdmapWorld) -> None:
    stream = w.initiator(ord=1)
    m = w.memory(64)
    for _ in range(3):
        stream.begin(lib.SIW_RDMAP_SEND, [m.sge()])
    assert lib.siw_rdmap_confirm(stream.handle, 3) == 0
    assert lib.siw_rdmap_confirm(stream.handle, 3) == -errno.EAGAIN
    stream.flush()
    assert [stream.pull()[0].opcode for _ in range(3)] == [Opcode.SEND] * 3
    _, request = stream.pull_read_request()
    assert request.size == 0
    stream.put(read_response(stag=request.sink_stag, to=request.sink_to))
    e = stream.event()
    assert (e.kind, e.user_data) == ("CONFIRMED", 3)
    assert lib.siw_rdmap_confirm(stream.handle, 3) == 0


@pytest.mark.parametrize("size", [1, 16, 20_000])
def test_octets_with_a_confirmation_which_linux_siw_sends_are_thrown_away(
    w: RdmapWorld, size: int
) -> None:
    stream = w.initiator()
    m = w.memory(64)
    assert lib.siw_rdmap_confirm(stream.handle, 3) == 0
    stream.flush()
    _, request = stream.pull_read_request()
    sink = {"stag": request.sink_stag, "to": request.sink_to}
    stream.put(read_response(pattern(size), **sink, l=0), read_response(b"rest", **sink))
    assert stream.event().kind == "CONFIRMED"
    assert m.untouched()
    stream.recvs.post(3, m.sge())
    stream.put(send(b"next"))
    assert stream.event().user_data == 3
    assert lib.siw_rdmap_confirm(stream.handle, 3) == 0


def test_a_confirmation_with_octets_for_another_stag_is_an_error(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(64)
    assert lib.siw_rdmap_confirm(stream.handle, 3) == 0
    stream.flush()
    stream.pull_read_request()
    stream.put(read_response(b"x", stag=m.stag, to=m.addr))
    stream.terminates((0, 1, 2))
    assert m.untouched()
