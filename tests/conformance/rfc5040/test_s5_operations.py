"""RFC 5040 sections 5 and 6: the operations, their order and completion."""

from __future__ import annotations

import errno

import pytest
from _siwarp_layers import lib
from unit.rdmap.rdmap_harness import (
    RdmapPoller,
    StreamError,
    build_read_request,
    build_read_response,
    build_send,
    build_terminate,
    build_write,
    octet_pattern,
    temporary_setting,
)

from siwarp.inspect import Opcode, Terminate

SEND, SEND_SE, WRITE = lib.SIW_RDMAP_SEND, lib.SIW_RDMAP_SEND_SE, lib.SIW_RDMAP_WRITE
READ = lib.SIW_RDMAP_READ_REQUEST


# ---- section 5.1: Write


@pytest.mark.clause("RFC5040-5.1-01", "RFC5040-5.1-02")
def test_a_write_is_a_tagged_message(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(WRITE, rkey=4, remote_to=5)
    head, _ = stream.read_sent_segment()
    assert (head.t, head.opcode, head.stag, head.to) == (1, Opcode.RDMA_WRITE, 4, 5)


@pytest.mark.clause("RFC5040-5.1-03", "RFC5040-5.1-04", "RFC5040-5.1-05")
def test_a_write_is_placed_into_part_of_the_buffer_and_is_not_delivered(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(build_write(b"abc", stag=m.stag, to=m.addr + 50))
    e = stream.next_event(progress=True)
    assert (e.kind, e.user_data, e.length) == ("PROGRESS", 0, 3)
    assert m.octets() == bytes([0xA5]) * 50 + b"abc" + bytes([0xA5]) * 47
    assert stream.recvs.take_buffer() == 1


@pytest.mark.clause("RFC5040-5.1-06", "RFC5040-5.3-08", "RFC5040-5.5-09")
def test_operations_are_transmitted_in_the_order_of_submission(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(ord=16)
    ops = [SEND, WRITE, READ, WRITE, SEND_SE, SEND, READ, WRITE, SEND]
    for i, op in enumerate(ops):
        stream.begin_operation(op, rkey=i)
    stream.flush()
    heads = [stream.read_sent_segment()[0] for _ in ops]
    assert [h.opcode for h in heads] == ops
    assert [h.stag for h in heads if h.t] == [1, 3, 7]
    assert [h.msn for h in heads if not h.t and h.qn == 0] == [1, 2, 3, 4]


@pytest.mark.clause("RFC5040-5.1-07", "RFC5040-5.5-12")
def test_the_delivery_of_a_send_shows_that_the_preceding_write_is_placed(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m, n = layer_poller.register_new_memory(20_000), layer_poller.register_new_memory(10)
    stream.recvs.post(1, n.sge())
    stream.inject_segments(
        build_write(octet_pattern(20_000), stag=m.stag, to=m.addr), build_send(b"done")
    )
    assert stream.next_event().kind == "RECV"
    assert m.octets() == octet_pattern(20_000)


@pytest.mark.clause("RFC5040-5.1-09")
def test_a_write_of_length_0_is_transmitted_and_received(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(WRITE)
    head, octets = stream.read_sent_segment()
    assert (head.t, head.l, octets) == (1, 1, b"")
    stream.inject_segments(build_write(stag=0xFFFF, to=2**64 - 1))
    assert stream.next_event(progress=True).kind == "PROGRESS"


# ---- section 5.2: Read


@pytest.mark.clause("RFC5040-5.2-01", "RFC5040-5.2.1-03", "RFC5040-5.2.1-05")
def test_each_read_request_has_one_response_and_neither_is_delivered_to_the_user(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ird=1)
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    stream.recvs.post(1, m.sge())
    for msn in (1, 2, 3):
        stream.inject_segments(build_read_request(size=10, src_stag=m.stag, src_to=m.addr, msn=msn))
        assert stream.next_event().kind == "REQUESTED"
        stream.flush()
        head, octets = stream.read_sent_message()
        assert (head.opcode, octets) == (Opcode.RDMA_READ_RESPONSE, octet_pattern(10))
    assert stream.poll_event() is None
    assert stream.recvs.take_buffer() == 1


@pytest.mark.clause("RFC5040-5.2.1-01", "RFC5040-5.2.1-02", "RFC5040-5.2.1-07")
def test_a_read_request_is_untagged_on_queue_1(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(READ, rkey=3)
    head, octets = stream.read_sent_segment()
    assert (head.t, head.qn, head.opcode, len(octets)) == (0, 1, 1, 28)


@pytest.mark.clause("RFC5040-5.2.1-08", "RFC5040-5.2.1-11")
def test_read_requests_are_transmitted_in_order_and_each_names_one_source(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ord=8)
    m = layer_poller.register_new_memory(80)
    for i in range(8):
        stream.begin_operation(READ, [m.sge(10 * i, 10)], rkey=100 + i, remote_to=i)
    stream.flush()
    requests = [stream.read_sent_read_request() for _ in range(8)]
    assert [(h.msn, r.src_stag, r.src_to, r.size) for h, r in requests] == [
        (i + 1, 100 + i, i, 10) for i in range(8)
    ]


@pytest.mark.clause("RFC5040-5.2.1-09", "RFC5040-5.2.2-06", "RFC5040-5.5-16")
def test_read_responses_are_transmitted_in_the_order_of_the_requests(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ird=8)
    m = layer_poller.register_new_memory(100, octet_pattern(100))
    stream.inject_segments(
        *[
            build_read_request(size=i, src_stag=m.stag, src_to=m.addr, sink_to=i, msn=i + 1)
            for i in range(8)
        ]
    )
    for _ in range(8):
        assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    got = [stream.read_sent_message() for _ in range(8)]
    assert [(head.to, octets) for head, octets in got] == [
        (i, octet_pattern(100)[:i]) for i in range(8)
    ]


@pytest.mark.clause("RFC5040-5.2.1-04", "RFC5040-5.2.1-13", "RFC5040-5.2.2-02")
def test_a_valid_read_request_is_answered_with_a_tagged_response(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(50_000, octet_pattern(50_000))
    stream.inject_segments(
        build_read_request(size=50_000, src_stag=m.stag, src_to=m.addr, sink_stag=9)
    )
    stream.next_event()
    stream.flush()
    head, octets = stream.read_sent_message()
    assert (head.t, head.opcode, head.stag, octets) == (1, 2, 9, octet_pattern(50_000))


@pytest.mark.clause("RFC5040-5.2.1-14")
def test_a_read_of_length_0_is_transmitted_and_completes_with_its_response(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(READ, user_data=5)
    _, request = stream.read_sent_read_request()
    assert request.size == 0
    stream.inject_segments(build_read_response(stag=0xABCD, to=123))
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length) == ("READ_DONE", 5, 0)


@pytest.mark.parametrize(("stag", "to"), [(0, 0), (0xFFFF, 2**64 - 1)])
@pytest.mark.clause("RFC5040-5.2.1-16", "RFC5040-5.2.1-17")
def test_a_read_request_of_length_0_is_answered_without_a_check_of_its_source(
    layer_poller: RdmapPoller, stag: int, to: int
) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(
        build_read_request(size=0, src_stag=stag, src_to=to, sink_stag=6, sink_to=7)
    )
    assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    head, octets = stream.read_sent_message()
    assert (head.opcode, head.stag, head.to, head.l, octets) == (2, 6, 7, 1, b"")


@pytest.mark.clause("RFC5040-5.2.2-04", "RFC5040-5.5-15", "RFC5040-5.5-17")
def test_a_read_completes_with_the_last_segment_of_its_response(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.begin_and_flush_operation(READ, [m.sge()], user_data=8)
    _, request = stream.read_sent_read_request()
    stream.inject_segments(build_read_response(b"01234", stag=request.sink_stag, l=0))
    assert stream.next_event(progress=True).kind == "PROGRESS"
    assert stream.poll_event() is None
    stream.inject_segments(build_read_response(b"56789", stag=request.sink_stag, to=5))
    e = stream.next_event()
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
def test_a_read_response_that_does_not_match_its_request_writes_nothing(
    layer_poller: RdmapPoller, wrong: str, error: tuple[int, int, int], size: int
) -> None:
    stream, foreign = layer_poller.create_initiator(), layer_poller.register_new_memory(size, pd=99)
    a, b = layer_poller.register_new_memory(size), layer_poller.register_new_memory(size)
    stream.begin_and_flush_operation(READ, [a.sge()])
    stream.begin_and_flush_operation(READ, [b.sge()])
    sink, second = [stream.read_sent_read_request()[1].sink_stag for _ in range(2)]
    octets = octet_pattern(size)
    stream.inject_segments(
        {
            "stag": build_read_response(octets, stag=sink ^ 0x800),
            "second": build_read_response(octets, stag=second),
            "region": build_read_response(octets, stag=foreign.stag, to=foreign.addr),
            "to": build_read_response(octets[1:], stag=sink, to=1),
            "wrap": build_read_response(octets, stag=sink, to=2**64 - 1),
            "long": build_read_response(octets + b"x", stag=sink),
            "short": build_read_response(octets[1:], stag=sink),
        }[wrong]
    )
    stream.assert_terminates_with(error)
    assert a.is_untouched()
    assert b.is_untouched()
    assert foreign.is_untouched()


# ---- section 5.3: Send


@pytest.mark.parametrize("opcode", [SEND, SEND_SE])
@pytest.mark.clause("RFC5040-5.3-01", "RFC5040-5.3-02", "RFC5040-5.3-07")
def test_a_send_is_untagged_on_queue_0(layer_poller: RdmapPoller, opcode: int) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(opcode)
    head, _ = stream.read_sent_segment()
    assert (head.t, head.qn, head.opcode) == (0, 0, opcode)


@pytest.mark.clause("RFC5040-5.3-03", "RFC5040-5.3-05", "RFC5040-5.5-05")
def test_each_send_consumes_one_receive_in_order(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    for user_data in range(10):
        stream.recvs.post(user_data, m.sge())
    stream.inject_segments(*[build_send(bytes([i]) * i, msn=i + 1) for i in range(9)])
    got = [stream.next_event() for _ in range(9)]
    assert [(e.kind, e.user_data, e.length, e.msn) for e in got] == [
        ("RECV", i, i, i + 1) for i in range(9)
    ]
    assert stream.recvs.take_buffer() == 9


@pytest.mark.clause("RFC5040-5.3-04")
def test_a_send_may_be_shorter_than_its_receive_but_not_longer(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.recvs.post(1, m.sge())
    stream.recvs.post(2, m.sge())
    stream.inject_segments(build_send(b"abc"), build_send(octet_pattern(11), msn=2))
    e = stream.next_event()
    assert (e.kind, e.length) == ("RECV", 3)
    stream.assert_terminates_with((1, 2, lib.SIW_DDP_TOO_LONG))
    assert m.octets() == b"abc" + bytes([0xA5]) * 7


@pytest.mark.clause("RFC5040-5.3-06")
def test_a_send_with_solicited_event_is_delivered_with_the_event(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.recvs.post(1)
    stream.recvs.post(2)
    stream.inject_segments(build_send(opcode=Opcode.SEND_SE), build_send(msn=2))
    assert [stream.next_event().solicited, stream.next_event().solicited] == [True, False]


@pytest.mark.clause("RFC5040-5.3-09", "RFC5040-5.3-10")
def test_a_send_of_length_0_consumes_a_receive(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.begin_and_flush_operation(SEND)
    assert stream.read_sent_segment()[1] == b""
    stream.recvs.post(4)
    stream.inject_segments(build_send())
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 4, 0)
    assert stream.recvs.take_buffer() is None


# ---- section 5.4: Terminate


@pytest.mark.clause("RFC5040-5.4-01", "RFC5040-5.4-02", "RFC5040-5.4-03")
def test_a_terminate_is_untagged_on_queue_2(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_write(b"x", stag=1))
    stream.receive_until_error()
    stream.send_terminate()
    head, _ = stream.read_sent_segment()
    assert (head.t, head.qn, head.opcode, head.msn) == (0, 2, Opcode.TERMINATE, 1)


@pytest.mark.clause("RFC5040-5.4-04", "RFC5040-5.4-05", "RFC5040-5.4-07")
def test_one_terminate_can_always_be_received_and_is_reported(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(ird=0, ord=0)
    stream.inject_segments(build_terminate(Terminate(layer=1, etype=2, code=1)))
    e = stream.next_event()
    assert (e.kind, e.err) == ("TERMINATED", (1, 2, 1))


@pytest.mark.clause("RFC5040-5.4-08")
def test_nothing_is_sent_after_a_terminate(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.inject_segments(
        build_read_request(size=10, src_stag=m.stag, src_to=m.addr), build_write(b"x", stag=1)
    )
    assert stream.next_event().kind == "REQUESTED"
    # `assert_terminates_with` also checks that nothing follows the Terminate on the wire.
    stream.assert_terminates_with((1, 1, 0))
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin_operation(SEND)


@pytest.mark.clause("RFC5040-5.4-09")
def test_nothing_is_sent_after_the_peers_terminate(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.inject_segments(build_read_request(size=10, src_stag=m.stag, src_to=m.addr))
    assert stream.next_event().kind == "REQUESTED"
    stream.inject_segments(build_terminate(bytes(4)))
    assert stream.next_event().kind == "TERMINATED"
    assert stream.flush_once() == 1
    with pytest.raises(StreamError, match="EPIPE"):
        stream.begin_operation(SEND)
    stream.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        stream.sock.recv(1)


@pytest.mark.clause("RFC5040-6.2.1-01", "RFC5040-6.2.1-04")
def test_after_a_terminate_the_tcp_stream_ends_gracefully(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_write(b"x", stag=1))
    stream.assert_terminates_with((1, 1, 0))
    assert stream.sock.recv(1) == b""  # TCP ends with a FIN, not with a reset
    stream.sock.sendall(octet_pattern(100))


# ---- section 5.5: order and completion


@pytest.mark.clause("RFC5040-5.5-07", "RFC5040-5.5-13")
def test_a_read_request_is_not_processed_before_it_is_completely_delivered(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    request = build_read_request(size=10, src_stag=m.stag, src_to=m.addr)
    first = bytearray(request[:30])
    first[0] &= ~0x40
    rest = bytearray(request[:18]) + request[30:]
    rest[14:18] = (12).to_bytes(4, "big")
    stream.inject_segments(bytes(first))
    assert stream.next_event(progress=True).kind == "PROGRESS"
    assert not stream.has_pending_responses
    stream.inject_segments(bytes(rest))
    assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    assert stream.read_sent_message()[1] == octet_pattern(10)


@pytest.mark.clause("RFC5040-5.5-10", "RFC5040-5.5-11")
def test_operations_complete_in_order_when_tcp_has_accepted_them(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(rcvbuf=4096)
    m = layer_poller.register_new_memory(8 << 20)
    stream.begin_operation(SEND, [m.sge(0, 10)])
    assert stream.count_operations_accepted_by_tcp == 0
    stream.flush()
    assert stream.count_operations_accepted_by_tcp == 1
    stream.begin_operation(WRITE, [m.sge()], rkey=1)
    while (
        stream.flush_once() == 0
        and stream.begun_operation_count - stream.count_operations_accepted_by_tcp == 1
    ):
        stream.sock.settimeout(0.01)
        try:
            stream.sock.recv(1 << 16)
        except TimeoutError:
            continue
    assert stream.count_operations_accepted_by_tcp == 2


@pytest.mark.clause("RFC5040-5.5-06")
def test_reads_complete_in_the_order_of_their_responses(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(40)
    for user_data in range(4):
        stream.begin_and_flush_operation(READ, [m.sge(10 * user_data, 10)], user_data=user_data)
    for _ in range(4):
        _, request = stream.read_sent_read_request()
        stream.inject_segments(build_read_response(bytes(10), stag=request.sink_stag))
    assert [stream.next_event().user_data for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.clause("RFC5040-5.5-08", "RFC5040-5.5-14")
def test_a_send_may_be_delivered_before_an_earlier_read_request_is_answered(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, octet_pattern(10))
    stream.recvs.post(1)
    stream.inject_segments(
        build_read_request(size=10, src_stag=m.stag, src_to=m.addr), build_send()
    )
    assert stream.next_event().kind == "REQUESTED"
    assert stream.next_event().kind == "RECV"
    stream.flush()
    assert stream.read_sent_message()[1] == octet_pattern(10)


# ---- section 6.1


@pytest.mark.parametrize("ord_", [0, 1, 3, 128])
@pytest.mark.clause("RFC5040-6.1-03", "RFC5040-6.1-04")
def test_no_more_reads_are_outstanding_than_the_negotiated_ord(
    layer_poller: RdmapPoller, ord_: int
) -> None:
    stream = layer_poller.create_initiator(ord=ord_)
    m = layer_poller.register_new_memory(10)
    for _ in range(ord_):
        stream.begin_operation(READ, [m.sge()])
    with pytest.raises(StreamError) as e:
        stream.begin_operation(READ, [m.sge()])
    assert e.value.errno == errno.EAGAIN
    stream.flush()
    for _ in range(ord_):
        stream.read_sent_read_request()


@pytest.mark.parametrize("ird", [0, 1, 3, 128])
@pytest.mark.clause("RFC5040-6.1-02", "RFC5040-6.1-05", "RFC5040-5.2.2-03")
def test_read_requests_are_accepted_up_to_the_negotiated_ird(
    layer_poller: RdmapPoller, ird: int
) -> None:
    stream = layer_poller.create_initiator(ird=ird)
    m = layer_poller.register_new_memory(10)
    for msn in range(1, ird + 2):
        stream.inject_segments(build_read_request(size=1, src_stag=m.stag, src_to=m.addr, msn=msn))
    assert [stream.next_event().kind for _ in range(ird)] == ["REQUESTED"] * ird
    e = stream.next_event()
    assert (e.kind, e.err) == ("ERROR", (1, 2, lib.SIW_DDP_NO_BUFFER))


@pytest.mark.clause("RFC5040-6.1-01")
def test_only_rdma_messages_of_version_1_are_transmitted(layer_poller: RdmapPoller) -> None:
    with temporary_setting("mulpdu", 200):
        stream = layer_poller.create_initiator(ord=16)
        m = layer_poller.register_new_memory(1000, octet_pattern(1000))
        for op in (SEND, WRITE, READ, SEND_SE):
            stream.begin_and_flush_operation(op, [m.sge()], rkey=1)
        seen = set()
        for _ in range(4):
            head, _ = stream.read_sent_message()
            seen.add((head.dv, head.rv, head.opcode))
    assert seen == {(1, 1, op) for op in (SEND, WRITE, READ, SEND_SE)}
