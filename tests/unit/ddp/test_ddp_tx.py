"""Sending messages over TCP: segmentation, counting, aborted messages.

The clauses of RFC 5041 are tested in tests/conformance/rfc5041.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading

import pytest
from _siwarp_layers import lib
from hypothesis import given
from hypothesis import strategies as st
from unit.ddp.ddp_harness import (
    PD,
    DdpWorld,
    Stream,
    StreamError,
    ddp_world,
    pattern,
    recv_exactly,
    setting,
    until,
)

CATASTROPHIC = (lib.SIW_LAYER_DDP, lib.SIW_DDP_LOCAL_CATASTROPHIC, 0)
BATCH_OCTETS = 1 << 18  # octets that mpa frames before a flush is needed


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=16),
    is_tagged=st.booleans(),
    mulpdu=st.sampled_from([128, 129, 500, 1500, 64768]),
    crc=st.booleans(),
)
def test_any_list_arrives_in_segments_of_at_most_the_mulpdu(
    sizes: list[int], is_tagged: bool, mulpdu: int, crc: bool
) -> None:
    with setting("mulpdu", mulpdu), ddp_world() as w:
        stream = w.sender(crc=crc)
        memories = [w.memory(n, pattern(n, n)) for n in sizes]
        octets = b"".join(m.octets() for m in memories)
        msg = stream.message(
            [m.sge() for m in memories], tagged=is_tagged, stag=77, to=1000, ulp_octet=0x45
        )
        stream.transmit(msg)
        got = stream.sent(len(octets))
        assert b"".join(payload for _, payload in got) == octets
        at = 0
        for i, (head, payload) in enumerate(got):
            assert len(bytes(head)) + len(payload) <= mulpdu
            assert (head.t, head.l, head.rv, head.opcode) == (is_tagged, i == len(got) - 1, 1, 5)
            assert (head.to - 1000 if is_tagged else head.mo) == at
            at += len(payload)


def test_octets_from_the_middle_of_a_list_are_not_sent(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(100, pattern(100))
    stream.transmit(stream.message([m.sge()], length=30))
    assert stream.sent(30)[0][1] == pattern(100)[:30]


def test_a_message_too_long_for_ddp_is_refused(w: DdpWorld) -> None:
    stream = w.sender()
    with pytest.raises(StreamError, match="EMSGSIZE"):
        stream.begin(stream.message(length=2**32))
    assert stream.begun == 0


def test_a_queue_that_there_is_not_is_refused(w: DdpWorld) -> None:
    stream = w.sender()
    with pytest.raises(StreamError, match="EINVAL"):
        stream.begin(stream.message(qn=4))


def test_a_message_with_a_bad_key_leaves_no_trace(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(10, pattern(10))
    with pytest.raises(StreamError, match="EACCES"):
        stream.begin(stream.message([m.sge(key=m.stag ^ 1)]))
    assert stream.tx_error == CATASTROPHIC
    assert stream.begun == 0
    stream.transmit(stream.message([m.sge()]))
    ((head, payload),) = stream.sent(10)
    assert (head.msn, payload) == (1, pattern(10))


def test_library_memory_needs_no_key(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(10, pattern(10))
    stream.transmit(stream.message([m.sge(key=0)], internal=True))
    assert stream.sent(10)[0][1] == pattern(10)


def test_accepted_follows_what_tcp_took(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(10)
    for _ in range(3):
        assert stream.begin(stream.message([m.sge()])) == 1
    assert (stream.begun, stream.accepted) == (3, 0)
    until(stream.flush_once)
    assert (stream.begun, stream.accepted) == (3, 3)


def test_an_empty_fpdu_counts_by_its_octets(w: DdpWorld) -> None:
    stream = w.sender()
    assert lib.siw_ddp_tx_empty(stream.handle) == 1
    until(stream.flush_once)
    assert stream.sock.recv(100)[:2] == b"\0\0"
    assert lib.siw_ddp_tx_accepted(stream.handle) == lib.siw_ddp_tx_framed(stream.handle) == 8


def test_no_empty_fpdu_goes_into_the_middle_of_a_message(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(8 << 20)
    assert stream.begin(stream.message([m.sge()])) == 0
    assert lib.siw_ddp_tx_empty(stream.handle) == -errno.EBUSY


def test_an_empty_fpdu_for_which_the_batch_has_no_room_is_for_later(w: DdpWorld) -> None:
    stream = w.sender()
    framed = 0
    while (rv := lib.siw_ddp_tx_empty(stream.handle)) == 1:
        framed += 1
        assert framed < BATCH_OCTETS // 8
    assert (framed > 0, rv) == (True, -errno.EAGAIN)
    until(stream.flush_once)
    assert lib.siw_ddp_tx_empty(stream.handle) == 1
    until(stream.flush_once)
    assert recv_exactly(stream.sock, 8 * (framed + 1)).startswith(b"\0\0")
    assert lib.siw_ddp_tx_accepted(stream.handle) == 8 * (framed + 1)


def reader(stream: Stream, octets: int, into: list[bytes]) -> threading.Thread:
    def run() -> None:
        into.extend(payload for _, payload in stream.sent(octets))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_message_of_many_megabytes_goes_out_in_turns(w: DdpWorld) -> None:
    stream = w.sender()
    size = 20 << 20
    m = w.memory(size, pattern(1 << 20) * 20)
    msg = stream.message([m.sge()], tagged=True, stag=1)
    assert stream.begin(msg) == 0, "one call framed all of it"
    with pytest.raises(StreamError, match="EBUSY"):
        stream.begin(msg)
    got: list[bytes] = []
    thread = reader(stream, size, got)
    turns = 1
    while until(lambda: (stream.flush_once(), True)) and stream.more() == 0:
        turns += 1
    until(stream.flush_once)
    thread.join()
    assert turns >= 20
    assert b"".join(got) == m.octets()
    assert stream.accepted == 1


def test_more_messages_than_may_be_in_flight_wait_for_tcp(w: DdpWorld) -> None:
    stream = w.sender(rcvbuf=4096)
    m = w.memory(2000, pattern(2000))
    sent = 0
    while stream.begin(stream.message([m.sge()])) == 1:
        sent += 1
        assert sent < 20_000, "nothing ever was full"
    assert stream.begun == sent + 1
    got: list[bytes] = []
    thread = reader(stream, 2000 * (sent + 1), got)
    until(stream.more)
    until(stream.flush_once)
    thread.join()
    assert b"".join(got) == pattern(2000) * (sent + 1)
    assert stream.accepted == stream.begun


def test_small_messages_in_flight_are_bounded(w: DdpWorld) -> None:
    stream = w.sender(rcvbuf=4096)
    m = w.memory(1)
    sent = 0
    while stream.begin(stream.message([m.sge()])) == 1:
        sent += 1
        assert sent < 400_000, "nothing ever was full"
    fpdu_octets = 2 + 18 + 1 + 3 + 4
    assert (stream.begun - stream.accepted - 1) * fpdu_octets <= BATCH_OCTETS
    got: list[bytes] = []
    thread = threading.Thread(
        target=lambda: got.append(recv_exactly(stream.sock, fpdu_octets * (sent + 1)))
    )
    thread.start()
    until(stream.more)
    until(stream.flush_once)
    thread.join()
    assert stream.accepted == stream.begun == sent + 1
    assert int.from_bytes(got[0][-fpdu_octets:][12:16], "big") == sent + 1  # the MSN field


# ---- aborted messages


def test_a_message_given_up_ends_behind_its_last_whole_segment(w: DdpWorld) -> None:
    stream = w.sender()
    size = 8 << 20
    m = w.memory(size, pattern(1 << 20) * 8)
    last = w.memory(4, b"over")
    assert stream.begin(stream.message([m.sge()])) == 0
    framed = lib.siw_ddp_tx_abandon(stream.handle)
    assert 0 < framed < size
    assert lib.siw_ddp_tx_abandon(stream.handle) == 0
    assert stream.begin(stream.message([last.sge()], qn=2)) in (0, 1)
    got: list[bytes] = []
    thread = reader(stream, framed + 4, got)
    until(stream.more)
    until(stream.flush_once)
    thread.join()
    assert b"".join(got) == m.octets()[:framed] + b"over"
    assert (stream.begun, stream.accepted) == (2, 0)


def test_a_key_that_dies_in_the_middle_of_a_message_stops_it(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(8 << 20)
    assert stream.begin(stream.message([m.sge()])) == 0
    w.free(m.stag)
    with pytest.raises(StreamError, match="EACCES"):
        until(stream.more)
    assert stream.tx_error == CATASTROPHIC


# ---- from memory with an STag, as a Read Response


def test_a_response_reads_what_its_stag_names(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(5000, pattern(5000), to_base=100)
    msg = stream.message(tagged=True, stag=9, to=3, from_stag=True, src_stag=m.stag, src_to=1100)
    msg.length = 2000
    stream.transmit(msg)
    got = stream.sent(2000)
    assert b"".join(payload for _, payload in got) == pattern(5000)[1000:3000]
    assert got[0][0].to == 3


@pytest.mark.parametrize(
    ("how", "to", "length", "error"),
    [
        ({}, 0, 11, (1, 1, lib.SIW_DDP_BOUNDS)),
        ({"pd": PD + 1}, 0, 10, (1, 1, lib.SIW_DDP_STAG_NOT_OF_STREAM)),
        ({"rights": lib.SIW_MEM_REMOTE_WRITE}, 0, 10, (0, 1, lib.SIW_RDMAP_ACCESS)),
        ({}, 2**64 - 1, 10, (1, 1, lib.SIW_DDP_TO_WRAP)),
    ],
)
def test_a_read_response_needs_the_remote_read_right(
    w: DdpWorld, how: dict[str, int], to: int, length: int, error: tuple[int, int, int]
) -> None:
    stream = w.sender()
    m = w.memory(10, **how)
    msg = stream.message(tagged=True, from_stag=True, src_stag=m.stag, src_to=to)
    msg.length = length
    with pytest.raises(StreamError, match="EACCES"):
        stream.begin(msg)
    assert stream.tx_error == error


def test_an_empty_response_looks_at_no_stag(w: DdpWorld) -> None:
    stream = w.sender()
    stream.transmit(stream.message(tagged=True, stag=5, from_stag=True, src_stag=0, src_to=1))
    ((head, payload),) = stream.sent(0)
    assert (head.stag, head.l, payload) == (5, 1, b"")


def test_a_region_is_in_use_until_tcp_took_the_response(w: DdpWorld) -> None:
    stream = w.sender()
    m, other = w.memory(5000), w.memory(10)
    msg = stream.message(tagged=True, from_stag=True, src_stag=m.stag)
    msg.length = 5000
    assert lib.siw_ddp_tx_revoke(stream.handle, m.stag) == 0
    assert stream.begin(msg) == 1
    assert lib.siw_ddp_tx_revoke(stream.handle, m.stag) == 1
    assert lib.siw_ddp_tx_revoke(stream.handle, other.stag) == 0
    until(stream.flush_once)
    assert lib.siw_ddp_tx_revoke(stream.handle, m.stag) == 0


def test_a_region_half_sent_is_in_use(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(8 << 20)
    msg = stream.message(tagged=True, from_stag=True, src_stag=m.stag)
    msg.length = 8 << 20
    assert stream.begin(msg) == 0
    assert lib.siw_ddp_tx_revoke(stream.handle, m.stag) == 1


def test_a_dead_connection_is_reported(w: DdpWorld) -> None:
    stream = w.sender()
    m = w.memory(1000)
    linger = struct.pack("ii", 1, 0)  # a reset, so that a later write fails
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    stream.sock.close()

    def step() -> bool:
        try:
            stream.begin(stream.message([m.sge()]))
            stream.flush_once()
        except StreamError as e:
            return e.errno in (errno.EPIPE, errno.ECONNRESET)
        return False

    until(step)


def in_use(stream: Stream, stag: int) -> bool:
    return bool(lib.siw_ddp_tx_revoke(stream.handle, stag))


def test_of_many_regions_those_are_in_use_that_tcp_has_not_taken(w: DdpWorld) -> None:
    stream = w.sender(rcvbuf=4096)
    sent = []
    while True:
        m = w.memory(3000)
        msg = stream.message(tagged=True, from_stag=True, src_stag=m.stag)
        msg.length = 3000
        sent.append((m, msg))
        if stream.begin(msg) == 0:
            break
        assert len(sent) < 5000, "nothing ever was full"
    *framed, _ = sent
    accepted = lib.siw_ddp_tx_accepted(stream.handle)
    used = [in_use(stream, m.stag) for m, _ in framed]
    assert used == [msg.end[0] > accepted for _, msg in framed]
    assert any(used) and not all(used)


def test_small_responses_from_many_regions_leave_as_room_is_made_for_them(w: DdpWorld) -> None:
    stream = w.sender()
    regions = [w.memory(10, bytes([i]) * 10) for i in range(100)]
    for turn in range(2):
        for m in regions:
            msg = stream.message(tagged=True, from_stag=True, src_stag=m.stag)
            msg.length = 10
            assert stream.begin(msg) == 1
            assert in_use(stream, m.stag), turn
    until(stream.flush_once)
    assert not any(in_use(stream, m.stag) for m in regions)
    got = [stream.pull()[1] for _ in range(200)]
    assert got == [bytes([i]) * 10 for i in range(100)] * 2
