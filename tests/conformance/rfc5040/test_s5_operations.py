"""RFC 5040 sections 5 and 6: the operations, their order and completion."""

from __future__ import annotations

import errno

import pytest
from _siwarp_layers import lib
from unit.rdmap.rdmap_harness import (
    RdmapWorld,
    StreamError,
    pattern,
    read_request,
    read_response,
    send,
    setting,
    terminate,
    write,
)

from siwarp.inspect import Opcode, Terminate

SEND, SEND_SE, WRITE = lib.SIW_RDMAP_SEND, lib.SIW_RDMAP_SEND_SE, lib.SIW_RDMAP_WRITE
READ = lib.SIW_RDMAP_READ_REQUEST


# ---- section 5.1: Write


@pytest.mark.clause("RFC5040-5.1-01", "RFC5040-5.1-02")
def test_a_write_is_tagged(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.do(WRITE, rkey=4, remote_to=5)
    head, _ = stream.pull()
    assert (head.t, head.opcode, head.stag, head.to) == (1, Opcode.RDMA_WRITE, 4, 5)


@pytest.mark.clause("RFC5040-5.1-03", "RFC5040-5.1-04", "RFC5040-5.1-05")
def test_a_write_is_placed_into_a_part_of_the_buffer_and_not_delivered(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(100)
    stream.recvs.post(1, m.sge())
    stream.put(write(b"abc", stag=m.stag, to=m.addr + 50))
    e = stream.event(progress=True)
    assert (e.kind, e.user_data, e.length) == ("PROGRESS", 0, 3)
    assert m.octets() == bytes([0xA5]) * 50 + b"abc" + bytes([0xA5]) * 47
    assert stream.recvs.take() == 1


@pytest.mark.clause("RFC5040-5.1-06", "RFC5040-5.3-08", "RFC5040-5.5-09")
def test_operations_go_out_in_the_order_they_were_submitted(w: RdmapWorld) -> None:
    stream = w.initiator(ord=16)
    ops = [SEND, WRITE, READ, WRITE, SEND_SE, SEND, READ, WRITE, SEND]
    for i, op in enumerate(ops):
        stream.begin(op, rkey=i)
    stream.flush()
    heads = [stream.pull()[0] for _ in ops]
    assert [h.opcode for h in heads] == ops
    assert [h.stag for h in heads if h.t] == [1, 3, 7]
    assert [h.msn for h in heads if not h.t and h.qn == 0] == [1, 2, 3, 4]


@pytest.mark.clause("RFC5040-5.1-07", "RFC5040-5.5-12")
def test_a_send_behind_a_write_says_that_the_write_is_there(w: RdmapWorld) -> None:
    stream = w.initiator()
    m, n = w.memory(20_000), w.memory(10)
    stream.recvs.post(1, n.sge())
    stream.put(write(pattern(20_000), stag=m.stag, to=m.addr), send(b"done"))
    assert stream.event().kind == "RECV"
    assert m.octets() == pattern(20_000)


@pytest.mark.clause("RFC5040-5.1-09")
def test_a_write_of_nothing_goes_out_and_comes_in(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.do(WRITE)
    head, octets = stream.pull()
    assert (head.t, head.l, octets) == (1, 1, b"")
    stream.put(write(stag=0xFFFF, to=2**64 - 1))
    assert stream.event(progress=True).kind == "PROGRESS"


# ---- section 5.2: Read


@pytest.mark.clause("RFC5040-5.2-01", "RFC5040-5.2.1-03", "RFC5040-5.2.1-05")
def test_one_request_has_one_response_and_the_user_hears_of_neither(w: RdmapWorld) -> None:
    stream = w.initiator(ird=1)
    m = w.memory(10, pattern(10))
    stream.recvs.post(1, m.sge())
    for msn in (1, 2, 3):
        stream.put(read_request(size=10, src_stag=m.stag, src_to=m.addr, msn=msn))
        assert stream.event().kind == "REQUESTED"
        stream.flush()
        head, octets = stream.pull_message()
        assert (head.opcode, octets) == (Opcode.RDMA_READ_RESPONSE, pattern(10))
    assert stream.event_once() is None
    assert stream.recvs.take() == 1


@pytest.mark.clause("RFC5040-5.2.1-01", "RFC5040-5.2.1-02", "RFC5040-5.2.1-07")
def test_a_request_is_untagged_on_queue_one(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.do(READ, rkey=3)
    head, octets = stream.pull()
    assert (head.t, head.qn, head.opcode, len(octets)) == (0, 1, 1, 28)


@pytest.mark.clause("RFC5040-5.2.1-08", "RFC5040-5.2.1-11")
def test_requests_go_out_in_order_each_naming_one_source(w: RdmapWorld) -> None:
    stream = w.initiator(ord=8)
    m = w.memory(80)
    for i in range(8):
        stream.begin(READ, [m.sge(10 * i, 10)], rkey=100 + i, remote_to=i)
    stream.flush()
    requests = [stream.pull_read_request() for _ in range(8)]
    assert [(h.msn, r.src_stag, r.src_to, r.size) for h, r in requests] == [
        (i + 1, 100 + i, i, 10) for i in range(8)
    ]


@pytest.mark.clause("RFC5040-5.2.1-09", "RFC5040-5.2.2-06", "RFC5040-5.5-16")
def test_responses_come_in_the_order_of_the_requests(w: RdmapWorld) -> None:
    stream = w.initiator(ird=8)
    m = w.memory(100, pattern(100))
    stream.put(
        *[
            read_request(size=i, src_stag=m.stag, src_to=m.addr, sink_to=i, msn=i + 1)
            for i in range(8)
        ]
    )
    for _ in range(8):
        assert stream.event().kind == "REQUESTED"
    stream.flush()
    got = [stream.pull_message() for _ in range(8)]
    assert [(head.to, octets) for head, octets in got] == [(i, pattern(100)[:i]) for i in range(8)]


@pytest.mark.clause("RFC5040-5.2.1-04", "RFC5040-5.2.1-13", "RFC5040-5.2.2-02")
def test_a_valid_request_is_answered_with_a_tagged_response(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(50_000, pattern(50_000))
    stream.put(read_request(size=50_000, src_stag=m.stag, src_to=m.addr, sink_stag=9))
    stream.event()
    stream.flush()
    head, octets = stream.pull_message()
    assert (head.t, head.opcode, head.stag, octets) == (1, 2, 9, pattern(50_000))


@pytest.mark.clause("RFC5040-5.2.1-14")
def test_a_read_of_nothing_goes_out_and_is_done_by_its_response(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.do(READ, user_data=5)
    _, request = stream.pull_read_request()
    assert request.size == 0
    stream.put(read_response(stag=0xABCD, to=123))
    e = stream.event()
    assert (e.kind, e.user_data, e.length) == ("READ_DONE", 5, 0)


@pytest.mark.parametrize(("stag", "to"), [(0, 0), (0xFFFF, 2**64 - 1)])
@pytest.mark.clause("RFC5040-5.2.1-16", "RFC5040-5.2.1-17")
def test_a_request_for_nothing_is_answered_without_a_look_at_its_source(
    w: RdmapWorld, stag: int, to: int
) -> None:
    stream = w.initiator()
    stream.put(read_request(size=0, src_stag=stag, src_to=to, sink_stag=6, sink_to=7))
    assert stream.event().kind == "REQUESTED"
    stream.flush()
    head, octets = stream.pull_message()
    assert (head.opcode, head.stag, head.to, head.l, octets) == (2, 6, 7, 1, b"")


@pytest.mark.clause("RFC5040-5.2.2-04", "RFC5040-5.5-15", "RFC5040-5.5-17")
def test_a_read_is_complete_with_its_response_and_not_before(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10)
    stream.do(READ, [m.sge()], user_data=8)
    _, request = stream.pull_read_request()
    stream.put(read_response(b"01234", stag=request.sink_stag, l=0))
    assert stream.event(progress=True).kind == "PROGRESS"
    assert stream.event_once() is None
    stream.put(read_response(b"56789", stag=request.sink_stag, to=5))
    e = stream.event()
    assert (e.kind, e.user_data, e.length) == ("READ_DONE", 8, 10)
    assert m.octets() == b"0123456789"


@pytest.mark.parametrize("size", [100, 20_000])
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("stag", (1, 1, lib.SIW_DDP_INVALID_STAG)),
        ("second", (1, 1, lib.SIW_DDP_INVALID_STAG)),
        ("region", (1, 1, lib.SIW_DDP_STAG_NOT_OF_STREAM)),
        ("to", (1, 1, lib.SIW_DDP_BOUNDS)),
        ("wrap", (1, 1, lib.SIW_DDP_TO_WRAP)),
        ("long", (1, 1, lib.SIW_DDP_BOUNDS)),
        ("short", (0, 2, lib.SIW_RDMAP_UNSPECIFIED)),
    ],
)
@pytest.mark.clause("RFC5040-5.2.2-07", "RFC5040-5.2.2-08")
def test_a_response_that_does_not_match_its_request_writes_nothing(
    w: RdmapWorld, wrong: str, error: tuple[int, int, int], size: int
) -> None:
    stream, foreign = w.initiator(), w.memory(size, pd=99)
    a, b = w.memory(size), w.memory(size)
    stream.do(READ, [a.sge()])
    stream.do(READ, [b.sge()])
    sink, second = [stream.pull_read_request()[1].sink_stag for _ in range(2)]
    octets = pattern(size)
    stream.put(
        {
            "stag": read_response(octets, stag=sink ^ 0x800),
            "second": read_response(octets, stag=second),
            "region": read_response(octets, stag=foreign.stag, to=foreign.addr),
            "to": read_response(octets[1:], stag=sink, to=1),
            "wrap": read_response(octets, stag=sink, to=2**64 - 1),
            "long": read_response(octets + b"x", stag=sink),
            "short": read_response(octets[1:], stag=sink),
        }[wrong]
    )
    stream.terminates(error)
    assert a.untouched()
    assert b.untouched()
    assert foreign.untouched()


# ---- section 5.3: Send


@pytest.mark.parametrize("opcode", [SEND, SEND_SE])
@pytest.mark.clause("RFC5040-5.3-01", "RFC5040-5.3-02", "RFC5040-5.3-07")
def test_a_send_is_untagged_on_queue_zero(w: RdmapWorld, opcode: int) -> None:
    stream = w.initiator()
    stream.do(opcode)
    head, _ = stream.pull()
    assert (head.t, head.qn, head.opcode) == (0, 0, opcode)


@pytest.mark.clause("RFC5040-5.3-03", "RFC5040-5.3-05", "RFC5040-5.5-05")
def test_each_send_uses_one_receive_and_they_come_in_order(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10)
    for user_data in range(10):
        stream.recvs.post(user_data, m.sge())
    stream.put(*[send(bytes([i]) * i, msn=i + 1) for i in range(9)])
    got = [stream.event() for _ in range(9)]
    assert [(e.kind, e.user_data, e.length, e.msn) for e in got] == [
        ("RECV", i, i, i + 1) for i in range(9)
    ]
    assert stream.recvs.take() == 9


@pytest.mark.clause("RFC5040-5.3-04")
def test_a_send_may_be_shorter_than_its_receive_and_not_longer(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10)
    stream.recvs.post(1, m.sge())
    stream.recvs.post(2, m.sge())
    stream.put(send(b"abc"), send(pattern(11), msn=2))
    e = stream.event()
    assert (e.kind, e.length) == ("RECV", 3)
    stream.terminates((1, 2, lib.SIW_DDP_TOO_LONG))
    assert m.octets() == b"abc" + bytes([0xA5]) * 7


@pytest.mark.clause("RFC5040-5.3-06")
def test_a_solicited_event_comes_with_the_delivery(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.recvs.post(1)
    stream.recvs.post(2)
    stream.put(send(opcode=Opcode.SEND_SE), send(msn=2))
    assert [stream.event().solicited, stream.event().solicited] == [True, False]


@pytest.mark.clause("RFC5040-5.3-09", "RFC5040-5.3-10")
def test_a_send_of_nothing_uses_a_receive(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.do(SEND)
    assert stream.pull()[1] == b""
    stream.recvs.post(4)
    stream.put(send())
    e = stream.event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 4, 0)
    assert stream.recvs.take() is None


# ---- section 5.4: Terminate


@pytest.mark.clause("RFC5040-5.4-01", "RFC5040-5.4-02", "RFC5040-5.4-03")
def test_a_terminate_is_untagged_on_queue_two(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.put(write(b"x", stag=1))
    stream.fails()
    stream.terminate()
    head, _ = stream.pull()
    assert (head.t, head.qn, head.opcode, head.msn) == (0, 2, Opcode.TERMINATE, 1)


@pytest.mark.clause("RFC5040-5.4-04", "RFC5040-5.4-05", "RFC5040-5.4-07")
def test_one_terminate_can_always_be_placed_and_comes_up(w: RdmapWorld) -> None:
    stream = w.initiator(ird=0, ord=0)
    stream.put(terminate(Terminate(layer=1, etype=2, code=1)))
    e = stream.event()
    assert (e.kind, e.err) == ("TERMINATED", (1, 2, 1))


@pytest.mark.clause("RFC5040-5.4-08")
def test_nothing_is_sent_after_a_terminate(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10)
    stream.put(read_request(size=10, src_stag=m.stag, src_to=m.addr), write(b"x", stag=1))
    assert stream.event().kind == "REQUESTED"
    # `terminates` also checks that nothing follows the Terminate on the wire
    stream.terminates((1, 1, 0))
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin(SEND)


@pytest.mark.clause("RFC5040-5.4-09")
def test_nothing_is_sent_after_the_peers_terminate(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10)
    stream.put(read_request(size=10, src_stag=m.stag, src_to=m.addr))
    assert stream.event().kind == "REQUESTED"
    stream.put(terminate(bytes(4)))
    assert stream.event().kind == "TERMINATED"
    assert stream.flush_once() == 1
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin(SEND)
    stream.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        stream.sock.recv(1)


@pytest.mark.clause("RFC5040-6.2.1-01", "RFC5040-6.2.1-04")
def test_after_a_terminate_the_stream_ends_gracefully(w: RdmapWorld) -> None:
    stream = w.initiator()
    stream.put(write(b"x", stag=1))
    stream.terminates((1, 1, 0))
    assert stream.sock.recv(1) == b""  # TCP ends with an end of stream, not with a reset
    stream.sock.sendall(pattern(100))


# ---- section 5.5: order and completion


@pytest.mark.clause("RFC5040-5.5-07", "RFC5040-5.5-13")
def test_a_request_is_not_processed_before_all_of_it_is_delivered(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10, pattern(10))
    request = read_request(size=10, src_stag=m.stag, src_to=m.addr)
    first = bytearray(request[:30])
    first[0] &= ~0x40
    rest = bytearray(request[:18]) + request[30:]
    rest[14:18] = (12).to_bytes(4, "big")
    stream.put(bytes(first))
    assert stream.event(progress=True).kind == "PROGRESS"
    assert not stream.owes
    stream.put(bytes(rest))
    assert stream.event().kind == "REQUESTED"
    stream.flush()
    assert stream.pull_message()[1] == pattern(10)


@pytest.mark.clause("RFC5040-5.5-10", "RFC5040-5.5-11")
def test_an_operation_is_complete_when_tcp_took_it_and_in_order(w: RdmapWorld) -> None:
    stream = w.initiator(rcvbuf=4096)
    m = w.memory(8 << 20)
    stream.begin(SEND, [m.sge(0, 10)])
    assert stream.accepted == 0
    stream.flush()
    assert stream.accepted == 1
    stream.begin(WRITE, [m.sge()], rkey=1)
    while stream.flush_once() == 0 and stream.begun - stream.accepted == 1:
        stream.sock.settimeout(0.01)
        try:
            stream.sock.recv(1 << 16)
        except TimeoutError:
            continue
    assert stream.accepted == 2


@pytest.mark.clause("RFC5040-5.5-06")
def test_reads_are_delivered_in_the_order_of_their_responses(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(40)
    for user_data in range(4):
        stream.do(READ, [m.sge(10 * user_data, 10)], user_data=user_data)
    for _ in range(4):
        _, request = stream.pull_read_request()
        stream.put(read_response(bytes(10), stag=request.sink_stag))
    assert [stream.event().user_data for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.clause("RFC5040-5.5-08", "RFC5040-5.5-14")
def test_a_send_may_be_complete_before_an_earlier_read_is_answered(w: RdmapWorld) -> None:
    stream = w.initiator()
    m = w.memory(10, pattern(10))
    stream.recvs.post(1)
    stream.put(read_request(size=10, src_stag=m.stag, src_to=m.addr), send())
    assert stream.event().kind == "REQUESTED"
    assert stream.event().kind == "RECV"
    stream.flush()
    assert stream.pull_message()[1] == pattern(10)


# ---- section 6.1


@pytest.mark.parametrize("ord_", [0, 1, 3, 128])
@pytest.mark.clause("RFC5040-6.1-03", "RFC5040-6.1-04")
def test_no_more_reads_are_outstanding_than_agreed(w: RdmapWorld, ord_: int) -> None:
    stream = w.initiator(ord=ord_)
    m = w.memory(10)
    for _ in range(ord_):
        stream.begin(READ, [m.sge()])
    with pytest.raises(StreamError) as e:
        stream.begin(READ, [m.sge()])
    assert e.value.errno == errno.EAGAIN
    stream.flush()
    for _ in range(ord_):
        stream.pull_read_request()


@pytest.mark.parametrize("ird", [0, 1, 3, 128])
@pytest.mark.clause("RFC5040-6.1-02", "RFC5040-6.1-05", "RFC5040-5.2.2-03")
def test_as_many_requests_are_taken_as_agreed_and_no_more(w: RdmapWorld, ird: int) -> None:
    stream = w.initiator(ird=ird)
    m = w.memory(10)
    for msn in range(1, ird + 2):
        stream.put(read_request(size=1, src_stag=m.stag, src_to=m.addr, msn=msn))
    assert [stream.event().kind for _ in range(ird)] == ["REQUESTED"] * ird
    e = stream.event()
    assert (e.kind, e.err) == ("ERROR", (1, 2, lib.SIW_DDP_NO_BUFFER))


@pytest.mark.clause("RFC5040-6.1-01")
def test_only_rdma_messages_go_out(w: RdmapWorld) -> None:
    with setting("mulpdu", 200):
        stream = w.initiator(ord=16)
        m = w.memory(1000, pattern(1000))
        for op in (SEND, WRITE, READ, SEND_SE):
            stream.do(op, [m.sge()], rkey=1)
        seen = set()
        for _ in range(4):
            head, _ = stream.pull_message()
            seen.add((head.dv, head.rv, head.opcode))
    assert seen == {(1, 1, op) for op in (SEND, WRITE, READ, SEND_SE)}
