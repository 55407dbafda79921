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
    World,
    cut,
    fpdu,
    recv_exactly,
    refused,
)


@pytest.mark.clause("RFC5044-7.2-01", "RFC5044-8-01#a")
def test_the_peer_s_end_of_stream_is_told_and_sending_goes_on(w: World) -> None:
    stream = w.receiver()
    stream.sock.sendall(fpdu(b"last"))
    stream.sock.shutdown(socket.SHUT_WR)
    assert stream.receive() == b"last"
    assert refused(stream.look) == errno.ENOTCONN
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CLOSED)
    assert stream.frame(b"answer") == 1
    assert stream.flush_once() == 1
    assert cut(recv_exactly(stream.sock, 12)) == [b"answer"]


@pytest.mark.clause("RFC5044-8-01#a")
def test_a_reset_is_told_as_a_lost_connection(w: World) -> None:
    stream = w.receiver()
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.sock.close()
    assert refused(stream.look) == errno.ECONNRESET
    assert stream.error == (LLP_LAYER, MPA_TYPE, lib.SIW_MPA_CLOSED)


@pytest.mark.clause("RFC5044-8-08")
def test_after_a_wrong_crc_tcp_stays_open_and_a_last_message_can_be_sent(w: World) -> None:
    stream = w.receiver()
    stream.sock.sendall(fpdu(b"good") + fpdu(b"bad", crc=7))
    assert stream.receive() == b"good"
    assert refused(stream.look) == errno.EBADMSG
    assert stream.frame(b"a diagnosis") == 1
    assert stream.flush_once() == 1
    assert cut(recv_exactly(stream.sock, 20)) == [b"a diagnosis"]
    assert lib.siw_mpa_shutdown(stream.handle) == 0
    assert stream.sock.recv(1) == b""
