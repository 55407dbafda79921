"""RFC 5044 section 4.4: when the CRC is present, and which errors it detects."""

from __future__ import annotations

import errno

import pytest
from _siwarp_layers import lib
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MPA_TYPE,
    MpaPoller,
    build_fpdu,
    crc32c,
    errno_of_first_failed_call,
    make_mpa_params,
    octet_pattern,
    recv_exactly,
    recv_startup_frame,
    split_fpdus,
)

from siwarp.inspect import MPAReply, MPARequest

SMALL = build_fpdu(octet_pattern(37))
LARGE = build_fpdu(octet_pattern(20_000))


@pytest.mark.clause("RFC5044-4.4-10")
@pytest.mark.parametrize(
    ("payload", "digest"),
    [(bytes(32), "aa36918a"), (b"\xff" * 32, "43aba862"), (bytes(range(32)), "4e79dd46")],
)
def test_the_crc32c_function_of_the_tests_computes_the_digests_of_iscsi(
    payload: bytes, digest: str
) -> None:
    assert crc32c(payload).to_bytes(4, "little").hex() == digest


@pytest.mark.clause("RFC5044-4.4-10")
@pytest.mark.parametrize("size", [*range(70), 255, 256, 300, 2048, 2049, 30_000])
def test_the_crc_covers_length_ulpdu_and_pad_in_the_octet_order_of_iscsi(
    layer_poller: MpaPoller, size: int
) -> None:
    stream = layer_poller.create_sender()
    assert stream.frame_fpdu(octet_pattern(size)[:18], [octet_pattern(size)[18:]]) == 1
    stream.flush()
    octets = recv_exactly(stream.sock, len(build_fpdu(octet_pattern(size))))
    assert split_fpdus(octets) == [octet_pattern(size)]


@pytest.mark.clause("RFC5044-4.4-12#b", "RFC5044-4.4-13", "RFC5044-8-01#b")
@pytest.mark.parametrize("at", range(2, len(SMALL)))
def test_a_small_fpdu_with_any_wrong_octet_is_not_passed_on(
    layer_poller: MpaPoller, at: int
) -> None:
    octets = bytearray(SMALL)
    octets[at] ^= 1 << at % 8
    stream = layer_poller.create_receiver()
    stream.sock.sendall(octets)
    assert errno_of_first_failed_call(stream.peek_fpdu) == errno.EBADMSG
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CRC)


@pytest.mark.clause("RFC5044-4.4-12#b", "RFC5044-4.4-13")
@pytest.mark.parametrize("octets", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("bit", range(16))
def test_a_wrong_ulpdu_length_is_detected_by_the_crc(
    layer_poller: MpaPoller, octets: bytes, bit: int
) -> None:
    wrong = bytearray(octets) + bytes(70_000)
    wrong[bit // 8] ^= 0x80 >> bit % 8
    stream = layer_poller.create_receiver()
    stream.sock.sendall(wrong)
    assert errno_of_first_failed_call(lambda: stream.receive_ulpdu() and None) == errno.EBADMSG


@pytest.mark.clause("RFC5044-4.4-12#b", "RFC5044-4.4-13")
@pytest.mark.parametrize(
    "at", [2, 15, 16, 65, 66, 4095, 8191, 8192, 19_999, 20_001, 20_004, 20_007]
)
@pytest.mark.fast_path
def test_a_wrong_octet_in_a_large_fpdu_is_detected(layer_poller: MpaPoller, at: int) -> None:
    octets = bytearray(LARGE)
    octets[at] ^= 0x10
    stream = layer_poller.create_receiver()
    # After the first 66 octets, the rest of the FPDU is read directly to its destination.
    stream.sock.sendall(octets[:66])
    seen = None
    while seen is None:
        seen = stream.peek_fpdu()
    stream.sock.sendall(octets[66:])
    assert errno_of_first_failed_call(lambda: stream.receive_ulpdu() and None) == errno.EBADMSG
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CRC)


@pytest.mark.clause("RFC5044-4.4-06", "RFC5044-7.1.1-11")
@pytest.mark.parametrize(("ours", "theirs"), [(0, 1), (1, 0), (1, 1)])
def test_a_request_for_crcs_by_either_end_enables_crcs_for_both_ends(
    layer_poller: MpaPoller, ours: int, theirs: int
) -> None:
    initiator = layer_poller.create_initiator_awaiting_reply(make_mpa_params(crc=ours))
    assert recv_startup_frame(initiator.sock).c == ours
    initiator.sock.sendall(bytes(MPAReply(rev=2, c=theirs)))
    initiator.complete_startup()
    responder, _ = layer_poller.create_responder_with_request(MPARequest(rev=2, c=theirs))
    responder.send_reply(make_mpa_params(crc=ours))
    assert recv_startup_frame(responder.sock).c == ours
    responder.sock.sendall(build_fpdu(b"first"))
    assert responder.receive_ulpdu(0) == b"first"
    for stream in (initiator, responder):
        assert lib.siw_mpa_is_crc_on(stream.handle)
        for _ in range(50):
            stream.frame_fpdu(b"generated")
            stream.flush()
            assert split_fpdus(recv_exactly(stream.sock, 16)) == [b"generated"]
            stream.sock.sendall(build_fpdu(b"checked"))
            assert stream.receive_ulpdu(0) == b"checked"
        stream.sock.sendall(build_fpdu(b"wrong", crc=0))
        assert errno_of_first_failed_call(stream.peek_fpdu) == errno.EBADMSG


@pytest.mark.clause("RFC5044-4.4-07", "RFC5044-7.1.1-10", "RFC5044-7.1.1-12")
def test_crcs_are_disabled_from_the_first_fpdu_if_neither_end_requests_them(
    layer_poller: MpaPoller,
) -> None:
    initiator, _ = layer_poller.create_initiator_with_reply(
        make_mpa_params(crc=0), bytes(MPAReply(rev=2, c=0)) + build_fpdu(b"any", crc=5)
    )
    responder, _ = layer_poller.create_responder_with_request(MPARequest(rev=2, c=0))
    responder.send_reply(make_mpa_params(crc=0))
    responder.sock.sendall(build_fpdu(b"any", crc=5))
    for stream in (initiator, responder):
        assert not lib.siw_mpa_is_crc_on(stream.handle)
        assert stream.receive_ulpdu(0) == b"any"


@pytest.mark.parametrize("sizes", [[0], [1, 20, 3], [20_000], [64_768]], ids=str)
@pytest.mark.clause("RFC5044-4.4-12#a")
def test_only_a_crc_over_the_octets_that_the_rfc_names_is_accepted(
    layer_poller: MpaPoller, sizes: list[int]
) -> None:
    """The test computes octets and CRCs itself, over the range from the length field to the pad."""
    stream = layer_poller.create_receiver()
    for size in sizes:
        body = size.to_bytes(2, "big") + octet_pattern(size) + bytes(-(2 + size) % 4)
        stream.sock.sendall(body + crc32c(body).to_bytes(4, "little"))
        assert stream.receive_ulpdu() == octet_pattern(size)
    for covered in (slice(2, None), slice(0, -4), slice(4, None)):
        other = layer_poller.create_receiver()
        other.sock.sendall(body + crc32c(body[covered]).to_bytes(4, "little"))
        assert (
            errno_of_first_failed_call(lambda s=other: s.receive_ulpdu() and None) == errno.EBADMSG
        )
