"""Boundary values in every field of MPA's start-up frames, sent to siwarp in both roles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from harness.rc_harness import End, create_plain_listener
from harness.verbs_harness import wait_until
from hostile.fields import (
    all_packet_layer_classes,
    boundary_values,
    find_field_of_layer_class,
    list_numeric_fields_of_layers,
)
from hostile.peer import RawPeer, connect_raw_peer
from hostile.target import Target, count_open_files
from scapy.packet import Packet

from siwarp.cm import CMID, CMEvent, CMEventType
from siwarp.inspect import MPAReply, MPARequest

MAX_PDATA = 512
PDATA = b"private!"
LLP_BAD_FRAME, LLP_NO_RTR, LLP_NO_IRD = 0x020004, 0x020007, 0x020006


@pytest.fixture(name="target", scope="module")
def rc_target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


def frames_with_boundary_values(frame: Packet, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the frame with each boundary value in this field, as octets of the same length."""
    layer = type(frame).__name__
    sound = bytes(frame)
    # Some fields exist only with S set or in revision 2, so the value is written into the octets.
    at = dict(
        zip(("m", "c", "r", "s", "res"), ((0, 1), (1, 1), (2, 1), (3, 1), (4, 4)), strict=True)
    )
    for value in boundary_values(
        find_field_of_layer_class(layer, name), int(type(frame)(sound).getfieldval(name))
    ):
        octets = bytearray(sound)
        if name in at:
            first, n = at[name]
            shift = 8 - first - n
            octets[16] = octets[16] & ~(((1 << n) - 1) << shift) | value << shift
        else:
            one = frame.copy()
            one.setfieldval(name, value)
            octets[17:] = bytes(one)[17:]
        yield value, bytes(octets)


def check_target_unharmed(target: Target, files: int) -> None:
    wait_until(lambda: target.good.scq.poll(1) == [] and count_open_files() <= files)
    target.check_memory_and_good_peer_unharmed()


# ---- Requests


def build_valid_mpa_request() -> MPARequest:
    return MPARequest(rev=2, c=1, s=1, ird=4, ord=4, private_data=PDATA)


def expected_request_outcome(octets: bytes) -> str:
    """Return ``request``, ``rejected``, ``closed`` or ``waits``, as RFC 5044 section 7.1.1 and RFC
    6581 require.
    """
    rev, length = octets[17], int.from_bytes(octets[18:20], "big")
    if octets[:16] != b"MPA ID Req Frame" or length > MAX_PDATA:
        return "closed"
    if len(octets) < 20 + length:
        return "waits"
    if rev == 0:
        return "rejected"
    if rev > 2:
        return "closed"
    return "closed" if rev == 2 and octets[16] & 0x10 and length < 4 else "request"


def check_event_matches_request_frame(event: CMEvent, octets: bytes) -> None:
    """Assert that the event reports exactly the contents of the frame."""
    length = int.from_bytes(octets[18:20], "big")
    frame = MPARequest(octets[: 20 + length])
    enhanced = bool(frame.rev == 2 and frame.s)
    assert (event.rev, event.crc, event.markers) == (frame.rev, bool(frame.c), bool(frame.m))
    assert event.private_data == octets[24 if enhanced else 20 : 20 + length]
    depths = (frame.ird, frame.ord) if enhanced else (None, None)
    assert (event.peer_ird, event.peer_ord) == depths


def send_and_check_request(target: Target, octets: bytes, what: str) -> None:
    files = count_open_files()
    verdict = expected_request_outcome(octets)
    peer = connect_raw_peer(target.connector.address)
    try:
        peer.send(octets)
        if verdict == "request":
            event = target.connector.next_connection_request()
            check_event_matches_request_frame(event, octets)
            event.id.reject()
            assert peer.read_reply().r
            event.id.close()
        elif verdict == "rejected":
            assert MPAReply(peer.read_until_end()).r
        elif verdict == "closed":
            assert peer.read_until_end() == b""
        else:
            peer.sock.shutdown(1)
            assert peer.read_until_end() == b""
        assert target.connector.p_channel.get_event(0) is None
    except AssertionError as e:
        raise AssertionError(f"{what}: {verdict}, but {e}\n{octets.hex()}") from e
    peer.close()
    check_target_unharmed(target, files)


@pytest.mark.parametrize("name", [n for _, n in list_numeric_fields_of_layers("MPARequest")])
def test_boundary_values_in_each_field_of_an_mpa_request_have_the_expected_outcome(
    target: Target, name: str
) -> None:
    for value, octets in frames_with_boundary_values(build_valid_mpa_request(), name):
        send_and_check_request(target, octets, f"{name}={value:#x}")


def test_an_mpa_request_with_any_wrong_octet_in_its_key_closes_the_connection(
    target: Target,
) -> None:
    sound = bytes(build_valid_mpa_request())
    for i in range(16):
        for value in (0, 1, 0xFF, 0xFE, sound[i] ^ 1):
            octets = bytearray(sound)
            octets[i] = value
            send_and_check_request(target, bytes(octets), f"octet {i} of the key is {value:#x}")


@pytest.mark.parametrize("rev", [1, 2])
@pytest.mark.parametrize("n", [0, 1, 3, 4, 507, 508, 509, 511, 512, 513])
def test_mpa_requests_with_private_data_near_its_limits_have_the_expected_outcome(
    target: Target, rev: int, n: int
) -> None:
    frame = MPARequest(rev=rev, s=rev - 1, private_data=bytes(n))
    send_and_check_request(target, bytes(frame), f"{n} octets of private data in revision {rev}")


def test_an_mpa_request_truncated_at_any_octet_is_not_answered(target: Target) -> None:
    sound = bytes(build_valid_mpa_request())
    for n in range(len(sound)):
        files = count_open_files()
        peer = connect_raw_peer(target.connector.address)
        peer.send(sound[:n])
        peer.sock.shutdown(1)
        assert peer.read_until_end() == b"", n
        peer.close()
        check_target_unharmed(target, files)


# ---- Replies


def build_valid_reply() -> MPAReply:
    return MPAReply(rev=2, c=1, s=1, ird=4, ord=4, private_data=PDATA)


def expected_reply_event(octets: bytes, max_ird: int) -> CMEventType | None:
    """Return the event at an initiator of revision 2 without peer-to-peer mode, or ``None`` if the
    initiator waits for more octets.
    """
    if len(octets) < 20:
        return None
    rev, length = octets[17], int.from_bytes(octets[18:20], "big")
    bad = CMEventType.CONNECT_ERROR
    if octets[:16] != b"MPA ID Rep Frame" or length > MAX_PDATA:
        return bad
    if len(octets) < 20 + length:
        return None
    enhanced = bool(rev >= 2 and octets[16] & 0x10)
    if enhanced and length < 4:
        return bad
    if octets[16] & 0x20:
        return CMEventType.REJECTED
    if rev != 2 or not enhanced:
        return bad
    ird, ord_ = int.from_bytes(octets[20:22], "big"), int.from_bytes(octets[22:24], "big")
    if ird & 0x8000:
        # The Reply requests peer-to-peer mode, which the initiator did not request.
        return bad
    ord_ &= 0x3FFF
    return bad if ord_ != 0x3FFF and ord_ > max_ird else CMEventType.ESTABLISHED


def send_mpa_reply_and_check_event(target: Target, octets: bytes, what: str) -> None:
    files = count_open_files()
    verdict = expected_reply_event(octets, target.rig.ctx.query_device().max_qp_rd_atom)
    listener = create_plain_listener()
    end = End(target.rig, CMID(target.connector.a_channel), target.connector.a_channel)
    end.id.connect(listener.getsockname())
    peer = RawPeer(listener.accept()[0])
    peer.read_exactly(24)
    try:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            peer.send(octets)
        if verdict is None:
            peer.sock.shutdown(1)
            verdict = CMEventType.CONNECT_ERROR
        event = end.next_cm_event()
        assert event.type == verdict
        if verdict == CMEventType.ESTABLISHED:
            length = int.from_bytes(octets[18:20], "big")
            assert event.private_data == octets[24 : 20 + length]
    except AssertionError as e:
        raise AssertionError(f"{what}: {verdict}, but {e}\n{octets.hex()}") from e
    peer.close()
    listener.close()
    if verdict == CMEventType.ESTABLISHED:
        end.wait_for_error_state()
    end.close()
    for q in (end.scq, end.rcq, end.events):
        q.close()
    check_target_unharmed(target, files)


@pytest.mark.parametrize("name", [n for _, n in list_numeric_fields_of_layers("MPAReply")])
def test_boundary_values_in_each_field_of_an_mpa_reply_have_the_expected_outcome(
    target: Target, name: str
) -> None:
    for value, octets in frames_with_boundary_values(build_valid_reply(), name):
        send_mpa_reply_and_check_event(target, octets, f"{name}={value:#x}")


def test_an_mpa_reply_with_any_wrong_octet_in_its_key_fails_the_connection(target: Target) -> None:
    sound = bytes(build_valid_reply())
    for i in range(16):
        for value in (0, 0xFF, sound[i] ^ 1):
            octets = bytearray(sound)
            octets[i] = value
            send_mpa_reply_and_check_event(
                target, bytes(octets), f"octet {i} of the key is {value:#x}"
            )


def test_an_mpa_reply_truncated_at_any_octet_fails_the_connection(target: Target) -> None:
    sound = bytes(build_valid_reply())
    for n in range(len(sound)):
        send_mpa_reply_and_check_event(target, sound[:n], f"{n} octets")


def test_only_the_key_and_the_private_data_of_mpa_frames_are_not_numeric() -> None:
    for name in ("MPARequest", "MPAReply"):
        others = {f.name for f in all_packet_layer_classes()[name].fields_desc} - {
            n for _, n in list_numeric_fields_of_layers(name)
        }
        assert others == {"key", "private_data"}
