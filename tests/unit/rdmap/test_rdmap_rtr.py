"""The first FPDU of a connection: RFC 6581's RTR, or no RTR negotiated."""

from __future__ import annotations

import pytest
from _siwarp_layers import ffi, lib
from unit.rdmap.rdmap_harness import (
    RdmapWorld,
    StreamError,
    pattern,
    read_request,
    read_response,
    send,
    write,
)

FPDU, WRITE, READ = lib.SIW_MPA_RTR_FPDU, lib.SIW_MPA_RTR_WRITE, lib.SIW_MPA_RTR_READ
NO_MATCH = (lib.SIW_LAYER_LLP, 0, lib.SIW_MPA_NO_RTR_MATCH)


def rtr(kind: int) -> bytes:
    """Return the RTR's segment, or no octets for the zero-length FPDU."""
    return {
        FPDU: b"",
        WRITE: write(stag=1),
        READ: read_request(size=0, src_stag=1, src_to=0, sink_stag=1),
    }[kind]


# ---- initiator


def test_an_empty_fpdu_is_sent_as_rtr(w: RdmapWorld) -> None:
    stream = w.initiator(rtr=FPDU)
    assert stream.pull() == (None, b"")
    assert (stream.begun, stream.accepted) == (0, 0)


def test_an_empty_write_is_sent_as_rtr(w: RdmapWorld) -> None:
    stream = w.initiator(rtr=WRITE)
    head, octets = stream.pull()
    assert (head.t, head.l, head.opcode, head.to, octets) == (1, 1, 0, 0, b"")
    assert head.stag != 0, "some refuse STag 0"


@pytest.mark.parametrize("ord_", [0, 1, 4])
def test_an_empty_read_is_sent_as_rtr(w: RdmapWorld, ord_: int) -> None:
    stream = w.initiator(rtr=READ, ord=ord_)
    _, request = stream.pull_read_request()
    assert request.size == 0
    assert request.sink_stag != 0, "some refuse STag 0"
    stream.put(read_response(stag=request.sink_stag))
    assert stream.event(progress=True).kind == "PROGRESS", "nobody above asked for that Read"
    assert stream.event_once() is None


def test_the_response_to_an_rtr_completes_no_read_of_the_users(w: RdmapWorld) -> None:
    stream = w.initiator(rtr=READ)
    m = w.memory(10)
    stream.do(lib.SIW_RDMAP_READ_REQUEST, [m.sge()], user_data=4)
    rtr, read = (stream.pull_read_request()[1] for _ in range(2))
    stream.put(
        read_response(stag=rtr.sink_stag), read_response(pattern(10, 1), stag=read.sink_stag)
    )
    assert stream.event(progress=True).kind == "PROGRESS"
    event = stream.event(progress=True)
    assert (event.kind, event.user_data) == ("READ_DONE", 4)
    assert m.octets() == pattern(10, 1)


# ---- responder


@pytest.mark.parametrize("kind", [FPDU, WRITE, READ])
def test_the_agreed_rtr_starts_the_stream_and_uses_no_receive(w: RdmapWorld, kind: int) -> None:
    stream = w.responder(rtr=kind, ird=0)
    m = w.memory(10)
    stream.recvs.post(1, m.sge())
    stream.put(rtr(kind), send(b"abc"))
    assert stream.event(progress=True).kind == "STARTED"
    stream.flush()
    if kind == READ:
        head, octets = stream.pull()
        assert (head.opcode, head.stag, head.l, octets) == (2, 1, 1, b"")
    e = stream.event()
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
def test_anything_but_the_agreed_rtr_ends_the_stream(w: RdmapWorld, agreed: int, sent: str) -> None:
    stream = w.responder(rtr=agreed)
    m = w.memory(10)
    stream.recvs.post(1, m.sge())
    stream.put(
        {
            "fpdu": b"",
            "write": rtr(WRITE),
            "read": rtr(READ),
            "send": send(b"abc"),
            "long write": write(b"abc", stag=m.stag, to=m.addr),
            "long read": read_request(size=3, src_stag=m.stag, src_to=m.addr),
        }[sent]
    )
    stream.terminates(NO_MATCH)
    assert m.untouched()
    assert stream.recvs.take() == 1


@pytest.mark.parametrize("sent", [FPDU, WRITE, READ])
@pytest.mark.parametrize("agreed", [FPDU | WRITE, FPDU | READ, WRITE | READ, FPDU | WRITE | READ])
@pytest.mark.clause("RFC6581-9.2-05", "RFC6581-9.2-03")
def test_of_several_kinds_any_that_was_agreed_on_starts_the_stream_and_no_other(
    w: RdmapWorld, agreed: int, sent: int
) -> None:
    stream = w.responder(rtr=agreed)
    m = w.memory(10)
    stream.recvs.post(1, m.sge())
    stream.put(rtr(sent), send(b"", msn=1))
    if not agreed & sent:
        stream.terminates(NO_MATCH)
        return
    assert stream.event(progress=True).kind == "STARTED"
    e = stream.event()  # an empty Send counts as the RTR at most once
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 0)


@pytest.mark.parametrize("agreed", [FPDU | WRITE, FPDU | READ, FPDU | WRITE | READ])
def test_an_empty_send_among_several_kinds_takes_no_receive(w: RdmapWorld, agreed: int) -> None:
    stream = w.responder(rtr=agreed)
    stream.put(send(b""))
    assert stream.event(progress=True).kind == "STARTED"
    stream.recvs.post(1, w.memory(10).sge())
    stream.put(send(b"abc", msn=2))
    e = stream.event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 3)


def test_without_rtr_the_first_message_starts_the_stream_and_comes(w: RdmapWorld) -> None:
    stream = w.responder()
    m = w.memory(10)
    stream.recvs.post(1, m.sge())
    stream.put(send(b"abc"))
    assert stream.event(progress=True).kind == "STARTED"
    e = stream.event(progress=True)
    assert (e.kind, e.length) == ("RECV", 3)
    assert m.octets()[:3] == b"abc"


def test_without_rtr_an_empty_fpdu_starts_the_stream_too(w: RdmapWorld) -> None:
    stream = w.responder()
    stream.put(b"")
    assert stream.event(progress=True).kind == "STARTED"


def test_a_responder_sends_nothing_before_it_heard_the_peer(w: RdmapWorld) -> None:
    stream = w.responder()
    m = w.memory(10, pattern(10))
    stream.begin(lib.SIW_RDMAP_SEND, [m.sge()])
    assert stream.flush_once() == 0
    stream.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        stream.sock.recv(1)
    stream.sock.settimeout(10)
    stream.put(b"")
    assert stream.event().kind == "STARTED"
    stream.flush()
    assert stream.pull()[1] == pattern(10)


def test_empty_fpdus_later_mean_nothing(w: RdmapWorld) -> None:
    stream = w.responder()
    m = w.memory(10)
    stream.recvs.post(1, m.sge())
    stream.put(b"", b"", b"", send(b"abc"))
    kinds = [stream.event(progress=True).kind for _ in range(4)]
    assert kinds == ["STARTED", "PROGRESS", "PROGRESS", "RECV"]


# ---- start


@pytest.mark.parametrize(
    "how", [{"rtr": 3}, {"rtr": 8}, {"ird": 129}, {"ord": 129}], ids=lambda how: str(how)
)
def test_a_start_beyond_the_limits_is_refused(w: RdmapWorld, how: dict[str, int]) -> None:
    with pytest.raises(StreamError, match="EINVAL"):
        w.initiator(**how)


def test_a_stream_starts_once(w: RdmapWorld) -> None:
    stream = w.initiator()
    with pytest.raises(StreamError, match="EINVAL"):
        stream.start(initiator=True)


@pytest.mark.parametrize("ird", [0, 1, 3, 128])
def test_as_many_reads_as_agreed_may_come_at_once(w: RdmapWorld, ird: int) -> None:
    stream = w.initiator(ird=ird)
    m = w.memory(10)
    for i in range(ird + 1):
        stream.put(read_request(size=1, src_stag=m.stag, src_to=m.addr, msn=i + 1))
    for _ in range(ird):
        assert stream.event().kind == "REQUESTED"
    assert stream.event().err == (1, 2, lib.SIW_DDP_NO_BUFFER)


# ---- instead of a start


def test_an_initiator_may_refuse_with_a_terminate_instead(w: RdmapWorld) -> None:
    stream = w.initiator(start=False)
    err = ffi.new(
        "struct siw_wire_err *", {"layer": 2, "type": 0, "code": lib.SIW_MPA_INSUFFICIENT_IRD}
    )
    assert lib.siw_rdmap_refuse(stream.handle, err) == 1
    stream.mpa.shutdown()
    t = stream.pull_terminate()
    assert (t.layer, t.etype, t.code, t.m, t.d, t.r) == (2, 0, 6, 0, 0, 0)
    assert lib.siw_rdmap_refuse(stream.handle, err) < 0
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin(lib.SIW_RDMAP_SEND)


def test_nothing_is_sent_or_received_before_the_start(w: RdmapWorld) -> None:
    stream = w.initiator(start=False)
    stream.put(send(b"abc"))
    assert stream.event_once() is None
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin(lib.SIW_RDMAP_SEND)
    m = w.memory(3)
    stream.recvs.post(1, m.sge())
    stream.start(initiator=True)
    assert stream.event().kind == "RECV"


def test_a_full_tcp_is_told_from_a_turn_that_is_over(w: RdmapWorld) -> None:
    stream = w.initiator(rcvbuf=4096)
    m = w.memory(64 << 20)
    stream.begin(lib.SIW_RDMAP_SEND, [m.sge()])
    assert not lib.siw_ddp_tx_blocked(stream.ddp)
    turns = 0
    while not lib.siw_ddp_tx_blocked(stream.ddp):
        assert stream.flush_once() == 0
        turns += 1
    assert turns < 64, "64 MiB went into a TCP that nobody reads"
