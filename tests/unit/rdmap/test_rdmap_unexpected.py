"""Sends that arrive before their receives are stored within a limit; other messages continue."""

from __future__ import annotations

import errno
import random

import pytest
from _siwarp_layers import ffi, lib
from unit.rdmap.rdmap_harness import (
    CANARY,
    LOCAL_WRITE,
    RdmapPoller,
    Stream,
    StreamError,
    build_fpdu,
    build_read_request,
    build_read_response,
    build_send,
    build_terminate,
    build_write,
    octet_pattern,
    wait_until,
)

from siwarp.inspect import Opcode

ROOM, LITTLE_ROOM = 128 << 10, 32 << 10
NO_BUFFER, TOO_LONG = (1, 2, 2), (1, 2, 5)


def waiting_send_msn(stream: Stream) -> int | None:
    """Return the MSN of the Send that waits for a receive, or None."""
    msn = ffi.new("uint32_t *")
    return int(msn[0]) if lib.siw_rdmap_received_send_awaits_buffer(stream.handle, msn) else None


def has_only_progress_events(stream: Stream) -> bool:
    """Return whether 50 polls give no event other than PROGRESS."""
    seen = [stream.poll_event() for _ in range(50)]
    return all(e is None or e.kind == "PROGRESS" for e in seen)


def receive_read_response_sizes(stream: Stream) -> list[int]:
    """Return the sizes of the Read Responses sent so far."""
    stream.flush()
    stream.sock.settimeout(0.02)
    sizes = []
    try:
        while True:
            head, octets = stream.read_sent_segment()
            assert head.opcode == Opcode.RDMA_READ_RESPONSE
            sizes.append(len(octets))
    except TimeoutError:
        return sizes
    finally:
        stream.sock.settimeout(10)


def test_an_unexpected_send_is_received_when_a_receive_is_posted(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    stream.inject_segments(build_send(octet_pattern(100), opcode=Opcode.SEND_SE))
    assert stream.next_event().kind == "PARKED"
    assert has_only_progress_events(stream) and waiting_send_msn(stream) == 1
    m = layer_poller.register_new_memory(100)
    stream.recvs.post(17, m.sge())
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length, e.msn, e.solicited) == ("RECV", 17, 100, 1, True)
    assert m.octets() == octet_pattern(100)
    assert has_only_progress_events(stream) and waiting_send_msn(stream) is None


def test_writes_reads_and_a_terminate_after_an_unexpected_send_are_processed(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    m = layer_poller.register_new_memory(64)
    stream.inject_segments(
        build_send(b"early"),
        build_write(b"written!", stag=m.stag, to=m.addr),
        build_read_request(size=8, src_stag=m.stag, src_to=m.addr),
    )
    assert [stream.next_event(progress=True).kind for _ in range(3)] == [
        "PARKED",
        "PROGRESS",
        "REQUESTED",
    ]
    assert m.octets()[:8] == b"written!"
    stream.flush()
    assert stream.read_sent_segment()[1] == b"written!"
    assert waiting_send_msn(stream) == 1
    stream.inject_segments(build_terminate(b"\x00\x00\x00\x00"))
    assert stream.next_event().kind == "TERMINATED"


def test_unexpected_sends_are_received_in_order_each_by_the_next_receive(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    m = layer_poller.register_new_memory(1000)
    for i in range(1, 6):
        stream.inject_segments(build_send(octet_pattern(i * 10, i), msn=i))
    assert stream.next_event().kind == "PARKED"
    for i in range(1, 6):
        assert has_only_progress_events(stream) and waiting_send_msn(stream) == i
        stream.recvs.post(i, m.sge((i - 1) * 100, 100))
        e = stream.next_event()
        assert (e.kind, e.user_data, e.length, e.msn) == ("RECV", i, i * 10, i)
        assert m.octets()[(i - 1) * 100 :][: i * 10] == octet_pattern(i * 10, i)
    stream.recvs.post(6, m.sge())
    stream.inject_segments(build_send(b"direct", msn=6))
    assert (stream.next_event().user_data, m.octets()[:6]) == (6, b"direct")


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_partly_stored_unexpected_send_is_completed_in_its_receive_buffer(
    layer_poller: RdmapPoller, cut: int
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    data = octet_pattern(400)
    pieces = [build_send(data[i * 100 :][:100], mo=i * 100, l=int(i == 3)) for i in range(4)]
    m = layer_poller.register_new_memory(400)
    stream.inject_segments(*pieces[:cut])
    assert stream.next_event().kind == "PARKED"
    assert has_only_progress_events(stream)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(*pieces[cut:], build_send(b"next", msn=2))
    stream.recvs.post(2, m.sge(0, 4))
    e = stream.next_event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 400)
    assert m.octets() == data
    assert (stream.next_event().user_data, m.octets()[:4]) == (2, b"next")


@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_an_unexpected_segment_may_arrive_in_small_pieces(
    layer_poller: RdmapPoller, size: int
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    m = layer_poller.register_new_memory(max(size, 1))
    octets = build_fpdu(build_send(octet_pattern(size)))
    step = max(1, len(octets) // 40)
    for at in range(0, len(octets) - step, step):
        stream.sock.sendall(octets[at : at + step])
        assert stream.poll_event() is None
    stream.sock.sendall(octets[(len(octets) - step - 1) // step * step + step :])
    assert stream.next_event().kind == "PARKED"
    stream.recvs.post(1, m.sge())
    assert stream.next_event().length == size
    assert m.octets()[:size] == octet_pattern(size)


def test_a_read_of_length_0_is_answered_after_the_preceding_send_was_received(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    m = layer_poller.register_new_memory(64)
    stream.inject_segments(
        build_read_request(size=0, src_stag=1, src_to=0),
        build_send(b"one"),
        build_read_request(size=8, src_stag=m.stag, src_to=m.addr, msn=2),
        build_read_request(size=0, src_stag=1, src_to=0, msn=3),
        build_send(b"two", msn=2),
        build_read_request(size=4, src_stag=m.stag, src_to=m.addr, msn=4),
    )
    while stream.poll_event():
        pass
    wait_until(lambda: stream.poll_event() is None)
    seen = receive_read_response_sizes(stream)
    while len(seen) < 2:
        stream.poll_event()
        seen += receive_read_response_sizes(stream)
    assert seen == [0, 8]
    stream.recvs.post(1, m.sge())
    assert stream.next_event().kind == "RECV"
    assert stream.next_event().kind == "REQUESTED"
    # the Read Response is sent although the second Send still waits for a receive
    assert receive_read_response_sizes(stream) == [0, 4]
    assert waiting_send_msn(stream) == 2


def test_full_storage_for_unexpected_sends_stops_reading_and_loses_nothing(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    sizes = [random.Random(5).randrange(0, 4000) for _ in range(300)]
    octets = b"".join(
        build_fpdu(build_send(octet_pattern(n, i), msn=i + 1)) for i, n in enumerate(sizes)
    )
    stream.sock.settimeout(0.05)
    put = 0

    def send_until_socket_is_full() -> None:
        nonlocal put
        try:
            while put < len(octets):
                put += stream.sock.send(octets[put : put + 65536])
        except (TimeoutError, BlockingIOError):
            pass

    send_until_socket_is_full()
    while stream.poll_event():
        pass
    assert waiting_send_msn(stream) == 1
    m = layer_poller.register_new_memory(4000)
    for i, n in enumerate(sizes):
        stream.recvs.post(i, m.sge())
        stream.sock.setblocking(False)
        send_until_socket_is_full()
        e = stream.next_event()
        assert (e.kind, e.user_data, e.length) == ("RECV", i, n)
        assert m.octets()[:n] == octet_pattern(n, i)


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_unexpected_sends_of_a_peer_occupy_at_most_the_limit_of_memory(
    layer_poller: RdmapPoller, size: int
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=LITTLE_ROOM)
    rounds, each = 60, 10
    stream.sock.setblocking(False)
    sent = 0
    for i in range(rounds):
        octets = b"".join(
            build_fpdu(build_send(octet_pattern(size), msn=i * each + j + 1)) for j in range(each)
        )
        try:
            while octets:
                n = stream.sock.send(octets)
                octets, sent = octets[n:], sent + n
        except BlockingIOError:
            break
        while stream.poll_event():
            pass
    kept = int(lib.siw_ddp_rx_unexpected_octets(stream.ddp))
    assert LITTLE_ROOM - 2048 < kept <= LITTLE_ROOM
    assert has_only_progress_events(stream)


@pytest.mark.parametrize(
    ("fields", "code"), [({"msn": 1}, 3), ({"msn": 3}, 3), ({"msn": 2, "mo": 4}, 4)]
)
def test_msn_and_offset_are_checked_in_sends_after_an_unexpected_send(
    layer_poller: RdmapPoller, fields: dict[str, int], code: int
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    stream.inject_segments(build_send(b"early"), build_send(b"bad", **fields))
    assert stream.next_event().kind == "PARKED"
    assert stream.assert_terminates_with((1, 2, code)).quoted_ddp.msn == fields["msn"]


def test_an_unexpected_send_longer_than_its_receive_causes_a_terminate_that_quotes_it(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    m = layer_poller.register_new_memory(64)
    stream.inject_segments(build_send(b"8 octets", msn=1), build_send(b"9 octets!", msn=2))
    assert stream.next_event().kind == "PARKED"
    assert has_only_progress_events(stream)
    stream.recvs.post(1, m.sge(0, 8))
    stream.recvs.post(2, m.sge(8, 8))
    t = stream.assert_terminates_with(TOO_LONG)
    assert (t.quoted_ddp.msn, t.ddp_seg_len) == (2, 18 + 9)
    assert m.octets()[:8] == b"8 octets"
    assert m.octets()[8:] == bytes([CANARY]) * 56
    assert stream.pop_partial_receive() == 2


def test_a_receive_with_a_freed_key_for_an_unexpected_send_is_a_local_error(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    m = layer_poller.register_new_memory(8, rights=LOCAL_WRITE)
    stream.inject_segments(build_send(b"8 octets"))
    assert stream.next_event().kind == "PARKED"
    layer_poller.free_stag(m.stag)
    stream.recvs.post(1, m.sge())
    stream.assert_terminates_with((1, 0, 0))
    assert m.is_untouched()


def test_the_terminate_after_the_rnr_time_out_quotes_the_waiting_send(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    m = layer_poller.register_new_memory(64)
    for i in range(1, 4):
        stream.inject_segments(build_send(octet_pattern(10), msn=i))
    assert stream.next_event().kind == "PARKED"
    wait_until(
        lambda: (
            has_only_progress_events(stream) and lib.siw_ddp_rx_unexpected_octets(stream.ddp) > 200
        )
    )
    stream.recvs.post(1, m.sge())
    # The call has no effect, because a receive has been posted for the waiting Send.
    lib.siw_rdmap_fail_received_send_without_buffer(stream.handle)
    assert stream.next_event().kind == "RECV"
    assert has_only_progress_events(stream)
    lib.siw_rdmap_fail_received_send_without_buffer(stream.handle)
    assert stream.assert_terminates_with(NO_BUFFER).quoted_ddp.msn == 2


@pytest.mark.clause("RFC5040-7.1-03")
def test_an_rnr_time_out_after_a_local_error_does_not_change_the_reported_error(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(unexpected_octets=ROOM)
    stream.inject_segments(build_send(b"early"))
    assert stream.next_event().kind == "PARKED"
    wait_until(lambda: has_only_progress_events(stream) and waiting_send_msn(stream) == 1)
    m = layer_poller.register_new_memory(4 << 20)
    stream.begin_operation(lib.SIW_RDMAP_SEND, [m.sge()])
    layer_poller.free_stag(m.stag)
    with pytest.raises(StreamError, match="EACCES"):
        stream.flush_once()
    lib.siw_rdmap_fail_received_send_without_buffer(stream.handle)
    e = stream.next_event()
    assert (e.kind, e.err, e.quoted) == ("ERROR", (0, 0, 0), False)


def test_without_storage_for_unexpected_sends_a_send_without_a_receive_is_an_error(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_send(b"early"))
    assert stream.assert_terminates_with(NO_BUFFER).quoted_ddp.msn == 1


def test_a_confirming_read_counts_against_the_ord_and_confirms_earlier_requests(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator(ord=1)
    m = layer_poller.register_new_memory(64)
    for _ in range(3):
        stream.begin_operation(lib.SIW_RDMAP_SEND, [m.sge()])
    assert lib.siw_rdmap_send_confirming_read(stream.handle, 3) == 0
    assert lib.siw_rdmap_send_confirming_read(stream.handle, 3) == -errno.EAGAIN
    stream.flush()
    assert [stream.read_sent_segment()[0].opcode for _ in range(3)] == [Opcode.SEND] * 3
    _, request = stream.read_sent_read_request()
    assert request.size == 0
    stream.inject_segments(build_read_response(stag=request.sink_stag, to=request.sink_to))
    e = stream.next_event()
    assert (e.kind, e.user_data) == ("CONFIRMED", 3)
    assert lib.siw_rdmap_send_confirming_read(stream.handle, 3) == 0


@pytest.mark.parametrize("size", [1, 16, 20_000])
def test_payload_in_the_response_to_a_confirming_read_is_discarded(
    layer_poller: RdmapPoller, size: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(64)
    assert lib.siw_rdmap_send_confirming_read(stream.handle, 3) == 0
    stream.flush()
    _, request = stream.read_sent_read_request()
    sink = {"stag": request.sink_stag, "to": request.sink_to}
    stream.inject_segments(
        build_read_response(octet_pattern(size), **sink, l=0), build_read_response(b"rest", **sink)
    )
    assert stream.next_event().kind == "CONFIRMED"
    assert m.is_untouched()
    stream.recvs.post(3, m.sge())
    stream.inject_segments(build_send(b"next"))
    assert stream.next_event().user_data == 3
    assert lib.siw_rdmap_send_confirming_read(stream.handle, 3) == 0


def test_a_response_to_a_confirming_read_for_another_stag_is_an_error(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(64)
    assert lib.siw_rdmap_send_confirming_read(stream.handle, 3) == 0
    stream.flush()
    stream.read_sent_read_request()
    stream.inject_segments(build_read_response(b"x", stag=m.stag, to=m.addr))
    stream.assert_terminates_with((0, 1, 2))
    assert m.is_untouched()
