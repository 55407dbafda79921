"""RFC 5044 sections 7.2 and 8: errors and the end of a stream."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from _siwarp_layers import lib
from unit.mpa.mpa_harness import (
    LLP_LAYER,
    MPA_TYPE,
    MpaPoller,
    build_fpdu,
    errno_of_first_failed_call,
    recv_exactly,
    split_fpdus,
)


@pytest.mark.clause("RFC5044-7.2-01", "RFC5044-8-01#a")
def test_the_peers_end_of_stream_is_reported_and_sending_remains_possible(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(b"last"))
    stream.sock.shutdown(socket.SHUT_WR)
    assert stream.receive_ulpdu() == b"last"
    assert errno_of_first_failed_call(stream.peek_fpdu) == errno.ENOTCONN
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CLOSED)
    assert stream.frame_fpdu(b"answer") == 1
    assert stream.flush_once() == 1
    assert split_fpdus(recv_exactly(stream.sock, 12)) == [b"answer"]


@pytest.mark.clause("RFC5044-8-01#a")
def test_a_tcp_reset_is_reported_as_a_lost_connection(layer_poller: MpaPoller) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.sock.close()
    assert errno_of_first_failed_call(stream.peek_fpdu) == errno.ECONNRESET
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CLOSED)


@pytest.mark.clause("RFC5044-8-08")
def test_after_a_wrong_crc_tcp_stays_open_and_a_last_message_can_be_sent(
    layer_poller: MpaPoller,
) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(b"good") + build_fpdu(b"bad", crc=7))
    assert stream.receive_ulpdu() == b"good"
    assert errno_of_first_failed_call(stream.peek_fpdu) == errno.EBADMSG
    assert stream.frame_fpdu(b"a diagnosis") == 1
    assert stream.flush_once() == 1
    assert split_fpdus(recv_exactly(stream.sock, 20)) == [b"a diagnosis"]
    assert lib.siw_mpa_shutdown(stream.handle) == 0
    assert stream.sock.recv(1) == b""
