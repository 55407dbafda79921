"""Receiving FPDUs from a TCP stream split in any way, and errors of the stream."""

from __future__ import annotations

import errno
import mmap
import threading
import time

import pytest
from _siwarp_layers import ffi, lib
from hypothesis import given
from hypothesis import strategies as st
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MAX_ULPDU,
    MPA_TYPE,
    WHOLE_OCTETS,
    Iov,
    MpaPoller,
    StreamError,
    build_fpdu,
    octet_pattern,
    open_mpa_poller,
    temporary_setting,
    wait_until,
)

LARGE = 20_000
CLOSED = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CLOSED)
CRC = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CRC)


def wait_until_loopback_has_delivered() -> None:
    """Wait until loopback has delivered the octets that were sent to the stream."""
    time.sleep(0.002)


# ---- splits of the stream


@pytest.mark.parametrize("size", [0, 1, 2, 3, 41])
def test_a_stream_split_at_any_octet_gives_the_same_ulpdus(
    layer_poller: MpaPoller, size: int
) -> None:
    ulpdus = [octet_pattern(size, 1), octet_pattern(size + 1, 2)]
    octets = b"".join(build_fpdu(u) for u in ulpdus)
    stream = layer_poller.create_receiver()
    for at in range(len(octets) + 1):
        stream.sock.sendall(octets[:at])
        got = []
        wait_until_loopback_has_delivered()
        while (seen := stream.peek_fpdu()) is not None:
            got.append(stream.receive_ulpdu(seen[1]))
        stream.sock.sendall(octets[at:])
        while len(got) < 2:
            got.append(stream.receive_ulpdu(14))
        assert got == ulpdus


@pytest.mark.parametrize("short", [0, 1, 43, 44, 46])
def test_an_fpdu_counts_as_staged_once_it_has_been_read_completely(
    layer_poller: MpaPoller, short: int
) -> None:
    first, second = octet_pattern(41, 1), octet_pattern(40, 2)
    octets = build_fpdu(first) + build_fpdu(second)
    stream = layer_poller.create_receiver()
    assert stream.staged_ulpdu() is None
    stream.sock.sendall(octets[: len(octets) - short])
    wait_until(stream.peek_fpdu)
    assert stream.staged_ulpdu() is None  # the first FPDU has been returned, and is not placed yet
    assert stream.receive_ulpdu(41) == first
    assert stream.staged_ulpdu() == (None if short else second)
    stream.sock.sendall(octets[len(octets) - short :])
    assert stream.receive_ulpdu(40) == second
    assert stream.staged_ulpdu() is None


@pytest.mark.parametrize("at", [*range(1, 90), *range(LARGE - 10, LARGE + 9), 8192, 4096, 10_000])
@pytest.mark.fast_path
def test_a_large_fpdu_split_at_any_octet_is_placed_completely(
    layer_poller: MpaPoller, at: int
) -> None:
    ulpdu = octet_pattern(LARGE)
    first = build_fpdu(ulpdu)
    octets = first + build_fpdu(b"next")
    stream = layer_poller.create_receiver()
    stream.sock.sendall(octets[:at])
    wait_until_loopback_has_delivered()
    iov = Iov([dest := bytearray(LARGE - 14)])
    complete = at >= len(first)
    early = stream.peek_fpdu()
    assert (early is None) == (at < 66)
    if early is not None:
        assert early[1:] == (LARGE, complete)
        assert stream.try_to_place_payload(14, iov) == complete
    stream.sock.sendall(octets[at:])
    if early is None:
        wait_until(stream.peek_fpdu)
    if not complete:
        wait_until(lambda: stream.try_to_place_payload(14, iov))
    assert dest == ulpdu[14:]
    assert stream.receive_ulpdu(0) == b"next"


@given(
    st.lists(st.integers(0, 300) | st.integers(0, 30_000), min_size=1, max_size=10),
    st.lists(st.integers(1, 9000) | st.integers(1, 60), min_size=1, max_size=30),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_fpdus_of_any_sizes_in_any_pieces_are_received_in_order(
    sizes: list[int], cuts: list[int], pieces: int, crc: bool, strict: bool
) -> None:
    ulpdus = [octet_pattern(n, i) for i, n in enumerate(sizes)]
    octets = b"".join(build_fpdu(u) for u in ulpdus)
    with temporary_setting("crc_first", int(strict)), open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver(crc=crc)

        def send_in_pieces() -> None:
            at = i = 0
            while at < len(octets):
                n = cuts[i % len(cuts)] if i < 60 else 1 << 20
                stream.sock.sendall(octets[at : at + n])
                at, i = at + n, i + 1

        sender = threading.Thread(target=send_in_pieces)
        sender.start()
        got = [stream.receive_ulpdu(14, pieces) for _ in ulpdus]
        sender.join()
        assert got == ulpdus
        assert stream.peek_fpdu() is None


@pytest.mark.parametrize("strict", [0, 1])
def test_fpdus_of_every_size_around_the_limits_are_received(strict: int) -> None:
    sizes = [*range(1100), *range(WHOLE_OCTETS - 80, WHOLE_OCTETS + 80), 16_384, 32_768, 57_344]
    sizes += [*range(65_450 - 64, 65_490), *range(MAX_ULPDU - 3, MAX_ULPDU + 1)]
    source = octet_pattern(70_000)
    with temporary_setting("crc_first", strict), open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver(crc=False)

        def send_fpdus() -> None:
            for n in sizes:
                stream.sock.sendall(n.to_bytes(2, "big") + source[:n] + bytes(-(n + 2) % 4 + 4))

        sender = threading.Thread(target=send_fpdus)
        sender.start()
        for n in sizes:
            assert stream.receive_ulpdu() == source[:n]
        sender.join()


# ---- delivered FPDUs


def test_a_small_fpdu_is_reported_completely_until_it_is_consumed(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(b"first") + build_fpdu(b"second"))
    assert wait_until(stream.peek_fpdu) == (b"first", 5, True)
    assert stream.peek_fpdu() == (b"first", 5, True)
    stream.place_payload(5)
    assert wait_until(stream.peek_fpdu) == (b"second", 6, True)


def test_an_empty_fpdu_is_reported_as_a_complete_ulpdu_of_length_0(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(b"") + build_fpdu(b"x"))
    assert wait_until(stream.peek_fpdu) == (b"", 0, True)
    stream.place_payload(0)
    assert wait_until(stream.peek_fpdu) == (b"x", 1, True)


@pytest.mark.fast_path
def test_a_large_fpdu_is_reported_once_64_octets_of_its_ulpdu_have_arrived(
    layer_poller: MpaPoller,
) -> None:
    ulpdu = octet_pattern(LARGE)
    stream = layer_poller.create_receiver()
    octets = build_fpdu(ulpdu)
    stream.sock.sendall(octets[:65])
    wait_until_loopback_has_delivered()
    assert stream.peek_fpdu() is None
    stream.sock.sendall(octets[65:66])
    head, length, whole = wait_until(stream.peek_fpdu)
    assert (head, length, whole) == (ulpdu[:64], LARGE, False)


@pytest.mark.fast_path
def test_the_next_fpdu_cannot_be_examined_while_one_is_being_placed(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(octet_pattern(LARGE))[:15_000])
    wait_until(stream.peek_fpdu)
    assert stream.try_to_place_payload(14, Iov([bytearray(LARGE - 14)])) == 0
    with pytest.raises(StreamError) as e:
        stream.peek_fpdu()
    assert e.value.errno == errno.EBUSY


@pytest.mark.parametrize("size", [100, LARGE])
@pytest.mark.parametrize("skip", [0, 14, 64])
def test_payload_is_scattered_over_the_pieces_of_its_destination(
    layer_poller: MpaPoller, size: int, skip: int
) -> None:
    ulpdu = octet_pattern(size)
    rest = size - skip
    sizes = [1, 0, 7, rest // 3, 0]
    sizes.append(rest - sum(sizes))
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(ulpdu))
    wait_until(stream.peek_fpdu)
    buffers = [bytearray(n) for n in sizes]
    stream.place_payload(skip, *buffers)
    assert b"".join(buffers) == ulpdu[skip:]


@pytest.mark.fast_path
def test_a_destination_of_200_pieces_is_filled(layer_poller: MpaPoller) -> None:
    ulpdu = octet_pattern(60_000)
    buffers = [bytearray(299 + i % 3) for i in range(199)]
    buffers.append(bytearray(60_000 - sum(map(len, buffers))))
    stream = layer_poller.create_receiver()
    octets = build_fpdu(ulpdu)
    stream.sock.sendall(octets[:100])
    wait_until(stream.peek_fpdu)
    stream.sock.sendall(octets[100:])
    stream.place_payload(0, *buffers)
    assert b"".join(buffers) == ulpdu


@pytest.mark.parametrize("size", [100, LARGE, 60_000])
def test_payload_without_a_destination_is_discarded_and_its_crc_is_checked(
    layer_poller: MpaPoller, size: int
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(octet_pattern(size)) + build_fpdu(b"next"))
    wait_until(stream.peek_fpdu)
    stream.place_payload(14)
    assert stream.receive_ulpdu(0) == b"next"
    stream.sock.sendall(build_fpdu(octet_pattern(size), crc=1))
    with pytest.raises(StreamError) as e:
        wait_until(stream.peek_fpdu)
        stream.place_payload(14)
    assert e.value.errno == errno.EBADMSG


@pytest.mark.parametrize("size", [100, LARGE])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_destination_of_another_length_than_the_payload_is_refused(
    layer_poller: MpaPoller, size: int, off: int
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(octet_pattern(size)))
    wait_until(stream.peek_fpdu)
    with pytest.raises(StreamError) as e:
        stream.try_to_place_payload(14, Iov([bytearray(size - 14 + off)]))
    assert e.value.errno == errno.EINVAL
    with pytest.raises(StreamError) as e:
        stream.try_to_place_payload(size + 1, None)
    assert e.value.errno == errno.EINVAL
    assert stream.receive_ulpdu(14) == octet_pattern(size)


# ---- memory that must not be written


@pytest.mark.parametrize("size", [100, LARGE])
@pytest.mark.parametrize("strict", [0, 1])
def test_no_octet_outside_the_destination_is_written(strict: int, size: int) -> None:
    octets = build_fpdu(octet_pattern(size, 1)) + build_fpdu(octet_pattern(size, 2))
    memory = bytearray(b"\xa5" * (size + 200))
    view = memoryview(memory)[100 : 100 + size - 14]
    with temporary_setting("crc_first", strict), open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver()
        stream.sock.sendall(octets[:90])
        wait_until_loopback_has_delivered()
        stream.peek_fpdu()
        stream.sock.sendall(octets[90:])
        wait_until(stream.peek_fpdu)
        stream.place_payload(14, view)
        assert stream.receive_ulpdu() == octet_pattern(size, 2)
    assert view == octet_pattern(size, 1)[14:]
    assert set(memory[:100] + memory[100 + size - 14 :]) == {0xA5}


def test_with_setting_crc_first_nothing_is_written_before_the_crc_is_checked() -> None:
    octets = bytearray(build_fpdu(octet_pattern(LARGE)))
    octets[-1] ^= 1
    dest = bytearray(LARGE - 14)
    with temporary_setting("crc_first", 1), open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver()
        stream.sock.sendall(octets[:-1])
        wait_until_loopback_has_delivered()
        assert stream.peek_fpdu() is None
        stream.sock.sendall(octets[-1:])
        with pytest.raises(StreamError) as e:
            wait_until(stream.peek_fpdu)
        assert e.value.errno == errno.EBADMSG
        with pytest.raises(StreamError):
            stream.try_to_place_payload(14, Iov([dest]))
    assert dest == bytes(LARGE - 14)


@pytest.mark.fast_path
def test_placing_into_read_only_memory_fails_with_efault(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_receiver()
    octets = build_fpdu(octet_pattern(LARGE))
    stream.sock.sendall(octets[:66])
    wait_until(stream.peek_fpdu)
    with mmap.mmap(-1, 2 * LARGE, prot=mmap.PROT_READ) as readonly:
        array = ffi.new("struct iovec[2]")
        good = ffi.new("char[]", 50)
        array[0].iov_base, array[0].iov_len = good, 50
        pointer = ffi.from_buffer("char[]", readonly)
        array[1].iov_base, array[1].iov_len = pointer, LARGE - 14 - 50
        stream.sock.sendall(octets[66:])
        rv = wait_until(lambda: lib.siw_mpa_rx_payload(stream.handle, 14, array, 2))
        assert rv == -errno.EFAULT
        assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CATASTROPHIC)
        assert bytes(readonly[:LARGE]) == bytes(LARGE)
        del pointer
    with pytest.raises(StreamError) as e:
        stream.peek_fpdu()
    assert e.value.errno == errno.EFAULT


# ---- the end of the stream


def test_an_end_of_stream_between_fpdus_is_permanently_reported_as_enotconn(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(b"last"))
    stream.sock.close()
    assert stream.receive_ulpdu(0) == b"last"
    for _ in range(2):
        with pytest.raises(StreamError) as e:
            wait_until(stream.peek_fpdu)
        assert e.value.errno == errno.ENOTCONN
    assert stream.error == CLOSED


@pytest.mark.parametrize("at", [1, 2, 3, 66, 5000, LARGE, LARGE + 4])
def test_an_end_of_stream_inside_an_fpdu_is_reported_as_econnreset(
    layer_poller: MpaPoller, at: int
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(octet_pattern(LARGE))[:at])
    stream.sock.close()
    with pytest.raises(StreamError) as e:
        stream.receive_ulpdu()
    assert e.value.errno == errno.ECONNRESET
    assert stream.error == CLOSED


def test_drain_discards_all_received_octets_and_reports_the_end_of_stream(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(b"read") + build_fpdu(octet_pattern(LARGE))[:-1])
    wait_until(stream.peek_fpdu)
    sender = threading.Thread(target=lambda: stream.sock.sendall(bytes(20 << 20)))
    sender.start()
    while sender.is_alive():
        assert lib.siw_mpa_read_and_discard(stream.handle) == 0
    sender.join()
    assert lib.siw_mpa_shutdown(stream.handle) == 0
    assert stream.sock.recv(1) == b""
    stream.sock.close()
    assert wait_until(lambda: lib.siw_mpa_read_and_discard(stream.handle)) == 1


def test_an_aborted_stream_resets_its_peer(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_receiver()
    stream.close(abort=True)
    with pytest.raises(ConnectionResetError):
        stream.sock.recv(1)
