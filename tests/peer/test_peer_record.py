"""Write-Records over UD between siwarp and the independent peer (section 8 of the
specification).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from peer.link import BAD, CLEAN, EmulatedLink, Faults, open_udp_socket, run_until
from peer.ours import (
    SEED,
    TIMEOUT_S,
    SiwarpEnd,
    closing_emulated_link,
    open_siwarp_queue_pair,
    seeded_octets,
    stress_round_count,
)
from peer.record import (
    ReceivedParts,
    WriteRecordHeader,
    WriteRecordSource,
    WriteRecordTarget,
    parse_write_record_segment,
    split_write_record_into_segments,
)
from peer.ud import UdPeer
from peer.wire import (
    PRIVATE,
    Tagged,
    WireError,
    parse_llp_header,
    parse_segment,
    verify_and_strip_crc,
)

from siwarp.verbs import MR, QPAttr, QPType, Record, RemoteBuffer, WCOpcode, WROpcode

pytestmark = pytest.mark.timeout(TIMEOUT_S)
QKEY = 0x7EC07D
MEMORY = 1 << 16
STAG, BASE = 0x55667788, 0x1234_5678_9ABC_0000


class Ends:
    """A siwarp queue pair with memory to write to, the independent peer, and the link between
    them.
    """

    def __init__(self, ours: SiwarpEnd, link: EmulatedLink, peer: UdPeer) -> None:
        self.ours, self.link, self.peer = ours, link, peer
        self.source = WriteRecordSource(peer.sock, link.near, QKEY, 0xFFFFFFF0, 700)
        self.target = WriteRecordTarget(QKEY, STAG, BASE, bytearray(MEMORY))
        self.region: MR = ours.register_memory(MEMORY)
        self.records: list[Record] = []
        self.ah = ours.create_address_handle(link.far)
        link.siwarp, link.peer = ours.qp.addr, peer.sock.getsockname()

    def collect_new_write_records(self) -> None:
        """Run the link and siwarp, and query each new Write-Record before the queue pair discards
        it.
        """
        self.link.forward_datagrams()
        before = len(self.ours.got)
        self.ours.poll_completions()
        for wc, _ in self.ours.got[before:]:
            assert wc.ok
            if wc.opcode == WCOpcode.RECV_WRITE_RECORD:
                self.records.append(self.ours.qp.record(wc))

    def run_until(
        self, until: Callable[[], bool], extra_step: Callable[[], None] = lambda: None
    ) -> None:
        """Run the link and siwarp, and call ``extra_step``, until the condition is true."""
        run_until(until, [self.collect_new_write_records, extra_step], self.link.sockets())


@contextmanager
def siwarp_and_peer(faults: Faults) -> Iterator[Ends]:
    """Yield the siwarp queue pair, the independent peer and the link between them."""
    attr = QPAttr(qkey=QKEY)
    with (
        open_siwarp_queue_pair(
            QPType.UD, attr=attr, max_write_records=512, error_policy="message"
        ) as ours,
        open_udp_socket() as sock,
        closing_emulated_link(EmulatedLink(SEED, faults)) as link,
    ):
        yield Ends(ours, link, UdPeer(sock, QKEY))


def collect_forwarded_message_parts(datagrams: list[bytes]) -> dict[int, ReceivedParts]:
    """Return the parts of each message that the link forwarded without damage, by message id."""
    found: dict[int, ReceivedParts] = {}
    for datagram in datagrams:
        try:
            segment = parse_segment(parse_llp_header(verify_and_strip_crc(datagram))[1])
        except WireError:
            continue
        assert isinstance(segment, Tagged)
        header, data = parse_write_record_segment(segment.payload)
        start = segment.to - header.to
        found.setdefault(header.message_id, ReceivedParts(header)).add_range(
            start, start + len(data)
        )
    return found


@pytest.mark.clause("DGRAM-REC-4", "DGRAM-REC-5")
def test_ranges_reported_for_write_records_are_those_of_the_received_segments() -> None:
    count = stress_round_count(60)
    rng = random.Random(SEED)
    with siwarp_and_peer(BAD) as both:
        wrote: dict[int, tuple[int, bytes]] = {}
        slot = MEMORY // 16
        for i in range(count):
            payload = seeded_octets(i, rng.randrange(1, slot))
            to = both.region.iova + i % 16 * slot
            wrote[both.source.write(both.region.rkey, to, payload)] = (i, payload)
            # A message must be reported before its memory is written again.
            if i % 16 == 15:
                check_reported_write_records(both, wrote)
                # This poll orders the test's reads of the memory before the next writes of the
                # device's thread.
                both.collect_new_write_records()
                wrote.clear()
                both.records.clear()
                both.link.to_siwarp.passed.clear()


def check_reported_write_records(both: Ends, wrote: dict[int, tuple[int, bytes]]) -> None:
    """Wait until all messages of which any part was forwarded are reported, and check the
    reports.
    """
    both.run_until(both.link.is_idle)
    came = collect_forwarded_message_parts(both.link.to_siwarp.passed)
    assert set(came) <= set(wrote)
    both.run_until(lambda: len(both.records) == len(came))
    whole = 0
    for record in both.records:
        written, (i, payload) = came[record.message_id], wrote[record.message_id]
        assert (record.source, record.src_qp) == (both.link.far, both.link.far[1])
        assert (record.rkey, record.addr) == (both.region.rkey, written.header.to)
        assert record.length == len(payload)
        assert record.valid == sum(end - start for start, end in record.ranges)
        for start, end in record.ranges:
            assert any(a <= start and end <= b for a, b in written.ranges)
            at = i % 16 * (MEMORY // 16)
            assert both.region.read(end - start, at + start) == payload[start:end]
        whole += record.ranges == ((0, len(payload)),)
    assert 0 < whole <= sum(message.is_complete() for message in came.values())


@pytest.mark.clause("DGRAM-REC-3")
def test_without_losses_every_write_record_is_reported_complete_and_in_order() -> None:
    with siwarp_and_peer(CLEAN) as both:
        lengths = [0, 1, 700, 701, 5000]
        for length in lengths:
            both.source.write(both.region.rkey, both.region.iova, seeded_octets(length, length))
        both.run_until(lambda: len(both.records) == len(lengths))
        assert [record.length for record in both.records] == lengths
        assert [record.message_id for record in both.records] == list(
            range(0xFFFFFFF0, 0xFFFFFFF0 + len(lengths))
        )
        wanted = seeded_octets(5000, 5000)
        assert both.region.read(5000) == wanted and both.records[-1].ranges == ((0, 5000),)


@pytest.mark.clause("DGRAM-REC-1")
def test_write_record_segments_in_any_order_form_the_same_message() -> None:
    with siwarp_and_peer(CLEAN) as both:
        payload = seeded_octets("shuffled", 9000)
        header = WriteRecordHeader(77, both.region.iova + 10, len(payload))
        segments = split_write_record_into_segments(header, both.region.rkey, payload, 500)
        last = segments.pop()
        random.Random(SEED).shuffle(segments)
        for segment in [*segments, segments[0], last]:
            both.source.send_segment(segment)
        both.run_until(lambda: bool(both.records))
        assert both.records[0].ranges == ((0, 9000),)
        assert both.region.read(9000, 10) == payload


@pytest.mark.clause("DGRAM-REC-1", "DGRAM-REC-2")
def test_write_records_of_siwarp_have_the_format_of_figure_8_1() -> None:
    count = stress_round_count(60)
    rng = random.Random(SEED)
    with siwarp_and_peer(BAD) as both:
        target, wanted = both.target, {}
        for i in range(count):
            payload = seeded_octets(f"from {i}", rng.randrange(MEMORY))
            at = rng.randrange(MEMORY - len(payload))
            there = RemoteBuffer(BASE + at, len(payload), STAG)
            target.memory[:] = bytes(MEMORY)
            before = set(target.messages)
            both.ours.post_payload(payload, WROpcode.RDMA_WRITE_RECORD, ah=both.ah, remote=there)
            both.run_until(lambda i=i: len(both.ours.sent) == i + 1 and both.link.is_idle())
            both.run_until(both.link.is_idle, lambda: target.process_datagrams(both.peer.sock))
            target.process_datagrams(both.peer.sock)
            for new in set(target.messages) - before:
                written = target.messages[new]
                wanted[new] = i
                assert (written.header.to, written.header.length) == (BASE + at, len(payload))
                for start, end in written.ranges:
                    assert target.memory[at + start : at + end] == payload[start:end]
        ids = sorted(wanted, key=wanted.get)
        assert all((b - a) % (1 << 32) == wanted[b] - wanted[a] for a, b in pairwise(ids))
        assert len(target.psns) > count // 2 and set(target.dropped) <= {"CRC"}
        assert max(target.psns) < 3 * count + len(both.link.from_siwarp.passed)


@pytest.mark.clause("DGRAM-REC-13", "DGRAM-REC-14")
def test_an_invalid_write_record_segment_is_reported_to_its_sender() -> None:
    """Check the error codes of table 8.2, and the quoted DDP and RDMAP headers."""
    with siwarp_and_peer(CLEAN) as both:
        header = WriteRecordHeader(5, both.region.iova, 8)
        beyond = Tagged(PRIVATE, both.region.rkey, header.to + 4, header.octets() + b"12345", True)
        both.source.send_segment(beyond)
        subcode = bytes([2]) + header.octets()[1:]
        both.source.send_segment(Tagged(PRIVATE, both.region.rkey, header.to, subcode, True))
        hidden = Tagged(PRIVATE, both.region.rkey ^ 1, header.to, header.octets() + bytes(8), True)
        # siwarp does not answer an unknown STag, because the answer would reveal which memory
        # exists.
        both.source.send_segment(hidden)
        both.run_until(lambda: len(both.peer.reports) == 2, both.peer.process_datagrams)
        both.source.write(both.region.rkey, both.region.iova, b"")
        both.run_until(lambda: len(both.records) == 1, both.peer.process_datagrams)
        assert len(both.peer.reports) == 2
        first, second = (report.error for report in both.peer.reports)
        assert (first.layer, first.type, first.code) == (0, 2, 0xFF)
        assert (second.layer, second.type, second.code) == (0, 2, 6)
        assert first.header == beyond.header() and first.rdmap_header == header.octets()
        assert first.seg_len == len(beyond.octets())
        assert second.rdmap_header == subcode
        assert both.region.read() == bytes(MEMORY)
