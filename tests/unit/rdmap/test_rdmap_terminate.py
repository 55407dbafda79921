"""Parsing any Terminate Message. Terminates that siwarp sends are tested in tests/conformance."""

from __future__ import annotations

import socket
import struct
import time

import pytest
from _siwarp_layers import lib
from hypothesis import given
from hypothesis import strategies as st
from unit.rdmap.rdmap_harness import (
    RdmapPoller,
    StreamError,
    build_send,
    build_terminate,
    build_write,
    counter_value,
    octet_pattern,
    open_rdmap_poller,
)

from siwarp.inspect import QuotedReadRequest, QuotedTagged, QuotedUntagged, Terminate

#: RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8 and RFC 6581 section 8.
ERRORS = (
    [(0, 0, 0)]
    + [(0, 1, code) for code in (0, 1, 2, 3, 4, 9, 255)]
    + [(0, 2, code) for code in (5, 6, 7, 8, 9, 255)]
    + [(1, 0, 0)]
    + [(1, 1, code) for code in range(5)]
    + [(1, 2, code) for code in range(1, 7)]
    + [(2, 0, code) for code in range(1, 8)]
)


def convert_to_linux_siw_layout(octets: bytes) -> bytes:
    """Return a Terminate in the layout that Linux siw uses on a little-endian machine."""
    high, low = octets[0] >> 4, octets[0] & 15
    m, d, r = (octets[2] >> bit & 1 for bit in (7, 6, 5))
    return bytes([low << 4 | high, octets[1], m | d << 1 | r << 2, octets[3]]) + octets[4:]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("layout", [bytes, convert_to_linux_siw_layout])
def test_every_error_code_is_parsed_from_a_terminate_without_quoted_headers(
    layer_poller: RdmapPoller, error: tuple[int, int, int], layout: type
) -> None:
    stream = layer_poller.create_initiator()
    body = bytes(Terminate(layer=error[0], etype=error[1], code=error[2]))
    before = counter_value("terminate_rx")
    stream.inject_segments(build_terminate(layout(body)))
    e = stream.next_event()
    assert (e.kind, e.quoted) == ("TERMINATED", False)
    if layout is convert_to_linux_siw_layout and (error[1], error[0], error[2]) in ERRORS:
        # the octets are valid in both layouts; RFC 5040's takes precedence
        error = (error[1], error[0], error[2])
    assert e.err == error
    assert counter_value("terminate_rx") == before + 1
    assert stream.poll_event() is None


@pytest.mark.parametrize("layout", [bytes, convert_to_linux_siw_layout])
def test_a_quoted_untagged_header_of_a_terminate_is_parsed(
    layer_poller: RdmapPoller, layout: type
) -> None:
    stream = layer_poller.create_initiator()
    body = Terminate(
        layer=1, etype=2, code=2, m=1, d=1, ddp_seg_len=40, quoted_ddp=QuotedUntagged(qn=0, msn=9)
    )
    stream.inject_segments(build_terminate(layout(bytes(body))))
    e = stream.next_event()
    assert e.err == (1, 2, 2)
    assert (e.quoted, e.quoted_tagged, e.quoted_qn, e.quoted_msn) == (True, False, 0, 9)


@pytest.mark.parametrize("layout", [bytes, convert_to_linux_siw_layout])
def test_a_quoted_tagged_header_of_a_terminate_is_parsed(
    layer_poller: RdmapPoller, layout: type
) -> None:
    stream = layer_poller.create_initiator()
    body = Terminate(
        layer=0, etype=1, code=2, m=1, d=1, ddp_seg_len=40, quoted_ddp=QuotedTagged(stag=7)
    )
    stream.inject_segments(build_terminate(layout(bytes(body))))
    e = stream.next_event()
    assert e.err == (0, 1, 2)
    assert (e.quoted, e.quoted_tagged) == (True, True)


@pytest.mark.parametrize("layout", [bytes, convert_to_linux_siw_layout])
def test_a_quoted_read_request_of_a_terminate_is_parsed(
    layer_poller: RdmapPoller, layout: type
) -> None:
    stream = layer_poller.create_initiator()
    body = Terminate(
        layer=0,
        etype=1,
        code=1,
        m=1,
        d=1,
        r=1,
        ddp_seg_len=46,
        quoted_ddp=QuotedUntagged(qn=1, msn=3, opcode=1),
        quoted_rdma=QuotedReadRequest(size=10),
    )
    assert len(bytes(body)) == 52
    stream.inject_segments(build_terminate(layout(bytes(body))))
    e = stream.next_event()
    assert e.err == (0, 1, 1)
    assert (e.quoted, e.quoted_tagged, e.quoted_qn, e.quoted_msn) == (True, False, 1, 3)


@given(st.binary(max_size=256))
def test_any_octets_are_parsed_as_a_terminate(body: bytes) -> None:
    with open_rdmap_poller() as layer_poller:
        stream = layer_poller.create_initiator()
        stream.inject_segments(build_terminate(body))
        e = stream.next_event()
        assert e.kind == "TERMINATED"
        if len(body) < 4:
            assert e.err == (0, 0, 0)
        assert {e.err[0], e.err[1]} <= {(body + bytes(1))[0] >> 4, (body + bytes(1))[0] & 15, 0}
        assert not e.quoted or len(body) >= 4 + 2 + 14


def test_a_terminate_in_two_segments_is_parsed(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    octets = bytes(Terminate(layer=1, etype=1, code=3))
    stream.inject_segments(build_terminate(octets[:1], l=0), build_terminate(octets[1:], mo=1))
    e = stream.next_event()
    assert (e.kind, e.err) == ("TERMINATED", (1, 1, 3))


def test_a_terminate_longer_than_256_octets_is_an_error(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_terminate(bytes(257)))
    assert stream.receive_until_error().err == (1, 2, lib.SIW_DDP_TOO_LONG)


def test_after_a_terminate_nothing_is_sent_or_received(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1)
    stream.inject_segments(
        build_terminate(Terminate(layer=1, etype=1, code=0)),
        build_write(b"abc", stag=m.stag, to=m.addr),
        build_send(),
    )
    assert stream.next_event().kind == "TERMINATED"
    assert stream.poll_event() is None
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin_operation(lib.SIW_RDMAP_SEND)
    with pytest.raises(StreamError, match="EINVAL"):
        stream.send_terminate()
    assert m.is_untouched()
    assert stream.recvs.take_buffer() == 1


def test_sending_a_terminate_on_a_stream_without_an_error_is_refused(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    with pytest.raises(StreamError, match="EINVAL"):
        stream.send_terminate()


def test_a_terminate_is_sent_only_once(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    before = counter_value("terminate_tx")
    stream.inject_segments(build_write(b"x", stag=1))
    stream.assert_terminates_with((1, 1, 0))
    stream.send_terminate()
    assert counter_value("terminate_tx") == before + 1
    with pytest.raises(StreamError, match="EPIPE"):
        stream.flush_once()


def test_sending_a_terminate_fails_after_the_peer_reset_the_connection(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_write(octet_pattern(100), stag=1))
    stream.receive_until_error()
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.sock.close()
    time.sleep(0.01)
    with pytest.raises(StreamError) as e:
        stream.send_terminate()
    assert "EPIPE" in str(e.value) or "ECONNRESET" in str(e.value)
