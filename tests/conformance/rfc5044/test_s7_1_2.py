"""RFC 5044 section 7.1.2: the sequence of events at start-up."""

from __future__ import annotations

import errno

import pytest
from _siwarp_layers import lib
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MPA_TYPE,
    PATIENCE,
    MpaPoller,
    build_fpdu,
    errno_of_first_failed_call,
    make_mpa_params,
    octet_pattern,
    recv_exactly,
    recv_startup_frame,
    recv_to_end,
    split_fpdus,
    wait_until,
)

from siwarp.inspect import MPAReply, MPARequest

CRC = (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CRC)


def has_peer_received_nothing(stream) -> bool:  # type: ignore[no-untyped-def]
    stream.sock.settimeout(0.03)
    try:
        return not stream.sock.recv(1)
    except TimeoutError:
        return True


@pytest.mark.clause("RFC5044-7.1.2-01", "RFC5044-7.1.2-02", "RFC5044-7.1-02")
def test_an_initiator_sends_an_mpa_request_first(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_initiator(make_mpa_params(rev=1, pdata=b"ask"))
    wait_until(lambda: stream.continue_startup() and stream.state == lib.SIW_MPA_ST_AWAIT_REPLY)
    request = recv_startup_frame(stream.sock)
    assert isinstance(request, MPARequest)
    assert request.private_data == b"ask"


@pytest.mark.clause("RFC5044-7.1.2-03")
def test_a_responder_sends_and_accepts_no_fpdu_before_the_mpa_request(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_responder()
    for _ in range(10):
        assert stream.continue_startup()[0] == lib.SIW_MPA_STARTING
    assert errno_of_first_failed_call(lambda: stream.send_reply(make_mpa_params())) == errno.EINVAL
    assert errno_of_first_failed_call(lambda: stream.frame_fpdu(b"x")) == errno.ENOTCONN
    assert errno_of_first_failed_call(stream.peek_fpdu) == errno.EINVAL
    assert has_peer_received_nothing(stream)


@pytest.mark.clause("RFC5044-7.1.2-05#a", "RFC5044-7.1.2-05#b")
def test_a_rejection_is_an_mpa_reply_with_the_r_bit_and_private_data(
    layer_poller: MpaPoller,
) -> None:
    stream, _ = layer_poller.create_responder_with_request(
        MPARequest(rev=1, private_data=b"please")
    )
    stream.send_reply(make_mpa_params(rejected=1, pdata=b"no"))
    reply = recv_startup_frame(stream.sock)
    assert (reply.r, reply.private_data) == (1, b"no")
    assert stream.state == lib.SIW_MPA_ST_REJECTED
    assert errno_of_first_failed_call(stream.peek_fpdu) == errno.ENOTCONN


@pytest.mark.clause("RFC5044-7.1.2-05#c")
def test_after_a_rejection_tcp_stays_open_until_the_stream_is_closed(
    layer_poller: MpaPoller,
) -> None:
    stream, _ = layer_poller.create_responder_with_request(
        MPARequest(rev=1, private_data=b"please")
    )
    stream.send_reply(make_mpa_params(rejected=1))
    recv_startup_frame(stream.sock)
    stream.sock.settimeout(0.03)
    with pytest.raises(TimeoutError):  # recv() would return b"" after an end of stream
        stream.sock.recv(1)
    stream.sock.sendall(b"TCP takes octets still")
    stream.sock.settimeout(PATIENCE)
    stream.close()
    assert recv_to_end(stream.sock) == b""


@pytest.mark.clause("RFC5044-7.1.2-06#a", "RFC5044-7.1.2-06#b", "RFC5044-7.1.2-06#c")
def test_an_mpa_reply_without_the_r_bit_accepts_and_fpdus_are_received_after_it(
    layer_poller: MpaPoller,
) -> None:
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=1))
    stream.send_reply(make_mpa_params(pdata=b"yes"))
    reply = recv_startup_frame(stream.sock)
    assert (reply.r, reply.private_data) == (0, b"yes")
    stream.sock.sendall(build_fpdu(b"data"))
    assert stream.receive_ulpdu() == b"data"


@pytest.mark.clause("RFC5044-7.1.2-07")
def test_an_initiator_sends_and_accepts_no_fpdu_before_the_mpa_reply(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params())
    recv_startup_frame(stream.sock)
    assert errno_of_first_failed_call(lambda: stream.frame_fpdu(b"x")) == errno.ENOTCONN
    assert errno_of_first_failed_call(stream.peek_fpdu) == errno.EINVAL
    assert has_peer_received_nothing(stream)


@pytest.mark.clause("RFC5044-7.1.2-09")
def test_tcp_stays_open_after_an_initiator_was_rejected(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params())
    recv_startup_frame(stream.sock)
    stream.sock.sendall(bytes(MPAReply(rev=2, r=1)))
    assert stream.complete_startup()[0] == lib.SIW_MPA_REJECTED
    assert errno_of_first_failed_call(lambda: stream.frame_fpdu(b"x")) == errno.ENOTCONN
    stream.sock.settimeout(0.03)
    with pytest.raises(TimeoutError):
        stream.sock.recv(1)  # recv() would return b"" after an end of stream


@pytest.mark.clause("RFC5044-7.1.2-10")
def test_an_accepted_initiator_sends_and_receives_fpdus(layer_poller: MpaPoller) -> None:
    stream, _ = layer_poller.create_initiator_with_reply(make_mpa_params(), MPAReply(rev=2))
    assert stream.frame_fpdu(b"there") == 1
    assert stream.flush_once() == 1
    assert split_fpdus(recv_exactly(stream.sock, 12)) == [b"there"]
    stream.sock.sendall(build_fpdu(b"back"))
    assert stream.receive_ulpdu() == b"back"


@pytest.mark.clause("RFC5044-7.1.2-11")
@pytest.mark.parametrize("size", [0, 20, 20_000])
@pytest.mark.fast_path
def test_a_responder_sends_no_fpdu_before_the_first_fpdu_of_its_peer_is_validated(
    layer_poller: MpaPoller, size: int
) -> None:
    stream = layer_poller.create_receiver()
    assert stream.frame_fpdu(b"eager") == 1
    assert stream.flush_once() == 0
    octets = build_fpdu(octet_pattern(size))
    stream.sock.sendall(octets[:-1])
    seen = stream.peek_fpdu()
    if size > 8192:
        seen = seen or wait_until(stream.peek_fpdu)
        assert stream.try_to_place_payload(0, None) == 0
    assert stream.flush_once() == 0
    assert has_peer_received_nothing(stream)
    stream.sock.sendall(octets[-1:])
    if size > 8192:
        stream.place_payload(0)
    else:
        wait_until(stream.peek_fpdu)
    assert stream.flush_once() == 1
    assert (stream.framed_fpdu_count, stream.tcp_accepted_fpdu_count) == (1, 1)
    assert split_fpdus(recv_exactly(stream.sock, 12)) == [b"eager"]


@pytest.mark.clause("RFC5044-7.1.2-11")
@pytest.mark.parametrize("size", [0, 20_000])
def test_a_responder_sends_nothing_after_an_invalid_first_fpdu(
    layer_poller: MpaPoller, size: int
) -> None:
    stream = layer_poller.create_receiver()
    assert stream.frame_fpdu(b"eager") == 1
    stream.sock.sendall(build_fpdu(octet_pattern(size), crc=1))
    assert errno_of_first_failed_call(lambda: stream.receive_ulpdu() and None) == errno.EBADMSG
    assert stream.error == CRC
    assert stream.flush_once() == 0
    assert has_peer_received_nothing(stream)


@pytest.mark.clause("RFC5044-7.1.2-15")
def test_an_initiator_that_receives_a_request_instead_of_a_reply_fails(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(make_mpa_params())
    stream.sock.sendall(bytes(recv_startup_frame(stream.sock)))
    assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_BAD_FRAME)


@pytest.mark.clause("RFC5044-7.1.2-15")
def test_a_responder_that_receives_a_reply_instead_of_a_request_fails(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_responder()
    stream.sock.sendall(bytes(MPAReply(rev=2)))
    assert errno_of_first_failed_call(lambda: stream.continue_startup()[0]) == errno.EPROTO
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_BAD_FRAME)
