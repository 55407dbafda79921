"""The first FPDU of a connection, with and without a negotiated RTR of RFC 6581."""

from __future__ import annotations

import pytest
from _siwarp_layers import ffi, lib
from unit.rdmap.rdmap_harness import (
    RdmapPoller,
    StreamError,
    build_read_request,
    build_read_response,
    build_send,
    build_write,
    octet_pattern,
)

FPDU, WRITE, READ = lib.SIW_MPA_RTR_FPDU, lib.SIW_MPA_RTR_WRITE, lib.SIW_MPA_RTR_READ
NO_MATCH = (lib.SIW_LAYER_LLP, 0, lib.SIW_MPA_NO_RTR_MATCH)


def build_rtr_segment(kind: int) -> bytes:
    """Return the segment of an RTR; no octets if the RTR is a zero-length FPDU."""
    return {
        FPDU: b"",
        WRITE: build_write(stag=1),
        READ: build_read_request(size=0, src_stag=1, src_to=0, sink_stag=1),
    }[kind]


# ---- initiator


def test_an_initiator_sends_an_empty_fpdu_as_the_negotiated_rtr(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(rtr=FPDU)
    assert stream.read_sent_segment() == (None, b"")
    assert (stream.begun_operation_count, stream.count_operations_accepted_by_tcp) == (0, 0)


def test_an_initiator_sends_an_empty_write_as_the_negotiated_rtr(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(rtr=WRITE)
    head, octets = stream.read_sent_segment()
    assert (head.t, head.l, head.opcode, head.to, octets) == (1, 1, 0, 0, b"")
    assert head.stag != 0, "some implementations refuse STag 0"


@pytest.mark.parametrize("ord_", [0, 1, 4])
def test_an_initiator_sends_an_empty_read_as_the_negotiated_rtr(
    layer_poller: RdmapPoller, ord_: int
) -> None:
    stream = layer_poller.create_initiator(rtr=READ, ord=ord_)
    _, request = stream.read_sent_read_request()
    assert request.size == 0
    assert request.sink_stag != 0, "some implementations refuse STag 0"
    stream.inject_segments(build_read_response(stag=request.sink_stag))
    assert stream.next_event(progress=True).kind == "PROGRESS", "the RTR Read must not be reported"
    assert stream.poll_event() is None


def test_the_response_to_an_rtr_read_completes_no_read_of_the_program(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(rtr=READ)
    m = layer_poller.register_new_memory(10)
    stream.begin_and_flush_operation(lib.SIW_RDMAP_READ_REQUEST, [m.sge()], user_data=4)
    rtr, read = (stream.read_sent_read_request()[1] for _ in range(2))
    stream.inject_segments(
        build_read_response(stag=rtr.sink_stag),
        build_read_response(octet_pattern(10, 1), stag=read.sink_stag),
    )
    assert stream.next_event(progress=True).kind == "PROGRESS"
    event = stream.next_event(progress=True)
    assert (event.kind, event.user_data) == ("READ_DONE", 4)
    assert m.octets() == octet_pattern(10, 1)


# ---- responder


@pytest.mark.parametrize("kind", [FPDU, WRITE, READ])
def test_the_negotiated_rtr_starts_the_stream_and_consumes_no_receive(
    layer_poller: RdmapPoller, kind: int
) -> None:
    stream = layer_poller.create_responder(rtr=kind, ird=0)
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(build_rtr_segment(kind), build_send(b"abc"))
    assert stream.next_event(progress=True).kind == "STARTED"
    stream.flush()
    if kind == READ:
        head, octets = stream.read_sent_segment()
        assert (head.opcode, head.stag, head.l, octets) == (2, 1, 1, b"")
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 3)


@pytest.mark.parametrize(
    ("agreed", "sent"),
    [
        (agreed, sent)
        for agreed, good in ((FPDU, "fpdu"), (WRITE, "write"), (READ, "read"))
        for sent in ("fpdu", "write", "read", "send", "long write", "long read")
        if sent != good
    ],
)
def test_a_first_message_other_than_the_negotiated_rtr_ends_the_stream(
    layer_poller: RdmapPoller, agreed: int, sent: str
) -> None:
    stream = layer_poller.create_responder(rtr=agreed)
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(
        {
            "fpdu": b"",
            "write": build_rtr_segment(WRITE),
            "read": build_rtr_segment(READ),
            "send": build_send(b"abc"),
            "long write": build_write(b"abc", stag=m.stag, to=m.addr),
            "long read": build_read_request(size=3, src_stag=m.stag, src_to=m.addr),
        }[sent]
    )
    stream.assert_terminates_with(NO_MATCH)
    assert m.is_untouched()
    assert stream.recvs.take_buffer() == 1


@pytest.mark.parametrize("sent", [FPDU, WRITE, READ])
@pytest.mark.parametrize("agreed", [FPDU | WRITE, FPDU | READ, WRITE | READ, FPDU | WRITE | READ])
@pytest.mark.clause("RFC6581-9.2-05", "RFC6581-9.2-03")
def test_any_negotiated_kind_of_rtr_starts_the_stream_and_other_kinds_end_it(
    layer_poller: RdmapPoller, agreed: int, sent: int
) -> None:
    stream = layer_poller.create_responder(rtr=agreed)
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(build_rtr_segment(sent), build_send(b"", msn=1))
    if not agreed & sent:
        stream.assert_terminates_with(NO_MATCH)
        return
    assert stream.next_event(progress=True).kind == "STARTED"
    e = stream.next_event()  # an empty Send counts as the RTR at most once
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 0)


@pytest.mark.parametrize("agreed", [FPDU | WRITE, FPDU | READ, FPDU | WRITE | READ])
def test_with_several_negotiated_kinds_of_rtr_an_empty_first_send_consumes_no_receive(
    layer_poller: RdmapPoller, agreed: int
) -> None:
    stream = layer_poller.create_responder(rtr=agreed)
    stream.inject_segments(build_send(b""))
    assert stream.next_event(progress=True).kind == "STARTED"
    stream.recvs.post(1, layer_poller.register_new_memory(10).sge())
    stream.inject_segments(build_send(b"abc", msn=2))
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 3)


def test_without_rtr_the_first_message_starts_the_stream_and_is_received(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_responder()
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(build_send(b"abc"))
    assert stream.next_event(progress=True).kind == "STARTED"
    e = stream.next_event(progress=True)
    assert (e.kind, e.length) == ("RECV", 3)
    assert m.octets()[:3] == b"abc"


def test_without_a_negotiated_rtr_an_empty_fpdu_starts_the_stream(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_responder()
    stream.inject_segments(b"")
    assert stream.next_event(progress=True).kind == "STARTED"


def test_a_responder_sends_nothing_before_the_peers_first_fpdu(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_responder()
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    stream.begin_operation(lib.SIW_RDMAP_SEND, [m.sge()])
    assert stream.flush_once() == 0
    stream.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        stream.sock.recv(1)
    stream.sock.settimeout(10)
    stream.inject_segments(b"")
    assert stream.next_event().kind == "STARTED"
    stream.flush()
    assert stream.read_sent_segment()[1] == octet_pattern(10)


def test_empty_fpdus_after_the_first_one_are_ignored(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_responder()
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(b"", b"", b"", build_send(b"abc"))
    kinds = [stream.next_event(progress=True).kind for _ in range(4)]
    assert kinds == ["STARTED", "PROGRESS", "PROGRESS", "RECV"]


# ---- start


@pytest.mark.parametrize(
    "how", [{"rtr": 3}, {"rtr": 8}, {"ird": 129}, {"ord": 129}], ids=lambda how: str(how)
)
def test_starting_a_stream_with_an_invalid_rtr_ird_or_ord_is_refused(
    layer_poller: RdmapPoller, how: dict[str, int]
) -> None:
    with pytest.raises(StreamError, match="EINVAL"):
        layer_poller.create_initiator(**how)


def test_starting_a_stream_twice_is_refused(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    with pytest.raises(StreamError, match="EINVAL"):
        stream.start(initiator=True)


@pytest.mark.parametrize("ird", [0, 1, 3, 128])
def test_the_peer_may_have_as_many_outstanding_reads_as_the_ird_and_no_more(
    layer_poller: RdmapPoller, ird: int
) -> None:
    stream = layer_poller.create_initiator(ird=ird)
    m = layer_poller.register_new_memory(10)
    for i in range(ird + 1):
        stream.inject_segments(
            build_read_request(size=1, src_stag=m.stag, src_to=m.addr, msn=i + 1)
        )
    for _ in range(ird):
        assert stream.next_event().kind == "REQUESTED"
    assert stream.next_event().err == (1, 2, lib.SIW_DDP_NO_BUFFER)


# ---- instead of a start


def test_an_initiator_may_refuse_a_connection_with_a_terminate_instead_of_starting_it(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(start=False)
    err = ffi.new(
        "struct siw_wire_err *", {"layer": 2, "type": 0, "code": lib.SIW_MPA_INSUFFICIENT_IRD}
    )
    assert lib.siw_rdmap_refuse_with_terminate(stream.handle, err) == 1
    stream.mpa.shutdown()
    t = stream.read_sent_terminate()
    assert (t.layer, t.etype, t.code, t.m, t.d, t.r) == (2, 0, 6, 0, 0, 0)
    assert lib.siw_rdmap_refuse_with_terminate(stream.handle, err) < 0
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin_operation(lib.SIW_RDMAP_SEND)


def test_nothing_is_sent_or_received_before_the_stream_is_started(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(start=False)
    stream.inject_segments(build_send(b"abc"))
    assert stream.poll_event() is None
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin_operation(lib.SIW_RDMAP_SEND)
    m = layer_poller.register_new_memory(3)
    stream.recvs.post(1, m.sge())
    stream.start(initiator=True)
    assert stream.next_event().kind == "RECV"


def test_a_full_tcp_buffer_is_distinguished_from_the_end_of_a_flush(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(rcvbuf=4096)
    m = layer_poller.register_new_memory(64 << 20)
    stream.begin_operation(lib.SIW_RDMAP_SEND, [m.sge()])
    assert not lib.siw_ddp_is_tx_blocked(stream.ddp)
    turns = 0
    while not lib.siw_ddp_is_tx_blocked(stream.ddp):
        assert stream.flush_once() == 0
        turns += 1
    assert turns < 64, "TCP accepted 64 MiB although the peer reads nothing"
