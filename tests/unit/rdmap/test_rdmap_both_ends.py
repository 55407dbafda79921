"""Two RDMAP streams connected to each other, each with a thread for its sending side."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from unit.mpa.mpa_harness import make_mpa_params
from unit.rdmap.rdmap_harness import (
    PD,
    Event,
    Memory,
    RdmapPoller,
    RecvQueue,
    StreamError,
    build_operation,
    check_result,
    octet_pattern,
    temporary_setting,
    wait_until,
)

FIRST = 999  # wr_id of the receive for the initiator's first Send
SEND, WRITE, READ = lib.SIW_RDMAP_SEND, lib.SIW_RDMAP_WRITE, lib.SIW_RDMAP_READ_REQUEST


@dataclass
class RdmapEndpoint:
    """One end of an RDMAP connection."""

    handle: Any
    recvs: RecvQueue
    events: list[Event] = field(default_factory=list)
    last: Any = None  # the stream position of the last operation transmitted
    accepted: Any = field(default_factory=lambda: ffi.new("uint64_t *"))

    def poll(self) -> None:
        """Process received messages, as a thread that holds the progress lock does."""
        event = ffi.new("struct siw_rdmap_event *")
        for _ in range(64):
            if not lib.siw_rdmap_next_event(self.handle, event):
                return
            if event.kind != lib.SIW_RDMAP_PROGRESS:
                self.events.append(Event.from_c(event))

    def begin_and_flush_operation(
        self, opcode: int, *elements: tuple[int, int, int], **fields: Any
    ) -> None:
        """Send one operation as soon as possible, as a thread that holds the send lock does."""
        array, op = build_operation(opcode, elements, **fields)
        kept.append((array, op))
        self.last = op.stamp

        def try_to_send() -> bool:
            rv = lib.siw_rdmap_begin_op(self.handle, op)
            self.flush()
            return rv != -errno.EAGAIN and check_result(rv) == 0

        wait_until(try_to_send)

    def flush(self) -> int:
        """Flush; return the result of siw_rdmap_flush_tx, which also updates ``self.accepted``."""
        rv = lib.siw_rdmap_flush_tx(self.handle, self.accepted)
        return rv if rv == -errno.EACCES else check_result(rv)

    def events_of_kind(self, kind: str) -> list[Event]:
        return [e for e in self.events if e.kind == kind]

    def received_messages(self) -> list[Event]:
        """Return the receive events except that of the first Send, which starts the responder."""
        return [e for e in self.events_of_kind("RECV") if e.user_data != FIRST]


kept: list[Any] = []


def connect_and_start_endpoints(
    layer_poller: RdmapPoller, *, ird: int = 8, rtr: int = 0
) -> tuple[RdmapEndpoint, RdmapEndpoint]:
    """Return an initiator and a responder, connected to each other and started."""
    mine = make_mpa_params(enhanced=1, ird=ird, ord=ird, p2p=int(bool(rtr)), rtr=rtr)
    two, one = layer_poller.mpa.create_connected_streams(mine)
    ends = []
    for mpa, initiator in ((one, True), (two, False)):
        handle = layer_poller.open_stream(mpa).handle
        end = RdmapEndpoint(handle, layer_poller.create_queue(depth=256))
        how = ffi.new(
            "struct siw_rdmap_start *",
            {
                "recvs": end.recvs.handle,
                "pd": PD,
                "ird": ird,
                "ord": ird,
                "rtr": rtr,
                "initiator": initiator,
            },
        )
        check_result(lib.siw_rdmap_start(handle, how))
        ends.append(end)
    return ends[0], ends[1]


class Progress:
    """A thread that polls both endpoints."""

    def __init__(self, *ends: RdmapEndpoint) -> None:
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._ends = ends
        self._thread = threading.Thread(target=self._poll_until_stopped)

    def _poll_until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                for end in self._ends:
                    end.poll()
        except BaseException as e:
            self.failure = e

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.failure is None


def run_in_threads(*works: Callable[[], None]) -> None:
    """Run each function in its own thread; assert that none has failed."""
    failures: list[BaseException] = []

    def run_and_record_failure(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run_and_record_failure, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize(
    "rtr", [0, lib.SIW_MPA_RTR_FPDU, lib.SIW_MPA_RTR_WRITE, lib.SIW_MPA_RTR_READ]
)
@pytest.mark.parametrize("mulpdu", [500, 64768])
def test_writes_reads_and_sends_run_concurrently_in_both_directions(
    layer_poller: RdmapPoller, rtr: int, mulpdu: int
) -> None:
    rounds, size = 40, 30_000
    with temporary_setting("mulpdu", mulpdu):
        a, b = connect_and_start_endpoints(layer_poller, rtr=rtr)
        if not rtr:  # without an RTR the responder must not send first
            a.begin_and_flush_operation(SEND)
            b.recvs.post(FIRST)
        source = {
            end: layer_poller.register_new_memory(size, octet_pattern(size, i))
            for i, end in enumerate((id(a), id(b)))
        }
        into: dict[int, list[Memory]] = {}
        for end in (a, b):
            into[id(end)] = [layer_poller.register_new_memory(size) for _ in range(3)]
            for user_data in range(rounds):
                end.recvs.post(user_data, into[id(end)][0].sge())

        def build_sender_function(end: RdmapEndpoint, other: RdmapEndpoint) -> Callable[[], None]:
            mine, (_, read_into, _) = source[id(end)], into[id(end)]
            written, theirs = into[id(other)][2], source[id(other)]

            def send_all_rounds() -> None:
                if end is b:
                    wait_until(lambda: b.events_of_kind("STARTED"))
                for i in range(rounds):
                    end.begin_and_flush_operation(
                        WRITE, mine.sge(), rkey=written.stag, remote_to=written.addr
                    )
                    end.begin_and_flush_operation(
                        READ,
                        read_into.sge(),
                        user_data=i,
                        rkey=theirs.stag,
                        remote_to=theirs.addr,
                    )
                    end.begin_and_flush_operation(SEND, mine.sge())

                def all_operations_are_complete() -> bool:
                    end.flush()
                    return (
                        len(other.events_of_kind("READ_DONE"))
                        == len(other.received_messages())
                        == rounds
                    )

                wait_until(all_operations_are_complete, 60)

            return send_all_rounds

        with Progress(a, b):
            run_in_threads(build_sender_function(a, b), build_sender_function(b, a))
        for end, other in ((a, b), (b, a)):
            for m in into[id(end)]:
                assert m.octets() == source[id(other)].octets()
            assert [e.user_data for e in end.events_of_kind("READ_DONE")] == list(range(rounds))
            assert [e.length for e in end.received_messages()] == [size] * rounds
            assert not end.events_of_kind("ERROR")
            assert end.accepted[0] >= end.last.end


def test_a_remote_access_error_is_reported_at_both_ends(layer_poller: RdmapPoller) -> None:
    a, b = connect_and_start_endpoints(layer_poller, rtr=lib.SIW_MPA_RTR_FPDU)
    m, n = (
        layer_poller.register_new_memory(100_000),
        layer_poller.register_new_memory(100_000, rights=0),
    )
    with Progress(a, b):
        wait_until(lambda: b.events_of_kind("STARTED"))
        a.begin_and_flush_operation(WRITE, m.sge(), rkey=n.stag, remote_to=n.addr)
        wait_until(lambda: b.events_of_kind("ERROR"))
        wait_until(lambda: check_result(lib.siw_rdmap_terminate(b.handle)))
        wait_until(lambda: a.events_of_kind("TERMINATED"))
    assert b.events_of_kind("ERROR")[0].err == (0, 1, lib.SIW_RDMAP_ACCESS)
    e = a.events_of_kind("TERMINATED")[0]
    assert (e.err, e.quoted, e.quoted_tagged) == ((0, 1, lib.SIW_RDMAP_ACCESS), True, True)
    assert n.is_untouched()
    with pytest.raises(StreamError, match="EPIPE"):
        a.begin_and_flush_operation(SEND)


@pytest.mark.parametrize("turn", range(10))
def test_a_region_may_be_freed_while_the_peer_reads_it(
    layer_poller: RdmapPoller, turn: int
) -> None:
    size = 4 << 20
    a, b = connect_and_start_endpoints(layer_poller, rtr=lib.SIW_MPA_RTR_FPDU)
    sink, source = (
        layer_poller.register_new_memory(size),
        layer_poller.register_new_memory(size, octet_pattern(size, turn)),
    )

    def flush_response() -> bool:
        return b.flush() in (1, -errno.EACCES)

    def free_stag_of_read_source() -> None:
        assert layer_poller.free_stag(source.stag) == 0

    with Progress(a, b):
        wait_until(lambda: b.events_of_kind("STARTED"))
        a.begin_and_flush_operation(
            READ, sink.sge(), user_data=1, rkey=source.stag, remote_to=source.addr
        )
        wait_until(lambda: b.events_of_kind("REQUESTED"))
        run_in_threads(lambda: wait_until(flush_response), free_stag_of_read_source)
        wait_until(lambda: a.events_of_kind("READ_DONE") or b.events_of_kind("ERROR"))
    if b.events_of_kind("ERROR"):
        assert b.events_of_kind("ERROR")[0].err == (0, 1, lib.SIW_RDMAP_INVALID_STAG)
    else:
        assert sink.octets() == octet_pattern(size, turn)
