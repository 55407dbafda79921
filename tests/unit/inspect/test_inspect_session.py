"""MPA frames from scapy's sniff by TCPSession, and by FPDUSession where TCPSession fails."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import TCP
from scapy.packet import Packet
from scapy.sessions import DefaultSession, TCPSession
from unit.inspect.inspect_harness import (
    CAPTURES,
    A,
    B,
    TCPConversation,
    add_startup_frames,
    frames_by_port,
    frames_from_port,
    make_send_fpdu,
    make_stream_with_markers,
    make_tagged_fpdu,
    sniff_offline,
)

from siwarp.inspect import (
    FPDU,
    MPA,
    FPDUSession,
    MPAReply,
    MPARequest,
    MPAStartup,
    Opcode,
    bind_mpa,
    tcp_streams,
    unbind_mpa,
)

RECORDED = sorted(CAPTURES.glob("*.pcap"))
PORT = 7174


@contextmanager
def temporarily_dissect_port_as_mpa(port: int) -> Iterator[None]:
    bind_mpa(port)
    try:
        yield
    finally:
        unbind_mpa(port)


@pytest.mark.parametrize("session", [TCPSession, FPDUSession])
@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_sniffing_a_recorded_connection_returns_every_frame_of_both_ends(
    file: Path, session: type[DefaultSession]
) -> None:
    with temporarily_dissect_port_as_mpa(PORT):
        packets = sniff_offline(file, session)
    for port, octets in frames_by_port(file).items():
        assert frames_from_port(packets, port) == octets


def test_fpdu_session_needs_no_bound_port_and_leaves_other_traffic_unchanged() -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, make_send_fpdu(1, b"mine")
    )
    other = TCPConversation(("10.9.9.9", 1), ("10.8.8.8", 2), packets=link.packets).add_handshake()
    other.add_data(0, b"GET / HTTP/1.1 and so on").add_data(1, b"200, more than sixteen octets")
    packets = sniff_offline(link.packets, FPDUSession)
    assert [len(p[MPA].frames) for p in packets if MPA in p] == [1, 1, 1]
    payloads = [bytes(p[TCP].payload) for p in packets if TCP in p and MPA not in p]
    assert b"GET / HTTP/1.1 and so on" in payloads
    assert len(packets) == len(link.packets)


@pytest.mark.parametrize("session", [TCPSession, FPDUSession])
@pytest.mark.parametrize("cut", [[1], [2], [3], [21], [44, 1], [1] * 120], ids=str)
def test_fpdus_in_segments_of_any_size_are_returned_once_and_complete(
    session: type[DefaultSession], cut: list[int]
) -> None:
    fpdus = [
        make_send_fpdu(1, b"a" * 20),
        make_send_fpdu(2),
        make_tagged_fpdu(Opcode.RDMA_WRITE, 5, 0, b"b" * 33),
        make_send_fpdu(3),
    ]
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(0, b"".join(fpdus), cut)
    with temporarily_dissect_port_as_mpa(B[1]):
        packets = sniff_offline(link.packets, session)
    assert frames_from_port(packets, A[1])[1:] == fpdus


@pytest.mark.parametrize("session", [TCPSession, FPDUSession])
def test_an_fpdu_in_the_segment_of_the_reply_is_returned(session: type[DefaultSession]) -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, make_send_fpdu(1, b"x")
    )
    reply, first = TCPConversation().add_handshake(), make_send_fpdu(1, b"from the responder")
    link = add_startup_frames(reply)
    packet = link.packets.pop()
    link.next[1] -= len(packet[TCP].payload)
    link.add_data(1, bytes(packet[TCP].payload) + first)
    with temporarily_dissect_port_as_mpa(B[1]):
        found = frames_from_port(sniff_offline(link.packets, session), B[1])
    assert len(found) == 2
    assert found[1] == first


def test_two_connections_with_equal_scapy_keys_are_kept_separate() -> None:
    # TCPSession identifies a connection by the exclusive or of its two addresses and ports.
    packets: list[Packet] = []
    one = TCPConversation(("10.0.0.1", 100), ("10.0.0.2", 200), packets=packets).add_handshake()
    two = TCPConversation(("10.0.0.5", 104), ("10.0.0.6", 196), packets=packets).add_handshake()
    add_startup_frames(one, m=0)
    add_startup_frames(two, m=1)
    plain = [make_send_fpdu(n, bytes([n]) * 600) for n in (1, 2, 3)]
    for fpdu in plain:
        one.add_data(1, fpdu, [300])
    two.add_data(1, make_stream_with_markers(plain), [700])
    for session in (TCPSession, FPDUSession):
        with temporarily_dissect_port_as_mpa(200), temporarily_dissect_port_as_mpa(196):
            found = sniff_offline(packets, session)
        assert frames_from_port(found, 200)[1:] == plain
        assert [f[2:-4] for f in frames_from_port(found, 196)[1:]] == [f[2:-4] for f in plain]


def test_markers_are_removed_regardless_of_segment_boundaries() -> None:
    plain = [
        make_send_fpdu(1),
        make_send_fpdu(2, b"x" * 500),
        make_send_fpdu(3, b"y" * 484),
        *(make_send_fpdu(n) for n in range(4, 20)),
    ]
    plain.append(make_tagged_fpdu(Opcode.RDMA_WRITE, 1, 0, random.Random(1).randbytes(1500)))
    stream = make_stream_with_markers(plain)
    for sizes in ([], [1, 2, 3, 508, 4, 1], [7] * 150):
        link = add_startup_frames(TCPConversation().add_handshake(), reply_m=1).add_data(
            0, stream, sizes
        )
        for session in (TCPSession, FPDUSession):
            with temporarily_dissect_port_as_mpa(B[1]):
                found = frames_from_port(sniff_offline(link.packets, session), A[1])
            assert [f[:-4] for f in found[1:]] == [f[:-4] for f in plain]


def test_fpdu_session_returns_no_frame_twice_and_waits_for_late_segments() -> None:
    fpdus = [make_send_fpdu(n, bytes([n]) * 50) for n in range(1, 30)]
    link = add_startup_frames(TCPConversation(isn=(1 << 32) - 300).add_handshake())
    head = len(link.packets)
    link.add_data(0, b"".join(fpdus), [37] * 60)
    late = link.packets[head:]
    again = [*late, link.make_segment(0, b"".join(fpdus)[:90], seq=(1 << 32) - 300 + 21)]
    random.Random(4).shuffle(again)
    packets = sniff_offline([*link.packets[:head], *again, *late[:9]], FPDUSession)
    assert frames_from_port(packets, A[1])[1:] == fpdus


def test_fpdu_session_treats_reused_ports_as_another_connection() -> None:
    link = (
        add_startup_frames(TCPConversation().add_handshake())
        .add_data(0, make_send_fpdu(1, b"first"))
        .add_fins()
    )
    again = add_startup_frames(TCPConversation(packets=link.packets).add_handshake()).add_data(
        0, make_send_fpdu(1, b"second")
    )
    packets = sniff_offline(again.packets, FPDUSession)
    assert frames_from_port(packets, A[1])[1::2] == [
        make_send_fpdu(1, b"first"),
        make_send_fpdu(1, b"second"),
    ]
    with pytest.raises(ValueError, match="more than one connection"):
        tcp_streams(link.packets)


def test_fpdu_session_does_not_store_octets_after_a_gap_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("siwarp.inspect.session.EARLY_MAX", 100)
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(0, make_send_fpdu(1))
    link.next[0] += 1
    link.add_data(0, make_send_fpdu(2) * 160, [len(make_send_fpdu(2))] * 160)
    packets = sniff_offline(link.packets, FPDUSession)
    assert len(frames_from_port(packets, A[1])) == 2
    assert sum(MPA not in p and len(p[TCP].payload) > 0 for p in packets) > 50


def test_frames_of_fpdu_session_have_their_fields() -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, make_send_fpdu(9, b"hello")
    )
    last = sniff_offline(link.packets, FPDUSession)[-1][MPA].frames[0]
    assert isinstance(last, FPDU)
    assert (last.ulpdu.msn, last.ulpdu.payload.load, last.crc) == (9, b"hello", last.crc_expected())
    assert isinstance(sniff_offline(link.packets, FPDUSession)[3][MPA].frames[0], MPAStartup)


@given(
    octets=st.lists(st.binary(max_size=80), max_size=6),
    begin=st.sampled_from([b"", bytes(MPARequest(m=1)), bytes(MPAReply()), b"MPA ID R"]),
    sizes=st.lists(st.integers(1, 40), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_no_octets_in_any_order_raise_an_exception_in_fpdu_session(
    octets: list[bytes], begin: bytes, sizes: list[int], order: random.Random
) -> None:
    link = TCPConversation().add_handshake()
    for i, piece in enumerate([begin, *octets]):
        link.add_data(i % 2, piece, sizes)
    order.shuffle(link.packets)
    session = FPDUSession()
    given_back = [session.process(packet) for packet in link.packets]
    assert len(given_back) == len(link.packets)
    for packet in given_back:
        assert packet is None or MPA not in packet or packet[MPA].frames
