"""Recorded traffic of Linux siw, sent to the receive path by a plain socket."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path

import pytest
from _siwarp_layers import lib
from scapy.utils import rdpcap
from unit.mpa.mpa_harness import MpaPoller, make_enhanced_mpa_params, recv_startup_frame

from siwarp.inspect import split_stream, tcp_streams

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
RPING_PORT = 7174
ALL = ["siw-rping.pcap", "siw-rping-crc.pcap", "siw-rping-p2p.pcap"]


@cache
def client_and_server_octets(name: str) -> tuple[bytes, bytes]:
    """Return the octets that the client and the server of a recording sent."""
    streams = tcp_streams(rdpcap(str(CAPTURES / name)))
    client = next(d for d in streams if d.dest_port == RPING_PORT)
    return streams[client], streams[client.reverse()]


def split_ulpdus(octets: bytes) -> list[bytes]:
    return [bytes(f)[2 : 2 + f.ulpdu_length] for f in split_stream(octets).fpdus]


def start_sending_octets(stream, octets: bytes, step: int) -> threading.Thread:  # type: ignore[no-untyped-def]
    def send_in_chunks() -> None:
        for at in range(0, len(octets), step):
            stream.sock.sendall(octets[at : at + step])

    thread = threading.Thread(target=send_in_chunks)
    thread.start()
    return thread


@pytest.mark.parametrize("step", [97, 1448, 65536])
@pytest.mark.parametrize("name", ALL)
def test_recorded_fpdus_of_a_linux_siw_client_are_received(
    layer_poller: MpaPoller, name: str, step: int
) -> None:
    octets, server = client_and_server_octets(name)
    startup = split_stream(octets).startup
    assert startup is not None
    stream, peer = layer_poller.create_responder_with_request(bytes(startup))
    reply = split_stream(server).startup
    assert reply is not None
    assert (peer.ird, peer.ord, peer.p2p) == (startup.ird, startup.ord, startup.a)
    stream.send_reply(
        make_enhanced_mpa_params(crc=reply.c, ird=reply.ird, ord=reply.ord, rtr=peer.rtr)
    )
    assert lib.siw_mpa_is_crc_on(stream.handle) == bool(startup.c or reply.c)
    thread = start_sending_octets(stream, octets[len(bytes(startup)) :], step)
    for want in split_ulpdus(octets):
        assert stream.receive_ulpdu() == want
    thread.join()
    assert stream.peek_fpdu() is None


@pytest.mark.parametrize("step", [97, 1448, 65536])
@pytest.mark.parametrize("name", ALL)
def test_recorded_fpdus_of_a_linux_siw_server_are_received(
    layer_poller: MpaPoller, name: str, step: int
) -> None:
    client, octets = client_and_server_octets(name)
    request, reply = split_stream(client).startup, split_stream(octets).startup
    assert request is not None
    assert reply is not None
    rtr = request.b | request.c_rtr << 1 | request.d_rtr << 2 if request.a else 0
    stream = layer_poller.create_initiator_awaiting_reply(
        make_enhanced_mpa_params(
            crc=request.c, ird=request.ird, ord=request.ord, p2p=request.a, rtr=rtr
        )
    )
    assert (
        bytes(recv_startup_frame(stream.sock))[:24]
        == bytes(request)[:18] + b"\0\4" + bytes(request)[20:24]
    )
    thread = start_sending_octets(stream, octets, step)
    code, peer = stream.complete_startup()
    assert code == lib.SIW_MPA_REPLY
    assert (peer.ird, peer.ord) == (reply.ird, reply.ord)
    for want in split_ulpdus(octets):
        assert stream.receive_ulpdu() == want
    thread.join()
    assert stream.peek_fpdu() is None
