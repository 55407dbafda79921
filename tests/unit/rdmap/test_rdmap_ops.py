"""RDMAP operations between a stream and its peer, in both directions.

The clauses of RFC 5040 are tested in tests/conformance/rfc5040.
"""

from __future__ import annotations

import errno
import threading

import pytest
from _siwarp_layers import ffi, lib
from hostile.vanishing import RemovableMemory
from hypothesis import given
from hypothesis import strategies as st
from unit.mpa.mpa_harness import set_small_send_buffer
from unit.rdmap.rdmap_harness import (
    LOCAL_WRITE,
    PD,
    RdmapPoller,
    Stream,
    StreamError,
    build_read_request,
    build_read_response,
    build_send,
    build_write,
    octet_pattern,
    open_rdmap_poller,
    recv_exactly,
    temporary_setting,
    wait_until,
)

from siwarp.inspect import Opcode

SEND, SEND_SE = lib.SIW_RDMAP_SEND, lib.SIW_RDMAP_SEND_SE
WRITE, READ = lib.SIW_RDMAP_WRITE, lib.SIW_RDMAP_READ_REQUEST


# ---- Send


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 70_000, 1 << 20])
@pytest.mark.parametrize("crc", [True, False])
def test_a_send_of_any_size_arrives_unchanged(
    layer_poller: RdmapPoller, size: int, crc: bool
) -> None:
    stream = layer_poller.create_initiator(crc=crc)
    m = layer_poller.register_new_memory(size, octet_pattern(size))
    stream.begin_and_flush_operation(SEND, [m.sge()])
    head, octets = stream.read_sent_message()
    assert (head.opcode, head.qn, head.msn, head.inv_stag) == (Opcode.SEND, 0, 1, 0)
    assert octets == octet_pattern(size)
    assert (stream.begun_operation_count, stream.count_operations_accepted_by_tcp) == (1, 1)


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 60_000])
def test_a_send_from_the_peer_fills_the_oldest_receive(
    layer_poller: RdmapPoller, size: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(size + 3)
    stream.recvs.post(17, m.sge())
    stream.inject_segments(build_send(octet_pattern(size)))
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length, e.msn) == ("RECV", 17, size, 1)
    assert (e.solicited, e.invalidated, e.status) == (False, False, 0)
    assert m.octets()[:size] == octet_pattern(size)


@pytest.mark.parametrize(("opcode", "solicited"), [(SEND, False), (SEND_SE, True)])
def test_the_solicited_event_flag_is_sent_and_received(
    layer_poller: RdmapPoller, opcode: int, solicited: bool
) -> None:
    stream = layer_poller.create_initiator()
    stream.recvs.post(1)
    stream.begin_and_flush_operation(opcode)
    assert stream.read_sent_segment()[0].opcode == opcode
    stream.inject_segments(build_send(opcode=opcode))
    assert stream.next_event().solicited == solicited


def test_sends_in_several_segments_from_the_peer_are_received_one_by_one(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(300)
    stream.recvs.post(1, m.sge(0, 100))
    stream.recvs.post(2, m.sge(100, 200))
    stream.inject_segments(
        build_send(octet_pattern(40), l=0),
        build_send(octet_pattern(100)[40:], mo=40),
        build_send(octet_pattern(10, 2), msn=2, l=0),
        build_send(octet_pattern(200, 2)[10:], msn=2, mo=10),
    )
    assert [stream.next_event(progress=True).kind for _ in range(4)] == [
        "PROGRESS",
        "RECV",
        "PROGRESS",
        "RECV",
    ]
    assert m.octets() == octet_pattern(100) + octet_pattern(200, 2)


def test_inline_data_needs_no_key(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    stream.begin_and_flush_operation(SEND, [m.sge(key=0)], internal=True)
    assert stream.read_sent_segment()[1] == octet_pattern(10)


def test_posting_opcodes_that_are_no_operation_is_refused(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    for opcode in (2, 7, 8, 15):
        with pytest.raises(StreamError, match="EINVAL"):
            stream.begin_operation(opcode)
    assert stream.begun_operation_count == 0


# ---- Write


def test_a_write_carries_the_peers_stag_and_offset(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100, octet_pattern(100))
    stream.begin_and_flush_operation(
        WRITE, [m.sge(0, 30), m.sge(50, 50)], rkey=0xABCD, remote_to=2**63 + 5
    )
    head, octets = stream.read_sent_message()
    assert (head.t, head.opcode, head.stag, head.to) == (1, 0, 0xABCD, 2**63 + 5)
    assert octets == octet_pattern(100)[:30] + octet_pattern(100)[50:]


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 1000)), max_size=10))
def test_writes_from_the_peer_are_placed_at_their_offsets(writes: list[tuple[int, int]]) -> None:
    with open_rdmap_poller() as layer_poller:
        stream = layer_poller.create_initiator()
        m = layer_poller.register_new_memory(1000)
        model = bytearray([0xA5]) * 1000
        for i, (at, n) in enumerate(writes):
            n = min(n, 1000 - at)
            stream.inject_segments(build_write(octet_pattern(n, i), stag=m.stag, to=m.addr + at))
            assert stream.next_event(progress=True).kind == "PROGRESS"
            model[at : at + n] = octet_pattern(n, i)
        assert m.octets() == model


# ---- Read


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 200_000])
def test_a_read_places_the_response_in_its_sink(layer_poller: RdmapPoller, size: int) -> None:
    stream = layer_poller.create_initiator()
    a, b = (
        layer_poller.register_new_memory(size // 3, rights=LOCAL_WRITE),
        layer_poller.register_new_memory(size - size // 3, rights=LOCAL_WRITE),
    )
    stream.begin_and_flush_operation(
        READ, [a.sge(), b.sge()], user_data=99, rkey=0x77, remote_to=0x1234
    )
    _, request = stream.read_sent_read_request()
    assert (request.size, request.src_stag, request.src_to) == (size, 0x77, 0x1234)
    assert request.sink_stag != 0
    octets, sink = octet_pattern(size), {"stag": request.sink_stag, "to": request.sink_to}
    if size > 60_000:
        stream.inject_segments(
            build_read_response(octets[:60_000], l=0, **sink),
            build_read_response(octets[60_000:110_000], l=0, stag=sink["stag"], to=60_000),
            build_read_response(octets[110_000:150_000], l=0, stag=sink["stag"], to=110_000),
            build_read_response(octets[150_000:], stag=sink["stag"], to=150_000),
        )
    else:
        stream.inject_segments(build_read_response(octets, **sink))
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length) == ("READ_DONE", 99, size)
    assert a.octets() + b.octets() == octets


def test_a_read_is_refused_if_its_sink_has_no_local_write_access(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, rights=0)
    with pytest.raises(StreamError, match="EACCES"):
        stream.begin_operation(READ, [m.sge()])
    assert lib.siw_rdmap_begun_read_count(stream.handle) == 0, (
        "a refused Read counts as outstanding"
    )


def test_the_sink_stag_of_a_read_is_freed_when_the_read_completes(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.begin_and_flush_operation(READ, [m.sge()], user_data=1)
    _, request = stream.read_sent_read_request()
    stream.inject_segments(build_read_response(b"0123456789", stag=request.sink_stag))
    assert stream.next_event().kind == "READ_DONE"
    assert layer_poller.free_stag(request.sink_stag) < 0


@pytest.mark.parametrize("size", [0, 1, 64, 5000, 70_000, 3 << 20])
def test_a_read_request_from_the_peer_is_answered(layer_poller: RdmapPoller, size: int) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(size, octet_pattern(size))
    stream.inject_segments(
        build_read_request(
            size=size, src_stag=m.stag, src_to=m.addr, sink_stag=0xBEEF, sink_to=2**40
        )
    )
    assert not stream.has_pending_responses
    assert stream.next_event().kind == "REQUESTED"
    assert stream.has_pending_responses
    stop = threading.Event()

    def flush_until_stopped() -> None:
        while not stop.is_set():
            stream.flush_once()

    thread = threading.Thread(target=flush_until_stopped)
    thread.start()
    head, octets = stream.read_sent_message()
    stop.set()
    thread.join()
    assert (head.opcode, head.stag, head.to) == (Opcode.RDMA_READ_RESPONSE, 0xBEEF, 2**40)
    assert octets == octet_pattern(size)
    assert not stream.has_pending_responses
    assert stream.begun_operation_count == 0, (
        "a Read Response counts as an operation of the program"
    )


def test_the_peer_may_send_any_number_of_reads_with_at_most_ird_outstanding(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ird=2)
    m = layer_poller.register_new_memory(100, octet_pattern(100))
    for round_ in range(20):
        stream.inject_segments(
            *[
                build_read_request(
                    size=10, src_stag=m.stag, src_to=m.addr + i, sink_to=i, msn=2 * round_ + i + 1
                )
                for i in range(2)
            ]
        )
        assert [stream.next_event().kind, stream.next_event().kind] == ["REQUESTED"] * 2
        stream.flush()
        for i in range(2):
            head, octets = stream.read_sent_segment()
            assert (head.to, octets) == (i, octet_pattern(100)[i : i + 10])


def test_any_number_of_reads_may_be_posted_with_at_most_ord_outstanding(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ord=3)
    m = layer_poller.register_new_memory(300)
    user_data = 0
    for round_ in range(20):
        for i in range(3):
            stream.begin_and_flush_operation(READ, [m.sge(100 * i, 100)], user_data=user_data + i)
        with pytest.raises(StreamError, match="EAGAIN"):
            stream.begin_operation(READ, [m.sge(0, 1)])
        for i in range(3):
            _, request = stream.read_sent_read_request()
            stream.inject_segments(
                build_read_response(octet_pattern(100, round_ + i), stag=request.sink_stag)
            )
        for i in range(3):
            e = stream.next_event()
            assert (e.kind, e.user_data, e.length) == ("READ_DONE", user_data + i, 100)
        want = b"".join(octet_pattern(100, round_ + i) for i in range(3))
        assert m.octets() == want
        user_data += 3


def test_closing_a_stream_frees_the_sinks_of_outstanding_reads(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(30)
    for user_data in (5, 6, 7):
        stream.begin_and_flush_operation(READ, [m.sge(0, 10)], user_data=user_data)
    sinks = [stream.read_sent_read_request()[1].sink_stag for _ in range(3)]
    stream.inject_segments(build_read_response(bytes(10), stag=sinks[0]))
    assert stream.next_event().user_data == 5
    stream.sock.close()
    assert stream.next_event().kind == "CLOSED"
    stream.close()
    assert [layer_poller.free_stag(sink) for sink in sinks] == [
        -2,
        -2,
        -2,
    ]  # ENOENT: all three STags are free


# ---- turns between Sends and Read Responses


def start_reading_messages(
    stream: Stream, messages: int, into: list[tuple[int, int]]
) -> threading.Thread:
    """Read messages in a thread; their opcodes and sizes are appended to `into`."""

    def read_messages() -> None:
        for _ in range(messages):
            head, octets = stream.read_sent_message()
            into.append((head.opcode, len(octets)))

    thread = threading.Thread(target=read_messages)
    thread.start()
    return thread


def test_read_responses_and_sends_are_transmitted_alternately(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(ird=8)
    size = 2 << 20
    m = layer_poller.register_new_memory(size)
    for i in range(8):
        stream.inject_segments(
            build_read_request(size=size, src_stag=m.stag, src_to=m.addr, msn=i + 1)
        )
    for _ in range(8):
        assert stream.next_event().kind == "REQUESTED"
    got: list[tuple[int, int]] = []
    thread = start_reading_messages(stream, 12, got)
    sent = 0

    def try_to_send_and_flush() -> bool:
        nonlocal sent
        if sent < 4:
            try:
                stream.begin_operation(SEND, [m.sge(0, 100)])
                sent += 1
            except StreamError as e:
                assert "EAGAIN" in str(e)
        return bool(stream.flush_once()) and sent == 4

    wait_until(try_to_send_and_flush, 60)
    thread.join()
    opcodes = [opcode for opcode, _ in got]
    assert opcodes.count(Opcode.SEND) == 4
    # No Send waits for more than the Read Response in progress.
    gaps = "".join("s" if o == Opcode.SEND else "r" for o in opcodes).split("s")
    assert max(len(gap) for gap in gaps[:-1]) <= 2, opcodes


def test_one_flush_transmits_a_bounded_amount_of_read_responses(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(ird=64, ord=1)
    m = layer_poller.register_new_memory(100_000)
    for i in range(64):
        stream.inject_segments(
            build_read_request(size=100_000, src_stag=m.stag, src_to=m.addr, msn=i + 1)
        )
    for _ in range(64):
        stream.next_event()
    got: list[tuple[int, int]] = []
    thread = start_reading_messages(stream, 64, got)
    turns = 1
    while stream.flush_once() == 0:
        turns += 1
    thread.join()
    assert turns >= 6, "a flush transmitted more than a megabyte"
    assert got == [(Opcode.RDMA_READ_RESPONSE, 100_000)] * 64


def test_the_accepted_count_does_not_include_read_responses(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.inject_segments(build_read_request(size=10, src_stag=m.stag, src_to=m.addr))
    stream.next_event()
    stream.begin_operation(SEND, [m.sge()])
    assert (stream.begun_operation_count, stream.count_operations_accepted_by_tcp) == (1, 0)
    stream.flush()
    stream.begin_operation(WRITE, [m.sge()], rkey=1)
    stream.begin_operation(READ, [m.sge()])
    assert (stream.begun_operation_count, stream.count_operations_accepted_by_tcp) == (3, 1)
    stream.flush()
    assert (stream.begun_operation_count, stream.count_operations_accepted_by_tcp) == (3, 3)
    assert [stream.read_sent_segment()[0].opcode for _ in range(4)] == [3, 2, 0, 1]


@pytest.mark.parametrize("crc", [True, False])
def test_the_stamp_of_an_operation_identifies_memory_that_tcp_could_not_read(
    layer_poller: RdmapPoller, crc: bool
) -> None:
    stream = layer_poller.create_initiator(crc=crc)
    m = layer_poller.register_new_memory(10)
    gone = RemovableMemory(1 << 16, "unmapped")
    stream.begin_and_flush_operation(SEND, [m.sge()])
    stream.begin_operation(WRITE, [(gone.addr, 60_000, 0)], internal=True, rkey=1)
    stream.begin_operation(SEND, [m.sge()])
    gone.remove_pages()
    accepted = ffi.new("uint64_t *")
    assert lib.siw_rdmap_flush_tx(stream.handle, accepted) == -errno.EFAULT
    first, faulty, last = stream.stamps
    assert first.end <= accepted[0]
    assert faulty.begin <= accepted[0] < faulty.end <= last.begin
    gone.close()


@pytest.mark.parametrize("size", [10, 4 << 20])
def test_a_write_and_its_immediate_data_have_one_stamp(
    layer_poller: RdmapPoller, size: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(size)
    imm = {"imm_opcode": lib.SIW_RDMAP_IMMEDIATE}
    stream.begin_operation(WRITE, [m.sge()], rkey=1, **imm)
    (stamp,) = stream.stamps
    got: list[tuple[int, int]] = []
    thread = start_reading_messages(stream, 2, got)
    if size > 1 << 20:
        assert stamp.end == 2**64 - 1, "the operation must not be framed completely yet"
    stream.flush()
    thread.join()
    assert (stamp.begin, stamp.end) == (0, lib.siw_ddp_tx_framed_position(stream.ddp))
    assert stream.count_operations_accepted_by_tcp == 1
    assert got == [(Opcode.RDMA_WRITE, size), (Opcode.IMMEDIATE, 8)]


def test_other_operations_are_refused_until_a_long_message_is_framed(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    size = 8 << 20
    m = layer_poller.register_new_memory(size)
    stream.begin_operation(SEND, [m.sge()])
    with pytest.raises(StreamError, match="EAGAIN"):
        stream.begin_operation(SEND, [m.sge(0, 1)])
    got: list[tuple[int, int]] = []
    thread = start_reading_messages(stream, 2, got)
    stream.flush()
    stream.begin_and_flush_operation(SEND, [m.sge(0, 1)])
    thread.join()
    assert got == [(Opcode.SEND, size), (Opcode.SEND, 1)]


def test_the_number_of_operations_in_flight_is_bounded(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(rcvbuf=4096)
    set_small_send_buffer(stream.sock)
    sent = 0
    while True:
        try:
            stream.begin_operation(SEND)
        except StreamError as e:
            assert "EAGAIN" in str(e)
            break
        sent += 1
        if sent % 64 == 0:
            stream.flush_once()
        assert sent < 400_000, "neither the batch nor TCP's buffer became full"
    octets = 24 * sent
    thread = threading.Thread(target=lambda: recv_exactly(stream.sock, octets))
    thread.start()
    stream.flush()
    thread.join()
    assert stream.count_operations_accepted_by_tcp == stream.begun_operation_count == sent
    stream.begin_and_flush_operation(SEND)


def test_a_read_response_is_sent_completely_with_a_mulpdu_of_128_octets(
    layer_poller: RdmapPoller,
) -> None:
    with temporary_setting("mulpdu", 128):
        stream = layer_poller.create_initiator()
        m = layer_poller.register_new_memory(1000, octet_pattern(1000))
        stream.inject_segments(
            build_read_request(size=1000, src_stag=m.stag, src_to=m.addr, sink_to=7)
        )
        stream.next_event()
        stream.flush()
        assert stream.read_sent_message()[1] == octet_pattern(1000)


# ---- the end of a stream


def test_flushed_messages_are_sent_before_the_end_of_stream(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100, octet_pattern(100))
    stream.begin_and_flush_operation(SEND, [m.sge()])
    stream.mpa.shutdown()
    assert stream.read_sent_segment()[1] == octet_pattern(100)
    assert stream.sock.recv(1) == b""
    assert stream.mpa.drain() == 0
    stream.sock.close()
    wait_until(stream.mpa.drain)


def test_a_stream_may_send_after_the_peers_end_of_stream(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    stream.sock.shutdown(1)
    e = stream.next_event()
    assert (e.kind, e.status) == ("CLOSED", 0)
    assert stream.poll_event() is None
    stream.begin_and_flush_operation(SEND, [m.sge()])
    assert stream.read_sent_segment()[1] == octet_pattern(10)


def test_the_receive_of_an_incomplete_send_can_be_reclaimed(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1, m.sge())
    stream.recvs.post(2, m.sge())
    stream.inject_segments(build_send(b"abc", l=0))
    assert stream.next_event(progress=True).kind == "PROGRESS"
    stream.sock.close()
    stream.next_event()
    assert [
        stream.pop_partial_receive(),
        stream.pop_partial_receive(),
        stream.recvs.take_buffer(),
    ] == [
        1,
        None,
        2,
    ]


def test_freeing_the_key_of_a_long_send_ends_the_stream_with_a_terminate(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    size = 8 << 20
    m = layer_poller.register_new_memory(size)
    stream.begin_operation(SEND, [m.sge()])
    layer_poller.free_stag(m.stag)
    with pytest.raises(StreamError, match="EACCES"):
        stream.flush_once()
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin_operation(SEND)
    assert stream.next_event().err == (0, 0, 0)
    whole = []

    def read_until_terminate() -> None:
        head, octets = stream.read_sent_segment()
        while head.opcode != Opcode.TERMINATE:
            whole.append(head.l)
            head, octets = stream.read_sent_segment()
        whole.append(octets)

    thread = threading.Thread(target=read_until_terminate)
    thread.start()
    stream.send_terminate()
    thread.join()
    assert whole[-1] == bytes(4)  # local catastrophic error, nothing quoted
    assert not any(whole[:-1]), "a segment of the Send had the L bit"
    assert stream.count_operations_accepted_by_tcp == 0


def test_sending_from_a_region_of_another_protection_domain_is_refused(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, pd=PD + 1)
    with pytest.raises(StreamError, match="EACCES"):
        stream.begin_operation(SEND, [m.sge()])
    stream.begin_and_flush_operation(SEND)
    assert stream.read_sent_segment()[0].msn == 1
