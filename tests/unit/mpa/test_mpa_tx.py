"""Sending FPDUs: framing, batching, and counting of FPDUs that TCP has accepted."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import threading
from pathlib import Path

import pytest
from _siwarp_layers import lib
from hypothesis import given
from hypothesis import strategies as st
from unit.mpa.mpa_harness import (
    MAX_ULPDU,
    MpaPoller,
    StreamError,
    build_fpdu,
    octet_pattern,
    open_mpa_poller,
    recv_exactly,
    split_fpdus,
    temporary_setting,
    wait_until,
)

HEAD = bytes(range(18))
BATCH_OCTETS = 1 << 18


class Reader(threading.Thread):
    """A thread that reads the peer's socket until the end of the stream."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.sock, self.octets = sock, bytearray()
        self.start()

    def run(self) -> None:
        while got := self.sock.recv(1 << 20):
            self.octets += got

    def join_and_get_octets(self) -> bytes:
        self.join(20)
        assert not self.is_alive()
        return bytes(self.octets)


def flush_and_shut_down(stream, reader: Reader) -> bytes:  # type: ignore[no-untyped-def]
    wait_until(stream.flush_once)
    assert lib.siw_mpa_shutdown(stream.handle) == 0
    return reader.join_and_get_octets()


def frame_all_fpdus(stream, frames: list[tuple[bytes, list[bytes]]]) -> None:  # type: ignore[no-untyped-def]
    for head, pieces in frames:
        while not stream.frame_fpdu(head, pieces):
            stream.flush_once()


pieces_of = st.lists(
    st.integers(0, 5000) | st.sampled_from([0, 1, 255, 256, 2047, 2048, 2049, 4096]), max_size=8
)


@given(st.lists(st.tuples(st.integers(0, 64), pieces_of), min_size=1, max_size=12), st.booleans())
def test_a_header_and_any_pieces_of_payload_are_sent_as_one_fpdu(
    shapes: list[tuple[int, list[int]]], crc: bool
) -> None:
    with open_mpa_poller() as layer_poller:
        stream = layer_poller.create_sender(crc=crc)
        reader = Reader(stream.sock)
        frames = [
            (octet_pattern(head, i), [octet_pattern(n, i + j + 2) for j, n in enumerate(sizes)])
            for i, (head, sizes) in enumerate(shapes)
        ]
        frame_all_fpdus(stream, frames)
        got = split_fpdus(flush_and_shut_down(stream, reader), crc=crc)
    assert got == [head + b"".join(pieces) for head, pieces in frames]


def test_fpdus_of_every_small_size_and_around_each_limit_are_sent(layer_poller: MpaPoller) -> None:
    sizes = [*range(300), *range(2020, 2060), *range(4080, 4100), *range(8160, 8200)]
    sizes += range(MAX_ULPDU - 18 - 9, MAX_ULPDU - 18 + 1)
    stream = layer_poller.create_sender()
    reader = Reader(stream.sock)
    source = octet_pattern(MAX_ULPDU)
    frame_all_fpdus(stream, [(HEAD, [source[:n]]) for n in sizes])
    got = split_fpdus(flush_and_shut_down(stream, reader))
    assert [len(u) - 18 for u in got] == sizes
    assert all(u == HEAD + source[: len(u) - 18] for u in got)
    assert stream.tcp_accepted_fpdu_count == stream.framed_fpdu_count == len(sizes)


def duplicate_siwarp_socket(sock: socket.socket) -> socket.socket:
    """Return a duplicate of siwarp's own socket, given the test's socket at the other end."""
    ends = sock.getpeername(), sock.getsockname()
    for entry in Path("/proc/self/fd").iterdir():
        # an OSError means that the descriptor is closed, or no connected socket
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as other:
                if (other.getsockname(), other.getpeername()) == ends:
                    return other.dup()
    raise AssertionError("this process has no socket of the stack for the connection")


def count_sent_data_segments(sock: socket.socket) -> int:
    """Return how many data segments a socket has sent, without retransmissions."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (repeated,) = struct.unpack_from("=I", info, 100)  # tcpi_total_retrans
    (sent,) = struct.unpack_from("=I", info, 156)  # tcpi_data_segs_out
    return int(sent - repeated)


@pytest.mark.clause("RFC5044-5.1-04")
@pytest.mark.parametrize("size", [0, 1, 64, 300, 1500, 2000])
def test_one_small_fpdu_or_eight_are_sent_in_one_tcp_segment(
    layer_poller: MpaPoller, size: int
) -> None:
    stream = layer_poller.create_sender()
    with duplicate_siwarp_socket(stream.sock) as sender:
        for count in (1, 8):
            before = count_sent_data_segments(sender)
            for _ in range(count):
                assert stream.frame_fpdu(HEAD, [octet_pattern(size)]) == 1
            stream.flush()
            recv_exactly(stream.sock, count * len(build_fpdu(HEAD + octet_pattern(size))))
            assert count_sent_data_segments(sender) - before == 1


def test_no_framed_fpdu_is_sent_before_the_flush(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_sender()
    assert stream.frame_fpdu(HEAD) == 1
    stream.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        stream.sock.recv(1)
    assert (stream.framed_fpdu_count, stream.tcp_accepted_fpdu_count) == (1, 0)
    stream.flush()
    assert (stream.framed_fpdu_count, stream.tcp_accepted_fpdu_count) == (1, 1)


def test_a_flush_with_nothing_framed_completes_immediately(layer_poller: MpaPoller) -> None:
    assert layer_poller.create_sender().flush_once() == 1


def test_a_batch_of_large_fpdus_is_full_at_about_256_kib(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_sender()
    payload = octet_pattern(64000)
    count = 0
    while stream.frame_fpdu(HEAD, [payload]):
        count += 1
        assert count < 100
    assert BATCH_OCTETS <= count * len(build_fpdu(HEAD + payload)) < BATCH_OCTETS + 65536


@pytest.mark.parametrize("size", [0, 46, 1400])
def test_a_batch_of_small_fpdus_is_bounded_and_continues_after_a_flush(
    layer_poller: MpaPoller, size: int
) -> None:
    stream = layer_poller.create_sender()
    reader = Reader(stream.sock)
    for _ in range(3):
        while stream.frame_fpdu(HEAD, [octet_pattern(size)]):
            assert stream.framed_fpdu_count < 100_000
        stream.flush()
    total = stream.framed_fpdu_count
    assert total > 300
    assert stream.tcp_accepted_fpdu_count == total
    assert split_fpdus(flush_and_shut_down(stream, reader)) == [HEAD + octet_pattern(size)] * total


def test_the_accepted_count_has_only_fpdus_that_tcp_has_accepted_completely(
    layer_poller: MpaPoller,
) -> None:
    """The peer reads nothing at first, so TCP accepts a batch only partly."""
    stream = layer_poller.create_sender(rcvbuf=4096)
    payload = octet_pattern(60000)
    one = len(build_fpdu(HEAD + payload))
    while stream.tcp_accepted_fpdu_count == stream.framed_fpdu_count:
        while stream.frame_fpdu(HEAD, [payload]):
            pass
        stream.flush_once()
        assert stream.framed_fpdu_count < 2000
    while stream.flush_once() == 0 and stream.tcp_accepted_fpdu_count == 0:
        pass
    blocked_at, framed = stream.tcp_accepted_fpdu_count, stream.framed_fpdu_count
    assert stream.flush_once() == 0
    assert stream.tcp_accepted_fpdu_count == blocked_at < framed
    got = bytearray()
    seen = blocked_at
    while len(got) < framed * one:
        got += stream.sock.recv(50_001)
        stream.flush_once()
        assert stream.tcp_accepted_fpdu_count >= seen
        seen = stream.tcp_accepted_fpdu_count
        # TCP has accepted at least the octets that the peer has read; the socket buffers hold the
        # rest of the accepted octets.
        assert stream.tcp_accepted_fpdu_count >= len(got) // one
    assert stream.tcp_accepted_fpdu_count == framed
    assert split_fpdus(bytes(got)) == [HEAD + payload] * framed


def test_a_stream_that_the_peer_reads_in_odd_pieces_is_complete(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_sender(rcvbuf=4096)
    sizes = [(i * 7919) % 9000 for i in range(400)]
    want = [HEAD + octet_pattern(n, n) for n in sizes]
    todo = list(reversed(sizes))
    got = bytearray()
    total = sum(len(u) + 6 + -(len(u) + 2) % 4 for u in want)
    step = 0
    while len(got) < total:
        while todo and stream.frame_fpdu(HEAD, [octet_pattern(todo[-1], todo[-1])]):
            todo.pop()
        stream.flush_once()
        step += 1
        stream.sock.settimeout(0.01)
        try:
            got += stream.sock.recv(1 + (step * 613) % 7000)
        except TimeoutError:
            assert step < 100_000
    assert split_fpdus(bytes(got)) == want
    assert stream.tcp_accepted_fpdu_count == len(want)


def test_large_payload_is_sent_by_reference_and_not_copied(layer_poller: MpaPoller) -> None:
    """Payload changed between framing and flush is sent changed, with the CRC of the original."""
    stream = layer_poller.create_sender()
    payload = bytearray(octet_pattern(10_000))
    assert stream.frame_fpdu(HEAD, [payload]) == 1
    payload[5000] ^= 0xFF
    stream.flush()
    octets = recv_exactly(stream.sock, len(build_fpdu(HEAD + bytes(payload))))
    assert octets[20:10_020] == payload
    with pytest.raises(AssertionError, match="the CRC is wrong"):
        split_fpdus(octets)


def test_small_payload_may_change_after_it_was_framed(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_sender()
    payload = bytearray(octet_pattern(2048))
    assert stream.frame_fpdu(HEAD, [payload]) == 1
    payload[:] = bytes(2048)
    stream.flush()
    octets = recv_exactly(stream.sock, len(build_fpdu(HEAD + bytes(payload))))
    assert split_fpdus(octets) == [HEAD + octet_pattern(2048)]


@pytest.mark.clause("RFC5044-3-06#a")
@pytest.mark.parametrize("size", [1, 2, 128, 1460, MAX_ULPDU - 1, MAX_ULPDU])
def test_a_ulpdu_of_any_size_up_to_the_limit_is_accepted(
    layer_poller: MpaPoller, size: int
) -> None:
    stream = layer_poller.create_sender()
    head, rest = octet_pattern(size)[:18], octet_pattern(size)[18:]
    assert stream.frame_fpdu(head, [rest] if rest else []) == 1
    stream.flush()
    assert split_fpdus(recv_exactly(stream.sock, len(build_fpdu(octet_pattern(size))))) == [
        octet_pattern(size)
    ]


@pytest.mark.clause("RFC5044-3-06#b")
@pytest.mark.parametrize(("head", "size"), [(65, 0), (18, MAX_ULPDU - 17), (0, 1 << 20)])
def test_a_ulpdu_or_header_beyond_the_limit_is_refused(
    layer_poller: MpaPoller, head: int, size: int
) -> None:
    stream = layer_poller.create_sender()
    with pytest.raises(StreamError) as e:
        stream.frame_fpdu(bytes(head), [bytes(size)])
    assert e.value.errno == errno.EMSGSIZE
    assert stream.framed_fpdu_count == 0


@pytest.mark.clause("RFC5041-3-03")
def test_a_smaller_mulpdu_does_not_change_fpdus_that_are_already_framed(
    layer_poller: MpaPoller,
) -> None:
    with temporary_setting("mulpdu", 30_000):
        stream = layer_poller.create_sender(rcvbuf=4096)
        size = lib.siw_mpa_mulpdu(stream.handle) - len(HEAD)
        assert size > 1000
        sizes: list[int] = []
        for _ in range(1000):
            if stream.frame_fpdu(HEAD, [octet_pattern(size)]) == 0:
                if stream.flush_once() == 0:
                    break  # neither TCP nor the batch has space for another FPDU
                continue
            sizes.append(len(HEAD) + size)
        assert stream.framed_fpdu_count > stream.tcp_accepted_fpdu_count + 1
    with temporary_setting("mulpdu", 128):
        got, wanted = bytearray(), len(sizes) * len(build_fpdu(bytes(sizes[0])))
        while lib.siw_mpa_mulpdu(stream.handle) != 128:
            got += stream.sock.recv(1024)
            stream.flush_once()
        assert stream.framed_fpdu_count > stream.tcp_accepted_fpdu_count, (
            "no framed FPDU is left unsent"
        )
        while len(got) < wanted:
            got += stream.sock.recv(1 << 16)
            stream.flush_once()
    assert split_fpdus(bytes(got)) == [HEAD + octet_pattern(size)] * len(sizes)


@pytest.mark.parametrize("limit", [128, 1000, 30_000])
def test_the_mulpdu_is_limited_by_the_setting(layer_poller: MpaPoller, limit: int) -> None:
    with temporary_setting("mulpdu", limit):
        assert lib.siw_mpa_mulpdu(layer_poller.create_sender().handle) == limit


@pytest.mark.clause("RFC5041-3-02")
def test_the_mulpdu_follows_the_growing_segment_size_of_a_new_connection(
    layer_poller: MpaPoller,
) -> None:
    """Linux starts a loopback connection with segments of half the first window, 32 KiB."""
    stream = layer_poller.create_sender()
    reader = Reader(stream.sock)
    assert lib.siw_mpa_mulpdu(stream.handle) < MAX_ULPDU
    payload = octet_pattern(30_000)
    for _ in range(5000):
        stream.frame_fpdu(HEAD, [payload])
        stream.flush()
        if lib.siw_mpa_mulpdu(stream.handle) == MAX_ULPDU:
            break
    assert lib.siw_mpa_mulpdu(stream.handle) == MAX_ULPDU
    flush_and_shut_down(stream, reader)


def test_sending_fails_after_the_peer_resets_the_connection(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_sender()
    now = struct.pack("ii", 1, 0)
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    stream.sock.close()
    gone = {errno.ECONNRESET, errno.EPIPE}

    def send_and_check_for_error() -> bool:
        try:
            stream.frame_fpdu(HEAD)
            stream.flush_once()
        except StreamError as e:
            assert e.errno in gone
            return True
        return False

    wait_until(send_and_check_for_error)
    for step in (stream.flush_once, lambda: stream.frame_fpdu(HEAD)):
        with pytest.raises(StreamError) as e:
            step()
        assert e.value.errno in gone
