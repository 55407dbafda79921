"""MPA start-up over a TCP connection: split frames, closed connections, and parameters."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import sys
import termios
import time
from functools import partial
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from harness.heap_harness import heap_octets_in_use
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MPA_TYPE,
    MpaPoller,
    Stream,
    StreamError,
    build_fpdu,
    duplicate_socket_of_stream,
    make_enhanced_mpa_params,
    make_mpa_params,
    octet_pattern,
    open_mpa_poller,
    private_data_of,
    recv_exactly,
    recv_startup_frame,
    recv_to_end,
    set_small_send_buffer,
    split_fpdus,
    wait_until,
)

from siwarp.inspect import MPAReply, MPARequest

#: Octets that siwarp reads from a peer that does not wait for the MPA Reply.
EARLY = 4096
REQUEST = bytes(MPARequest(rev=2, c=1, s=1, a=1, b=1, c_rtr=1, ird=9, ord=7, private_data=b"hello"))
REPLY = bytes(MPAReply(rev=2, c=0, s=1, a=1, c_rtr=1, ird=7, ord=9, private_data=b"welcome"))


@pytest.mark.parametrize("at", range(1, len(REQUEST)))
def test_an_mpa_request_split_at_any_octet_is_parsed(layer_poller: MpaPoller, at: int) -> None:
    stream = layer_poller.create_responder()
    stream.sock.sendall(REQUEST[:at])
    for _ in range(3):
        assert stream.continue_startup()[0] == lib.SIW_MPA_STARTING
    stream.sock.sendall(REQUEST[at:])
    code, peer = stream.complete_startup()
    assert code == lib.SIW_MPA_REQUEST
    assert (peer.rev, peer.crc, peer.p2p, peer.ird, peer.ord) == (2, 1, 1, 9, 7)
    assert peer.rtr == lib.SIW_MPA_RTR_FPDU | lib.SIW_MPA_RTR_WRITE
    assert private_data_of(peer) == b"hello"


@pytest.mark.parametrize("at", range(1, len(REPLY)))
def test_an_mpa_reply_split_at_any_octet_is_parsed(layer_poller: MpaPoller, at: int) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(
        make_enhanced_mpa_params(p2p=1, rtr=lib.SIW_MPA_RTR_WRITE)
    )
    recv_startup_frame(stream.sock)
    stream.sock.sendall(REPLY[:at])
    for _ in range(3):
        assert stream.continue_startup()[0] == lib.SIW_MPA_STARTING
    stream.sock.sendall(REPLY[at:])
    code, peer = stream.complete_startup()
    assert code == lib.SIW_MPA_REPLY
    assert (peer.rev, peer.p2p, peer.rtr) == (2, 1, lib.SIW_MPA_RTR_WRITE)
    assert (peer.ird, peer.ord) == (7, 9)
    assert private_data_of(peer) == b"welcome"


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 507, 508, 509, 511, 512])
@pytest.mark.parametrize("rev", [1, 2])
def test_private_data_of_each_legal_length_arrives_in_both_directions(
    layer_poller: MpaPoller, rev: int, length: int
) -> None:
    there, back = bytes(i % 251 for i in range(length)), bytes(i % 241 for i in range(length))
    stream, peer = layer_poller.create_responder_with_request(
        MPARequest(rev=rev, private_data=there)
    )
    assert private_data_of(peer) == there
    stream.send_reply(make_mpa_params(rev=rev, pdata=back))
    assert recv_startup_frame(stream.sock).private_data == back
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params(rev=rev, pdata=there))
    assert recv_startup_frame(stream.sock).private_data == there
    stream.sock.sendall(bytes(MPAReply(rev=rev, private_data=back)))
    code, peer = stream.complete_startup()
    assert code == lib.SIW_MPA_REPLY
    assert private_data_of(peer) == back


@pytest.mark.parametrize(
    "p",
    [
        make_mpa_params(rev=0),
        make_mpa_params(rev=3),
        make_mpa_params(rejected=1),
        make_mpa_params(pdata_len=513),
        make_enhanced_mpa_params(rev=1),
        make_enhanced_mpa_params(ird=0x4000),
        make_enhanced_mpa_params(ord=0x4000),
        make_enhanced_mpa_params(p2p=1, rtr=0),
        make_enhanced_mpa_params(p2p=1, rtr=8),
        make_enhanced_mpa_params(p2p=0, rtr=1),
        make_mpa_params(p2p=1),
        make_mpa_params(rtr=1),
    ],
    ids=lambda p: repr(bytes(ffi.buffer(p))[:8]),
)
def test_invalid_parameters_of_an_mpa_request_are_refused_before_anything_is_sent(
    layer_poller: MpaPoller, p: Any
) -> None:
    with pytest.raises(StreamError) as e:
        layer_poller.create_initiator(p)
    assert e.value.errno == errno.EINVAL


def test_an_enhanced_mpa_request_has_at_most_508_octets_of_private_data(
    layer_poller: MpaPoller,
) -> None:
    p = make_enhanced_mpa_params(pdata=bytes(508))
    assert recv_startup_frame(layer_poller.create_initiator_awaiting_reply(p).sock).pd_length == 512
    p.pdata_len = 509
    with pytest.raises(StreamError) as e:
        layer_poller.create_initiator(p)
    assert e.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    "p", [make_mpa_params(), make_mpa_params(pdata_len=513), make_mpa_params(rtr=1, p2p=1)]
)
def test_an_mpa_reply_is_sent_once_and_only_with_valid_parameters(
    layer_poller: MpaPoller, p: Any
) -> None:
    stream, _ = layer_poller.create_responder_with_request(
        MPARequest(rev=2, s=1, a=1, b=1, ird=1, ord=1)
    )
    if p.rtr == 0:
        with pytest.raises(StreamError) as e:
            stream.send_reply(p)
        assert e.value.errno == errno.EINVAL
        p = make_mpa_params(rtr=1)
    stream.send_reply(p)
    assert recv_startup_frame(stream.sock).b == 1
    with pytest.raises(StreamError) as e:
        stream.send_reply(p)
    assert e.value.errno == errno.EINVAL


def test_connecting_to_a_port_without_a_listener_fails_with_econnrefused(
    layer_poller: MpaPoller,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        out = ffi.new("struct siw_mpa_stream **")
        dest = layer_poller.make_siw_addr(free.getsockname()[1])
        assert (
            lib.siw_mpa_connect(
                layer_poller.poller, dest, ffi.NULL, make_mpa_params(), ffi.NULL, out
            )
            == 0
        )
        peer = ffi.new("struct siw_mpa_params *")
        rv = wait_until(lambda: lib.siw_mpa_startup(out[0], peer))
        assert rv == -errno.ECONNREFUSED
        assert lib.siw_mpa_startup(out[0], peer) == rv
        lib.siw_mpa_close(out[0], False)


@pytest.mark.parametrize("sent", [0, 1, 16, 19, 20, 24, len(REQUEST) - 1])
def test_a_peer_that_closes_within_its_mpa_request_is_reported_as_econnreset(
    layer_poller: MpaPoller, sent: int
) -> None:
    stream = layer_poller.create_responder()
    stream.sock.sendall(REQUEST[:sent])
    stream.sock.close()
    with pytest.raises(StreamError) as e:
        stream.complete_startup()
    assert e.value.errno == errno.ECONNRESET
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CLOSED)


def test_a_disconnect_while_the_mpa_request_is_pending_is_reported(layer_poller: MpaPoller) -> None:
    stream, _ = layer_poller.create_responder_with_request(REQUEST)
    assert stream.continue_startup()[0] == lib.SIW_MPA_STARTING
    stream.sock.close()
    with pytest.raises(StreamError) as e:
        stream.complete_startup()
    assert e.value.errno == errno.ECONNRESET
    with pytest.raises(StreamError) as e:
        stream.send_reply(make_mpa_params(rtr=1))
    assert e.value.errno == errno.ECONNRESET


@pytest.mark.clause("RFC5044-7.1-01")
def test_fpdus_that_arrived_with_the_mpa_request_are_received_after_the_reply(
    layer_poller: MpaPoller,
) -> None:
    stream, _ = layer_poller.create_responder_with_request(
        bytes(MPARequest(rev=2)) + build_fpdu(b"early") + build_fpdu(b"bird")
    )
    wait_until(lambda: stream.continue_startup() and time.sleep(0.001) is None)
    stream.send_reply(make_mpa_params())
    assert stream.receive_ulpdu(0) == b"early"
    assert stream.receive_ulpdu(0) == b"bird"


def unread_octet_count(sock: socket.socket) -> int:
    """Return how many octets TCP has received that the stream has not read."""
    octets = fcntl.ioctl(sock, termios.FIONREAD, bytes(4))
    return int.from_bytes(octets, sys.byteorder)


@pytest.mark.clause("RFC5044-7.1.2-06#c", "RFC5044-7.1.2-11")
@pytest.mark.parametrize("piecemeal", [False, True])
def test_up_to_4_kib_that_arrive_before_the_mpa_reply_are_read_and_kept(
    layer_poller: MpaPoller, piecemeal: bool
) -> None:
    ulpdus = [octet_pattern(1000, i) for i in range(20)]
    octets = b"".join(build_fpdu(ulpdu) for ulpdu in ulpdus)
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=2))
    handlers = ffi.new("struct siw_io_handler *[]", 8)
    with duplicate_socket_of_stream(stream.sock) as ours:
        if piecemeal:
            stream.sock.sendall(octets[:3000])
            wait_until(lambda: stream.continue_startup() and unread_octet_count(ours) == 0)
        stream.sock.sendall(octets[3000 if piecemeal else 0 :])
        wait_until(
            lambda: stream.continue_startup() and unread_octet_count(ours) == len(octets) - EARLY
        )
        for _ in range(10):
            assert stream.continue_startup()[0] == lib.SIW_MPA_STARTING
        assert unread_octet_count(ours) == len(octets) - EARLY
        # A full socket of a peer that waits for the MPA Reply must not keep the poller busy.
        wait_until(lambda: lib.siw_llp_poller_poll(layer_poller.poller, handlers, 8) == 0)
        assert [lib.siw_llp_poller_poll(layer_poller.poller, handlers, 8) for _ in range(100)] == [
            0
        ] * 100
    stream.send_reply(make_mpa_params())
    for ulpdu in ulpdus:
        assert stream.receive_ulpdu(0) == ulpdu


@pytest.mark.clause("RFC5044-7.1-01")
def test_fpdus_that_arrived_with_the_mpa_reply_are_received(layer_poller: MpaPoller) -> None:
    stream, _ = layer_poller.create_initiator_with_reply(
        make_mpa_params(), bytes(MPAReply(rev=2)) + build_fpdu(b"early") + build_fpdu(b"bird")
    )
    assert stream.receive_ulpdu(0) == b"early"
    assert stream.receive_ulpdu(0) == b"bird"


def test_a_rejecting_mpa_reply_delivers_its_private_data_and_ends_the_stream(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params())
    stream.sock.sendall(bytes(MPAReply(rev=2, r=1, private_data=b"not today")))
    code, peer = stream.complete_startup()
    assert code == lib.SIW_MPA_REJECTED
    assert private_data_of(peer) == b"not today"
    assert stream.state == lib.SIW_MPA_ST_REJECTED
    for step in (stream.peek_fpdu, stream.continue_startup, lambda: stream.frame_fpdu(b"no")):
        with pytest.raises(StreamError) as e:
            step()
        assert e.value.errno == errno.ENOTCONN


def test_a_sent_rejection_has_private_data_and_is_followed_by_the_end_of_stream(
    layer_poller: MpaPoller,
) -> None:
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=1))
    stream.send_reply(make_mpa_params(rejected=1, pdata=b"not today"))
    assert stream.state == lib.SIW_MPA_ST_REJECTED
    stream.close()
    reply = MPAReply(recv_to_end(stream.sock))
    assert (reply.r, reply.private_data) == (1, b"not today")


def test_siw_mpa_addrs_returns_the_addresses_of_the_tcp_socket(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_responder()
    local, peer = ffi.new("struct siw_addr *"), ffi.new("struct siw_addr *")
    assert lib.siw_mpa_addrs(stream.handle, local, peer) == 0
    assert socket.ntohs(peer.port_be) == stream.sock.getsockname()[1]
    assert socket.ntohs(local.port_be) == stream.sock.getpeername()[1]


@pytest.mark.fast_path
def test_an_idle_stream_holds_no_buffers_after_start_up_and_after_traffic(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_sender()

    def allocated_buffer_octets() -> int:
        return int(lib.siw_mpa_memory_octets_for_tests(stream.handle))

    assert allocated_buffer_octets() == 0
    assert stream.peek_fpdu() is None
    for _ in range(3):
        stream.sock.sendall(build_fpdu(b"x"))
        assert stream.receive_ulpdu(0) == b"x"
        assert 0 < allocated_buffer_octets() <= 131072
        assert stream.peek_fpdu() is None  # the stream has no buffered octets any more
        assert allocated_buffer_octets() == 0
        assert stream.frame_fpdu(b"y") > 0
        assert allocated_buffer_octets() > 262144
        stream.flush()
        assert allocated_buffer_octets() == 0


@pytest.mark.skipif("SANITIZER" in os.environ, reason="its malloc is another one")
def test_buffers_shared_by_streams_are_freed_with_the_last_stream(layer_poller: MpaPoller) -> None:
    streams = [layer_poller.create_sender() for _ in range(2)]
    for stream in streams:
        assert stream.frame_fpdu(b"y") > 0
    for stream in streams:
        stream.flush()
    # Both streams are idle, and the next stream that sends would use one of the two blocks.
    shared = 2 * 262144
    before = heap_octets_in_use()
    streams[0].close()
    assert before - heap_octets_in_use() < shared
    streams[1].close()
    assert before - heap_octets_in_use() > shared


def holds_partial_fpdu(stream: Stream) -> bool:
    return stream.peek_fpdu() is None and lib.siw_mpa_memory_octets_for_tests(stream.handle) > 0


def test_a_partly_received_fpdu_is_kept_while_other_streams_are_used_and_closed(
    layer_poller: MpaPoller,
) -> None:
    stream, others = (
        layer_poller.create_receiver(),
        [layer_poller.create_receiver() for _ in range(20)],
    )
    octets = build_fpdu(octet_pattern(1000))
    stream.sock.sendall(octets[:500])
    wait_until(partial(holds_partial_fpdu, stream))
    # the streams have more staging buffers at the same time than the free list keeps
    for i, other in enumerate(others):
        other.sock.sendall(build_fpdu(octet_pattern(1000, i)) + b"\0")
    for i, other in enumerate(others):
        assert other.receive_ulpdu(0) == octet_pattern(1000, i)
        wait_until(partial(holds_partial_fpdu, other))
    for other in others:
        other.close()
    stream.sock.sendall(octets[500:])
    assert stream.receive_ulpdu(0) == octet_pattern(1000)


def test_framing_and_receiving_fpdus_is_refused_before_start_up_has_ended(
    layer_poller: MpaPoller,
) -> None:
    for stream, why in (
        (layer_poller.create_responder(), errno.EINVAL),
        (layer_poller.create_initiator(make_mpa_params()), errno.EINVAL),
    ):
        with pytest.raises(StreamError) as e:
            stream.peek_fpdu()
        assert e.value.errno == why
        with pytest.raises(StreamError) as e:
            stream.frame_fpdu(b"too soon")
        assert e.value.errno == errno.ENOTCONN


def fill_socket_send_buffer(stream: Stream) -> int:
    """Fill the send buffer of the stream's own socket with octets that the peer reads first.

    The buffer counts as full once it stays full: a window smaller than a segment is used only by
    TCP's first probe, 0.2 s later, which frees space again.
    """
    sent, lasting = 0, 0.5
    set_small_send_buffer(stream.sock)
    with duplicate_socket_of_stream(stream.sock) as ours:
        quiet = time.monotonic() + lasting
        while time.monotonic() < quiet:
            try:
                sent += ours.send(b"\x5a" * 1024, socket.MSG_DONTWAIT)
                quiet = time.monotonic() + lasting
            except BlockingIOError:
                time.sleep(0.001)
    return sent


def test_an_mpa_reply_that_does_not_fit_into_tcps_buffer_is_sent_later(
    layer_poller: MpaPoller,
) -> None:
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=2))
    before = fill_socket_send_buffer(stream)
    stream.send_reply(make_mpa_params(pdata=b"late"))
    assert stream.state == lib.SIW_MPA_ST_ACCEPTING
    stream.sock.sendall(build_fpdu(b"eager"))
    assert stream.receive_ulpdu() == b"eager"
    assert stream.frame_fpdu(b"after the Reply") == 1
    for _ in range(3):
        assert stream.flush_once() == 0
    assert stream.state == lib.SIW_MPA_ST_ACCEPTING
    recv_exactly(stream.sock, before)
    wait_until(lambda: stream.peek_fpdu() is None and stream.state == lib.SIW_MPA_ST_FULL)
    stream.flush()
    assert recv_startup_frame(stream.sock).private_data == b"late"
    assert split_fpdus(recv_exactly(stream.sock, 24)) == [b"after the Reply"]


@pytest.mark.parametrize("rejected", [0, 1])
def test_a_shutdown_waits_for_an_mpa_reply_that_tcp_has_not_accepted(
    layer_poller: MpaPoller, rejected: int
) -> None:
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=2))
    before = fill_socket_send_buffer(stream)
    stream.send_reply(make_mpa_params(rejected=rejected, pdata=b"late"))
    assert lib.siw_mpa_shutdown(stream.handle) == 0
    recv_exactly(stream.sock, before)
    over = lib.SIW_MPA_ST_REJECTED if rejected else lib.SIW_MPA_ST_FULL
    wait_until(lambda: lib.siw_mpa_read_and_discard(stream.handle) == 0 and stream.state == over)
    assert MPAReply(recv_to_end(stream.sock)).private_data == b"late"


def test_an_mpa_request_that_does_not_fit_into_tcps_buffer_is_sent_later(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_initiator(make_mpa_params(pdata=b"late"))
    before = fill_socket_send_buffer(stream)
    for _ in range(3):
        assert stream.continue_startup()[0] == lib.SIW_MPA_STARTING
    assert stream.state == lib.SIW_MPA_ST_SENDING_REQUEST
    recv_exactly(stream.sock, before)
    wait_until(lambda: stream.continue_startup() and stream.state == lib.SIW_MPA_ST_AWAIT_REPLY)
    assert recv_startup_frame(stream.sock).private_data == b"late"


def test_a_peer_that_closes_before_it_has_read_the_mpa_reply_is_detected(
    layer_poller: MpaPoller,
) -> None:
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=2))
    fill_socket_send_buffer(stream)
    stream.send_reply(make_mpa_params())
    stream.sock.close()  # a close with unread input resets the connection
    with pytest.raises(StreamError) as e:
        wait_until(stream.peek_fpdu)
    assert e.value.errno in (errno.ECONNRESET, errno.EPIPE)
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CLOSED)


#: Anything from random octets to a well-formed frame with invalid values.
hostile = st.binary(max_size=40) | st.builds(
    lambda key, flags, rev, length, rest: (
        key + bytes([flags, rev]) + length.to_bytes(2, "big") + rest
    ),
    st.sampled_from([b"MPA ID Req Frame", b"MPA ID Rep Frame"]),
    st.integers(0, 255),
    st.integers(0, 3) | st.integers(0, 255),
    st.integers(0, 20) | st.sampled_from([511, 512, 513, 0xFFFF]) | st.integers(0, 0xFFFF),
    st.binary(max_size=24) | st.binary(min_size=512, max_size=540),
)


def close_sending_and_get_startup_result(stream: Stream) -> int | str:
    """Shut down the peer's sending; return the result of start-up, or the name of its errno."""
    stream.sock.shutdown(socket.SHUT_WR)
    try:
        return stream.complete_startup()[0]
    except StreamError as e:
        return errno.errorcode[e.errno]


@settings(max_examples=150)
@given(hostile)
def test_any_octets_sent_to_a_responder_have_the_result_that_their_fields_require(
    octets: bytes,
) -> None:
    key, (flags, rev), length = octets[:16], (octets + b"\0\0" * 20)[16:18], octets[18:20]
    size = int.from_bytes(length, "big") if len(length) == 2 else 0
    short = bool(flags & 0x10) and rev >= 2 and size < 4
    if not b"MPA ID Req Frame".startswith(key) or size > 512:
        want: int | str = "EPROTO"
    elif len(octets) < 20 + size:
        want = "ECONNRESET"
    elif rev == 0 or rev > 2 or short:
        want = "EPROTO"
    else:
        want = lib.SIW_MPA_REQUEST
    with open_mpa_poller() as layer_poller:
        stream = layer_poller.create_responder()
        stream.sock.sendall(octets)
        assert close_sending_and_get_startup_result(stream) == want


@settings(max_examples=150)
@given(hostile, st.booleans())
def test_any_octets_sent_to_an_initiator_have_the_result_that_their_fields_require(
    octets: bytes, s: bool
) -> None:
    key, (flags, rev), length = octets[:16], (octets + b"\0\0" * 20)[16:18], octets[18:20]
    size = int.from_bytes(length, "big") if len(length) == 2 else 0
    has_s = bool(flags & 0x10) and rev >= 2
    a = has_s and len(octets) > 20 and bool(octets[20] & 0x80)
    if not b"MPA ID Rep Frame".startswith(key) or size > 512:
        want: int | str = "EPROTO"
    elif len(octets) < 20 + size:
        want = "ECONNRESET"
    elif has_s and size < 4:
        want = "EPROTO"
    elif flags & 0x20:
        want = lib.SIW_MPA_REJECTED
    elif rev != 2 or has_s != s or a:
        want = "EPROTO"
    else:
        want = lib.SIW_MPA_REPLY
    with open_mpa_poller() as layer_poller:
        stream = layer_poller.create_initiator_awaiting_reply(
            make_enhanced_mpa_params() if s else make_mpa_params()
        )
        stream.sock.sendall(octets)
        assert close_sending_and_get_startup_result(stream) == want


def test_memory_is_returned_to_the_system_after_1024_streams_were_closed(
    layer_poller: MpaPoller,
) -> None:
    crowd = 1024  # the value of TRIM_MIN_OBJECTS in base/trim.c
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    lib.siw_trim_free_memory()  # releases memory that earlier tests have freed
    asked, out = make_mpa_params(), ffi.new("struct siw_mpa_stream **")
    streams = []
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dest = layer_poller.make_siw_addr(nobody.getsockname()[1])
        for _ in range(crowd):
            assert not lib.siw_mpa_connect(
                layer_poller.poller, dest, ffi.NULL, asked, ffi.NULL, out
            )
            streams.append(out[0])
    assert not lib.siw_trim_free_memory()
    for stream in streams:
        lib.siw_mpa_close(stream, 1)
    assert lib.siw_trim_free_memory()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
