"""Markers in both directions, any sizes and any split of the stream, against siwarp.inspect."""

from __future__ import annotations

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
    StreamError,
    World,
    fpdu,
    params,
    pattern,
    recv_exactly,
    recv_startup,
    until,
    world,
)

from siwarp.inspect import FPDU, MPARequest, mark_stream, split_stream, unmark

MARKER = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_MARKER)
CRC = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CRC)


def marked(ulpdus: list[bytes], *, crc: bool = True, at: int = 0) -> bytes:
    """Return the FPDUs of these ULPDUs with Markers, as a peer sends them."""
    fields = {} if crc else {"crc": 0}
    return mark_stream([FPDU(ulpdu=Raw(u), **fields) for u in ulpdus], at)


def send_all(stream: Any, ulpdus: list[bytes]) -> bytes:
    """Have the stream send these ULPDUs; return the octets that its peer reads."""
    got: list[bytes] = []
    want = len(marked(ulpdus, crc=False))
    reader = threading.Thread(target=lambda: got.append(recv_exactly(stream.sock, want)))
    reader.start()
    for u in ulpdus:
        while not stream.frame(u[:18], [u[18:1000], u[1000:]]):
            stream.flush_once()
    stream.flush()
    reader.join(20)
    assert stream.accepted == stream.framed == len(ulpdus)
    return got[0]


def judged(stream: Any, octets: bytes) -> tuple[int, int, int]:
    """Send the stream these octets; return the error that it detects."""
    stream.sock.sendall(octets)
    with pytest.raises(StreamError):
        until(stream.look)
    for _ in range(2):  # the error persists in further calls
        with pytest.raises(StreamError):
            stream.look()
    return tuple(stream.error)  # type: ignore[return-value]


# ---- transmit

sizes_of = st.lists(st.integers(0, 40) | st.integers(0, 1100) | st.integers(0, MAX_ULPDU))


@given(sizes_of, st.booleans())
def test_fpdus_of_any_sizes_leave_marked(sizes: list[int], crc: bool) -> None:
    ulpdus = [pattern(n, i) for i, n in enumerate(sizes[:8])]
    with world() as w:
        got = send_all(w.sender(crc=crc, markers=True), ulpdus)
    assert got == marked(ulpdus, crc=crc)


def test_every_size_leaves_marked(w: World) -> None:
    ulpdus = [pattern(n, n) for n in [*range(1060), *range(MAX_ULPDU - 5, MAX_ULPDU + 1)]]
    assert send_all(w.sender(markers=True), ulpdus) == marked(ulpdus)


@pytest.mark.parametrize("size", [200, 1400, 60_000])
def test_a_batch_is_bounded_and_goes_on_after_a_flush(w: World, size: int) -> None:
    stream = w.sender(markers=True)
    count, at = 0, 0
    for _ in range(3):
        before = count
        while stream.frame(b"", [pattern(size)]):
            count += 1
            assert count < 30_000
        want = marked([pattern(size)] * (count - before), at=at)
        got: list[bytes] = []
        reader = threading.Thread(
            target=lambda to, n: to.append(recv_exactly(stream.sock, n)), args=(got, len(want))
        )
        reader.start()
        stream.flush()
        reader.join(20)
        assert got == [want]
        at += len(want)


def test_small_and_large_payload_may_change_once_it_is_framed(w: World) -> None:
    stream = w.sender(markers=True)
    payload = bytearray(pattern(30_000))
    assert stream.frame(b"head", [payload]) == 1
    payload[:] = bytes(30_000)
    stream.flush()
    want = marked([b"head" + pattern(30_000)])
    assert recv_exactly(stream.sock, len(want)) == want


# ---- receive


@given(sizes_of, st.booleans(), st.integers(1, 3), st.integers(0, 64))
def test_marked_fpdus_of_any_sizes_arrive(
    sizes: list[int], crc: bool, pieces: int, skip: int
) -> None:
    ulpdus = [pattern(n, i) for i, n in enumerate(sizes[:8])]
    with world() as w:
        stream = w.receiver(crc=crc, markers=True)
        octets = marked(ulpdus, crc=crc)
        sender = threading.Thread(target=stream.sock.sendall, args=(octets,))
        sender.start()
        got = [stream.receive(skip, pieces) for _ in ulpdus]
        sender.join(20)
    assert got == ulpdus


def test_every_size_arrives_marked(w: World) -> None:
    ulpdus = [pattern(n, n) for n in [*range(1060), *range(MAX_ULPDU - 5, MAX_ULPDU + 1)]]
    stream = w.receiver(markers=True)
    octets = marked(ulpdus)
    sender = threading.Thread(target=stream.sock.sendall, args=(octets,))
    sender.start()
    for u in ulpdus:
        assert stream.receive(18) == u
    sender.join(20)


@pytest.mark.parametrize("sizes", [(500, 30), (470, 3), (10, 480, 0, 0), (2, 1030)])
def test_a_marked_stream_cut_at_any_octet_gives_the_same_ulpdus(
    w: World, sizes: tuple[int, ...]
) -> None:
    """One stream; each round splits its octets at another position."""
    stream = w.receiver(markers=True)
    ulpdus = [pattern(n, n) for n in sizes]
    at = 0
    for cut in range(1, len(marked(ulpdus))):
        octets = marked(ulpdus, at=at)
        stream.sock.sendall(octets[:cut])
        stream.look()
        stream.sock.sendall(octets[cut:])
        assert [stream.receive() for _ in ulpdus] == ulpdus
        at += len(octets)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=6))
def test_a_marked_stream_in_any_pieces_gives_the_same_ulpdus(steps: list[int]) -> None:
    ulpdus = [pattern(n, n) for n in (0, 509, 3, 1500, 64, 65, 66)]
    octets = marked(ulpdus)
    with world() as w:
        stream = w.receiver(markers=True)
        at = turn = 0
        while at < len(octets):
            step = steps[turn % len(steps)] if turn < 64 else len(octets)
            stream.sock.sendall(octets[at : at + step])
            stream.look()
            at, turn = at + step, turn + 1
        assert [stream.receive() for _ in ulpdus] == ulpdus


@pytest.mark.parametrize("at", [8, 12, 60, 64, 68, 500])
def test_the_head_is_in_one_piece_whatever_marker_falls_into_it(w: World, at: int) -> None:
    stream = w.receiver(markers=True)
    before = 512 - at - 4 - 8  # a Marker, then an FPDU that ends `at` octets before the next Marker
    stream.sock.sendall(marked([pattern(before), pattern(100, 2)]))
    assert stream.receive() == pattern(before)
    head, length, whole = until(stream.look)
    assert (length, whole) == (100, True)
    assert len(head) >= 64 and pattern(100, 2).startswith(head)
    assert until(stream.look)[0] == head
    assert stream.receive(64) == pattern(100, 2)


def test_a_discarded_fpdu_is_skipped_and_the_next_one_found(w: World) -> None:
    stream = w.receiver(markers=True)
    stream.sock.sendall(marked([pattern(3000), b"next"]))
    until(stream.look)
    stream.place(18)
    assert stream.receive() == b"next"


def test_marked_fpdus_that_came_with_the_request_are_received(w: World) -> None:
    """The FPDUs are staged before Markers are negotiated, in a buffer that is then too small."""
    ulpdus = [pattern(MAX_ULPDU, 5), pattern(9), pattern(MAX_ULPDU, 7)]
    stream, _ = w.requested(MPARequest(rev=2))
    octets = marked(ulpdus)
    sender = threading.Thread(target=stream.sock.sendall, args=(octets,))
    sender.start()
    until(lambda: stream.startup_once()[0] == 0 and lib.siw_mpa_test_memory(stream.handle) > 65000)
    stream.reply(params(markers=1))
    assert [stream.receive() for _ in ulpdus] == ulpdus
    sender.join(20)
    assert recv_startup(stream.sock).m == 1


# ---- errors


def patched(octets: bytes, at: int, pointer: int, *, reserved: int = 0, crc: bool = True) -> bytes:
    """Return one FPDU with another Marker at `at`; its CRC is recomputed unless crc=False."""
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
def test_a_marker_that_points_elsewhere_ends_the_stream(
    w: World, at: int, pointer: int, crc: bool
) -> None:
    stream = w.receiver(crc=crc, markers=True)
    assert judged(stream, patched(marked([pattern(1200)]), at, pointer)) == MARKER


def test_a_wrong_crc_comes_before_a_marker_that_points_elsewhere(w: World) -> None:
    stream = w.receiver(markers=True)
    assert judged(stream, patched(marked([pattern(1200)]), 512, 0, crc=False)) == CRC


@pytest.mark.parametrize("reserved", [1, 0xFFFF])
@pytest.mark.parametrize("low", [1, 2, 3])
def test_reserved_bits_of_a_marker_are_not_looked_at(w: World, reserved: int, low: int) -> None:
    stream = w.receiver(markers=True)
    octets = patched(marked([pattern(600)]), 512, 508 | low, reserved=reserved)
    stream.sock.sendall(octets)
    assert stream.receive() == pattern(600)


def test_an_octet_changed_in_a_marker_is_a_wrong_crc(w: World) -> None:
    for at in (0, 1, 512, 513):
        octets = bytearray(marked([pattern(600)]))
        octets[at] ^= 1
        assert judged(w.receiver(markers=True), bytes(octets)) == CRC


@given(st.data())
def test_any_octet_changed_in_a_marked_stream_is_noticed_with_its_fpdu(data: st.DataObject) -> None:
    ulpdus = [pattern(n, n) for n in (40, 600, 0, 300)]
    octets = bytearray(marked(ulpdus))
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    sound = sum(len(marked(ulpdus[: i + 1])) <= at for i in range(len(ulpdus)))
    with world() as w:
        stream = w.receiver(markers=True)
        # Enough octets follow for any length that the change results in.
        sender = threading.Thread(target=stream.sock.sendall, args=(bytes(octets) + bytes(70_000),))
        sender.start()
        for u in ulpdus[:sound]:
            assert stream.receive() == u
        with pytest.raises(StreamError):
            until(stream.look)
        sender.join(20)
        assert stream.error == CRC


def test_a_length_beyond_what_a_marker_can_point_over_ends_the_stream(w: World) -> None:
    stream = w.receiver(crc=False, markers=True)
    octets = marked([pattern(65535)[:65535]], crc=False)
    sender = threading.Thread(target=stream.sock.sendall, args=(octets,))
    sender.start()
    with pytest.raises(StreamError):
        until(stream.look)
    sender.join(20)
    assert stream.error == MARKER


def test_missing_markers_end_the_stream(w: World) -> None:
    stream = w.receiver(markers=True)
    assert judged(stream, fpdu(b"no marker") * 4000) in (CRC, MARKER)


def test_markers_go_on_across_a_wrap_of_positions_both_ways() -> None:
    ulpdus = [pattern(n, n) for n in (500, 3000, 20)]
    start = 2**32 - 2048
    with world() as w:
        stream = w.receiver(markers=True)
        lib.siw_mpa_test_set_position(stream.handle, start)
        stream.sock.sendall(marked(ulpdus))
        assert [stream.receive() for _ in ulpdus] == ulpdus
        stream = w.sender(markers=True)
        lib.siw_mpa_test_set_position(stream.handle, start)
        assert send_all(stream, ulpdus) == marked(ulpdus)
    assert unmark(marked(ulpdus))[1][0] == (0, 0)
