"""Sending DDP messages over TCP: segmentation, counting, aborted messages.

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
    DdpPoller,
    Stream,
    StreamError,
    octet_pattern,
    open_ddp_poller,
    recv_exactly,
    temporary_setting,
    wait_until,
)
from unit.mpa.mpa_harness import set_small_send_buffer

CATASTROPHIC = (lib.SIW_LAYER_DDP, lib.SIW_DDP_LOCAL_CATASTROPHIC, 0)
BATCH_OCTETS = 1 << 18  # octets that mpa frames before a flush is needed


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=16),
    is_tagged=st.booleans(),
    mulpdu=st.sampled_from([128, 129, 500, 1500, 64768]),
    crc=st.booleans(),
)
def test_any_gather_list_is_sent_in_segments_of_at_most_the_mulpdu(
    sizes: list[int], is_tagged: bool, mulpdu: int, crc: bool
) -> None:
    with temporary_setting("mulpdu", mulpdu), open_ddp_poller() as layer_poller:
        stream = layer_poller.create_sender(crc=crc)
        memories = [layer_poller.register_new_memory(n, octet_pattern(n, n)) for n in sizes]
        octets = b"".join(m.octets() for m in memories)
        msg = stream.build_message(
            [m.sge() for m in memories], tagged=is_tagged, stag=77, to=1000, ulp_octet=0x45
        )
        stream.transmit(msg)
        got = stream.read_sent_segments(len(octets))
        assert b"".join(payload for _, payload in got) == octets
        at = 0
        for i, (head, payload) in enumerate(got):
            assert len(bytes(head)) + len(payload) <= mulpdu
            assert (head.t, head.l, head.rv, head.opcode) == (is_tagged, i == len(got) - 1, 1, 5)
            assert (head.to - 1000 if is_tagged else head.mo) == at
            at += len(payload)


def test_a_message_shorter_than_its_gather_list_sends_only_its_length(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(100, octet_pattern(100))
    stream.transmit(stream.build_message([m.sge()], length=30))
    assert stream.read_sent_segments(30)[0][1] == octet_pattern(100)[:30]


def test_a_message_too_long_for_ddp_is_refused(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    with pytest.raises(StreamError, match="EMSGSIZE"):
        stream.begin_message(stream.build_message(length=2**32))
    assert stream.begun_message_count == 0


def test_a_message_to_an_invalid_queue_number_is_refused(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    with pytest.raises(StreamError, match="EINVAL"):
        stream.begin_message(stream.build_message(qn=4))


def test_a_message_with_an_invalid_key_is_refused_and_consumes_no_msn(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    with pytest.raises(StreamError, match="EACCES"):
        stream.begin_message(stream.build_message([m.sge(key=m.stag ^ 1)]))
    assert stream.tx_error == CATASTROPHIC
    assert stream.begun_message_count == 0
    stream.transmit(stream.build_message([m.sge()]))
    ((head, payload),) = stream.read_sent_segments(10)
    assert (head.msn, payload) == (1, octet_pattern(10))


def test_internal_memory_of_the_library_needs_no_key(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    stream.transmit(stream.build_message([m.sge(key=0)], internal=True))
    assert stream.read_sent_segments(10)[0][1] == octet_pattern(10)


def test_the_accepted_count_grows_when_tcp_accepts_messages(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(10)
    for _ in range(3):
        assert stream.begin_message(stream.build_message([m.sge()])) == 1
    assert (stream.begun_message_count, stream.tcp_accepted_message_count) == (3, 0)
    wait_until(stream.flush_once)
    assert (stream.begun_message_count, stream.tcp_accepted_message_count) == (3, 3)


def test_an_empty_fpdu_counts_as_8_octets_of_the_stream(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    assert lib.siw_ddp_tx_empty_fpdu(stream.handle) == 1
    wait_until(stream.flush_once)
    assert stream.sock.recv(100)[:2] == b"\0\0"
    assert (
        lib.siw_ddp_tx_accepted_position(stream.handle)
        == lib.siw_ddp_tx_framed_position(stream.handle)
        == 8
    )


def test_an_empty_fpdu_in_the_middle_of_a_message_is_refused(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(8 << 20)
    assert stream.begin_message(stream.build_message([m.sge()])) == 0
    assert lib.siw_ddp_tx_empty_fpdu(stream.handle) == -errno.EBUSY


def test_an_empty_fpdu_that_does_not_fit_into_the_batch_must_be_retried(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_sender()
    framed = 0
    while (rv := lib.siw_ddp_tx_empty_fpdu(stream.handle)) == 1:
        framed += 1
        assert framed < BATCH_OCTETS // 8
    assert (framed > 0, rv) == (True, -errno.EAGAIN)
    wait_until(stream.flush_once)
    assert lib.siw_ddp_tx_empty_fpdu(stream.handle) == 1
    wait_until(stream.flush_once)
    assert recv_exactly(stream.sock, 8 * (framed + 1)).startswith(b"\0\0")
    assert lib.siw_ddp_tx_accepted_position(stream.handle) == 8 * (framed + 1)


def start_payload_receiving_thread(
    stream: Stream, octets: int, into: list[bytes]
) -> threading.Thread:
    def read_payloads() -> None:
        into.extend(payload for _, payload in stream.read_sent_segments(octets))

    thread = threading.Thread(target=read_payloads)
    thread.start()
    return thread


def test_a_message_of_20_mib_is_framed_in_several_calls(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    size = 20 << 20
    m = layer_poller.register_new_memory(size, octet_pattern(1 << 20) * 20)
    msg = stream.build_message([m.sge()], tagged=True, stag=1)
    assert stream.begin_message(msg) == 0, "one call framed the complete message"
    with pytest.raises(StreamError, match="EBUSY"):
        stream.begin_message(msg)
    got: list[bytes] = []
    thread = start_payload_receiving_thread(stream, size, got)
    turns = 1
    while wait_until(lambda: (stream.flush_once(), True)) and stream.continue_message() == 0:
        turns += 1
    wait_until(stream.flush_once)
    thread.join()
    assert turns >= 20
    assert b"".join(got) == m.octets()
    assert stream.tcp_accepted_message_count == 1


def test_messages_beyond_the_in_flight_limit_wait_for_tcp(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender(rcvbuf=4096)
    set_small_send_buffer(stream.sock)
    m = layer_poller.register_new_memory(2000, octet_pattern(2000))
    sent = 0
    while stream.begin_message(stream.build_message([m.sge()])) == 1:
        sent += 1
        assert sent < 20_000, "neither the batch nor TCP's buffer became full"
    assert stream.begun_message_count == sent + 1
    got: list[bytes] = []
    thread = start_payload_receiving_thread(stream, 2000 * (sent + 1), got)
    wait_until(stream.continue_message)
    wait_until(stream.flush_once)
    thread.join()
    assert b"".join(got) == octet_pattern(2000) * (sent + 1)
    assert stream.tcp_accepted_message_count == stream.begun_message_count


def test_the_octets_of_small_messages_in_flight_are_bounded(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender(rcvbuf=4096)
    set_small_send_buffer(stream.sock)
    m = layer_poller.register_new_memory(1)
    sent = 0
    while stream.begin_message(stream.build_message([m.sge()])) == 1:
        sent += 1
        assert sent < 400_000, "neither the batch nor TCP's buffer became full"
    fpdu_octets = 2 + 18 + 1 + 3 + 4
    assert (
        stream.begun_message_count - stream.tcp_accepted_message_count - 1
    ) * fpdu_octets <= BATCH_OCTETS
    got: list[bytes] = []
    thread = threading.Thread(
        target=lambda: got.append(recv_exactly(stream.sock, fpdu_octets * (sent + 1)))
    )
    thread.start()
    wait_until(stream.continue_message)
    wait_until(stream.flush_once)
    thread.join()
    assert stream.tcp_accepted_message_count == stream.begun_message_count == sent + 1
    assert int.from_bytes(got[0][-fpdu_octets:][12:16], "big") == sent + 1  # the MSN field


# ---- aborted messages


def test_an_abandoned_message_ends_after_its_last_complete_segment(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    size = 8 << 20
    m = layer_poller.register_new_memory(size, octet_pattern(1 << 20) * 8)
    last = layer_poller.register_new_memory(4, b"over")
    assert stream.begin_message(stream.build_message([m.sge()])) == 0
    framed = lib.siw_ddp_tx_abandon(stream.handle)
    assert 0 < framed < size
    assert lib.siw_ddp_tx_abandon(stream.handle) == 0
    assert stream.begin_message(stream.build_message([last.sge()], qn=2)) in (0, 1)
    got: list[bytes] = []
    thread = start_payload_receiving_thread(stream, framed + 4, got)
    wait_until(stream.continue_message)
    wait_until(stream.flush_once)
    thread.join()
    assert b"".join(got) == m.octets()[:framed] + b"over"
    assert (stream.begun_message_count, stream.tcp_accepted_message_count) == (2, 0)


def test_freeing_the_key_of_a_message_in_transmission_stops_the_message(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(8 << 20)
    assert stream.begin_message(stream.build_message([m.sge()])) == 0
    layer_poller.free_stag(m.stag)
    with pytest.raises(StreamError, match="EACCES"):
        wait_until(stream.continue_message)
    assert stream.tx_error == CATASTROPHIC


# ---- from memory with an STag, as a Read Response


def test_a_read_response_sends_the_memory_of_its_stag(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(5000, octet_pattern(5000), to_base=100)
    msg = stream.build_message(
        tagged=True, stag=9, to=3, from_stag=True, src_stag=m.stag, src_to=1100
    )
    msg.length = 2000
    stream.transmit(msg)
    got = stream.read_sent_segments(2000)
    assert b"".join(payload for _, payload in got) == octet_pattern(5000)[1000:3000]
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
def test_a_read_response_requires_valid_bounds_protection_domain_and_remote_read_right(
    layer_poller: DdpPoller, how: dict[str, int], to: int, length: int, error: tuple[int, int, int]
) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(10, **how)
    msg = stream.build_message(tagged=True, from_stag=True, src_stag=m.stag, src_to=to)
    msg.length = length
    with pytest.raises(StreamError, match="EACCES"):
        stream.begin_message(msg)
    assert stream.tx_error == error


def test_an_empty_read_response_checks_no_stag(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    stream.transmit(stream.build_message(tagged=True, stag=5, from_stag=True, src_stag=0, src_to=1))
    ((head, payload),) = stream.read_sent_segments(0)
    assert (head.stag, head.l, payload) == (5, 1, b"")


def test_a_region_is_in_use_until_tcp_has_accepted_its_read_response(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_sender()
    m, other = layer_poller.register_new_memory(5000), layer_poller.register_new_memory(10)
    msg = stream.build_message(tagged=True, from_stag=True, src_stag=m.stag)
    msg.length = 5000
    assert lib.siw_ddp_tx_still_refers_to_stag(stream.handle, m.stag) == 0
    assert stream.begin_message(msg) == 1
    assert lib.siw_ddp_tx_still_refers_to_stag(stream.handle, m.stag) == 1
    assert lib.siw_ddp_tx_still_refers_to_stag(stream.handle, other.stag) == 0
    wait_until(stream.flush_once)
    assert lib.siw_ddp_tx_still_refers_to_stag(stream.handle, m.stag) == 0


def test_a_region_with_a_partly_sent_read_response_is_in_use(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(8 << 20)
    msg = stream.build_message(tagged=True, from_stag=True, src_stag=m.stag)
    msg.length = 8 << 20
    assert stream.begin_message(msg) == 0
    assert lib.siw_ddp_tx_still_refers_to_stag(stream.handle, m.stag) == 1


def test_sending_fails_after_the_peer_reset_the_connection(layer_poller: DdpPoller) -> None:
    stream = layer_poller.create_sender()
    m = layer_poller.register_new_memory(1000)
    linger = struct.pack("ii", 1, 0)  # the close resets the connection, so a later write fails
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    stream.sock.close()

    def send_and_check_for_error() -> bool:
        try:
            stream.begin_message(stream.build_message([m.sge()]))
            stream.flush_once()
        except StreamError as e:
            return e.errno in (errno.EPIPE, errno.ECONNRESET)
        return False

    wait_until(send_and_check_for_error)


def stag_is_in_use(stream: Stream, stag: int) -> bool:
    return bool(lib.siw_ddp_tx_still_refers_to_stag(stream.handle, stag))


def test_only_regions_whose_read_response_tcp_has_not_accepted_are_in_use(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_sender(rcvbuf=4096)
    sent = []
    while True:
        m = layer_poller.register_new_memory(3000)
        msg = stream.build_message(tagged=True, from_stag=True, src_stag=m.stag)
        msg.length = 3000
        sent.append((m, msg))
        if stream.begin_message(msg) == 0:
            break
        assert len(sent) < 5000, "neither the batch nor TCP's buffer became full"
    *framed, _ = sent
    accepted = lib.siw_ddp_tx_accepted_position(stream.handle)
    used = [stag_is_in_use(stream, m.stag) for m, _ in framed]
    assert used == [msg.end[0] > accepted for _, msg in framed]
    assert any(used) and not all(used)


def test_small_read_responses_from_many_regions_are_sent_and_then_release_the_regions(
    layer_poller: DdpPoller,
) -> None:
    stream = layer_poller.create_sender()
    regions = [layer_poller.register_new_memory(10, bytes([i]) * 10) for i in range(100)]
    for turn in range(2):
        for m in regions:
            msg = stream.build_message(tagged=True, from_stag=True, src_stag=m.stag)
            msg.length = 10
            assert stream.begin_message(msg) == 1
            assert stag_is_in_use(stream, m.stag), turn
    wait_until(stream.flush_once)
    assert not any(stag_is_in_use(stream, m.stag) for m in regions)
    got = [stream.read_sent_segment()[1] for _ in range(200)]
    assert got == [bytes([i]) * 10 for i in range(100)] * 2
