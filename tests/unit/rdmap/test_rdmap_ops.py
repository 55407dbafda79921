"""Operations between a stream and a peer, in both directions.

The clauses of RFC 5040 are tested in tests/conformance/rfc5040.
"""

from __future__ import annotations

import errno
import threading

import pytest
from _siwarp_layers import ffi, lib
from hostile.vanishing import Vanishing
from hypothesis import given
from hypothesis import strategies as st
from unit.rdmap.rdmap_harness import (
    LOCAL_WRITE,
    PD,
    RdmapWorld,
    Stream,
    StreamError,
    pattern,
    rdmap_world,
    read_request,
    read_response,
    recv_exactly,
    send,
    setting,
    until,
    write,
)

from siwarp.inspect import Opcode

SEND, SEND_SE = lib.SIW_RDMAP_SEND, lib.SIW_RDMAP_SEND_SE
WRITE, READ = lib.SIW_RDMAP_WRITE, lib.SIW_RDMAP_READ_REQUEST


# ---- Send


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 70_000, 1 << 20])
@pytest.mark.parametrize("crc", [True, False])
def test_a_send_arrives_as_its_octets(w: RdmapWorld, size: int, crc: bool) -> None:
    stream = w.initiator(crc=crc)
    m = w.memory(size, pattern(size))
    stream.do(SEND, [m.sge()])
    head, octets = stream.pull_message()
    assert (head.opcode, head.qn, head.msn, head.inv_stag) == (Opcode.SEND, 0, 1, 0)
    assert octets == pattern(size)
    assert (stream.begun, stream.accepted) == (1, 1)


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 60_000])
def test_a_send_from_the_peer_fills_the_oldest_receive(w: RdmapWorld, size: int) -> None:
    stream = w.initiator()
    m = w.memory(size + 3)
    stream.recvs.post(17, m.sge())
    stream.put(send(pattern(size)))
    e = stream.event()
    assert (e.kind, e.user_data, e.length, e.msn) == ("RECV", 17, size, 1)
    assert (e.solicited, e.invalidated, e.status) == (False, False, 0)
    assert m.octets()[:size] == pattern(size)


@pytest.mark.parametrize(("opcode", "solicited"), [(SEND, False), (SEND_SE, True)])
def test_a_solicited_event_is_said_at_both_ends(
    w: RdmapWorld, opcode: int, solicited: bool
) -> None:
    stream = w.initiator()
    stream.recvs.post(1)
    stream.do(opcode)
    assert stream.pull()[0].opcode == opcode
    stream.put(send(opcode=opcode))
    assert stream.event().solicited == solicited


def test_sends_of_many_segments_from_the_peer_come_one_by_one(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(300)
    stream.recvs.post(1, m.sge(0, 100))
    stream.recvs.post(2, m.sge(100, 200))
    stream.put(
        send(pattern(40), l=0),
        send(pattern(100)[40:], mo=40),
        send(pattern(10, 2), msn=2, l=0),
        send(pattern(200, 2)[10:], msn=2, mo=10),
    )
    assert [stream.event(progress=True).kind for _ in range(4)] == [
        "PROGRESS",
        "RECV",
        "PROGRESS",
        "RECV",
    ]
    assert m.octets() == pattern(100) + pattern(200, 2)


def test_inline_data_needs_no_key(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10, pattern(10))
    stream.do(SEND, [m.sge(key=0)], internal=True)
    assert stream.pull()[1] == pattern(10)


def test_opcodes_that_are_no_operation_are_refused(w: RdmapWorld) -> None:
    stream = w.initiator()
    for opcode in (2, 7, 8, 15):
        with pytest.raises(StreamError, match="EINVAL"):
            stream.begin(opcode)
    assert stream.begun == 0


# ---- Write


def test_a_write_carries_the_peers_stag_and_offset(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(100, pattern(100))
    stream.do(WRITE, [m.sge(0, 30), m.sge(50, 50)], rkey=0xABCD, remote_to=2**63 + 5)
    head, octets = stream.pull_message()
    assert (head.t, head.opcode, head.stag, head.to) == (1, 0, 0xABCD, 2**63 + 5)
    assert octets == pattern(100)[:30] + pattern(100)[50:]


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 1000)), max_size=10))
def test_writes_from_the_peer_land_where_they_say(writes: list[tuple[int, int]]) -> None:
    with rdmap_world() as w:
        stream = w.initiator()
        m = w.memory(1000)
        model = bytearray([0xA5]) * 1000
        for i, (at, n) in enumerate(writes):
            n = min(n, 1000 - at)
            stream.put(write(pattern(n, i), stag=m.stag, to=m.addr + at))
            assert stream.event(progress=True).kind == "PROGRESS"
            model[at : at + n] = pattern(n, i)
        assert m.octets() == model


# ---- Read


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 200_000])
def test_a_read_places_the_response_in_its_sink(w: RdmapWorld, size: int) -> None:
    stream = w.initiator()
    a, b = w.memory(size // 3, rights=LOCAL_WRITE), w.memory(size - size // 3, rights=LOCAL_WRITE)
    stream.do(READ, [a.sge(), b.sge()], user_data=99, rkey=0x77, remote_to=0x1234)
    _, request = stream.pull_read_request()
    assert (request.size, request.src_stag, request.src_to) == (size, 0x77, 0x1234)
    assert request.sink_stag != 0
    octets, sink = pattern(size), {"stag": request.sink_stag, "to": request.sink_to}
    if size > 60_000:
        stream.put(
            read_response(octets[:60_000], l=0, **sink),
            read_response(octets[60_000:110_000], l=0, stag=sink["stag"], to=60_000),
            read_response(octets[110_000:150_000], l=0, stag=sink["stag"], to=110_000),
            read_response(octets[150_000:], stag=sink["stag"], to=150_000),
        )
    else:
        stream.put(read_response(octets, **sink))
    e = stream.event()
    assert (e.kind, e.user_data, e.length) == ("READ_DONE", 99, size)
    assert a.octets() + b.octets() == octets


def test_a_sink_needs_the_right_to_be_written(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10, rights=0)
    with pytest.raises(StreamError, match="EACCES"):
        stream.begin(READ, [m.sge()])
    assert lib.siw_rdmap_reads(stream.handle) == 0, "none was begun"


def test_a_sink_is_of_no_use_once_the_read_is_done(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10)
    stream.do(READ, [m.sge()], user_data=1)
    _, request = stream.pull_read_request()
    stream.put(read_response(b"0123456789", stag=request.sink_stag))
    assert stream.event().kind == "READ_DONE"
    assert w.free(request.sink_stag) < 0


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 70_000, 3 << 20])
def test_a_request_from_the_peer_is_answered(w: RdmapWorld, size: int) -> None:
    stream = w.initiator()
    m = w.memory(size, pattern(size))
    stream.put(
        read_request(size=size, src_stag=m.stag, src_to=m.addr, sink_stag=0xBEEF, sink_to=2**40)
    )
    assert not stream.owes
    assert stream.event().kind == "REQUESTED"
    assert stream.owes
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            stream.flush_once()

    thread = threading.Thread(target=flush)
    thread.start()
    head, octets = stream.pull_message()
    stop.set()
    thread.join()
    assert (head.opcode, head.stag, head.to) == (Opcode.RDMA_READ_RESPONSE, 0xBEEF, 2**40)
    assert octets == pattern(size)
    assert not stream.owes
    assert stream.begun == 0, "a response is no operation of the user's"


def test_requests_again_and_again_use_the_same_places(w: RdmapWorld) -> None:
    stream = w.initiator(ird=2)
    m = w.memory(100, pattern(100))
    for round_ in range(20):
        stream.put(
            *[
                read_request(
                    size=10, src_stag=m.stag, src_to=m.addr + i, sink_to=i, msn=2 * round_ + i + 1
                )
                for i in range(2)
            ]
        )
        assert [stream.event().kind, stream.event().kind] == ["REQUESTED"] * 2
        stream.flush()
        for i in range(2):
            head, octets = stream.pull()
            assert (head.to, octets) == (i, pattern(100)[i : i + 10])


def test_reads_again_and_again_use_the_same_places(w: RdmapWorld) -> None:
    stream = w.initiator(ord=3)
    m = w.memory(300)
    user_data = 0
    for round_ in range(20):
        for i in range(3):
            stream.do(READ, [m.sge(100 * i, 100)], user_data=user_data + i)
        with pytest.raises(StreamError, match="EAGAIN"):
            stream.begin(READ, [m.sge(0, 1)])
        for i in range(3):
            _, request = stream.pull_read_request()
            stream.put(read_response(pattern(100, round_ + i), stag=request.sink_stag))
        for i in range(3):
            e = stream.event()
            assert (e.kind, e.user_data, e.length) == ("READ_DONE", user_data + i, 100)
        want = b"".join(pattern(100, round_ + i) for i in range(3))
        assert m.octets() == want
        user_data += 3


def test_closing_a_stream_frees_the_sinks_of_outstanding_reads(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(30)
    for user_data in (5, 6, 7):
        stream.do(READ, [m.sge(0, 10)], user_data=user_data)
    sinks = [stream.pull_read_request()[1].sink_stag for _ in range(3)]
    stream.put(read_response(bytes(10), stag=sinks[0]))
    assert stream.event().user_data == 5
    stream.sock.close()
    assert stream.event().kind == "CLOSED"
    stream.close()
    assert [w.free(sink) for sink in sinks] == [-2, -2, -2]  # ENOENT: none of the STags is left


# ---- turns between Sends and Read Responses


def pull_all(stream: Stream, messages: int, into: list[tuple[int, int]]) -> threading.Thread:
    """Read messages in a thread; their opcodes and sizes are appended to `into`."""

    def run() -> None:
        for _ in range(messages):
            head, octets = stream.pull_message()
            into.append((head.opcode, len(octets)))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_responses_and_sends_take_turns(w: RdmapWorld) -> None:
    stream = w.initiator(ird=8)
    size = 2 << 20
    m = w.memory(size)
    for i in range(8):
        stream.put(read_request(size=size, src_stag=m.stag, src_to=m.addr, msn=i + 1))
    for _ in range(8):
        assert stream.event().kind == "REQUESTED"
    got: list[tuple[int, int]] = []
    thread = pull_all(stream, 12, got)
    sent = 0

    def turn() -> bool:
        nonlocal sent
        if sent < 4:
            try:
                stream.begin(SEND, [m.sge(0, 100)])
                sent += 1
            except StreamError as e:
                assert "EAGAIN" in str(e)
        return bool(stream.flush_once()) and sent == 4

    until(turn, 60)
    thread.join()
    opcodes = [opcode for opcode, _ in got]
    assert opcodes.count(Opcode.SEND) == 4
    # No Send waits for more than the Read Response in progress.
    gaps = "".join("s" if o == Opcode.SEND else "r" for o in opcodes).split("s")
    assert max(len(gap) for gap in gaps[:-1]) <= 2, opcodes


def test_one_flush_does_not_answer_for_ever(w: RdmapWorld) -> None:
    stream = w.initiator(ird=64, ord=1)
    m = w.memory(100_000)
    for i in range(64):
        stream.put(read_request(size=100_000, src_stag=m.stag, src_to=m.addr, msn=i + 1))
    for _ in range(64):
        stream.event()
    got: list[tuple[int, int]] = []
    thread = pull_all(stream, 64, got)
    turns = 1
    while stream.flush_once() == 0:
        turns += 1
    thread.join()
    assert turns >= 6, "6.4 MB in fewer turns than megabytes"
    assert got == [(Opcode.RDMA_READ_RESPONSE, 100_000)] * 64


def test_accepted_counts_operations_only(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10)
    stream.put(read_request(size=10, src_stag=m.stag, src_to=m.addr))
    stream.event()
    stream.begin(SEND, [m.sge()])
    assert (stream.begun, stream.accepted) == (1, 0)
    stream.flush()
    stream.begin(WRITE, [m.sge()], rkey=1)
    stream.begin(READ, [m.sge()])
    assert (stream.begun, stream.accepted) == (3, 1)
    stream.flush()
    assert (stream.begun, stream.accepted) == (3, 3)
    assert [stream.pull()[0].opcode for _ in range(4)] == [3, 2, 0, 1]


@pytest.mark.parametrize("crc", [True, False])
def test_memory_that_tcp_cannot_read_is_in_the_stamp_of_its_operation(
    w: RdmapWorld, crc: bool
) -> None:
    stream = w.initiator(crc=crc)
    m = w.memory(10)
    gone = Vanishing(1 << 16, "unmapped")
    stream.do(SEND, [m.sge()])
    stream.begin(WRITE, [(gone.addr, 60_000, 0)], internal=True, rkey=1)
    stream.begin(SEND, [m.sge()])
    gone.remove_pages()
    accepted = ffi.new("uint64_t *")
    assert lib.siw_rdmap_flush(stream.handle, accepted) == -errno.EFAULT
    first, faulty, last = stream.stamps
    assert first.end <= accepted[0]
    assert faulty.begin <= accepted[0] < faulty.end <= last.begin
    gone.close()


@pytest.mark.parametrize("size", [10, 4 << 20])
def test_a_write_and_its_immediate_have_one_stamp(w: RdmapWorld, size: int) -> None:
    stream = w.initiator()
    m = w.memory(size)
    imm = {"imm_opcode": lib.SIW_RDMAP_IMMEDIATE, "imm_room": ffi.new("uint8_t[8]")}
    stream.begin(WRITE, [m.sge()], rkey=1, **imm)
    (stamp,) = stream.stamps
    got: list[tuple[int, int]] = []
    thread = pull_all(stream, 2, got)
    if size > 1 << 20:
        assert stamp.end == 2**64 - 1, "it is not wholly framed"
    stream.flush()
    thread.join()
    assert (stamp.begin, stamp.end) == (0, lib.siw_ddp_tx_framed(stream.ddp))
    assert stream.accepted == 1
    assert got == [(Opcode.RDMA_WRITE, size), (Opcode.IMMEDIATE, 8)]


def test_a_long_message_keeps_others_out_until_it_is_framed(w: RdmapWorld) -> None:
    stream = w.initiator()
    size = 8 << 20
    m = w.memory(size)
    stream.begin(SEND, [m.sge()])
    with pytest.raises(StreamError, match="EAGAIN"):
        stream.begin(SEND, [m.sge(0, 1)])
    got: list[tuple[int, int]] = []
    thread = pull_all(stream, 2, got)
    stream.flush()
    stream.do(SEND, [m.sge(0, 1)])
    thread.join()
    assert got == [(Opcode.SEND, size), (Opcode.SEND, 1)]


def test_operations_in_flight_are_bounded(w: RdmapWorld) -> None:
    stream = w.initiator(rcvbuf=4096)
    sent = 0
    while True:
        try:
            stream.begin(SEND)
        except StreamError as e:
            assert "EAGAIN" in str(e)
            break
        sent += 1
        if sent % 64 == 0:
            stream.flush_once()
        assert sent < 400_000, "nothing ever was full"
    octets = 24 * sent
    thread = threading.Thread(target=lambda: recv_exactly(stream.sock, octets))
    thread.start()
    stream.flush()
    thread.join()
    assert stream.accepted == stream.begun == sent
    stream.do(SEND)


def test_responses_go_on_while_a_mulpdu_is_small(w: RdmapWorld) -> None:
    with setting("mulpdu", 128):
        stream = w.initiator()
        m = w.memory(1000, pattern(1000))
        stream.put(read_request(size=1000, src_stag=m.stag, src_to=m.addr, sink_to=7))
        stream.event()
        stream.flush()
        assert stream.pull_message()[1] == pattern(1000)


# ---- the end of a stream


def test_what_was_begun_and_flushed_is_before_the_end_of_stream(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(100, pattern(100))
    stream.do(SEND, [m.sge()])
    stream.mpa.shutdown()
    assert stream.pull()[1] == pattern(100)
    assert stream.sock.recv(1) == b""
    assert stream.mpa.drain() == 0
    stream.sock.close()
    until(stream.mpa.drain)


def test_a_stream_may_send_after_the_peers_end_of_stream(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10, pattern(10))
    stream.sock.shutdown(1)
    e = stream.event()
    assert (e.kind, e.status) == ("CLOSED", 0)
    assert stream.event_once() is None
    stream.do(SEND, [m.sge()])
    assert stream.pull()[1] == pattern(10)


def test_a_broken_off_send_gives_its_receive_back(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10)
    stream.recvs.post(1, m.sge())
    stream.recvs.post(2, m.sge())
    stream.put(send(b"abc", l=0))
    assert stream.event(progress=True).kind == "PROGRESS"
    stream.sock.close()
    stream.event()
    assert [stream.take_recv(), stream.take_recv(), stream.recvs.take()] == [1, None, 2]


def test_a_key_that_dies_under_a_long_send_ends_the_stream_with_a_terminate(
    w: RdmapWorld,
) -> None:
    stream = w.initiator()
    size = 8 << 20
    m = w.memory(size)
    stream.begin(SEND, [m.sge()])
    w.free(m.stag)
    with pytest.raises(StreamError, match="EACCES"):
        stream.flush_once()
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin(SEND)
    assert stream.event().err == (0, 0, 0)
    whole = []

    def read() -> None:
        head, octets = stream.pull()
        while head.opcode != Opcode.TERMINATE:
            whole.append(head.l)
            head, octets = stream.pull()
        whole.append(octets)

    thread = threading.Thread(target=read)
    thread.start()
    stream.terminate()
    thread.join()
    assert whole[-1] == bytes(4)  # local catastrophic error, nothing quoted
    assert not any(whole[:-1]), "the Send was finished"
    assert stream.accepted == 0


def test_a_region_of_another_domain_is_not_sent_from(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10, pd=PD + 1)
    with pytest.raises(StreamError, match="EACCES"):
        stream.begin(SEND, [m.sge()])
    stream.do(SEND)
    assert stream.pull()[0].msn == 1
