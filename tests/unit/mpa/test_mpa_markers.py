"""MPA Markers in both directions, compared with siwarp.inspect, for any FPDU sizes and splits."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
from _siwarp_layers import lib
from hypothesis import given
from hypothesis import strategies as st
from scapy.packet import Raw
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MAX_ULPDU,
    MPA_TYPE,
    MpaPoller,
    StreamError,
    build_fpdu,
    make_mpa_params,
    octet_pattern,
    open_mpa_poller,
    recv_exactly,
    recv_startup_frame,
    wait_until,
)

from siwarp.inspect import FPDU, MPARequest, mark_stream, split_stream, unmark

MARKER = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_MARKER)
CRC = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CRC)


def build_fpdus_with_markers(ulpdus: list[bytes], *, crc: bool = True, at: int = 0) -> bytes:
    """Return the FPDUs of these ULPDUs with Markers, as a peer sends them."""
    return mark_stream([_fpdu_of_ulpdu(u, crc) for u in ulpdus], at)


@functools.lru_cache(maxsize=16)
def _fpdu_of_ulpdu(ulpdu: bytes, crc: bool) -> FPDU:
    """Return an FPDU; many tests send the same one again, at other positions of the stream."""
    return FPDU(ulpdu=Raw(ulpdu), **({} if crc else {"crc": 0}))


def send_ulpdus(stream: Any, ulpdus: list[bytes]) -> bytes:
    """Send ULPDUs on the stream; return the octets that the peer reads."""
    got: list[bytes] = []
    want = len(build_fpdus_with_markers(ulpdus, crc=False))
    reader = threading.Thread(target=lambda: got.append(recv_exactly(stream.sock, want)))
    reader.start()
    for u in ulpdus:
        while not stream.frame_fpdu(u[:18], [u[18:1000], u[1000:]]):
            stream.flush_once()
    stream.flush()
    reader.join(20)
    assert stream.tcp_accepted_fpdu_count == stream.framed_fpdu_count == len(ulpdus)
    return got[0]


def send_and_get_error(stream: Any, octets: bytes) -> tuple[int, int, int]:
    """Send the stream these octets; return the error that it detects."""
    stream.sock.sendall(octets)
    with pytest.raises(StreamError):
        wait_until(stream.peek_fpdu)
    for _ in range(2):  # the error persists in further calls
        with pytest.raises(StreamError):
            stream.peek_fpdu()
    return tuple(stream.error)  # type: ignore[return-value]


# ---- transmit

sizes_of = st.lists(st.integers(0, 40) | st.integers(0, 1100) | st.integers(0, MAX_ULPDU))


@given(sizes_of, st.booleans())
def test_fpdus_of_any_sizes_are_sent_with_markers(sizes: list[int], crc: bool) -> None:
    ulpdus = [octet_pattern(n, i) for i, n in enumerate(sizes[:8])]
    with open_mpa_poller() as layer_poller:
        got = send_ulpdus(layer_poller.create_sender(crc=crc, markers=True), ulpdus)
    assert got == build_fpdus_with_markers(ulpdus, crc=crc)


def test_fpdus_of_every_size_are_sent_with_markers(layer_poller: MpaPoller) -> None:
    ulpdus = [octet_pattern(n, n) for n in [*range(1060), *range(MAX_ULPDU - 5, MAX_ULPDU + 1)]]
    assert send_ulpdus(
        layer_poller.create_sender(markers=True), ulpdus
    ) == build_fpdus_with_markers(ulpdus)


@pytest.mark.parametrize("size", [200, 1400, 60_000])
def test_a_batch_with_markers_is_bounded_and_continues_after_a_flush(
    layer_poller: MpaPoller, size: int
) -> None:
    stream = layer_poller.create_sender(markers=True)
    count, at = 0, 0
    for _ in range(3):
        before = count
        while stream.frame_fpdu(b"", [octet_pattern(size)]):
            count += 1
            assert count < 30_000
        want = build_fpdus_with_markers([octet_pattern(size)] * (count - before), at=at)
        got: list[bytes] = []
        reader = threading.Thread(
            target=lambda to, n: to.append(recv_exactly(stream.sock, n)), args=(got, len(want))
        )
        reader.start()
        stream.flush()
        reader.join(20)
        assert got == [want]
        at += len(want)


def test_payload_may_change_after_it_was_framed_with_markers(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_sender(markers=True)
    payload = bytearray(octet_pattern(30_000))
    assert stream.frame_fpdu(b"head", [payload]) == 1
    payload[:] = bytes(30_000)
    stream.flush()
    want = build_fpdus_with_markers([b"head" + octet_pattern(30_000)])
    assert recv_exactly(stream.sock, len(want)) == want


# ---- receive


@given(sizes_of, st.booleans(), st.integers(1, 3), st.integers(0, 64))
def test_fpdus_of_any_sizes_with_markers_are_received(
    sizes: list[int], crc: bool, pieces: int, skip: int
) -> None:
    ulpdus = [octet_pattern(n, i) for i, n in enumerate(sizes[:8])]
    with open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver(crc=crc, markers=True)
        octets = build_fpdus_with_markers(ulpdus, crc=crc)
        sender = threading.Thread(target=stream.sock.sendall, args=(octets,))
        sender.start()
        got = [stream.receive_ulpdu(skip, pieces) for _ in ulpdus]
        sender.join(20)
    assert got == ulpdus


def test_fpdus_of_every_size_with_markers_are_received(layer_poller: MpaPoller) -> None:
    ulpdus = [octet_pattern(n, n) for n in [*range(1060), *range(MAX_ULPDU - 5, MAX_ULPDU + 1)]]
    stream = layer_poller.create_receiver(markers=True)
    octets = build_fpdus_with_markers(ulpdus)
    sender = threading.Thread(target=stream.sock.sendall, args=(octets,))
    sender.start()
    for u in ulpdus:
        assert stream.receive_ulpdu(18) == u
    sender.join(20)


@pytest.mark.parametrize("sizes", [(500, 30), (470, 3), (10, 480, 0, 0), (2, 1030)])
def test_a_stream_with_markers_split_at_any_octet_gives_the_same_ulpdus(
    layer_poller: MpaPoller, sizes: tuple[int, ...]
) -> None:
    """Each round sends the same FPDUs on one stream, split at a different octet."""
    stream = layer_poller.create_receiver(markers=True)
    ulpdus = [octet_pattern(n, n) for n in sizes]
    at = 0
    for cut in range(1, len(build_fpdus_with_markers(ulpdus))):
        octets = build_fpdus_with_markers(ulpdus, at=at)
        stream.sock.sendall(octets[:cut])
        stream.peek_fpdu()
        stream.sock.sendall(octets[cut:])
        assert [stream.receive_ulpdu() for _ in ulpdus] == ulpdus
        at += len(octets)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=6))
def test_a_stream_with_markers_in_any_pieces_gives_the_same_ulpdus(steps: list[int]) -> None:
    ulpdus = [octet_pattern(n, n) for n in (0, 509, 3, 1500, 64, 65, 66)]
    octets = build_fpdus_with_markers(ulpdus)
    with open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver(markers=True)
        at = turn = 0
        while at < len(octets):
            step = steps[turn % len(steps)] if turn < 64 else len(octets)
            stream.sock.sendall(octets[at : at + step])
            stream.peek_fpdu()
            at, turn = at + step, turn + 1
        assert [stream.receive_ulpdu() for _ in ulpdus] == ulpdus


@pytest.mark.parametrize("at", [8, 12, 60, 64, 68, 500])
def test_the_first_64_octets_of_a_ulpdu_are_contiguous_although_a_marker_divides_them(
    layer_poller: MpaPoller, at: int
) -> None:
    stream = layer_poller.create_receiver(markers=True)
    before = 512 - at - 4 - 8  # a Marker, then an FPDU that ends `at` octets before the next Marker
    stream.sock.sendall(build_fpdus_with_markers([octet_pattern(before), octet_pattern(100, 2)]))
    assert stream.receive_ulpdu() == octet_pattern(before)
    head, length, whole = wait_until(stream.peek_fpdu)
    assert (length, whole) == (100, True)
    assert len(head) >= 64 and octet_pattern(100, 2).startswith(head)
    assert wait_until(stream.peek_fpdu)[0] == head
    assert stream.receive_ulpdu(64) == octet_pattern(100, 2)


def test_after_a_discarded_fpdu_with_markers_the_next_fpdu_is_found(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_receiver(markers=True)
    stream.sock.sendall(build_fpdus_with_markers([octet_pattern(3000), b"next"]))
    wait_until(stream.peek_fpdu)
    stream.place_payload(18)
    assert stream.receive_ulpdu() == b"next"


def test_fpdus_with_markers_that_arrived_with_the_mpa_request_are_received(
    layer_poller: MpaPoller,
) -> None:
    """FPDUs buffered before Markers are negotiated need a larger buffer afterwards."""
    ulpdus = [octet_pattern(MAX_ULPDU, 5), octet_pattern(9), octet_pattern(MAX_ULPDU, 7)]
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=2))
    octets = build_fpdus_with_markers(ulpdus)
    sender = threading.Thread(target=stream.sock.sendall, args=(octets,))
    sender.start()
    wait_until(
        lambda: (
            stream.continue_startup()[0] == 0
            and lib.siw_mpa_memory_octets_for_tests(stream.handle) > 65000
        )
    )
    stream.send_reply(make_mpa_params(markers=1))
    assert [stream.receive_ulpdu() for _ in ulpdus] == ulpdus
    sender.join(20)
    assert recv_startup_frame(stream.sock).m == 1


# ---- errors


def replace_marker(
    octets: bytes, at: int, pointer: int, *, reserved: int = 0, crc: bool = True
) -> bytes:
    """Return one FPDU with the Marker at `at` replaced, and with a new CRC unless crc=False."""
    marker = reserved.to_bytes(2, "big") + pointer.to_bytes(2, "big")
    changed = octets[:at] + marker + octets[at + 4 :]
    if not crc:
        return changed
    frames = split_stream(changed, markers=True)
    assert len(frames.fpdus) == 1
    return changed[:-4] + frames.fpdus[0].crc_expected().to_bytes(4, "little")


@pytest.mark.parametrize(
    ("at", "pointer"),
    [(0, 4), (0, 0xFFFC), (512, 0), (512, 504), (512, 512), (1024, 508), (1024, 1024)],
)
@pytest.mark.parametrize("crc", [True, False])
def test_a_marker_with_a_wrong_fpdu_pointer_ends_the_stream(
    layer_poller: MpaPoller, at: int, pointer: int, crc: bool
) -> None:
    stream = layer_poller.create_receiver(crc=crc, markers=True)
    assert (
        send_and_get_error(
            stream, replace_marker(build_fpdus_with_markers([octet_pattern(1200)]), at, pointer)
        )
        == MARKER
    )


def test_a_crc_error_takes_precedence_over_a_wrong_marker(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_receiver(markers=True)
    assert (
        send_and_get_error(
            stream,
            replace_marker(build_fpdus_with_markers([octet_pattern(1200)]), 512, 0, crc=False),
        )
        == CRC
    )


@pytest.mark.parametrize("reserved", [1, 0xFFFF])
@pytest.mark.parametrize("low", [1, 2, 3])
def test_reserved_bits_of_a_marker_are_ignored(
    layer_poller: MpaPoller, reserved: int, low: int
) -> None:
    stream = layer_poller.create_receiver(markers=True)
    octets = replace_marker(
        build_fpdus_with_markers([octet_pattern(600)]), 512, 508 | low, reserved=reserved
    )
    stream.sock.sendall(octets)
    assert stream.receive_ulpdu() == octet_pattern(600)


def test_a_changed_octet_in_a_marker_is_a_crc_error(layer_poller: MpaPoller) -> None:
    for at in (0, 1, 512, 513):
        octets = bytearray(build_fpdus_with_markers([octet_pattern(600)]))
        octets[at] ^= 1
        assert send_and_get_error(layer_poller.create_receiver(markers=True), bytes(octets)) == CRC


@given(st.data())
def test_any_changed_octet_in_a_stream_with_markers_is_detected_in_its_fpdu(
    data: st.DataObject,
) -> None:
    ulpdus = [octet_pattern(n, n) for n in (40, 600, 0, 300)]
    octets = bytearray(build_fpdus_with_markers(ulpdus))
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    sound = sum(len(build_fpdus_with_markers(ulpdus[: i + 1])) <= at for i in range(len(ulpdus)))
    with open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver(markers=True)
        # Zero octets follow, enough for any ULPDU length that the changed octet may give.
        sender = threading.Thread(target=stream.sock.sendall, args=(bytes(octets) + bytes(70_000),))
        sender.start()
        for u in ulpdus[:sound]:
            assert stream.receive_ulpdu() == u
        with pytest.raises(StreamError):
            wait_until(stream.peek_fpdu)
        sender.join(20)
        assert stream.error == CRC


def test_a_ulpdu_length_beyond_the_range_of_a_marker_pointer_ends_the_stream(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_receiver(crc=False, markers=True)
    octets = build_fpdus_with_markers([octet_pattern(65535)[:65535]], crc=False)
    sender = threading.Thread(target=stream.sock.sendall, args=(octets,))
    sender.start()
    with pytest.raises(StreamError):
        wait_until(stream.peek_fpdu)
    sender.join(20)
    assert stream.error == MARKER


def test_missing_markers_end_the_stream(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_receiver(markers=True)
    assert send_and_get_error(stream, build_fpdu(b"no marker") * 4000) in (CRC, MARKER)


def test_markers_continue_when_stream_positions_wrap_around_in_both_directions() -> None:
    ulpdus = [octet_pattern(n, n) for n in (500, 3000, 20)]
    start = 2**32 - 2048
    with open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver(markers=True)
        lib.siw_mpa_set_position_for_tests(stream.handle, start)
        stream.sock.sendall(build_fpdus_with_markers(ulpdus))
        assert [stream.receive_ulpdu() for _ in ulpdus] == ulpdus
        stream = layer_poller.create_sender(markers=True)
        lib.siw_mpa_set_position_for_tests(stream.handle, start)
        assert send_ulpdus(stream, ulpdus) == build_fpdus_with_markers(ulpdus)
    assert unmark(build_fpdus_with_markers(ulpdus))[1][0] == (0, 0)
